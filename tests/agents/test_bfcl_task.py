"""Multi-turn function calling, played by a script: user turns, refused calls, limits, branches, no traces."""

import asyncio
import copy
import gc
import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("bfcl_eval")

from examples.python import agent_func_bfcl  # noqa: E402
from examples.python.agent_func_bfcl import BfclAgent  # noqa: E402
from openrlhf.agents.bfcl_checker import passes  # noqa: E402
from openrlhf.agents.bfcl_data import Task, find, package  # noqa: E402
from openrlhf.agents.bfcl_world import World, backends  # noqa: E402
from openrlhf.agents.tool_calls import ToolCall  # noqa: E402
from openrlhf.utils.agent import MultiTurnAgentExecutor  # noqa: E402

from .bfcl_answers import DONE, answer, every_task, label, spoken  # noqa: E402
from .episodes import CHAT, call, check_branching, episode, play  # noqa: E402

BASE, LATE, LONG = (find(f"multi_turn_{name}_0") for name in ("base", "miss_func", "long_context"))
MATHS = find("multi_turn_base_49")


def played(task: Task, *turns: str) -> list[dict[str, Any]]:
    return episode(BfclAgent, task.message(0), label(task), *turns)


def told(reply: dict[str, Any]) -> str:
    return str(reply["environment_feedback"])


def test_the_user_speaks_again_after_a_turn_without_a_call() -> None:
    start, listed, second, third = played(BASE, call("ls"), DONE, DONE)
    assert "latest list of tools" in start["observation"] and BASE.message(0) in start["observation"]
    assert '"name": "mkdir"' in start["observation"]
    assert "<|im_start|>tool\n" in told(listed) and '"current_directory_content"' in told(listed)
    assert f"<|im_start|>user\n{BASE.message(1)}" in told(second) and BASE.message(2) in told(third)
    assert listed["extra_logs"] == {"correct": 0.0, "user_turns": 0.0, "refused_calls": 0.0, "turns": 1.0}


def test_the_trajectory_ends_after_the_last_user_turn() -> None:
    *_, end = played(BASE, *[DONE] * BASE.n_turns)
    assert end["done"] and end["scores"] == 0.0 and told(end) == ""
    assert end["extra_logs"] == {"correct": 0.0, "user_turns": BASE.n_turns, "refused_calls": 0.0, "turns": 4.0}


def test_a_function_is_refused_until_it_is_offered() -> None:
    sort = call("sort", file_name="final_report.pdf")
    turns = spoken(answer(LATE))
    at = turns.index(next(turn for turn in turns if '"sort"' in turn))
    start, *replies = played(LATE, *turns[: at - 1], sort, *turns[at - 1 :])
    assert '"name": "sort"' not in start["observation"]
    early, listed, used = replies[at - 1 : at + 2]
    assert "Error: there is no function 'sort'" in told(early)
    assert '"name": "sort"' in told(listed) and "sorted_content" in told(used)
    assert replies[-1]["scores"] == 1.0, "a refused call is none"
    assert replies[-1]["extra_logs"]["refused_calls"] == 1.0


HIDDEN = ["__init__", "_load_scenario", "__class__", "__eq__", "_current_dir", "root", "long_context", "exit", "eval"]


@pytest.mark.parametrize("name", [*HIDDEN, "get_stock_info", "ls()", "", "\ud800", "x" * 10**5])
def test_what_is_no_function_of_the_task_is_refused(name: str) -> None:
    _, reply = played(BASE, call(name))
    assert "Error: there is no function" in told(reply) and not reply["done"]
    assert reply["extra_logs"]["refused_calls"] == 0.0, "logs are of the whole trajectory"
    told(reply).encode()
    assert len(told(reply)) < 2000


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        ("<tool_call>{</tool_call>", "Error: this is not valid JSON"),
        ('<tool_call>{"name": "ls", "arguments": [1]}</tool_call>', "Error: the arguments are not a JSON object"),
        (call("cat"), "Error: cat needs file_name"),
        (call("cat", file="x"), "Error: cat has no parameter 'file'"),
        (call("cat", file_name=3), "Error during execution: argument of type 'int' is not iterable"),
        (call("mkdir", dir_name={"a": 1}), "Error during execution: unhashable type"),
        (call("echo", content="x" * (1 << 20)), "Error: "),
        (call("echo", content="x" * 20_000), "Error: the arguments have more than"),
        (call("echo", content=float("nan")), "Error: content: numbers must be finite"),
        ('<tool_call>{"name": "ls", "arguments": {"a": ' + "[" * 10**5 + "</tool_call>", "Error: "),
        ('<tool_call>{"name": "ls", "arguments": {"a": ' + "[" * 50 + "]" * 50 + "}}</tool_call>", "Error: a: nested"),
    ],
)
def test_a_bad_call_is_answered_and_the_user_turn_goes_on(turn: str, text: str) -> None:
    _, reply, after = played(BASE, turn, call("pwd"))
    assert text in told(reply) and not reply["done"] and "<|im_start|>user" not in told(reply)
    assert "current_working_directory" in told(after)


