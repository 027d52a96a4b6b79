"""Groups as records and as bytes: what goes in comes out, and nothing in the bytes can run."""

import io
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.fully_async.payload import finish, group_records, pack, scores, unpack
from openrlhf.trainer.fully_async.trajectory_recorder import NOT_GENERATED, UNKNOWN
from pace.prompts import Lease

LEASE = Lease(group_id="0:3.1", prompt_id="0:3", index=3, episode=0, attempt=1)
float32s = st.floats(-100, 0, width=32)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def response(fake: Any, text: str = "ppab", *, prompt: int = 2, **fields: Any) -> dict[str, Any]:
    """What an executor returns for `text`, of which all but `prompt` tokens were generated."""
    tokens = fake.codes(text)
    return {
        "prompt": text[:prompt],
        "label": "l",
        "images": None,
        "mm_train_inputs": None,
        "reward": 1.0,
        "scores": 1.0,
        "observation_tokens": tokens,
        "action_ranges": [(prompt, len(tokens))],
        "rollout_log_probs": None,
        "truncated": False,
        "extra_logs": {},
    } | fields


@st.composite
def responses(draw: Any) -> dict[str, Any]:
    n = draw(st.integers(1, 8))
    numbers = lambda elements: st.lists(elements, min_size=n, max_size=n)  # noqa: E731
    start = draw(st.integers(0, n))
    images = st.none() | st.dictionaries(st.sampled_from(["pixel_values", "a.b", "image_grid_thw"]), st.integers(1, 3))
    pixels = draw(images)
    return {
        "prompt": draw(st.text(max_size=9)),
        "label": draw(plain),
        "observation_tokens": draw(numbers(st.integers(0, 2**31 - 1))),
        "versions": draw(numbers(st.integers(-2, 10**6))),
        "rollout_log_probs": draw(st.none() | numbers(float32s)),
        "action_ranges": [[start, n]],
        "reward": draw(st.none() | st.floats()),
        "truncated": draw(st.booleans()),
        "extra_logs": draw(st.dictionaries(st.text(max_size=5), plain, max_size=3)),
        "mm_train_inputs": pixels and {key: torch.arange(6.0).reshape(-1, size) for key, size in pixels.items()},
    }


@given(st.lists(responses(), max_size=3))
def test_any_responses_come_back_as_they_were(group):
    back = unpack(pack(group))
    assert len(back) == len(group)
    for before, after in zip(group, back, strict=True):
        before, after = dict(before), dict(after)
        pixels, copies = before.pop("mm_train_inputs") or {}, after.pop("mm_train_inputs") or {}
        assert pixels.keys() == copies.keys()
        assert all(torch.equal(pixels[key], copies[key]) for key in pixels)
        if before["reward"] is not None and math.isnan(before["reward"]):
            assert math.isnan(after.pop("reward")) and math.isnan(before.pop("reward"))
        assert after == before


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (torch.tensor([0.5]), 0.5),
        (torch.tensor(2), 2),
        (torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16), [1.0, 0.0]),
        (np.float32(0.25), 0.25),
        (np.array([1, 2]), [1, 2]),
        (np.bool_(True), True),
        (True, True),
        ((1, (2,)), [1, [2]]),
        ({1: torch.tensor([1.5])}, {"1": 1.5}),
    ],
    ids=repr,
)
def test_numbers_of_any_kind_are_plain_ones_afterwards(fake, value, comes_back):
    (back,) = unpack(pack([response(fake, reward=value, extra_logs={"x": value})]))
    assert back["reward"] == comes_back and back["extra_logs"] == {"x": comes_back}
    assert type(back["reward"]) is type(comes_back)


def test_pixels_keep_their_shape_and_type(fake):
    inputs = {
        "pixel_values": torch.rand(4, 3, requires_grad=True),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
        "mask": torch.tensor([True, False]),
        "half": torch.rand(2, 2).bfloat16(),  # NumPy has no such type
        "none": torch.empty(0, 3),
    }
    first, second = unpack(pack([response(fake, mm_train_inputs=inputs), response(fake, mm_train_inputs={})]))
    for key, tensor in inputs.items():
        assert torch.equal(first["mm_train_inputs"][key].to(tensor.dtype), tensor), key
    assert first["mm_train_inputs"]["mask"].dtype is torch.bool
    assert first["mm_train_inputs"]["half"].dtype is torch.float32
    assert second["mm_train_inputs"] == {}


def test_images_travel_as_references_only(fake):
    """A data set may hold them decoded; the trainer needs the pixel tensors alone."""
    loaded = object()
    kept = [
        unpack(pack([response(fake, images=images)]))[0]["images"]
        for images in (None, "a.png", ["a.png", loaded, "b.png"], [loaded], loaded)
    ]
    assert kept == [None, ["a.png"], ["a.png", "b.png"], None, None]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_logs": {"deep": {"er": object()}}}, "extra_logs.deep.er is a object"),
        ({"label": {1, 2}}, "label is a set"),
        ({"mm_train_inputs": {"pixel_values": [1.0]}}, "mm_train_inputs.pixel_values is a list"),
        ({"mine": lambda: None}, "mine is a function"),
    ],
)
def test_what_cannot_travel_is_named_already_when_the_trajectory_ends(fake, fields, named):
    """So that it counts as this trajectory's failure, not as one of the engine."""
    odd = response(fake, **fields)
    with pytest.raises(TypeError, match=named):
        pack([odd])
    with pytest.raises(TypeError, match=named):
        finish(odd, fake.recorded(("pp", "ab", [0, 0])), completed_version=0, name="t")


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


