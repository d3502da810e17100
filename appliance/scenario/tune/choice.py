"""Which point is taken, and why: the aim, the present setting, and how far the footage can tell them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from appliance.errors import UsageError
from appliance.scenario.measures import EventFigures
from appliance.scenario.tune.point import Difference, Outcome, Point, difference, figures_of

SCENARIOS_MIN = 3  # for leaving one out
_AIM = re.compile(r"^(recall|precision)\s*>=\s*(0?\.\d+|1(?:\.0*)?|0)$")


@dataclass(frozen=True, slots=True)
class Aim:
    """The best of one figure among the points at which the other reaches its floor; f1 has no floor."""

    floor_of: Literal["recall", "precision", "f1"]
    floor: float = 0.0

    @property
    def words(self) -> str:
        if self.floor_of == "f1":
            return "the best F1 (harmonic mean of recall and precision)"
        other = "precision" if self.floor_of == "recall" else "recall"
        return f"the best {other} at a {self.floor_of} of at least {self.floor:g}"

    def reached(self, figures: EventFigures) -> bool:
        return self.floor_of == "f1" or _value(figures, self.floor_of) >= self.floor

    def rank(self, figures: EventFigures) -> tuple[float, ...]:
        """Higher is better; a point that misses the floor is below all that reach it, the nearer the better."""
        recall, precision = _value(figures, "recall"), _value(figures, "precision")
        calm = -(figures.alerts_per_hour or 0.0)
        if self.floor_of == "f1":
            both = recall + precision
            return (1.0, round(2 * recall * precision / both, 9) if both else 0.0, calm)
        floored, other = (recall, precision) if self.floor_of == "recall" else (precision, recall)
        return (1.0, other, calm) if self.reached(figures) else (0.0, floored, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen point, what it changes, and what it reaches on clips that it was not chosen on.

    gained: its recall less the present one's; None where they cannot be paired. left_out: figures when each scenario
    is judged at the point that the other scenarios choose; None with fewer than SCENARIOS_MIN.
    """

    aim: Aim
    point: Point
    present: Point
    gained: Difference | None
    left_out: EventFigures | None
    reached: bool


def read_aim(text: str) -> Aim:
    """`recall>=0.95`, `precision>=0.9` or `f1`. Raises UsageError."""
    if text.strip() == "f1":
        return Aim("f1")
    match = _AIM.match(text.strip())
    if match is None:
        raise UsageError(f"--aim {text}: write recall>=0.95, precision>=0.9 or f1")
    figure: Literal["recall", "precision"] = "recall" if match.group(1) == "recall" else "precision"
    return Aim(figure, float(match.group(2)))


def choose(points: Sequence[Point], aim: Aim) -> Choice:
    """points: all with the same scenarios; one of them the present one."""
    present = next(point for point in points if point.present)
    taken = points[_best([point.outcomes for point in points], points, aim)]
    return Choice(
        aim=aim,
        point=taken,
        present=present,
        gained=None if taken is present else difference(taken, present),
        left_out=_left_out(points, aim),
        reached=aim.reached(taken.figures),
    )


def _best(outcomes: Sequence[tuple[Outcome, ...]], points: Sequence[Point], aim: Aim) -> int:
    """The place of the best point; of equals the present one, or the middle one of those nearest to what it does."""
    ranks = [aim.rank(figures_of(each)) for each in outcomes]
    best = max(ranks)
    equal = [place for place, rank in enumerate(ranks) if rank == best]
    at_present = next((place for place in equal if points[place].present), None)
    if at_present is not None:
        return at_present
    present = figures_of(outcomes[next(place for place, point in enumerate(points) if point.present)])
    # Nearest in what it does, not in the setting's own unit: several settings have no common one. The middle, since
    # the ends of a plateau are where other footage falls off it.
    apart = [abs(figures_of(outcomes[place]).alerts - present.alerts) for place in equal]
    nearest = [place for place, far in zip(equal, apart, strict=True) if far == min(apart)]
    return nearest[(len(nearest) - 1) // 2]


def _left_out(points: Sequence[Point], aim: Aim) -> EventFigures | None:
    names = [outcome.scenario for outcome in points[0].outcomes]
    if len(names) < SCENARIOS_MIN:
        return None
    judged = []
    for out in range(len(names)):
        rest = [point.outcomes[:out] + point.outcomes[out + 1 :] for point in points]
        judged.append(points[_best(rest, points, aim)].outcomes[out])
    return figures_of(judged)


def _value(figures: EventFigures, name: Literal["recall", "precision"]) -> float:
    """A share of nothing is no fault: 1."""
    value = (figures.recall if name == "recall" else figures.precision).value
    return 1.0 if value is None else value