def test_results_that_are_no_json_are_shown() -> None:
    root, power = call("square_root", number=2, precision=5), call("power", base=-8, exponent=0.5)
    _, decimal, number = played(MATHS, root, power)
    assert "{'result': Decimal('1.4142')}" in told(decimal) and "j)" in told(number)


@pytest.mark.parametrize("turn", [call("pwd"), "<tool_call>{</tool_call>"])
def test_a_trajectory_without_an_end_gets_nothing(turn: str) -> None:
    *_, last, end = played(BASE, *[turn] * 100)
    assert not last["done"] and end["done"] and end["scores"] == 0.0 and end["extra_logs"]["turns"] == 40.0


def test_the_last_turn_may_be_the_one_that_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = spoken(answer(BASE))
    for limit, reward in ((len(turns), 1.0), (len(turns) - 1, 0.0)):
        monkeypatch.setenv("BFCL_MAX_TURNS", str(limit))
        *_, end = played(BASE, *turns)
        assert end["done"] and end["scores"] == reward and end["extra_logs"]["turns"] == limit


def test_long_results_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFCL_MAX_OUTPUT_CHARS", "100")
    _, reply = played(LONG, call("find"))
    assert "more characters]" in told(reply) and len(told(reply)) < 300


@pytest.mark.parametrize("name", ["BFCL_MAX_TURNS", "BFCL_MAX_OUTPUT_CHARS"])
@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_bad_settings(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        played(BASE)


@pytest.mark.parametrize("text", ["multi_turn_base_0", "{}", "[]", "3", '{"id": "multi_turn_base_999"}'])
def test_bad_labels(text: str) -> None:
    with pytest.raises(ValueError, match="python -m examples.tasks.bfcl"):
        episode(BfclAgent, "?", text)


def test_the_executor_is_upstream_s() -> None:
    assert isinstance(agent_func_bfcl.AgentExecutor(), MultiTurnAgentExecutor)


@pytest.mark.parametrize("round_trip", [[], [("mv", {"source": ".", "destination": "z"})]])
def test_a_tree_of_files_that_can_t_be_walked_ends_the_trajectory(round_trip: list[Any]) -> None:
    """Copies of folders share what is in them: each level doubles the paths, or the folder holds itself."""
    if round_trip:
        turns = [call("mkdir", dir_name="."), *(call(name, **arguments) for name, arguments in round_trip)]
    else:
        turns = [call("mkdir", dir_name="a0"), call("mkdir", dir_name="b0")]
        for level in range(1, 13):
            new, old = f"a{level}", f"a{level - 1}"
            calls = [("mkdir", {"dir_name": new})]
            calls += [("mv", {"source": name, "destination": new}) for name in (old, f"b{level - 1}")]
            calls += [("cp", {"source": new, "destination": f"b{level}"})]
            turns.append("".join(call(name, **arguments) for name, arguments in calls))
    *_, end = played(BASE, *turns, *[call("pwd")] * 5)
    assert end["done"] and end["scores"] == 0.0 and end["extra_logs"]["turns"] < len(turns) + 1


def test_folders_in_folders_without_end() -> None:
    deeper = call("mkdir", dir_name="d") + call("cd", folder="d")
    *_, end = played(BASE, *[deeper * 8] * 20)
    assert end["done"] and end["scores"] == 0.0 and end["extra_logs"]["turns"] < 7


def test_a_checker_that_fails_is_no_reward(caplog: pytest.LogCaptureFixture) -> None:
    assert not passes(BASE, [[["1 +"]], [["ls()"]], [["ls("]], [["ls()"]]])
    entry = BASE.entry | {"initial_config": {"GorillaFileSystem": {"root": {"x": {"contents": {}}}}}}
    assert not passes(Task(entry, [[1]]), [[["ls()"]]] * BASE.n_turns)  # type: ignore[list-item]
    assert "the reward is 0" in caplog.text


@pytest.mark.parametrize("task", every_task(step=50), ids=lambda task: task.id)
def test_a_trajectory_can_be_branched_anywhere(task: Task) -> None:
    turns = spoken(answer(task))
    check_branching(BfclAgent, task.message(0), label(task), [call("nothing"), *turns])


def states(world: World) -> dict[str, dict[str, Any]]:
    """The back ends' attributes; generators and clocks of files aside, these include the private ones."""
    shown = {}
    for kind, backend in world.backends.items():
        kept = {name: value for name, value in vars(backend).items() if name != "_random"}
        shown[kind] = kept | {"random": backend._random.getstate() if hasattr(backend, "_random") else None}
    return shown


@pytest.mark.parametrize("task", every_task(step=40), ids=lambda task: task.id)
def test_copies_played_again_and_the_original_have_equal_states(task: Task) -> None:
    calls = [one for turn in answer(task) for one in turn]
    half = len(calls) // 2

    def run(world: World, part: list[dict[str, Any]]) -> list[str]:
        world.turn = task.n_turns - 1  # every function is offered
        world.begin_round()
        return [world.run(ToolCall(**one)) for one in part]

    original, again = World(task), World(task)
    run(original, calls[:half])
    copied = copy.deepcopy(original)
    kept = repr(states(copied))
    rest = run(original, calls[half:])
    assert repr(states(copied)) == kept, "the copy stays as it was"
    assert run(copied, calls[half:]) == rest == run(again, calls)[half:]
    assert states(original) == states(copied) == states(again)


def test_trajectories_at_the_same_time_do_not_meet() -> None:
    tasks = [task for task in every_task(step=50) for _ in range(3)]

    async def slowly(task: Task) -> float:
        agent, replies = BfclAgent(CHAT), []
        await play(agent, task.message(0), label(task), [])
        for turn in spoken(answer(task), per_turn=1):
            await asyncio.sleep(0)
            replies.append(await agent.step({"action_text": turn}))
        return float(replies[-1]["scores"])

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*map(slowly, tasks))

    assert asyncio.run(all_of_them()) == [1.0] * len(tasks)


