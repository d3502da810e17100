"""One combination of settings and what came of it on each scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from appliance.scenario.expect import Wanted
from appliance.scenario.measures import RESAMPLES, EventFigures, event_figures
from appliance.scenario.tune.sweep import Setting
from appliance.scenario.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One scenario at one point. places: (what had to be reported, how many, how many were), in a fixed order."""

    scenario: str
    places: tuple[tuple[str, int, int], ...]
    right: int
    wrong: int
    delays: tuple[float, ...]
    alerts: int
    footage_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """setting: empty for the present one, as the files have it."""

    setting: Setting
    outcomes: tuple[Outcome, ...]
    figures: EventFigures = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", figures_of(self.outcomes))

    @property
    def present(self) -> bool:
        return not self.setting

    @property
    def words(self) -> str:
        """`score_min 0.45`, or `as it is`."""
        return ", ".join(f"{key} {_said(value)}" for key, value in self.setting) or "as it is"

    @property
    def wrong(self) -> int:
        return sum(outcome.wrong for outcome in self.outcomes)

    @property
    def reported(self) -> int:
        return sum(filled for outcome in self.outcomes for _, _, filled in outcome.places)

    @property
    def bytes(self) -> int:
        return sum(outcome.bytes for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Difference:
    """Recall of one point less that of another on the same events, with its 95 % interval (paired bootstrap)."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0: the footage can tell the two apart."""
        return self.low > 0 or self.high < 0


def outcome_of(name: str, verdict: Verdict) -> Outcome:
    """What is kept of a scenario's verdict."""
    judged, events = verdict.judgement, verdict.events
    asked: dict[str, tuple[int, int]] = {}
    doubles: dict[int, str] = {}
    counted: dict[str, int] = {}
    for wanted, missing in (
        *((hit.wanted, 0) for hit in judged.hits),
        *((miss.wanted, miss.missing) for miss in judged.misses),
    ):
        key = doubles.get(id(wanted)) or _key(wanted, counted)
        doubles[id(wanted)] = key
        asked[key] = (wanted.min, asked.get(key, (0, 0))[1] + missing)
    return Outcome(
        scenario=name,
        places=tuple(sorted((key, least, least - missing) for key, (least, missing) in asked.items() if least)),
        right=len(judged.hits),
        wrong=len(judged.false_alarms),
        delays=tuple(hit.delay_s for hit in judged.hits if hit.delay_s is not None),
        alerts=events.alerts if events else 0,
        footage_s=events.footage_s if events else 0.0,
        bytes=verdict.bytes,
    )


def figures_of(outcomes: Sequence[Outcome]) -> EventFigures:
    """Of all scenarios as if they were one."""
    return event_figures(
        [flag for outcome in outcomes for flag in _filled(outcome)],
        [True] * sum(each.right for each in outcomes) + [False] * sum(each.wrong for each in outcomes),
        [delay for outcome in outcomes for delay in outcome.delays],
        alerts=sum(each.alerts for each in outcomes),
        footage_s=sum(each.footage_s for each in outcomes),
    )


def difference(one: Point, other: Point) -> Difference | None:
    """How much more recall `one` has. None where other frames were looked at, and so other events were wanted."""
    if _asked(one) != _asked(other) or not one.outcomes:
        return None
    ours, theirs = (
        np.array([flag for outcome in point.outcomes for flag in _filled(outcome)], float) for point in (one, other)
    )
    if not len(ours):
        return None
    gained = ours - theirs
    drawn = np.random.default_rng(0).choice(gained, (RESAMPLES, len(gained))).mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    if gained.min() == gained.max():  # the bootstrap would claim certainty, of however few: see `measures.share`
        far = 1 - 0.025 ** (1 / len(gained))
        low, high = max(-1.0, low - far), min(1.0, high + far)
    return Difference(float(gained.mean()), float(low), float(high))


def _asked(point: Point) -> list[tuple[str, str, int]]:
    return [(outcome.scenario, key, least) for outcome in point.outcomes for key, least, _ in outcome.places]


def _filled(outcome: Outcome) -> list[bool]:
    return [number < filled for _, least, filled in outcome.places for number in range(least)]


def _key(wanted: Wanted, counted: dict[str, int]) -> str:
    """What had to be reported, the same in every run: source, pattern, and a number where two are alike."""
    text = f"{wanted.source}: {wanted.pattern.words()}"
    counted[text] = counted.get(text, 0) + 1
    return text if counted[text] == 1 else f"{text} ({counted[text]})"


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
