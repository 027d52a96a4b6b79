"""The fork's package: its own files first, the pinned upstream (`openrlhf/_upstream`) behind them.

Invariant: a module that has a file here is ours; every other `openrlhf.*` name is upstream's own file. The hidden
original of a file that is ours is `openrlhf._upstream.<same path>`. See docs/overlay.md.
"""

from pathlib import Path

UPSTREAM_VERSION = "0.11.2"
__version__ = f"{UPSTREAM_VERSION}+pace.trace.1"
_UPSTREAM = Path(__file__).parent / "_upstream"


def overlay(package: str, path: list[str]) -> None:
    """Appends the upstream twin of `package` to its `__path__`, so that modules we lack fall through to upstream."""
    path.append(str(_UPSTREAM.joinpath(*package.split(".")[1:])))


def _check_upstream() -> None:
    pin = _UPSTREAM / "PIN"
    have = pin.read_text().split()[0] if pin.exists() else None
    if have != UPSTREAM_VERSION:
        raise ImportError(
            f"openrlhf/_upstream holds {have or 'nothing'}, this fork needs OpenRLHF {UPSTREAM_VERSION}. "
            "In a checkout run `python upstream.py`; an installed package is broken: install it again."
        )


_check_upstream()
overlay(__name__, __path__)

from openrlhf import platforms  # noqa: E402  (needs the check above)

platforms.apply()
