"""The rules of one camera: tracked boxes in, events out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from appliance.config import CameraConfig, DwellRule, LineRule, Rule
from appliance.rules.conditions import RuleCondition, RuleTrackState, condition_for
from appliance.rules.polygon_geometry import at_frame_edge, foot, touching
from appliance.rules.schedule import ArmedHours, LocalTime
from appliance.rules.zones_and_lines import (
    CROWDED_SETTLE_S,
    LOSS_S,
    MARGIN,
    ROW_S,
    SETTLE_S,
    Line,
    LinePosition,
    Zone,
    ZoneMembership,
)
from appliance.types import Box, Event, FrameBoxes, StreamHeader, TrackedObject

FORGET_S = 60.0
TRACKS_MAX = 512


@dataclass(frozen=True, slots=True)
class _ArmedRule:
    """A rule with its watch and hours (None: always armed)."""

    rule: Rule
    watch: RuleCondition
    hours: ArmedHours | None


class RulesEngine:
    """Judges every look at one camera. Pure: the same messages give the same events.

    A track that is known to have stood where it is first seen (`TrackedObject.stood_s`: parked there before the camera
    or the box was started anew, or long hidden) entered its zones before, and its dwelling is counted from then.

    State: one Record per track of the present run, forgotten when unseen for FORGET_S; at most TRACKS_MAX, of which
    the one unseen for longest makes room (`evicted` counts). A look in which the detector did not answer
    (`looked=False`) changes nothing. A header with another run (or without one) resets everything.

    A rule judges a track by its Confidence (the peak of the median of its scores), not by the score of one look; an
    event carries that figure as its `score`.

    exit fires when a track is seen to leave the zone, and when it is lost for more than 3 s with its last box at the
    picture's edge: it walked out of view. A track that is lost in the middle of the picture has not left: people are
    hidden by cars and missed by detectors far more often than they vanish. A door inside a zone wants a line.
    """

    def __init__(self, camera_name: str, camera: CameraConfig, wall: LocalTime | None = None) -> None:
        self._camera = camera_name
        self._wall = wall
        gap_max_s = max(LOSS_S, 1.5 * camera.detect.heartbeat_s)
        self._rules = tuple(
            _ArmedRule(
                rule, condition_for(rule, gap_max_s), ArmedHours(rule.schedule) if rule.schedule and wall else None
            )
            for rule in camera.rules
        )
        self._all = range(len(camera.rules))
        # Only these change by time passing; the others need a look only when something happened.
        self._timed = [index for index, rule in enumerate(camera.rules) if isinstance(rule, DwellRule)]
        lines = {rule.line for rule in camera.rules if isinstance(rule, LineRule)}
        zones = {rule.zone for rule in camera.rules if not isinstance(rule, LineRule)}
        self._zones = tuple(Zone(name, points) for name, points in camera.zones.items() if name in zones)
        self._lines = tuple(Line(name, a, b) for name, (a, b) in camera.lines.items() if name in lines)
        self._gap_max_s = gap_max_s
        self._aspect = 16 / 9
        self._run = ""
        self._records: dict[int, RuleTrackState] = {}
        self._offset = 0.0
        self._latest: float | None = None
        self.evicted = 0

    @property
    def tracks(self) -> int:
        """How many tracks are remembered."""
        return len(self._records)

    def feed(self, message: StreamHeader | FrameBoxes) -> tuple[Event, ...]:
        """The events that this message makes, in the order of its objects and of the rules in the site file."""
        if isinstance(message, StreamHeader):
            self._begin(message)
            return ()
        if not message.looked or not self._rules:
            return ()
        return self._look(message)

    def _begin(self, header: StreamHeader) -> None:
        self._aspect = header.size[0] / header.size[1] if min(header.size) > 0 else 16 / 9
        if header.run and header.run == self._run:
            return
        self._run = header.run
        self._records.clear()
        self._offset, self._latest = 0.0, None

    def _look(self, frame: FrameBoxes) -> tuple[Event, ...]:
        now = self._steady(frame.t)
        armed = self._armed(frame.t)
        events: list[Event] = []
        around = self._around(frame, now)
        for found in frame.objects:
            record = self._sight(found, now)
            company = any(track != found.track and touching(found.box, box) for track, box in around)
            self._move(record, now, CROWDED_SETTLE_S if company else SETTLE_S)
            events += self._fire(record, armed, now, frame.t)
        for record in self._missing({found.track for found in frame.objects}, now):
            events += self._fire(record, armed, now, frame.t)
        return tuple(events)

    def _steady(self, t: float) -> float:
        """Frame time that never runs back: a camera whose clock is set back must not have negative durations."""
        if self._latest is not None and t < self._latest:
            self._offset += self._latest - t
        self._latest = t
        return t + self._offset

    def _armed(self, t: float) -> tuple[bool, ...]:
        if self._wall is None or not any(item.hours for item in self._rules):
            return (True,) * len(self._rules)
        weekday, minute = self._wall(t)
        return tuple(item.hours is None or item.hours.armed(weekday, minute) for item in self._rules)

    def _sight(self, found: TrackedObject, now: float) -> RuleTrackState:
        """The record of a track that is seen, moved to the end: records are in the order of their last sighting."""
        record = self._records.pop(found.track, None)
        if record is None:
            if len(self._records) >= TRACKS_MAX:
                del self._records[next(iter(self._records))]
                self.evicted += 1
            record = RuleTrackState(found, now, None if found.stood_s is None else now - found.stood_s)
        elif now - record.seen > self._gap_max_s:
            record.walks.clear()
        elif record.missing_since is not None and now - record.seen > ROW_S:
            record.break_streaks()
        self._records[found.track] = record
        record.sight(found, now)
        return record

    def _around(self, frame: FrameBoxes, now: float) -> list[tuple[int, Box]]:
        """Every track that is seen in this look, or may be hidden by one that is, and where."""
        seen = {found.track: found.box for found in frame.objects}
        hidden = [
            (track, record.last.box)
            for track, record in self._records.items()
            if track not in seen and now - record.seen <= LOSS_S
        ]
        return [*seen.items(), *hidden]

    def _move(self, record: RuleTrackState, now: float, settle_s: float) -> None:
        box = record.last.box
        here, margin = foot(box), MARGIN * (box[3] - box[1])
        record.passages.clear()
        record.crossings.clear()
        for zone in self._zones:
            member = record.members.get(zone.name)
            if member is None:
                member = record.members[zone.name] = zone.begin(here, record.known_since)
                if member.known:
                    continue
            passage = zone.look(member, here, now, margin, self._aspect, settle_s)
            if passage:
                record.passages[zone.name] = passage
        for line in self._lines:
            walk = record.walks.get(line.name)
            if walk is None:
                walk = record.walks[line.name] = LinePosition()
            direction = line.look(walk, here, now, margin, self._aspect, settle_s)
            if direction:
                record.crossings[line.name] = direction

    def _missing(self, seen: set[int], now: float) -> list[RuleTrackState]:
        """Notes which tracks this look did not find, forgets old ones; the ones that walked out of view just now."""
        gone: list[RuleTrackState] = []
        for track, record in list(self._records.items()):
            if track in seen or (record.lost and now - record.seen <= FORGET_S):
                continue
            if record.missing_since is None:
                record.missing_since = now
            if now - record.seen > FORGET_S:
                del self._records[track]
            elif now - record.missing_since > LOSS_S:
                record.break_off()
                if at_frame_edge(record.last.box) and self._leave(record, now):
                    gone.append(record)
        return gone

    @staticmethod
    def _leave(record: RuleTrackState, now: float) -> bool:
        record.crossings.clear()
        record.passages = {name: "left" for name, member in record.members.items() if member.inside}
        for name in record.passages:
            record.members[name] = ZoneMembership(since=now)
        return bool(record.passages)

    def _fire(self, record: RuleTrackState, armed: tuple[bool, ...], now: float, t: float) -> list[Event]:
        """The events of one track in one look. `now` runs steadily, `t` is what the camera says."""
        happened = record.passages or record.crossings
        for index in self._all if happened else self._timed:
            self._rules[index].watch.look(record, now, armed[index])
        if not record.claims:
            return []
        events = []
        sureness = record.sureness(record.last.label)
        for item in self._rules:
            claim = record.claims.get(item.rule.name)
            if claim is None:
                continue
            if now > claim.t_max:
                del record.claims[item.rule.name]
            elif record.last.label in item.rule.labels and sureness >= item.rule.score_min:
                del record.claims[item.rule.name]
                events.append(self._event(item.rule, record.last, sureness, t))
        return events

    def _event(self, rule: Rule, found: TrackedObject, sureness: float, t: float) -> Event:
        content = f"{self._camera}|{self._run}|{rule.name}|{found.track}|{t!r}|{rule.kind}"
        return Event(
            camera=self._camera,
            rule=rule.name,
            kind=rule.kind,
            track=found.track,
            label=found.label,
            t=t,
            score=round(sureness, 3),
            box=found.box,
            zone="" if rule.kind == "line" else rule.zone,
            line=rule.line if rule.kind == "line" else "",
            severity=rule.severity,
            id=hashlib.sha256(content.encode()).hexdigest()[:16],
        )
