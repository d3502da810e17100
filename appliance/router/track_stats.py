"""Statistics of each track's detections, and memory of escalated stationary objects: a parked car is escalated once."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from appliance.base.errors import StoreUnavailable
from appliance.store.boxes import BoxStore
from appliance.store.decisions import DecisionStore, EscalatedTrackRow
from appliance.types import SEVERITIES, Box, FrameBoxes, Severity, TrackedObject, TrackStability, iou

TRACKS_MAX = 512  # of one camera; the one unseen for longest goes
DIGITS = 3  # decimals in the row of the decision


@dataclass(slots=True)
class TrackStats:
    """One track. label: its present one, since the tracker may find later that a truck is a car.

    mean, square: of its scores (Welford); start: its first foot point; tall: its greatest height.
    """

    label: str
    box: Box
    t_first: float
    t_last: float
    start: tuple[float, float]
    tall: float
    looks: int = 0
    mean: float = 0.0
    square: float = 0.0
    reach: float = 0.0

    def update(self, found: TrackedObject, t: float, aspect: float) -> None:
        self.looks += 1
        self.label, self.box, self.t_last = found.label, found.box, max(self.t_last, t)
        change = found.score - self.mean
        self.mean += change / self.looks
        self.square += change * (found.score - self.mean)
        x, y = _foot(found.box)
        self.tall = max(self.tall, found.box[3] - found.box[1])
        self.reach = max(self.reach, math.hypot((x - self.start[0]) * aspect, y - self.start[1]))

    @property
    def moved(self) -> float:
        """How far it got from where it was first seen, in its own heights."""
        return self.reach / max(self.tall, 0.01)

    @property
    def seconds(self) -> float:
        return round(self.t_last - self.t_first, DIGITS)

    @property
    def stability(self) -> TrackStability:
        """Rounded, so that what is logged is what was judged by."""
        return TrackStability(
            score=round(self.mean, DIGITS),
            spread=round(math.sqrt(self.square / self.looks), DIGITS),
            looks=self.looks,
            seconds=self.seconds,
            moved=round(self.moved, DIGITS),
        )


class CameraTrackStats:
    """Tracks of one camera's present run. Owner: its planner.

    Bounded: of TRACKS_MAX the one unseen for longest makes room.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, TrackStats] = {}
        self._aspect = 16 / 9
        self.crowd = 0
        """Objects in the last examined frame."""

    def begin(self, size: tuple[int, int]) -> None:
        """Begin a run: track numbers of before mean others."""
        self._tracks.clear()
        self.crowd = 0
        self._aspect = size[0] / size[1] if min(size) > 0 else 16 / 9

    def observe(self, boxes: FrameBoxes) -> None:
        self.crowd = len(boxes.objects)
        for found in boxes.objects:
            seen = self._tracks.pop(found.track, None)
            if seen is None:
                tall = found.box[3] - found.box[1]
                seen = TrackStats(found.label, found.box, boxes.t, boxes.t, _foot(found.box), tall)
            seen.update(found, boxes.t, self._aspect)
            self._tracks[found.track] = seen
        while len(self._tracks) > TRACKS_MAX:
            del self._tracks[next(iter(self._tracks))]

    def of(self, track: int) -> TrackStats | None:
        return self._tracks.get(track)


