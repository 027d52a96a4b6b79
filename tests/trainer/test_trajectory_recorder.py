"""What a recorder makes of upstream's executors, of a user's that do more, and of agents that alter what was said."""

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.fully_async.trajectory_recorder import NOT_GENERATED, UNKNOWN, TrajectoryRecorder
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

N, U = NOT_GENERATED, UNKNOWN


def executed(executor: Any, engine: Any, fake: Any, *, prompt: str = "pp") -> tuple[TrajectoryRecorder, Any]:
    """The recorder and the response of one execution."""
    from vllm import SamplingParams

    recorder = TrajectoryRecorder(engine, name="g0/0.0", start_version=0)
    response = asyncio.run(
        executor.execute(
            prompt=prompt,
            label="l",
            sampling_params=SamplingParams(max_tokens=None, logprobs=0),
            max_length=100,
            hf_tokenizer=fake.tokenizer,
            llm_engine=recorder,
        )
    )
    return recorder, response


def aligned(recorder: TrajectoryRecorder, response: Any) -> Any:
    return recorder.align(response["observation_tokens"], response["action_ranges"])


def agent(*feedback: str) -> MultiTurnAgentExecutor:
    """Upstream's executor of an agent with one turn per feedback."""

    class Agent(AgentInstanceBase):
        def __init__(self) -> None:
            self.left = list(feedback)

        async def step(self, state: dict, **_: Any) -> dict:
            answer = self.left.pop(0)
            return {"rewards": torch.tensor(1.0), "environment_feedback": answer, "done": not self.left}

    return MultiTurnAgentExecutor(Agent)


def test_a_single_turn_has_versions_and_logprobs_where_it_was_generated(fake):
    recorder, response = executed(SingleTurnAgentExecutor(), fake.Engine(fake.completion("abc", [3, 3, 4])), fake)
    found = aligned(recorder, response)
    assert found.versions == [N, N, 3, 3, 4]
    assert found.logprobs == pytest.approx([0, 0, -0.01, -0.02, -0.03])
    assert found.logprobs == pytest.approx(response["rollout_log_probs"])
    assert recorder.n_tokens == 3 and not recorder.multi_modal


def test_tool_tokens_between_turns_are_nobodys(fake):
    engine = fake.Engine(fake.completion("ab", [0, 1]), fake.completion("c", [1]), fake.completion("de", [1, 2]))
    recorder, response = executed(agent("tool", "!", ""), engine, fake)
    assert fake.tokenizer.decode(response["observation_tokens"]) == "ppabtoolc!de"
    assert aligned(recorder, response).versions == [N, N, 0, 1, N, N, N, N, 1, N, 1, 2]
    assert aligned(recorder, response).logprobs == pytest.approx(response["rollout_log_probs"])
    prefix = recorder.prefix()
    assert prefix.tokens == response["observation_tokens"]
    assert prefix.positions == [2, 3, 8, 10, 11]
    assert prefix.logprobs == pytest.approx([-0.01, -0.02, -0.01, -0.01, -0.02])


def test_every_completion_of_a_request_can_be_the_one_that_is_used(fake):
    class BestOf(SingleTurnAgentExecutor):
        async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
            tokens = fake.codes(prompt)
            answer = await llm_engine.generate(tokens, sampling_params)
            best = answer.outputs[1]
            ends = (len(tokens), len(tokens) + len(best.token_ids))
            return {"observation_tokens": tokens + best.token_ids, "action_ranges": [ends]}

    engine = fake.Engine([fake.completion("ab", [1, 1]), fake.completion("xyz", [1, 2, 2], index=1)])
    recorder, response = executed(BestOf(), engine, fake)
    assert aligned(recorder, response).versions == [N, N, 1, 2, 2]
    assert recorder.n_tokens == 5, "what was generated and not used is paid for all the same"
    assert recorder.prefix().tokens == response["observation_tokens"]


def test_completions_of_one_prompt_do_not_hide_each_other(fake):
    """One is how the other begins: the prefix is still all of the latest."""
    engine = fake.Engine([fake.completion("ab", [1, 1]), fake.completion("abc", [1, 1, 1], index=1)])
    recorder, _ = executed(SingleTurnAgentExecutor(), engine, fake)
    assert recorder.prefix().positions == [2, 3, 4]


