"""Finds which part of the pipeline lost an event: decides the recorded boxes again with one thing changed.

The replay's record holds all that was examined and tracked, and the rules are pure, so each suspicion is tried: the
culprit is the first whose change makes the rule fire in the expected time. Nothing is guessed from a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from appliance.config import CameraConfig, DwellRule, LineRule, Rule
from appliance.replay.replay_report import format_time
from appliance.replay.replay_result import ReplayResult
from appliance.rules.conditions import Calibration
from appliance.rules.engine import RulesEngine
from appliance.scenario.expectations import EventPattern
from appliance.scenario.scenario_verdicts import rejected_events
from appliance.types import Box, Event, FrameBoxes, StreamHeader

CulpritName = Literal[
    "footage", "gate", "network", "detector", "label", "tracker", "score", "size", "ignored", "company", "at_start",
    "rule", "place", "cooldown", "verdict", "expectation", "earlier", "unknown",
]  # fmt: skip
"""Cause of a missed event. `network`: it lacks the class; `label`: it took the object for another;
`company`: others stood so near that more proof was wanted; `expectation`: the event came and fills another entry;
`earlier`: it came for this track before the expected time, and a rule reports a stay once."""

LEAD_S = 30.0  # before the expected time, for tracks to be what they were
FRAMES_MAX = 5000  # of the record of one miss; the newest count
TRACKS_MAX = 400  # candidates that are compared with each other
ALONE_MAX = 40  # tracks that are each tried alone
SAME_GAP_S = 3.0  # between two tracks of one object, at most
SAME_HEIGHTS = 1.5  # and so far apart, in heights of the box
DWELL_S_LEAST = 0.2  # one frame at 5 a second


@dataclass(frozen=True, slots=True)
class Culprit:
    """name: the part that decided. text: how that is known, in a few words."""

    name: CulpritName
    text: str = ""

    @property
    def sentence(self) -> str:
        return f"culprit: {self.name}{f' ({self.text})' if self.text else ''}"


@dataclass(frozen=True, slots=True)
class MissRecord:
    """The record around one missed event.

    rules: those that could have reported it; frames: the examined ones, from LEAD_S before the expected time to its
    end, in order. calibration, known_before: see `StreamHeader`. counted: ids of the events that fill other entries;
    None: all that fit this one do. at_truth: the tracks on the object's true box at its moment; None: that is not
    known.
    """

    pattern: EventPattern
    camera: CameraConfig
    rules: tuple[Rule, ...]
    result: ReplayResult
    frames: Sequence[FrameBoxes]
    calibration: Calibration = field(default_factory=dict)
    known_before: bool = False
    counted: frozenset[str] | None = None
    at_truth: frozenset[int] | None = None


class RulesReplay:
    """Decides a miss's record again. State: none but the record. other: tracks whose events fill other entries."""

    def __init__(self, record: MissRecord, other: Set[int]) -> None:
        self._record = record
        self._other = other
        cut = bool(record.frames) and record.frames[0].seq > 0
        camera, size = record.result.end.camera, record.result.size
        self._header = StreamHeader(
            camera=camera,
            clip="",
            model="",
            size=size,
            run="again",
            known_before=cut or record.known_before,
            calibration=record.calibration,
        )

    def event(
        self,
        change: Callable[[Rule], Rule] = lambda rule: rule,
        frames: Iterable[FrameBoxes] | None = None,
        *,
        any_label: bool = False,
        ignore: bool = True,
    ) -> Event | None:
        """Return the first event in the expected time with the rules changed, or other frames; None: there is none.

        any_label: of whatever label. ignore: False: also where the camera ignores objects.
        """
        record = self._record
        pattern = replace(record.pattern, label="") if any_label else record.pattern
        camera = record.camera.model_copy(update={"rules": tuple(change(rule) for rule in record.rules)})
        if not ignore:
            camera = camera.model_copy(update={"ignore": ()})
        engine = RulesEngine(record.result.end.camera, camera)
        engine.feed(self._header)
        for frame in record.frames if frames is None else frames:
            for event in engine.feed(frame):
                if pattern.matches(event) and event.track not in self._other:
                    return event
        return None


