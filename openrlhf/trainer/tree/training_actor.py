"""The training side with rollout trees: their rows and credit instead of flat groups, and what the predictor learns.

Invariants: a batch is P trees with any number of rows, in as many optimizer steps as the flat batch would have; the
predictor learns from the batch while the policy does, once a step, and is in no gradient of the policy.

In: draws of the pool whose groups are trees. Out: as `TrainingActor`, and `trace/...` metrics. Source: trace.md 5-8.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from openrlhf.trainer.fully_async import restarts
from openrlhf.trainer.fully_async.run_log import RunLog
from openrlhf.trainer.fully_async.training_actor import TrainingActor, logger
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import policy_side
from openrlhf.trainer.tree.experience import TreeExperienceMaker, row_unit, tree_samples
from openrlhf.trainer.tree.grown import GrownTree, grown
from openrlhf.trainer.tree.tree_log import tree_line
from pace.types import PoolDraw
from trace_alloc.calibration import summary
from trace_alloc.config import TraceConfig
from trace_alloc.metrics import ScoredPrefix, ScoredTree, tree_metrics
from trace_alloc.predictor import Anchor, Example
from trace_alloc.serialisation import serialise
from trace_alloc.targets import mean, outcome, sample_prefix_examples

PREDICTOR_PATIENCE_S = 600.0
PREDICTOR = "the predictor"


class TreeTrainingActor(TrainingActor):
    """`predictor` is an actor handle in a list."""

    def __init__(
        self, pretrain: str, strategy: Any, *groups: Any, trace: TraceConfig, predictor: list[Any], **more: Any
    ):
        super().__init__(pretrain, strategy, *groups, **more)
        self.experience_maker = TreeExperienceMaker(*groups, self.kl_ctl, strategy, self.tokenizer)
        self.trace = trace
        self.more_settings = {"trace": dataclasses.asdict(trace)}
        self.predictor = predictor[0]
        args = self.args
        self._flat_rollouts = args.rollout.batch_size * args.rollout.n_samples_per_prompt
        self._n_updates = max(1, self._flat_rollouts // args.train.batch_size)
        n_candidates = trace.n_candidates(args.rollout.batch_size, self._flat_rollouts)
        self.max_steps = max(1, self.max_steps * args.rollout.batch_size // n_candidates)
        self._learning: Any = None
        self._trees: list[GrownTree] = []

    def _samples(self, draw: PoolDraw, groups: list[list[dict[str, Any]]]) -> list[Experience]:
        self._trees = [
            grown(record.group_id, responses, key=record.prompt_id.split(":")[-1])
            for record, responses in zip(draw.groups, groups, strict=True)
        ]
        self._learning = self.predictor.update.remote(self._examples(seed=draw.version))
        samples, self.experience_maker.n_real = tree_samples(
            groups,
            unit=row_unit(self.args, self._n_updates),
            max_length=self.generate_kwargs["max_len"],
            generator=self.samples_generator,
        )
        self.experience_maker.credit = [row for tree in self._trees for row in tree.rows(self.trace)]
        sizes = policy_side.on_ranks(self.actor_model_group, policy_side.set_batch_rows, len(samples), self._n_updates)
        ray.get(sizes)
        return samples

    def _examples(self, *, seed: int) -> list[Example]:
        """All prompts of the batch, and the share of prefixes beside them."""
        found = [
            tree.examples(self.trace, self._decoded, prompt=self.tasks[int(tree.key)].prompt) for tree in self._trees
        ]
        roots = [example for root, _ in found for example in root]
        prefixes = [example for _, below in found for example in below]
        share = self.trace.prefix_share
        return roots + sample_prefix_examples(len(roots), prefixes, share=share, seed=seed)

    def _decoded(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def prepare(self, pool: Any) -> int:
        """As the flat one's; the predictor goes on as well."""
        step = super().prepare(pool)
        if self.resumed_from is not None:
            restarts.ask(lambda: self.predictor.load.remote(self.resumed_from), what=PREDICTOR)
        return step

    def _save_pool(self, step: int, *, best: bool = False) -> str | None:
        folder = super()._save_pool(step, best=best)
        if folder is not None:
            save = self.predictor.save.remote
            restarts.ask(lambda: save(folder), what=PREDICTOR, timeout_s=PREDICTOR_PATIENCE_S)
        return folder

    def _numbers(self, draw: PoolDraw, status: dict[str, Any]) -> dict[str, float]:
        rows = self.experience_maker.credit
        numbers = tree_metrics([scored(tree) for tree in self._trees]) | self._notes()
        numbers["trace/cost/rows"] = float(len(rows))
        numbers["trace/cost/trained_tokens"] = float(sum(sum(row.mask) for row in rows))
        numbers |= self._learnt()
        return super()._numbers(draw, status) | numbers | shares_of_time(status, numbers)

    def _evaluate(self, step: int, log: RunLog) -> None:
        """As the flat one's, which has the log when a step is over; its trees go there first."""
        log.write("trees", step=step, **tree_line(self._trees, config=self.trace, decode=self._decoded, seed=step))
        super()._evaluate(step, log)

    def _more_evaluated(self, samples: list[Experience]) -> dict[str, float]:
        """How well success is predicted at prompts that nobody chose, as `eval_predictor_...`.

        The training batch can't say: its prompts were chosen for the values predicted, so those are alike.
        """
        won: dict[str, list[float]] = {}
        for sample in samples:
            won.setdefault(sample.prompts[0], []).append(outcome(float(sample.rewards)))
        if not self.trace.predicts or not won:
            return {}
        prompts = [Anchor(key=f"eval:{index}", turn=0, text=serialise(text, turn=0)) for index, text in enumerate(won)]
        score = self.predictor.score.remote
        try:
            scores = restarts.ask(lambda: score(prompts), what=PREDICTOR, timeout_s=PREDICTOR_PATIENCE_S)
        except RayError as error:
            logger.warning("the predictor was not evaluated: %s", f"{error}".splitlines()[-1])
            return {}
        pairs = list(zip(scores, map(mean, won.values()), strict=True))
        return {
            f"eval_predictor_{key.split('/')[-1]}": value for key, value in summary(roots=pairs, prefixes=()).items()
        }

    def _notes(self) -> dict[str, float]:
        """What the rollout side counted, over the batch."""
        notes = [tree.notes for tree in self._trees]

        def total(name: str) -> float:
            return float(sum(note.get(name) or 0 for note in notes))

        prompts = total("n_prompt")
        return {
            "trace/alloc/unspent": total("unspent"),
            "trace/alloc/unbranchable": total("n_unbranchable"),
            "trace/alloc/failed": total("n_failed"),
            "trace/alloc/moved": total("n_moved"),
            "trace/cost/bare_s": total("bare_s") / len(notes),
            "trace/cost/expand_s": total("expand_s") / len(notes),
        } | ({"trace/cost/prefix_cache_hit_rate": total("n_cached") / prompts} if prompts else {})

    def _learnt(self) -> dict[str, float]:
        """The predictor's own numbers; waits for its update, which began before the policy's."""
        began = time.monotonic()
        try:
            numbers: dict[str, float] = ray.get(self._learning, timeout=PREDICTOR_PATIENCE_S)
        except RayError as error:
            logger.warning("the predictor did not learn from this batch: %s", f"{error}".splitlines()[-1])
            return {}
        return numbers | {"trace/cost/predictor_wait_s": time.monotonic() - began}


