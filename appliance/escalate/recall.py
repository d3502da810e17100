"""Which chance may be left out, such that the recall that is claimed is kept, and how surely."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from appliance.escalate.calibration import Claim

CONFIDENCE = 0.95
_HALVINGS = 40


def claimed(chances: NDArray[np.float64], real: NDArray[np.bool_], weight: NDArray[np.float64], recall: float) -> Claim:
    """The highest chance below which so few of the real alerts lie that `recall` of those to come is kept, with
    95 % confidence; chance_min 0 when there are too few to say so (at 0.98: under 149, with none missed).

    A one-sided tolerance limit from order statistics (S. Wilks, 1941), which holds for any distribution and although
    the limit is chosen on the same alerts. weight: how many alerts each stands for; unequal weights count as fewer
    alerts (L. Kish's effective size), rounded against the claim.
    """
    mine, share = chances[real], weight[real]
    if len(mine) == 0:
        return Claim()
    effective = float(share.sum() ** 2 / (share**2).sum())
    n = math.floor(effective + 1e-9)
    allowed = _missed_max(n, recall)
    none = Claim(real=len(mine), effective=round(effective, 1), recall_low=round(recall_low(n, n), 4))
    if allowed is None:
        return none
    order = np.argsort(mine, kind="stable")
    missed = np.concatenate([[0.0], np.cumsum(share[order])[:-1]]) / share.sum()
    inside = np.flatnonzero(missed * n <= allowed + 1e-9)
    chance_min = float(mine[order][inside[-1]])
    kept = float(share[mine >= chance_min].sum() / share.sum())
    return Claim(
        chance_min=chance_min,
        recall=round(kept, 4),
        recall_low=round(recall_low(math.floor(kept * n + 1e-9), n), 4),
        real=len(mine),
        effective=round(effective, 1),
    )


def recall_low(kept: int, n: int, confidence: float = CONFIDENCE) -> float:
    """The lower bound of the share of which `kept` of `n` were kept (C. Clopper, E. Pearson, 1934; one-sided)."""
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


def _missed_max(n: int, recall: float) -> int | None:
    """Of how many misses among `n` the recall is still sure; None: not even without any."""
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
    """The probability of `kept` or more of `n` when each is kept with probability `p`."""
    if kept <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    k = np.arange(kept, n + 1)
    logs = np.array([math.lgamma(each + 1) + math.lgamma(n - each + 1) for each in k])
    return float(np.exp(math.lgamma(n + 1) - logs + k * math.log(p) + (n - k) * math.log1p(-p)).sum())
