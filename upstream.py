#!/usr/bin/env python3
"""Fills openrlhf/_upstream/ with the pinned upstream package.

Invariant: what lies in `_upstream` came out of a wheel whose sha256 stands in upstream.txt; the folder carries the
version and the hash in a `PIN` file, so a second call with the same pin does nothing. The wheel is taken from
$OPENRLHF_UPSTREAM_WHEEL (an offline build) or downloaded by pip. Its hash is checked here in both cases.

usage: python upstream.py [--force] [--tests DIR]     --tests also unpacks upstream's own tests into DIR/tests
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PIN_FILE = ROOT / "upstream.txt"
TARGET = ROOT / "openrlhf" / "_upstream"
WHEEL_VARIABLE = "OPENRLHF_UPSTREAM_WHEEL"
# The wheels are tagged for one platform but hold only Python: every interpreter and machine may use any of them.
WHEEL_TAGS = ("cp310", "cp311", "cp312")


class UpstreamError(RuntimeError):
    """The pinned upstream could not be put in place; the message says what to do."""


def read_pin(pin_file: Path = PIN_FILE) -> tuple[str, frozenset[str]]:
    """The pinned version and the accepted sha256 hashes."""
    text = "\n".join(line for line in pin_file.read_text().splitlines() if not line.startswith("#"))
    version = re.search(r"openrlhf==(\S+)", text)
    hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
    if not version or not hashes:
        raise UpstreamError(f"{pin_file}: no `openrlhf==VERSION` with sha256 hashes in it")
    return version.group(1), hashes


def is_filled(target: Path = TARGET, pin_file: Path = PIN_FILE) -> bool:
    """True when `target` holds the pinned version."""
    version, hashes = read_pin(pin_file)
    try:
        have_version, have_hash = (target / "PIN").read_text().split()
    except (OSError, ValueError):
        return False
    return have_version == version and have_hash in hashes


def download(version: str, folder: Path, pin_file: Path = PIN_FILE) -> Path:
    """Downloads the pinned wheel with pip, which checks the hash as well."""
    tag = f"cp3{sys.version_info.minor}"
    tag = tag if tag in WHEEL_TAGS else WHEEL_TAGS[-1]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version=3.{tag[3:]}", f"--abi={tag}"]
    command += ["--platform=manylinux1_x86_64", "--require-hashes", "-r", str(pin_file), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    # The last line is pip's own verdict; what stands above it repeats the request.
    said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()
    reason = next((line for line in said if line.startswith("ERROR")), said[-1])
    if "HASHES" in done.stderr:
        raise UpstreamError(f"the downloaded openrlhf {version} has another sha256 than {pin_file.name}: not used.")
    raise UpstreamError(
        f"openrlhf {version} could not be downloaded ({reason}). Check the network and pip's index settings, or set "
        f"{WHEEL_VARIABLE} to a local copy of the wheel."
    )


def check_wheel(wheel: Path, version: str, hashes: frozenset[str]) -> str:
    """The wheel's sha256 when it is the pinned one; raises UpstreamError otherwise."""
    if not wheel.is_file():
        raise UpstreamError(f"{WHEEL_VARIABLE}={wheel}: no such file")
    if not wheel.name.startswith(f"openrlhf-{version}-"):
        raise UpstreamError(f"{wheel.name} is not openrlhf {version}, the version that {PIN_FILE.name} pins")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest not in hashes:
        raise UpstreamError(f"{wheel.name} has sha256 {digest}, which is not in {PIN_FILE.name}: not used.")
    return digest


def unpack(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Unpacks the wheel; returns its openrlhf/ and tests/ folders, licence inside the former."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    package = next(folder.glob("*.data/purelib/openrlhf"))
    shutil.copy(next(folder.glob("*.dist-info/LICENSE")), package / "LICENSE")
    return package, package.parent / "tests"


def fill(*, force: bool = False, tests: Path | None = None, target: Path = TARGET, pin_file: Path = PIN_FILE) -> bool:
    """Puts the pinned upstream into `target`; False when it was already there. Raises UpstreamError."""
    if is_filled(target, pin_file) and not force and tests is None:
        return False
    version, hashes = read_pin(pin_file)
    with tempfile.TemporaryDirectory(prefix="openrlhf-upstream-") as name:
        work = Path(name)
        local = os.environ.get(WHEEL_VARIABLE)
        wheel = Path(local).expanduser() if local else download(version, work, pin_file)
        digest = check_wheel(wheel, version, hashes)
        package, own_tests = unpack(wheel, work / "unpacked")
        if tests is not None:
            shutil.copytree(own_tests, tests / "tests", dirs_exist_ok=True)
        (package / "PIN").write_text(f"{version} {digest}\n")
        # A half-written folder must never look filled: copy beside the target, then rename.
        staged = target.with_name(f"_upstream.{os.getpid()}.tmp")
        try:
            shutil.copytree(package, staged)
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="put the pinned upstream into openrlhf/_upstream/")
    parser.add_argument("--force", action="store_true", help="fetch again even when the pinned version is there")
    parser.add_argument("--tests", type=Path, metavar="DIR", help="also unpack upstream's own tests into DIR/tests")
    args = parser.parse_args()
    try:
        filled = fill(force=args.force, tests=args.tests)
    except UpstreamError as error:
        print(f"upstream.py: {error}", file=sys.stderr)
        return 1
    print(f"openrlhf {read_pin()[0]} {'put into' if filled else 'is already in'} {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
