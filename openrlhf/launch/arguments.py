"""Checks of the flags alone: ranges, combinations, batch arithmetic. Nothing is read from the disk or imported anew.

Invariant: every problem found makes upstream crash, hang or train on nothing; what it accepts and trains with passes.
`args` is the nested namespace as parsed, before upstream adjusts it.
"""

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf import platforms
from openrlhf.launch import batches, conflicts, on_cpu, pool, ranges, reading, trees
from openrlhf.launch.problem import Problem


def check(args: SimpleNamespace) -> list[Problem]:
    """All problems of the flags. Batch arithmetic is looked at once the numbers themselves are in range."""
    out_of_range = [*ranges.check(args)]
    problems = [*out_of_range, *conflicts.check(args), *_schedulers(args), *pool.check(args), *trees.check(args)]
    if platforms.name() == "cpu" and not args.dry_run:  # a plan may be made elsewhere than the run
        problems += on_cpu.check(args)
    if not out_of_range:
        problems += batches.check(args)
    return problems


def _schedulers(args: SimpleNamespace) -> Iterator[Problem]:
    """Upstream makes the scheduler after the models are loaded, and steps it without a metric."""
    import torch
    from transformers.trainer import get_scheduler

    for group in reading.groups(args):
        if group.name not in ("actor", "critic"):
            continue
        name = getattr(args, group.name).lr_scheduler
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        limits = {"min_lr_rate": 0.1} if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") else {}
        try:
            scheduler = get_scheduler(name, optimizer, 1, 2, scheduler_specific_kwargs=limits)
            optimizer.step()
            scheduler.step()
            scheduler.get_last_lr()
        except Exception as error:  # transformers and torch raise what they like here
            reason = f"{error}".splitlines()[0] if f"{error}" else type(error).__name__
            fix = "use cosine_with_min_lr, cosine, linear, constant or constant_with_warmup"
            yield Problem(f"--{group.name}.lr_scheduler", f"{name} can't be used ({reason})", fix)
