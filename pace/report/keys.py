"""The metrics that the report reads, each spelled once.

Invariant: those of `pace/` are keys of `pace.metrics.metric_keys()`; the others are the trainer's and TRACE's
(docs/pace.md, docs/trace.md). What a log lacks leaves its figure out.
"""

from pace.ledger import COLUMNS

REWARD = "rollout/reward_mean"

OCCUPANCY, TARGET = "pace/pool/occupancy", "pace/pool/target"
BUDGET, RATE = "pace/pool/budget", "pace/pool/reject_rate"
COVERAGE, WASTED = "pace/staleness/coverage", "pace/ledger/wasted_token_share"

# Where a step of the trainer goes, in parts that do not overlap; the rest of STEP_S is named "rest".
STEP_S = "timing/step_total"
TIME_PARTS = {
    "waiting for rollouts": "time/trainer_idle",
    "experience": "time/experience",
    "update": "time/update",
    "weight sync": "time/sync",
}
RESCORE_S = "time/rescore"  # beside the generation: overlaps with what the trainer does next

ROOT_RATIO, ANCHOR_RATIO = "trace/effective_ratio/prompt", "trace/effective_ratio/anchor"
SPEARMAN_ROOT, SPEARMAN_PREFIX = "trace/predictor/spearman_root", "trace/predictor/spearman_prefix"
PREDICTOR_MSE, PREDICTOR_ECE = "trace/predictor/mse", "trace/predictor/ece"


def ledger(unit: str) -> dict[str, str]:
    """Column -> key, for "groups" or "tokens"."""
    return {column: f"pace/ledger/{unit}/{column}" for column in COLUMNS}


PACE = frozenset({OCCUPANCY, TARGET, BUDGET, RATE, COVERAGE, WASTED, *ledger("groups").values()}) | frozenset(
    ledger("tokens").values()
)
TRAINER = frozenset({REWARD, STEP_S, RESCORE_S, *TIME_PARTS.values()})
TRACE = frozenset({ROOT_RATIO, ANCHOR_RATIO, SPEARMAN_ROOT, SPEARMAN_PREFIX, PREDICTOR_MSE, PREDICTOR_ECE})
