"""The `--trace.*` flags: a frozen record, from which the command line is generated."""

import argparse
from dataclasses import dataclass, field, fields
from types import SimpleNamespace


@dataclass(frozen=True)
class TraceConfig:
    """Settings of TRACE; the field `x` is the flag `--trace.x`, its metadata holds the help text."""

    enable: bool = field(default=False, metadata={"help": "build rollout trees with an allocated budget (TRACE)"})


def add_trace_args(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per field of TraceConfig to `parser`, in a group of its own."""
    group = parser.add_argument_group("TRACE", "allocation of the rollout budget over prompts and prefixes")
    for item in fields(TraceConfig):
        group.add_argument(
            f"--trace.{item.name}", action="store_true", default=item.default, help=item.metadata["help"]
        )


def from_args(trace: SimpleNamespace) -> TraceConfig:
    """The record for the parsed `args.trace`."""
    return TraceConfig(**vars(trace))
