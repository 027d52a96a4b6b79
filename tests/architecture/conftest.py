"""What every architecture test looks at: the repository's own files, as git sees them, and upstream's."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The pinned original, inside the package."""
    return ROOT / "openrlhf" / "_upstream"


@pytest.fixture(scope="session")
def repo_files() -> list[Path]:
    """Relative paths of all files that are tracked or would be: an uncommitted file must obey the rules as well."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = {Path(name) for name in listed.stdout.split("\0") if name}
    return sorted(name for name in names if (ROOT / name).is_file())


@pytest.fixture(scope="session")
def code_files(repo_files: list[Path]) -> list[Path]:
    """The Python files that are the project's code: what is installed, what is run as an example, and the build."""
    parts = {"openrlhf", "pace", "trace_alloc", "examples"}
    return [
        name
        for name in repo_files
        if name.suffix == ".py" and (name.parts[0] in parts or str(name) in ("setup.py", "upstream.py"))
    ]
