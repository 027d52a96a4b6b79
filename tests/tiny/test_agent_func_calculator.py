"""The calculator game: its rules against brute force, its episodes, and its way through upstream's executor."""

import asyncio
import copy
import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from examples.python import agent_func_calculator as calculator
from examples.python.agent_func_calculator import OPERATIONS, AgentExecutor, AgentInstance, State
from examples.tiny import tasks
from examples.tiny.model import build_tokenizer
from examples.tiny.recipe import Recipe

END = calculator.TURN_END
PROMPT = "<|im_start|>user\nplay<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def games():
    return tasks.all_games(Recipe())


@pytest.fixture(scope="module")
def game(games):
    """A game with as many calls as any."""
    return max(games, key=lambda game: game.left)


def call(operation):
    return f"<call>{operation}</call>{END}"


def winning_path(state):
    path = []
    while not calculator.won(state):
        path.append(calculator.winning_operations(state)[0])
        state = calculator.play(state, path[-1])
    return path


def losing_path(state):
    """Calls that never reach the target, as many as there are; every game has some."""
    for path in itertools.product(OPERATIONS, repeat=state.left):
        after = list(itertools.accumulate(path, calculator.play, initial=state))
        if not any(calculator.won(step) for step in after):
            return list(path)
    raise AssertionError(f"{state} can't be lost")


async def start(game):
    episode = AgentInstance()
    label = tasks.game_row(game)["label"]
    assert await episode.reset({"observation": PROMPT, "label": label}) == {"observation": PROMPT}
    assert episode.state == game
    return episode


async def play_texts(episode, texts):
    return [await episode.step({"observation_text": "", "action_text": text, "label": ""}) for text in texts]


def comparable(results):
    return [result | {"rewards": result["rewards"].item()} for result in results]


# Rules.


def reachable(value, calls):
    """Every number that some sequence of calls shows, by trying all of them, malformed ones too."""
    seen = {value}
    for path in itertools.product((*OPERATIONS, None), repeat=calls):
        number = value
        for operation in path:
            if operation is not None:
                new = {"+": number.__add__, "*": number.__mul__, "/": number.__floordiv__}[operation[0]](
                    int(operation[1])
                )
                number = new if new <= calculator.LIMIT else number
            seen.add(number)
    return seen


def test_winnable_is_what_brute_force_finds(games):
    """For every state that a game can start in, and those of the same range that are no game."""
    assert games
    numbers = sorted({game.value for game in games})
    most = max(game.left for game in games)
    by_start = {(value, calls): reachable(value, calls) for value in numbers for calls in range(most + 1)}
    assert all(game.target in by_start[game.value, game.left] for game in games)
    assert all(game.target not in by_start[game.value, game.left - 1] for game in games)
    for (value, calls), found in by_start.items():
        for target in range(calculator.LIMIT + 1):
            assert calculator.winnable(State(value, target, calls)) == (target in found), (value, target, calls)


def test_every_game_can_be_won_and_lost(games):
    """So turns matter: on the way to the target stands a state where one call keeps it in reach and one doesn't."""
    for game in games:
        assert not calculator.won(game)
        states, choices = [game], False
        while states:
            state = states.pop()
            good = calculator.winning_operations(state)
            choices = choices or 0 < len(good) < len(OPERATIONS)
            after = (calculator.play(state, operation) for operation in good)
            states += [next_state for next_state in after if not calculator.won(next_state)]
        assert choices, game


def test_a_lost_state_has_no_winning_call():
    assert calculator.winning_operations(State(5, 1, 0)) == []
    assert not calculator.winnable(State(5, 6, 0))
    assert calculator.winnable(State(5, 5, 0))


def test_a_result_above_the_limit_keeps_the_number_and_costs_a_call():
    before = State(calculator.LIMIT, 3, 2)
    assert calculator.play(before, "+1") == State(calculator.LIMIT, 3, 1)
    assert calculator.reply(before, "+1").startswith("Too large. ")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("text", ["<call>{}</call>", "<call> {}\n</call>", "first <call>{}</call> then", call("{}")])
def test_a_well_formed_call_is_understood(operation, text):
    assert calculator.parse_call(text.format(operation)) == operation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+1",
        "<call>",
        "<call>+1",
        "<call></call>",
        "<call>-1</call>",
        "<call>+0</call>",
        "<call>+1 +1</call>",
        "<call>+11</call>",
        "<call>+\u0661</call>",
        "<call>+1</call><call>+1</call>",
        "<call><call>+1</call>",
        "<call>/0</call>",
    ],
)
def test_anything_else_is_not_a_call(text):
    assert calculator.parse_call(text) is None


# Episodes.


def test_a_winning_path_gives_one_reward_at_its_end(games):
    async def check(game):
        path = winning_path(game)
        results = await play_texts(await start(game), map(call, path))
        assert [result["rewards"].item() for result in results] == [0.0] * (len(path) - 1) + [1.0]
        assert [result["done"] for result in results] == [False] * (len(path) - 1) + [True]
        assert results[-1]["scores"] == 1.0
        assert all(isinstance(result["rewards"], torch.Tensor) for result in results)

    for game in games[:50]:
        asyncio.run(check(game))


