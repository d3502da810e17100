"""Fits a calibration to alerts known to be real or not, and bounds the recall when some are left out.

A claim about the alerts that stay at the edge as sure is a bound on the share of wrong ones among them.

Platt scaling (J. Platt, 1999: a logistic regression on the score), with the track's stability beside the score, as the
most probable weights under a normal prior (MAP), found by Newton's method. The prior for a label on a camera is the fit
for the label; the prior for a label is the fit for all alerts. With few answers a group is close to its parent, with
many it differs. Pure; numpy only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from appliance.router.calibration import (
    CONFIDENCE,
    PRIOR,
    SIGNS,
    SURE_MIN,
    UNTRAINED,
    Calibration,
    GroupFit,
    RecallClaim,
    SureClaim,
    Weights,
    error_bound,
    features,
    missed_max,
    recall_low,
)
from appliance.store.decisions import DecidedRow, OutcomeRow
from appliance.types import TrackStability

FOLDS = 5  # of cross-validation (Hastie et al., 7.10: five or ten)
ROUNDS_MAX = 50  # Newton's method converges in under ten
TINY = 1e-9  # keeps a logarithm finite
# How surely the parent is believed: 1 / variance, of the intercept and of the slopes. An answer on the edge weighs 1/4,
# so an intercept's precision of 4 is as much as some 16 answers. An answer is heard three times, for all, for its label
# and for its camera, so each time it is to move little: three in a row against a sure chance make it a doubtful one.
GLOBAL_PRECISION = (2.0, 16.0)
LABEL_PRECISION = (4.0, 32.0)  # of the prior: as much as 4 or 32 known alerts, the better in cross-validation
CAMERA_PRECISION = (4.0, 32.0)  # likewise, of a camera's own offset
Array = NDArray[np.float64]
AUDIT_WEIGHT_MAX = 200.0  # one audited alert stands for at most so many that were not
ERROR_MAX = 0.05  # of the sure ones; see RouterConfig.error_max
# Thresholds that are tried for a claim, fixed beforehand: the confidence is shared among them (Bonferroni), so that the
# claim holds although the lowest one that passes is chosen on the same alerts.
LEFT_OUT_GRID = (0.3, 0.2, 0.1, 0.05, 0.02)
SURE_GRID = (0.5, 0.6, 0.7, 0.8, 0.9, SURE_MIN, 0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOutcome:
    """An alert of which it is known whether it was real.

    weight: the number of alerts that it represents (an audited one of a hundred represents a hundred); id: of the
    alert.
    """

    id: str
    camera: str
    label: str
    stability: TrackStability
    real: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedAlert:
    """An alert that was decided about, whether it is known to be right or not."""

    camera: str
    label: str
    stability: TrackStability

    @property
    def place(self) -> str:
        """The group of the camera's label."""
        return f"{self.camera}/{self.label}"


def decided_of(rows: Iterable[DecidedRow]) -> list[DecidedAlert]:
    """Alerts as the router saw them when it decided."""
    return [DecidedAlert(camera=row.camera, label=row.inputs.label, stability=row.inputs.stability) for row in rows]


def fit(
    outcomes: Sequence[AlertOutcome],
    recall: float = UNTRAINED.recall,
    error_max: float = ERROR_MAX,
    decided: Sequence[DecidedAlert] = (),
) -> Calibration:
    """Return the calibration fitted to these outcomes; without outcomes it is the prior.

    recall: the share that the router claims to keep; error_max: the share of sure ones that may be wrong; decided: all
    alerts, known or not. Claims use the chance of an alert by a fit without it (see `held_out`).
    """
    taught, table, honest = _learn(outcomes), _Table.of(outcomes), held_out(outcomes)
    come = np.array([taught.probability(each.camera, each.label, each.stability) for each in decided], np.float64)

    def done(
        rows: Sequence[int], weights: Weights, same: Callable[[DecidedAlert], bool] = lambda each: True
    ) -> GroupFit:
        mine = table.rows(rows)
        chances, real = honest[list(rows)], mine.real > 0
        alike = come[[row for row, each in enumerate(decided) if same(each)]]
        claim = claim_recall(chances, real, mine.weight, recall, alike)
        sure = claim_sure(chances, real, error_max)
        return GroupFit(weights=weights, n=len(rows), real=int(mine.real.sum()), claim=claim, sure=sure)

    return Calibration(
        recall=recall,
        everything=done(range(len(outcomes)), taught.everything.weights),
        labels={
            name: done(rows, taught.labels[name].weights, lambda each, name=name: each.label == name)  # type: ignore[misc]
            for name, rows in _by(outcomes, _label).items()
        },
        cameras={
            name: done(rows, taught.cameras[name].weights, lambda each, name=name: each.place == name)  # type: ignore[misc]
            for name, rows in _by(outcomes, _camera_label).items()
        },
    )


