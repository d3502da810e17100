"""Chooses the best settings of a `vedette tune` sweep.

An operating point is one combination of settings with its results on each scenario. The best one reaches the aim
(such as `recall>=0.95`); its figures are cross-validated by leaving one scenario out at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from appliance.base.errors import UsageError
from appliance.scenario.expectations import Expectation
from appliance.scenario.metrics import LEVEL, RESAMPLES, EventFigures, event_figures
from appliance.scenario.scenario_result import ScenarioResult

SweepValue = float | str
SweepSetting = tuple[tuple[str, SweepValue], ...]  # (key, value) of every sweep, in the order of the command line
SCENARIOS_MIN = 3  # for leaving one out
_AIM_PATTERN = re.compile(r"^(recall|precision)\s*>=\s*(0?\.\d+|1(?:\.0*)?|0)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """One scenario at one operating point. required: (expectation, how many events, how many came), sorted."""

    scenario: str
    required: tuple[tuple[str, int, int], ...]
    right: int
    wrong: int
    delays: tuple[float, ...]
    alerts: int
    footage_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A combination of settings with its outcomes. setting: empty for the current settings, as the files have them."""

    setting: SweepSetting
    outcomes: tuple[ScenarioOutcome, ...]
    figures: EventFigures = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", figures_of(self.outcomes))

    @property
    def present(self) -> bool:
        return not self.setting

    @property
    def text(self) -> str:
        """`score_min 0.45`, or `as it is`."""
        return ", ".join(f"{key} {_format_value(value)}" for key, value in self.setting) or "as it is"

    @property
    def wrong(self) -> int:
        return sum(outcome.wrong for outcome in self.outcomes)

    @property
    def reported(self) -> int:
        return sum(filled for outcome in self.outcomes for _, _, filled in outcome.required)

    @property
    def bytes(self) -> int:
        return sum(outcome.bytes for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class RecallDifference:
    """Recall of one point less that of another on the same events, with its 95 % interval (paired bootstrap)."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """True if the interval excludes 0: the footage can tell the two apart."""
        return self.low > 0 or self.high < 0


def outcome_of(name: str, result: ScenarioResult) -> ScenarioOutcome:
    """Return what the comparison of operating points needs of a scenario's result.

    An expectation of several events is in the judgement once for each event that came and once for those that did
    not; here it has one row.
    """
    matches, events = result.judgement, result.events
    required_of: dict[str, tuple[int, int]] = {}  # by expectation: events required, events missing
    keys: dict[int, str] = {}  # of an expectation that was met before
    counts: dict[str, int] = {}
    for wanted, missing in (
        *((hit.wanted, 0) for hit in matches.hits),
        *((miss.wanted, miss.missing) for miss in matches.misses),
    ):
        key = keys.get(id(wanted)) or _expectation_key(wanted, counts)
        keys[id(wanted)] = key
        required_of[key] = (wanted.min, required_of.get(key, (0, 0))[1] + missing)
    return ScenarioOutcome(
        scenario=name,
        required=tuple(sorted((key, least, least - missing) for key, (least, missing) in required_of.items() if least)),
        right=len(matches.hits),
        wrong=len(matches.false_alarms),
        delays=tuple(hit.delay_s for hit in matches.hits if hit.delay_s is not None),
        alerts=events.alerts if events else 0,
        footage_s=events.footage_s if events else 0.0,
        bytes=result.bytes,
    )


def figures_of(outcomes: Sequence[ScenarioOutcome]) -> EventFigures:
    """Return the figures of all scenarios as if they were one."""
    return event_figures(
        [flag for outcome in outcomes for flag in _filled_slots(outcome)],
        [True] * sum(each.right for each in outcomes) + [False] * sum(each.wrong for each in outcomes),
        [delay for outcome in outcomes for delay in outcome.delays],
        alerts=sum(each.alerts for each in outcomes),
        footage_s=sum(each.footage_s for each in outcomes),
    )


def recall_difference(one: OperatingPoint, other: OperatingPoint) -> RecallDifference | None:
    """Return how much more recall `one` has; None where the two examined, and so expected, different things."""
    if _requirements(one) != _requirements(other) or not one.outcomes:
        return None
    ours, theirs = (
        np.array([flag for outcome in point.outcomes for flag in _filled_slots(outcome)], float)
        for point in (one, other)
    )
    if not len(ours):
        return None
    gained = ours - theirs
    drawn = np.random.default_rng(0).choice(gained, (RESAMPLES, len(gained))).mean(axis=1)
    low, high = np.percentile(drawn, LEVEL)
    if gained.min() == gained.max():  # the bootstrap would claim certainty: see `estimate_share`
        far = 1 - 0.025 ** (1 / len(gained))
        low, high = max(-1.0, low - far), min(1.0, high + far)
    return RecallDifference(float(gained.mean()), float(low), float(high))


def _requirements(point: OperatingPoint) -> list[tuple[str, str, int]]:
    return [(outcome.scenario, key, least) for outcome in point.outcomes for key, least, _ in outcome.required]


def _filled_slots(outcome: ScenarioOutcome) -> list[bool]:
    return [number < filled for _, least, filled in outcome.required for number in range(least)]


def _expectation_key(wanted: Expectation, counts: dict[str, int]) -> str:
    """Return a key of an expectation that is the same in every run: source, pattern, a number where two are equal."""
    text = f"{wanted.source}: {wanted.pattern.text()}"
    counts[text] = counts.get(text, 0) + 1
    return text if counts[text] == 1 else f"{text} ({counts[text]})"


def _format_value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class TuningAim:
    """The best of one figure among the points where the other reaches its floor; f1 has no floor."""

    floor_of: Literal["recall", "precision", "f1"]
    floor: float = 0.0

    @property
    def text(self) -> str:
        if self.floor_of == "f1":
            return "the best F1 (harmonic mean of recall and precision)"
        other = "precision" if self.floor_of == "recall" else "recall"
        return f"the best {other} at a {self.floor_of} of at least {self.floor:g}"

    def reached(self, figures: EventFigures) -> bool:
        return self.floor_of == "f1" or _value(figures, self.floor_of) >= self.floor

    def rank(self, figures: EventFigures) -> tuple[float, ...]:
        """Return a rank, higher is better; a point that misses the floor is below all that reach it.

        Fewer alerts do not lift one that misses it: where nothing is found, a setting that reports nothing would win.
        """
        recall, precision = _value(figures, "recall"), _value(figures, "precision")
        fewer_alerts = -(figures.alerts_per_hour or 0.0)
        if self.floor_of == "f1":
            both = recall + precision
            return (1.0, round(2 * recall * precision / both, 9) if both else 0.0, fewer_alerts)
        bounded, other = (recall, precision) if self.floor_of == "recall" else (precision, recall)
        return (1.0, other, fewer_alerts) if self.reached(figures) else (0.0, bounded, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningChoice:
    """The chosen point, what it changes, and what it reaches on clips that it was not chosen on.

    gained: its recall less the present one's; None where they cannot be paired. left_out: figures when each scenario
    is judged at the point that the other scenarios choose; None with fewer than SCENARIOS_MIN.
    """

    aim: TuningAim
    point: OperatingPoint
    present: OperatingPoint
    gained: RecallDifference | None
    left_out: EventFigures | None
    reached: bool


def read_aim(text: str) -> TuningAim:
    """Read `recall>=0.95`, `precision>=0.9` or `f1`. Raises UsageError."""
    if text.strip() == "f1":
        return TuningAim("f1")
    match = _AIM_PATTERN.match(text.strip())
    if match is None:
        raise UsageError(f"--aim {text}: write recall>=0.95, precision>=0.9 or f1")
    figure: Literal["recall", "precision"] = "recall" if match.group(1) == "recall" else "precision"
    return TuningAim(figure, float(match.group(2)))


def choose_point(points: Sequence[OperatingPoint], aim: TuningAim) -> TuningChoice:
    """Choose a point. points: all with the same scenarios; one of them the present one."""
    present = next(point for point in points if point.present)
    chosen = points[_best([point.outcomes for point in points], points, aim)]
    return TuningChoice(
        aim=aim,
        point=chosen,
        present=present,
        gained=None if chosen is present else recall_difference(chosen, present),
        left_out=_left_out(points, aim),
        reached=aim.reached(chosen.figures),
    )


def _best(outcomes: Sequence[tuple[ScenarioOutcome, ...]], points: Sequence[OperatingPoint], aim: TuningAim) -> int:
    """Return the index of the best point; of equals the present one, or the middle one of those nearest in alerts."""
    ranks = [aim.rank(figures_of(each)) for each in outcomes]
    best = max(ranks)
    equal = [place for place, rank in enumerate(ranks) if rank == best]
    at_present = next((place for place in equal if points[place].present), None)
    if at_present is not None:
        return at_present
    present = figures_of(outcomes[next(place for place, point in enumerate(points) if point.present)])
    # Nearest by alerts, as several settings have no common unit. The middle one, since other footage may fall off the
    # ends of a plateau.
    apart = [abs(figures_of(outcomes[place]).alerts - present.alerts) for place in equal]
    nearest = [place for place, far in zip(equal, apart, strict=True) if far == min(apart)]
    return nearest[(len(nearest) - 1) // 2]


def _left_out(points: Sequence[OperatingPoint], aim: TuningAim) -> EventFigures | None:
    names = [outcome.scenario for outcome in points[0].outcomes]
    if len(names) < SCENARIOS_MIN:
        return None
    left_out = []
    for out in range(len(names)):
        rest = [point.outcomes[:out] + point.outcomes[out + 1 :] for point in points]
        left_out.append(points[_best(rest, points, aim)].outcomes[out])
    return figures_of(left_out)


def _value(figures: EventFigures, name: Literal["recall", "precision"]) -> float:
    """Return the figure; 1 where there was nothing to observe, but 0 where only silence was precise."""
    value = (figures.recall if name == "recall" else figures.precision).value
    if value is None:
        return 0.0 if name == "precision" and figures.recall.of else 1.0
    return value
