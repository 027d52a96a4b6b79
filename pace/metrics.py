"""The only place that spells `pace/...` keys.

Invariants: `metric_keys()` lists every key that can appear. Counts are always present; a statistic of no values is
left out, never written as 0, and so is a lag that is not known. Counters only grow: `pace/ledger/*` (but for in_pool
and in_flight) and `pace/prefix_score/seen`; everything else describes one draw or the moment.

Populations of groups: `kept` survived the ranking, `rejected` did not, `trained` is the batch (kept and refilled).
Keys without a population are about the trained groups, those of the prefix score about all that left. Units: lags in
versions, ages in seconds, scores in nats per token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from pace.ledger import COLUMNS
from pace.staleness import coverage, mean, trajectory_staleness
from pace.types import Decision, Outcome, PoolDraw, PoolGauges, RejectReason, Trajectory

STATS = ("mean", "p50", "p90", "max")
HISTOGRAM_EDGES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)

_LAGS: dict[str, Callable[[Decision], float | None]] = {
    "total": lambda d: d.total,
    "gen": lambda d: d.gen,
    "sib": lambda d: d.sib,
    "pool": lambda d: d.pool,
    "effective": lambda d: d.effective,
}
_TOKEN_LAGS = ("total", "gen", "sib", "pool")
_BIAS: dict[str, Callable[[Decision], float | None]] = {
    "length": lambda d: d.length,
    "reward": lambda d: d.reward,
    "solve_rate": lambda d: d.solve_rate,
}
_POPULATIONS: dict[str, Callable[[Decision], bool]] = {
    "trained": lambda d: d.trained,
    "kept": lambda d: d.outcome is Outcome.KEPT,
    "rejected": lambda d: d.outcome is Outcome.REJECTED,
}
_DRAW_REASONS = (RejectReason.BUDGET, RejectReason.CAP, RejectReason.UNKNOWN)
_DRAW_COUNTS = ("occupancy", "target", "excess", "reject_rate", "candidates", "budget", "scarce") + (
    "batch",
    "refilled",
    "rejected",
    "evicted",
    "requeued",
)
_GAUGES = ("groups", "capacity", "in_flight", "pending_draws", "oldest_lag", "oldest_age_s", "accepting")
# The pool's parts under the names of `TrajectoryPool.metrics`.
_PART_KEYS = {
    "window/size": "pace/prefix_score/window",
    "window/seen": "pace/prefix_score/seen",
    "budget/rate": "pace/pool/rate_state",
    "budget/carry": "pace/pool/carry",
    **{f"ledger/{unit}/{name}": f"pace/ledger/{unit}/{name}" for unit, name in product(("groups", "tokens"), COLUMNS)},
}


def summary(prefix: str, values: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Mean, median, 90th percentile and maximum of (value, weight) pairs under `prefix`; nothing for no weight.

    A percentile is the smallest value that reaches its share of the weight.
    """
    ordered = sorted((float(value), weight) for value, weight in values if weight > 0)
    if not ordered:
        return {}
    total = sum(weight for _, weight in ordered)
    result = {f"{prefix}/mean": sum(value * weight for value, weight in ordered) / total}
    for name, share in (("p50", 0.5), ("p90", 0.9)):
        reached = 0.0
        for value, weight in ordered:
            reached += weight
            if reached >= share * total * (1 - 1e-12):  # a sum of weights may fall short by rounding
                result[f"{prefix}/{name}"] = value
                break
    result[f"{prefix}/max"] = ordered[-1][0]
    return result


def draw_metrics(draw: PoolDraw) -> dict[str, float]:
    """Everything about one batch and the decisions that led to it."""
    decisions = draw.all_decisions
    result = _counts(draw)
    for population, is_in in _POPULATIONS.items():
        members = [decision for decision in decisions if is_in(decision)]
        within = "" if population == "trained" else f"{population}/"
        for name, read in _LAGS.items():
            result |= summary(f"pace/staleness/{within}{name}", _known(members, read))
        for name, read in _BIAS.items():
            average = mean(value for value, _ in _known(members, read))
            if average is not None:
                result[f"pace/bias/{name}/{population}"] = average
    trained = [decision for decision in decisions if decision.trained]
    result |= summary("pace/pool/age_s", _known(trained, lambda d: d.age_s))
    result |= summary("pace/prefix_score", _known(decisions, lambda d: d.prefix_score))
    result |= summary("pace/prefix_score/percentile", _known(decisions, lambda d: d.percentile))
    result |= summary("pace/prefix_score/weight", _known(decisions, lambda d: d.weight))
    result["pace/prefix_score/missing"] = float(sum(decision.n_missing_scores for decision in decisions))
    return result | _token_metrics(draw)


