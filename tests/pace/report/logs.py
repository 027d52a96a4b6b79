"""Run logs to report on, made by hand: a real pool draws from groups of known lags; and what writes them."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from pace.config import PaceConfig
from pace.metrics import draw_metrics, gauge_metrics, part_metrics
from pace.pool import TrajectoryPool
from pace.state import pack_draw
from pace.types import Trajectory, TrajectoryGroup, VersionSpan

DEMO = Path(__file__).resolve().parents[3] / "examples" / "reports"
BATCH = 4
TIMES = {"time/trainer_idle": 2.0, "time/experience": 1.0, "time/update": 3.0, "time/sync": 0.5, "time/rescore": 0.25}
TRACE = {
    "trace/effective_ratio/prompt": 0.5,
    "trace/effective_ratio/anchor": 0.25,
    "trace/predictor/spearman_root": 0.6,
    "trace/predictor/spearman_prefix": 0.1,
    "trace/predictor/ece": 0.2,
    "trace/predictor/mse": 0.15,
}


def group(name: str, rng: random.Random, version: int) -> TrajectoryGroup:
    """Two siblings: one ends a version before the other, if there was one, and some were interrupted by a sync."""
    began = max(0, version - rng.randint(1, 3))
    trajectories = tuple(
        Trajectory(
            trajectory_id=f"{name}/{i}",
            group_id=name,
            prompt_id=f"p{name}",
            spans=tuple(VersionSpan(v, rng.randint(5, 20)) for v in range(began, max(began, version - i) + 1)),
            completed_version=max(began, version - i),
            reward=float(rng.random() < 0.5),
            solved=rng.random() < 0.5,
            prefix_score=rng.random() if began < version - i else None,
        )
        for i in range(2)
    )
    return TrajectoryGroup(group_id=name, prompt_id=f"p{name}", trajectories=trajectories, ready_version=version)


def log_lines(n_steps: int = 6, *, surplus: int = 4, seed: int = 0, **settings: Any) -> list[dict[str, Any]]:
    """A whole run in which `surplus` more groups get ready at each step than are trained."""
    rng, now = random.Random(seed), [1000.0]
    config = PaceConfig(enable=True, rate_smoothing=0.0, target_batches=1.0, pfs_window_min=1, **settings)
    pool = TrajectoryPool(config, batch_groups=BATCH, clock=lambda: now[0], rng=rng)
    pace = {"enable": True, "rate_smoothing": 0.0, "target_batches": 1.0, "pfs_window_min": 1} | settings
    lines: list[dict[str, Any]] = [
        {"kind": "settings", "time": now[0], "pace": pace, "batch_groups": BATCH, "start_step": 0, "n_samples": 2}
    ]
    for step in range(n_steps):
        for i in range(BATCH + surplus):
            made = group(f"{step}:{i}", rng, step)
            pool.ledger.start(made.group_id, version=step)
            pool.put(made)
        draw = pool.draw(step)
        assert draw is not None
        now[0] += 7.0
        metrics = draw_metrics(draw) | gauge_metrics(pool.gauges()) | part_metrics(pool.metrics()) | TIMES
        metrics |= {"timing/step_total": 7.0, "rollout/reward_mean": (step + 1) / n_steps}
        packed = pack_draw(draw, with_groups=False)
        lines.append({"kind": "step", "time": now[0], "step": step + 1, "metrics": metrics, "draw": packed})
    accounts = gauge_metrics(pool.gauges()) | part_metrics(pool.metrics())
    return [*lines, {"kind": "end", "time": now[0] + 1, "evicted": [], "metrics": accounts}]


def tree_node(parent: int, **fields: Any) -> dict[str, Any]:
    """A node of a drawn tree."""
    node = {"parent": parent, "bare": True, "n_tokens": 4, "reward": None, "value": 0.5, "advantage": 0.0}
    return node | {"predicted": None, "text": "<<1+1>>"} | fields


def with_trees(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same run with TRACE: its metrics, and a line about the trees of each step."""
    nodes = [
        tree_node(-1, predicted=0.7),
        tree_node(0, reward=1.0, advantage=1.5),
        tree_node(-1, reward=0.0),
        tree_node(0, reward=0.0, bare=False, advantage=-1.5),
    ]
    found = []
    for line in lines:
        found.append(line)
        if line["kind"] == "step":
            line["metrics"] |= TRACE
            tree = {"prompt_id": "17", "predicted": 0.4, "value": 0.5, "nodes": nodes}
            prompts, prefixes = [[2, 0.4, 0.5], [4, 0.9, 1.0]], [[1, 0.5, 1, 0.7, 0.0]]
            found.append(
                {"kind": "trees", "time": line["time"], "step": line["step"], "tree": tree}
                | {"prompts": prompts, "prefixes": prefixes}
            )
    return found


def write(folder: Path, lines: list[dict[str, Any]], *, end: str = "", zipped: bool = False) -> Path:
    """The lines as the log of a run in `folder`, with `end` behind the last of them. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines) + end
    if zipped:
        (folder / "pace.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (folder / "pace.jsonl").write_text(text)
    return folder
