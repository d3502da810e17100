"""What of an alert is looked at again: its best seen object, at moments spread over its life. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from appliance.escalate.calibration import Stability
from appliance.escalate.router.sightings import Sightings
from appliance.store.rows import AlertRow
from appliance.types import Box, FrameBoxes, Glimpse


@dataclass(frozen=True, slots=True)
class Subject:
    """label, seen: what the live looks said of it; glimpses: where it is to be looked at again, oldest first."""

    label: str
    seen: Stability
    glimpses: tuple[Glimpse, ...]


def subject_of(
    alert: AlertRow, frames: Sequence[FrameBoxes], until_t: float, size: tuple[int, int], count: int
) -> Subject | None:
    """The object of the alert's best view, or its newest. None: it was in none of `frames` up to `until_t` (what is
    later is not recorded yet). size: of the picture."""
    track = alert.best.track if alert.best is not None else alert.tracks[-1] if alert.tracks else None
    seen = [
        (frame.t, each)
        for frame in frames
        for each in frame.objects
        if each.track == track and frame.looked and frame.t <= until_t
    ]
    if track is None or not seen:
        return None
    sightings = Sightings()
    sightings.begin(size)
    for frame in frames:
        sightings.look(frame)
    known = sightings.of(track)
    assert known is not None, "it is in at least one of the frames"
    views = [(score_of(each.score, each.box), Glimpse(t=t, box=each.box)) for t, each in seen]
    return Subject(known.label, known.stability, _spread(views, count))


def score_of(score: float, box: Box) -> float:
    """How well it is to be seen: sure and large."""
    return score * sqrt(max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]))


def _spread(views: Sequence[tuple[float, Glimpse]], count: int) -> tuple[Glimpse, ...]:
    """The best of each of `count` equal parts."""
    parts = min(count, len(views))
    bounds = [len(views) * n // parts for n in range(parts + 1)]
    return tuple(max(views[begin:end], key=lambda view: view[0])[1] for begin, end in pairwise(bounds))