def held_out(outcomes: Sequence[AlertOutcome]) -> Array:
    """Return the chance of each alert by a calibration fitted to the other folds. The alert's id sets its fold."""
    chances = np.zeros(len(outcomes))
    fold_of = [int(hashlib.sha256(each.id.encode()).hexdigest()[:8], 16) % FOLDS for each in outcomes]
    for fold in set(fold_of):
        taught = _learn([each for each, own in zip(outcomes, fold_of, strict=True) if own != fold])
        for row, each in enumerate(outcomes):
            if fold_of[row] == fold:
                chances[row] = taught.probability(each.camera, each.label, each.stability)
    return chances


def map_weights(table: _Table, parent: Weights, precision: tuple[float, float]) -> Weights:
    """Return the most probable weights for the rows, regularised towards `parent`, each with its required sign.

    A weight that would get the wrong sign is fixed at 0 and the others are fitted again, so the chance never falls when
    the score rises.
    """
    sign = np.array(SIGNS)
    free = np.ones(len(PRIOR), np.bool_)
    weights = np.array(parent)
    for _ in SIGNS:
        weights = _newton(table, np.where(free, np.array(parent), 0.0), precision, free)
        wrong = free & (weights * sign < 0)
        if not wrong.any():
            break
        free &= ~wrong
    a, b, c, d, e = (float(each) for each in weights)
    return (a, b, c, d, e)


def outcomes_of(rows: Iterable[OutcomeRow]) -> list[AlertOutcome]:
    """Alerts that were reviewed or judged, as the router saw them when it decided.

    An alert that was escalated as part of an audit sample represents all similar ones that were left out, so that these
    count, too (inverse probability weighting; D. Horvitz, D. Thompson, 1952).
    """
    return [
        AlertOutcome(
            id=row.alert,
            camera=row.camera,
            label=row.inputs.label,
            stability=row.inputs.stability,
            real=row.real,
            weight=min(1 / row.inputs.audit_share, AUDIT_WEIGHT_MAX) if row.inputs.audit_share > 0 else 1.0,
        )
        for row in rows
    ]


def claim_recall(
    chances: Array, real: NDArray[np.bool_], weight: Array, recall: float, decided: Array | None = None
) -> RecallClaim:
    """Return the highest chance below which so few real alerts lie that `recall` of those to come is kept, at 95 %.

    chance_min is 0 if too few are known for a claim (at 0.98: under 149, with none missed). While all alerts are
    escalated, every known one counts alike and `_claim_all_asked` says it; once some are known from an audit sample,
    `_claim_audited` does. decided: the chances of alerts as they come, known or not; without any, the weights say how
    many there are.
    """
    if len(weight) == 0 or np.ptp(weight) == 0:
        return _claim_all_asked(chances[real], recall)
    return _claim_audited(chances, real, weight, recall, np.zeros(0) if decided is None else decided)


def _claim_all_asked(mine: NDArray[np.float64], recall: float) -> RecallClaim:
    """mine: the chances of the real ones.

    A one-sided tolerance limit from order statistics (S. Wilks, 1941), which holds for any distribution and although
    the limit is chosen on the same alerts.
    """
    n = len(mine)
    allowed = missed_max(n, recall)
    if allowed is None:
        return RecallClaim(real=n, effective=float(n), recall_low=round(recall_low(n, n), 4))
    chance_min = float(np.sort(mine)[min(allowed, n - 1)])
    kept = int((mine >= chance_min).sum())
    return RecallClaim(
        chance_min=chance_min,
        recall=round(kept / n, 4),
        recall_low=round(recall_low(kept, n), 4),
        real=n,
        effective=float(n),
    )


def _claim_audited(
    chances: Array, real: NDArray[np.bool_], weight: Array, recall: float, decided: Array
) -> RecallClaim:
    """Return the claim with the highest limit of LEFT_OUT_GRID that keeps the recall. weight: alerts each represents.

    The claim combines three bounds: the largest share of real alerts below the limit, the smallest share of real ones
    above it, and the largest share of all alerts below it. The first two count every known alert once. On each side
    only the chance decided whether an alert was escalated, and the error is larger where more were. Weights would leave
    few effective alerts (L. Kish), so the audit that must support the claim would destroy it. The third bound is
    counted on all alerts; without those the weights estimate it (D. Horvitz, D. Thompson, 1952).
    """
    level = (1 - CONFIDENCE) / len(LEFT_OUT_GRID)
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    for at in LEFT_OUT_GRID:
        below = chances < at
        n, n_real, kept, kept_real = (int(each.sum()) for each in (below, below & real, ~below, ~below & real))
        if not n:
            continue
        if len(decided):
            below_high = error_bound(int((decided < at).sum()), len(decided), 1 - level / 4)
        else:
            below_high = _share_high(weight, below, effective, level / 4)
        missed_high = error_bound(n_real, n, 1 - level / 2) * below_high
        kept_low = recall_low(kept_real, kept, 1 - level / 4) * (1 - below_high)
        low = kept_low / (kept_low + missed_high) if kept_low > 0 else 0.0
        if low >= recall:
            missed = float(weight[below & real].sum() / weight[real].sum())
            return RecallClaim(
                chance_min=at,
                recall=round(1 - missed, 4),
                recall_low=round(low, 4),
                real=int(real.sum()),
                effective=round(effective, 1),
            )
    return RecallClaim(real=int(real.sum()), effective=round(effective, 1))