def find_culprit(record: MissRecord) -> Culprit:
    """Return the part that decided against the event, where a box of the right label was in the right place in time.

    Where entries overlap and events came for some of them, the one that is missing is of another track.
    """
    fired = [event for event in record.result.events if record.pattern.matches(event)]
    own = [event for event in fired if record.counted is not None and event.id not in record.counted]
    if own or (fired and record.counted is None):
        held = _held_back(record, own or fired)
        if held is not None:
            return held
    if fired and record.at_truth is not None and not record.at_truth:
        return Culprit("detector", "no box lay on the object at its moment")
    other = {event.track for event in fired}
    replay = RulesReplay(record, other)
    tracks = {number: span for number, span in _tracks(record).items() if number not in other}
    tried: list[tuple[CulpritName, Callable[[], Event | None], Callable[[Event], str]]] = [
        ("at_start", lambda: replay.event(_at_start), lambda event: f"track {event.track} was there at the start"),
        (
            "company",
            lambda: _first(replay.event(frames=_only(record.frames, [number])) for number in [*tracks][:ALONE_MAX]),
            lambda event: f"alone, track {event.track} fires at {format_time(event.t)}; others stood close to it",
        ),
        ("size", lambda: replay.event(_any_size), lambda event: _size_text(record, event)),
        (
            "ignored",
            lambda: replay.event(ignore=False),
            lambda event: f"track {event.track} stood where the camera ignores objects",
        ),
        ("score", lambda: replay.event(_any_score), lambda event: _score_text(record, event)),
        (
            "tracker",
            lambda: _first(replay.event(frames=_only(record.frames, chain)) for chain in _chains(tracks)),
            lambda event: f"as one track it fires at {format_time(event.t)}; its number changed",
        ),
        ("rule", lambda: replay.event(_easier), lambda event: _rule_text(record, event)),
        (
            "label",
            lambda: replay.event(_labels_of(record), any_label=True),
            lambda event: f"track {event.track} was taken for a {event.label}",
        ),
        (
            "tracker",
            lambda: _first(replay.event(_any_score, _only(record.frames, chain)) for chain in _chains(tracks)),
            lambda event: "its number changed, and none of its tracks was sure enough",
        ),
    ]
    for name, event_of, text in tried:
        if (event := event_of()) is not None:
            return Culprit(name, text(event))
    if fired and (found := _taken_for_another(record, other, tracks)) is not None:
        return found
    before = replace(record.pattern, start=0.0, end=record.pattern.start)
    for event in record.result.events:
        if event.track in (tracks if record.at_truth is None else record.at_truth) and before.matches(event):
            return Culprit("earlier", f"rule {event.rule} reported track {event.track} at {format_time(event.t)}")
    on_it = sorted(record.at_truth or ()) if fired else []
    return Culprit("unknown", f"track {on_it[0]} lay on the object and did not fire" if on_it else "")


def _held_back(record: MissRecord, fired: Sequence[Event]) -> Culprit | None:
    """Return what kept all events that a rule fired from being reported."""
    held = set(record.result.end.suppressed)
    rejected = rejected_events(record.result)
    first = fired[0]
    if all(event.id in held for event in fired):
        return Culprit("cooldown", f"rule {first.rule} fired at {format_time(first.t)} and was held back")
    if all(event.id in held or event.id in rejected for event in fired):
        return Culprit("verdict", f"rule {first.rule} fired at {format_time(first.t)} and the verdict rejected it")
    return None


def _taken_for_another(record: MissRecord, other: Set[int], tracks: Mapping[int, _TrackSpan]) -> Culprit | None:
    """Return why there is no track of its own for an event beside those that fill other entries."""
    if record.at_truth and record.at_truth <= other:
        return Culprit("tracker", f"track {min(record.at_truth)} lay on the object and fills another entry")
    if tracks:
        return None
    first = next(event for event in record.result.events if record.pattern.matches(event))
    return Culprit("expectation", f"rule {first.rule} fired at {format_time(first.t)}, which another entry counts")


def _first(events: Iterator[Event | None]) -> Event | None:
    return next((event for event in events if event is not None), None)


