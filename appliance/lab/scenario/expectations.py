"""Pairs the events that were reported with those a scenario expects and forbids: hits, misses, false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from appliance.lab.replay.replay_report import format_time
from appliance.lab.replay.replay_result import ReplayResult
from appliance.lab.scenario.ground_truth import BoxesSpool, TrueFrames, true_frame_boxes
from appliance.lab.scenario.scenario_loader import ScenarioPlan
from appliance.lab.scenario.scenario_schema import DerivedEvents, EventEntry, ExpectEntry
from appliance.pipeline import Pipeline
from appliance.track.association import IMPOSSIBLE, assign
from appliance.types import Box, Event, StreamHeader

EVENTS_MAX = 2000
# Filling a place that must be filled costs less than one that may be, and that less than leaving the event alone.
_MAY, _ALONE = 1.0, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPattern:
    """Which events are meant; "" and the whole clip (0 to inf) mean any."""

    camera: str = ""
    rule: str = ""
    zone: str = ""
    line: str = ""
    label: str = ""
    start: float = 0.0
    end: float = inf

    def matches(self, event: Event) -> bool:
        return self.matches_except_time(event) and self.start <= event.t <= self.end

    def matches_except_time(self, event: Event) -> bool:
        """All but the time."""
        wanted = ((self.camera, event.camera), (self.rule, event.rule), (self.zone, event.zone))
        more = ((self.line, event.line), (self.label, event.label))
        return all(one in ("", other) for one, other in (*wanted, *more))

    def text(self) -> str:
        """`rule intruder, person, 0:10.0 to 0:20.0`, in the order in which people say it."""
        said = [f"rule {self.rule}"] if self.rule else ["any rule"]
        said += [self.label] if self.label else []
        said += [f"zone {self.zone}"] if self.zone else []
        said += [f"line {self.line}"] if self.line else []
        said += [f"camera {self.camera}"] if self.camera else []
        return ", ".join([*said, self.window_text()])

    def window_text(self) -> str:
        if self.end == inf:
            return "at any time" if self.start == 0 else f"from {format_time(self.start)}"
        return f"{format_time(self.start)} to {format_time(self.end)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Between `min` and `max` (None: any number) events of this pattern. at: the true moment, else unknown.

    source: where the scenario says so; box: where the object truly was at that moment, if that is known.
    """

    pattern: EventPattern
    source: str
    at: float | None = None
    min: int = 1
    max: int | None = 1
    note: str = ""
    box: Box | None = None

    def delay_s(self, event: Event) -> float | None:
        """How late the event came after it truly happened; None where no moment was given at all."""
        begin = self.at if self.at is not None else self.pattern.start
        return None if self.at is None and self.pattern.end == inf else round(event.t - begin, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prohibition:
    """No event of this pattern but those that are wanted."""

    pattern: EventPattern
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that was wanted."""

    event: Event
    wanted: Expectation
    delay_s: float | None


@dataclass(frozen=True, slots=True)
class Miss:
    """A place of `wanted` that no event took; `missing` of `min` are open. nearest: an alike event at another time."""

    wanted: Expectation
    missing: int
    nearest: Event | None


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """An event that must not be, and which entry says so."""

    event: Event
    reason: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class EventMatches:
    """All events of a scenario, each in one of hits, false_alarms and unjudged; and the misses."""

    hits: tuple[Hit, ...]
    misses: tuple[Miss, ...]
    false_alarms: tuple[FalseAlarm, ...]
    unjudged: tuple[Event, ...]

    @property
    def required_outcomes(self) -> tuple[bool, ...]:
        """One entry per event that had to be reported: whether it was."""
        missing = sum(miss.missing for miss in self.misses)
        return (True,) * (self.required - missing) + (False,) * missing

    @property
    def judged_outcomes(self) -> tuple[bool, ...]:
        """One entry per event that was judged: whether it was right."""
        return (True,) * len(self.hits) + (False,) * len(self.false_alarms)

    @property
    def required(self) -> int:
        wanted = [each.wanted for each in self.hits] + [each.wanted for each in self.misses]
        return sum({id(each): each.min for each in wanted}.values())


NO_MATCHES = EventMatches((), (), (), ())


def match_events(
    events: Sequence[Event], wanted: Sequence[Expectation], barred: Sequence[Prohibition], *, others_forbidden: bool
) -> EventMatches:
    """Pair events with what was wanted, one to one, and say what the rest is.

    An event may take a place of `wanted` that it fits. Of all pairings the one is chosen that fills most places that
    must be filled, then explains most events, then has least delay (Hungarian algorithm in each group of events and
    places that could be confused). So of two overlapping windows none starves, and of two events in a window the
    earlier one counts. An event that was wanted is right even where `barred` would forbid it. What is left over is a
    false alarm when `barred` names it, when its window is full, or when `closed`: what is not wanted must not be.

    At most EVENTS_MAX events: ValueError beyond.
    """
    if len(events) > EVENTS_MAX:
        raise ValueError(f"{len(events)} events; at most {EVENTS_MAX} can be judged")
    places = [each for each in wanted for _ in range(_places(each, events))]
    musts = [number < each.min for each in wanted for number in range(_places(each, events))]
    taken = dict(assign(_prices(events, places, musts), price_max=_ALONE)) if events and places else {}
    hits = tuple(Hit(events[row], places[at], places[at].delay_s(events[row])) for row, at in sorted(taken.items()))
    left = [event for row, event in enumerate(events) if row not in taken]
    alarms, unjudged = [], []
    for event in left:
        alarm = _alarm(event, wanted, barred, others_forbidden)
        if alarm is None:
            unjudged.append(event)
        else:
            alarms.append(alarm)
    return EventMatches(hits, tuple(_misses(wanted, hits, left)), tuple(alarms), tuple(unjudged))


def _places(wanted: Expectation, events: Sequence[Event]) -> int:
    """How many columns of the table a wanted entry gets: never more than could be filled, but all that must be."""
    fitting = sum(wanted.pattern.matches(event) for event in events)
    return max(wanted.min, fitting if wanted.max is None else min(wanted.max, fitting))


def _prices(
    events: Sequence[Event], places: Sequence[Expectation], musts: Sequence[bool]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(events, places): all delays together weigh less than one place."""
    table = np.full((len(events), len(places)), IMPOSSIBLE)
    latest = max(event.t for event in events) + 1.0
    for row, event in enumerate(events):
        for column, (place, must) in enumerate(zip(places, musts, strict=True)):
            if place.pattern.matches(event):
                off_s = abs(event.t - (place.at if place.at is not None else place.pattern.start))
                table[row, column] = (0.0 if must else _MAY) + 0.5 * off_s / (latest * len(events))
    return table


def _misses(wanted: Sequence[Expectation], hits: Sequence[Hit], left: Sequence[Event]) -> list[Miss]:
    found = []
    for each in wanted:
        missing = each.min - sum(hit.wanted is each for hit in hits)
        if missing > 0:
            alike = [event for event in left if each.pattern.matches_except_time(event)]
            found.append(Miss(each, missing, min(alike, key=lambda event: _off_s(event, each.pattern), default=None)))
    return found


def _off_s(event: Event, pattern: EventPattern) -> float:
    return max(pattern.start - event.t, event.t - pattern.end)


def _alarm(
    event: Event, wanted: Sequence[Expectation], barred: Sequence[Prohibition], closed: bool
) -> FalseAlarm | None:
    for rule in barred:
        if rule.pattern.matches(event):
            return FalseAlarm(event, f"{rule.source} forbids it", rule.note)
    for each in wanted:
        if each.pattern.matches(event):
            had = "its event" if each.max == 1 else f"its {each.max} events"
            return FalseAlarm(event, f"{each.source} already had {had}", each.note)
    return FalseAlarm(event, "nothing of the kind was expected then (others: never)") if closed else None


# An entry that gives only a moment (`at`) is looked for this long before and after it.
MOMENT_WINDOW = DerivedEvents()


def expectations_of(plan: ScenarioPlan) -> list[Expectation]:
    """The entries of `expect`."""
    return [
        Expectation(
            pattern=_pattern(entry, _window(entry)),
            source=plan.locate("expect", index),
            at=entry.at,
            min=entry.count.min,
            max=entry.count.max,
            note=entry.note,
        )
        for index, entry in enumerate(plan.scenario.expect)
    ]


def prohibitions_of(plan: ScenarioPlan) -> list[Prohibition]:
    """The entries of `never`."""
    return [
        Prohibition(pattern=_pattern(entry, entry.between), source=plan.locate("never", index), note=entry.note)
        for index, entry in enumerate(plan.scenario.never)
    ]


def derived_expectations(
    plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool, frames: TrueFrames, settings: DerivedEvents
) -> list[Expectation]:
    """What a perfect detector and tracker would have made the camera's rules report at the same frames."""
    return [
        Expectation(
            pattern=EventPattern(
                camera=result.camera if len(plan.parts) > 1 else "",
                rule=event.rule,
                label=event.label,
                start=max(0.0, event.t - settings.before_s),
                end=event.t + settings.after_s,
            ),
            source=f"truth, object {event.track}",
            at=event.t,
            box=event.box,
        )
        for event in _true_events(plan, result, spool, frames)
    ]


def _true_events(plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool, frames: TrueFrames) -> list[Event]:
    pipeline = Pipeline(result.camera, plan.config.cameras[result.camera], plan.config.alerts)
    pipeline.feed(StreamHeader(camera=result.camera, clip="", model="truth", size=result.size, run="truth"))
    events: list[Event] = []
    for frame in true_frame_boxes(spool, frames):
        step = pipeline.feed(frame)
        held = {event.id for event in step.suppressed}
        events += [event for event in step.events if event.id not in held]
    return events


def _window(entry: ExpectEntry) -> tuple[float, float] | None:
    if entry.between is None and entry.at is not None:
        return max(0.0, entry.at - MOMENT_WINDOW.before_s), entry.at + MOMENT_WINDOW.after_s
    return entry.between


def _pattern(entry: EventEntry, window: tuple[float, float] | None) -> EventPattern:
    start, end = window or (0.0, inf)
    return EventPattern(
        camera=entry.camera or "",
        rule=entry.rule or "",
        zone=entry.zone or "",
        line=entry.line or "",
        label=entry.label or "",
        start=start,
        end=end,
    )
