"""What bench/kept.py takes over from a benchmark that was stopped."""

import json

import pytest

from bench.kept import kept_runs, measure_all


def test_runs_with_the_same_arguments_are_not_repeated(tmp_path):
    path, given = tmp_path / "runs.json", {"seeds": [1], "ways": ["sync", "async"]}
    assert kept_runs(None, given) == kept_runs(path, given) == {}
    path.write_text(json.dumps({"arguments": given, "runs": {"1": {"sync": 0.5}}}))
    assert kept_runs(path, given) == {"1": {"sync": 0.5}}
    assert kept_runs(path, given | {"seeds": [1, 2]}) == {}
    path.write_text(json.dumps({"arguments": given, "runs": {"1": {"sync": 0.5}}, "finished": True}))
    assert kept_runs(path, given) == {}


def test_a_stopped_benchmark_measures_what_is_missing_and_a_finished_one_everything_again(tmp_path):
    path, measured = tmp_path / "runs.json", []

    def measure(way: str, seed: int) -> str:
        if (way, seed) == ("async", 2) and measured.count((way, seed)) == 0:
            measured.append((way, seed))
            raise KeyboardInterrupt
        measured.append((way, seed))
        return f"{way} {seed}"

    def invoked() -> dict:
        result = {"arguments": {"seeds": [1, 2]}}
        measure_all(result, ["sync", "async"], measure, path)
        return result["runs"]

    with pytest.raises(KeyboardInterrupt):
        invoked()
    runs = {f"{seed}": {way: f"{way} {seed}" for way in ("sync", "async")} for seed in (1, 2)}
    assert invoked() == runs and measured.count(("sync", 1)) == 1
    assert invoked() == runs and measured.count(("sync", 1)) == 2
