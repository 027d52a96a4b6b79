"""What happens inside the policy's actors: the loss that the flags ask for, and a scaled learning rate."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from openrlhf.trainer.losses.decoupled import DecoupledPpoLoss
from openrlhf.trainer.losses.m2po import M2poForm, M2poLoss
from openrlhf.trainer.ray import policy_side
from openrlhf.trainer.ray.policy_side import learning_rate_scaled, make_loss
from pace.config import PaceConfig


def make_args(mode: str = "token-mean") -> Any:
    return SimpleNamespace(
        actor=SimpleNamespace(loss_agg_mode=mode, eps_clip_low_high=(0.1, 0.3), dual_clip=2.0, policy_loss_type="ppo")
    )


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_flags_choose_the_loss(mode):
    token_level = mode == "token-mean"
    assert make_loss(make_args(mode), PaceConfig()) is None
    decoupled = make_loss(make_args(mode), PaceConfig(loss="decoupled", behaviour_cap=3.0))
    assert isinstance(decoupled, DecoupledPpoLoss) and decoupled.token_level is token_level
    assert (decoupled.clip_low, decoupled.clip_high, decoupled.dual_clip) == (0.1, 0.3, 2.0)
    assert decoupled.behaviour_cap == 3.0
    for name, form in (("m2po", M2poForm.CLIP), ("m2po_mask", M2poForm.MASK)):
        loss = make_loss(make_args(mode), PaceConfig(loss=name, m2_budget=0.1))
        assert isinstance(loss, M2poLoss) and loss.form is form
        assert loss.budget == 0.1 and loss.token_level is token_level


def test_every_choice_of_the_flag_has_a_loss():
    choices = PaceConfig.__dataclass_fields__["loss"].metadata["knob"].choices
    chosen = [make_loss(make_args(), PaceConfig(loss=name)) for name in choices]
    assert [loss is None for loss in chosen] == [name == "upstream" for name in choices]


def optimizer(*rates: float) -> torch.optim.SGD:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def rates(optim: Any) -> list[float]:
    return [group["lr"] for group in optim.param_groups]


def update(optim: Any, *, gradient: float = 1.0) -> None:
    for group in optim.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, gradient)
    optim.step()


def test_the_step_of_every_group_is_scaled_and_the_rate_is_as_before():
    optim = optimizer(0.1, 0.4)
    with learning_rate_scaled(optim, 0.25):
        update(optim)
    assert [group["params"][0][0].item() for group in optim.param_groups] == pytest.approx([-0.025, -0.1])
    assert rates(optim) == [0.1, 0.4]


def test_the_rate_is_as_before_also_after_an_error():
    optim = optimizer(0.1)
    with pytest.raises(RuntimeError), learning_rate_scaled(optim, 0.5):
        raise RuntimeError
    assert rates(optim) == [0.1]


SCHEDULERS = {
    "constant": {},
    "constant_with_warmup": {"num_warmup_steps": 4},
    "linear": {"num_warmup_steps": 3, "num_training_steps": 12},
    "cosine": {"num_warmup_steps": 2, "num_training_steps": 12},
    "cosine_with_min_lr": {
        "num_warmup_steps": 2,
        "num_training_steps": 12,
        "scheduler_specific_kwargs": {"min_lr": 0.01},
    },
}


@pytest.mark.parametrize("factor", [0.3, 1.0])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_within_goes_on_as_if_nothing_was_scaled(name, factor):
    """Upstream's schedulers step right after the optimizer, so within the scaled part."""
    scaled, plain = optimizer(0.1), optimizer(0.1)
    schedules = [get_scheduler(name, optim, **SCHEDULERS[name]) for optim in (scaled, plain)]
    for _ in range(12):
        before, start = rates(plain)[0], scaled.param_groups[0]["params"][0][0].item()
        with learning_rate_scaled(scaled, factor):
            update(scaled)
            schedules[0].step()
        update(plain)
        schedules[1].step()
        assert scaled.param_groups[0]["params"][0][0].item() - start == pytest.approx(-before * factor, abs=1e-7)
        assert rates(scaled) == rates(plain)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), max_size=12))
def test_micro_batches_without_a_step_change_nothing(micro_batches):
    """The scaled part is a micro-batch; only some of them end with an update."""
    scaled, plain = optimizer(0.1), optimizer(0.1)
    schedules = [LambdaLR(optim, lambda step: min(1.0, (step + 1) / 5)) for optim in (scaled, plain)]
    for factor, steps in micro_batches:
        with learning_rate_scaled(scaled, factor):
            if steps:
                update(scaled, gradient=0.0)
                schedules[0].step()
        if steps:
            update(plain, gradient=0.0)
            schedules[1].step()
        assert rates(scaled) == rates(plain)


# In the actor


