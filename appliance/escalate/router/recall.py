"""What was asked about before a restart, read back from the store: a parked car is not asked about again for that."""

from __future__ import annotations

import logging

from appliance.errors import StoreUnavailable
from appliance.escalate.router.novelty import STANDS_S, AskedPlaces
from appliance.escalate.router.sightings import Sightings
from appliance.store.boxes import Boxes
from appliance.store.decisions import AskedRow, Decisions

RUNS_MAX = 4  # of a camera that keeps breaking off the newest

logger = logging.getLogger(__name__)


def recall(decisions: Decisions, boxes: Boxes, camera: str, repeat_s: float, now: float) -> AskedPlaces:
    """The places that a planner of `camera` knew when the core ended, made anew of its decisions and of the boxes seen.

    A place is known by what one run of the camera saw of it. Nothing is read for a camera of which nothing was asked
    for `repeat_s`. A store that cannot be read now costs a question too many, not a start.
    """
    places = AskedPlaces(repeat_s)
    try:
        asked = decisions.asked(camera, now - repeat_s) if repeat_s > 0 else []
        for run in list(dict.fromkeys(row.run for row in asked))[-RUNS_MAX:]:
            _replay(places, boxes, camera, [row for row in asked if row.run == run], repeat_s)
    except StoreUnavailable as error:
        logger.info("camera %s: what was asked about before the restart is not known: %s", camera, error)
    return places


def _replay(places: AskedPlaces, boxes: Boxes, camera: str, asked: list[AskedRow], repeat_s: float) -> None:
    sightings = Sightings()
    sightings.begin(asked[0].size)
    times = [row.t for row in asked]
    waiting = sorted(asked, key=lambda row: row.t)
    for frame in boxes.span(camera, min(times) - 2 * STANDS_S, max(times) + repeat_s, run=asked[0].run):
        if not frame.looked:
            continue
        sightings.look(frame)
        places.look(frame, sightings)
        while waiting and waiting[0].t <= frame.t:
            row = waiting.pop(0)
            seen = sightings.of(row.track)
            if seen is not None:
                places.note(row.rule, row.severity, seen)
