"""Settings that are declared once: a field of a frozen dataclass with its help, range and advice makes its own flag.

Invariant: flags, checks and documentation are made from the same `Knob`, so a flag cannot exist without a check or
differ from its field. In: a dataclass of `knob` fields. Out: a group of argparse flags, and the record back from them.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Knob:
    """What is known about a field besides its type: help, closed range, choices, and the advice given on an error."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    fix: str = ""

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value of the right type; None if nothing is."""
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        if isinstance(value, (bool, str)) or self.low <= value <= self.high:  # NaN is in no range
            return None
        if self.high == math.inf:
            return f"must be at least {self.low:g}"
        return f"must be between {self.low:g} and {self.high:g}"


def knob(default: Any, help: str, **about: Any) -> Any:
    """A dataclass field with its `Knob`."""
    return field(default=default, metadata={"knob": Knob(help, **about)})


def checked(f: Field[Any], value: Any, flag: str) -> Any:
    """The value as the field takes it (a float field takes an int). Raises ValueError, naming the flag and a fix."""
    if type(f.default) is float and type(value) is int:
        value = float(value)
    elif type(value) is not type(f.default):
        raise ValueError(f"{flag} takes a {type(f.default).__name__}, got {value!r}")
    about: Knob = f.metadata["knob"]
    if problem := about.problem(value):
        raise ValueError(f"{flag} {problem}, got {value!r}" + (f": {about.fix}" if about.fix else ""))
    return value


def add_args(parser: argparse.ArgumentParser, settings: Any, *, prefix: str, title: str, about: str) -> None:
    """Adds one flag per field of the dataclass `settings`, with dotted destinations such as `pace.enable`."""
    group = parser.add_argument_group(title, about)
    for f in fields(settings):
        knob: Knob = f.metadata["knob"]
        name = f"--{prefix}.{f.name}"
        if isinstance(f.default, bool):
            group.add_argument(name, action="store_true", default=f.default, help=knob.help)
        else:
            text = f"{knob.help} (default: {f.default})".replace("%", "%%")
            group.add_argument(name, type=type(f.default), default=f.default, choices=knob.choices or None, help=text)


def read_args(args: Any, settings: Any, *, prefix: str) -> Mapping[str, Any]:
    """The fields' values from `args.<prefix>`, the nested namespace of the parsed flags.

    Raises ValueError when the namespace lacks a field or has one too many: parser and package are not of one version.
    """
    found = getattr(args, prefix, None)
    values: Mapping[str, Any] = vars(found) if found is not None else {}
    expected = {f.name for f in fields(settings)}
    if values.keys() != expected:
        missing, unknown = sorted(expected - values.keys()), sorted(values.keys() - expected)
        raise ValueError(
            f"--{prefix}.* flags do not match: missing {missing}, unknown {unknown}; add them to the parser"
        )
    return values
