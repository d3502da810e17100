"""Applies the rules of one camera: tracked boxes in, events out.

From `rule_place` on: what a rule can report, that is its place and labels, its event, and labels that the network does
not know.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from appliance.config import CameraConfig, DwellRule, LineRule, Rule
from appliance.rules.conditions import Calibration, RuleCondition, RuleTrackState, condition_for
from appliance.rules.line_polygon_geometry import Polygon, at_frame_edge, foot
from appliance.rules.weekly_hours import ArmedHours, LocalTime
from appliance.rules.zones_and_lines import (
    TUNING,
    Line,
    LinePosition,
    StartPlace,
    Zone,
    are_neighbours,
)
from appliance.types import Box, Event, FrameBoxes, StreamHeader, TrackedObject

LISTED_MAX = 12  # names in an error message


@dataclass(frozen=True, slots=True)
class _ArmedRule:
    """A rule with its condition and hours (None: always armed)."""

    rule: Rule
    condition: RuleCondition
    hours: ArmedHours | None


class RulesEngine:
    """Judges every examined frame of one camera. Pure: the same messages give the same events.

    State: one RuleTrackState per track of the present session, forgotten when unseen for TUNING.forget_s; at most
    TUNING.tracks_max, of which the one unseen for longest makes room (`evicted` counts). A frame on which the detector
    failed (`looked=False`) changes nothing. A header of another session (or without one) resets everything.

    A track that is known to have stood where it is first seen (`TrackedObject.stood_s`: parked there before the session
    began, or long hidden) entered its zones before, and its dwelling is counted from then.

    An object that is first reported within TUNING.start_s of a session's first examined frame was there when it began:
    rules say what they make of it (`at_start`). If the objects that stood there before are known
    (`StreamHeader.known_before`), any other has come meanwhile.

    A rule judges a track by its TrackCertainty, not by the score of one detection; an event carries it as its `score`.
    Scores are put on the common scale first, by what the header says of the network (`StreamHeader.calibration`).

    Beside neighbours (`are_neighbours`) a change is believed later (`TUNING.crowded_settle_s`). Only boxes of the same
    frame count: tracks that are no longer seen must not raise the number of detections that a newcomer needs.

    A rule that is not armed fires nothing, and what waited for its track to be certain by then is dropped.

    A track in an ignored zone (`CameraConfig.ignore`) fires nothing, nor does a box that is lower or higher than the
    rule wants: what they do is pending meanwhile, as with a track that is not certain yet.

    exit fires when a track is seen to leave the zone, and when it is lost for more than TUNING.loss_s with its last box
    at the frame's edge: it walked out of view. A track that is lost in the middle of the frame has not left: people are
    hidden by cars and missed by detectors far more often than they vanish. A door inside a zone wants a line.
    """

    def __init__(self, camera_name: str, camera: CameraConfig, local_time: LocalTime | None = None) -> None:
        self._camera = camera_name
        self._local_time = local_time
        gap_max_s = max(TUNING.loss_s, 1.5 * camera.detect.heartbeat_s)
        self._rules = tuple(
            _ArmedRule(
                rule,
                condition_for(rule, gap_max_s),
                ArmedHours(rule.schedule) if rule.schedule and local_time else None,
            )
            for rule in camera.rules
        )
        self._all = range(len(camera.rules))
        # Only these change by time passing; the others are updated only when something happened.
        self._timed = [index for index, rule in enumerate(camera.rules) if isinstance(rule, DwellRule)]
        lines = {rule.line for rule in camera.rules if isinstance(rule, LineRule)}
        zones = {rule.zone for rule in camera.rules if not isinstance(rule, LineRule)}
        self._zones = tuple(Zone(name, points) for name, points in camera.zones.items() if name in zones)
        self._ignored = tuple(Polygon(camera.zones[name]) for name in camera.ignore)
        self._lines = tuple(Line(name, a, b) for name, (a, b) in camera.lines.items() if name in lines)
        self._gap_max_s = gap_max_s
        self._aspect = 16 / 9
        self._session = ""
        self._tracks: dict[int, RuleTrackState] = {}
        self._began: float | None = None
        self._known_before = False
        self._calibration: Calibration = {}
        self._offset = 0.0
        self._latest: float | None = None
        self.evicted = 0

    @property
    def tracks(self) -> int:
        """How many tracks are remembered."""
        return len(self._tracks)

    @property
    def states(self) -> Mapping[int, RuleTrackState]:
        """The tracks that are remembered, to be read only."""
        return self._tracks

    def armed_rules(self, t: float) -> dict[str, bool]:
        """Return for each rule, by name, if its schedule has it armed at frame time `t`."""
        return {each.rule.name: armed for each, armed in zip(self._rules, self._armed(t), strict=True)}

    def feed(self, message: StreamHeader | FrameBoxes, *, off: Set[str] = frozenset()) -> tuple[Event, ...]:
        """Return the events that this message makes, in the order of its objects and of the rules in the site file.

        off: names of rules that report nothing now, as if it were outside their schedule.
        """
        if isinstance(message, StreamHeader):
            self._begin(message)
            return ()
        if not message.looked or not self._rules:
            return ()
        return self._judge_frame(message, off)

    def _begin(self, header: StreamHeader) -> None:
        self._aspect = header.size[0] / header.size[1] if min(header.size) > 0 else 16 / 9
        if header.run and header.run == self._session:
            return
        self._session = header.run
        self._tracks.clear()
        self._began, self._offset, self._latest = None, 0.0, None
        self._known_before = header.known_before
        self._calibration = header.calibration

    def _judge_frame(self, frame: FrameBoxes, off: Set[str]) -> tuple[Event, ...]:
        now = self._steady(frame.t)
        self._began = now if self._began is None else self._began
        each_armed = self._armed(frame.t)
        if off:
            pairs = zip(each_armed, self._rules, strict=True)
            each_armed = tuple(armed and each.rule.name not in off for armed, each in pairs)
        events: list[Event] = []
        for found in frame.objects:
            track = self._update_track(found, now)
            others = [other.box for other in frame.objects if other.track != found.track]
            crowded = any(are_neighbours(found.box, other, self._aspect) for other in others)
            self._move(track, now, TUNING.crowded_settle_s if crowded else TUNING.settle_s, others)
            events += self._fire(track, each_armed, now, frame.t)
        for track in self._left_view({found.track for found in frame.objects}, now):
            events += self._fire(track, each_armed, now, frame.t)
        return tuple(events)

    def _steady(self, t: float) -> float:
        """Return frame time that never runs back: a camera whose clock is set back must not have negative durations."""
        if self._latest is not None and t < self._latest:
            self._offset += self._latest - t
        self._latest = t
        return t + self._offset

    def _is_start(self, now: float) -> bool:
        return not self._known_before and self._began is not None and now - self._began <= TUNING.start_s

    def _armed(self, t: float) -> tuple[bool, ...]:
        if self._local_time is None or not any(each.hours for each in self._rules):
            return (True,) * len(self._rules)
        weekday, minute = self._local_time(t)
        return tuple(each.hours is None or each.hours.armed(weekday, minute) for each in self._rules)

    def _update_track(self, found: TrackedObject, now: float) -> RuleTrackState:
        """Return the state of a track that is detected, moved to the end.

        States are in the order of their last detection.
        """
        track = self._tracks.pop(found.track, None)
        if track is None:
            if len(self._tracks) >= TUNING.tracks_max:
                del self._tracks[next(iter(self._tracks))]
                self.evicted += 1
            track = RuleTrackState(found, now, None if found.stood_s is None else now - found.stood_s)
            if track.known_since is None and self._is_start(now):
                track.start = StartPlace(found.box)
        elif now - track.seen > self._gap_max_s:
            track.positions.clear()
            track.break_debounces()
        elif track.missing_since is not None and now - track.seen > TUNING.row_s:
            track.break_debounces()
        self._tracks[found.track] = track
        track.update(found, now, self._calibration)
        return track

    def _move(self, track: RuleTrackState, now: float, settle_s: float, others: Sequence[Box]) -> None:
        box = track.last.box
        here, margin = foot(box), TUNING.margin * (box[3] - box[1])
        track.passages.clear()
        track.crossings.clear()
        track.update_start(now, settle_s, others, self._aspect)
        for zone in self._zones:
            member = track.members.get(zone.name)
            if member is None:
                at_start = track.start is not None and track.start.box is box
                member = track.members[zone.name] = zone.begin(here, track.known_since, at_start=at_start)
                if member.known:
                    continue
            passage = zone.update(member, here, now, margin, self._aspect, settle_s)
            if passage:
                track.passages[zone.name] = passage
        for line in self._lines:
            position = track.positions.get(line.name)
            if position is None:
                position = track.positions[line.name] = LinePosition()
            direction = line.update(position, here, now, margin, self._aspect, settle_s)
            if direction:
                track.crossings[line.name] = direction

    def _left_view(self, seen: set[int], now: float) -> list[RuleTrackState]:
        """Note which tracks this frame does not show, and forget old ones.

        Return those that walked out of view just now.
        """
        left: list[RuleTrackState] = []
        for number, track in list(self._tracks.items()):
            if number in seen or (track.lost and now - track.seen <= TUNING.forget_s):
                continue
            if track.missing_since is None:
                track.missing_since = now
            if now - track.seen > TUNING.forget_s:
                del self._tracks[number]
            elif now - track.missing_since > TUNING.loss_s:
                track.break_off()
                if at_frame_edge(track.last.box) and track.leave_zones(now):
                    left.append(track)
        return left

    def _fire(self, track: RuleTrackState, armed: tuple[bool, ...], now: float, t: float) -> list[Event]:
        """Return the events of one track in one frame; `now` runs steadily, `t` is the camera's time."""
        for index in self._all if track.passages or track.crossings or track.moves_off else self._timed:
            self._rules[index].condition.update(track, now, armed[index])
        if not track.pending:
            return []
        ignored = any(polygon.contains(foot(track.last.box)) for polygon in self._ignored)
        events = []
        for each, is_armed in zip(self._rules, armed, strict=True):
            until = track.pending.get(each.rule.name)
            if until is None:
                continue
            if now > until or not is_armed:
                del track.pending[each.rule.name]
            elif track.last.label in each.rule.labels and not ignored and track.fits(each.rule):
                certainty = track.certainty(track.last.label, each.rule.score_min)
                if certainty >= each.rule.score_min:
                    del track.pending[each.rule.name]
                    events.append(self._event(each.rule, track.last, certainty, t))
        return events

    def _event(self, rule: Rule, found: TrackedObject, certainty: float, t: float) -> Event:
        content = f"{self._camera}|{self._session}|{rule.name}|{found.track}|{t!r}|{rule.kind}"
        event_id = hashlib.sha256(content.encode()).hexdigest()[:16]
        return rule_event(self._camera, rule, replace(found, score=round(certainty, 3)), t, event_id)


