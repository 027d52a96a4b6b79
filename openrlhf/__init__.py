"""The fork's package: its own files first, the pinned upstream (`openrlhf/_upstream`) behind them.

Invariant: a module that has a file here is ours; every other `openrlhf.*` name is upstream's own file. The hidden
original of a file that is ours is `openrlhf._upstream.<same path>`. See docs/overlay.md.
"""

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

UPSTREAM_VERSION = "0.11.2"
__version__ = f"{UPSTREAM_VERSION}+pace.trace.1"


def _find_upstream() -> Path:
    """The pinned upstream: beside this file, or in the installed fork when only our own files were shipped here, as
    `ray job submit` does with a working directory (it leaves out what git ignores). Raises ImportError."""
    folders = [Path(__file__).parent, *(Path(entry) / "openrlhf" for entry in sys.path), *_editable_installs()]
    for folder in folders:
        pin = folder / "_upstream" / "PIN"
        if pin.is_file() and pin.read_text().split()[0] == UPSTREAM_VERSION:
            return pin.parent
    raise ImportError(
        f"{folders[0] / '_upstream'} does not hold OpenRLHF {UPSTREAM_VERSION}, which this fork needs. "
        "In a checkout run `python upstream.py`; an installed package is broken: install it again."
    )


def _editable_installs() -> Iterator[Path]:
    for distribution in importlib.metadata.distributions(name="openrlhf"):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            yield Path(unquote(urlsplit(origin["url"]).path)) / "openrlhf"


UPSTREAM = _find_upstream()


def overlay(package: str, path: list[str]) -> None:
    """Appends the upstream twin of `package` to its `__path__`, so that modules we lack fall through to upstream."""
    path.append(str(UPSTREAM.joinpath(*package.split(".")[1:])))


overlay(__name__, __path__)
if UPSTREAM.parent != Path(__file__).parent:
    __path__.append(str(UPSTREAM.parent))  # where `openrlhf._upstream` is found

from openrlhf import platforms  # noqa: E402  (needs the path above)

platforms.apply()