def test_nothing_is_left_of_a_thousand_trajectories() -> None:
    utils = vars(package("eval_checker.multi_turn_eval.multi_turn_utils"))
    task = find("multi_turn_base_150")
    kinds = tuple(type(backend) for backend in backends(task).values())

    def n_left() -> tuple[int, Counter[str]]:
        gc.collect()
        return len(utils), Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds))

    calls = [[turn] for turn in task.answer]
    assert passes(task, calls)
    before = n_left()
    assert all(passes(task, calls) for _ in range(1000))
    assert n_left() == before


def test_a_list_that_is_left_out_is_the_trajectory_s_own_and_the_checker_s() -> None:
    for _ in range(2):
        world = World(BASE)
        world.begin_round()
        world.run(ToolCall("authenticate_twitter", {"username": "analyst_pro", "password": "Kj8#mP9$vL2"}))
        posted = json.loads(world.run(ToolCall("post_tweet", {"content": "a"})))
        assert posted["mentions"] == []
        world.run(ToolCall("mention", {"tweet_id": posted["id"], "mentioned_usernames": ["@b"]}))
        assert world.backends["TwitterAPI"].tweets[posted["id"]]["mentions"] == ["@b"]
        assert not passes(BASE, [world.calls[0], *[[["pwd()"]]] * (BASE.n_turns - 1)])
        assert type(world.backends["TwitterAPI"]).post_tweet.__defaults__ == ([], [])
