"""Learns a calibration from alerts of which it is known whether they were real. Pure; numpy only.

Platt scaling (J. Platt, 1999: a logistic regression on the score), with the track's stability beside the score, as
the most probable weights under a normal prior (MAP), found by Newton's method. The prior of a camera's label is what
was found for the label, that of a label what was found for all: with few answers a group is close to its parent, with
many it goes its own way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.escalate.calibration import PRIOR, SIGNS, UNTAUGHT, Calibration, Fit, Stability, Weights, features
from appliance.escalate.recall import claimed

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An alert of which it is known whether it was real. weight: how many such alerts it stands for (an audited one of
    a hundred stands for a hundred); id: tells alerts apart."""

    id: str
    camera: str
    label: str
    seen: Stability
    real: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class _Table:
    """Outcomes as arrays, row by row. x: (N, 5) features; real, weight: (N,)."""

    x: Array
    real: Array
    weight: Array

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> _Table:
        return cls(
            np.array([features(each.seen) for each in outcomes], np.float64).reshape(-1, len(PRIOR)),
            np.array([each.real for each in outcomes], np.float64),
            np.array([each.weight for each in outcomes], np.float64),
        )

    def rows(self, index: Sequence[int]) -> _Table:
        chosen = np.array(index, np.intp)
        return _Table(self.x[chosen], self.real[chosen], self.weight[chosen])


def fit(outcomes: Sequence[Outcome], recall: float = UNTAUGHT.recall) -> Calibration:
    """The calibration that these outcomes teach; without any it is the prior. recall: what the router claims to keep.

    What is claimed is measured with chances that the alert itself had no part in (see `held_out`).
    """
    taught, table, honest = _learn(outcomes), _Table.of(outcomes), held_out(outcomes)

    def done(rows: Sequence[int], weights: Weights) -> Fit:
        mine = table.rows(rows)
        claim = claimed(honest[list(rows)], mine.real > 0, mine.weight, recall)
        return Fit(weights=weights, n=len(rows), real=int(mine.real.sum()), claim=claim)

    return Calibration(
        recall=recall,
        everything=done(range(len(outcomes)), taught.everything.weights),
        labels={name: done(rows, taught.labels[name].weights) for name, rows in _by(outcomes, _label).items()},
        cameras={name: done(rows, taught.cameras[name].weights) for name, rows in _by(outcomes, _place).items()},
    )


def held_out(outcomes: Sequence[Outcome], folds: int = FOLDS) -> Array:
    """The chance of each alert by a calibration that was learnt from the other folds. Folds go by the alert's id."""
    chances = np.zeros(len(outcomes))
    fold_of = [int(hashlib.sha256(each.id.encode()).hexdigest()[:8], 16) % folds for each in outcomes]
    for fold in set(fold_of):
        taught = _learn([each for each, own in zip(outcomes, fold_of, strict=True) if own != fold])
        for row, each in enumerate(outcomes):
            if fold_of[row] == fold:
                chances[row] = taught.chance(each.camera, each.label, each.seen).p
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


def _learn(outcomes: Sequence[Outcome]) -> Calibration:
    """The weights of all groups, without what is claimed."""
    table = _Table.of(outcomes)
    everything = Fit(weights=map_weights(table, PRIOR, GLOBAL_PRECISION))
    labels = {
        name: Fit(weights=map_weights(table.rows(rows), everything.weights, LABEL_PRECISION))
        for name, rows in _by(outcomes, _label).items()
    }
    cameras = {
        name: Fit(weights=map_weights(table.rows(rows), labels[outcomes[rows[0]].label].weights, CAMERA_PRECISION))
        for name, rows in _by(outcomes, _place).items()
    }
    return Calibration(everything=everything, labels=labels, cameras=cameras)


def _by(outcomes: Sequence[Outcome], name_of: Callable[[Outcome], str]) -> Mapping[str, list[int]]:
    """Which rows belong to which group, by name."""
    groups: dict[str, list[int]] = {}
    for row, each in enumerate(outcomes):
        groups.setdefault(name_of(each), []).append(row)
    return dict(sorted(groups.items()))


def _label(each: Outcome) -> str:
    return each.label


def _place(each: Outcome) -> str:
    return f"{each.camera}/{each.label}"
