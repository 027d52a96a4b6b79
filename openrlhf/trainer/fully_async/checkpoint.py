"""Where the pool's part of a checkpoint lies, and when it counts.

Invariant: DeepSpeed's `latest` file decides. The pool's state is written to a folder of its own, whole, before
DeepSpeed begins; a checkpoint is complete when `latest` names its tag, and a crash in between leaves the previous one
and its pool state untouched. `prune` removes pool states whose DeepSpeed checkpoint was rotated away.

Layout: `<ckpt.path>/_actor/<tag>/` (DeepSpeed), `<ckpt.path>/_pool/<tag>/` (state.json, payloads/).
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openrlhf.trainer.fully_async import restarts
from pace.durable import saved_folder

POOL = "_pool"
KEY = "pool_tag"  # in DeepSpeed's client states
SAVE_TIMEOUT_S = 300.0


class NoPoolState(RuntimeError):
    """The checkpoint can't be resumed by the pool pipeline; the message says why and what to do."""


def tag_of(step: int, *, best: bool = False) -> str:
    """Upstream's name of the checkpoint at `step`."""
    return f"{'best_' if best else ''}global_step{step}"


def client_states(step: int, *, best: bool = False) -> dict[str, Any]:
    """What DeepSpeed keeps beside the weights. Upstream's keys for its own data position are there, at the start."""
    return {
        "episode": 0,
        "global_step": step,
        "total_consumed_prompts": 0,
        "data_loader_state_dict": {},
        KEY: tag_of(step, best=best),
    }


def folder(args: Any, states: Mapping[str, Any]) -> str:
    """The pool's folder of a loaded checkpoint. Raises NoPoolState when there is none."""
    if KEY not in states:
        raise NoPoolState(
            f"--ckpt.load_enable: the checkpoint in {args.ckpt.path} was saved without --pace.enable. Fix: drop "
            "--pace.enable to go on as before, or give its model to --actor.model_name_or_path and start afresh."
        )
    path = saved_folder(Path(args.ckpt.path, POOL, states[KEY]))
    if not path.is_dir():
        raise NoPoolState(
            f"--ckpt.load_enable: {path}, the pool's part of the checkpoint, is missing. Fix: restore it, or write "
            f"the name of a checkpoint that has one into {Path(args.ckpt.path, '_actor', 'latest')}."
        )
    return str(path)


def save_pool(args: Any, pool: Any, step: int, *, best: bool = False) -> str | None:
    """Saves the pool's state under the tag that DeepSpeed is about to save; its folder, if there are checkpoints."""
    if args.ckpt.disable_ds:
        return None
    target = os.path.abspath(os.path.join(args.ckpt.path, POOL, tag_of(step, best=best)))
    restarts.ask(lambda: pool.save.remote(target), timeout_s=SAVE_TIMEOUT_S)
    return target


def prune(args: Any) -> None:
    """Removes the pool states of checkpoints that DeepSpeed no longer has."""
    pool, actor = Path(args.ckpt.path, POOL), Path(args.ckpt.path, "_actor")
    if args.ckpt.disable_ds or not pool.is_dir():
        return
    for saved in pool.iterdir():
        if saved.is_dir() and not (actor / saved.name).is_dir():
            shutil.rmtree(saved, ignore_errors=True)


def improves(key: str | None, metrics: Mapping[str, float], best: float) -> bool:
    """Whether upstream is about to save these weights as the best ones."""
    return key is not None and metrics.get(key, float("-inf")) > best
