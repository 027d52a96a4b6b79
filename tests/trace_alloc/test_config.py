"""The flags of TRACE: every field has one, with its help, its range and an error that says what to do."""

import argparse
from dataclasses import fields
from types import SimpleNamespace

import pytest

from trace_alloc.config import TraceConfig, add_trace_args, flag, from_args
from trace_alloc.credit import Backup, Denominator, Singleton
from trace_alloc.targets import RootTarget

FIELDS = {f.name: f for f in fields(TraceConfig)}


def parse(*argv: str) -> TraceConfig:
    parser = argparse.ArgumentParser()
    add_trace_args(parser)
    flat = vars(parser.parse_args(argv))
    assert all(name.startswith("trace.") for name in flat)
    return from_args(SimpleNamespace(trace=SimpleNamespace(**{n.split(".", 1)[1]: v for n, v in flat.items()})))


def test_flags_off_give_the_defaults():
    assert parse() == TraceConfig() and not TraceConfig().enable


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_a_flag_that_reaches_it(name):
    default, about = FIELDS[name].default, FIELDS[name].metadata["knob"]
    if isinstance(default, bool):
        assert getattr(parse(flag(name)), name) is True
    elif about.choices:
        assert [getattr(parse(flag(name), choice), name) for choice in about.choices] == list(about.choices)
    elif isinstance(default, str):
        assert getattr(parse(flag(name), "text"), name) == "text"
    else:
        for end in (about.low, about.high):
            if end < 1e300:
                assert getattr(parse(flag(name), str(type(default)(end))), name) == end


@pytest.mark.parametrize("name", [n for n, f in FIELDS.items() if not isinstance(f.default, bool | str)])
def test_every_range_is_checked_and_the_error_names_the_flag_and_a_fix(name):
    default, about = FIELDS[name].default, FIELDS[name].metadata["knob"]
    bad = ["text", about.low - 1, *([about.high + 1] if about.high < 1e300 else [])]
    bad += [float("nan"), float("inf")] if isinstance(default, float) else [1.5, True]
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{flag(name)} "):
            TraceConfig(**{name: value})
    assert about.fix and len(about.help) > 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [("denominator", Denominator), ("backup", Backup), ("singleton", Singleton), ("root_target", RootTarget)],
)
def test_choices_are_the_names_of_the_policies(name, kind):
    assert FIELDS[name].metadata["knob"].choices == tuple(choice.value for choice in kind)


def test_a_namespace_of_another_version_is_refused():
    with pytest.raises(ValueError, match="flags do not match"):
        from_args(SimpleNamespace(trace=SimpleNamespace(enable=True)))
