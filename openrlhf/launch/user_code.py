"""The user's reward file or agent file, imported on trial in a process of its own.

Invariant: user code never runs in the launcher, and can't hold it up: its import gets SECONDS, then the process is
killed. The trial asks for what upstream's engines will ask for, after the same imports as theirs.

As a program (`python -m openrlhf.launch.user_code REPLY KIND FILE`) it is that process: its answer says what is wrong
and what to do, or nothing.
"""

import importlib.util
import inspect
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from urllib.parse import urlsplit

from openrlhf.launch import child, reading
from openrlhf.launch.child import Child
from openrlhf.launch.problem import Problem

SECONDS = 20
# The trial's own imports, on a busy machine.
START_SECONDS = 60
MODULE = "openrlhf.launch.user_code"
AGENT_FLAG, REWARD_FLAG = "--train.agent_func_path", "--reward.remote_url"


@dataclass
class Trial:
    """A running trial; `problems` waits for its end."""

    flag: str
    path: str
    process: Child

    def problems(self) -> list[Problem]:
        said, code = self.process.answer(START_SECONDS + SECONDS)
        if said is None and code in (None, -signal.SIGALRM):
            said = [f"importing it takes more than {SECONDS} s", "do slow work when it is first called, not at import"]
        elif said is None:
            said = [f"importing it ends the process (exit code {code})", "import it alone with python to see why"]
        return [Problem(self.flag, f"{self.path}: {said[0]}", said[1])] if said else []


def start(args: SimpleNamespace) -> Trial | list[Problem]:
    """Starts the trial of the agent or reward file, or says what is wrong without one."""
    if args.train.agent_func_path:
        return start_trial(AGENT_FLAG, "agent", args.train.agent_func_path)
    endpoints = reading.reward_endpoints(args)
    if endpoints and endpoints[0].endswith(".py"):  # upstream then never looks at the others
        return start_trial(REWARD_FLAG, "reward", endpoints[0])
    return [problem for endpoint in endpoints if (problem := _url_problem(endpoint)) is not None]


def _url_problem(endpoint: str) -> Problem | None:
    try:
        parts = urlsplit(endpoint)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that don't match
        fine = False
    if fine:
        return None
    what = f"{endpoint!r} is neither a .py file (which would have to come first) nor an http(s) URL"
    return Problem(REWARD_FLAG, what, "write it like http://127.0.0.1:5000/get_reward, or name a .py file")


def start_trial(flag: str, kind: str, path: str) -> Trial | list[Problem]:
    """The trial of one file: `kind` is agent or reward."""
    if not path.endswith(".py"):
        return [Problem(flag, f"{path} isn't a Python file", "name a file that ends in .py")]
    if not os.path.isfile(path):
        return [Problem(flag, f"{path} doesn't exist", "check the spelling; a relative path starts here")]
    return Trial(flag, path, child.start(MODULE, kind, path))


# In the trial's process.


def _trial(kind: str, path: str) -> list[str]:
    """What is wrong with the file and what to do; empty when nothing is."""
    if kind == "agent":
        from openrlhf.utils.agent import AgentExecutorBase  # not in the file's own seconds
    signal.alarm(SECONDS)  # unhandled, it ends the process even inside C code
    try:
        spec = importlib.util.spec_from_file_location("reward_func" if kind == "reward" else "agent_module", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except BaseException as error:  # a file may also exit
        return [_last_line(error, path), "correct the file; `python` on it shows the same"]
    signal.alarm(0)
    return _reward_fault(module) if kind == "reward" else _agent_fault(module, AgentExecutorBase)


def _last_line(error: BaseException, path: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == os.path.abspath(path)]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return f"{traceback.format_exception_only(error)[-1].strip()}{where}"


def _reward_fault(module: ModuleType) -> list[str]:
    function = getattr(module, "reward_func", None)
    example = "define `def reward_func(queries, prompts, labels)` that returns a dict with `rewards`"
    if function is None:
        return ["it has no `reward_func`", example]
    if not callable(function):
        return [f"its `reward_func` is a {type(function).__name__}, not a function", example]
    if inspect.iscoroutinefunction(function):
        return ["its `reward_func` is async, and is called in a thread", "write it with `def`"]
    if not _takes(function, 3):
        return ["its `reward_func` doesn't take the three arguments it is called with", example]
    return []


def _agent_fault(module: ModuleType, base: type) -> list[str]:
    executor = getattr(module, "AgentExecutor", None)
    example = "define `class AgentExecutor(MultiTurnAgentExecutor)`, whose `__init__` takes no arguments"
    if executor is None:
        return ["it has no `AgentExecutor`", example]
    if not (inspect.isclass(executor) and issubclass(executor, base)):
        return ["its `AgentExecutor` is no subclass of openrlhf.utils.agent.AgentExecutorBase", example]
    if inspect.isabstract(executor):
        missing = ", ".join(sorted(executor.__abstractmethods__))
        return [f"its `AgentExecutor` doesn't define {missing}", "define it, or inherit from MultiTurnAgentExecutor"]
    if not _takes(executor, 0):
        return ["its `AgentExecutor` can't be made without arguments", example]
    return []


def _takes(function: object, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature: it may
        return True
    return True


if __name__ == "__main__":
    child.reply(sys.argv[1], _trial(sys.argv[2], sys.argv[3]))
    os._exit(0)  # the file may have started threads
