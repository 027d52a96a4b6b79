"""How a rollout budget is split: bare rollouts over prompts (stage 1), continuations over prefixes of one (stage 2).

Invariant: a split spends its budget to the unit or raises ValueError; only a prompt without prefixes spends nothing.
In: scores V in [0, 1], the predictor's P(success), and for prefixes the factual outcomes. Out: one count per input.

    V_root(v, m) = 1 - v^m - (1 - v)^m,   m in {0, 2, 3, ..}             (paper, Eqs 12-13; trace.md 2.2-2.3)
    V_pref(a, k) = 1 - a^k,   a = r v + (1 - r)(1 - v),   k in {0, 1, ..} (paper, Eqs 14-16; trace.md 3.2-3.3)

Both are probabilities of seeing both outcomes. The paper solves both programs by dynamic programming: the functions
named `_reference`. The others find the same optimum greedily, in O((n + budget) log n) instead of O(n budget cap).

Ties (design): a seed shuffles the inputs, so that equal scores are not chosen by their place in the data; without one
they are. Scores that agree, or mirror each other, to 12 decimals count as equal; this is the tolerance of exactness.
"""

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

Seed = int | np.random.Generator
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCORE_MARGIN = 1e-4  # root scores are kept this far from 0 and 1, so that saturated ones are still ranked (design)
_TIE_DECIMALS = 12
_STRICT = 1e-12  # the dynamic program replaces a choice only by one better than this (design)


def root_utility(values: ArrayLike, counts: ArrayLike) -> Floats:
    """V_root: the probability that `counts` rollouts at success rate `values` hold both outcomes (paper, Eq 12).

    Shapes broadcast. No cancellation near 0 and 1, where it is about m v. Raises ValueError on scores outside [0, 1],
    NaN included, and on negative counts.
    """
    v, m = _checked_scores(values), _checked_counts(counts)
    rare = np.minimum(v, 1.0 - v)
    return np.where(m < 2, 0.0, -np.expm1(m * np.log1p(-rare)) - rare**m)


def prefix_utility(same: ArrayLike, counts: ArrayLike) -> Floats:
    """V_pref: the probability that one of `counts` continuations ends unlike the factual one (paper, Eq 14).

    `same` is a, see `same_outcome`. Shapes broadcast. No cancellation for a near 1. Raises ValueError on a outside
    [0, 1], NaN included, and on negative counts.
    """
    a, k = _checked_scores(same), _checked_counts(counts)
    with np.errstate(divide="ignore", invalid="ignore"):  # a = 0: log is -inf, which is right but for k = 0
        return np.where(k == 0, 0.0, -np.expm1(k * np.log(a)))


def same_outcome(values: ArrayLike, outcomes: ArrayLike) -> Floats:
    """a = r v + (1 - r)(1 - v): the probability of a continuation that ends like the factual one (paper, Eq 14).

    Both of shape (n,), outcomes 0 or 1 (or bool). Raises ValueError on other shapes, outcomes, or scores.
    """
    v, r = _checked_scores(values), np.asarray(outcomes, dtype=np.float64)
    if v.ndim != 1 or v.shape != r.shape:
        raise ValueError(f"one score and one outcome per prefix, not shapes {v.shape} and {r.shape}")
    if not np.isin(r, (0.0, 1.0)).all():
        raise ValueError("outcomes must be 0 or 1")
    same: Floats = np.where(r == 1.0, v, 1.0 - v)
    return same


def feasible_budget(n: int, budget: int, max_per_root: int) -> int:
    """The largest budget up to `budget` that `n` prompts can spend with counts 0 or 2..max_per_root (trace.md 2.6).

    Raises ValueError if `n` or `budget` is negative or `max_per_root` below 1.
    """
    if n < 0 or budget < 0 or max_per_root < 1:
        raise ValueError(
            f"{n} prompts, budget {budget}, max_per_root {max_per_root}: none may be negative or the last 0"
        )
    if max_per_root == 1:
        return 0
    most = min(budget, n * max_per_root)
    if max_per_root == 2:
        return most - most % 2
    return 0 if most == 1 else most


