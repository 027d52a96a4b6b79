"""The log's line about trees, from groups made by hand: what it says, and that it stays small."""

import json
from typing import Any

import pytest

from openrlhf.trainer.tree.grown import GrownTree, grown
from openrlhf.trainer.tree.tree_log import MAX_NODES, MAX_TEXT, tree_line
from trace_alloc.config import TraceConfig

CONFIG = TraceConfig(denominator="none")


def response(turns: list[int], reward: float, *, parent: int | None = None, n_given: int = 0) -> dict[str, Any]:
    """Turns of so many generated tokens, one token of the environment after each but the last."""
    tokens, ranges = [1, 2], []
    for n in turns:
        ranges.append((len(tokens), len(tokens) + n))
        tokens += [7] * n + [9]
    return {
        "observation_tokens": tokens[:-1],
        "action_ranges": ranges,
        "versions": [0] * len(tokens),
        "rollout_log_probs": [-1.0] * len(tokens),
        "reward": reward,
        "tree": {"parent": parent, "n_given": n_given},
    }


def tree(key: str = "5") -> GrownTree:
    """Two bare rollouts, a right one of turns with 2, 3 and 4 tokens and a wrong one; two continuations of the first
    after its first turn, one right and one wrong."""
    responses = [
        response([2, 3, 4], 1.0),
        response([2, 2], 0.0),
        response([2, 1], 1.0, parent=0, n_given=2),
        response([2, 5], 0.0, parent=0, n_given=2),
    ]
    responses[0]["tree"]["notes"] = {"predicted": 0.25, "anchors": [[0, 2, 0.75]]}
    return grown(f"0:{key}.0", responses, key=key)


def line(*trees: GrownTree, config: TraceConfig = CONFIG, seed: int = 1) -> dict[str, Any]:
    return tree_line(trees, config=config, decode=lambda tokens: "x" * len(tokens), seed=seed)


def test_where_the_budget_went_and_what_was_predicted():
    found = line(tree(), tree("6"))
    assert found["prompts"] == [[2, 0.25, 0.5]] * 2
    assert found["prefixes"] == [[1, 2 / 9, 2, 0.75, 0.5]] * 2


def test_a_tree_to_look_at():
    drawn = line(tree())["tree"]
    assert (drawn["prompt_id"], drawn["predicted"], drawn["value"]) == ("5", 0.25, 0.5)
    nodes = drawn["nodes"]
    assert [node["n_tokens"] for node in nodes] == [2, 3, 4, 2, 2, 1, 5]
    assert [node["parent"] for node in nodes] == [-1, 0, 1, -1, 3, 0, 0]
    assert [node["reward"] for node in nodes] == [None, None, 1.0, None, 0.0, 1.0, 0.0]
    assert [node["bare"] for node in nodes] == [True] * 5 + [False] * 2
    assert [node["predicted"] for node in nodes] == [0.75] + [None] * 6
    assert nodes[0]["value"] == pytest.approx(2 / 3) and nodes[0]["text"] == "xx"


@pytest.mark.parametrize("credit", ["tree_rpo", "tree_grpo", "grpo"])
def test_advantages_are_those_of_the_rows(credit):
    config = TraceConfig(denominator="none", credit=credit)
    nodes = line(tree(), config=config)["tree"]["nodes"]
    rows = tree().rows(config)
    assert [nodes[at]["advantage"] for at in (2, 4, 5, 6)] == pytest.approx([row.advantages[-1] for row in rows])
    shared = [row.advantages[0] for row in rows if row.leaf != 4 and row.mask[0]]
    assert nodes[0]["advantage"] == pytest.approx(sum(shared) / len(shared))


def test_the_line_stays_small_whatever_the_trees():
    wide = [response([1], 0.0) for _ in range(MAX_NODES + 1)]
    assert line(grown("0:1.0", wide, key="1"))["tree"] is None
    long = grown("0:2.0", [response([MAX_TEXT + 50], 1.0)], key="2")
    assert len(line(long)["tree"]["nodes"][0]["text"]) == MAX_TEXT
    assert len(json.dumps(line(*[tree()] * 64))) < 12_000
    assert line() == {"prompts": [], "prefixes": [], "tree": None}


def test_mixed_trees_with_continuations_are_shown_first():
    plain = grown("0:8.0", [response([2], 1.0), response([2], 0.0)], key="8")
    assert {line(plain, tree(), plain, seed=seed)["tree"]["prompt_id"] for seed in range(20)} == {"5"}
    both = {line(tree("1"), tree("2"), seed=seed)["tree"]["prompt_id"] for seed in range(20)}
    assert both == {"1", "2"}
