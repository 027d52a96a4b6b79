"""The predictor of TRACE as a language model: upstream's sequence regression, read through a sigmoid.

Invariants: scores are finite and in [0, 1], and before the first update every one is exactly 0.5, because the head
starts at zero. An update whose loss or gradient is not finite changes nothing and is counted; a score that is not
finite becomes 0.5 and is counted. What an update does follows from the state, the examples and the seed alone; the
process's own random numbers are neither used nor moved.

    V(h) = sigmoid(w . z + b),   z the final hidden state at the last token of h
    loss = (1 / n) sum_i (V(h_i) - target_i)^2                                    (paper, section 4 and E.6)

In: anchors and examples of `trace_alloc.predictor`, a folder with a model and its tokenizer. Out: scores, update
reports, a state that loads without unpickling code. Source: paper, E.2 and E.6 (small Qwen3 with a scalar output, lr,
one update a step); head, optimiser, batch and truncation are design (trace.md 5).
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from openrlhf import platforms
from openrlhf.models.model import get_llm_for_sequence_regression
from openrlhf.utils.utils import get_tokenizer
from trace_alloc.predictor import Anchor, Example, State, UpdateReport
from trace_alloc.serialisation import CHARS_PER_TOKEN, HEAD_SHARE, MAX_TOKENS

logger = logging.getLogger(__name__)

BETAS = (0.9, 0.999)
MAX_GRAD_NORM = 1.0
UNKNOWN = 0.5  # what stands in for a score that is not finite: as uncertain as can be
_COUNTERS = ("updates", "steps", "skipped_steps", "replaced_scores")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
Encoded = list[int]


class ScalarHead(nn.Linear):
    """One number per hidden state (..., hidden) -> (..., 1), zero at first, in float32 also under autocast."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1, bias=True, dtype=torch.float32)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logit of each state."""
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())