def allocate_roots(values: ArrayLike, budget: int, max_per_root: int = 16, seed: Seed | None = None) -> list[int]:
    """Bare rollouts per prompt: maximises sum V_root(v_i, m_i) with sum m_i = budget, m_i 0 or 2..max_per_root.

    `values` has shape (n,); scores are clipped to [SCORE_MARGIN, 1 - SCORE_MARGIN] (design). Raises ValueError on
    scores outside [0, 1], NaN included, and on a budget that cannot be spent, naming the nearest one that can.

    Exactness. With u = v (1 - v) a prompt's gains per rollout are u, u, u, then decreasing, if a count of 1 is allowed
    and worth u; so greedy filling, three at once, solves that relaxation. It leaves at most one forbidden count of 1,
    at the prompt opened last; `_without_single` argues why one unit moved then makes the split feasible and optimal.
    """
    rare, order = _root_scores(values, seed)
    _check_root_budget(len(rare), budget, max_per_root)
    counts = _relaxed_roots(rare, budget, max_per_root)
    if (counts == 1).any():
        counts = _without_single(counts, rare, max_per_root)
    return _restored(counts, order)


def allocate_roots_reference(
    values: ArrayLike, budget: int, max_per_root: int = 16, seed: Seed | None = None
) -> list[int]:
    """`allocate_roots` by the paper's dynamic program over prompts and budget (trace.md 2.4): 4 n budget bytes."""
    rare, order = _root_scores(values, seed)
    _check_root_budget(len(rare), budget, max_per_root)
    choices = np.array([0, *range(2, min(max_per_root, budget) + 1)], dtype=np.int64)
    return _restored(_dynamic_program(root_utility(rare[:, None], choices), choices, budget), order)


def allocate_prefixes(
    values: ArrayLike, outcomes: ArrayLike, budget: int, max_per_prefix: int | None = 4, seed: Seed | None = None
) -> list[int]:
    """Continuations per prefix of one prompt: maximises sum V_pref(a_i, k_i), sum k_i = budget, k_i <= max_per_prefix.

    `values` and `outcomes` (0 or 1, of the rollout the prefix is cut from) have shape (n,). The gains a^(k-1) (1 - a)
    never increase with k, so giving each unit to the largest is optimal; equal gains go to the smaller count first.
    A cap of None is the budget, and so is one too small to spend it; no prefix at all gives [], the budget unspent
    (design, trace.md 3.5-3.6). Raises ValueError as `same_outcome`, on a negative budget and on a cap below 1.
    """
    same, cap, order = _prefix_scores(values, outcomes, budget, max_per_prefix, seed)
    a, counts = same.tolist(), [0] * len(same)
    if not a:
        return []
    heap = [(a_i - 1.0, 0, i) for i, a_i in enumerate(a)]  # minus the next gain, count, place
    heapq.heapify(heap)
    for _ in range(budget):
        minus_gain, count, i = heap[0]
        counts[i] = count + 1
        if counts[i] < cap:
            heapq.heapreplace(heap, (minus_gain * a[i], counts[i], i))
        else:
            heapq.heappop(heap)
    return _restored(np.array(counts, dtype=np.int64), order)


def allocate_prefixes_reference(
    values: ArrayLike, outcomes: ArrayLike, budget: int, max_per_prefix: int | None = 4, seed: Seed | None = None
) -> list[int]:
    """`allocate_prefixes` by the paper's dynamic program (trace.md 3.4)."""
    same, cap, order = _prefix_scores(values, outcomes, budget, max_per_prefix, seed)
    if not len(same):
        return []
    choices = np.arange(min(cap, budget) + 1, dtype=np.int64)
    return _restored(_dynamic_program(prefix_utility(same[:, None], choices), choices, budget), order)


def uniform_roots(n: int, budget: int, per_root: int = 4, *, seed: Seed) -> list[int]:
    """Stage 1 at random: floor(budget / per_root) prompts drawn uniformly get `per_root` rollouts each (trace.md 10).

    What is left goes to one more prompt, a single rollout to one of those drawn; with fewer prompts than that, all get
    as equal a share as can be (design: the sum is the budget, no count is 1). Raises ValueError if n or the budget is
    negative, `per_root` below 2, the budget 1, or there is no prompt for it.
    """
    if n < 0 or budget < 0 or per_root < 2:
        raise ValueError(
            f"{n} prompts, budget {budget}, per_root {per_root}: none may be negative, or the last below 2"
        )
    if budget == 1 or (budget and not n):
        raise ValueError(f"a budget of {budget} cannot be spent on {n} prompts with no count of 1: 0 can")
    drawn = np.random.default_rng(seed).permutation(n)
    counts = np.zeros(n, dtype=np.int64)
    whole, left = divmod(budget, per_root)
    if n and whole >= n:
        share, left = divmod(budget, n)
        counts[:] = share
        counts[drawn[:left]] += 1
    else:
        counts[drawn[:whole]] = per_root
        if left:
            counts[drawn[whole if left > 1 else 0]] += left
    return _as_list(counts)


