"""Draws batches from the pool and trains on them: upstream's experience making, update, logs and checkpoints.

Invariants: step j trains exactly the batch that the pool drew for step j; it is committed after the update and the
weight sync; an evaluation runs between two steps, so it belongs to one policy version, and "best" saves that version.
No wait is silent: a line every PERIOD_S says what is waited for.

In: draws of the pool. Out: policy versions, `pace.jsonl`, upstream's loggers, checkpoints with the pool's state.
"""

import logging
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError
from tqdm import tqdm

from openrlhf.launch.problem import cause
from openrlhf.trainer.fully_async import checkpoint, payload, restarts
from openrlhf.trainer.fully_async.batch import PoolExperienceMaker, to_samples
from openrlhf.trainer.fully_async.heartbeat import PERIOD_S, during
from openrlhf.trainer.fully_async.prompts import PromptData
from openrlhf.trainer.fully_async.run_log import RunLog
from openrlhf.trainer.fully_async.weight_sync import WeightSync
from openrlhf.trainer.losses.ess import step_scale
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, compute_eval_metrics
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray import policy_side
from openrlhf.utils.utils import get_tokenizer
from pace.config import PaceConfig
from pace.metrics import draw_metrics
from pace.types import PoolDraw

logger = logging.getLogger("openrlhf.pace")

# Of the many numbers of a step, what its line on the console shows; the loggers and pace.jsonl have all of them.
SHOWN = (
    "pace/pool/occupancy",
    "pace/pool/rejected",
    "pace/pool/evicted",
    "pace/pool/in_flight",
    "pace/staleness/total/mean",
    "pace/staleness/gen/mean",
    "pace/staleness/pool/mean",
    "pace/staleness/effective/mean",
    "pace/ledger/wasted_token_share",
)
POLL_S = 2.0


