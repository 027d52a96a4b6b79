"""SmolLM2's real weights play every task on a real engine. It scores badly; the episodes are right all the same."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bfcl_eval")

from examples.tasks import search as search_task  # noqa: E402
from examples.tiny import smollm2  # noqa: E402
from openrlhf.agents import retrieval  # noqa: E402

from .fake_encoder import fake_encoder  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("smollm2_episodes.py")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "sentence_encoder", lambda name, **_: fake_encoder)
        search_task.main(["--out", str(folder), "--train", "2", "--eval", "2", "--encoder", "fake"])
        patch.setenv("SEARCH_CORPUS", str(folder / "corpus"))
        command = [sys.executable, "-W", "ignore", str(PROGRAM), str(smollm2.build()), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd="/")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-5000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("task", ["math", "search", "bfcl"])
def test_an_episode_is_what_the_engine_saw_and_said(task: str, played: dict[str, Any]) -> None:
    episodes, seen = played[task]["episodes"], played[task]["seen"]
    assert sum(len(episode["action_ranges"]) for episode in episodes) == len(seen) >= 2
    for episode in episodes:
        tokens, logprobs = episode["observation_tokens"], episode["rollout_log_probs"]
        assert episode["prompt"][:80] in episode["text"]
        assert 0 <= episode["score"] <= 1
        masked = [True] * len(tokens)
        for start, end in episode["action_ranges"]:
            request = {"given": tokens[:start], "generated": tokens[start:end]}
            assert request in seen, "the engine was not asked for this turn, or said something else"
            masked[start:end] = [False] * (end - start)
            assert all(math.isfinite(value) and value <= 0 for value in logprobs[start:end])
        assert all(value == 0 for value, hidden in zip(logprobs, masked, strict=True) if hidden)


def test_the_user_goes_on_after_a_turn_without_a_call(played: dict[str, Any]) -> None:
    turns = [len(episode["action_ranges"]) for episode in played["bfcl"]["episodes"]]
    assert max(turns) > 1 and played["bfcl"]["episodes"][0]["extra_logs"]["turns"] >= 1
