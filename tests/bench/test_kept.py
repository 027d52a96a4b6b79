"""What bench/kept.py takes over from a benchmark that was stopped."""

import json

from bench.kept import kept_runs


def test_runs_with_the_same_arguments_are_not_repeated(tmp_path):
    path, given = tmp_path / "runs.json", {"seeds": [1], "ways": ["sync", "async"]}
    assert kept_runs(None, given) == kept_runs(path, given) == {}
    path.write_text(json.dumps({"arguments": given, "runs": {"1": {"sync": 0.5}}}))
    assert kept_runs(path, given) == {"1": {"sync": 0.5}}
    assert kept_runs(path, given | {"seeds": [1, 2]}) == {}
    path.write_text(json.dumps({"arguments": given, "runs": {"1": {"sync": 0.5}}, "finished": True}))
    assert kept_runs(path, given) == {}
