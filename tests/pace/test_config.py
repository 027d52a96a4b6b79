import argparse
import dataclasses
from types import SimpleNamespace

import pytest

from pace.admission import AdmissionKind
from pace.budget import ExcessLaw
from pace.config import PaceConfig, add_pace_args, flag, from_args
from pace.drift import Phi
from pace.ranking import GroupScore, RankBy
from pace.staleness import WaitFrom

FIELDS = {f.name: f for f in dataclasses.fields(PaceConfig)}


def parse(*argv: str) -> PaceConfig:
    parser = argparse.ArgumentParser()
    add_pace_args(parser)
    flat = vars(parser.parse_args(argv))
    assert all(name.startswith("pace.") for name in flat)
    return from_args(SimpleNamespace(pace=SimpleNamespace(**{name.split(".", 1)[1]: v for name, v in flat.items()})))


def test_flags_off_give_the_defaults():
    assert parse() == PaceConfig() and not PaceConfig().enable


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
        value = default + 1 if default + 1 <= about.high else about.low
        assert getattr(parse(flag(name), str(value)), name) == value


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_help(name):
    parser = argparse.ArgumentParser()
    add_pace_args(parser)
    [action] = [a for a in parser._actions if a.dest == f"pace.{name}"]
    assert len(action.help) > 20 and action.container.title == "PACE"
    assert "PACE" in parser.format_help()


@pytest.mark.parametrize("name", FIELDS)
def test_every_range_is_checked_and_the_error_names_the_flag_and_a_fix(name):
    default, about = FIELDS[name].default, FIELDS[name].metadata["knob"]
    if isinstance(default, bool):
        bad = ["yes", 1]
    elif about.choices:
        bad = ["nonsense", 3]
    elif isinstance(default, str):
        bad = [3]
    else:
        bad = ["text", about.low - 1, *([about.high + 1] if about.high < 1e300 else [])]
        bad += [float("nan"), float("inf")] if isinstance(default, float) else [1.5, True]
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{flag(name)} "):
            PaceConfig(**{name: value})
    if not isinstance(default, (bool, str)):
        assert about.fix, "a range error has to say what to set"


@pytest.mark.parametrize("name", [n for n, f in FIELDS.items() if not isinstance(f.default, (bool, str))])
def test_range_ends_are_allowed(name):
    about = FIELDS[name].metadata["knob"]
    kind = type(FIELDS[name].default)
    related = {"pfs_window": {"pfs_window_min": 1}}.get(name, {})
    assert getattr(PaceConfig(**{name: kind(about.low), **related}), name) == about.low


def test_choices_are_the_names_of_the_policies():
    enums = {
        "rank": RankBy,
        "group_score": GroupScore,
        "wait_from": WaitFrom,
        "excess_law": ExcessLaw,
        "admission": AdmissionKind,
        "pfs_phi": Phi,
    }
    for name, enum in enums.items():
        assert FIELDS[name].metadata["knob"].choices == tuple(member.value for member in enum)


def test_the_defaults_are_those_of_the_design():
    config = PaceConfig()
    assert (config.target_batches, config.rate_smoothing, config.max_reject_rate, config.gamma) == (
        1.25,
        0.8,
        0.5,
        4.0,
    )
    assert (config.pfs_window, config.pfs_window_min, config.k_max) == (512, 32, 8)
    assert (config.pfs_phi, config.wait_from, config.rank, config.on_reject) == ("abs", "group", "effective", "drop")


def test_whole_numbers_are_fine_for_float_fields():
    assert isinstance(PaceConfig(gamma=2).gamma, float)


def test_the_window_must_hold_its_minimum():
    with pytest.raises(ValueError, match="pfs_window_min"):
        PaceConfig(pfs_window=8)


def test_strict_means_no_lag_and_no_rejection():
    config = PaceConfig(strict=True, k_max=4).resolve()
    assert (config.admission, config.admission_eta, config.k_max, config.max_reject_rate) == ("areal", 0, 0, 0.0)
    assert PaceConfig(k_max=4).resolve() == PaceConfig(k_max=4)


def test_sizes_follow_the_batch_unless_set():
    assert (PaceConfig().capacity(32), PaceConfig().inflight_limit(32)) == (256, 64)
    assert (
        PaceConfig(pool_capacity_groups=40).capacity(32),
        PaceConfig(max_inflight_groups=5).inflight_limit(32),
    ) == (40, 5)
    with pytest.raises(ValueError, match="--pace.pool_capacity_groups must hold at least one batch"):
        PaceConfig(pool_capacity_groups=31).capacity(32)


def test_only_effective_staleness_pays_for_rescoring():
    assert [rank.value for rank in RankBy if PaceConfig(rank=rank.value).needs_prefix_scores] == ["effective"]


def test_a_namespace_of_another_version_is_refused():
    for pace in (
        None,
        SimpleNamespace(enable=True),
        SimpleNamespace(**{n: f.default for n, f in FIELDS.items()}, old=1),
    ):
        with pytest.raises(ValueError, match="add them to the parser"):
            from_args(SimpleNamespace(pace=pace))
    with pytest.raises(ValueError, match="add them to the parser"):
        from_args(SimpleNamespace())
