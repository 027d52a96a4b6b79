"""Upstream's command line of `train_ppo_ray`, with the fork's groups of flags added.

Upstream builds its parser under `__main__`, so nothing can import it. What works: run upstream's file with a one-shot
replacement of `ArgumentParser.parse_args` that adds our groups. (Replacing the class instead recurses for ever.)
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import openrlhf
from openrlhf.utils.config import hierarchize
from pace.config import add_pace_args
from trace_alloc.config import add_trace_args

UPSTREAM_CLI = str(openrlhf.UPSTREAM / "cli" / "train_ppo_ray.py")


def add_fork_flags(parser: argparse.ArgumentParser) -> None:
    """The fork's own groups; everything upstream has is left as it is."""
    parser.add_argument(
        "--dry_run", action="store_true", help="check the flags, print placement and batch arithmetic, start nothing"
    )
    add_pace_args(parser)
    add_trace_args(parser)


@contextmanager
def parsed_by(hook: Callable[[argparse.Namespace], None]) -> Iterator[None]:
    """Within it, the next `parse_args` has our flags, and `hook` sees the flat result before upstream does."""
    original = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        argparse.ArgumentParser.parse_args = original
        add_fork_flags(self)
        own = {action.dest: action.default for action in self._actions if action.default is not argparse.SUPPRESS}
        parsed = self.parse_args(args, namespace)
        if parsed.dry_run:  # a plan is for GPUs, and the CPU platform has put its own defaults in
            parsed = self.parse_args(args, argparse.Namespace(**own))
        hook(parsed)
        return parsed

    argparse.ArgumentParser.parse_args = parse_args
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_args = original


class _Parsed(Exception):
    """Carries the arguments out of upstream's `__main__` before it goes on."""


def parse(argv: Sequence[str]) -> SimpleNamespace:
    """The nested arguments of `train_ppo_ray` for `argv`, as parsed, before upstream's own adjustments.

    Exits like argparse does on an unknown flag or a value of the wrong type.
    """

    def stop(parsed: argparse.Namespace) -> NoReturn:
        raise _Parsed(parsed)

    saved, sys.argv = sys.argv, ["train_ppo_ray", *argv]
    try:
        with parsed_by(stop):
            runpy.run_path(UPSTREAM_CLI, run_name="__main__")
    except _Parsed as done:
        return hierarchize(done.args[0])
    finally:
        sys.argv = saved
    raise RuntimeError("upstream's train_ppo_ray parsed nothing: the pin has moved")
