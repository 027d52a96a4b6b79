"""One line a period while a phase lasts, and none afterwards."""

import time

import pytest

from openrlhf.trainer.fully_async.heartbeat import during


def test_a_long_phase_is_named_again_and_again():
    said: list[str] = []
    with during("update of step 7", period_s=0.05, say=said.append):
        time.sleep(0.28)
    n_said = len(said)
    time.sleep(0.15)
    assert 3 <= n_said == len(said) and all(line.startswith("update of step 7: ") for line in said)


def test_it_ends_with_an_error():
    said: list[str] = []
    with pytest.raises(KeyError), during("sync", period_s=0.05, say=said.append):
        raise KeyError
    time.sleep(0.15)
    assert said == []