def uniform_prefixes(n_anchors: int, budget: int, seed: Seed) -> list[int]:
    """Stage 2 at random: each continuation starts at a prefix drawn uniformly, with replacement (trace.md 10).

    No prefix gives [], as in `allocate_prefixes`. Raises ValueError on negative numbers.
    """
    if n_anchors < 0 or budget < 0:
        raise ValueError(f"{n_anchors} prefixes, budget {budget}: none may be negative")
    if not n_anchors:
        return []
    drawn = np.random.default_rng(seed).integers(n_anchors, size=budget)
    return _as_list(np.bincount(drawn, minlength=n_anchors))


def closest_roots(
    values: ArrayLike, n_keep: int, per_root: int, target: float = 0.5, seed: Seed | None = None
) -> list[int]:
    """PCL: `per_root` rollouts for the `n_keep` prompts whose score is closest to `target` (arXiv 2510.01135).

    `values` has shape (n,); equal distances are settled by the seed, as everywhere. Raises ValueError on scores
    outside [0, 1], NaN included, `n_keep` outside 0..n, or `per_root` below 2.
    """
    v = _checked_vector(values)
    if not (0 <= n_keep <= len(v) and per_root >= 2):
        raise ValueError(f"cannot keep {n_keep} of {len(v)} prompts at {per_root} rollouts each (at least 2)")
    order = _shuffled(len(v), seed)
    distance = np.round(np.abs(v[order] - target), _TIE_DECIMALS)
    counts = np.zeros(len(v), dtype=np.int64)
    counts[order[np.argsort(distance, kind="stable")[:n_keep]]] = per_root
    return _as_list(counts)


def _relaxed_roots(rare: Floats, budget: int, cap: int) -> Ints:
    """The optimum if a count of 1 were allowed and worth u; `rare` is min(v, 1 - v).

    Prompts are opened by decreasing u, with three rollouts at once (fewer if the cap or the budget ends), and an open
    one gets a fourth and further when its gain u (v^(m-2) + (1-v)^(m-2)) is above the next u. So all but the prompt
    opened last have 0 or min(3, cap) and more.
    """
    uncertainty = rare * (1.0 - rare)
    by_gain = np.argsort(-uncertainty, kind="stable").tolist()
    u, v = uncertainty.tolist(), rare.tolist()
    counts = [0] * len(u)
    heap: list[tuple[float, int]] = []  # minus the next gain, place: open prompts below the cap
    opened, left = 0, budget
    while left:
        if opened < len(u) and (not heap or u[by_gain[opened]] >= -heap[0][0]):
            i = by_gain[opened]
            opened += 1
            counts[i] = min(3, cap, left)
            left -= counts[i]
            if cap > 3:
                heapq.heappush(heap, (-u[i] * (v[i] ** 2 + (1.0 - v[i]) ** 2), i))
            continue
        i = heap[0][1]
        counts[i] += 1
        left -= 1
        if counts[i] < cap:
            heapq.heapreplace(heap, (-u[i] * (v[i] ** (counts[i] - 1) + (1.0 - v[i]) ** (counts[i] - 1)), i))
        else:
            heapq.heappop(heap)
    return np.array(counts, dtype=np.int64)


def _without_single(counts: Ints, rare: Floats, cap: int) -> Ints:
    """The optimum without counts of 1, from a relaxed optimum x in which one prompt p has x_p = 1 (so cap >= 3).

    Let L be p's u, f_i the relaxed utilities. All gains taken are >= L, all others <= L, so a split y of the same
    budget loses sum_i l_i(y_i) against x, where l_i(y) = (f_i(x_i) - L x_i) - (f_i(y) - L y) is convex, 0 at x_i and
    never negative; l_p is 0 on 0..3.
    If y gives some j != p less than x does, it loses at least j's last gain minus L. Moving just one unit from the
    cheapest such j to p loses no more, and is allowed: j has at least 3, p gets its second.
    If y gives no j != p less, then y_p = 0, as it can't be 1, and one j gets one unit more, where x_j >= 3.
    The better of the two is optimal. The first always exists: without another open prompt the budget would be 1.
    """
    single = int(np.flatnonzero(counts == 1)[0])
    uncertainty = rare * (1.0 - rare)
    level = uncertainty[single]
    is_open = counts >= 3
    last = np.where(is_open, _gain(rare, np.maximum(counts, 3)), np.inf)
    following = np.where(is_open & (counts < cap), _gain(rare, np.maximum(counts, 3) + 1), -np.inf)
    giver, taker = int(np.argmin(last)), int(np.argmax(following))
    moved = counts.copy()
    if last[giver] - level <= level - following[taker]:
        moved[giver] -= 1
        moved[single] = 2
    else:
        moved[taker] += 1
        moved[single] = 0
    return moved


