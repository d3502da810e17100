"""Pairs the events that were reported with those a scenario expects and forbids: hits, misses, false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from appliance.alerts.pipeline import Pipeline
from appliance.replay.replay_report import format_time
from appliance.replay.replay_result import ReplayResult
from appliance.scenario.ground_truth import BoxesSpool, TrueFrames, true_frame_boxes
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_schema import DerivedEvents, EventEntry, ExpectEntry
from appliance.track.association import IMPOSSIBLE, assign
from appliance.types import Box, Event, StreamHeader

EVENTS_MAX = 2000  # of one scenario; an hour of a busy street has some hundreds
# Costs of the assignment (no unit). A required slot costs 0, an optional one 1, an event without a slot 3; a delay adds
# less than 1 in total, so it only decides between equally complete pairings.
_OPTIONAL_COST, _UNPAIRED_COST = 1.0, 3.0
# The window of an entry that gives only a moment (`at`).
MOMENT_WINDOW = DerivedEvents()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPattern:
    """Which events are meant. "" matches anything; start and end: seconds of the clip, 0 to inf is all of it."""

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
        expectations = ((self.camera, event.camera), (self.rule, event.rule), (self.zone, event.zone))
        more = ((self.line, event.line), (self.label, event.label))
        return all(one in ("", other) for one, other in (*expectations, *more))

    def text(self) -> str:
        """`rule intruder, person, 0:10.0 to 0:20.0`."""
        parts = [f"rule {self.rule}"] if self.rule else ["any rule"]
        parts += [self.label] if self.label else []
        parts += [f"zone {self.zone}"] if self.zone else []
        parts += [f"line {self.line}"] if self.line else []
        parts += [f"camera {self.camera}"] if self.camera else []
        return ", ".join([*parts, self.window_text()])

    def window_text(self) -> str:
        if self.end == inf:
            return "at any time" if self.start == 0 else f"from {format_time(self.start)}"
        return f"{format_time(self.start)} to {format_time(self.end)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Between `min` and `max` (None: any number) events of this pattern. at: the true moment, else unknown.

    source: where the scenario says so; box: where the object truly was at that moment, if that is known. judged: False
    where such an event is neither right nor wrong.
    """

    pattern: EventPattern
    source: str
    at: float | None = None
    min: int = 1
    max: int | None = 1
    note: str = ""
    box: Box | None = None
    judged: bool = True

    def delay_s(self, event: Event) -> float | None:
        """How late the event came after it truly happened; None where no moment was given at all."""
        begin = self.at if self.at is not None else self.pattern.start
        return None if self.at is None and self.pattern.end == inf else round(event.t - begin, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prohibition:
    """Events of this pattern are false alarms unless they were expected."""

    pattern: EventPattern
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that was expected."""

    event: Event
    wanted: Expectation
    delay_s: float | None


@dataclass(frozen=True, slots=True)
class Miss:
    """`missing` of the `min` events of an expectation did not come. nearest: a similar event at another time."""

    wanted: Expectation
    missing: int
    nearest: Event | None


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """An event that must not be, and the entry that says so."""

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
        """For each required event, whether it was reported."""
        missing = sum(miss.missing for miss in self.misses)
        return (True,) * (self.required - missing) + (False,) * missing

    @property
    def judged_outcomes(self) -> tuple[bool, ...]:
        """For each judged event, whether it was right."""
        return (True,) * len(self.hits) + (False,) * len(self.false_alarms)

    @property
    def required(self) -> int:
        expectations = [each.wanted for each in self.hits] + [each.wanted for each in self.misses]
        return sum({id(each): each.min for each in expectations}.values())


NO_MATCHES = EventMatches((), (), (), ())


def match_events(
    events: Sequence[Event],
    expectations: Sequence[Expectation],
    prohibitions: Sequence[Prohibition],
    *,
    others_forbidden: bool,
) -> EventMatches:
    """Pair events with expectations, one to one, and classify the rest.

    Each expectation has slots for its events. The chosen pairing fills most required slots, then explains most events,
    then has least delay (Hungarian algorithm in each group of events and slots that could be confused): of two
    overlapping windows both are filled, and of two events in one window the earlier one counts. An expected event is
    right even where a prohibition matches it, one that is not to be judged is neither right nor wrong. Any other event
    is a false alarm when a prohibition matches it, when its window is full, or when `others_forbidden`.

    At most EVENTS_MAX events: ValueError beyond.
    """
    if len(events) > EVENTS_MAX:
        raise ValueError(f"{len(events)} events; at most {EVENTS_MAX} can be judged")
    slots = [each for each in expectations for _ in range(_slots_of(each, events))]
    required = [number < each.min for each in expectations for number in range(_slots_of(each, events))]
    taken = dict(assign(_costs(events, slots, required), cost_max=_UNPAIRED_COST)) if events and slots else {}
    pairs = [(events[row], slots[at]) for row, at in sorted(taken.items())]
    hits = tuple(Hit(event, slot, slot.delay_s(event)) for event, slot in pairs if slot.judged)
    unpaired = [event for row, event in enumerate(events) if row not in taken]
    alarms, unjudged = [], [event for event, slot in pairs if not slot.judged]
    for event in unpaired:
        alarm = _false_alarm(event, expectations, prohibitions, others_forbidden)
        if alarm is None:
            unjudged.append(event)
        else:
            alarms.append(alarm)
    return EventMatches(hits, tuple(_misses(expectations, hits, unpaired)), tuple(alarms), tuple(unjudged))


def _slots_of(wanted: Expectation, events: Sequence[Event]) -> int:
    """How many slots an expectation gets: all that are required, and no more optional ones than could be filled."""
    fitting = sum(wanted.pattern.matches(event) for event in events)
    return max(wanted.min, fitting if wanted.max is None else min(wanted.max, fitting))


def _costs(
    events: Sequence[Event], slots: Sequence[Expectation], required: Sequence[bool]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Cost matrix (events, slots)."""
    table = np.full((len(events), len(slots)), IMPOSSIBLE)
    latest = max(event.t for event in events) + 1.0
    for row, event in enumerate(events):
        for column, (slot, is_required) in enumerate(zip(slots, required, strict=True)):
            if slot.pattern.matches(event):
                distance_s = abs(event.t - (slot.at if slot.at is not None else slot.pattern.start))
                table[row, column] = (0.0 if is_required else _OPTIONAL_COST) + 0.5 * distance_s / (
                    latest * len(events)
                )
    return table


def _misses(expectations: Sequence[Expectation], hits: Sequence[Hit], unpaired: Sequence[Event]) -> list[Miss]:
    found = []
    for each in expectations:
        missing = each.min - sum(hit.wanted is each for hit in hits)
        if missing > 0:
            alike = [event for event in unpaired if each.pattern.matches_except_time(event)]
            found.append(
                Miss(each, missing, min(alike, key=lambda event: _distance_s(event, each.pattern), default=None))
            )
    return found


def _distance_s(event: Event, pattern: EventPattern) -> float:
    return max(pattern.start - event.t, event.t - pattern.end)


def _false_alarm(
    event: Event, expectations: Sequence[Expectation], prohibitions: Sequence[Prohibition], others_forbidden: bool
) -> FalseAlarm | None:
    for prohibition in prohibitions:
        if prohibition.pattern.matches(event):
            return FalseAlarm(event, f"{prohibition.source} forbids it", prohibition.note)
    for each in expectations:
        if each.pattern.matches(event):
            had = "its event" if each.max == 1 else f"its {each.max} events"
            return FalseAlarm(event, f"{each.source} already had {had}", each.note)
    return FalseAlarm(event, "nothing of the kind was expected then (others: never)") if others_forbidden else None


def expectations_of(plan: ScenarioPlan) -> list[Expectation]:
    """Return the entries of `expect`."""
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
    """Return the entries of `never`."""
    return [
        Prohibition(pattern=_pattern(entry, entry.between), source=plan.locate("never", index), note=entry.note)
        for index, entry in enumerate(plan.scenario.never)
    ]


def derived_expectations(
    plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool, frames: TrueFrames, settings: DerivedEvents
) -> list[Expectation]:
    """Return the events that the camera's rules would report with a perfect detector and tracker at the same frames.

    Events that they would report besides if the ignored boxes counted may come and are not judged: an object that is
    nearly hidden need not be seen, and to see it is no false alarm.
    """
    demanded = _true_events(plan, result, spool, frames)
    expectations = [_derived(plan, result, event, settings) for event in demanded]
    if all(each.counts for objects in frames.values() for each in objects):
        return expectations
    every = {frame: tuple(replace(each, counts=True) for each in objects) for frame, objects in frames.items()}
    known = list(demanded)
    for event in _true_events(plan, result, spool, every):
        wanted = _derived(plan, result, event, settings)
        same = next((each for each in known if each.track == event.track and wanted.pattern.matches(each)), None)
        if same is None:
            expectations.append(replace(wanted, min=0, judged=False))
        else:
            known.remove(same)
    return expectations


def _derived(plan: ScenarioPlan, result: ReplayResult, event: Event, settings: DerivedEvents) -> Expectation:
    return Expectation(
        pattern=EventPattern(
            camera=result.end.camera if len(plan.parts) > 1 else "",
            rule=event.rule,
            label=event.label,
            start=max(0.0, event.t - settings.before_s),
            end=event.t + settings.after_s,
        ),
        source=f"truth, object {event.track}",
        at=event.t,
        box=event.box,
    )


def _true_events(plan: ScenarioPlan, result: ReplayResult, spool: BoxesSpool, frames: TrueFrames) -> list[Event]:
    pipeline = Pipeline(result.end.camera, plan.config.cameras[result.end.camera], plan.config.alerts)
    pipeline.feed(StreamHeader(camera=result.end.camera, clip="", model="truth", size=result.size, run="truth"))
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
