"""The success predictor as a Ray actor: scores prompts and prefixes for the allocator, learns once a step.

Invariant: calls are taken one after the other, so that a score never sees half an update. It is told outcomes only by
the trainer; its numbers are in no gradient of the policy. Source: trace.md 5.
"""

import logging
import time
from pathlib import Path

import ray

from trace_alloc.config import TraceConfig
from trace_alloc.predictor import Anchor, ConstantPredictor, Example, Predictor, RunningMeanPredictor

logger = logging.getLogger(__name__)

STATE = "predictor.pt"


class PredictorService:
    """The work of a `PredictorActor`, apart from Ray. `model` is the folder of the language model (`lm`)."""

    def __init__(self, config: TraceConfig, *, model: str, seed: int) -> None:
        self._predictor = make_predictor(config, model=model, seed=seed)
        self._scoring_s = 0.0
        self._n_scored = 0

    def score(self, anchors: list[Anchor]) -> list[float]:
        """Predicted success of each, in [0, 1]."""
        began = time.monotonic()
        scores = self._predictor.score(anchors) if anchors else []
        self._scoring_s += time.monotonic() - began
        self._n_scored += len(anchors)
        return scores

    def update(self, examples: list[Example]) -> dict[str, float]:
        """Learns; the numbers of the step, with the scoring since the last one."""
        began = time.monotonic()
        report = self._predictor.update(examples)
        numbers = {
            "trace/predictor/examples": float(report.n),
            "trace/predictor/skipped": float(report.n_skipped),
            "trace/cost/predictor_update_s": time.monotonic() - began,
            "trace/cost/scoring_s": self._scoring_s,
            "trace/cost/scored": float(self._n_scored),
        }
        if report.loss is not None:
            numbers["trace/predictor/loss"] = report.loss
        self._scoring_s, self._n_scored = 0.0, 0
        return numbers

    def save(self, folder: str) -> None:
        """Writes a state that is there as a whole or not at all."""
        import torch

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        partial = path / f"{STATE}.partial"
        torch.save(self._predictor.state_dict(), partial)
        partial.replace(path / STATE)

    def load(self, folder: str) -> None:
        """Goes on from a saved state; as it is where there is none. Raises ValueError for one that can't be read."""
        import torch

        path = Path(folder) / STATE
        if not path.exists():
            logger.warning("%s is missing: the predictor starts afresh", path)
            return
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:
            raise ValueError(f"{path} can't be read as a predictor's state: remove it to start afresh") from error
        self._predictor.load_state_dict(state)


def make_predictor(config: TraceConfig, *, model: str, seed: int) -> Predictor:
    """The predictor of `--trace.predictor`."""
    if not config.predicts:
        return ConstantPredictor()
    if config.predictor == "running_mean":
        return RunningMeanPredictor()
    import torch

    from openrlhf.trainer.tree.lm_predictor import LMPredictor

    return LMPredictor(
        config.predictor_model or model,
        lr=config.predictor_lr,
        batch_size=config.predictor_batch,
        max_tokens=config.predictor_max_tokens,
        seed=seed,
        device="cuda" if config.predictor_gpus and torch.cuda.is_available() else "cpu",
    )


PredictorActor = ray.remote(num_cpus=0, max_restarts=-1)(PredictorService)