class FakeSender:
    """Stands for the sending side of a weight sync."""

    staged = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def connect(self, *, n_engines: int, engine_size: int) -> list[dict[str, Any]]:
        self.calls.append("connect")
        return [{"engine": i, "size": engine_size} for i in range(n_engines)]

    def stage(self) -> None:
        self.calls.append("stage")

    def update_infos(self) -> list[dict[str, Any]]:
        return [{"bucket": 0}] if "stage" in self.calls else []

    def send(self) -> None:
        self.calls.append("send")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def actor(monkeypatch):
    """Upstream's policy actor, as far as these functions look at it."""
    sender = FakeSender()
    monkeypatch.setattr(policy_side, "WeightSource", lambda *_, **settings: SimpleNamespace(**settings))
    monkeypatch.setattr(policy_side, "make_sender", lambda source: sender)
    optim = optimizer(0.1)
    args = make_args()
    args.ds = SimpleNamespace(zero_stage=3, tensor_parallel_size=1)
    trainer = SimpleNamespace(
        actor=SimpleNamespace(model=SimpleNamespace(module=None)),
        actor_loss_fn="upstream's",
        training_step=lambda *_, **__: rates(optim)[0],
    )
    return SimpleNamespace(strategy=SimpleNamespace(args=args), trainer=trainer, actor_optim=optim)


def test_without_flags_the_actor_trains_as_upstreams(actor):
    step = actor.trainer.training_step
    policy_side.prepare(actor, PaceConfig())
    assert actor.trainer.actor_loss_fn == "upstream's" and actor.trainer.training_step is step


def test_the_flags_reach_the_actor(actor):
    policy_side.prepare(actor, PaceConfig(loss="m2po", ess_step_size=True))
    assert isinstance(actor.trainer.actor_loss_fn, M2poLoss)
    assert actor.trainer.training_step() == pytest.approx(0.1)
    policy_side.set_step_scale(actor, 0.5)
    assert actor.trainer.training_step() == pytest.approx(0.05) and rates(actor.actor_optim) == [0.1]


class FakeDeepSpeed:
    """The batch sizes of a DeepSpeed engine on eight ranks, which accept multiples of micro-batches on all of them."""

    def __init__(self, micro: int, batch: int) -> None:
        self.micro, self.batch = micro, batch

    def train_batch_size(self) -> int:
        return self.batch

    def set_train_batch_size(self, batch: int) -> None:
        assert batch > 0 and batch % (8 * self.micro) == 0
        self.batch = batch

    def gradient_accumulation_steps(self) -> int:
        return self.batch // (8 * self.micro)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("ranks_per_row", [1, 2])
def test_any_number_of_rows_is_trained_in_as_many_steps(dynamic, ranks_per_row):
    """Upstream makes the engine of dynamic batches with one micro-batch of one row per rank, whatever the batch is."""
    engine = FakeDeepSpeed(1, 8) if dynamic else FakeDeepSpeed(2, 512 * ranks_per_row)
    args = SimpleNamespace(
        train=SimpleNamespace(batch_size=512, dynamic_batch_enable=dynamic),
        rollout=SimpleNamespace(batch_size=64, n_samples_per_prompt=16),
    )
    before = 1 if dynamic else engine.gradient_accumulation_steps()
    actor = SimpleNamespace(
        strategy=SimpleNamespace(args=args, accumulated_gradient=before),
        trainer=SimpleNamespace(actor=SimpleNamespace(model=engine)),
    )
    for n_rows in (640, 1280, 320):
        policy_side.set_batch_rows(actor, n_rows, 2)
        assert args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size == 2
        steps = 1 if dynamic else n_rows // 2 * ranks_per_row // (8 * 2)
        assert actor.strategy.accumulated_gradient == engine.gradient_accumulation_steps() == steps


def test_weights_are_staged_sent_and_removed(actor):
    policy_side.prepare(actor, PaceConfig())
    assert len(policy_side.connect_weights(actor, n_engines=2, engine_size=1)) == 2
    assert policy_side.stage_weights(actor) == [{"bucket": 0}] and policy_side.weights_are_staged(actor)
    policy_side.send_weights(actor)
    policy_side.close_weights(actor)
    assert actor.pool.sender.calls == ["connect", "stage", "send", "close"]


def test_functions_run_on_every_rank():
    calls: list[Any] = []

    def handle(rank: int) -> Any:
        remote = lambda function, *args, **kwargs: calls.append((rank, function, args, kwargs)) or rank  # noqa: E731
        return SimpleNamespace(__ray_call__=SimpleNamespace(remote=remote))

    group = SimpleNamespace(_actor_handlers=[handle(0), handle(1)])
    assert policy_side.on_ranks(group, policy_side.set_step_scale, 0.5) == [0, 1]
    assert calls == [(rank, policy_side.set_step_scale, (0.5,), {}) for rank in (0, 1)]
