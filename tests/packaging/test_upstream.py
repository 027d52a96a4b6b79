"""upstream.py: what lies in `_upstream` came out of a pinned wheel, whole, or isn't there at all."""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import upstream

ROOT = Path(__file__).resolve().parents[2]
VERSION = "9.8.7"


@dataclass
class Site:
    """A pin file, a wheel that it pins, and a package folder to fill."""

    pin_file: Path
    wheel: Path
    target: Path

    def fill(self, **options: object) -> bool:
        return upstream.fill(target=self.target, pin_file=self.pin_file, **options)  # type: ignore[arg-type]

    def leftovers(self) -> list[str]:
        """Everything beside the package folder's own file and a filled `_upstream`."""
        return sorted(path.name for path in self.target.parent.iterdir() if path.name not in ("ours.py", "_upstream"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    wheel = tmp_path / f"openrlhf-{VERSION}-cp311-cp311-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        data = f"openrlhf-{VERSION}.data/purelib"
        archive.writestr(f"{data}/openrlhf/__init__.py", "")
        archive.writestr(f"{data}/openrlhf/models/actor.py", "NAME = 'upstream'\n")
        archive.writestr(f"{data}/tests/test_theirs.py", "def test(): pass\n")
        archive.writestr(f"openrlhf-{VERSION}.dist-info/LICENSE", "Their licence\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pin_file = tmp_path / "upstream.txt"
    pin_file.write_text(f"# openrlhf==1.0.0 is a comment\nopenrlhf=={VERSION} \\\n    --hash=sha256:{digest}\n")
    package = tmp_path / "openrlhf"
    package.mkdir()
    (package / "ours.py").write_text("")
    monkeypatch.setenv(upstream.WHEEL_VARIABLE, str(wheel))
    return Site(pin_file, wheel, package / "_upstream")


def test_the_pin_of_this_repository() -> None:
    version, hashes = upstream.read_pin()
    assert version == re.search(r'UPSTREAM_VERSION = "(.*)"', (ROOT / "openrlhf" / "__init__.py").read_text()).group(1)
    assert len(hashes) == len(upstream.WHEEL_TAGS) == 3


def test_comments_are_no_pins(site: Site) -> None:
    assert upstream.read_pin(site.pin_file)[0] == VERSION


@pytest.mark.parametrize(
    "text", ["", "openrlhf==1.0.0\n", "--hash=sha256:" + "0" * 64, "openrlhf>=1.0.0 --hash=sha256:"]
)
def test_a_pin_without_version_or_hash_is_refused(tmp_path: Path, text: str) -> None:
    pin_file = tmp_path / "upstream.txt"
    pin_file.write_text(text)
    with pytest.raises(upstream.UpstreamError, match="no `openrlhf==VERSION` with sha256"):
        upstream.read_pin(pin_file)


def test_fill_takes_the_package_and_the_licence_but_no_tests(site: Site) -> None:
    assert not upstream.is_filled(site.target, site.pin_file)
    assert site.fill() is True
    assert upstream.is_filled(site.target, site.pin_file)
    files = sorted(str(path.relative_to(site.target)) for path in site.target.rglob("*") if path.is_file())
    assert files == ["LICENSE", "PIN", "__init__.py", "models/actor.py"]
    assert (site.target / "LICENSE").read_text() == "Their licence\n"
    assert site.leftovers() == []


def test_a_second_fill_does_nothing_and_needs_no_wheel(site: Site) -> None:
    site.fill()
    site.wheel.unlink()
    assert site.fill() is False


def test_force_replaces_what_was_there(site: Site) -> None:
    site.fill()
    (site.target / "models" / "actor.py").write_text("changed by hand")
    (site.target / "extra.py").write_text("")
    assert site.fill(force=True) is True
    assert (site.target / "models" / "actor.py").read_text() == "NAME = 'upstream'\n"
    assert not (site.target / "extra.py").exists()


def test_upstreams_tests_on_request(site: Site, tmp_path: Path) -> None:
    site.fill(tests=tmp_path / "merged")
    assert (tmp_path / "merged" / "tests" / "test_theirs.py").exists()


@pytest.mark.parametrize("pin", [None, "", "garbage", f"{VERSION} {'0' * 64}", "1.0.0 HASH"])
def test_a_folder_without_the_pinned_version_counts_as_empty(site: Site, pin: str | None) -> None:
    site.fill()
    if pin is None:
        (site.target / "PIN").unlink()
    else:
        (site.target / "PIN").write_text(pin.replace("HASH", hashlib.sha256(site.wheel.read_bytes()).hexdigest()))
    assert not upstream.is_filled(site.target, site.pin_file)
    assert site.fill() is True


def test_a_tampered_wheel_is_not_used(site: Site) -> None:
    with zipfile.ZipFile(site.wheel, "a") as archive:
        archive.writestr("openrlhf-9.8.7.data/purelib/openrlhf/evil.py", "")
    with pytest.raises(upstream.UpstreamError, match=r"has sha256 [0-9a-f]{64}, which is not in upstream.txt"):
        site.fill()
    assert not site.target.exists() and site.leftovers() == []


def test_a_tampered_wheel_leaves_a_good_folder_alone(site: Site) -> None:
    site.fill()
    site.wheel.write_bytes(b"not a wheel")
    with pytest.raises(upstream.UpstreamError):
        site.fill(force=True)
    assert upstream.is_filled(site.target, site.pin_file) and site.leftovers() == []


def test_another_version_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other = site.wheel.with_name("openrlhf-9.8.6-cp311-cp311-manylinux1_x86_64.whl")
    site.wheel.rename(other)
    monkeypatch.setenv(upstream.WHEEL_VARIABLE, str(other))
    with pytest.raises(upstream.UpstreamError, match=f"is not openrlhf {VERSION}"):
        site.fill()
    assert not site.target.exists() and site.leftovers() == []


def test_a_missing_wheel_is_named_with_its_variable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(upstream.WHEEL_VARIABLE, "/nowhere/openrlhf.whl")
    with pytest.raises(upstream.UpstreamError, match=f"{upstream.WHEEL_VARIABLE}=/nowhere/openrlhf.whl: no such file"):
        site.fill()
    assert not site.target.exists() and site.leftovers() == []


@pytest.mark.parametrize("filled_before", [False, True])
def test_an_interrupted_fill_leaves_no_half_folder(
    site: Site, monkeypatch: pytest.MonkeyPatch, filled_before: bool
) -> None:
    if filled_before:
        site.fill()

    def interrupted(source: Path, target: Path) -> None:
        target.mkdir()
        shutil.copy(source / "PIN", target)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copytree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        site.fill(force=True)
    assert upstream.is_filled(site.target, site.pin_file) is filled_before
    assert site.target.exists() is filled_before
    assert site.leftovers() == []


def test_the_command_prints_one_line_on_an_error(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "upstream.py"), "--force"], capture_output=True, text=True, cwd=ROOT.parent
    )
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("upstream.py: ")
    assert "is not openrlhf 0.11.2" in done.stderr
