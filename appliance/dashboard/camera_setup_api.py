"""`/api/v1/setup`: try an address, see its picture, add it to the site file, its password kept apart."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from fastapi import Depends, Request
from pydantic import Field, SecretStr
from starlette.responses import Response

from appliance.base.clock import Clock
from appliance.base.errors import SourceRefused
from appliance.config import CameraConfig, id_of
from appliance.dashboard.deps import DatabasePart, StorageRoot
from appliance.dashboard.openapi import media
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart, SettingsReport, settings_problems, user_of
from appliance.ingest.probe_process import CameraReport, ProbeFailed, probe_camera
from appliance.onvif.camera_client import clock_advice, clock_ahead_s
from appliance.onvif.soap_client import OnvifAddress, bracketed
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.store.retention import delete_camera
from appliance.web.dependencies import provided
from appliance.web.problems import Problem
from appliance.web.route_list import RouteList

IMAGES_MAX = 4  # of tried cameras, 0.5 MB each, until the person saves
CLOCK_S_MAX = 1.5  # for a camera's time: one that speaks ONVIF says it at once

router = RouteList(prefix=f"{API}/setup", tags=["setup"])


@dataclass(frozen=True, slots=True)
class Vendor:
    """How a vendor's cameras name their streams. sub: of the small second one, for detection; '': it has none."""

    name: str
    main: str
    sub: str = ""


# As the vendors' manuals have them, for the first channel; {host} is what the person types.
VENDORS = (
    Vendor("Other", "rtsp://{host}:554/"),
    Vendor("Amcrest", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=0", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=1"),
    Vendor("Axis", "rtsp://{host}:554/axis-media/media.amp", "rtsp://{host}:554/axis-media/media.amp?resolution=640x360"),
    Vendor("Dahua", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=0", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=1"),
    Vendor("Hikvision", "rtsp://{host}:554/Streaming/Channels/101", "rtsp://{host}:554/Streaming/Channels/102"),
    Vendor("Reolink", "rtsp://{host}:554/h264Preview_01_main", "rtsp://{host}:554/h264Preview_01_sub"),
    Vendor("TP-Link Tapo, VIGI", "rtsp://{host}:554/stream1", "rtsp://{host}:554/stream2"),
    Vendor("UniFi Protect", "rtsps://{host}:7441/"),
)  # fmt: skip


# Of an address typed by hand: the first stream's name, and the second one's.
_SECOND = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(/cam/realmonitor\?channel=\d+&subtype=)0", r"\g<1>1"),
        (r"(/axis-media/media\.amp)$", r"\g<1>?resolution=640x360"),
        (r"(?i)(/Streaming/Channels/\d+0)1\b", r"\g<1>2"),
        (r"(/h26[45]Preview_\d+_|/Preview_\d+_)main\b", r"\g<1>sub"),
        (r"/stream1$", "/stream2"),
    )
)


class CameraAddress(RequestModel):
    """Where a camera is. user, password: '' where it wants none, or where they stand in the address."""

    url: Annotated[str, Field(min_length=8, max_length=1000, pattern=r"^rtsps?://")]
    user: Annotated[str, Field(max_length=100)] = ""
    password: Annotated[SecretStr, Field(max_length=200)] = SecretStr("")

    def parts(self) -> tuple[str, str, str]:
        """Return the address without its secrets, the user and the password. Raise Problem if it is no address."""
        try:
            given = urlsplit(self.url)
            host = given.hostname or ""
            port = f":{given.port}" if given.port else ""
        except ValueError:
            raise Problem(422, "That is not an address like rtsp://192.168.1.20:554/path.") from None
        if not host:
            raise Problem(422, "The address has no host; it is like rtsp://192.168.1.20:554/path.")
        user = self.user or unquote(given.username or "")
        password = self.password.get_secret_value() or unquote(given.password or "")
        bare = urlunsplit((given.scheme, bracketed(host) + port, given.path or "/", given.query, ""))
        return _without_variables(bare), user, password

    def whole(self) -> str:
        """With user and password in it."""
        bare, user, password = self.parts()
        return with_login(bare, quote(user, safe=""), quote(password, safe="")) if user or password else bare


