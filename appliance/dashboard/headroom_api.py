"""`/api/v1/headroom`: how much of the detector is in use, and what each camera was promised of it and gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends

from appliance.config import CameraConfig
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.web.routes import RouteList, provided
from appliance.web.templating import percent

FULL_LOAD = 0.9  # more than that in use is hardly any room

router = RouteList(prefix=f"{API}/headroom", tags=["cameras"])


class CameraHeadroom(ApiModel):
    """The headroom of one camera, in inferences a second. null: not known now.

    `configured`: in the site file. `promised`: over the last seconds, what motion, tracks and heartbeat required, at
    most as configured. `examined`: how many of them were made.
    """

    camera: str
    configured: float
    promised: float | None
    examined: float | None
    overloaded: bool


class HeadroomReport(ApiModel):
    """The detector of the site. null: not known yet.

    `load`: the share of its time in use. `inference_ms`: the mean time of one inference. `room`: so many more a second
    would fit. `load_all_moving`: the load if something moved on every camera at once; above 1 it cannot do them all.
    """

    load: float | None
    inference_ms: float | None
    room: float | None
    load_all_moving: float | None
    cameras: list[CameraHeadroom]


class HeadroomReader:
    """Reckons the headroom. Any thread may call."""

    def __init__(
        self, cameras: Mapping[str, CameraConfig], meter: Meter, events: HealthEventStore, probes: CoreProbes
    ) -> None:
        """cameras: of the site file, by name."""
        self._cameras = {name: camera for name, camera in cameras.items() if camera.enabled}
        self._meter = meter
        self._events = events
        self._probes = probes

    def report(self) -> HeadroomReport:
        now = self._meter.decoding()
        overloaded = {event.camera for event in self._events.open() if event.kind == "overloaded"}
        items = []
        for name, camera in sorted(self._cameras.items()):
            status = now.get(name)
            items.append(
                CameraHeadroom(
                    camera=name,
                    configured=camera.detect.fps,
                    promised=None if status is None else status.promised_fps,
                    examined=None if status is None else status.examined_fps,
                    overloaded=name in overloaded,
                )
            )
        health = self._probes.health() if self._probes.health is not None else None
        if health is None or not health.ingest_running or not health.detector_ms:
            return HeadroomReport(load=None, inference_ms=None, room=None, load_all_moving=None, cameras=items)
        call_s = health.detector_ms / 1000
        return HeadroomReport(
            load=health.load,
            inference_ms=health.detector_ms,
            room=max(0.0, 1 - health.load) / call_s,
            load_all_moving=sum(camera.detect.fps for camera in self._cameras.values()) * call_s,
            cameras=items,
        )


Headroom = Annotated[HeadroomReader, Depends(provided(HeadroomReader))]


@router.get("")
def headroom(reader: Headroom) -> HeadroomReport:
    """How busy the detector is, how much more would fit, and what each camera was promised and gets."""
    return reader.report()


def sentence(found: HeadroomReport) -> str:
    """Return what follows from it, for people."""
    if found.load is None or found.room is None or found.load_all_moving is None:
        return "Not yet known: the detector has not worked yet."
    if short := [each.camera for each in found.cameras if each.overloaded]:
        return f"Too little for {', '.join(short)}: lower detect.fps, take a quicker network, or fewer cameras."
    room = f"Room for about {found.room:.0f} more inferences a second" if found.load < FULL_LOAD else "Hardly any room"
    moving = f"If something moved on every camera at once it would be at work {percent(found.load_all_moving)} of the"
    return f"{room}. {moving} time{': more than it can do' if found.load_all_moving > 1 else ''}."
