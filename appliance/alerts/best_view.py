"""Scores how well an object is seen in each frame; the still of an alert is cut from the best one."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from appliance.types import BestView, Box, FrameBoxes, TrackedObject

_EDGE = 0.01  # share of the frame
_CUT_OFF = 0.5  # weight of a view whose box touches the frame's border: half of the object may be outside


def quality(score: float, box: Box) -> float:
    """Score times the root of the area: sure and large; halved where the frame's edge cuts the object off."""
    x1, y1, x2, y2 = box
    whole = x1 > _EDGE and y1 > _EDGE and x2 < 1 - _EDGE and y2 < 1 - _EDGE
    return score * sqrt(max(0.0, x2 - x1) * max(0.0, y2 - y1)) * (1.0 if whole else _CUT_OFF)


def view_of(found: TrackedObject, t: float) -> BestView:
    return BestView(track=found.track, label=found.label, t=t, score=found.score, box=found.box)


def last_view(recent: Sequence[FrameBoxes], track: int) -> BestView | None:
    """Return the track as it was last seen in examined frames, oldest first; None: not in these."""
    seen = (view_of(found, frame.t) for frame in reversed(recent) for found in frame.objects if found.track == track)
    return next(seen, None)