class CameraStreams(CameraAddress):
    """detect_url: a second, smaller stream of the same camera, with the same user; '': there is none.

    onvif: its ONVIF address, with the same user; '': it has none.
    """

    detect_url: Annotated[str, Field(max_length=1000, pattern=r"^(rtsps?://.+)?$")] = ""
    onvif: Annotated[str, Field(max_length=300, pattern=r"^(https?://.*)?$")] = ""

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the site file by their keys, without user and password. Raise Problem."""
        found = {"url": self.parts()[0]}
        if self.detect_url:
            found["detect_url"] = CameraAddress(url=self.detect_url).parts()[0]
        if self.onvif:
            found["onvif"] = self.onvif_address().url
        return found

    def second(self) -> CameraAddress | None:
        """Where the second stream is."""
        if not self.detect_url:
            return None
        return CameraAddress(url=self.detect_url, user=self.user, password=self.password)

    def onvif_address(self) -> OnvifAddress:
        """As given, or where most cameras have it. Raises Problem."""
        host = urlsplit(self.parts()[0]).hostname or ""
        try:
            found = OnvifAddress.parse(self.onvif or bracketed(host))
        except SourceRefused as error:
            raise Problem(422, f"ONVIF: {error}.") from None
        _without_variables(found.url)
        return found


def _without_variables(url: str) -> str:
    """`url` as it is. Raises Problem: the site file would put a secret of the appliance in, and the camera get it."""
    if "${" in url:
        raise Problem(422, "An address with ${ in it is not taken from here: no camera has one.")
    return url


Recording = Literal["continuous", "pre_roll", "none"]
_ID = r"[a-z0-9][a-z0-9_-]{0,31}"


class TryCamera(CameraStreams):
    """camera: one of the site file, whose stored password is used where none is given; '': a new one."""

    camera: Annotated[str, Field(pattern=rf"^({_ID})?$")] = ""


class AddCamera(CameraStreams):
    """onvif: of a camera that is to be turned from the dashboard; '': it is not.

    title: its name for people. name: its id; '': one is made of the title.
    """

    base: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(pattern=rf"^({_ID})?$")] = ""
    title: Annotated[str, Field(max_length=64)] = ""
    record: Recording = "continuous"


class ChangeCamera(CameraStreams):
    """A camera as it shall be; its zones, rules and history stay.

    url '': the addresses stay (of a file that plays a camera, say). password '' with the stored user: it stays.
    """

    url: Annotated[str, Field(max_length=1000, pattern=r"^(rtsps?://.+)?$")] = ""
    base: Annotated[str, Field(max_length=64)]
    title: Annotated[str, Field(max_length=64)] = ""
    record: Recording = "continuous"
    audio: bool = False
    enabled: bool = True


class RemoveCamera(RequestModel):
    """recordings: keep them until they are too old, or delete them, and pictures and clips of alerts, at once."""

    base: Annotated[str, Field(max_length=64)]
    recordings: Literal["keep", "delete"]


class CopyRules(RequestModel):
    """to: the camera whose zones, lines and rules are replaced."""

    base: Annotated[str, Field(max_length=64)]
    to: Annotated[str, Field(pattern=rf"^{_ID}$")]


class AddedCamera(SettingsReport):
    """camera: the id of the camera that was added."""

    camera: str


class RemovedCamera(SettingsReport):
    """deleted_bytes: of recordings and evidence. changed: keys of targets and profiles that had named the camera."""

    deleted_bytes: int
    changed: list[str]


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


class VendorItem(ApiModel):
    name: str
    main: str
    sub: str


class VendorList(ApiModel):
    vendors: list[VendorItem]


class CameraProber:
    """Tries addresses, one at a time, and keeps the last pictures for the page that asked. Any thread."""

    def __init__(self, clock: Clock, probe: Callable[[str], CameraReport] = probe_camera) -> None:
        self._clock = clock
        self._probe = probe
        self._busy = threading.Lock()
        self._images: OrderedDict[str, bytes] = OrderedDict()

    def probe(self, wanted: CameraStreams) -> ProbeItem:
        """Return what the camera sent. Raise Problem if it cannot be shown, or if another one is being tried."""
        onvif, second = wanted.onvif_address(), wanted.second()
        if not self._busy.acquire(blocking=False):
            raise Problem(429, "Another camera is being tried now; wait some seconds.", {"Retry-After": "10"})
        try:
            with ThreadPoolExecutor(3, thread_name_prefix="probe") as pool:
                first = pool.submit(self._tried, "", wanted)
                other = pool.submit(self._tried, "The second stream: ", second) if second else None
                clock = pool.submit(clock_ahead_s, onvif, self._clock, CLOCK_S_MAX)
            report, detect, ahead_s = first.result(), other.result() if other else None, clock.result()
        finally:
            self._busy.release()
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
            return self._probe(address.whole())
        except ProbeFailed as error:
            raise Problem(422, f"{which}{error}") from None

    def image(self, key: str) -> bytes | None:
        return self._images.get(key)


Prober = Annotated[CameraProber, Depends(provided(CameraProber))]


@router.get("/vendors")
def vendors() -> VendorList:
    """How the streams of common cameras are called."""
    return VendorList(vendors=[VendorItem.model_validate(each) for each in VENDORS])


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
    return with_stored_login(_configured(part, wanted.camera), wanted)


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


def _configured(part: SettingsPart, name: str) -> CameraConfig:
    found = part.service.running.config.cameras.get(name)
    if found is None:
        raise Problem(404, f"There is no camera {name} in the site file.")
    return found


def _addressed(name: str, wanted: CameraStreams) -> tuple[dict[str, str], dict[str, str]]:
    """Return the addresses as the site file names them, and the secrets beside it. Raise Problem."""
    section = wanted.addresses()
    _, user, password = wanted.parts()
    if not user and not password:
        return section, {}
    stem = name.upper().replace("-", "_")
    names = f"CAMERA_{stem}_USER", f"CAMERA_{stem}_PASSWORD"
    kept = {names[0]: quote(user, safe=""), names[1]: quote(password, safe="")}
    return {key: with_login(url, f"${{{names[0]}}}", f"${{{names[1]}}}") for key, url in section.items()}, kept


@router.post("/cameras", status_code=201)
def add_camera(request: Request, part: Settings, wanted: AddCamera) -> AddedCamera:
    """Add a camera to the site file; user and password go to the secrets file beside it. 409: there is one already."""
    service, title = part.service, wanted.title.strip()
    known = service.running.config.cameras
    if wanted.name == "new":
        raise Problem(422, "A camera cannot be called new: that is the name of a page.")
    if wanted.name in known:
        raise Problem(409, f"There is already a camera {wanted.name}.")
    if not wanted.name and not title:
        raise Problem(422, "title: give the camera a name.")
    name = wanted.name or id_of(title, {"new", *known})
    addresses, kept = _addressed(name, wanted)
    section: dict[str, Any] = {**({"title": title} if title not in ("", name) else {}), **addresses}
    if wanted.onvif:
        section["health_ignore"] = ["moved"]  # a view that changes on purpose is no fault
    if wanted.record != "continuous":
        section["record"] = False if wanted.record == "none" else wanted.record
    with settings_problems():
        changes = [SiteChange(("cameras", name), section)]
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} added", kept)
        return AddedCamera(**dict(SettingsReport.after(service, status)), camera=name)


@router.post("/cameras/{name}")
def change_camera(request: Request, part: Settings, name: str, wanted: ChangeCamera) -> SettingsReport:
    """Change a camera's name, addresses, login, recording or sound, or switch it off or on."""
    service, camera = part.service, _configured(part, name)
    title, record = wanted.title.strip(), False if wanted.record == "none" else wanted.record
    values = {
        "title": ("" if title == name else title, ""), "record": (record, "continuous"), "audio": (wanted.audio, False),
        "enabled": (wanted.enabled, True),
    }  # fmt: skip
    changes = [
        SiteChange(("cameras", name, key), REMOVED if value == default else value)
        for key, (value, default) in values.items()
        if value != getattr(camera, key)
    ]
    kept: dict[str, str] = {}
    if wanted.url:
        whole = with_stored_login(camera, wanted)
        if camera.is_file or _facts(whole) != _facts(stored_streams(camera)):
            addresses, kept = _addressed(name, whole)
            changes += [
                SiteChange(("cameras", name, key), addresses.get(key, REMOVED))
                for key in ("url", "detect_url", "onvif")
                if key in addresses or getattr(camera, key) is not None
            ]
    with settings_problems():
        if not changes:
            return SettingsReport.of(service)
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} changed", kept)
        return SettingsReport.after(service, status)


