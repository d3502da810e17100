"""Which moments around an event are shown to the cloud. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.alerts.view import quality
from appliance.types import BestView, Box, Event, FrameBoxes


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which a picture is wanted, and the object's box in it (None: not known)."""

    t: float
    box: Box | None


def choose_moments(event: Event, seen: Sequence[FrameBoxes], best: BestView | None, count: int) -> list[Moment]:
    """At most `count` moments, oldest first: spread over the frames of `seen` that hold the event's track, the first
    and the last always among them; the best view fills an empty place, the event itself stands in for none."""
    found: dict[float, Moment] = {}
    for frame in seen:
        for each in frame.objects:
            if each.track == event.track:
                found[frame.t] = Moment(frame.t, each.box)
    moments = [found[t] for t in sorted(found)] or [_of(event)]
    if len(moments) > count:
        last = len(moments) - 1
        moments = [moments[last if count == 1 else round(i * last / (count - 1))] for i in range(count)]
    elif best is not None and best.track == event.track and len(moments) < count and best.t not in found:
        moments = sorted([*moments, Moment(best.t, best.box)], key=lambda moment: moment.t)
    return moments


def best_moment(event: Event, seen: Sequence[FrameBoxes]) -> Moment:
    """The frame of `seen` in which the event's track is seen best; the event itself when it is in none."""
    views = [
        (quality(each.score, each.box), -frame.t, Moment(frame.t, each.box))
        for frame in seen
        for each in frame.objects
        if each.track == event.track
    ]
    return max(views, key=lambda view: view[:2])[2] if views else _of(event)


def _of(event: Event) -> Moment:
    return Moment(event.t, event.box if any(event.box) else None)