def _foot(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, box[3]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecentEscalationsTuning:
    """Limits for an object that stands where it was escalated before. Set by hand, for parked vehicles."""

    objects_max: int = 64
    """Objects of one camera; a car park shows fewer at a time that were ever escalated."""
    same_object_iou: float = 0.8
    """Intersection over union: a parked car's box breathes, another one's stands elsewhere."""
    stationary_s: float = 30.0
    """A person who waits moves within that; what does not is furniture."""
    moved_max: float = 0.25
    """In own heights."""
    gap_s_max: float = 3.0
    """Unseen for no longer than this it was there all the time."""
    sessions_max: int = 4
    """The newest are replayed after a restart, of a camera that keeps breaking off."""


STANDING = RecentEscalationsTuning()


@dataclass(slots=True)
class _EscalatedObject:
    """track: goes on while its run lasts. there_s: for how long it was detected there, also before it was escalated."""

    rule: str
    track: TrackStats
    severity: Severity
    box: Box
    last_t: float
    there_s: float

    def update(self, t: float) -> None:
        gone_s = t - self.last_t
        self.there_s += gone_s if 0 < gone_s <= STANDING.gap_s_max else 0.0
        self.last_t = t


class RecentEscalations:
    """Escalated objects of one camera, by their place. Owner: its planner.

    Kept over new sessions of the camera: the car is still there when the stream comes back. An object is forgotten if
    nothing of its label was detected there for `repeat_s`. Beyond `objects_max` the one that was escalated first is
    dropped.
    """

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._objects: list[_EscalatedObject] = []

    def observe(self, boxes: FrameBoxes, tracks: CameraTrackStats) -> None:
        """Keep up what is still there; an object that only walks through does not stand there."""
        if not self._objects:
            return
        track = (tracks.of(found.track) for found in boxes.objects)
        standing = [each for each in track if each is not None and each.moved < STANDING.moved_max]
        self._objects = [known for known in self._objects if abs(boxes.t - known.last_t) <= self._repeat_s]
        for known in self._objects:
            label = known.track.label
            if any(each.label == label and iou(each.box, known.box) >= STANDING.same_object_iou for each in standing):
                known.update(boxes.t)

    def record(self, rule: str, severity: Severity, track: TrackStats) -> None:
        """Record an escalation of this track."""
        if self._repeat_s <= 0:
            return
        there_s = track.seconds if track.moved < STANDING.moved_max else 0.0
        self._objects.append(_EscalatedObject(rule, track, severity, track.box, track.t_last, there_s))
        del self._objects[: -STANDING.objects_max]

    def is_repeat(self, rule: str, severity: Severity, track: TrackStats) -> bool:
        """Return True if this object was escalated by the same rule, no less severely, and has stood there long."""
        rank = SEVERITIES.index(severity)
        return track.moved < STANDING.moved_max and any(
            known.rule == rule
            and known.track.label == track.label
            and rank <= SEVERITIES.index(known.severity)
            and known.there_s >= STANDING.stationary_s
            and iou(track.box, known.box) >= STANDING.same_object_iou
            for known in self._objects
        )


def restore_recent(
    decisions: DecisionStore, boxes: BoxStore, camera: str, repeat_s: float, now: float
) -> RecentEscalations:
    """Return the memory that a planner of `camera` had when the core ended, from its decisions and the stored boxes.

    An object is identified by its boxes in one session. Nothing is read for a camera without an escalation within
    `repeat_s`. If the store cannot be read now, the start goes on; it may cost one repeated escalation.
    """
    recent = RecentEscalations(repeat_s)
    try:
        escalated = decisions.escalated(camera, now - repeat_s) if repeat_s > 0 else []
        for run in list(dict.fromkeys(row.run for row in escalated))[-STANDING.sessions_max :]:
            _replay(recent, boxes, camera, [row for row in escalated if row.run == run], repeat_s)
    except StoreUnavailable as error:
        logger.info("camera %s: what was escalated before the restart is not known: %s", camera, error)
    return recent


def _replay(
    recent: RecentEscalations, boxes: BoxStore, camera: str, escalated: list[EscalatedTrackRow], repeat_s: float
) -> None:
    tracks = CameraTrackStats()
    tracks.begin(escalated[0].size)
    times = [row.t for row in escalated]
    waiting = sorted(escalated, key=lambda row: row.t)
    for frame in boxes.span(
        camera, min(times) - 2 * STANDING.stationary_s, max(times) + repeat_s, run=escalated[0].run
    ):
        if not frame.looked:
            continue
        tracks.observe(frame)
        recent.observe(frame, tracks)
        while waiting and waiting[0].t <= frame.t:
            row = waiting.pop(0)
            track = tracks.of(row.track)
            if track is not None:
                recent.record(row.rule, row.severity, track)
