"""The distribution as a user meets it: built, installed over upstream, removed, and refused with one clear reason.

Every build runs in its own copy of the repository's files, so nothing here depends on, or touches, the checkout's
`openrlhf/_upstream`. Fresh environments hold no dependencies: `import openrlhf` on the CUDA platform needs none.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Mapping
from email.parser import Parser
from pathlib import Path

import pytest

import upstream

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.11.2+pace.trace.1"
PACKAGES = ("openrlhf", "pace", "trace_alloc")
UPSTREAM_LICENSE = "openrlhf/_upstream/LICENSE"
SHOW = "import openrlhf, pace, trace_alloc; print(openrlhf.__version__, openrlhf.__file__)"
# Nobody listens on the discard port of this machine: the connection is refused at once.
NO_INDEX = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_RETRIES": "0",
    "PIP_NO_CACHE_DIR": "1",
}


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command without the checkout on its path; the wheel variable only where `env` sets it."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", upstream.WHEEL_VARIABLE)}
    inherited |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "OPENRLHF_PLATFORM": "cuda"} | dict(env or {})
    return subprocess.run([str(part) for part in command], cwd=cwd, env=inherited, capture_output=True, text=True)


def pip(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "pip", *arguments, cwd=cwd, env=env)


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="session")
def upstream_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real upstream wheel, downloaded once."""
    given = os.environ.get(upstream.WHEEL_VARIABLE)
    version, hashes = upstream.read_pin()
    wheel = Path(given) if given else upstream.download(version, tmp_path_factory.mktemp("upstream"))
    upstream.check_wheel(wheel, version, hashes)
    return wheel


@pytest.fixture(scope="session")
def repo_names() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})


@pytest.fixture(scope="session")
def copy_to(repo_names: list[str]) -> Callable[[Path], Path]:
    def copy(folder: Path) -> Path:
        for name in repo_names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        return folder

    return copy


