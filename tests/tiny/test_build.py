"""The build's frame (with a fake filling), its bounds, and, marked slow, the real thing from the default cache."""

import json
import time
from dataclasses import replace

import pytest

from examples.tiny import build as build_module
from examples.tiny.build import SUMMARY, WEIGHTS, BuildError, TinyMaterial, build, check_rates, main
from examples.tiny.recipe import Recipe
from examples.tiny.tasks import FILES

SUMMARY_VALUES = {"parameters": 5, "solve_rate": 0.4, "game_rate": 0.3, "build_seconds": 1.5}


class FakeFill:
    """Stands in for the real filling, which trains: writes files of the right names and counts its calls."""

    def __init__(self, error=None):
        self.error = error
        self.recipes = []

    def __call__(self, recipe, target, report):
        self.recipes.append(recipe)
        report("filling")
        (target / "model").mkdir()
        (target / "model" / WEIGHTS).write_bytes(b"weights")
        for name in FILES:
            (target / f"{name}.jsonl").write_text("{}\n")
        if self.error:
            raise self.error
        (target / SUMMARY).write_text(json.dumps(SUMMARY_VALUES))


@pytest.fixture
def fill(monkeypatch):
    fake = FakeFill()
    monkeypatch.setattr(build_module, "_fill", fake)
    return fake


def test_the_second_build_comes_from_the_cache(fill, tmp_path):
    reports = []
    first = build(tmp_path, report=reports.append)
    second = build(tmp_path, report=reports.append)
    assert first == second
    assert fill.recipes == [Recipe()]
    assert reports == ["filling"]
    assert first.model == tmp_path / f"tiny-{Recipe().key()}" / "model"


def test_the_material_names_every_file(fill, tmp_path):
    material = build(tmp_path)
    for name in FILES:
        assert getattr(material, name) == material.model.parent / f"{name}.jsonl"
        assert getattr(material, name).is_file()
    assert {name: getattr(material, name) for name in SUMMARY_VALUES} == SUMMARY_VALUES


def test_recipes_have_folders_of_their_own(fill, tmp_path):
    other = replace(Recipe(), seed=18)
    assert build(tmp_path).model != build(tmp_path, recipe=other).model
    assert fill.recipes == [Recipe(), other]


def test_out_gets_a_whole_copy(fill, tmp_path):
    out = tmp_path / "mine"
    for _ in range(2):  # the folder may be there already
        material = build(tmp_path / "cache", out=out)
        assert material == TinyMaterial.load(out)
    assert material.model == out / "model"
    assert (out / "model" / WEIGHTS).read_bytes() == b"weights"
    assert material.train.parent == out
    assert len(fill.recipes) == 1


def test_a_failed_build_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(build_module, "_fill", FakeFill(BuildError("too good")))
    with pytest.raises(BuildError):
        build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_built(fill, tmp_path, capsys):
    main(["--cache", str(tmp_path), "--seed", "3"])
    captured = capsys.readouterr()
    assert fill.recipes == [replace(Recipe(), seed=3)]
    assert "sums 40.0%, calculator game 30.0%" in captured.out
    assert str(tmp_path) in captured.out
    assert "filling" in captured.err


def test_the_command_fails_with_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build_module, "_fill", FakeFill(BuildError("too good")))
    with pytest.raises(SystemExit) as raised:
        main(["--cache", str(tmp_path)])
    assert raised.value.code == 1
    assert capsys.readouterr().err.endswith("error: too good\n")


RECIPE = replace(Recipe(), solve_rate=(0.2, 0.6), game_rate=(0.1, 0.5), seed=99)


@pytest.mark.parametrize(("solve", "game"), [(0.2, 0.1), (0.6, 0.5), (0.4, 0.3)])
def test_rates_within_the_bounds_pass(solve, game):
    check_rates(RECIPE, {"solve_rate": solve, "game_rate": game})


@pytest.mark.parametrize(
    ("name", "rate", "wanted"),
    [
        ("solve_rate", 0.19, "20% to 60%"),
        ("solve_rate", 0.61, "20% to 60%"),
        ("game_rate", 0.0, "10% to 50%"),
        ("game_rate", 0.51, "10% to 50%"),
        ("game_rate", float("nan"), "10% to 50%"),
    ],
)
def test_rates_outside_the_bounds_fail_with_a_fix(name, rate, wanted):
    rates = {"solve_rate": 0.4, "game_rate": 0.3} | {name: rate}
    with pytest.raises(BuildError) as raised:
        check_rates(RECIPE, rates)
    message = str(raised.value)
    assert f"{name} is {rate:.1%}, wanted {wanted}" in message
    for fix in ("sft_sums", "sft_games", "slip", "random_call", "examples/tiny/recipe.py", "seed", "99"):
        assert fix in message


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the first build on a machine trains the model
def test_the_default_build():
    material = build()
    begin = time.monotonic()
    assert build() == material
    assert time.monotonic() - begin < 1.0

    recipe = Recipe()
    assert 1_000_000 <= material.parameters <= 3_000_000
    assert recipe.solve_rate[0] <= material.solve_rate <= recipe.solve_rate[1]
    assert recipe.game_rate[0] <= material.game_rate <= recipe.game_rate[1]
    assert (material.model / WEIGHTS).is_file()
    assert all(getattr(material, name).stat().st_size for name in FILES)
    assert not (material.model.parent / "scratch").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_default_model_loads_with_its_tokens():
    """Tokenizer, config and generation config agree, and training left the config as it was."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    material = build()
    model = AutoModelForCausalLM.from_pretrained(material.model)
    tokenizer = AutoTokenizer.from_pretrained(material.model)
    assert model.num_parameters() == material.parameters
    assert model.config.vocab_size == len(tokenizer)
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    assert model.config.use_cache
