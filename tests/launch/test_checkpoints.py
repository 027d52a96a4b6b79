"""Checkpoints to resume from and folders to write to."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from openrlhf.launch import checkpoints, inputs, storage
from openrlhf.launch.problem import Problem

Run = Callable[..., SimpleNamespace]
LOAD = "--ckpt.load_enable"


def save(folder: Path, tag: str, ranks: int = 1, partitioned: bool = False) -> Path:
    """Files named and packed as DeepSpeed does."""
    made = folder / tag
    made.mkdir(parents=True)
    names = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks)]
    models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)]
    for name in names + (models if partitioned else ["mp_rank_00_model_states.pt"]):
        with zipfile.ZipFile(made / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"0" * 500)
    (folder / "latest").write_text(tag)
    return made


@pytest.fixture
def resumed(run: Run, tmp_path: Path) -> Callable[..., SimpleNamespace]:
    loading = {"ckpt__path": str(tmp_path), "ckpt__load_enable": True}
    return lambda **changes: run(**loading | changes)


def problems_of(args: SimpleNamespace) -> list[Problem]:
    return [*checkpoints.check(args)]


def test_nothing_to_load_is_fine(resumed: Run) -> None:
    assert problems_of(resumed()) == []


def test_a_whole_checkpoint_is_fine(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4")
    assert problems_of(resumed()) == []
    assert problems_of(resumed(ckpt__load_enable=False)) == []


def test_a_partitioned_checkpoint_of_two_processes_is_fine(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4", ranks=2, partitioned=True)
    assert problems_of(resumed(ds__zero_stage=3, actor__num_gpus_per_node=2)) == []


def test_a_real_checkpoint_of_torch_is_whole(tmp_path: Path) -> None:
    import torch

    torch.save({"module": torch.zeros(10)}, tmp_path / "state.pt")
    assert checkpoints._file_fault(tmp_path / "state.pt") is None
    data = (tmp_path / "state.pt").read_bytes()
    (tmp_path / "state.pt").write_bytes(data[: len(data) // 2])
    assert "cut short" in (checkpoints._file_fault(tmp_path / "state.pt") or "")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


OPTIMIZER = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no latest": (lambda tag: (tag.parent / "latest").unlink(), "no file `latest`"),
    "latest is empty": (lambda tag: (tag.parent / "latest").write_text(""), "an empty name"),
    "latest names nothing": (lambda tag: (tag.parent / "latest").write_text("global_step9"), "global_step9"),
    "no files": (lambda tag: [file.unlink() for file in tag.iterdir()], "no checkpoint files"),
    "empty shard": (lambda tag: empty(tag / OPTIMIZER), "0 bytes"),
    "shard cut short": (lambda tag: halve(tag / "mp_rank_00_model_states.pt"), "cut short"),
    "shard missing": (lambda tag: (tag / OPTIMIZER.replace("rank_1", "rank_0")).unlink(), "rank 0"),
    "model states missing": (lambda tag: (tag / "mp_rank_00_model_states.pt").unlink(), "no model states"),
}


@pytest.mark.parametrize(("damage", "what"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint(resumed: Run, tmp_path: Path, damage: Callable[[Path], Any], what: str) -> None:
    damage(save(tmp_path / "_actor", "global_step4", ranks=2))
    (problem,) = problems_of(resumed(actor__num_gpus_per_node=2))
    assert problem.flag == LOAD and what in problem.what and "--ckpt.load_enable" in problem.fix


def test_the_fix_names_an_older_checkpoint(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step2")
    empty(save(tmp_path / "_actor", "global_step4") / "mp_rank_00_model_states.pt")
    (problem,) = problems_of(resumed())
    assert "write global_step2 into" in problem.fix


def test_another_number_of_processes(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4", ranks=2)
    (problem,) = problems_of(resumed())
    assert problem.flag == LOAD and "2 processes" in problem.what and "--actor.num_gpus_per_node" in problem.fix


def test_another_kind_of_zero(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4")
    (problem,) = problems_of(resumed(ds__zero_stage=3))
    assert problem.flag == "--ds.zero_stage" and "--ds.zero_stage 2" in problem.fix


def test_the_critics_checkpoint_counts_with_a_critic(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4")
    empty(save(tmp_path / "_critic", "global_step4") / "mp_rank_00_model_states.pt")
    assert problems_of(resumed()) == []
    (problem,) = problems_of(resumed(algo__advantage__estimator="gae", critic__num_gpus_per_node=1))
    assert "_critic" in problem.what


def test_a_universal_checkpoint_has_a_name_of_its_own(resumed: Run, tmp_path: Path) -> None:
    save(tmp_path / "_actor", "global_step4")
    (problem,) = problems_of(resumed(ds__use_universal_ckpt=True))
    assert "latest_universal" in problem.what


# Where the run writes.

OUTPUTS = ["--ckpt.output_dir", "--ckpt.path", "--logger.tensorboard_dir"]


def flag_field(flag: str) -> str:
    return flag[2:].replace(".", "__")


def test_folders_that_can_be_made_are_fine(run: Run, tmp_path: Path) -> None:
    changes = {flag_field(flag): str(tmp_path / "new" / "folder") for flag in OUTPUTS}
    assert [*storage.check(run(**changes))] == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("flag", OUTPUTS)
@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_in_the_way(run: Run, tmp_path: Path, flag: str, below: str) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = storage.check(run(**{flag_field(flag): str(tmp_path / "file" / below)}))
    assert problem.flag == flag and "file" in problem.what and "write" in problem.fix


def test_a_folder_that_cant_be_written(run: Run) -> None:
    (problem,) = storage.check(run(ckpt__path="/proc/checkpoints"))
    assert problem.flag == "--ckpt.path" and "can't write to /proc" in problem.what and problem.fix


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: Usage(1 << 30, 1 << 30, 1000))
    flags = {problem.flag for problem in storage.check(run())}
    assert flags == {"--ckpt.output_dir", "--ckpt.path"}
    assert all("free space" in problem.fix for problem in storage.check(run()))


def test_room_for_a_checkpoint_counts_only_when_one_is_saved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 1 << 30
    monkeypatch.setattr(storage, "_parameters", lambda args: parameters)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: Usage(0, 0, 8 * parameters))
    assert [*storage.check(run())] == []  # the final model takes 4 bytes a parameter
    (problem,) = storage.check(run(ckpt__save_steps=1))
    assert problem.flag == "--ckpt.path" and "GiB" in problem.what
    assert [*storage.check(run(ckpt__save_steps=1, ckpt__disable_ds=True))] == []


# All inputs together.


def test_the_valid_run_has_no_problem(run: Run) -> None:
    assert inputs.check(run()) == []


def test_all_kinds_of_inputs_are_reported_at_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = {"actor__model_name_or_path": "/no/model", "data__prompt_dataset": "/no/data.jsonl"}
    bad |= {"ckpt__output_dir": str(tmp_path / "file"), "reward__remote_url": "/no/reward.py"}
    flags = {problem.flag for problem in inputs.check(run(**bad))}
    assert flags == {"--actor.model_name_or_path", "--data.prompt_dataset", "--ckpt.output_dir", "--reward.remote_url"}
