"""The benchmark's tasks as they are offered, and their split."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("bfcl_eval")

from examples.tasks import bfcl as task_data  # noqa: E402
from openrlhf.agents import bfcl_data  # noqa: E402
from openrlhf.agents.bfcl_data import SUBSETS, MissingPackage, find, tasks  # noqa: E402

from .bfcl_answers import every_task  # noqa: E402


def test_four_subsets_of_the_same_200_scenarios() -> None:
    for subset in SUBSETS:
        assert list(tasks(subset)) == [f"{subset}_{number}" for number in range(200)]
    for number in range(200):
        assert len({tuple(find(f"{subset}_{number}").classes) for subset in SUBSETS}) == 1


def test_schemas_are_json_schemas() -> None:
    functions = {name: schema for task in every_task() for name, schema in task.functions.items()}
    assert len(functions) == 128
    for schema in functions.values():
        assert set(schema["function"]) == {"name", "description", "parameters"} and schema["type"] == "function"
        jsonschema.Draft202012Validator.check_schema(schema["function"]["parameters"])


def test_a_held_out_function_comes_with_the_message_that_lists_it() -> None:
    task = find("multi_turn_miss_func_0")
    offered = [{schema["function"]["name"] for schema in task.offered(turn)} for turn in range(task.n_turns)]
    assert [("sort" in names) for names in offered] == [False, False, False, True, True]
    assert offered[0] | {"sort"} == offered[4] == set(task.functions)
    listed, _, words = task.message(3).partition("\n")
    assert json.loads(listed) == task.functions["sort"] and "more functions" in words


def test_functions_are_late_in_one_subset_alone_and_never_when_they_are_needed() -> None:
    for task in every_task():
        assert bool(task.late) == (task.subset == "multi_turn_miss_func")
        assert all(task.message(turn).strip() for turn in range(task.n_turns))
    assert find("multi_turn_miss_func_49").late == {"wc": 3, "cat": 3}, "its answer uses tail in turn 1"


@pytest.mark.parametrize("name", ["multi_turn_base_200", "multi_turn_base_x", "simple_python_1", "", "x" * 10**6])
def test_unknown_tasks(name: str) -> None:
    with pytest.raises(ValueError, match="there is no task .* write them with python -m examples.tasks.bfcl") as error:
        find(name)
    assert len(str(error.value)) < 400


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    tasks.cache_clear()
    yield
    tasks.cache_clear()


def test_a_missing_package_is_named_with_the_command_that_installs_it(missing: None) -> None:
    with pytest.raises(MissingPackage, match=f"pip install --no-deps '{bfcl_data.PACKAGE}' mpmath"):
        find("multi_turn_base_0")


def test_the_data_need_the_package(missing: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        task_data.main(["--out", str(tmp_path)])
    assert "pip install --no-deps" in capsys.readouterr().err


def write(folder: Path, *flags: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    assert task_data.main(["--out", str(folder), *flags]) == 0
    train, evaluation = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "eval")
    )
    return train, evaluation


def scenario(row: dict[str, Any]) -> str:
    return json.loads(row["label"])["id"].rpartition("_")[2]


def test_the_split_keeps_a_scenario_on_one_side(tmp_path: Path) -> None:
    train, evaluation = write(tmp_path / "a")
    assert Counter(row["datasource"] for row in train) == dict.fromkeys(SUBSETS, 160)
    assert Counter(row["datasource"] for row in evaluation) == dict.fromkeys(SUBSETS, 40)
    assert not set(map(scenario, train)) & set(map(scenario, evaluation))
    services = Counter(int(scenario(row)) // 50 for row in evaluation)
    assert services == dict.fromkeys(range(4), 40), "10 scenarios of each service, in four subsets"
    for row in train + evaluation:
        task = find(json.loads(row["label"])["id"])
        assert (row["prompt"], row["datasource"]) == (task.message(0), task.subset)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for folder, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        write(tmp_path / folder, "--seed", seed)
    a, b, c = ((tmp_path / folder / "train.jsonl").read_bytes() for folder in "abc")
    assert a == b != c


def test_fewer_rows_are_even_and_a_subset_can_be_had_alone(tmp_path: Path) -> None:
    train, evaluation = write(tmp_path / "a", "--train", "8", "--eval", "4")
    assert Counter(row["datasource"] for row in train) == dict.fromkeys(SUBSETS, 2) and len(evaluation) == 4
    train, evaluation = write(tmp_path / "b", "--subsets", "multi_turn_miss_param")
    assert (len(train), len(evaluation)) == (160, 40)
    assert {row["datasource"] for row in train + evaluation} == {"multi_turn_miss_param"}


@pytest.mark.parametrize("flags", [["--subsets", "multi_turn"], ["--eval", "-1"], ["--out", __file__]])
def test_bad_flags(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        task_data.main(["--out", str(tmp_path), *flags])
    assert flags[0] in capsys.readouterr().err
