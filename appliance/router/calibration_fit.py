"""Fits a calibration to alerts known to be real or not, and bounds the recall that leaving some of them out keeps.

Platt scaling (J. Platt, 1999: a logistic regression on the score), with the track's stability beside the score, as
the most probable weights under a normal prior (MAP), found by Newton's method. The prior of a camera's label is what
was found for the label, that of a label what was found for all: with few answers a group is close to its parent, with
many it goes its own way. Pure; numpy only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.router.calibration import (
    PRIOR,
    SIGNS,
    UNTRAINED,
    Calibration,
    GroupFit,
    RecallClaim,
    TrackStability,
    Weights,
    features,
)
from appliance.store.decisions import OutcomeRow

CONFIDENCE = 0.95
_HALVINGS = 40
FOLDS = 5
ROUNDS_MAX = 50
TINY = 1e-9
# How surely the parent is believed: 1 / variance, of the intercept and of the slopes. An answer on the edge weighs 1/4,
# so an intercept's precision of 4 is as much as some 16 answers. An answer is heard three times, for all, for its label
# and for its camera, so each time it is to move little: three in a row against a sure chance make it a doubtful one.
GLOBAL_PRECISION = (2.0, 16.0)
LABEL_PRECISION = (4.0, 32.0)
CAMERA_PRECISION = (4.0, 32.0)
Array = NDArray[np.float64]
AUDIT_WEIGHT_MAX = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOutcome:
    """An alert of which it is known whether it was real. weight: how many such alerts it stands for (an audited one of
    a hundred stands for a hundred); id: tells alerts apart."""

    id: str
    camera: str
    label: str
    stability: TrackStability
    real: bool
    weight: float = 1.0


def fit(outcomes: Sequence[AlertOutcome], recall: float = UNTRAINED.recall) -> Calibration:
    """The calibration that these outcomes teach; without any it is the prior. recall: what the router claims to keep.

    What is claimed is measured with chances that the alert itself had no part in (see `held_out`).
    """
    taught, table, honest = _learn(outcomes), _Table.of(outcomes), held_out(outcomes)

    def done(rows: Sequence[int], weights: Weights) -> GroupFit:
        mine = table.rows(rows)
        claim = claim_recall(honest[list(rows)], mine.real > 0, mine.weight, recall)
        return GroupFit(weights=weights, n=len(rows), real=int(mine.real.sum()), claim=claim)

    return Calibration(
        recall=recall,
        everything=done(range(len(outcomes)), taught.everything.weights),
        labels={name: done(rows, taught.labels[name].weights) for name, rows in _by(outcomes, _label).items()},
        cameras={name: done(rows, taught.cameras[name].weights) for name, rows in _by(outcomes, _camera_label).items()},
    )


def held_out(outcomes: Sequence[AlertOutcome], folds: int = FOLDS) -> Array:
    """The chance of each alert by a calibration that was learnt from the other folds. Folds go by the alert's id."""
    chances = np.zeros(len(outcomes))
    fold_of = [int(hashlib.sha256(each.id.encode()).hexdigest()[:8], 16) % folds for each in outcomes]
    for fold in set(fold_of):
        taught = _learn([each for each, own in zip(outcomes, fold_of, strict=True) if own != fold])
        for row, each in enumerate(outcomes):
            if fold_of[row] == fold:
                chances[row] = taught.chance(each.camera, each.label, each.stability).p
    return chances


def map_weights(table: _Table, parent: Weights, precision: tuple[float, float]) -> Weights:
    """The most probable weights given the rows, drawn towards `parent`, each with the sign that it must have.

    A weight that would take the wrong sign is held at 0 and the others are found anew, so the chance never falls when
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

    One that was escalated as one of an audit sample stands for all that were left out like it, so that what is not
    escalated is not forgotten (inverse probability weighting; D. Horvitz, D. Thompson, 1952).
    """
    return [
        AlertOutcome(
            id=row.alert,
            camera=row.camera,
            label=row.inputs.label,
            stability=TrackStability(
                score=row.inputs.score, spread=row.inputs.spread, looks=row.inputs.looks, moved=row.inputs.moved
            ),
            real=row.real,
            weight=min(1 / row.inputs.audit_share, AUDIT_WEIGHT_MAX) if row.inputs.audit_share > 0 else 1.0,
        )
        for row in rows
    ]


def claim_recall(
    chances: NDArray[np.float64], real: NDArray[np.bool_], weight: NDArray[np.float64], recall: float
) -> RecallClaim:
    """The highest chance below which so few of the real alerts lie that `recall` of those to come is kept, with
    95 % confidence; chance_min 0 when there are too few to say so (at 0.98: under 149, with none missed).

    A one-sided tolerance limit from order statistics (S. Wilks, 1941), which holds for any distribution and although
    the limit is chosen on the same alerts. weight: how many alerts each stands for; unequal weights count as fewer
    alerts (L. Kish's effective size), rounded against the claim.
    """
    mine, share = chances[real], weight[real]
    if len(mine) == 0:
        return RecallClaim()
    effective = float(share.sum() ** 2 / (share**2).sum())
    n = math.floor(effective + 1e-9)
    allowed = _missed_max(n, recall)
    none = RecallClaim(real=len(mine), effective=round(effective, 1), recall_low=round(recall_low(n, n), 4))
    if allowed is None:
        return none
    order = np.argsort(mine, kind="stable")
    missed = np.concatenate([[0.0], np.cumsum(share[order])[:-1]]) / share.sum()
    inside = np.flatnonzero(missed * n <= allowed + 1e-9)
    chance_min = float(mine[order][inside[-1]])
    kept = float(share[mine >= chance_min].sum() / share.sum())
    return RecallClaim(
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

    The likelihood is concave, so a step that goes too far is halved until it climbs.
    """
    penalty = np.array([precision[0], *[precision[1]] * (len(PRIOR) - 1)])
    mean = table.weight.mean() if len(table.weight) else 1.0
    weight = table.weight / mean  # as many answers as there are rows: what stands for many was still seen once

    def height(at: Array) -> float:
        z = table.x @ at
        return float((weight * (table.real * z - np.logaddexp(0, z))).sum() - (penalty * (at - start) ** 2).sum() / 2)

    weights = start.copy()
    for _ in range(ROUNDS_MAX):
        p = 1 / (1 + np.exp(-np.clip(table.x @ weights, -30, 30)))
        slope = table.x.T @ (weight * (table.real - p)) - penalty * (weights - start)
        curve = (table.x.T * (weight * p * (1 - p))) @ table.x + np.diag(penalty)
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
    """The weights of all groups, without what is claimed."""
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