def _gain(rare: Floats, count: Ints) -> Floats:
    """V_root(v, m) - V_root(v, m - 1) for m >= 3."""
    gain: Floats = rare * (1.0 - rare) * (rare ** (count - 2) + (1.0 - rare) ** (count - 2))
    return gain


def _dynamic_program(utility: Floats, choices: Ints, budget: int) -> Ints:
    """The best choice per row: F_i(b) = max_m F_(i-1)(b - m) + utility[i, m], vectorised over b (trace.md 2.4).

    `utility` is (n, number of choices), `choices` the counts its columns stand for, increasing from 0.
    """
    best = np.full(budget + 1, -np.inf)
    best[0] = 0.0
    back = np.zeros((len(utility), budget + 1), dtype=np.int32)
    for i, row in enumerate(utility):
        longer = np.full(budget + 1, -np.inf)
        for count, worth in zip(choices.tolist(), row.tolist(), strict=True):
            total = best[: budget + 1 - count] + worth
            better = total > longer[count:] + _STRICT
            longer[count:][better] = total[better]
            back[i, count:][better] = count
        best = longer
    counts = np.zeros(len(utility), dtype=np.int64)
    left = budget
    for i in reversed(range(len(utility))):
        counts[i] = back[i, left]
        left -= int(counts[i])
    return counts


def _root_scores(values: ArrayLike, seed: Seed | None) -> tuple[Floats, NDArray[np.intp]]:
    """min(v, 1 - v) of the clipped scores, in the order the ties are settled in, and that order."""
    v = np.clip(_checked_vector(values), SCORE_MARGIN, 1.0 - SCORE_MARGIN)
    order = _shuffled(len(v), seed)
    return np.round(np.minimum(v, 1.0 - v), _TIE_DECIMALS)[order], order


def _prefix_scores(
    values: ArrayLike, outcomes: ArrayLike, budget: int, max_per_prefix: int | None, seed: Seed | None
) -> tuple[Floats, int, NDArray[np.intp]]:
    """a in the order the ties are settled in, the cap that allows the budget, and that order."""
    same = np.round(same_outcome(values, outcomes), _TIE_DECIMALS)
    cap = budget if max_per_prefix is None else max_per_prefix
    if budget < 0 or (max_per_prefix is not None and max_per_prefix < 1):
        raise ValueError(f"budget {budget} must not be negative, max_per_prefix {max_per_prefix} at least 1")
    order = _shuffled(len(same), seed)
    return same[order], budget if len(same) * cap < budget else cap, order


def _check_root_budget(n: int, budget: int, cap: int) -> None:
    feasible = feasible_budget(n, budget, cap)
    if feasible == budget:
        return
    if cap == 1:
        why = "max_per_root 1 leaves no count but 0, since a single rollout is not allowed"
    elif budget > n * cap:
        why = f"{n} prompts take at most {cap} each"
    elif budget == 1:
        why = "a single rollout is not allowed"
    else:
        why = "max_per_root 2 allows pairs only"
    raise ValueError(f"a root budget of {budget} cannot be spent: {why}; the largest feasible one below is {feasible}")


def _shuffled(n: int, seed: Seed | None) -> NDArray[np.intp]:
    return np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)


def _restored(counts: Ints, order: NDArray[np.intp]) -> list[int]:
    """Counts back in the order of the inputs."""
    restored = np.empty_like(counts)
    restored[order] = counts
    return _as_list(restored)


def _as_list(counts: NDArray[np.int64] | NDArray[np.intp]) -> list[int]:
    return [int(count) for count in counts.tolist()]


def _checked_vector(values: ArrayLike) -> Floats:
    v = _checked_scores(values)
    if v.ndim != 1:
        raise ValueError(f"one score per prompt, not shape {v.shape}")
    return v


def _checked_scores(values: ArrayLike) -> Floats:
    v = np.asarray(values, dtype=np.float64)
    bad = ~((v >= 0.0) & (v <= 1.0))  # NaN as well
    if bad.any():
        raise ValueError(f"scores must be in [0, 1]: {np.count_nonzero(bad)} are not, the first is {v[bad].flat[0]}")
    return v


def _checked_counts(counts: ArrayLike) -> Floats:
    m = np.asarray(counts, dtype=np.float64)
    if not ((m >= 0.0) & (m == np.floor(m))).all():
        raise ValueError("counts must be whole numbers from 0")
    return m
