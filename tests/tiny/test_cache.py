"""Folders that are made once: whole or not there, whoever asks and however the making ends."""

import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.tiny import cache as cache_module
from examples.tiny import recipe as recipe_module
from examples.tiny.cache import VARIABLE, cached, default_cache
from examples.tiny.recipe import SOURCES, Recipe

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "thing"
# Makes a file, says so in `started`, and goes on for as long as it is told.
CHILD = """
import sys, time
from pathlib import Path
from examples.tiny.cache import cached

cache, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def make(folder):
    with log.open("a") as file:
        file.write("made\\n")
    (folder / "first").write_text("1")
    time.sleep(seconds)
    (folder / "second").write_text("2")

print(sorted(path.name for path in cached(cache, "thing", make).iterdir()))
"""


def child(cache, log, seconds):
    arguments = [sys.executable, "-c", CHILD, str(cache), str(log), str(seconds)]
    return subprocess.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def wait_for(path, seconds=30.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} didn't appear"
        time.sleep(0.02)


def write_one(folder):
    (folder / "file").write_text("text")


def test_make_is_called_once(tmp_path):
    calls = []

    def make(folder):
        calls.append(folder)
        write_one(folder)

    cache = tmp_path / "not" / "there" / "yet"
    first, second = cached(cache, NAME, make), cached(cache, NAME, make)
    assert first == second == cache / NAME
    assert (first / "file").read_text() == "text"
    assert len(calls) == 1
    assert [path.name for path in cache.iterdir()] == [NAME]


def test_names_are_independent(tmp_path):
    cached(tmp_path, "a", write_one)
    cached(tmp_path, "b", lambda folder: None)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failed_make_leaves_nothing_and_can_be_repeated(tmp_path, error):
    def fail(folder):
        write_one(folder)
        raise error("stop")

    with pytest.raises(error):
        cached(tmp_path, NAME, fail)
    assert list(tmp_path.iterdir()) == []
    assert (cached(tmp_path, NAME, write_one) / "file").is_file()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_nothing_under_the_final_name(tmp_path, number):
    cache = tmp_path / "cache"
    process = child(cache, tmp_path / "log", 60)
    try:
        wait_for(cache / f".{NAME}.partial" / "first")
    finally:
        process.send_signal(number)
        process.communicate(timeout=30)
    assert not (cache / NAME).exists()
    # The lock went with its holder, and what the kill left doesn't get into the folder.
    folder = cached(cache, NAME, write_one)
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert [path.name for path in cache.iterdir()] == [NAME]


def test_two_processes_make_it_once(tmp_path):
    cache, log = tmp_path / "cache", tmp_path / "log"
    first = child(cache, log, 0.5)
    wait_for(log)
    second = child(cache, log, 0.5)
    outputs = [process.communicate(timeout=60)[0].strip() for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert outputs == ["['first', 'second']"] * 2
    assert log.read_text() == "made\n"


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert default_cache() == REPOSITORY / ".cache" / "tiny"
    monkeypatch.setenv(VARIABLE, "")
    assert default_cache() == cache_module.REPOSITORY / ".cache" / "tiny"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert default_cache() == tmp_path


# The recipe's key, which names the folder.


def another(value):
    if isinstance(value, tuple):
        return (value[0], another(value[1]))
    return value + 1


def test_the_same_recipe_has_the_same_key():
    assert Recipe().key() == Recipe().key()
    assert len(Recipe().key()) == 16


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Recipe)])
def test_the_key_changes_with_every_field(field):
    changed = dataclasses.replace(Recipe(), **{field: another(getattr(Recipe(), field))})
    assert changed.key() != Recipe().key()


@pytest.fixture
def copied_sources(monkeypatch, tmp_path):
    for name in SOURCES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    monkeypatch.setattr(recipe_module, "_ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SOURCES)
def test_the_key_changes_with_every_source(copied_sources, name):
    before = Recipe().key()
    with (copied_sources / name).open("a") as file:
        file.write("\n")
    assert Recipe().key() != before


def test_the_key_does_not_depend_on_where_the_repository_is(copied_sources, monkeypatch):
    elsewhere = Recipe().key()
    monkeypatch.setattr(recipe_module, "_ROOT", REPOSITORY)
    assert Recipe().key() == elsewhere


@pytest.mark.parametrize("package", recipe_module.PACKAGES)
def test_the_key_changes_with_a_package_version(monkeypatch, package):
    before, version = Recipe().key(), recipe_module.importlib.metadata.version
    monkeypatch.setattr(
        recipe_module.importlib.metadata, "version", lambda name: "0" if name == package else version(name)
    )
    assert Recipe().key() != before
