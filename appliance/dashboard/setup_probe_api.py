"""`/api/v1/setup/discover`, `/onvif` and `/probe`: find cameras, ask one for its streams, and try these.

The local network is asked for ONVIF cameras. A camera's streams are opened for some seconds; the answer says what came,
with a picture and advice.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from pydantic import Field, SecretStr
from starlette.responses import Response

from appliance.base.clock import Clock
from appliance.base.errors import SourceError
from appliance.config import CameraConfig
from appliance.dashboard.camera_address import CAMERA_ID, CameraAddress, CameraStreams, second_stream
from appliance.dashboard.openapi import media
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart
from appliance.detect.model_files import AUTO_MODEL, model_bundles, named_model
from appliance.ingest.camera_probe import CameraReport, ProbeFailed, probe_camera
from appliance.onvif.camera_client import (
    OnvifCamera,
    StreamProfile,
    choose_streams,
    clock_advice,
    clock_ahead_s,
    inspect_camera,
)
from appliance.onvif.discovery import FoundCamera, discover_cameras, host_of
from appliance.onvif.soap_client import OnvifAddress, is_same_host
from appliance.web.problems import Problem, alone
from appliance.web.routes import RouteList, provided

SIDE_USUAL = 640  # pixels, of a network that says nothing of its size

router = RouteList(prefix=f"{API}/setup", tags=["setup"])
IMAGES_MAX = 4  # of tried cameras, 0.5 MB each, until the person saves
CLOCK_S_MAX = 1.5  # for a camera's time: one that speaks ONVIF says it at once


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
        with self._alone():
            found = discover_cameras(self._clock)
        return FoundList(cameras=[FoundItem.of_row(each, added=self._name_of(each)) for each in found])

    def ask(self, wanted: AskCamera) -> OnvifReport:
        """Return a camera's report. Raise Problem with the reason and what to do."""
        try:
            with self._alone():
                found = inspect_camera(wanted.parsed(), self._clock)
            return OnvifReport.of(found, network_side(self.model))
        except SourceError as error:
            raise Problem(422, f"{error}.") from None

    def _alone(self) -> AbstractContextManager[None]:
        busy = Problem(429, "Cameras are being asked for already; wait some seconds.", {"Retry-After": "5"})
        return alone(self._busy, busy)

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


class TryCamera(CameraStreams):
    """camera: one of the site file, whose stored password is used where none is given; '': a new one."""

    camera: Annotated[str, Field(pattern=rf"^({CAMERA_ID})?$")] = ""


class StreamFacts(ApiModel):
    """The facts of what a stream sent in some seconds.

    keyframe_s: the longest time between key frames; null: only one came.
    """

    codec: str
    width: int
    height: int
    fps: float
    kbit_s: float
    keyframe_s: float | None
    first_frame_s: float

    @classmethod
    def of(cls, report: CameraReport) -> StreamFacts:
        return cls.of_row(report, width=report.size[0], height=report.size[1])


class ProbeItem(StreamFacts):
    """picture: where its first picture is, for a short while. detect: the second stream; null: none was given.

    ahead_s: what the camera's clock is ahead, if it says by ONVIF. proposed_detect_url: where the second stream of
    cameras with such an address is; '': not known, or one was given.
    """

    advice: list[str]
    picture: str
    detect: StreamFacts | None
    ahead_s: float | None
    proposed_detect_url: str


