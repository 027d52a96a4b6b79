"""Reward and agent files, tried in a process of their own, and reward servers' URLs."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf.launch import user_code
from openrlhf.launch.problem import Problem

Run = Callable[..., SimpleNamespace]
Script = Callable[[str], str]
pytestmark = pytest.mark.slow

REWARD, AGENT = "--reward.remote_url", "--train.agent_func_path"
AGENT_IMPORT = "from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor\n"
GOOD_AGENT = f"""{AGENT_IMPORT}
class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs): pass
    async def step(self, states, **kwargs): return {{}}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self): super().__init__(AgentInstance)
"""


def problems_of(args: SimpleNamespace) -> list[Problem]:
    trial = user_code.start(args)
    return trial if isinstance(trial, list) else trial.problems()


def with_reward(run: Run, path: str) -> SimpleNamespace:
    return run(reward__remote_url=path)


def with_agent(run: Run, path: str) -> SimpleNamespace:
    return run(reward__remote_url=None, train__agent_func_path=path)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """The trial without its process, which costs seconds of imports."""
    monkeypatch.setattr(user_code.signal, "alarm", lambda seconds: None)
    return user_code._trial


def test_a_good_reward_file_passes(run: Run) -> None:
    assert problems_of(run()) == []


def test_a_good_agent_passes(run: Run, script: Script) -> None:
    assert problems_of(with_agent(run, script(GOOD_AGENT))) == []


BAD_REWARDS = {
    "no function": ("def reward(q, p, l): pass\n", "no `reward_func`", "queries, prompts, labels"),
    "not callable": ("reward_func = 1\n", "is a int", "queries, prompts, labels"),
    "async": ("async def reward_func(q, p, l): pass\n", "async", "`def`"),
    "two arguments": ("def reward_func(query, label): pass\n", "three arguments", "queries, prompts, labels"),
    "missing package": ("import no_such_package\n", "No module named 'no_such_package' (line 1)", "correct"),
    "its own error": ("x = 1\n\nx / 0\n", "ZeroDivisionError: division by zero (line 3)", "correct"),
    "syntax": ("x = 1\ndef f(:\n", "(line 2)", "correct"),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3 (line 2)", "correct"),
}


@pytest.mark.parametrize(("source", "what", "fix"), BAD_REWARDS.values(), ids=BAD_REWARDS.keys())
def test_a_bad_reward_file(tried: Callable[..., list[str]], script: Script, source: str, what: str, fix: str) -> None:
    found = tried("reward", script(source))
    assert what in found[0] and fix in found[1]


BAD_AGENTS = {
    "no executor": (AGENT_IMPORT, "no `AgentExecutor`", "class AgentExecutor"),
    "another base": ("class AgentExecutor: pass\n", "AgentExecutorBase", "MultiTurnAgentExecutor"),
    "abstract": (f"{AGENT_IMPORT}class AgentExecutor(AgentExecutorBase): pass\n", "execute", "MultiTurnAgentExecutor"),
    "arguments": (
        f"{AGENT_IMPORT}class AgentExecutor(MultiTurnAgentExecutor):\n    def __init__(self, tool): pass\n",
        "without arguments",
        "no arguments",
    ),
}


@pytest.mark.parametrize(("source", "what", "fix"), BAD_AGENTS.values(), ids=BAD_AGENTS.keys())
def test_a_bad_agent_file(tried: Callable[..., list[str]], script: Script, source: str, what: str, fix: str) -> None:
    found = tried("agent", script(source))
    assert what in found[0] and fix in found[1]


def test_a_problem_names_flag_and_file(run: Run, script: Script) -> None:
    path = script("x = 1\n")
    (problem,) = problems_of(with_reward(run, path))
    assert problem.flag == REWARD and path in problem.what and "no `reward_func`" in problem.what and problem.fix
    path = script("import os\nos._exit(7)\n")
    (problem,) = problems_of(with_agent(run, path))
    assert problem.flag == AGENT and path in problem.what and "exit code 7" in problem.what and "alone" in problem.fix


def test_files_that_are_not_there(run: Run) -> None:
    (problem,) = problems_of(with_reward(run, "/nowhere/reward.py"))
    assert problem.flag == REWARD and "/nowhere/reward.py" in problem.what and problem.fix
    (problem,) = problems_of(with_agent(run, "/nowhere/agent.py"))
    assert problem.flag == AGENT and "/nowhere/agent.py" in problem.what
    (problem,) = problems_of(with_agent(run, "agent.sh"))
    assert problem.flag == AGENT and "Python file" in problem.what and ".py" in problem.fix


def test_a_file_that_hangs_is_ended(run: Run, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must hold up neither the launcher nor the engine that would import it next."""
    monkeypatch.setattr(user_code, "START_SECONDS", 0)
    monkeypatch.setattr(user_code, "SECONDS", 3)
    began = time.monotonic()
    (problem,) = problems_of(with_reward(run, script("import time\ntime.sleep(600)\n")))
    assert time.monotonic() - began < 20
    assert (
        problem.flag == REWARD and "takes more than 3 s" in problem.what and "when it is first called" in problem.fix
    )


def test_the_trial_ends_itself_too(script: Script) -> None:
    """Also when nobody waits for it any more, and inside code that holds the interpreter."""
    program = (
        "import sys\nfrom openrlhf.launch import user_code\n"
        "user_code.SECONDS = 1\nuser_code._trial('reward', sys.argv[1])\n"
    )
    path = script("import re\nre.match('(a+)+$', 'a' * 60 + 'b')\n")
    root = Path(user_code.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program, path], timeout=60, cwd=root, capture_output=True)
    assert done.returncode == -user_code.signal.SIGALRM


def test_what_a_file_starts_ends_with_the_trial(
    run: Run, script: Script, tmp_path_factory: pytest.TempPathFactory
) -> None:
    note = tmp_path_factory.mktemp("note") / "pid"
    source = f"import subprocess\nopen({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    (problem,) = problems_of(with_reward(run, script(source)))
    assert "no `reward_func`" in problem.what
    deadline = time.monotonic() + 5
    while _alive(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(int(note.read_text()))


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:5000/get_reward", "https://rm.example/score", "http://[::1]:80", "http://a,http://b"]
)
def test_urls_of_servers_pass(run: Run, url: str) -> None:
    assert problems_of(with_reward(run, url)) == []


@pytest.mark.parametrize("url", ["127.0.0.1:5000", "htp://host/", "http://", "http://host:port", "http://a,later.py"])
def test_malformed_urls(run: Run, url: str) -> None:
    (problem,) = problems_of(with_reward(run, url))
    assert problem.flag == REWARD and "http(s) URL" in problem.what and "http://127.0.0.1:5000" in problem.fix