def saved(**arrays: Any) -> bytes:
    block = io.BytesIO()
    np.savez(block, **arrays)
    return block.getvalue()


META = np.frombuffer(json.dumps([{}]).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "block",
    [
        pickle.dumps(Evil()),
        saved(**{"meta": META, "0.versions": np.array([Evil()], dtype=object)}),
        saved(meta=np.array([Evil()], dtype=object)),
        saved(**{"meta": META, "0.mm.x": np.array([Evil()], dtype=object)}),
        saved(**{"meta": META, "1.versions": np.zeros(1)}),
        saved(**{"meta": META, "nonsense": np.zeros(1)}),
        saved(x=np.zeros(1)),
        saved(meta=np.frombuffer(b"{", dtype=np.uint8)),
        b"",
        b"PK\x03\x04",
        saved(meta=META)[:-30],
    ],
    ids=["pickle", "array", "meta", "pixels", "index", "key", "other", "json", "empty", "zip", "cut"],
)
def test_bytes_that_pack_did_not_make_are_refused_and_run_nothing(block):
    with pytest.raises(ValueError):
        unpack(block)


def test_a_block_holds_no_pickle(fake):
    block = pack([response(fake, reward=torch.tensor([1.0]), mm_train_inputs={"p": torch.rand(2)})])
    with np.load(io.BytesIO(block), allow_pickle=False) as arrays:
        assert {array.dtype.hasobject for array in arrays.values()} == {False}


# Records


def test_a_finished_response_carries_versions_and_logprobs(fake):
    recorder = fake.recorded(("pp", "ab", [4, 5]))
    done = finish(response(fake), recorder, completed_version=6, name="t")
    assert done.response["versions"] == [NOT_GENERATED, NOT_GENERATED, 4, 5]
    assert done.response["rollout_log_probs"] == pytest.approx([0, 0, -0.01, -0.02])
    assert done.versions == {4, 5}
    own = finish(response(fake, rollout_log_probs=[0.0, 0.0, -3.0, -4.0]), recorder, completed_version=6, name="t")
    assert own.response["rollout_log_probs"] == [0.0, 0.0, -3.0, -4.0], "an executor may know better"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action_ranges": []}, "no generated token"),
        ({"action_ranges": [(4, 9)]}, "no generated token"),
        ({"rollout_log_probs": [0.0]}, "1 rollout_log_probs for 4 tokens"),
    ],
)
def test_a_response_that_cannot_be_trained_on_is_refused(fake, fields, message):
    with pytest.raises(ValueError, match=message):
        finish(response(fake, **fields), fake.recorded(("pp", "ab", [0, 0])), completed_version=0, name="t")


def test_the_numbers_of_a_group(fake):
    recorder = fake.recorded(("pp", "ab", [4, 5]), ("ppabtt", "c", [5]))
    recorder.score = 0.25
    first = finish(
        response(fake, "ppabttc", action_ranges=[(2, 4), (6, 7)], reward=torch.tensor([2.0]), scores=0.2),
        recorder,
        completed_version=6,
        name="t0",
    )
    odd = fake.recorded(("pp", "xy", [1, 1]))
    second = finish(response(fake, "ppXy", scores=None, reward=0.5), odd, completed_version=5, name="t1")
    third = finish(response(fake, scores=None, reward=None), odd, completed_version=7, name="t2")
    group, kept = group_records([first, second, third], lease=LEASE, ready_version=7)

    assert (group.group_id, group.prompt_id, group.attempt, group.ready_version) == ("0:3.1", "0:3", 1, 7)
    a, b, c = group.trajectories
    assert [(span.version, span.n_tokens) for span in a.spans] == [(4, 1), (5, 2)]
    assert (a.reward, a.solved, a.length, a.prefix_score, a.completed_version) == (2.0, False, 5, 0.25, 6)
    assert [(span.version, span.n_tokens) for span in b.spans] == [(None, 2)], "unknown, not version 0"
    assert (b.reward, b.solved, b.length, b.prefix_score) == (0.5, True, 2, None)
    assert (c.reward, c.solved) == (None, None)
    assert group.n_tokens == 7 and scores(kept) == (0.2, 0.5, None)
    assert [r["versions"].count(UNKNOWN) for r in unpack(pack(kept))] == [0, 2, 2]


@given(st.lists(st.sampled_from([None, 0.0, 0.49, 0.5, 1.0]), min_size=1, max_size=4), st.booleans())
def test_scores_come_in_every_form_upstream_takes(fake, values, as_tensors):
    made = [torch.tensor([value]) if as_tensors and value is not None else value for value in values]
    assert scores([{"scores": value, "reward": None} for value in made]) == pytest.approx(tuple(values))