@pytest.fixture
def tree(tmp_path: Path, copy_to: Callable[[Path], Path]) -> Path:
    """A fresh checkout: the repository's files, no `_upstream`."""
    return copy_to(tmp_path / "checkout")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, copy_to: Callable[[Path], Path], upstream_wheel: Path) -> Path:
    """Our wheel. The two tests that install the checkout itself build in isolation, as a user's pip does."""
    work = tmp_path_factory.mktemp("wheel")
    checkout = copy_to(work / "checkout")
    offline = {upstream.WHEEL_VARIABLE: str(upstream_wheel)}
    ok(pip("wheel", "--no-deps", "--no-build-isolation", "-w", work / "dist", checkout, cwd=work, env=offline))
    (built,) = (work / "dist").glob("*.whl")
    return built


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an empty virtual environment; pip works on it from outside."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_name_and_metadata(wheel: Path) -> None:
    assert wheel.name == f"openrlhf-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"openrlhf-{VERSION}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert (metadata["Name"], metadata["Version"]) == ("openrlhf", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE", "openrlhf/_upstream/LICENSE"]
    requires = metadata.get_all("Requires-Dist") or []
    exact = ["torch==2.13.0", "transformers==5.19.0", "deepspeed==0.19.6", "ray[default]==2.55.0"]
    assert set(exact) <= set(requires)
    needs_gpu = re.compile(r"vllm|flash-attn|bitsandbytes|pynvml")
    assert all('extra == "gpu"' in line for line in requires if needs_gpu.match(line))
    assert 'vllm==0.32.0; extra == "gpu"' in requires and 'flash-attn==2.8.3; extra == "gpu"' in requires


def test_the_wheel_holds_our_packages_and_all_of_upstream(
    wheel: Path, repo_names: list[str], upstream_wheel: Path
) -> None:
    have = set(names(wheel))
    ours = {name for name in repo_names if name.endswith(".py") and name.split("/")[0] in PACKAGES}
    package = "openrlhf-0.11.2.data/purelib/openrlhf/"
    theirs = {name.removeprefix(package) for name in names(upstream_wheel) if name.startswith(package)}
    theirs |= {"LICENSE", "PIN"}
    metadata = {name for name in have if ".dist-info/" in name}
    assert have - metadata == ours | {f"openrlhf/_upstream/{name}" for name in theirs}
    licences = {f"openrlhf-{VERSION}.dist-info/licenses/{n}" for n in ("LICENSE", "NOTICE", UPSTREAM_LICENSE)}
    assert licences <= metadata


def test_installing_replaces_upstream_and_uninstalling_leaves_nothing(
    wheel: Path, upstream_wheel: Path, python: Path, tmp_path: Path
) -> None:
    site = site_packages(python)
    empty = sorted(path.name for path in site.iterdir())
    ok(pip("--python", python, "install", "--no-deps", _installable(upstream_wheel, tmp_path), cwd=tmp_path))
    assert (site / "tests").exists() and not (site / "pace").exists()

    ok(pip("--python", python, "install", "--no-deps", wheel, cwd=tmp_path))
    shown = ok(run(python, "-c", SHOW, cwd=tmp_path)).split()
    assert shown == [VERSION, str(site / "openrlhf" / "__init__.py")]
    assert not (site / "tests").exists()
    assert [path.name for path in site.glob("openrlhf*.dist-info")] == [f"openrlhf-{VERSION}.dist-info"]

    ok(pip("--python", python, "uninstall", "--yes", "openrlhf", cwd=tmp_path))
    assert sorted(path.name for path in site.iterdir()) == empty


def _installable(upstream_wheel: Path, folder: Path) -> Path:
    """The upstream wheel under a name that any interpreter accepts; its content is plain Python."""
    return Path(shutil.copy(upstream_wheel, folder / "openrlhf-0.11.2-py3-none-any.whl"))


def test_pip_install_from_a_checkout(tree: Path, upstream_wheel: Path, python: Path, tmp_path: Path) -> None:
    offline = {upstream.WHEEL_VARIABLE: str(upstream_wheel)}
    ok(pip("--python", python, "install", "--no-deps", tree, cwd=tmp_path, env=offline))
    shown = ok(run(python, "-c", SHOW, cwd=tmp_path)).split()
    assert shown == [VERSION, str(site_packages(python) / "openrlhf" / "__init__.py")]


def test_an_editable_install_works_from_anywhere(
    tree: Path, upstream_wheel: Path, python: Path, tmp_path: Path
) -> None:
    offline = {upstream.WHEEL_VARIABLE: str(upstream_wheel)}
    ok(pip("--python", python, "install", "--no-deps", "-e", tree, cwd=tmp_path, env=offline))
    shown = ok(run(python, "-c", SHOW, cwd=tmp_path)).split()
    assert shown == [VERSION, str(tree / "openrlhf" / "__init__.py")]
    through_overlay = "import importlib.util as u; print(u.find_spec('openrlhf.cli.serve_rm').origin)"
    origin = ok(run(python, "-c", through_overlay, cwd=tmp_path))
    assert origin == str(tree / "openrlhf" / "_upstream" / "cli" / "serve_rm.py")
    for other in ("tests", "examples", "setup", "upstream"):
        assert run(python, "-c", f"import {other}", cwd=tmp_path).returncode != 0, f"{other} became importable"


def test_a_plain_checkout_works_after_one_command(
    tree: Path, upstream_wheel: Path, python: Path, tmp_path: Path
) -> None:
    before = run(python, "-c", SHOW, cwd=tree)
    assert before.returncode != 0 and "run `python upstream.py`" in before.stderr.splitlines()[-1]
    offline = {upstream.WHEEL_VARIABLE: str(upstream_wheel)}
    ok(run(sys.executable, tree / "upstream.py", cwd=tmp_path, env=offline))
    assert ok(run(python, "-c", SHOW, cwd=tree)).split() == [VERSION, str(tree / "openrlhf" / "__init__.py")]


def test_the_source_distribution_builds_the_same_wheel(
    wheel: Path, tree: Path, upstream_wheel: Path, tmp_path: Path
) -> None:
    build = "from setuptools import build_meta; print(build_meta.build_sdist('..'))"
    sdist = tmp_path / ok(run(sys.executable, "-c", build, cwd=tree)).splitlines()[-1]
    (tmp_path / "unpacked").mkdir()
    ok(run("tar", "-xf", str(sdist), "-C", str(tmp_path / "unpacked"), cwd=tmp_path))
    (source,) = (tmp_path / "unpacked").iterdir()
    for name in ("upstream.txt", "upstream.py", "requirements/cpu.txt", "LICENSE", "NOTICE"):
        assert (source / name).is_file(), name
    assert not (source / "openrlhf" / "_upstream").exists()
    offline = {upstream.WHEEL_VARIABLE: str(upstream_wheel)}
    ok(pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", sdist, cwd=tmp_path, env=offline))
    (built,) = (tmp_path / "dist").glob("*.whl")
    assert sorted(names(built)) == sorted(names(wheel))


def _tampered(upstream_wheel: Path, folder: Path) -> Path:
    copy = Path(shutil.copy(upstream_wheel, folder))
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("openrlhf-0.11.2.data/purelib/openrlhf/added.py", "")
    return copy


def _other_version(upstream_wheel: Path, folder: Path) -> Path:
    return Path(shutil.copy(upstream_wheel, folder / "openrlhf-0.11.1-cp311-cp311-manylinux1_x86_64.whl"))


@pytest.mark.parametrize("command", ["install", "editable"])
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("tampered", r"has sha256 [0-9a-f]{64}, which is not in upstream\.txt: not used"),
        ("other version", r"openrlhf-0\.11\.1-\S+ is not openrlhf 0\.11\.2, the version that upstream\.txt pins"),
        ("no such file", r"OPENRLHF_UPSTREAM_WHEEL=/nowhere/openrlhf\.whl: no such file"),
        ("no network", r"openrlhf 0\.11\.2 could not be downloaded .* or set OPENRLHF_UPSTREAM_WHEEL to a local copy"),
    ],
    ids=["tampered", "other-version", "no-such-file", "no-network"],
)
def test_a_build_without_the_pinned_upstream_says_why_once(
    case: str, message: str, command: str, tree: Path, upstream_wheel: Path, python: Path, tmp_path: Path
) -> None:
    env = {
        "tampered": lambda: {upstream.WHEEL_VARIABLE: str(_tampered(upstream_wheel, tmp_path))},
        "other version": lambda: {upstream.WHEEL_VARIABLE: str(_other_version(upstream_wheel, tmp_path))},
        "no such file": lambda: {upstream.WHEEL_VARIABLE: "/nowhere/openrlhf.whl"},
        "no network": lambda: NO_INDEX,
    }[case]()
    target = tmp_path / "target"
    what = ["-e", tree] if command == "editable" else [tree]
    options = ["--no-deps", "--no-build-isolation", "--prefix", target]
    done = pip("install", *options, *what, cwd=tmp_path, env=env)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert len(re.findall(message, said)) == 1, said
    assert "Traceback" not in said
    assert not target.exists()
    assert sorted(path.name for path in (tree / "openrlhf").glob("_upstream*")) == []