def rule_place(rule: Rule) -> tuple[str, str]:
    """Return the zone and the line that a rule watches; one of them is ''."""
    return ("", rule.line) if isinstance(rule, LineRule) else (rule.zone, "")


def can_report(rule: Rule, name: str, zone: str, line: str, label: str) -> bool:
    """Return True if a rule of this name, place and label is meant; '' matches anything."""
    meant = zip((name, zone, line), (rule.name, *rule_place(rule)), strict=True)
    return all(one in ("", other) for one, other in meant) and (not label or label in rule.labels)


def rule_event(camera: str, rule: Rule, found: TrackedObject, t: float, id_: str = "") -> Event:
    """Return the event of a rule about an object in the frame of time `t`."""
    zone, line = rule_place(rule)
    return Event(
        camera=camera, rule=rule.name, kind=rule.kind, track=found.track, label=found.label, t=t, score=found.score,
        box=found.box, zone=zone, line=line, severity=rule.severity, id=id_,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnknownLabel:
    """rule, label: their places among the camera's rules and the rule's labels. never: the rule cannot fire at all."""

    rule: int
    label: int
    text: str
    never: bool


def unknown_labels(rules: Sequence[Rule], known: Sequence[str]) -> Iterator[UnknownLabel]:
    """Yield the labels that the rules of a camera want and a network with these classes cannot find."""
    for number, rule in enumerate(rules):
        never = not set(rule.labels) & set(known)
        for place, label in enumerate(rule.labels):
            if label not in known:
                text = f"rule `{rule.name}` wants `{label}`, and the network has no such class"
                text += ", so it never fires" if never else ""
                yield UnknownLabel(number, place, f"{text}; {_hint(label, known)}", never)


def _hint(label: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(label, known, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"it knows: {', '.join(known[:LISTED_MAX])}{'…' if len(known) > LISTED_MAX else ''}"
