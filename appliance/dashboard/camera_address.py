"""Addresses of a camera: its streams and ONVIF, with or without their login, and where common vendors have them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import Field, SecretStr

from appliance.base.errors import SourceRefused
from appliance.dashboard.schemas import RequestModel
from appliance.onvif.soap_client import OnvifAddress, bracketed
from appliance.web.problems import Problem


@dataclass(frozen=True, slots=True)
class Vendor:
    """How a vendor's cameras name their streams. sub: of the small second one, for detection; '': it has none."""

    name: str
    main: str
    sub: str


# As the vendors' manuals have them, for the first channel; {host} is what the person types.
VENDORS = (
    Vendor("Other", "rtsp://{host}:554/", ""),
    Vendor("Amcrest", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=0", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=1"),
    Vendor("Axis", "rtsp://{host}:554/axis-media/media.amp", "rtsp://{host}:554/axis-media/media.amp?resolution=640x360"),
    Vendor("Dahua", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=0", "rtsp://{host}:554/cam/realmonitor?channel=1&subtype=1"),
    Vendor("Hikvision", "rtsp://{host}:554/Streaming/Channels/101", "rtsp://{host}:554/Streaming/Channels/102"),
    Vendor("Reolink", "rtsp://{host}:554/h264Preview_01_main", "rtsp://{host}:554/h264Preview_01_sub"),
    Vendor("TP-Link Tapo, VIGI", "rtsp://{host}:554/stream1", "rtsp://{host}:554/stream2"),
    Vendor("UniFi Protect", "rtsps://{host}:7441/", ""),
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


CAMERA_ID = r"[a-z0-9][a-z0-9_-]{0,31}"


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