class TrainingActor(BasePPOTrainer):
    """The training side of the pool pipeline; a plain class, which `ppo_trainer_async` makes an actor of."""

    def __init__(
        self,
        pretrain: str,
        strategy: Any,
        *groups: Any,
        engines: list[Any],
        config: PaceConfig,
        generate_kwargs: dict[str, Any],
    ) -> None:
        """`groups` are upstream's actor, critic, reward and reference groups, in this order."""
        args = strategy.args
        # As upstream: -1 means never.
        args.eval.steps = float("inf") if args.eval.steps == -1 else args.eval.steps
        args.ckpt.save_steps = float("inf") if args.ckpt.save_steps == -1 else args.ckpt.save_steps
        fast = not args.data.disable_fast_tokenizer
        tokenizer = get_tokenizer(pretrain, None, "left", strategy, use_fast=fast)
        super().__init__(strategy, *groups, engines, tokenizer)
        self.experience_maker = PoolExperienceMaker(*groups, self.kl_ctl, strategy, tokenizer)
        data = PromptData(strategy, tokenizer, generate_kwargs)
        self.config = config
        self.generate_kwargs = generate_kwargs
        self.max_steps = data.max_steps
        self.tasks = data.tasks()
        self.eval_loader = data.eval_loader
        self.samples_generator = SamplesGenerator(strategy, None, data.eval_loader, tokenizer, engines)
        self.more_settings: dict[str, Any] = {}  # what else the log's settings line says
        self._timings: dict[str, float] = {}
        self.resumed_from: str | None = None  # the pool's folder of the checkpoint

    def material(self) -> dict[str, Any]:
        """Rows of the data set, updates to expect, and what the rollout manager needs, as references in lists."""
        return {
            "n_prompts": len(self.tasks),
            "max_steps": self.max_steps,
            "tasks": [ray.put(self.tasks)],
            "tokenizer": [ray.put(self.tokenizer)],
        }

    def prepare(self, pool: Any) -> int:
        """Connects pool and engines; restores a checkpoint if there is one. Returns the step to go on from."""
        states = self.init_checkpoint_states()
        self.restore_best_checkpoint_state(states)
        self.pool = pool
        version: int = states["global_step"]
        if version:
            self.resumed_from = checkpoint.folder(self.args, states)
            restarts.ask(lambda: pool.load.remote(self.resumed_from))
        self.weight_sync = WeightSync(
            engines=self.vllm_engines,
            actor_group=self.actor_model_group,
            pool=pool,
            config=self.config,
            engine_size=self.args.vllm.tensor_parallel_size,
            version=version,
        )
        with during("connecting trainer and engines"):
            self.weight_sync.start(own_weights=version == 0)
        return version

    def fit(self, global_step: int = 0) -> None:
        """Trains until the pool says that nothing more will come."""
        log = RunLog(self.config.log_dir or self.args.ckpt.path)
        log.settings(
            self.config,
            batch_groups=self.args.rollout.batch_size,
            start_step=global_step,
            n_prompts=len(self.tasks),
            n_samples=self.args.rollout.n_samples_per_prompt,
            **self.more_settings,
        )
        with tqdm(total=self.max_steps, initial=global_step, desc="updates", unit="step") as bar:
            while True:
                began = time.monotonic()
                reply, groups = self._next_batch(global_step)
                if reply.draw is None:
                    break
                idle = time.monotonic() - began
                status, global_step = self._train_on(reply.draw, groups, global_step)
                status["time/update"], status["time/experience"] = (
                    status[f"timing/{part}"] for part in ("ppo_train", "make_experience")
                )
                status["time/trainer_idle"] = status["timing/generation"] = idle
                status["timing/step_total"] = time.monotonic() - began
                status |= self._numbers(reply.draw, status)
                log.step(global_step, reply.draw, status)
                self._report(global_step, status, bar)
                self._save(global_step, status)
                self._evaluate(global_step, log)
            accounts = restarts.ask(self.pool.report.remote)
            log.end(reply.evicted, accounts)
        self.weight_sync.close()
        log.close()
        for backend in (self.wandb_logger, self.tensorboard_logger):
            if backend:
                backend.close()
        if global_step == 0:
            lost = [
                f"{accounts[f'pace/ledger/groups/{fate}']:.0f} {fate}" for fate in ("failed", "filtered", "evicted")
            ]
            raise RuntimeError(
                f"no update was made, the pool never had a batch; groups: {', '.join(lost)} (see above)"
            )

    def _next_batch(self, step: int) -> tuple[Any, list[list[dict[str, Any]]]]:
        """The pool's reply with a batch for `step` and its responses by group, or the reply that says it is finished.

        Says what it waits for.
        """
        said = time.monotonic()
        while True:
            reply = restarts.ask(lambda: self.pool.draw.remote(step, timeout_s=POLL_S))
            if reply.finished and reply.draw is None:
                return reply, []
            if reply.draw is not None:
                try:
                    blocks = ray.get(reply.payloads, timeout=restarts.PATIENCE_S)
                    return reply, [payload.unpack(block) for block in blocks]
                except (ObjectLostError, GetTimeoutError):
                    logger.warning("the pool died after the draw; its restart gives the same batch again")
                    continue
            self.weight_sync.revive()
            if time.monotonic() - said >= PERIOD_S:
                said = time.monotonic()
                logger.info("%s", restarts.ask(self.pool.waiting_for.remote))

    def _samples(self, draw: PoolDraw, groups: list[list[dict[str, Any]]]) -> list[Experience]:
        """What upstream trains on, for the responses of a draw's groups."""
        samples, self.experience_maker.n_real = to_samples(
            groups,
            batch_groups=self.args.rollout.batch_size,
            max_length=self.generate_kwargs["max_len"],
            generator=self.samples_generator,
        )
        return samples

    def _train_on(self, draw: PoolDraw, groups: list[list[dict[str, Any]]], step: int) -> tuple[dict[str, Any], int]:
        """One update and weight sync on a drawn batch; the batch is then committed."""
        samples = self._samples(draw, groups)
        with during(f"experience, update and weight sync of step {step + 1}"):
            status, step = self.train_step(samples, step)
        restarts.ask(lambda: self.pool.commit.remote(step - 1))
        return status, step

    def ppo_train(self, global_steps: int) -> dict[str, Any]:
        """As upstream's; with `--pace.ess_step_size` at a learning rate scaled by the batch's effective size."""
        if not self.config.ess_step_size:
            return super().ppo_train(global_steps)
        scale = step_scale(self.experience_maker.relative_ess, self.config.ess_base)
        ray.get(policy_side.on_ranks(self.actor_model_group, policy_side.set_step_scale, scale))
        return super().ppo_train(global_steps) | {"pace/ess_step_scale": scale}

    def broadcast_to_vllm(self) -> None:
        """Weight sync; upstream's `train_step` calls it after the update."""
        self._timings = self.weight_sync.push(self.weight_sync.version + 1)

    def _numbers(self, draw: PoolDraw, status: dict[str, Any]) -> dict[str, float]:
        """Everything about the step that upstream does not report; `status` holds the rest."""
        numbers = draw_metrics(draw) | restarts.ask(self.pool.report.remote) | self._timings
        if self.args.algo.dynamic_filtering_enable:
            filtered, failed, flying, made = (
                numbers[f"pace/ledger/groups/{name}"] for name in ("filtered", "failed", "in_flight", "generated")
            )
            numbers["dynamic_filtering_pass_rate"] = 100 * (1 - filtered / max(1.0, made - failed - flying))
        numbers["pace/ess"], numbers["pace/m2"] = self.experience_maker.relative_ess, self.experience_maker.m2
        return numbers

    def _report(self, step: int, status: dict[str, Any], bar: Any) -> None:
        bar.set_postfix(
            ready=int(status["pace/pool/occupancy"]),
            rejected=f"{status['pace/pool/reject_rate']:.0%}",
            lag=f"{status.get('pace/staleness/total/mean', 0.0):.2f}",
            reward=f"{status['rollout/reward_mean']:.3f}",
        )
        bar.update()
        shown = {key: value for key, value in status.items() if key in SHOWN or not key.startswith(("pace/", "gen"))}
        logger.info("Global step %d: %s", step, shown)

    def _save(self, step: int, status: dict[str, Any]) -> None:
        """Upstream's logs and checkpoints, the pool's state with them."""
        saves = step % self.args.ckpt.save_steps == 0
        with during(f"checkpoint of step {step}"):
            if saves:
                self._save_pool(step)
            self.save_logs_and_checkpoints(step, status, checkpoint.client_states(step))
        if saves:
            checkpoint.prune(self.args)

    def _save_pool(self, step: int, *, best: bool = False) -> str | None:
        """What has to be in the checkpoint before DeepSpeed's part makes it count; its folder."""
        return checkpoint.save_pool(self.args, self.pool, step, best=best)

    def _evaluate(self, step: int, log: RunLog) -> None:
        """Evaluates the version just synced, at the steps that `--eval.steps` names."""
        if self.eval_loader is None or step % self.args.eval.steps:
            return
        settings = self.generate_kwargs | {
            "temperature": self.args.eval.temperature,
            "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
        }
        with during(f"evaluation of policy version {step}"):
            try:
                samples = self.samples_generator.generate_eval_samples(**settings)
            except RayActorError as error:  # its successor gets the weights while the next batch is waited for
                logger.error("no evaluation of policy version %d, an engine died: %s", step, cause(error))
                return
        metrics = compute_eval_metrics(self.eval_loader, samples, self.args.eval.n_samples_per_prompt)
        metrics |= self._more_evaluated(samples)
        logger.info("Evaluation of policy version %d: %s", step, metrics)
        log.write("evaluation", version=step, metrics=metrics)
        for backend in (self.wandb_logger, self.tensorboard_logger):
            if backend:
                backend.log_eval(step, metrics)
        best = self.best_eval_metric_value
        with during(f"checkpoint of the best weights so far, of step {step}"):
            if checkpoint.improves(self._detect_eval_metric_key(metrics), metrics, best):
                self._save_pool(step, best=True)
            self.save_best_checkpoint(metrics, step, checkpoint.client_states(step, best=True))

    def _more_evaluated(self, samples: list[Experience]) -> dict[str, float]:
        """More metrics of an evaluation from its samples, one response each."""
        return {}