def _share_high(weight: Array, below: NDArray[np.bool_], effective: float, level: float) -> float:
    """Return the upper bound of the share of all alerts that lie below."""
    share = float(weight[below].sum() / weight.sum())
    return min(1.0, share + NormalDist().inv_cdf(1 - level) * math.sqrt(share * (1 - share) / effective))


def claim_sure(chances: NDArray[np.float64], real: NDArray[np.bool_], error_max: float) -> SureClaim:
    """Return the claim with the lowest limit of SURE_GRID from which on at most `error_max` of the alerts are false.

    It holds with 95 % confidence: a one-sided Clopper-Pearson bound at each limit, at a confidence that holds for all
    of them together. Every known alert counts once. Alerts below a threshold are less sure and were escalated more
    often, so they can only make the share of wrong ones look larger.
    """
    confidence = 1 - (1 - CONFIDENCE) / len(SURE_GRID)
    needed = math.ceil(math.log(1 - confidence) / math.log1p(-error_max)) if 0 < error_max < 1 else 1
    if not len(chances):
        return SureClaim()
    for at in SURE_GRID:
        kept = chances >= at
        n, wrong = int(kept.sum()), int((kept & ~real).sum())
        high = error_bound(wrong, n, confidence)
        if n and high <= error_max:
            return SureClaim(chance_max=at, error_high=round(high, 4), wrong=wrong, n=n, needed=needed)
    kept = chances >= SURE_MIN
    n, wrong = int(kept.sum()), int((kept & ~real).sum())
    return SureClaim(error_high=round(error_bound(wrong, n, confidence), 4), wrong=wrong, n=n, needed=needed)


@dataclass(frozen=True, slots=True)
class _Table:
    """Outcomes as arrays, row by row. x: (N, 5) features; real, weight: (N,)."""

    x: Array
    real: Array
    weight: Array

    @classmethod
    def of(cls, outcomes: Sequence[AlertOutcome]) -> _Table:
        return cls(
            np.array([features(each.stability) for each in outcomes], np.float64).reshape(-1, len(PRIOR)),
            np.array([each.real for each in outcomes], np.float64),
            np.array([each.weight for each in outcomes], np.float64),
        )

    def rows(self, index: Sequence[int]) -> _Table:
        chosen = np.array(index, np.intp)
        return _Table(self.x[chosen], self.real[chosen], self.weight[chosen])


def _newton(table: _Table, start: Array, precision: tuple[float, float], free: NDArray[np.bool_]) -> Array:
    """Newton's method on the penalised log likelihood, over the weights that are `free`.

    Every answer counts once, also one of an audit sample. Alerts were chosen by their chance, that is by the features,
    so the odds given the features are learnt without weights. The likelihood is concave, so a step that goes too far is
    halved until the likelihood rises.
    """
    penalty = np.array([precision[0], *[precision[1]] * (len(PRIOR) - 1)])

    def height(at: Array) -> float:
        z = table.x @ at
        return float((table.real * z - np.logaddexp(0, z)).sum() - (penalty * (at - start) ** 2).sum() / 2)

    weights = start.copy()
    for _ in range(ROUNDS_MAX):
        p = 1 / (1 + np.exp(-np.clip(table.x @ weights, -30, 30)))
        slope = table.x.T @ (table.real - p) - penalty * (weights - start)
        curve = (table.x.T * (p * (1 - p))) @ table.x + np.diag(penalty)
        step = np.zeros(len(weights))
        step[free] = np.linalg.solve(curve[np.ix_(free, free)], slope[free])
        here = height(weights)
        while height(weights + step) < here and np.abs(step).max() > TINY:
            step /= 2
        weights = weights + step
        if np.abs(step).max() <= TINY:
            break
    return weights


def _learn(outcomes: Sequence[AlertOutcome]) -> Calibration:
    """Return the weights of all groups, without claims."""
    table = _Table.of(outcomes)
    everything = GroupFit(weights=map_weights(table, PRIOR, GLOBAL_PRECISION))
    labels = {
        name: GroupFit(weights=map_weights(table.rows(rows), everything.weights, LABEL_PRECISION))
        for name, rows in _by(outcomes, _label).items()
    }
    cameras = {
        name: GroupFit(weights=map_weights(table.rows(rows), labels[outcomes[rows[0]].label].weights, CAMERA_PRECISION))
        for name, rows in _by(outcomes, _camera_label).items()
    }
    return Calibration(everything=everything, labels=labels, cameras=cameras)


def _by(outcomes: Sequence[AlertOutcome], name_of: Callable[[AlertOutcome], str]) -> Mapping[str, list[int]]:
    """Which rows belong to which group, by name."""
    groups: dict[str, list[int]] = {}
    for row, each in enumerate(outcomes):
        groups.setdefault(name_of(each), []).append(row)
    return dict(sorted(groups.items()))


def _label(each: AlertOutcome) -> str:
    return each.label


def _camera_label(each: AlertOutcome) -> str:
    return f"{each.camera}/{each.label}"