class LMPredictor:
    """A `trace_alloc.predictor.Predictor` of the model in the folder `model_path`, which may be any causal LM's.

    Weights and optimiser are float32, as steps of 3e-5 are lost in bfloat16; on CUDA the model computes in bfloat16.
    `max_tokens` bounds what is read of a text, as do the model's positions. `tokens_per_pass` bounds the tokens,
    padding included, that go through the model at once; one text always does. `batch_size` is in examples. Not for
    several threads at once: an update has the model in training mode.

    Raises ValueError for a setting out of range or a device other than cpu and cuda, and what loading a model raises.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        lr: float = 3e-5,
        batch_size: int = 64,
        max_tokens: int = MAX_TOKENS,
        tokens_per_pass: int = MAX_TOKENS,
        device: str | torch.device = "cpu",
        seed: int = 0,
        attn_implementation: str = "sdpa",
    ) -> None:
        self._device = torch.device(device)
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(f"the predictor runs on cpu or cuda, not on {self._device}")
        if not 0.0 <= lr < math.inf:
            raise ValueError(f"the learning rate is a number from 0 on, got {lr!r}")
        if min(batch_size, max_tokens, tokens_per_pass) < 1:
            raise ValueError("batch_size, max_tokens and tokens_per_pass are 1 or more")
        self._batch_size, self._tokens_per_pass, self._seed = batch_size, tokens_per_pass, seed
        with self._own_randomness(0):
            self._model = _regression_model(str(model_path), attn_implementation).to(self._device).eval()
        self._tokenizer = get_tokenizer(str(model_path), self._model, "right")
        self._max_tokens = min(max_tokens, getattr(self._model.config, "max_position_embeddings", None) or max_tokens)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=lr, betas=BETAS, weight_decay=0.0)
        self._counters = dict.fromkeys(_COUNTERS, 0)

    @property
    def counters(self) -> dict[str, int]:
        """Since the beginning: calls of `update` with examples (`updates`), optimiser `steps`, `skipped_steps`, and
        `replaced_scores` that were not finite."""
        return dict(self._counters)

    def count_tokens(self, text: str) -> int:
        """The length of a text in the model's tokens, for `trace_alloc.serialisation.serialise`."""
        return len(self._tokens(text))

    def score(self, texts: Sequence[Anchor]) -> list[float]:
        """P(success) of each anchor, in order."""
        encoded = [self._encode(anchor.text) for anchor in texts]
        scores = [UNKNOWN] * len(encoded)
        with torch.no_grad():
            for indices in micro_batches([len(ids) for ids in encoded], self._tokens_per_pass):
                for index, value in zip(indices, self._forward([encoded[i] for i in indices]).tolist(), strict=True):
                    if math.isfinite(value):
                        scores[index] = value
                    else:
                        self._counters["replaced_scores"] += 1
        return scores

    def update(self, examples: Sequence[Example]) -> UpdateReport:
        """One pass over the examples, in batches of `batch_size` drawn anew, with a step of AdamW for each.

        The reported loss of a batch is that before its own step.
        """
        if not examples:
            return UpdateReport(loss=None, n=0)
        encoded = [self._encode(example.anchor.text) for example in examples]
        targets = [float(example.target) for example in examples]
        losses: list[float] = []
        n_learnt = n_measured = 0
        try:
            self._model.train()
            with self._own_randomness(1 + self._counters["updates"]):
                order = torch.randperm(len(examples)).tolist()
                for start in range(0, len(order), self._batch_size):
                    batch = order[start : start + self._batch_size]
                    loss, stepped = self._step([encoded[i] for i in batch], [targets[i] for i in batch])
                    n_learnt += len(batch) if stepped else 0
                    if math.isfinite(loss):
                        losses.append(loss * len(batch))
                        n_measured += len(batch)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            self._model.eval()
        self._counters["updates"] += 1
        mean = math.fsum(losses) / n_measured if n_measured else None
        return UpdateReport(loss=mean, n=len(examples), n_skipped=len(examples) - n_learnt)

    def state_dict(self) -> State:
        """Weights, moments of the optimiser and counters, on the CPU and apart from the live ones.

        Settings (learning rate, batch, seed) are not in it: those of the predictor that loads it hold. Tensors and
        plain data alone, so that a file of it loads with `torch.load(path, weights_only=True)`.
        """
        return {
            "model": {name: _copied(tensor) for name, tensor in self._model.state_dict().items()},
            "optimizer": {
                index: {name: _copied(moments[name]) for name in _MOMENTS}
                for index, moments in self._optimizer.state_dict()["state"].items()
            },
            "counters": self.counters,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict inverse of `state_dict`.

        Raises ValueError, and changes nothing, for a state of another model or with numbers that are not finite.
        """
        _check_keys("the predictor", state, ("model", "optimizer", "counters"))
        _check_tensors("the predictor's model", state["model"], self._model.state_dict())
        parameters = list(self._model.parameters())
        if not isinstance(state["optimizer"], Mapping) or not set(state["optimizer"]) <= set(range(len(parameters))):
            raise ValueError("state of the predictor's optimizer: it is not that of this model")
        for index, moments in state["optimizer"].items():
            like = {"step": torch.zeros(()), "exp_avg": parameters[index], "exp_avg_sq": parameters[index]}
            _check_tensors(f"the optimizer at parameter {index}", moments, like)
        _check_keys("the predictor's counters", state["counters"], _COUNTERS)
        if not all(type(count) is int and count >= 0 for count in state["counters"].values()):
            raise ValueError("state of the predictor's counters: they are integers from 0 on")
        self._model.load_state_dict(state["model"])
        groups = self._optimizer.state_dict()["param_groups"]
        own = {index: {name: _copied(m[name]) for name in _MOMENTS} for index, m in state["optimizer"].items()}
        self._optimizer.load_state_dict({"state": own, "param_groups": groups})
        self._counters = dict(state["counters"])

    def _step(self, encoded: list[Encoded], targets: list[float]) -> tuple[float, bool]:
        """The loss of a batch, and whether a step was made: not when the loss or the gradient is not finite."""
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for indices in micro_batches([len(ids) for ids in encoded], self._tokens_per_pass):
            wanted = torch.tensor([targets[i] for i in indices], dtype=torch.float32, device=self._device)
            loss = (self._forward([encoded[i] for i in indices]) - wanted).square().sum() / len(encoded)
            total += loss.item()
            if not math.isfinite(total):
                break
            loss.backward()
        finite = math.isfinite(total)
        if finite:
            finite = bool(nn.utils.clip_grad_norm_(self._model.parameters(), MAX_GRAD_NORM).isfinite())
        if finite:
            self._optimizer.step()
            self._counters["steps"] += 1
        else:
            self._counters["skipped_steps"] += 1
            logger.warning("the predictor skips a step of %d examples: loss %s or its gradient", len(encoded), total)
        return total, finite

    def _forward(self, encoded: list[Encoded]) -> torch.Tensor:
        """Probabilities (n,), float32, of n texts of one pass, padded on the right."""
        longest = max(map(len, encoded))
        pad = self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*text, *[pad] * (longest - len(text))] for text in encoded], device=self._device)
        lengths = torch.tensor([[len(text)] for text in encoded], device=self._device)
        mask = (torch.arange(longest, device=self._device) < lengths).long()
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = self._model(ids, attention_mask=mask)
        return torch.sigmoid(logits.float())

    def _encode(self, text: str) -> Encoded:
        """The tokens that are read of a text, at least one: of a longer text a quarter from its head, the rest from
        its end, where the newest turns and the closing line are. What lies between is not even tokenized."""
        n_head = int(self._max_tokens * HEAD_SHARE)
        n_tail = self._max_tokens - n_head
        if len(text) <= self._max_tokens * CHARS_PER_TOKEN:
            ids = self._tokens(text)
            if len(ids) > self._max_tokens:
                ids = ids[:n_head] + ids[-n_tail:]
        else:
            head = self._tokens(text[: n_head * CHARS_PER_TOKEN])
            ids = head[:n_head] + self._tokens(text[-n_tail * CHARS_PER_TOKEN :])[-n_tail:]
        return ids or [self._tokenizer.pad_token_id or 0]

    def _tokens(self, text: str) -> Encoded:
        clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no tokens
        ids: Encoded = self._tokenizer(clean, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    @contextlib.contextmanager
    def _own_randomness(self, stream: int) -> Iterator[None]:
        """Torch's random numbers inside are those of the seed and the stream; outside they go on as if nothing was."""
        seed = (self._seed * 1_000_003 + stream) % 2**63
        cuda = self._device.type == "cuda"
        with torch.random.fork_rng(devices=[self._device] if cuda else []):
            torch.default_generator.manual_seed(seed)
            if cuda:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(seed)
            yield


def micro_batches(lengths: Sequence[int], tokens_per_pass: int) -> list[list[int]]:
    """Indices in groups whose padded size is at most `tokens_per_pass`, longest first; a longer one goes alone."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= tokens_per_pass:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _regression_model(path: str, attn_implementation: str) -> nn.Module:
    """Upstream's reward model in float32, its head replaced by a zero one with a bias."""
    dtype = "fp32" if platforms.name() == "cpu" else "bf16"  # what upstream loads there
    model = get_llm_for_sequence_regression(
        path, "reward", param_dtype=dtype, attn_implementation=attn_implementation
    ).float()
    setattr(model, model.value_head_prefix, ScalarHead(model.config.hidden_size))
    return model


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _check_keys(owner: str, state: Any, expected: Sequence[str]) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(f"state of {owner} is a {type(state).__name__}, not a mapping")
    missing, unknown = sorted(set(expected) - set(state)), sorted(map(str, set(state) - set(expected)))
    if missing or unknown:
        raise ValueError(f"state of {owner}: missing {missing[:3]}, unknown {unknown[:3]}")


def _check_tensors(owner: str, state: Any, like: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError unless `state` holds finite tensors of the same names, shapes and types as `like`."""
    _check_keys(owner, state, list(like))
    for name, wanted in like.items():
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor) or tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            raise ValueError(f"state of {owner}: {name} is not a {wanted.dtype} tensor of shape {tuple(wanted.shape)}")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"state of {owner}: {name} has numbers that are not finite")