class Judging(MultiTurnAgentExecutor):
    """Upstream's executor, which asks for a judgement before each turn."""

    def __init__(self, inner: MultiTurnAgentExecutor, question: list[int]) -> None:
        super().__init__(inner.agent_instance_cls)
        self.question = question

    async def execute(self, *args: Any, llm_engine: Any, **kwargs: Any) -> Any:
        outer = self

        class Judge:
            async def generate(self, tokens: Any, params: Any, multi_modal_data: Any = None) -> Any:
                await llm_engine.generate(outer.question, params)
                return await llm_engine.generate(tokens, params)

        return await super().execute(*args, llm_engine=Judge(), **kwargs)


@pytest.mark.parametrize("verdict", ["yes", "ab", "abz"])
def test_calls_outside_the_response_do_not_lend_their_versions(fake, verdict):
    """Also a judge that says, under older weights, just what the policy says next."""
    engine = fake.Engine(
        fake.completion(verdict, [0] * len(verdict)),
        fake.completion("ab", [1, 1]),
        fake.completion(verdict, [1] * len(verdict)),
        fake.completion("ab", [2, 2]),
    )
    recorder, response = executed(Judging(agent("t", ""), fake.codes("good?")), engine, fake)
    assert aligned(recorder, response).versions == [N, N, 1, 1, N, 2, 2]
    assert recorder.n_tokens == 4 + 2 * len(verdict)


def test_the_end_of_a_response_may_be_cut(fake):
    recorder = fake.recorded(("pp", "abcd", [0, 0, 1, 1]))
    cut = recorder.align(fake.codes("ppabc"), [(2, 5)])
    assert cut.versions == [N, N, 0, 0, 1] and cut.logprobs == pytest.approx([0, 0, -0.01, -0.02, -0.03])
    assert recorder.align(fake.codes("ppabc"), [(2, 6)]).versions == cut.versions, "a range beyond the tokens"
    assert recorder.align(fake.codes("pp"), [(2, 6)]).versions == [N, N]


@pytest.mark.parametrize(
    ("text", "ranges", "expected"),
    [
        ("ppbc", [(2, 4)], [N, N, U, U]),  # the beginning cut
        ("ppaXc", [(2, 5)], [N, N, U, U, U]),  # one token exchanged
        ("ppabcd", [(2, 6)], [N, N, U, U, U, U]),  # one token more
        ("ppaXctef", [(2, 5), (6, 8)], [N, N, U, U, U, N, 7, 7]),  # the second turn is as it was
        ("ppeftabc", [(2, 4), (5, 8)], [N, N, 7, 7, N, U, U, U]),  # in another order
        ("ppabcabc", [(2, 5), (5, 8)], [N, N, 6, 6, 6, U, U, U]),  # twice what was made once
    ],
)
def test_what_the_engine_did_not_make_so_is_unknown_never_version_0(fake, text, ranges, expected):
    recorder = fake.recorded(("pp", "abc", [6, 6, 6]), ("ppabct", "ef", [7, 7]))
    found = recorder.align(fake.codes(text), ranges)
    assert found.versions == expected
    assert all(logprob == 0.0 for logprob, version in zip(found.logprobs, expected, strict=True) if version < 0)


def test_a_label_that_is_no_version_is_unknown(fake):
    answer = fake.completion("abc", [5, 5, 5])
    answer.weight_versions[0].version = "default"
    none = fake.completion("abc", [5, 5, 5])
    none.weight_versions = None
    for output in (answer, none):
        recorder, response = executed(SingleTurnAgentExecutor(), fake.Engine(output), fake)
        assert aligned(recorder, response).versions == [N, N, U, U, U]


def test_a_prefix_leaves_out_what_an_altered_history_no_longer_holds(fake):
    assert fake.recorded(("pp", "ab", [0, 0]), ("ppXb.", "c", [0])).prefix().positions == [5]


