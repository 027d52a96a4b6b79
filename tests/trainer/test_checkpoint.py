"""Where the pool's part of a checkpoint lies, what is removed with what, and what a resume without it says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.trainer.fully_async import checkpoint, restarts
from pace.config import PaceConfig
from pace.durable import DurablePool


@pytest.fixture
def args(tmp_path):
    return SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path / "ckpt"), disable_ds=False))


class LocalPool:
    """The pool's `save` as a remote call that is done at once."""

    def __init__(self, folder: Path) -> None:
        settings: dict[str, Any] = {"batch_groups": 2, "n_prompts": 8, "n_episodes": 1, "seed": 0}
        self.pool = DurablePool(PaceConfig(), folder=folder, fresh=True, clock=lambda: 0.0, **settings)
        self.save = SimpleNamespace(remote=lambda folder: self.pool.save(Path(folder)))


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "ray", SimpleNamespace(get=lambda answer, timeout: answer))
    return LocalPool(tmp_path / "journal")


def tags(args: Any, part: str) -> set[str]:
    return {path.name for path in Path(args.ckpt.path, part).iterdir()}


def deepspeed_saves(args: Any, tag: str) -> None:
    Path(args.ckpt.path, "_actor", tag).mkdir(parents=True)


@pytest.mark.parametrize("best", [False, True])
def test_the_pool_lies_beside_the_weights_under_their_tag(args, pool, best):
    checkpoint.save_pool(args, pool, 7, best=best)
    states = checkpoint.client_states(7, best=best)
    folder = Path(checkpoint.folder(args, states))
    assert folder == Path(args.ckpt.path, "_pool", "best_global_step7" if best else "global_step7")
    assert {path.name for path in folder.iterdir()} == {"state.json", "payloads"}
    pool.pool.load(folder)


def test_what_deepspeed_keeps_has_what_upstream_reads(args):
    states = checkpoint.client_states(7)
    assert states["global_step"] == 7
    assert {"episode", "total_consumed_prompts", "data_loader_state_dict"} <= states.keys()


def test_pool_states_go_with_their_weights(args, pool):
    for step in (1, 2, 3):
        checkpoint.save_pool(args, pool, step)
        deepspeed_saves(args, f"global_step{step}")
    checkpoint.save_pool(args, pool, 2, best=True)
    deepspeed_saves(args, "best_global_step2")
    Path(args.ckpt.path, "_actor", "global_step1").rmdir()
    Path(args.ckpt.path, "_pool", "global_step9.partial").mkdir()  # of a run that died while saving
    Path(args.ckpt.path, "_pool", "notes.txt").touch()
    checkpoint.prune(args)
    assert tags(args, "_pool") == {"global_step2", "global_step3", "best_global_step2", "notes.txt"}


def test_a_crash_before_the_weights_are_there_leaves_the_previous_checkpoint(args, pool):
    checkpoint.save_pool(args, pool, 1)
    deepspeed_saves(args, "global_step1")
    checkpoint.save_pool(args, pool, 2)  # and then the run dies: `latest` still names step 1
    assert Path(checkpoint.folder(args, checkpoint.client_states(1))).is_dir()
    checkpoint.prune(args)
    assert tags(args, "_pool") == {"global_step1"}


def test_nothing_is_saved_or_removed_without_deepspeed_checkpoints(args, pool):
    checkpoint.save_pool(args, pool, 1)
    args.ckpt.disable_ds = True
    checkpoint.save_pool(args, pool, 2)
    checkpoint.prune(args)
    assert tags(args, "_pool") == {"global_step1"}


def test_pruning_what_was_never_saved_is_no_error(args):
    checkpoint.prune(args)


def test_a_checkpoint_of_a_run_without_the_pool_says_so(args):
    states = checkpoint.client_states(3)
    del states[checkpoint.KEY]
    with pytest.raises(checkpoint.NoPoolState, match="saved without --pace.enable. Fix: drop --pace.enable"):
        checkpoint.folder(args, states)


def test_a_missing_pool_state_names_the_folder_and_the_way_out(args):
    with pytest.raises(checkpoint.NoPoolState) as raised:
        checkpoint.folder(args, checkpoint.client_states(3))
    assert str(Path(args.ckpt.path, "_pool", "global_step3")) in str(raised.value)
    assert str(Path(args.ckpt.path, "_actor", "latest")) in str(raised.value) and "Fix:" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "metrics", "best", "expected"),
    [
        ("a", {"a": 0.5}, 0.4, True),
        ("a", {"a": 0.5}, 0.5, False),
        ("a", {"a": 0.5}, float("-inf"), True),
        ("a", {"b": 0.5}, float("-inf"), False),
        (None, {"a": 0.5}, 0.0, False),
        ("a", {"a": float("nan")}, 0.0, False),
    ],
)
def test_the_pool_is_saved_for_the_best_weights_when_upstream_saves_those(key, metrics, best, expected):
    assert checkpoint.improves(key, metrics, best) is expected
