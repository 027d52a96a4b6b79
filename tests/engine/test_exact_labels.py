"""Every generated token carries the version of the weights that produced it, also when its request spans updates."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("kv", "turns"), [("recompute", "single"), ("recompute", "multi"), ("keep", "multi"), ("recompute", "trees")]
)
def test_no_label_is_wrong(run_program, first_weights, kv, turns):
    """200 trajectories or more, 20 weight syncs while they are generated; with `recompute` the log-probs are those of
    the labelled weights as well."""
    seen = run_program("exact_labels", str(first_weights), kv, turns)
    assert seen["updates"] == 20
    assert seen["trajectories"] > 300 if turns == "trees" else seen["trajectories"] >= 200
    assert seen["wrong"] == 0 and seen["unknown"] == 0
    assert seen["tokens"] == seen["record_tokens"] > 15_000
    assert seen["crossing"] > 50  # or nothing was tested
    if kv == "recompute":
        assert seen["worst_logprob"] < 1e-4
    assert seen["scored_trajectories"] > 20 and seen["scores_finite"]
    # Measured, on real tokens; it may be exactly 0, where decoding and rescoring agree to the last bit.
    assert seen["calibration_tokens"] > 100 and 0 <= seen["noise_floor"] < 1e-4


def test_an_agent_that_never_ends_costs_its_group_only(run_program, first_weights):
    seen = run_program("never_ending", str(first_weights))
    assert "took longer than 2 s (--pace.trajectory_timeout_s)" in seen["failure"]
    assert seen["tokens"] > 0 and seen["other"] == 4 and seen["seconds"] < 30
