"""Random micro-batches for the loss tests, in double precision, and what each case is called."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

Batch = dict[str, Any]


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Keyword arguments of a loss: advantages of all signs, ragged masks. Log-probs differ by about `spread` nats from
    policy to policy. Upstream's loss is NaN unless the padding is a number."""

    def make(
        seed: int,
        *,
        rows: int = 5,
        columns: int = 9,
        spread: float = 0.4,
        dtype: torch.dtype = torch.float64,
        padding: float = math.nan,
    ) -> Batch:
        random = torch.Generator().manual_seed(seed)

        def normal() -> torch.Tensor:
            return torch.randn(rows, columns, generator=random, dtype=torch.float64)

        rollout = -normal().abs() - 0.1
        old = rollout + spread * normal()
        new = old + spread * normal()
        advantages = torch.randint(-1, 2, (rows, 1), generator=random) * (0.5 + normal().abs())
        mask = torch.rand(rows, columns, generator=random) < 0.7
        mask[0, 0] = True
        for values in (new, old, rollout, advantages):
            values[~mask] = padding
        return {
            "log_probs": new.to(dtype).requires_grad_(),
            "old_log_probs": old.to(dtype),
            "advantages": advantages.to(dtype),
            "action_mask": mask,
            "rollout_log_probs": rollout.to(dtype),
        }

    return make


@pytest.fixture(scope="session")
def extreme_batch() -> Callable[..., Batch]:
    """All combinations of log-ratios of -200, 0 and 200 nats between the three policies and of the sign of A; in
    float32, as in training. `cut` leaves no token, one token or all of them."""

    def make(cut: str) -> Batch:
        gaps, signs = torch.tensor([-200.0, 0.0, 200.0]), torch.tensor([-1.5, 0.0, 1.5])
        update, stale, advantages = (x.reshape(9, 3) for x in torch.meshgrid(gaps, gaps, signs, indexing="ij"))
        rollout = torch.full((9, 3), -400.0)
        mask = torch.zeros(9, 3, dtype=torch.bool)
        if cut == "one":
            mask[8, 2] = True
        elif cut == "all":
            mask[:] = True
        return {
            "log_probs": (rollout + stale + update).requires_grad_(),
            "old_log_probs": rollout + stale,
            "advantages": advantages.clone(),
            "action_mask": mask,
            "rollout_log_probs": rollout,
        }

    return make


@pytest.fixture(scope="session")
def loss_and_gradient() -> Callable[..., tuple[tuple[Any, ...], torch.Tensor]]:
    """Runs a loss; returns its five values and the gradient of the first by `log_probs`."""

    def run(loss_fn: torch.nn.Module, batch: Batch, **totals: Any) -> tuple[tuple[Any, ...], torch.Tensor]:
        answer = loss_fn(**batch, **totals)
        (gradient,) = torch.autograd.grad(answer[0], batch["log_probs"])
        return answer, gradient

    return run
