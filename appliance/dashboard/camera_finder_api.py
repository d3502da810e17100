"""`/api/v1/setup/discover` and `/onvif`: ask the local network for cameras, and one camera for its streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, TypeVar

from fastapi import Depends
from pydantic import Field, SecretStr

from appliance.base.clock import Clock
from appliance.base.errors import SourceError
from appliance.config import CameraConfig
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.detect.model_files import AUTO_MODEL, model_bundles, named_model
from appliance.onvif.camera_client import OnvifCamera, StreamProfile, choose_streams, clock_advice, inspect_camera
from appliance.onvif.discovery import FoundCamera, discover_cameras, host_of
from appliance.onvif.soap_client import OnvifAddress, is_same_host
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided

_Result = TypeVar("_Result")
SIDE_USUAL = 640  # pixels, of a network that says nothing of its size

router = RouteList(prefix=f"{API}/setup", tags=["setup"])


class FoundItem(ApiModel):
    """A camera that answered. name, make, place: as it says. added: what it is called here; '': it is not yet.

    elsewhere: another host that it names, which is not used.
    """

    address: str
    host: str
    name: str
    make: str
    place: str
    added: str
    elsewhere: str


class FoundList(ApiModel):
    cameras: list[FoundItem]


class AskCamera(RequestModel):
    """address: a host, with a port if it is not 80, or the whole ONVIF address."""

    address: Annotated[str, Field(min_length=1, max_length=300)]
    user: Annotated[str, Field(max_length=100)] = ""
    password: Annotated[SecretStr, Field(max_length=200)] = SecretStr("")

    def parsed(self) -> OnvifAddress:
        """Return the address. Raise SourceRefused if it is none."""
        found = OnvifAddress.parse(self.address)
        return replace(found, user=self.user or found.user, password=self.password.get_secret_value() or found.password)


class OnvifStreamItem(ApiModel):
    """A stream as the camera announces it; null, 0 and '': it does not. gop: frames from key frame to key frame."""

    token: str
    name: str
    codec: str
    width: int
    height: int
    fps: float | None
    kbit_s: float | None
    gop: float | None
    url: str

    @classmethod
    def of(cls, profile: StreamProfile) -> OnvifStreamItem:
        return cls.of_row(profile, width=profile.size[0], height=profile.size[1])


class OnvifReport(ApiModel):
    """A camera's description of itself, and which streams to take.

    The streams are `main` for recording and `sub` for detection ('': main). ahead_s: by how many seconds its clock is
    ahead; null: it does not report it. notes: what it reported that was not followed.
    """

    address: str
    make: str
    model: str
    firmware: str
    ahead_s: float | None
    clock_advice: str
    ptz: bool
    streams: list[OnvifStreamItem]
    main: str
    sub: str
    why: str
    notes: list[str]

    @classmethod
    def of(cls, camera: OnvifCamera, side: int) -> OnvifReport:
        choice = choose_streams(camera.profiles, side)
        return cls.of_row(
            camera, clock_advice=clock_advice(camera.ahead_s), notes=list(camera.notes), **asdict(choice),
            streams=[OnvifStreamItem.of(each) for each in camera.profiles if each.url],
        )  # fmt: skip


class CameraFinder:
    """Asks the network and single cameras, one at a time, for those who add one. Any thread.

    cameras, model: of the site file in force.
    """

    def __init__(self, clock: Clock) -> None:
        self.cameras: Mapping[str, CameraConfig] = {}
        self.model = AUTO_MODEL
        self._clock = clock
        self._busy = threading.Lock()

    def found(self) -> FoundList:
        """Return the cameras that answer in the local network within some seconds.

        Raise Problem if another search is running.
        """
        found = self._alone(lambda: discover_cameras(self._clock))
        return FoundList(cameras=[FoundItem.of_row(each, added=self._name_of(each)) for each in found])

    def ask(self, wanted: AskCamera) -> OnvifReport:
        """Return a camera's report. Raise Problem with the reason and what to do."""
        try:
            return OnvifReport.of(
                self._alone(lambda: inspect_camera(wanted.parsed(), self._clock)), network_side(self.model)
            )
        except SourceError as error:
            raise Problem(422, f"{error}.") from None

    def _alone(self, work: Callable[[], _Result]) -> _Result:
        if not self._busy.acquire(blocking=False):
            raise Problem(429, "Cameras are being asked for already; wait some seconds.", {"Retry-After": "5"})
        try:
            return work()
        finally:
            self._busy.release()

    def _name_of(self, found: FoundCamera) -> str:
        """By the ONVIF address of a camera that has one here, and else by its host."""
        for name, camera in self.cameras.items():
            if camera.onvif is None and is_same_host(host_of(camera.url), found.host):
                return name
            if camera.onvif is not None and _port(camera.onvif) == _port(found.address):
                return name
        return ""


def network_side(model: str) -> int:
    """Return the longer side, in pixels, of the detector's input."""
    bundle = model_bundles().get(named_model(model))
    return max(bundle.input) if bundle else SIDE_USUAL


def _port(onvif: str) -> str:
    """Host and port of an ONVIF address; '': it is none."""
    try:
        return OnvifAddress.parse(onvif).label
    except SourceError:
        return ""


Finder = Annotated[CameraFinder, Depends(provided(CameraFinder))]


@router.post("/discover")
def discover(finder: Finder) -> FoundList:
    """Ask the local network for ONVIF cameras (WS-Discovery). Takes three seconds."""
    return finder.found()


@router.post("/onvif")
def onvif(finder: Finder, wanted: AskCamera) -> OnvifReport:
    """Ask one camera for its streams and its time. 422 says why it does not answer, and what to do."""
    return finder.ask(wanted)
