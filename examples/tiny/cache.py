"""Folders that are made once and then only read.

Invariant: a folder under its final name is complete. It is made under a hidden name beside it and renamed at the end;
an exception, an interrupt or a kill leaves nothing under the final name, and the next call removes what a kill left.
Two processes that want the same folder make it once: the second waits for the first.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "OPENRLHF_TINY_CACHE"
REPOSITORY = Path(__file__).resolve().parents[2]


def default_cache() -> Path:
    """`$OPENRLHF_TINY_CACHE`, or `.cache/tiny` in the repository."""
    return Path(os.environ.get(VARIABLE) or REPOSITORY / ".cache" / "tiny")


def cached(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `cache/name`; `make` fills it if it isn't there yet."""
    final = cache / name
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    with _only_one(cache):
        if not final.is_dir():  # another process may have made it while this one waited
            _make(final, make)
    return final


def _make(final: Path, make: Callable[[Path], None]) -> None:
    staging = final.with_name(f".{final.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        make(staging)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder itself: no lock file to leave behind, and a killed holder frees it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