def draw_histograms(draw: PoolDraw) -> dict[str, list[int]]:
    """Groups per lag bin, kept against rejected; bin i holds values from `HISTOGRAM_EDGES[i]` up, the last is open."""
    result: dict[str, list[int]] = {}
    for population, (name, read) in product(("kept", "rejected"), _LAGS.items()):
        counts = [0] * len(HISTOGRAM_EDGES)
        for value, _ in _known(filter(_POPULATIONS[population], draw.all_decisions), read):
            counts[sum(edge <= value for edge in HISTOGRAM_EDGES) - 1] += 1
        result[f"pace/histogram/{population}/{name}"] = counts
    return result


def gauge_metrics(gauges: PoolGauges) -> dict[str, float]:
    """The pool as it stands."""
    return {f"pace/pool/{name}": float(getattr(gauges, name)) for name in _GAUGES}


def part_metrics(parts: Mapping[str, float]) -> dict[str, float]:
    """The numbers of `TrajectoryPool.metrics` under their keys, and the share of generated tokens thrown away."""
    result = {key: parts[name] for name, key in _PART_KEYS.items() if name in parts}
    made = parts.get("ledger/tokens/generated", 0.0)
    if made:
        wasted = sum(parts[f"ledger/tokens/{name}"] for name in ("rejected", "evicted", "filtered", "failed"))
        result["pace/ledger/wasted_token_share"] = wasted / made
    return result


def metric_keys() -> frozenset[str]:
    """Every scalar key this module can emit."""
    summaries = [f"pace/staleness/{within}{name}" for within, name in product(("", "kept/", "rejected/"), _LAGS)]
    summaries += [f"pace/staleness/token/{name}" for name in _TOKEN_LAGS]
    summaries += ["pace/staleness/version_span", "pace/pool/age_s", "pace/prefix_score"]
    summaries += ["pace/prefix_score/percentile", "pace/prefix_score/weight"]
    keys = [f"{prefix}/{stat}" for prefix, stat in product(summaries, STATS)]
    keys += [f"pace/bias/{name}/{population}" for name, population in product(_BIAS, _POPULATIONS)]
    keys += [f"pace/pool/{name}" for name in (*_DRAW_COUNTS, *_GAUGES)]
    keys += [f"pace/reason/{reason.value}" for reason in _DRAW_REASONS]
    keys += ["pace/staleness/coverage", "pace/prefix_score/missing", "pace/ledger/wasted_token_share"]
    return frozenset([*keys, *_PART_KEYS.values()])


def _known(decisions: Iterable[Decision], read: Callable[[Decision], float | None]) -> list[tuple[float, float]]:
    """Known values with weight one."""
    return [(value, 1.0) for decision in decisions if (value := read(decision)) is not None]


def _counts(draw: PoolDraw) -> dict[str, float]:
    decisions, plan = draw.all_decisions, draw.plan
    outcomes = [decision.outcome for decision in decisions]
    numbers = {
        "occupancy": plan.occupancy,
        "target": plan.target,
        "excess": plan.excess,
        "reject_rate": plan.rate,
        "candidates": plan.candidates,
        "budget": plan.rejections,
        "scarce": plan.scarce,
        "batch": len(draw.groups),
        "refilled": outcomes.count(Outcome.REFILLED),
        "rejected": outcomes.count(Outcome.REJECTED),
        "evicted": outcomes.count(Outcome.EVICTED),
        "requeued": sum(decision.requeued for decision in decisions),
    }
    result = {f"pace/pool/{name}": float(numbers[name]) for name in _DRAW_COUNTS}
    reasons = [decision.reason for decision in decisions]
    return result | {f"pace/reason/{reason.value}": float(reasons.count(reason)) for reason in _DRAW_REASONS}


def _token_metrics(draw: PoolDraw) -> dict[str, float]:
    """Lags of the trained tokens, each weighing one, and what is known about their versions."""
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in _TOKEN_LAGS}
    widths: list[tuple[float, float]] = []
    trajectories: list[Trajectory] = []
    for group in draw.groups:
        trajectories += group.trajectories
        for t in group.trajectories:
            parts = trajectory_staleness(t, ready_version=group.ready_version, step=draw.version)
            known = [(span.version, span.n_tokens) for span in t.spans if span.version is not None]
            for version, n_tokens in known:
                values["total"].append((draw.version - version, n_tokens))
                values["gen"].append((t.completed_version - version, n_tokens))
                values["sib"].append((parts.sib, n_tokens))
                values["pool"].append((parts.pool, n_tokens))
            if known:
                widths.append((_width([version for version, _ in known]), 1.0))
    result = {"pace/staleness/coverage": coverage(trajectories)} if trajectories else {}
    for name, pairs in values.items():
        result |= summary(f"pace/staleness/token/{name}", pairs)
    return result | summary("pace/staleness/version_span", widths)


def _width(versions: Sequence[int]) -> float:
    """How many versions a trajectory spans beyond its first."""
    return float(max(versions) - min(versions))
