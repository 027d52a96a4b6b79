"""The DeepSpeed checkpoint that a run would resume from, looked at without unpickling anything.

Invariant: without --ckpt.load_enable, or with nothing saved yet, nothing is wrong: upstream starts afresh. Otherwise
the tag that `latest` names must hold whole files for exactly this number of processes and this kind of ZeRO.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.model_files import archive_fault
from openrlhf.launch.problem import Problem

FLAG = "--ckpt.load_enable"
AFRESH = "drop --ckpt.load_enable to start afresh (with another --ckpt.path)"
SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_(model|optim)_states\.pt$")


def check(args: SimpleNamespace) -> Iterator[Problem]:
    if not args.ckpt.load_enable:
        return
    for group in reading.groups(args):
        folder = Path(args.ckpt.path, f"_{group.name}")
        if group.name not in ("actor", "critic") or not folder.exists():
            continue
        tag = _latest(folder, args)
        if isinstance(tag, Problem):
            yield tag
        elif args.ds.use_universal_ckpt:  # another layout, made for any number of processes
            if not tag.is_dir():
                yield Problem(FLAG, f"{folder}/latest_universal names {tag.name}, which isn't there", AFRESH)
        else:
            yield from _tag(tag, group, args)


def _latest(folder: Path, args: SimpleNamespace) -> Path | Problem:
    """The folder of the tag to load, which may not exist."""
    latest = folder / ("latest_universal" if args.ds.use_universal_ckpt else "latest")
    if not latest.is_file():
        # DeepSpeed then loads nothing, and upstream looks in vain for the step to go on from.
        fix = f"write the name of a complete checkpoint in {folder} into {latest}, or {AFRESH}"
        return Problem(FLAG, f"{folder} has no file `{latest.name}`, which names the checkpoint to load", fix)
    name = latest.read_text(errors="replace").strip()
    return folder / (name or "(an empty name)")


def _tag(tag: Path, group: reading.Group, args: SimpleNamespace) -> Iterator[Problem]:
    others = sorted(p.name for p in tag.parent.iterdir() if p.is_dir() and any(p.glob("*.pt")) and p != tag)
    fix = f"write {others[-1]} into {tag.parent}/latest, or {AFRESH}" if others else AFRESH
    if not tag.is_dir():
        yield Problem(FLAG, f"{tag.parent}/latest names {tag.name}, which isn't there", fix)
        return
    files = sorted(tag.glob("*.pt"))
    if not files:
        yield Problem(FLAG, f"{tag} holds no checkpoint files (*.pt)", fix)
        return
    faults = [(file, fault) for file in files if (fault := _file_fault(file)) is not None]
    for file, fault in faults:
        yield Problem(FLAG, f"{file} {fault}", fix)
    if not faults:
        yield from _layout(tag, files, group, args)


def _file_fault(file: Path) -> str | None:
    return "is empty (0 bytes)" if file.stat().st_size == 0 else archive_fault(file)


def _layout(tag: Path, files: list[Path], group: reading.Group, args: SimpleNamespace) -> Iterator[Problem]:
    ranks: dict[str, set[int]] = {"model": set(), "optim": set()}
    for file in files:
        if (match := SHARD.search(file.name)) is not None:
            ranks[match[2]].add(int(match[1]))
    partitioned = bool(ranks["model"])
    if args.ds.zero_stage > 0 and partitioned != (args.ds.zero_stage == 3):
        saved = "ZeRO-3" if partitioned else "a lower stage than ZeRO-3"
        yield Problem(
            "--ds.zero_stage",
            f"{args.ds.zero_stage} can't load {tag}, which was saved with {saved}",
            f"use --ds.zero_stage {3 if partitioned else 2}",
        )
        return
    if not partitioned and not any(file.name.startswith("mp_rank_") for file in files):
        yield Problem(FLAG, f"{tag} has no model states (mp_rank_*_model_states.pt)", AFRESH)
    if args.ds.zero_stage == 0 or args.ds.tensor_parallel_size > 1:
        return
    for kind, found in ranks.items():
        if (kind == "optim" or partitioned) and found != set(range(group.world)):
            saved_by = max(found) + 1 if found else 0
            if len(found) < saved_by:
                lost = ", ".join(map(str, sorted(set(range(saved_by)) - found)))
                what, fix = f"{tag} lacks the {kind} states of rank {lost}", AFRESH
            else:
                what = f"{tag} was saved by {saved_by} processes, and the {group.name} model has {group.world}"
                fix = f"use --{group.name}.num_nodes and --{group.name}.num_gpus_per_node as when it was saved"
            yield Problem(FLAG, what, fix)
            return