def test_a_prefix_leaves_out_tokens_behind_an_altered_beginning(fake):
    """The same tokens in the same place, but the policy would judge them by another context."""
    assert fake.recorded(("pp", "ab", [0, 0]), ("ppab.", "c", [0])).prefix().positions == [2, 3, 5]
    assert fake.recorded(("pp", "ab", [0, 0]), ("qpab.", "c", [0])).prefix().positions == [5]


def test_the_prefix_of_a_running_request_is_what_it_has_written(fake):
    async def scenario() -> None:
        engine = fake.Engine(fake.completion("ab", [0, 0]), fake.completion("cde", [0, 0, 0]))
        recorder = TrajectoryRecorder(engine, name="g0/0.0", start_version=0)
        assert recorder.prefix() is None
        await recorder.generate(fake.codes("pp"), None)
        engine.hold()
        call = asyncio.create_task(recorder.generate(fake.codes("ppab."), None))
        await asyncio.sleep(0)
        assert recorder.prefix().positions == [2, 3] and recorder.prefix().tokens == fake.codes("ppab.")
        engine.so_far[engine.requests[-1].request_id] = (fake.codes("c"), [-0.5])
        prefix = recorder.prefix()
        assert prefix.positions == [2, 3, 5] and prefix.logprobs[-1] == -0.5 and recorder.n_tokens == 3
        engine.release()
        await call
        assert recorder.prefix().positions == [2, 3, 5, 6, 7] and recorder.n_tokens == 5

    asyncio.run(scenario())


def test_a_request_that_fails_leaves_nothing_behind(fake):
    async def scenario() -> None:
        engine = fake.Engine(RuntimeError("no"), fake.completion("ab", [0, 0]))
        recorder = TrajectoryRecorder(engine, name="g0/0.0", start_version=0)
        with pytest.raises(RuntimeError):
            await recorder.generate(fake.codes("pp"), None)
        assert recorder.prefix() is None and recorder.n_tokens == 0
        await recorder.generate(fake.codes("pp"), None)
        assert recorder.prefix().positions == [2, 3]

    asyncio.run(scenario())


def test_no_two_requests_share_an_id(fake):
    """Also when one of two that run at a time fails, or gives several completions."""

    async def scenario() -> None:
        two = [fake.completion("a", [0]), fake.completion("b", [0])]
        engine = fake.Engine(RuntimeError("no"), two, fake.completion("c", [0]), fake.completion("d", [0]))
        recorder = TrajectoryRecorder(engine, name="g0/0.0", start_version=0)
        await asyncio.gather(*(recorder.generate([1], None) for _ in range(2)), return_exceptions=True)
        await asyncio.gather(*(recorder.generate([1], None) for _ in range(2)))
        assert len({request.request_id for request in engine.requests}) == 4

    asyncio.run(scenario())


def test_everything_else_reaches_the_engine(fake):
    recorder = TrajectoryRecorder(fake.Engine(), name="g0/0.0", start_version=0)
    assert recorder.model_name == "scripted"
    with pytest.raises(AttributeError):
        _ = recorder.nonsense


def test_images_are_noted(fake):
    recorder = TrajectoryRecorder(fake.Engine(fake.completion("a", [0])), name="g0/0.0", start_version=0)
    asyncio.run(recorder.generate([1], None, multi_modal_data={"image": [object()]}))
    assert recorder.multi_modal


turns = st.lists(
    st.tuples(st.text("ab", min_size=1, max_size=5), st.text("ab.", max_size=3), st.integers(0, 5)),
    min_size=1,
    max_size=4,
)


@given(turns)
def test_turns_of_any_shape_get_their_own_versions(fake, turns):
    """Texts of two letters repeat often: neither the tool's words nor another turn's may be taken for a turn."""
    outputs = [fake.completion(text, [version + i for i in range(len(text))]) for text, _, version in turns]
    recorder, response = executed(agent(*(feedback for _, feedback, _ in turns)), fake.Engine(*outputs), fake)
    expected = [N, N]
    for text, feedback, version in turns:
        expected += [version + i for i in range(len(text))] + [N] * len(feedback)
    assert aligned(recorder, response).versions == expected
    assert recorder.prefix().positions == [
        at for at in range(len(recorder.prefix().tokens)) if expected[at] != NOT_GENERATED
    ]
