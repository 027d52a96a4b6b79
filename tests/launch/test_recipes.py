"""Every recipe for a GPU cluster, with every method and model: its flags pass the checks, its plan is as promised."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from openrlhf.cli import train_ppo_ray
from openrlhf.launch import arguments, dry_run, flags, resources

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "scripts" / "gpu"
GPUS = {
    "meta-llama/Llama-3.2-3B-Instruct": 8,
    "Qwen/Qwen3-4B": 8,
    "Qwen/Qwen3-8B": 16,
    "Qwen/Qwen3-14B": 16,
    "Qwen/Qwen3-30B-A3B-Base": 32,
}
PACE = ("pace", "pace_raw", "generation", "unfiltered", "stale_k", "areal", "m2po", "async", "sync")
TRACE = ("trace", "random", "root_only", "prefix_only", "pcl", "flat")
QWEN = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B")
MODELS = {
    "dapo_math": ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B-Base"),
    "retool_math": ("Qwen/Qwen3-4B",),
    "deepscaler_math": QWEN,
    "hotpotqa": (*QWEN, "meta-llama/Llama-3.2-3B-Instruct"),
    "bfcl": QWEN,
}
BUDGETS = {"deepscaler_math": (512, 1024), "hotpotqa": (1024, 2048), "bfcl": (256, 512)}  # M, and flat rollouts


def recorded(folder: Path, recipe: str, **settings: str) -> list[str]:
    """The command line that the script would start, told by a `python` that only says what it was given."""
    fake = folder / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    done = run(recipe, PATH=f"{folder}:{os.environ['PATH']}", **settings)
    assert done.returncode == 0, done.stderr
    module, *rest = done.stdout.splitlines()[1:]
    assert module == "openrlhf.cli.train_ppo_ray"
    return rest


def run(recipe: str, *more: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DATA": "/data", "SEARCH_CORPUS": "/corpus", "RUN_DIR": "/run"} | settings
    command = ["bash", str(RECIPES / f"{recipe}.sh"), *more]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd="/")


def planned(argv: Sequence[str]) -> tuple[float, str]:
    """GPUs of the plan, and its text. The checks have no objection."""
    args = flags.parse([*argv, "--dry_run"])
    assert arguments.check(args) == []
    return resources.plan(args).gpus, dry_run.text(args)


def value(text: str, name: str) -> str:
    (found,) = re.findall(rf"^  {re.escape(name)} +(.*)$", text, re.MULTILINE)
    return found


@pytest.mark.parametrize("recipe", ["dapo_math", "retool_math"])
def test_a_recipe_of_pace_with_every_method(recipe: str, tmp_path: Path) -> None:
    for model in MODELS[recipe]:
        for method in PACE:
            gpus, text = planned(recorded(tmp_path, recipe, MODEL=model, METHOD=method))
            assert gpus == GPUS[model], "every method gets the same GPUs"
            how = {"sync": "synchronous, upstream's own", "async": "asynchronous, through upstream's queue"}
            assert value(text, "training") == how.get(method, "asynchronous, through the pool, of groups")
            assert value(text, "a step") == "32 prompts x 16 rollouts = 512"
            assert value(text, "optimizer steps in it") == "1"
            if method not in how:
                rejects = method in ("pace", "pace_raw", "generation")
                assert value(text, "rejection").startswith("above 40 ready groups" if rejects else "none")
                assert value(text, "admission") == ("areal, eta 4" if method == "areal" else "none")
                assert value(text, "policy loss") == {"m2po": "m2po", "areal": "decoupled"}.get(method, "ppo")


@pytest.mark.parametrize("recipe", list(BUDGETS))
def test_a_recipe_of_trace_with_every_method(recipe: str, tmp_path: Path) -> None:
    bare, flat = BUDGETS[recipe]
    for model in MODELS[recipe]:
        for method in TRACE:
            pooled = method == "trace"
            gpus, text = planned(recorded(tmp_path, recipe, MODEL=model, METHOD=method, PACE=str(int(pooled))))
            assert gpus == GPUS[model] + (method not in ("random", "flat")), "a GPU for the predictor"
            assert value(text, "allocation") == method
            assert value(text, "budget").endswith(f"= {flat} units"), "every method may spend as much"
            assert value(text, "budget").startswith(f"{flat if method in ('flat', 'pcl') else bare} bare")
            assert value(text, "training").startswith("asynchronous" if pooled else "synchronous")


@pytest.mark.slow
def test_the_plan_of_a_run_is_printed_and_nothing_started() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run("hotpotqa", "--dry_run", PATH=path, METHOD="trace", RAY_ADDRESS="ray://nobody:1")
    assert done.returncode == 0, done.stderr
    assert value(done.stdout, "in all") == "17 GPUs, 16 CPUs"
    assert value(done.stdout, "TreeRolloutActor") == "4" and value(done.stdout, "PolicyModelActor") == "8"


def test_a_plan_that_does_not_work_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = recorded(tmp_path, "hotpotqa")
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *argv, "--trace.max_per_root", "2", "--dry_run"])
    assert train_ppo_ray.main() == 2
    said = capsys.readouterr()
    assert "--trace.max_per_root" in said.err and "PoolTrainer" not in said.out


def test_a_plan_is_for_gpus_wherever_it_is_made(tmp_path: Path) -> None:
    argv = recorded(tmp_path, "dapo_math")
    argv.remove("--ds.param_dtype"), argv.remove("bf16")
    _, text = planned([*argv, "--ds.tensor_parallel_size", "2"])
    assert value(text, "actor nodes") == "1 x 8 GPUs, ZeRO-3, bf16"
    assert value(text, "data-parallel processes") == "4"
    assert flags.parse([*argv, "--dry_run"]).ds.attn_implementation == "flash_attention_2"


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("dapo_math", {"METHOD": "trace"}, "METHOD=trace is not known here; choose one of: pace pace_raw"),
        ("bfcl", {"METHOD": "pace"}, "METHOD=pace is not known here; choose one of: trace random"),
        ("bfcl", {"MODEL": "Qwen/Qwen2"}, "MODEL=Qwen/Qwen2 is not known here; choose one of: Llama"),
        ("dapo_math", {"DATA": ""}, "set DATA to the folder"),
        ("hotpotqa", {"SEARCH_CORPUS": ""}, "set SEARCH_CORPUS"),
    ],
)
def test_what_a_recipe_lacks_is_said(recipe: str, settings: dict[str, str], said: str) -> None:
    done = run(recipe, **settings)
    assert done.returncode != 0 and said in done.stderr