def _any_score(rule: Rule) -> Rule:
    return rule.model_copy(update={"score_min": 0.0})


def _any_size(rule: Rule) -> Rule:
    return rule.model_copy(update={"height_min": None, "height_max": None})


def _at_start(rule: Rule) -> Rule:
    return rule.model_copy(update={"at_start": "report"}) if hasattr(rule, "at_start") else rule


def _easier(rule: Rule) -> Rule:
    """Return a line that counts both ways, a dwell of a moment."""
    if isinstance(rule, LineRule):
        return rule.model_copy(update={"direction": "both"})
    return rule.model_copy(update={"seconds": DWELL_S_LEAST}) if isinstance(rule, DwellRule) else rule


def _labels_of(record: MissRecord) -> Callable[[Rule], Rule]:
    labels = tuple(sorted({found.label for frame in record.frames for found in frame.objects}))
    return lambda rule: rule.model_copy(update={"labels": labels or rule.labels, "score_min": 0.0})


def _score_text(record: MissRecord, event: Event) -> str:
    floor = next(rule.score_min for rule in record.rules if rule.name == event.rule)
    return f"track {event.track} came to {event.score:.2f} and the rule wants {floor:.2f}"


def _size_text(record: MissRecord, event: Event) -> str:
    rule = next(rule for rule in record.rules if rule.name == event.rule)
    high = event.box[3] - event.box[1]
    return (
        f"track {event.track} was {high:.2f} of the picture high and the rule wants {rule.height_min or 0:g} to "
        f"{1 if rule.height_max is None else rule.height_max:g}"
    )


def _rule_text(record: MissRecord, event: Event) -> str:
    rule = next(rule for rule in record.rules if rule.name == event.rule)
    if isinstance(rule, DwellRule):
        return f"track {event.track} did not stay for the {rule.seconds:g} s that rule {rule.name} wants"
    return f"track {event.track} crossed the other way"


@dataclass(slots=True)
class _TrackSpan:
    """A track of a label that is wanted, from when and where to when and where."""

    first_t: float
    last_t: float
    first: Box
    last: Box


def _tracks(record: MissRecord) -> dict[int, _TrackSpan]:
    """By number, those that are seen in the expected time, in the order of their first detection."""
    wanted = {label for rule in record.rules for label in rule.labels}
    spans: dict[int, _TrackSpan] = {}
    for frame in record.frames:
        for found in frame.objects:
            if found.label not in wanted:
                continue
            span = spans.get(found.track)
            if span is None:
                spans[found.track] = _TrackSpan(frame.t, frame.t, found.box, found.box)
            else:
                span.last_t, span.last = frame.t, found.box
    start = record.pattern.start - LEAD_S / 3
    return dict([each for each in spans.items() if each[1].last_t >= start][:TRACKS_MAX])


def _chains(tracks: dict[int, _TrackSpan]) -> Iterator[list[int]]:
    """Tracks that may be one object: each begins soon after, and near where, the one before it ended."""
    free = dict(tracks)
    while free:
        number, span = next(iter(free.items()))
        del free[number]
        chain = [number]
        while (following := next((other for other in free if _follows(span, free[other])), None)) is not None:
            chain.append(following)
            span = free.pop(following)
        if len(chain) > 1:
            yield chain


def _follows(before: _TrackSpan, after: _TrackSpan) -> bool:
    if not 0 < after.first_t - before.last_t <= SAME_GAP_S:
        return False
    height = max(before.last[3] - before.last[1], after.first[3] - after.first[1])
    apart = max(
        abs(before.last[0] + before.last[2] - after.first[0] - after.first[2]) / 2,
        abs(before.last[1] + before.last[3] - after.first[1] - after.first[3]) / 2,
    )
    return apart <= SAME_HEIGHTS * height


def _only(frames: Sequence[FrameBoxes], numbers: Sequence[int]) -> Iterator[FrameBoxes]:
    """Return the frames with these tracks alone, as one."""
    for frame in frames:
        objects = tuple(replace(found, track=numbers[0]) for found in frame.objects if found.track in numbers)
        yield replace(frame, objects=objects)
