"""Bounds of a share of which so many of so many were counted: plain arithmetic, without numpy."""

from __future__ import annotations

import math

CONFIDENCE = 0.95  # two-sided, as the documents state
_HALVINGS = 40  # 2^-40 is below what a float shows of a share


def error_bound(wrong: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper bound of the share, when `wrong` of `n` were (C. Clopper, E. Pearson, 1934; one-sided)."""
    return 1 - recall_low(n - wrong, n, confidence)


def recall_low(kept: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return the lower bound of the share, when `kept` of `n` were kept (C. Clopper, E. Pearson, 1934; one-sided)."""
    if kept <= 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_least(kept, n, middle) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def missed_max(n: int, recall: float) -> int | None:
    """Return how many misses among `n` still prove the recall; None: not even no miss at all does."""
    if n <= 0 or _at_least(n, n, recall) > 1 - CONFIDENCE:
        return None
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if _at_least(n - middle, n, recall) <= 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return low


def _at_least(kept: int, n: int, p: float) -> float:
    """Return the probability of `kept` or more of `n` when each is kept with probability `p`."""
    if kept <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    whole, log_p, log_not = math.lgamma(n + 1), math.log(p), math.log1p(-p)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_p + (n - k) * log_not)
        for k in range(kept, n + 1)
    )
