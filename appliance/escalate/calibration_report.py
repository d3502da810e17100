"""How well a calibration tells real alerts from false ones, beside the bare detection score, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.escalate.calibration import Calibration, Claim
from appliance.escalate.calibration_fit import Outcome, fit, held_out

BINS = 10
RESAMPLES = 500
_LEVEL = (2.5, 97.5)
Array = NDArray[np.float64]
Measure = Callable[[Array, Array, Array], float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One label on one camera; camera and label "" for all. before: the detection score taken for a probability;
    after: the chance, of each alert by a calibration that was learnt without it. claim: see `Claim`."""

    camera: str
    label: str
    n: int
    real: int
    brier_before: Figure
    brier_after: Figure
    ece_before: Figure
    ece_after: Figure
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """recall: what the thresholds are to keep."""

    recall: float
    groups: tuple[GroupReport, ...]
    calibration: Calibration


def report(outcomes: Sequence[Outcome], recall: float) -> CalibrationReport:
    """All alerts first, then each label of each camera. Deterministic: the bootstrap's seed is fixed."""
    calibration = fit(outcomes, recall)
    before = np.array([each.seen.score for each in outcomes], np.float64)
    after = held_out(outcomes)
    real = np.array([each.real for each in outcomes], np.float64)
    weight = np.array([each.weight for each in outcomes], np.float64)

    def group(camera: str, label: str, rows: list[int], claim: Claim) -> GroupReport:
        a, b, y, w = before[rows], after[rows], real[rows], weight[rows]
        return GroupReport(
            camera=camera,
            label=label,
            n=len(rows),
            real=int(y.sum()),
            brier_before=_figure(brier, a, y, w),
            brier_after=_figure(brier, b, y, w),
            ece_before=_figure(ece, a, y, w),
            ece_after=_figure(ece, b, y, w),
            claim=claim,
        )

    places = sorted({(each.camera, each.label) for each in outcomes})
    rows_of = {
        place: [row for row, each in enumerate(outcomes) if (each.camera, each.label) == place] for place in places
    }
    groups = [group(*place, rows, calibration.claim(*place)) for place, rows in rows_of.items()]
    whole = [group("", "", list(range(len(outcomes))), calibration.everything.claim)] if outcomes else []
    return CalibrationReport(recall=recall, groups=(*whole, *groups), calibration=calibration)


def brier(chances: Array, real: Array, weight: Array) -> float:
    """The mean squared error of the probabilities (G. Brier, 1950); 0 is perfect, 0.25 is a coin."""
    return float(np.average((chances - real) ** 2, weights=weight))


def ece(chances: Array, real: Array, weight: Array, bins: int = BINS) -> float:
    """Expected calibration error: how far from the share of real ones the mean probability of a bin is, over bins of
    equal width (M. Naeini et al., 2015). Grows by chance where there are few alerts: read it with its interval."""
    at = np.minimum((chances * bins).astype(int), bins - 1)
    gaps = np.bincount(at, weight * (chances - real), bins)
    return float(np.abs(gaps).sum() / weight.sum())


def _figure(measure: Measure, chances: Array, real: Array, weight: Array) -> Figure:
    chance = np.random.default_rng(0)
    draws = [chance.integers(0, len(real), len(real)) for _ in range(RESAMPLES)]
    values = [measure(chances[draw], real[draw], weight[draw]) for draw in draws]
    low, high = np.percentile(values, _LEVEL)
    return Figure(round(measure(chances, real, weight), 4), round(float(low), 4), round(float(high), 4))