def _facts(streams: CameraStreams) -> tuple[object, ...]:
    _, user, password = streams.parts()
    return tuple(streams.addresses().items()), user, password


@router.post("/cameras/{name}/remove")
def remove_camera(
    request: Request,
    part: Settings,
    db: DatabasePart,
    root: Annotated[StorageRoot, Depends(provided(StorageRoot))],
    name: str,
    wanted: RemoveCamera,
) -> RemovedCamera:
    """Take a camera out of the site file, and out of what names it; delete what it recorded if that is wanted.

    Alerts stay in the list. A target that was told of this camera alone is switched off: without a camera it would be
    told of all.
    """
    service = part.service
    _configured(part, name)
    changes = [SiteChange(("cameras", name), REMOVED)]
    config = service.running.config
    for target, row in config.notify.items():
        if name in row.cameras:
            left = [each for each in row.cameras if each != name]
            changes.append(SiteChange(("notify", target, "cameras"), left))
            changes += [] if left else [SiteChange(("notify", target, "enabled"), False)]
    for profile, hours in config.arming.profiles.items():
        if name in (hours.cameras or ()):
            left = [each for each in hours.cameras or () if each != name]
            changes.append(SiteChange(("arming", "profiles", profile, "cameras"), left))
    adjoining = [each for each in config.alerts.adjoining if all(camera != name for camera, _ in each.places)]
    if len(adjoining) < len(config.alerts.adjoining):
        changes.append(SiteChange(("alerts", "adjoining"), [each.model_dump(mode="json") for each in adjoining]))
    with settings_problems():
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} removed")
    freed = delete_camera(db, root.path, name) if wanted.recordings == "delete" else 0
    named = sorted({".".join(map(str, each.path[:-1])) for each in changes[1:]})
    return RemovedCamera(**dict(SettingsReport.after(service, status)), deleted_bytes=freed, changed=named)


