"""Groups of responses as trees: every token once, rows as they are trained, branches where they were made."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.tree.grown import grown
from trace_alloc.config import TraceConfig
from trace_alloc.serialisation import serialise

Response = dict[str, Any]
PROMPT = [1, 2, 3]


def response(
    rng: random.Random, start: Response | None = None, *, parent: int | None = None, n_given: int = 0
) -> Response:
    """A rollout of a few turns, behind the first `n_given` generated tokens of `start`; all its tokens are new."""
    tokens, ranges, versions, logprobs = list(PROMPT), [], [-1] * len(PROMPT), [0.0] * len(PROMPT)
    made = 0
    if start is not None:
        for i, (begin, end) in enumerate(start["action_ranges"]):
            whole = end - begin <= n_given - made
            following = start["action_ranges"][i + 1][0] if i + 1 < len(start["action_ranges"]) else None
            cut = following if whole else begin + n_given - made
            tokens, versions, logprobs = (
                start[name][:cut] for name in ("observation_tokens", "versions", "rollout_log_probs")
            )
            made += min(end - begin, n_given - made)
            ranges.append((begin, min(end, len(tokens))))
            if made == n_given:
                break
        if not whole:  # goes on within the answer
            ranges.pop()
    n_turns = rng.randint(1, 3)
    for turn in range(n_turns):
        first = ranges_start = len(tokens)
        if start is not None and turn == 0 and not whole:
            first = begin
        for _ in range(rng.randint(1, 5)):
            tokens.append(rng.randrange(10**9))
            versions.append(rng.choice([-2, 0, 3]))
            logprobs.append(-rng.random())
        assert len(tokens) > ranges_start
        ranges.append((first, len(tokens)))
        for _ in range(rng.randint(0 if turn == n_turns - 1 else 1, 3)):
            tokens.append(rng.randrange(10**9))
            versions.append(-1)
            logprobs.append(0.0)
    return {
        "observation_tokens": tokens,
        "action_ranges": ranges,
        "versions": versions,
        "rollout_log_probs": logprobs,
        "reward": float(rng.random() < 0.5),
        "tree": {"parent": parent, "n_given": n_given},
    }


def actions(one: Response) -> list[int]:
    return [token for start, end in one["action_ranges"] for token in one["observation_tokens"][start:end]]


def group(seed: int, *, segments: bool) -> list[Response]:
    rng = random.Random(seed)
    bare = [response(rng) for _ in range(rng.randint(1, 3))]
    bare[0]["tree"]["notes"] = {"unspent": 1}
    continued = []
    for _ in range(rng.randint(0, 6)):
        parent = rng.randrange(len(bare))
        lengths = [end - start for start, end in bare[parent]["action_ranges"]]
        places = list(range(1, sum(lengths))) if segments else [sum(lengths[:i]) for i in range(1, len(lengths))]
        if places:
            continued.append(response(rng, bare[parent], parent=parent, n_given=rng.choice(places)))
    return bare + continued


groups = st.builds(lambda seed, segments: group(seed, segments=segments), st.integers(0, 10**6), st.booleans())


@given(groups)
def test_a_leaf_is_its_response_and_every_generated_token_is_there_once(responses):
    found = grown("g", responses, key="7")
    for leaf, one in zip(found.leaves, responses, strict=True):
        assert found.tree.tokens(leaf) == one["observation_tokens"]
        assert found.tree.nodes[leaf].reward == one["reward"]
    own = [token for one in responses for token in actions(one)[one["tree"]["n_given"] :]]
    assert sorted(own) == sorted(token for node in found.tree.nodes for token in node.action)
    assert found.tree.n_generated == len(own) and sorted(found.leaves) == found.tree.leaves()
    assert found.notes == {"unspent": 1} and found.key == "7"


@given(groups)
def test_nodes_keep_versions_and_logprobs(responses):
    found = grown("g", responses, key="7")
    for leaf, one in zip(found.leaves, responses, strict=True):
        path = [found.tree.nodes[i] for i in found.tree.path(leaf)]
        at = [i for start, end in one["action_ranges"] for i in range(start, end)]
        assert [x for node in path for x in node.logprobs] == [one["rollout_log_probs"][i] for i in at]
        versions = [one["versions"][i] for i in at]
        assert [x for node in path for x in node.versions] == [v if v >= 0 else None for v in versions]


@given(groups, st.sampled_from(["tree_rpo", "tree_grpo", "grpo"]))
def test_rows_fit_the_responses_and_tree_rpo_trains_every_token_once(responses, credit):
    found = grown("g", responses, key="7")
    rows = found.rows(TraceConfig(credit=credit))
    assert [row.leaf for row in rows] == list(found.leaves)
    trained = []
    for row, one in zip(rows, responses, strict=True):
        made = actions(one)
        assert len(row.advantages) == len(row.mask) == len(made)
        trained += [token for token, kept in zip(made, row.mask, strict=True) if kept]
    if credit == "tree_rpo":
        assert sorted(trained) == sorted({token for one in responses for token in actions(one)})
    else:
        assert len(trained) == sum(len(actions(one)) for one in responses)


@given(groups)
def test_prefixes_are_found_and_turns_count_whole_answers(responses):
    found = grown("g", responses, key="7")
    for one in responses:
        place = one["tree"]
        if place["parent"] is None:
            continue
        node = found.prefix_at(place["parent"], place["n_given"])
        n = sum(len(found.tree.nodes[i].action) for i in found.tree.path(node))
        assert n == place["n_given"]
        parent = responses[place["parent"]]
        lengths = [end - start for start, end in parent["action_ranges"]]
        whole = sum(sum(lengths[: i + 1]) <= n for i in range(len(lengths)))
        assert len(found.ends.intersection(found.tree.path(node))) == whole
    root, below = found.examples(TraceConfig(), lambda tokens: " ".join(map(str, tokens)), prompt="as in the data set")
    # A prompt is learnt by the text that it is scored by, whatever the agent puts before its first turn.
    assert all(example.anchor.text == serialise("as in the data set", turn=0) for example in root)
    assert len(root) == (len(responses) > 1)
    rewards = [one["reward"] for one in responses]
    assert all(example.target == pytest.approx(sum(rewards) / len(rewards)) for example in root)
    places = {(one["tree"]["parent"], one["tree"]["n_given"]) for one in responses if one["tree"]["n_given"]}
    assert len(below) >= len(places)
    assert all(example.anchor.key == "7" for example in root + below)


def test_turns_of_examples_leave_out_unfinished_answers():
    rng = random.Random(1)
    one = response(rng)
    while len(one["action_ranges"]) != 2 or any(end - start < 3 for start, end in one["action_ranges"]):
        one = response(rng)
    first, second = (end - start for start, end in one["action_ranges"])
    places = [1, first, first + 1]
    found = grown("g", [one, *[response(rng, one, parent=0, n_given=n) for n in places]], key="7")
    _, below = found.examples(TraceConfig(), lambda tokens: "x", prompt="")
    turns = {found.prefix_at(0, n): turn for n, turn in zip(places, [0, 1, 1], strict=True)}
    nodes = sorted(turns)
    assert [example.anchor.turn for example in below] == [turns[node] for node in nodes]


def test_a_continuation_without_tokens_of_its_own_is_refused():
    rng = random.Random(0)
    one = response(rng)
    copy = one | {"tree": {"parent": 0, "n_given": len(actions(one))}}
    with pytest.raises(ValueError, match="no token of its own"):
        grown("g", [one, copy], key="7")


def test_a_branch_where_the_parent_has_no_token_is_refused():
    rng = random.Random(0)
    one = response(rng)
    n = len(actions(one))
    far = response(rng)
    far["tree"] = {"parent": 0, "n_given": n + 1}
    with pytest.raises(ValueError, match="where no node ends"):
        grown("g", [one, far], key="7")


def test_an_empty_first_answer_loses_no_token():
    """The environment's words behind it belong to what the tree begins with."""
    one = {
        "observation_tokens": [1, 2, 3, 9, 9, 5, 6],
        "action_ranges": [(3, 3), (5, 7)],
        "versions": [-1] * 5 + [0, 0],
        "rollout_log_probs": [0.0] * 5 + [-1.0, -2.0],
        "reward": 1.0,
        "tree": {"parent": None, "n_given": 0},
    }
    found = grown("g", [one], key="7")
    assert found.tree.tokens(found.leaves[0]) == one["observation_tokens"]