def scored(tree: GrownTree) -> ScoredTree:
    """A tree with what was predicted of it."""
    prefixes = [
        ScoredPrefix(node=tree.prefix_at(parent, n_given), leaf=tree.leaves[parent], score=score)
        for parent, n_given, score in tree.notes.get("anchors", ())
        if any(tree.tree.children(tree.prefix_at(parent, n_given))[1:])
    ]
    return ScoredTree(tree=tree.tree, predicted=tree.notes.get("predicted"), prefixes=tuple(prefixes))


def shares_of_time(status: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, float]:
    """Where a synchronous step goes, in parts that do not overlap, in seconds; and the predictor's share of it.

    Scoring is a part of the wait for rollouts. The predictor learns beside the policy: its part is the wait for it.
    """
    scoring, wait = (numbers.get(f"trace/cost/{name}", 0.0) for name in ("scoring_s", "predictor_wait_s"))
    total = status["timing/step_total"] + wait
    rollout = max(0.0, status["time/trainer_idle"] - scoring)
    update = status["time/update"]
    rest = max(0.0, total - rollout - scoring - update - wait)
    parts = {"rollout": rollout, "scoring": scoring, "update": update, "predictor": wait, "rest": rest}
    share = (scoring + numbers.get("trace/cost/predictor_update_s", 0.0)) / total if total else 0.0
    return {f"trace/time/{name}": value for name, value in parts.items()} | {"trace/cost/predictor_share": share}