@router.post("/cameras/{name}/copy")
def copy_rules(request: Request, part: Settings, name: str, wanted: CopyRules) -> SettingsReport:
    """Give another camera the zones, lines and rules of this one; its own go. An older version brings them back."""
    service = part.service
    _configured(part, name), _configured(part, wanted.to)
    if name == wanted.to:
        raise Problem(422, "to: choose another camera.")
    written = service.running.as_written()["cameras"]
    source, target = written[name] or {}, written[wanted.to] or {}
    changes = [
        SiteChange(("cameras", wanted.to, key), source.get(key, REMOVED))
        for key in ("zones", "ignore", "lines", "rules")
        if source.get(key) != target.get(key)
    ]
    with settings_problems():
        if not changes:
            return SettingsReport.of(service)
        why = f"zones and rules of {name} copied to {wanted.to}"
        status = service.change(changes, wanted.base, user_of(request), why)
        return SettingsReport.after(service, status)


def with_login(url: str, user: str, password: str) -> str:
    """`url` with a user and password that are percent-encoded already."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest}"


def second_stream(url: str) -> str:
    """Where a camera whose first stream is at `url` has its second one, by the patterns of VENDORS; '': not known."""
    for pattern, replacement in _SECOND:
        found, count = pattern.subn(replacement, url, count=1)
        if count:
            return found
    return ""


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
