"""The predictor as a language model, on a random model that reads bytes."""

import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from openrlhf.trainer.tree.lm_predictor import LMPredictor, micro_batches
from trace_alloc.predictor import Anchor, ConstantPredictor, Example, Predictor, UpdateReport
from trace_alloc.serialisation import TurnText, serialise

LR = 3e-3


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads gain nothing on so small a model, and wait for each other where the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model and its tokenizer, one token per byte."""
    path = tmp_path_factory.mktemp("predictor")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<pad>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(path)
    config = Qwen3Config(
        vocab_size=len(alphabet) + 1,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=24,
        max_position_embeddings=512,
        attention_dropout=0.1,  # so that the random numbers of an update matter
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def make(folder: Path) -> Callable[..., LMPredictor]:
    return lambda **settings: LMPredictor(folder, **{"lr": LR, **settings})


def root(prompt: str) -> Anchor:
    return Anchor(key=prompt, turn=0, text=serialise(prompt, turns_left=5))


def problems(n: int, seed: int) -> list[Example]:
    """Sums that go well when their numbers are small; a prefix goes well when the tool did not fail."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        easy = rng.random() < 0.5
        low, high = (1, 9) if easy else (1000, 9999)
        prompt = f"{rng.randint(low, high)} + {rng.randint(low, high)} ="
        turns = [TurnText(action=" <call>", observation="ok" if easy else "error")] if i % 8 == 0 else []
        anchor = Anchor(key=prompt, turn=len(turns), text=serialise(prompt, turns, turns_left=5 - len(turns)))
        found.append(Example(anchor=anchor, target=rng.choice([0.75, 1.0]) if easy else rng.choice([0.0, 0.25])))
    return found


def error(predictor: Predictor, examples: list[Example]) -> float:
    scores = predictor.score([e.anchor for e in examples])
    return sum((v - e.target) ** 2 for v, e in zip(scores, examples, strict=True)) / len(examples)


