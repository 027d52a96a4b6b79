"""Programs that try to do harm don't, are told about within their time, and leave nothing behind."""

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from openrlhf.agents import sandbox
from openrlhf.agents.sandbox import Ran, Sandbox

from .hostile import PROGRAMS
from .processes import gone
from .walls import needs_walls

LIMIT_S = 3.0
LATE_S = 1.5  # what a busy machine may add
REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [needs_walls, pytest.mark.slow]


class Attack(NamedTuple):
    """What became of a program. `left`: something of it still runs."""

    ran: Ran
    seconds: float
    left: bool


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[dict[str, object]]:
    """What the programs are after: a secret, ports on which something listens, a file that everybody may change."""
    mark = f"sandbox-{uuid.uuid4().hex}"
    outside = folder / "outside"
    outside.write_text("mine")
    outside.chmod(0o666)
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        patch.setenv("SANDBOX_TEST_SECRET", "s3cret")
        unix.bind(f"\0{mark}")
        unix.listen()
        python = sandbox._interpreter()
        yield {
            "port": tcp.getsockname()[1],
            "mark": mark,
            "outside": outside,
            "repository": str(REPOSITORY),
            "python": python,
        }


async def attack(name: str, facts: dict[str, object], slots: asyncio.Semaphore) -> Attack:
    code = PROGRAMS[name][0]
    for fact, value in facts.items():
        code = code.replace(f"{{{fact}!r}}", repr(value)).replace(f"{{{fact}}}", str(value))
    async with slots:
        box = Sandbox(timeout_s=LIMIT_S, memory_mib=256, scratch_mib=16)
        await box.ready()
        began = time.monotonic()
        ran = await box.run(code)
        return Attack(ran, time.monotonic() - began, False)


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attack]:
    """All programs, a few at a time."""
    folder = tmp_path_factory.mktemp("hostile")

    async def all_of_them(facts: dict[str, object]) -> list[Attack]:
        slots = asyncio.Semaphore(4)
        return await asyncio.gather(*[attack(name, facts, slots) for name in PROGRAMS])

    with targets(folder) as facts, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "PROGRAM", f"/{facts['mark']}.py")
        found = dict(zip(PROGRAMS, asyncio.run(all_of_them(facts)), strict=True))
        found["left"] = Attack(Ran("", 0), 0.0, not gone(str(facts["mark"])))
        assert (folder / "outside").read_text() == "mine"
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_no_harm_and_the_model_is_told(name: str, attacks: dict[str, Attack]) -> None:
    ran, seconds, _ = attacks[name]
    print(f"| {name} | {ran.text[:60]!r} ... {ran.text[-60:]!r} | {seconds:.2f}")
    assert "ESCAPED" not in [line for line in ran.text.splitlines() if not line.startswith(" ")]
    assert "s3cret" not in ran.text
    assert PROGRAMS[name][1] in ran.text
    assert seconds < LIMIT_S + LATE_S and len(ran.text) < (1 << 16) + 100


def test_nothing_is_left(attacks: dict[str, Attack]) -> None:
    assert not attacks["left"].left


def test_the_programs_attack_what_is_there(tmp_path: Path) -> None:
    """Else they prove nothing."""
    with targets(tmp_path) as facts:
        socket.create_connection(("127.0.0.1", facts["port"]), 1).close()
        with socket.socket(socket.AF_UNIX) as unix:
            unix.connect(f"\0{facts['mark']}")
        assert os.environ["SANDBOX_TEST_SECRET"] and (REPOSITORY / "setup.py").is_file()
        assert Path(str(facts["outside"])).read_text() == "mine"
