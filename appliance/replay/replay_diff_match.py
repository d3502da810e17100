"""Pairs the tracks, events and alerts of two replay logs and says what became of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from appliance.types import Alert, Box, Decision, Event, FrameBoxes, LogLine, Point, StreamHeader, iou

DifferenceKind = Literal["missing", "new", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackDifference:
    """A track that is in one log only, or begins or ends at another time or under another label."""

    camera: str
    change: DifferenceKind
    track: int
    other: int | None = None
    label: str
    other_label: str = ""
    t_start: float
    t_end: float
    near: Point
    begin_s: float = 0.0  # by how much later it begins in the second log
    end_s: float = 0.0
    goes_on: int | None = None  # the track of the other log in whose place it is, if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDifference:
    """An event that is in one log only, or at another time."""

    camera: str
    change: DifferenceKind
    rule: str
    label: str
    track: int
    t: float
    moved_s: float = 0.0  # by how much later it is in the second log


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDifference:
    """An alert that is in one log only, or changed."""

    camera: str
    change: DifferenceKind
    rules: tuple[str, ...]
    t: float
    what: tuple[str, ...] = ()  # what changed, as texts


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDifference:
    """The verdicts on an alert that is in both logs; None: none."""

    camera: str
    rules: tuple[str, ...]
    t: float
    before: Decision | None
    after: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTotals:
    """Counts of one log."""

    looks: int
    tracks: int
    events: int
    alerts: int
    questions: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDifference:
    """Everything that differs between two logs. Its JSON is that of `vedette replay diff --json`."""

    before: str
    after: str
    same: bool  # the same was decided, whatever the settings
    settings: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader must know
    first_t: float | None  # the first moment that differs, at first_camera
    first_camera: str
    looks_changed: int  # frames examined in both logs whose boxes are not the same
    looks_shared: int  # frames examined in both logs
    tracks: tuple[TrackDifference, ...]
    events: tuple[EventDifference, ...]
    alerts: tuple[AlertDifference, ...]
    routes: tuple[str, ...]
    total_before: LogTotals
    total_after: LogTotals
    verdicts: tuple[VerdictDifference, ...] = ()


OVERLAP_MIN = 0.3  # IoU; two detectors' boxes of one person overlap more
SHARED_FRAMES_MIN = 2  # one frame could be chance
_BETWEEN_S_MAX = 3.0  # a track is taken to be on the way between two sightings no further apart


@dataclass(frozen=True, slots=True)
class LoggedTrack:
    """One object in one log: when and where it was detected, in order. run counts the headers before it."""

    camera: str
    run: int
    number: int
    label: str
    times: tuple[float, ...]
    boxes: tuple[Box, ...]

    @property
    def t_start(self) -> float:
        return self.times[0]

    @property
    def t_end(self) -> float:
        return self.times[-1]

    @property
    def seconds(self) -> float:
        return self.t_end - self.t_start

    @property
    def middle(self) -> Point:
        """The centre of its box half-way through its sightings."""
        x1, y1, x2, y2 = self.boxes[len(self.boxes) // 2]
        return (x1 + x2) / 2, (y1 + y2) / 2

    def at(self, t: float) -> Box | None:
        """Return where it was at `t`, between two sightings in a straight line; None: not there."""
        if not self.t_start <= t <= self.t_end:
            return None
        index = bisect_left(self.times, t)
        if self.times[index] == t:
            return self.boxes[index]
        before, after = self.times[index - 1], self.times[index]
        if after - before > _BETWEEN_S_MAX:
            return None
        share = (t - before) / (after - before)
        a, b = self.boxes[index - 1], self.boxes[index]
        return (
            a[0] + share * (b[0] - a[0]),
            a[1] + share * (b[1] - a[1]),
            a[2] + share * (b[2] - a[2]),
            a[3] + share * (b[3] - a[3]),
        )


@dataclass(frozen=True, slots=True)
class MatchedTracks:
    """Tracks of two logs, paired by place and time."""

    pairs: tuple[tuple[LoggedTrack, LoggedTrack], ...]  # (of the first log, of the second)
    gone: tuple[LoggedTrack, ...]  # of the first log, without a partner
    new: tuple[LoggedTrack, ...]  # of the second log, without a partner
    breaks: dict[tuple[int, int], LoggedTrack]  # by key of a new track: that of the first log in whose place it was
    joins: dict[tuple[int, int], LoggedTrack]  # by key of a gone track: that of the second log


def tracks_of(lines: Iterable[LogLine], camera: str) -> tuple[LoggedTrack, ...]:
    """Return the tracks of one camera in the order of their first sightings; `lines` with the first header."""
    run = 0
    found: dict[tuple[int, int], list[tuple[float, str, Box]]] = {}
    for line in lines:
        if line.camera != camera:
            continue
        run += isinstance(line, StreamHeader)
        if isinstance(line, FrameBoxes):
            for each in line.objects:
                found.setdefault((run, each.track), []).append((line.t, each.label, each.box))
    return tuple(
        LoggedTrack(
            camera,
            run,
            number,
            Counter(label for _, label, _ in seen).most_common(1)[0][0],
            tuple(t for t, _, _ in seen),
            tuple(box for _, _, box in seen),
        )
        for (run, number), seen in found.items()
    )


def match_tracks(before: Sequence[LoggedTrack], after: Sequence[LoggedTrack]) -> MatchedTracks:
    """Pair the tracks that were in the same place for longest, each with at most one other."""
    spans = [[(each.t_start, each.t_end) for each in side] for side in (before, after)]
    shared = [
        (frames, before[i], after[j])
        for i, j in _at_the_same_time(*spans)
        for frames in (_shared_frames(before[i], after[j]),)
        if frames
    ]
    shared.sort(key=lambda each: (-each[0], each[1].run, each[1].number, each[2].run, each[2].number))
    partner: dict[tuple[int, int], LoggedTrack] = {}
    taken: set[tuple[int, int]] = set()
    breaks: dict[tuple[int, int], LoggedTrack] = {}
    joins: dict[tuple[int, int], LoggedTrack] = {}
    for _, one, other in shared:
        if track_key(one) not in partner and track_key(other) not in taken:
            partner[track_key(one)] = other
            taken.add(track_key(other))
    for _, one, other in shared:
        if track_key(other) not in taken:
            breaks.setdefault(track_key(other), one)
        if track_key(one) not in partner:
            joins.setdefault(track_key(one), other)
    return MatchedTracks(
        pairs=tuple((one, partner[track_key(one)]) for one in before if track_key(one) in partner),
        gone=tuple(one for one in before if track_key(one) not in partner),
        new=tuple(other for other in after if track_key(other) not in taken),
        breaks=breaks,
        joins=joins,
    )


Span = tuple[float, float]


def _at_the_same_time(before: Sequence[Span], after: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield the places of all pairs of spans that have a moment in common, without a look at all other pairs."""
    coming = sorted(range(len(after)), key=lambda place: after[place][0])
    begins = [after[place][0] for place in coming]
    lasting: list[int] = []
    begun = 0
    for one in sorted(range(len(before)), key=lambda place: before[place][0]):
        start, end = before[one]
        now = bisect_right(begins, start)
        lasting = [place for place in (*lasting, *coming[begun:now]) if after[place][1] >= start]
        begun = now
        for other in (*lasting, *coming[now : bisect_right(begins, end)]):
            yield one, other


