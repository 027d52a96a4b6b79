"""Every flag in every example script is one of the command line that the script calls."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import openrlhf

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "scripts").rglob("*.sh"))
CALL = re.compile(r"(?:-m|--module) (openrlhf\.cli\.\w+)")
# Arrays of flags, which end up behind the call: NAME_ARGS=( ... ). HEAD_ARGS are `ray start`'s own.
ARRAY = re.compile(r"^(?!HEAD_)\w+_ARGS=\((.*?)^\)", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"(?<![\w$-])(--[a-z][\w.-]*)")
# One process for all command lines, since each imports torch and DeepSpeed first.
HELP = """
import contextlib, io, json, runpy, sys
texts = {}
for module in sys.argv[1:]:
    sys.argv[:] = [module, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    texts[module] = text.getvalue()
print(json.dumps(texts))
"""


def flags_of_call(script: str) -> set[str]:
    """Flags in the script's arrays, without comments and quoted values."""
    bare = "\n".join(re.sub(r"\s#.*", "", line) for body in ARRAY.findall(script) for line in body.splitlines())
    return set(FLAG.findall(re.sub(r'"[^"]*"', '""', bare)))


@cache
def known_flags() -> dict[str, frozenset[str]]:
    """The flags that each called command line has."""
    modules = sorted({module for script in SCRIPTS for module in CALL.findall(script.read_text())})
    command = [sys.executable, "-W", "ignore", "-c", HELP, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    texts = json.loads(done.stdout.splitlines()[-1])
    return {module: frozenset(FLAG.findall(text)) for module, text in texts.items()}


def test_the_reading_finds_flags_and_calls():
    text = 'A_ARGS=(\n    --data.max_len 8 # --not.me\n    --x "--nor me"\n)\npython -m openrlhf.cli.train_sft "$@"\n'
    assert flags_of_call(text) == {"--data.max_len", "--x"}
    assert CALL.findall(text) == ["openrlhf.cli.train_sft"]
    assert len(SCRIPTS) >= 7


@pytest.mark.slow
def test_every_flag_exists():
    for script in SCRIPTS:
        text = script.read_text()
        wanted, modules = flags_of_call(text), CALL.findall(text)
        if not wanted or not text.startswith("#!"):  # sourced by others: test_recipes.py parses those
            continue
        assert len(modules) == 1, f"{script.name} should call one command line, it calls {modules}"
        unknown = wanted - known_flags()[modules[0]]
        assert not unknown, f"{script.name}: {modules[0]} has no {sorted(unknown)}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_valid_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.slow
def test_help_shows_upstreams_flags_and_ours():
    flags = known_flags()["openrlhf.cli.train_ppo_ray"]
    assert {"--pace.enable", "--trace.enable", "--train.async_enable", "--actor.adam.lr"} <= flags
    source = (openrlhf.UPSTREAM / "cli" / "train_ppo_ray.py").read_text()
    upstream = set(re.findall(r'add_argument\(\s*f?"(--[^"]+)"', source))
    expanded = {flag.replace("{prefix}", prefix) for flag in upstream for prefix in ("actor", "critic")}
    assert len(upstream) > 120
    assert expanded <= flags, sorted(expanded - flags)
