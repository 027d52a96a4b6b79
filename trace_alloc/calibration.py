"""How good predicted success was, once the outcomes are known.

Invariant: a number that is not defined for the data is None, or left out of the summary, never NaN. In: predictions
and what was observed, aligned. Out: numbers for the log.

    Spearman = Pearson correlation of the ranks, equal values sharing the mean of theirs
    ECE = sum_b (n_b / n) |mean prediction in bin b - mean observation in bin b|,  bins of equal width over [0, 1]

Source: paper, C.3 (both rank correlations, for roots and for prefixes); error and calibration are design.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pair = tuple[float, float]  # predicted, observed


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Rank correlation of two lists of n numbers, in [-1, 1].

    None where it is not defined: fewer than two pairs, one side constant, or a NaN. Raises ValueError unless both are
    flat and equally long.
    """
    a, b = _aligned(x, y)
    if len(a) < 2 or np.isnan(a).any() or np.isnan(b).any():
        return None
    ranks = [_average_ranks(values) for values in (a, b)]
    p, q = (rank - rank.mean() for rank in ranks)
    spread = float(np.sqrt((p @ p) * (q @ q)))
    if spread == 0.0:
        return None
    return min(max(float(p @ q) / spread, -1.0), 1.0)


def mse(predicted: ArrayLike, observed: ArrayLike) -> float | None:
    """Mean squared error of n predictions; None for none, or with a NaN. Raises ValueError as `spearman`."""
    p, y = _aligned(predicted, observed)
    if not len(p):
        return None
    error = float(np.mean((p - y) ** 2))
    return None if np.isnan(error) else error


def expected_calibration_error(predicted: ArrayLike, observed: ArrayLike, bins: int = 10) -> float | None:
    """ECE of n predictions against observed shares, both in [0, 1]; a prediction of 1 is in the last bin.

    None for no predictions. Raises ValueError as `spearman`, for values outside [0, 1] (NaN too), and for `bins` < 1.
    """
    p, y = _aligned(predicted, observed)
    if bins < 1:
        raise ValueError(f"at least one bin is needed, got {bins}")
    for values in (p, y):
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise ValueError("predictions and observed shares lie in [0, 1]")
    if not len(p):
        return None
    index = np.minimum((p * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(index, weights=p - y, minlength=bins)  # n_b times the gap of bin b
    return float(np.abs(gaps).sum() / len(p))


def summary(*, roots: Sequence[Pair], prefixes: Sequence[Pair]) -> dict[str, float]:
    """The metrics of one step from pairs of (predicted, observed), those that are defined.

    The correlations are per kind, because roots differ in difficulty more than prefixes of one prompt do; `mse` and
    `ece` are over both. Raises ValueError for values outside [0, 1].
    """
    predicted = [pair[0] for pairs in (roots, prefixes) for pair in pairs]
    observed = [pair[1] for pairs in (roots, prefixes) for pair in pairs]
    numbers = {
        "trace/predictor/mse": mse(predicted, observed),
        "trace/predictor/spearman_root": spearman([p for p, _ in roots], [y for _, y in roots]),
        "trace/predictor/spearman_prefix": spearman([p for p, _ in prefixes], [y for _, y in prefixes]),
        "trace/predictor/ece": expected_calibration_error(predicted, observed),
    }
    return {key: value for key, value in numbers.items() if value is not None}


def _average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1 on; equal values share the mean of the ranks they take up."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    return ranks


def _aligned(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"two flat lists of the same length are needed, not shapes {a.shape} and {b.shape}")
    return a, b