def track_key(track: LoggedTrack) -> tuple[int, int]:
    """Return the key of a track of one camera in one log."""
    return track.run, track.number


def _shared_frames(one: LoggedTrack, other: LoggedTrack) -> int:
    """Count the sightings of the one that was seen less often at which both were in the same place."""
    few, many = (one, other) if len(one.times) <= len(other.times) else (other, one)
    places = ((box, many.at(t)) for t, box in zip(few.times, few.boxes, strict=True))
    frames = sum(there is not None and iou(box, there) >= OVERLAP_MIN for box, there in places)
    return frames if frames >= min(SHARED_FRAMES_MIN, len(few.times)) else 0


EVENT_S_MAX = 5.0  # an event of another model comes within so much, later ones are other events
ALERT_S_MAX = 5.0  # as EVENT_S_MAX
_TRACK_STRANGE_S = 2.0  # two events of tracks that do not match must be this much nearer in time to be one


def track_differences(matched: MatchedTracks) -> Iterator[TrackDifference]:
    """Return the differences of matched tracks, and the tracks without a partner."""
    for one, other in matched.pairs:
        begin_s, end_s = (round(b - a, 3) for a, b in ((one.t_start, other.t_start), (one.t_end, other.t_end)))
        if begin_s or end_s or one.label != other.label:
            changed = _track("changed", one)
            yield replace(changed, other=other.number, other_label=other.label, begin_s=begin_s, end_s=end_s)
    for track in matched.gone:
        joined = matched.joins.get(track_key(track))
        yield replace(_track("missing", track), goes_on=joined.number if joined else None)
    for track in matched.new:
        broken = matched.breaks.get(track_key(track))
        yield replace(_track("new", track), goes_on=broken.number if broken else None)


def _track(change: DifferenceKind, track: LoggedTrack) -> TrackDifference:
    x, y = track.middle
    return TrackDifference(
        camera=track.camera,
        change=change,
        track=track.number,
        label=track.label,
        t_start=track.t_start,
        t_end=track.t_end,
        near=(round(x, 2), round(y, 2)),
    )