def weights(predictor: LMPredictor) -> dict[str, torch.Tensor]:
    return predictor.state_dict()["model"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def break_weights(predictor: LMPredictor, value: float) -> None:
    with torch.no_grad():
        predictor._model.score.bias.fill_(value)


def test_it_starts_at_exactly_one_half(make):
    predictor = make()
    assert predictor.score([root("1 + 1 ="), root("x" * 300), Anchor(key="", turn=0, text="")]) == [0.5] * 3
    assert all(parameter.dtype == torch.float32 for parameter in predictor._model.parameters())


def test_nothing_in_nothing_out(make):
    predictor = make()
    before = weights(predictor)
    assert predictor.score([]) == [] and predictor.update([]) == UpdateReport(loss=None, n=0)
    assert same(weights(predictor), before) and set(predictor.counters.values()) == {0}


def test_it_learns_what_is_learnable(make):
    predictor, held_out = make(), problems(100, seed=1)
    reports = [predictor.update(problems(64, seed=10 + step)) for step in range(20)]
    constant = error(ConstantPredictor(), held_out)
    assert reports[0].loss == pytest.approx(error(ConstantPredictor(), problems(64, seed=10)))
    assert error(predictor, held_out) < constant / 4 and reports[-1].loss < constant / 4
    scores = predictor.score([root("2 + 3 ="), root("2345 + 6789 =")])
    assert scores[0] > 0.7 and scores[1] < 0.3
    assert predictor.counters == {"updates": 20, "steps": 20, "skipped_steps": 0, "replaced_scores": 0}


def test_one_example_is_learnt_and_reported(make):
    predictor = make()
    assert predictor.update([Example(anchor=root("1"), target=1.0)]) == UpdateReport(loss=0.25, n=1)
    assert 0.5 < predictor.score([root("1")])[0] <= 1.0


def test_batches_of_an_update(make):
    predictor = make(batch_size=64)
    report = predictor.update(problems(130, seed=0))
    assert report.n == 130 and report.n_skipped == 0 and predictor.counters["steps"] == 3


def test_scores_do_not_depend_on_who_is_scored_along(make):
    predictor = make(tokens_per_pass=150)
    predictor.update(problems(64, seed=0))
    anchors = [e.anchor for e in problems(20, seed=3)] + [root("y" * 200)]
    together = predictor.score(anchors)
    assert len(set(together)) > 10
    assert predictor.score(anchors[::-1]) == pytest.approx(together[::-1], abs=1e-6)
    assert [predictor.score([a])[0] for a in anchors] == pytest.approx(together, abs=1e-6)


def test_scoring_changes_nothing(make):
    predictor = make()
    predictor.update(problems(8, seed=0))
    before, anchors = weights(predictor), [root("1 + 1 ="), root("2345 + 1 =")]
    assert predictor.score(anchors) == predictor.score(anchors)
    assert same(weights(predictor), before)
    assert not predictor._model.training and all(p.grad is None for p in predictor._model.parameters())


def test_gradients_add_up_over_passes(make):
    """The tokens that go through the model at once are a matter of memory alone."""
    whole, cut = make(tokens_per_pass=1 << 20, lr=1e-4), make(tokens_per_pass=1, lr=1e-4)
    for module in (whole, cut):
        for layer in module._model.model.layers:
            layer.self_attn.attention_dropout = 0.0
    examples = problems(16, seed=0)
    for _ in range(2):
        assert whole.update(examples).loss == pytest.approx(cut.update(examples).loss, abs=1e-5)
    anchors = [e.anchor for e in examples]
    assert whole.score(anchors) == pytest.approx(cut.score(anchors), abs=1e-4)


def test_the_seed_decides_and_the_process_random_numbers_stay(make):
    before = torch.get_rng_state()
    one, other, third = make(seed=3), make(seed=3), make(seed=4)
    examples, anchors = problems(70, seed=0), [root("1 + 1 =")]
    torch.rand(3)
    moved = torch.get_rng_state()
    for predictor in (one, other, third):
        predictor.update(examples)
        torch.rand(1)
        torch.set_rng_state(moved)
    assert one.score(anchors) == other.score(anchors) != third.score(anchors)
    torch.set_rng_state(before)
    make().update(examples)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_restored_predictor_goes_on_as_the_saved_one(make, tmp_path: Path):
    predictor = make()
    for step in range(3):
        predictor.update(problems(70, seed=step))
    torch.save(predictor.state_dict(), tmp_path / "state.pt")
    other = make()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    anchors = [e.anchor for e in problems(20, seed=9)]
    assert other.score(anchors) == predictor.score(anchors) and other.counters == predictor.counters
    again = problems(70, seed=7)
    assert other.update(again) == predictor.update(again)
    assert same(weights(other), weights(predictor)) and other.score(anchors) == predictor.score(anchors)


def test_a_saved_state_is_not_the_live_one_and_leaves_out_settings(make):
    predictor = make()
    predictor.update(problems(8, seed=0))
    state = predictor.state_dict()
    other = make(lr=0.0)
    other.load_state_dict(state)
    bias = state["model"]["score.bias"].clone()
    predictor.update(problems(8, seed=1))
    assert torch.equal(state["model"]["score.bias"], bias)
    other.update(problems(8, seed=1))
    assert torch.equal(weights(other)["score.bias"], bias)


def test_foreign_states_are_refused_and_change_nothing(make):
    predictor = make()
    predictor.update(problems(8, seed=0))
    before = weights(predictor)

    def spoiled(change: Callable[[dict], object]) -> dict:
        state = predictor.state_dict()
        change(state)
        return state

    name = next(iter(before))
    for state in (
        {},
        spoiled(lambda s: s.pop("optimizer")),
        spoiled(lambda s: s["model"].pop(name)),
        spoiled(lambda s: s["model"].update(more=torch.zeros(1))),
        spoiled(lambda s: s["model"].update({name: torch.zeros(2, 2)})),
        spoiled(lambda s: s["model"].update({name: before[name].double()})),
        spoiled(lambda s: s["model"]["score.bias"].fill_(math.nan)),
        spoiled(lambda s: s["optimizer"].update({10_000: s["optimizer"][0]})),
        spoiled(lambda s: s["optimizer"][0].pop("exp_avg")),
        spoiled(lambda s: s["optimizer"][0]["exp_avg"].fill_(math.inf)),
        spoiled(lambda s: s.update(optimizer=[])),
        spoiled(lambda s: s["counters"].update(steps=-1)),
        spoiled(lambda s: s["counters"].pop("updates")),
    ):
        with pytest.raises(ValueError):
            predictor.load_state_dict(state)
    assert same(weights(predictor), before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_weights_show_nowhere(make, value):
    predictor = make()
    predictor.update(problems(8, seed=0))
    break_weights(predictor, value)
    scores = predictor.score([root("1"), root("2")])
    assert all(0.0 <= score <= 1.0 for score in scores)
    if math.isnan(value):
        assert scores == [0.5, 0.5] and predictor.counters["replaced_scores"] == 2
        before, moments = weights(predictor), predictor.state_dict()["optimizer"]
        report = predictor.update(problems(70, seed=1))
        assert report == UpdateReport(loss=None, n=70, n_skipped=70)
        assert predictor.counters["skipped_steps"] == 2 and predictor.counters["steps"] == 1
        after = predictor.state_dict()["optimizer"]
        assert all(same(after[i], moments[i]) for i in moments)
        before.pop("score.bias")
        assert same({k: v for k, v in weights(predictor).items() if k != "score.bias"}, before)


def test_a_gradient_that_is_not_finite_is_no_step(make):
    predictor = make()
    predictor.update(problems(8, seed=0))
    before = weights(predictor)
    hook = predictor._model.score.weight.register_hook(lambda gradient: gradient * math.inf)
    report = predictor.update(problems(8, seed=1))
    assert report.loss is not None and math.isfinite(report.loss) and (report.n, report.n_skipped) == (8, 8)
    assert same(weights(predictor), before) and predictor.counters["skipped_steps"] == 1
    hook.remove()
    assert predictor.update(problems(8, seed=1)).n_skipped == 0
    assert not same(weights(predictor), before)


def test_gradients_are_clipped_and_weights_do_not_decay(make):
    predictor = make()
    (group,) = predictor._optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (LR, (0.9, 0.999), 0.0)
    predictor.update(problems(8, seed=0))
    predictor._model.score.weight.register_hook(lambda gradient: gradient * 1e6)
    predictor._optimizer.state.clear()
    predictor.update(problems(8, seed=1))
    moments = predictor._optimizer.state.values()
    norm = math.sqrt(sum(float((m["exp_avg"] / (1 - 0.9)).square().sum()) for m in moments))
    assert norm == pytest.approx(1.0, abs=1e-3)


def test_texts_without_end_are_read_at_both_ends_and_fast(make):
    predictor = make(max_tokens=256)
    predictor.update(problems(64, seed=0))
    for filler in ("x", "word ", " ", "\n", "漢", "\ud800"):
        began = time.process_time()
        long = "head" + filler * (10_000_000 // len(filler)) + "tail"
        ids = predictor._encode(long)
        assert len(ids) == 256 and time.process_time() - began < 2
        assert predictor._tokenizer.decode(ids).startswith("head") and predictor._tokenizer.decode(ids).endswith(
            "tail"
        )
        (score,) = predictor.score([Anchor(key="", turn=0, text=long)])
        assert 0.0 <= score <= 1.0
    middle = "h" * 64 + "?" * 1000 + "t" * 192
    assert predictor._tokenizer.decode(predictor._encode(middle)) == "h" * 64 + "t" * 192
    assert predictor.count_tokens(middle) == 1256


def test_a_model_with_few_positions_reads_no_more(make):
    assert len(make(max_tokens=8192)._encode("x" * 5000)) == 512


def test_counting_tokens_fits_the_serialisation(make):
    predictor = make(max_tokens=256)
    turns = [TurnText(action=f" act{k}", observation=" obs" * 50) for k in range(4)]
    text = serialise("question", turns, count_tokens=predictor.count_tokens, max_tokens=256)
    ids = predictor._encode(text)
    assert len(ids) <= 256 and predictor._tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "meta"},
        {"lr": -1.0},
        {"lr": math.nan},
        {"batch_size": 0},
        {"max_tokens": 0},
        {"tokens_per_pass": 0},
    ],
)
def test_impossible_settings_are_refused(make, settings):
    with pytest.raises(ValueError):
        make(**settings)


@pytest.mark.parametrize(
    ("lengths", "room"), [([], 10), ([3, 9, 3, 1, 12, 3], 9), ([5], 1), ([2] * 7, 6), ([0, 0], 1)]
)
def test_micro_batches_hold_each_once_within_the_room(lengths, room):
    groups = micro_batches(lengths, room)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= room for g in groups)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_learns_as_well(make):
    predictor = make(device="cuda")
    assert predictor.score([root("1")]) == [0.5]
    for step in range(20):
        predictor.update(problems(64, seed=10 + step))
    held_out = problems(100, seed=1)
    assert error(predictor, held_out) < error(ConstantPredictor(), held_out) / 4
