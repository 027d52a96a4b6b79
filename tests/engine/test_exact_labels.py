"""Every generated token carries the version of the weights that produced it, also when its request spans updates."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("kv", "turns"), [("recompute", "single"), ("recompute", "multi"), ("keep", "multi")])
def test_no_label_is_wrong(run_program, first_weights, kv, turns):
    """200 trajectories, 20 weight syncs; with `recompute` the log-probs are those of the labelled weights as well."""
    seen = run_program("exact_labels", str(first_weights), kv, turns)
    assert seen["trajectories"] == 200 and seen["updates"] == 20
    assert seen["wrong"] == 0 and seen["unknown"] == 0
    assert seen["tokens"] == seen["record_tokens"] > 15_000
    assert seen["crossing"] > 50  # or nothing was tested
    if kv == "recompute":
        assert seen["worst_logprob"] < 1e-4
    assert seen["scored_trajectories"] > 20 and seen["scores_finite"]
    # Measured, on real tokens; it may be exactly 0, where decoding and rescoring agree to the last bit.
    assert seen["calibration_tokens"] > 100 and 0 <= seen["noise_floor"] < 1e-4