def event_differences(
    before: Sequence[Event], after: Sequence[Event], matched: MatchedTracks
) -> Iterator[EventDifference]:
    """Yield the differences of the events of one camera, paired by rule and label, nearest in time.

    Events of the same track are preferred.
    """
    # Runs are rare and events do not name theirs: a number stands for all its runs here.
    partners = {(one.number, other.number) for one, other in matched.pairs}

    def cost(one: Event, other: Event) -> float | None:
        apart_s = abs(one.t - other.t)
        if (one.rule, one.label) != (other.rule, other.label) or apart_s > EVENT_S_MAX:
            return None
        return apart_s + (0.0 if (one.track, other.track) in partners else _TRACK_STRANGE_S)

    pairs, gone, new = _paired(before, after, cost, lambda event: (event.t, event.t + EVENT_S_MAX))
    for one, other in pairs:
        moved_s = round(other.t - one.t, 3)
        if moved_s:
            yield _event("changed", one, moved_s)
    for event in gone:
        yield _event("missing", event)
    for event in new:
        yield _event("new", event)


def _event(change: DifferenceKind, event: Event, moved_s: float = 0.0) -> EventDifference:
    return EventDifference(
        camera=event.camera,
        change=change,
        rule=event.rule,
        label=event.label,
        track=event.track,
        t=event.t,
        moved_s=moved_s,
    )


@dataclass(frozen=True, slots=True)
class AlertPair:
    """An alert of one camera in both logs, or (None) in one of them only. what: what changed, as texts."""

    before: Alert | None
    after: Alert | None
    what: tuple[str, ...] = ()


def alert_pairs(before: Sequence[Alert], after: Sequence[Alert]) -> list[AlertPair]:
    """Pair the alerts of one camera by time, if they have a rule in common; then come the first's, the second's."""
    pairs, gone, new = _paired(before, after, _alert_cost, _alert_span)
    return [
        *(AlertPair(one, other, tuple(_alert_texts(one, other))) for one, other in pairs),
        *(AlertPair(one, None) for one in gone),
        *(AlertPair(None, other) for other in new),
    ]


def alert_differences(before: Sequence[Alert], after: Sequence[Alert]) -> Iterator[AlertDifference]:
    """Yield the differences between the alerts of one camera."""
    for pair in alert_pairs(before, after):
        shown = pair.before or pair.after
        assert shown is not None
        change: DifferenceKind = "new" if pair.before is None else "missing" if pair.after is None else "changed"
        if change != "changed" or pair.what:
            yield AlertDifference(
                camera=shown.camera, change=change, rules=shown.rules, t=shown.t_start, what=pair.what
            )


def verdict_differences(before: Sequence[Alert], after: Sequence[Alert]) -> Iterator[VerdictDifference]:
    """Yield the alerts of one camera, paired the same way, with another verdict."""
    pairs, _, _ = _paired(before, after, _alert_cost, _alert_span)
    for one, other in pairs:
        if one.verdict != other.verdict:
            yield VerdictDifference(
                camera=one.camera, rules=one.rules, t=one.t_start, before=one.verdict, after=other.verdict
            )


def _alert_cost(one: Alert, other: Alert) -> float | None:
    apart_s = abs(one.t_start - other.t_start)
    overlapping = one.t_start <= _end(other) and other.t_start <= _end(one)
    if not set(one.rules) & set(other.rules) or not (overlapping or apart_s <= ALERT_S_MAX):
        return None
    return apart_s


def _alert_span(alert: Alert) -> Span:
    return alert.t_start, max(_end(alert), alert.t_start + ALERT_S_MAX)


def _alert_texts(one: Alert, other: Alert) -> Iterator[str]:
    begin_s, end_s = round(other.t_start - one.t_start, 3), round(_end(other) - _end(one), 3)
    if begin_s:
        yield f"begins {format_shift(begin_s)}"
    if end_s:
        yield f"ends {format_shift(end_s)}"
    if one.severity != other.severity:
        yield f"is {other.severity} instead of {one.severity}"
    lost, gained = ([rule for rule in a.rules if rule not in b.rules] for a, b in ((one, other), (other, one)))
    if lost:
        yield f"without {', '.join(lost)}"
    if gained:
        yield f"with {', '.join(gained)} as well"
    if len(one.tracks) != len(other.tracks):
        yield f"{len(other.tracks)} tracks instead of {len(one.tracks)}"


def format_shift(seconds: float) -> str:
    """Write `-1.4` as `1.4 s earlier`."""
    return f"{abs(seconds):.1f} s {'later' if seconds > 0 else 'earlier'}"


def _end(alert: Alert) -> float:
    return alert.t_start if alert.t_end is None else alert.t_end


Item = TypeVar("Item")


def _paired(
    before: Sequence[Item],
    after: Sequence[Item],
    cost: Callable[[Item, Item], float | None],
    span: Callable[[Item], Span],
) -> tuple[list[tuple[Item, Item]], list[Item], list[Item]]:
    """Return pairs, cheapest first, each in at most one; then what is left of the first and of the second.

    span: two items whose spans have no moment in common are no pair.
    """
    costs = [
        (found, i, j)
        for i, j in _at_the_same_time(*([span(each) for each in side] for side in (before, after)))
        if (found := cost(before[i], after[j])) is not None
    ]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, i, j in sorted(costs):
        if i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    return (
        [(before[i], after[partner[i]]) for i in sorted(partner)],
        [each for i, each in enumerate(before) if i not in partner],
        [each for j, each in enumerate(after) if j not in taken],
    )
