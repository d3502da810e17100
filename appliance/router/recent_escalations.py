"""Remembers which stationary objects were escalated, over restarts too, so that a parked car is escalated once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from appliance.base.errors import StoreUnavailable
from appliance.base.geometry import iou
from appliance.router.track_stats import CameraTrackStats, TrackStats
from appliance.store.boxes import BoxStore
from appliance.store.decisions import DecisionStore, EscalatedTrackRow
from appliance.types import SEVERITIES, Box, FrameBoxes, Severity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecentEscalationsTuning:
    """When an object counts as one that stands where it was escalated before. Set by hand, for parked vehicles."""

    objects_max: int = 64
    """Of one camera; a car park shows fewer at a time that were ever escalated."""
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


TUNING = RecentEscalationsTuning()


@dataclass(slots=True)
class _EscalatedObject:
    """there_s: for how long it was detected there, seconds; from before it was escalated, too."""

    rule: str
    label: str
    severity: Severity
    box: Box
    last_t: float
    there_s: float

    def update(self, t: float) -> None:
        gone_s = t - self.last_t
        self.there_s += gone_s if 0 < gone_s <= TUNING.gap_s_max else 0.0
        self.last_t = t


class RecentEscalations:
    """Objects of one camera that were escalated, by where they stand. Owner: its planner.

    Kept over new sessions of the camera: the car is still there when the stream comes back. One is forgotten when
    nothing of its label was detected there for `repeat_s`; at most `objects_max`, of which the one escalated first
    makes room.
    """

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._objects: list[_EscalatedObject] = []

    def observe(self, boxes: FrameBoxes, tracks: CameraTrackStats) -> None:
        """Keep up what is still there; an object that only walks through does not stand there."""
        if not self._objects:
            return
        track = (tracks.of(found.track) for found in boxes.objects)
        standing = [each for each in track if each is not None and each.moved < TUNING.moved_max]
        self._objects = [known for known in self._objects if abs(boxes.t - known.last_t) <= self._repeat_s]
        for known in self._objects:
            if any(
                each.label == known.label and iou(each.box, known.box) >= TUNING.same_object_iou for each in standing
            ):
                known.update(boxes.t)

    def record(self, rule: str, severity: Severity, track: TrackStats) -> None:
        """Record an escalation of this track."""
        if self._repeat_s <= 0:
            return
        there_s = track.seconds if track.moved < TUNING.moved_max else 0.0
        self._objects.append(_EscalatedObject(rule, track.label, severity, track.box, track.t_last, there_s))
        del self._objects[: -TUNING.objects_max]

    def is_repeat(self, rule: str, severity: Severity, track: TrackStats) -> bool:
        """Return True if this very object was escalated by the same rule, no less gravely, and stands there for long."""
        rank = SEVERITIES.index(severity)
        return track.moved < TUNING.moved_max and any(
            known.rule == rule
            and known.label == track.label
            and rank <= SEVERITIES.index(known.severity)
            and known.there_s >= TUNING.stationary_s
            and iou(track.box, known.box) >= TUNING.same_object_iou
            for known in self._objects
        )


def restore_recent(
    decisions: DecisionStore, boxes: BoxStore, camera: str, repeat_s: float, now: float
) -> RecentEscalations:
    """Return the memory that a planner of `camera` had when the core ended, from its decisions and the stored boxes.

    An object is known by what one session of the camera saw of it. Nothing is read for a camera of which nothing was
    escalated for `repeat_s`. A store that cannot be read now costs an escalation too many, not a start.
    """
    recent = RecentEscalations(repeat_s)
    try:
        escalated = decisions.escalated(camera, now - repeat_s) if repeat_s > 0 else []
        for run in list(dict.fromkeys(row.run for row in escalated))[-TUNING.sessions_max :]:
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
    for frame in boxes.span(camera, min(times) - 2 * TUNING.stationary_s, max(times) + repeat_s, run=escalated[0].run):
        if not frame.looked:
            continue
        tracks.observe(frame)
        recent.observe(frame, tracks)
        while waiting and waiting[0].t <= frame.t:
            row = waiting.pop(0)
            track = tracks.of(row.track)
            if track is not None:
                recent.record(row.rule, row.severity, track)