class CameraProber:
    """Tries addresses, one at a time, and keeps the last pictures for the page that asked. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy = threading.Lock()
        self._images: OrderedDict[str, bytes] = OrderedDict()

    def probe(self, wanted: CameraStreams) -> ProbeItem:
        """Return what the camera sent. Raise Problem if it cannot be shown, or if another one is being tried."""
        onvif, second = wanted.onvif_address(), wanted.second()
        busy = Problem(429, "Another camera is being tried now; wait some seconds.", {"Retry-After": "10"})
        with alone(self._busy, busy), ThreadPoolExecutor(3, thread_name_prefix="probe") as pool:
            first = pool.submit(self._tried, "", wanted)
            other = pool.submit(self._tried, "The second stream: ", second) if second else None
            clock = pool.submit(clock_ahead_s, onvif, self._clock, CLOCK_S_MAX)
        report, detect, ahead_s = first.result(), other.result() if other else None, clock.result()
        key = secrets.token_urlsafe(12)
        self._images[key] = report.image
        while len(self._images) > IMAGES_MAX:
            self._images.popitem(last=False)
        words = [*advice(report, detect), clock_advice(ahead_s)]
        return ProbeItem(
            **StreamFacts.of(report).model_dump(), picture=f"{API}/setup/pictures/{key}", ahead_s=ahead_s,
            advice=[each for each in words if each], detect=StreamFacts.of(detect) if detect else None,
            proposed_detect_url="" if detect else second_stream(wanted.parts()[0]),
        )  # fmt: skip

    def _tried(self, which: str, address: CameraAddress) -> CameraReport:
        try:
            return probe_camera(address.whole())
        except ProbeFailed as error:
            raise Problem(422, f"{which}{error}") from None

    def image(self, key: str) -> bytes | None:
        return self._images.get(key)


Prober = Annotated[CameraProber, Depends(provided(CameraProber))]


@router.post("/probe")
def probe(prober: Prober, part: Settings, wanted: TryCamera) -> ProbeItem:
    """Open a camera's streams for some seconds and say what came. 422 says why nothing did, and what to do."""
    return prober.probe(tried(part, wanted))


@router.get("/pictures/{key}", response_class=Response, responses=media("image/jpeg", etag=False))
def probed_image(prober: Prober, key: str) -> Response:
    """Return the image of a camera that was just tried."""
    found = prober.image(key)
    if found is None:
        raise Problem(404, "That picture is no longer kept; try the camera again.")
    return Response(found, media_type="image/jpeg")


def stored_streams(camera: CameraConfig) -> CameraStreams:
    """Return a camera's addresses as the site file has them, with their user and password."""
    return CameraStreams.model_construct(url=camera.url, detect_url=camera.detect_url or "", onvif=camera.onvif or "")


def tried(part: SettingsPart, wanted: TryCamera) -> CameraStreams:
    """Return what is to be tried, with the stored password where it is meant. Raise Problem."""
    if not wanted.camera:
        return wanted
    return with_stored_login(configured_camera(part, wanted.camera), wanted)


def with_stored_login(camera: CameraConfig, wanted: CameraStreams) -> CameraStreams:
    """Return `wanted` with the camera's stored password where none is given for the same user.

    Raise Problem for another host: whoever takes over an admin's browser must not have the password sent to theirs.
    """
    if camera.is_file:
        return wanted
    known, user, password = CameraAddress(url=camera.url).parts()
    if wanted.password.get_secret_value() or not password or wanted.user != user:
        return wanted
    hosts = {urlsplit(each).hostname for each in wanted.addresses().values()}
    if hosts - {urlsplit(known).hostname}:
        raise Problem(422, "This is another address: type the password, too. The stored one is not sent to it.")
    return wanted.model_copy(update={"password": SecretStr(password)})


def configured_camera(part: SettingsPart, name: str) -> CameraConfig:
    found = part.service.running.config.cameras.get(name)
    if found is None:
        raise Problem(404, f"There is no camera {name} in the site file.")
    return found


def advice(report: CameraReport, detect: CameraReport | None = None) -> list[str]:
    """Return what would make this camera cheaper or surer to watch.

    detect: the report of its second stream; None: there is none.
    """
    found = []
    examined = detect or report
    if examined.size[0] * examined.size[1] > 1280 * 960:
        found.append("Large for detection: give its small second stream as well, and decoding costs a fraction.")
    if examined.keyframe_s is None or examined.keyframe_s > 4.5:
        found.append("Key frames are far apart: set the I-frame interval to 1 to 2 s, so that quiet hours cost little.")
    if examined.fps < 5:
        found.append("Few pictures a second: fast things may be missed. 10 to 15 are good.")
    if report.codec not in {"h264", "hevc"}:
        found.append(f"{report.codec} is recorded as it comes; H.264 takes far less disk.")
    return found
