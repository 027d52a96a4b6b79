"""Where a run writes: the folders exist or can be made, can be written, and have room for the final model.

Invariant: the trial leaves nothing behind; it writes to a nameless file in the nearest folder that exists.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from openrlhf.launch import model_files, pool
from openrlhf.launch.problem import Problem

# Logs and metrics, whatever the size of the model.
MARGIN_BYTES = 64 << 20
# DeepSpeed's checkpoint holds float32 weights and Adam's two moments beside the model.
OPTIMIZER_BYTES = 12


def check(args: SimpleNamespace) -> Iterator[Problem]:
    parameters = _parameters(args)
    model = parameters * (4 if args.ds.param_dtype == "fp32" else 2)
    checkpoint = 0
    # -1 (never) becomes infinity in upstream; evaluations save the best model as well.
    if (args.ckpt.save_steps != -1 or args.eval.dataset) and not args.ckpt.disable_ds and not args.ds.lora.rank:
        checkpoint = model + parameters * OPTIMIZER_BYTES
    needs: dict[int, int] = {}
    for flag, path, wanted in (
        ("--ckpt.output_dir", args.ckpt.output_dir, model),
        ("--ckpt.path", args.ckpt.path, checkpoint),
        ("--logger.tensorboard_dir", args.logger.tensorboard_dir, 0),
        ("--pace.log_dir", pool.log_dir(args), 0),
    ):
        if path is None:
            continue
        folder = existing(path)
        if (fault := _write_fault(Path(path), folder)) is not None:
            yield Problem(flag, fault, "name a folder that you can write to")
            continue
        disk = os.stat(folder).st_dev
        needs[disk] = needs.get(disk, MARGIN_BYTES) + wanted
        free = shutil.disk_usage(folder).free
        if free < needs[disk]:
            what = f"{path} has {size(free)} free, and the run writes about {size(needs[disk])} there"
            yield Problem(flag, what, "free space, or name a folder on another disk")


def existing(path: str | os.PathLike[str]) -> Path:
    """The path itself, or its nearest ancestor that exists."""
    found = Path(path).absolute()
    while not found.exists():
        found = found.parent
    return found


def _write_fault(path: Path, folder: Path) -> str | None:
    if not folder.is_dir():
        return f"{folder} is a file" if folder == path.absolute() else f"{path} lies under {folder}, which is a file"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"can't write to {folder} ({error.strerror})"


def _parameters(args: SimpleNamespace) -> int:
    """The actor's number of parameters as far as its files tell without loading them, else 0."""
    folder = model_files.find(args.actor.model_name_or_path or "")
    try:
        tensors = model_files.shapes(folder) if folder else {}
    except Exception:  # a damaged file is reported where the model is checked
        return 0
    return sum(math.prod(shape) for shape in tensors.values())


def size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count = count // 1024
    return f"{count} GiB"