def test_a_losing_path_ends_with_the_last_call_and_no_reward(games):
    async def check(game):
        results = await play_texts(await start(game), map(call, losing_path(game)))
        assert sum(result["rewards"].item() for result in results) == 0.0
        assert [result["done"] for result in results] == [False] * (game.left - 1) + [True]

    for game in games[:50]:
        asyncio.run(check(game))


def test_the_model_is_told_where_it_stands(game):
    (result,) = asyncio.run(play_one(game, call(winning_path(game)[0])))
    after = calculator.play(game, winning_path(game)[0])
    expected = f"\n<|im_start|>tool\n{calculator.display(after)}{END}\n<|im_start|>assistant\n"
    assert result["environment_feedback"] == expected


async def play_one(game, text):
    return await play_texts(await start(game), [text])


def test_a_malformed_call_costs_a_turn_and_the_model_is_told(game):
    (result,) = asyncio.run(play_one(game, f"I don't know{END}"))
    assert not result["done"]
    assert result["rewards"].item() == 0.0
    assert "Not a call. " in result["environment_feedback"]
    assert calculator.display(game._replace(left=game.left - 1)) in result["environment_feedback"]
    assert result["extra_logs"] == {"calculator_calls_left": game.left - 1, "calculator_malformed": 1}


def test_nothing_but_malformed_calls_ends_the_episode(game):
    async def check():
        return await play_texts(await start(game), [END] * game.left)

    results = asyncio.run(check())
    assert [result["done"] for result in results] == [False] * (game.left - 1) + [True]
    assert results[-1]["extra_logs"]["calculator_malformed"] == game.left


def test_a_turn_that_was_cut_off_is_closed(game):
    (cut,) = asyncio.run(play_one(game, "<call>+"))
    (whole,) = asyncio.run(play_one(game, f"<call>+{END}"))
    assert cut["environment_feedback"] == END + whole["environment_feedback"]


def test_a_copy_is_an_independent_and_equal_snapshot(game):
    path = [f"nothing{END}", *map(call, losing_path(game))][: game.left]

    async def check():
        original = await start(game)
        await play_texts(original, path[:1])
        snapshot = copy.deepcopy(original)
        assert vars(snapshot) == vars(original)
        frozen = dict(vars(snapshot))
        rest = await play_texts(original, path[1:])
        assert vars(snapshot) == frozen
        assert vars(original) != frozen
        assert comparable(await play_texts(copy.deepcopy(snapshot), path[1:])) == comparable(rest)
        assert comparable(await play_texts(snapshot, path[1:])) == comparable(rest)
        assert vars(snapshot) == vars(original)

    asyncio.run(check())


def test_an_episode_holds_integers_only(game):
    episode = asyncio.run(start(game))
    assert {type(value) for value in vars(episode).values()} == {int}


# Through upstream's executor.


class FakeEngine:
    """Stands in for the inference engine: answers each request with the next scripted turn."""

    def __init__(self, tokenizer, turns):
        self.tokenizer = tokenizer
        self.turns = [tokenizer.encode(turn, add_special_tokens=False) for turn in turns]
        self.prompts = []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.prompts.append(list(prompt_token_ids))
        tokens = self.turns[len(self.prompts) - 1]
        logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in tokens]
        text = self.tokenizer.decode(tokens, skip_special_tokens=False)
        output = SimpleNamespace(token_ids=tokens, text=text, finish_reason="stop", logprobs=logprobs)
        return SimpleNamespace(outputs=[output])


@pytest.fixture(scope="module")
def tokenizer(games):
    return build_tokenizer(Recipe(), [calculator.instruction(game) for game in games])


def execute(tokenizer, game, turns):
    row = tasks.game_row(game)
    prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
    engine = FakeEngine(tokenizer, turns)
    sampling = SimpleNamespace(max_tokens=16, logprobs=1)
    result = asyncio.run(
        AgentExecutor().execute(prompt, row["label"], sampling, 512, hf_tokenizer=tokenizer, llm_engine=engine)
    )
    return result, engine, prompt


@pytest.mark.parametrize("wins", [True, False])
def test_a_whole_episode_through_upstream(tokenizer, game, wins):
    path = winning_path(game) if wins else losing_path(game)
    result, engine, prompt = execute(tokenizer, game, [call(operation) for operation in path])
    assert result["reward"] == result["scores"] == float(wins)
    assert not result["truncated"]

    tokens, ranges = result["observation_tokens"], result["action_ranges"]
    assert [tokens[begin:end] for begin, end in ranges] == engine.turns
    assert [begin for begin, _ in ranges] == [len(seen) for seen in engine.prompts]
    assert all(tokens[: len(seen)] == seen for seen in engine.prompts)
    generated = [position for begin, end in ranges for position in range(begin, end)]
    assert [position for position, value in enumerate(result["rollout_log_probs"]) if value == -1.0] == generated
    assert len(result["rollout_log_probs"]) == len(tokens)

    # What the policy saw is the conversation that its demonstrations look like.
    messages, state = tasks.game_row(game)["prompt"], game
    for operation in path:
        messages = [*messages, tasks.message("assistant", f"<call>{operation}</call>")]
        messages.append(tasks.message("tool", calculator.reply(state, operation)))
        state = calculator.play(state, operation)
    conversation = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == conversation
    assert conversation.startswith(prompt)


def test_labels_are_plain_json(game):
    label = tasks.game_row(game)["label"]
    assert calculator.start_state(label) == game
    assert set(json.loads(label)) == {"start", "target", "calls"}
