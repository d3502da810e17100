"""Remembers which stationary objects were escalated, over restarts too, so that a parked car is escalated once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from appliance.errors import StoreUnavailable
from appliance.geometry import iou
from appliance.router.track_stats import CameraTrackStats, TrackStats
from appliance.store.boxes import BoxStore
from appliance.store.decisions import DecisionStore, EscalatedTrackRow
from appliance.types import SEVERITIES, Box, FrameBoxes, Severity

logger = logging.getLogger(__name__)

OBJECTS_MAX = 64
SAME_OBJECT_IOU = 0.8  # intersection over union: a parked car's box breathes, somebody else's stands elsewhere
STATIONARY_S = 30.0  # somebody who waits moves within that; what does not is furniture
MOVED_MAX = 0.25  # own heights
GAP_S_MAX = 3.0  # unseen for no longer than this it was there all the time


@dataclass(slots=True)
class _EscalatedObject:
    """there_s: for how long it was seen there, since it was asked about or before."""

    rule: str
    label: str
    severity: Severity
    box: Box
    last_t: float
    there_s: float

    def update(self, t: float) -> None:
        gone_s = t - self.last_t
        self.there_s += gone_s if 0 < gone_s <= GAP_S_MAX else 0.0
        self.last_t = t


class RecentEscalations:
    """Places of one camera about which the cloud was asked. Owner: its planner.

    Kept over new runs of the camera: the car is still there when the stream comes back. A place is forgotten when
    nothing of its label was seen in it for `repeat_s`; at most PLACES_MAX, of which the one asked about first makes
    room.
    """

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._places: list[_EscalatedObject] = []

    def observe(self, boxes: FrameBoxes, sightings: CameraTrackStats) -> None:
        """Keep up what is still there; who only walks through a place does not stand in it."""
        if not self._places:
            return
        seen = (sightings.of(found.track) for found in boxes.objects)
        standing = [each for each in seen if each is not None and each.moved < MOVED_MAX]
        self._places = [place for place in self._places if abs(boxes.t - place.last_t) <= self._repeat_s]
        for place in self._places:
            if any(each.label == place.label and iou(each.box, place.box) >= SAME_OBJECT_IOU for each in standing):
                place.update(boxes.t)

    def record(self, rule: str, severity: Severity, seen: TrackStats) -> None:
        """The cloud is asked about this."""
        if self._repeat_s <= 0:
            return
        there_s = seen.seconds if seen.moved < MOVED_MAX else 0.0
        self._places.append(_EscalatedObject(rule, seen.label, severity, seen.box, seen.t_last, there_s))
        del self._places[:-OBJECTS_MAX]

    def is_repeat(self, rule: str, severity: Severity, seen: TrackStats) -> bool:
        """Whether the same rule was asked about this very thing, no less gravely, and it stands there for long."""
        rank = SEVERITIES.index(severity)
        return seen.moved < MOVED_MAX and any(
            place.rule == rule
            and place.label == seen.label
            and rank <= SEVERITIES.index(place.severity)
            and place.there_s >= STATIONARY_S
            and iou(seen.box, place.box) >= SAME_OBJECT_IOU
            for place in self._places
        )


RUNS_MAX = 4  # of a camera that keeps breaking off the newest


def restore_recent(
    decisions: DecisionStore, boxes: BoxStore, camera: str, repeat_s: float, now: float
) -> RecentEscalations:
    """The places that a planner of `camera` knew when the core ended, made anew of its decisions and of the boxes seen.

    A place is known by what one run of the camera saw of it. Nothing is read for a camera of which nothing was asked
    for `repeat_s`. A store that cannot be read now costs a question too many, not a start.
    """
    places = RecentEscalations(repeat_s)
    try:
        asked = decisions.escalated(camera, now - repeat_s) if repeat_s > 0 else []
        for run in list(dict.fromkeys(row.run for row in asked))[-RUNS_MAX:]:
            _replay(places, boxes, camera, [row for row in asked if row.run == run], repeat_s)
    except StoreUnavailable as error:
        logger.info("camera %s: what was asked about before the restart is not known: %s", camera, error)
    return places


def _replay(
    places: RecentEscalations, boxes: BoxStore, camera: str, asked: list[EscalatedTrackRow], repeat_s: float
) -> None:
    sightings = CameraTrackStats()
    sightings.begin(asked[0].size)
    times = [row.t for row in asked]
    waiting = sorted(asked, key=lambda row: row.t)
    for frame in boxes.span(camera, min(times) - 2 * STATIONARY_S, max(times) + repeat_s, run=asked[0].run):
        if not frame.looked:
            continue
        sightings.observe(frame)
        places.observe(frame, sightings)
        while waiting and waiting[0].t <= frame.t:
            row = waiting.pop(0)
            seen = sightings.of(row.track)
            if seen is not None:
                places.record(row.rule, row.severity, seen)
