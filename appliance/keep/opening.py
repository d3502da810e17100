"""Who was in the picture already when a clip begins: to a replay they are new, so rules may fire for them again."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.config import Alerts, Camera
from appliance.pipeline import Pipeline
from appliance.types import Event, FrameBoxes, StreamHeader

FIRST_S = 1.0


def opening_events(
    name: str, camera: Camera, alerts: Alerts, looks: Sequence[FrameBoxes], size: tuple[int, int]
) -> list[Event]:
    """The events that the camera's rules make of `looks` (oldest first, from the clip's beginning on), of those tracks
    that are in its first second. size: of the picture. Times are those of the looks."""
    if not looks:
        return []
    there = {found.track for look in looks if look.t <= looks[0].t + FIRST_S for found in look.objects}
    pipeline = Pipeline(name, camera, alerts)
    pipeline.feed(StreamHeader(camera=name, clip="", model="", size=size, run="kept"))
    found = [event for look in looks for event in pipeline.feed(look).events]
    return [event for event in found if event.track in there]
