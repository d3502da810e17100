"""Asks an ONVIF camera for its make, clock and streams (profiles S and T), and turns it (PTZ)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from html import escape
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from appliance.base.clock import Clock
from appliance.base.errors import SourceError, SourceLost, SourceRefused
from appliance.onvif.soap_client import (
    LoginRefused,
    OnvifAddress,
    SoapClient,
    XmlElement,
    bracketed,
    is_same_host,
    number,
)

CLOCK_OFF_S = 3.0  # a camera tells whole seconds, and its answer takes some
_WANTED = {"h264": 0, "hevc": 0, "mjpeg": 1}
_Answer = TypeVar("_Answer")

DEVICE = "http://www.onvif.org/ver10/device/wsdl"
MEDIA = "http://www.onvif.org/ver10/media/wsdl"
MEDIA2 = "http://www.onvif.org/ver20/media/wsdl"
PTZ = "http://www.onvif.org/ver20/ptz/wsdl"
INSPECT_S_MAX = 25.0  # four calls of soap_client.CALL_S_MAX
PROFILES_MAX = 16  # cameras have 2 to 6; a bound for a hostile answer
PRESETS_MAX = 32  # as the page can show; cameras keep up to 300
NAME_CHARS_MAX = 64  # ONVIF Core: tt:Name
_TOKEN_CHARS_MAX = 128  # twice ONVIF's 64 (tt:ReferenceToken), which some cameras exceed
_CAPABILITIES = {"Media": MEDIA, "PTZ": PTZ}
_CODECS = {"H264": "h264", "H265": "hevc", "HEVC": "hevc", "JPEG": "mjpeg", "MPEG4": "mpeg4", "MPV4-ES": "mpeg4"}
_REFUSED_NOTE = "It names a stream with braces in its address, as no camera needs them: that stream is not used."


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """A stream that a camera offers. None and '': it does not say. gop: frames from key frame to key frame.

    source: the lens or sensor that it shows. url: without user and password; '': it has none.
    """

    token: str
    name: str
    codec: str = ""
    size: tuple[int, int] = (0, 0)
    fps: float | None = None
    kbit_s: float | None = None
    gop: float | None = None
    source: str = ""
    url: str = ""
    can_turn: bool = False


@dataclass(frozen=True, slots=True)
class OnvifCamera:
    """ahead_s: what its clock is ahead of ours, to a second or so; None: it does not say. ptz: it can be turned.

    notes: what it said that was not followed, a sentence each.
    """

    address: str
    make: str
    model: str
    firmware: str
    ahead_s: float | None
    profiles: tuple[StreamProfile, ...]
    ptz: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PtzPreset:
    """A direction that is stored in the camera."""

    token: str
    name: str


def inspect_camera(address: OnvifAddress, clock: Clock) -> OnvifCamera:
    """All that is needed to add a camera. Raises SourceRefused, SourceLost. Takes up to INSPECT_S_MAX; any thread."""

    async def run() -> OnvifCamera:
        async with SoapClient(address, clock) as soap:
            return await CameraClient(soap, clock).inspect()

    return asyncio.run(run())


def clock_ahead_s(address: OnvifAddress, clock: Clock, call_s: float) -> float | None:
    """`camera_ahead_s` of what may not even speak ONVIF; None: it does not say so. Any thread."""

    async def run() -> float | None:
        async with SoapClient(address, clock, call_s=call_s) as soap:
            return await camera_ahead_s(soap, clock)

    try:
        return asyncio.run(run())
    except SourceError:
        return None


async def camera_ahead_s(soap: SoapClient, clock: Clock) -> float | None:
    """Return by how many seconds the camera's clock is ahead of ours; None if it does not say.

    The camera is asked without a password.
    """
    before = clock.now()
    body = await soap.call(soap.address.url, DEVICE, "<t:GetSystemDateAndTime/>", signed=False)
    now = (before + clock.now()) / 2
    utc = body.at("GetSystemDateAndTimeResponse", "SystemDateAndTime", "UTCDateTime")
    if utc is None:
        return None
    paths = [("Date", part) for part in ("Year", "Month", "Day")] + [
        ("Time", part) for part in ("Hour", "Minute", "Second")
    ]
    parts = [int(utc.number_at(*path) or 0) for path in paths]
    try:
        reported = datetime(parts[0], parts[1], parts[2], parts[3], parts[4], min(parts[5], 59), tzinfo=timezone.utc)
    except ValueError:
        return None
    return reported.timestamp() + 0.5 - now


class CameraClient:
    """One camera over ONVIF. Owner: one task at a time; what it learnt of the services stays."""

    def __init__(self, soap: SoapClient, clock: Clock) -> None:
        self._soap = soap
        self._clock = clock
        self._services: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        self._refused = False
        self._ptz_profile = ""

    async def inspect(self) -> OnvifCamera:
        """All that is needed to add it, within INSPECT_S_MAX. Raises SourceRefused, SourceLost."""
        try:
            return await asyncio.wait_for(self._inspect(), INSPECT_S_MAX)
        except asyncio.TimeoutError:
            where = self._soap.address.label
            raise SourceLost(f"{where} took longer than {INSPECT_S_MAX:g} s to name its streams") from None

    async def move(self, pan: float, tilt: float, zoom: float, seconds: float) -> None:
        """Turn with this speed, -1 to 1 each, until `stop`; a camera that obeys stops by itself after `seconds`."""
        url, profile = await self._ptz()
        turn = f'<tt:PanTilt x="{pan:.3f}" y="{tilt:.3f}"/>' if pan or tilt else ""
        zooming = f'<tt:Zoom x="{zoom:.3f}"/>' if zoom else ""
        await self._soap.call(
            url, PTZ, f"<t:ContinuousMove>{profile}<t:Velocity>{turn}{zooming}</t:Velocity>"
            f"<t:Timeout>PT{seconds:.1f}S</t:Timeout></t:ContinuousMove>",
        )  # fmt: skip

    async def stop(self) -> None:
        url, profile = await self._ptz()
        await self._soap.call(url, PTZ, f"<t:Stop>{profile}<t:PanTilt>true</t:PanTilt><t:Zoom>true</t:Zoom></t:Stop>")

    async def presets(self) -> tuple[PtzPreset, ...]:
        url, profile = await self._ptz()
        body = await self._soap.call(url, PTZ, f"<t:GetPresets>{profile}</t:GetPresets>")
        found = [
            PtzPreset(token, preset.text_at("Name")[:NAME_CHARS_MAX] or token)
            for preset in body.every("Preset")
            if (token := _token(preset))
        ]
        return tuple(found[:PRESETS_MAX])

    async def go_to(self, preset: str) -> None:
        url, profile = await self._ptz()
        token = f"<t:PresetToken>{escape(preset)}</t:PresetToken>"
        await self._soap.call(url, PTZ, f"<t:GotoPreset>{profile}{token}</t:GotoPreset>")

    async def go_home(self) -> None:
        url, profile = await self._ptz()
        await self._soap.call(url, PTZ, f"<t:GotoHomePosition>{profile}</t:GotoHomePosition>")

    async def _ptz(self) -> tuple[str, str]:
        """Return the PTZ service and the profile to name to it, as XML.

        Raise SourceRefused if the camera cannot be turned.
        """
        if not self._ptz_profile:
            self._soap.camera_ahead_s = await camera_ahead_s(self._soap, self._clock) or 0.0
            await self._learn_services()
            profiles = await self._profiles()
            self._ptz_profile = next((each.token for each in profiles if each.can_turn), "")
        if not self._ptz_profile or PTZ not in self._services:
            raise SourceRefused(f"{self._soap.address.label} cannot be turned: it has no PTZ")
        return self._services[PTZ], f"<t:ProfileToken>{escape(self._ptz_profile)}</t:ProfileToken>"

    async def _inspect(self) -> OnvifCamera:
        ahead_s = await _unless_refused(camera_ahead_s(self._soap, self._clock))
        self._soap.camera_ahead_s = ahead_s or 0.0
        body = await self._soap.call(self._soap.address.url, DEVICE, "<t:GetDeviceInformation/>")
        about = body.at("GetDeviceInformationResponse") or XmlElement("")
        await self._learn_services()
        profiles = await self._profiles()
        return OnvifCamera(
            address=self._soap.address.url,
            make=about.text_at("Manufacturer")[:NAME_CHARS_MAX],
            model=about.text_at("Model")[:NAME_CHARS_MAX],
            firmware=about.text_at("FirmwareVersion")[:NAME_CHARS_MAX],
            ahead_s=ahead_s,
            profiles=tuple([await self._with_url(profile) for profile in profiles]),
            ptz=PTZ in self._services and any(each.can_turn for each in profiles),
            notes=tuple(
                f"It names {host} as its address; only {self._soap.address.host}, which answered, is used."
                for host in sorted(self._elsewhere)[:4]
            )
            + (_REFUSED_NOTE,) * self._refused,
        )

    async def _learn_services(self) -> None:
        """By GetServices, or GetCapabilities of cameras from before it."""
        where, named = self._soap.address.url, {}
        wanted = "<t:GetServices><t:IncludeCapability>false</t:IncludeCapability></t:GetServices>"
        body = await _unless_refused(self._soap.call(where, DEVICE, wanted))
        for service in body.every("Service") if body else ():
            named[service.text_at("Namespace")] = service.text_at("XAddr")
        if not named.get(MEDIA) and not named.get(MEDIA2):
            wanted = "<t:GetCapabilities><t:Category>All</t:Category></t:GetCapabilities>"
            body = await self._soap.call(where, DEVICE, wanted)
            for name, namespace in _CAPABILITIES.items():
                named[namespace] = body.text_at("GetCapabilitiesResponse", "Capabilities", name, "XAddr")
        self._services = {name: url for name in (MEDIA, MEDIA2, PTZ) if (url := self._own(named.get(name, "")))}

    def _own(self, named: str) -> str:
        url, elsewhere = self._soap.address.pinned(named)
        if elsewhere:
            self._elsewhere.add(elsewhere[:NAME_CHARS_MAX])
        return url

    async def _profiles(self) -> list[StreamProfile]:
        """By Media2, which knows H.265, or by the first Media service. Raises SourceRefused: there are none."""
        for namespace, wanted in (
            (MEDIA2, "<t:GetProfiles><t:Type>All</t:Type></t:GetProfiles>"),
            (MEDIA, "<t:GetProfiles/>"),
        ):
            if namespace in self._services:
                call = self._soap.call(self._services[namespace], namespace, wanted)
                body = await (_unless_refused(call) if namespace == MEDIA2 and MEDIA in self._services else call)
                elements = [each for each in body.every("Profiles") if _token(each)] if body else []
                if elements:
                    if namespace == MEDIA:
                        self._services.pop(MEDIA2, None)
                    encoders = await self._encoders(namespace, elements)
                    return [_profile(each, encoders) for each in elements[:PROFILES_MAX]]
        raise SourceRefused(f"{self._soap.address.label} names no streams; make a profile in its settings")

    async def _encoders(self, namespace: str, profiles: list[XmlElement]) -> dict[str, XmlElement]:
        """By token, for the profiles that only name theirs."""
        if all(encoder is None or encoder.at("Resolution") for encoder in map(_encoder_of, profiles)):
            return {}
        url = self._services[namespace]
        body = await _unless_refused(self._soap.call(url, namespace, "<t:GetVideoEncoderConfigurations/>"))
        return {_token(each): each for each in body.every("Configurations")} if body else {}

    async def _with_url(self, profile: StreamProfile) -> StreamProfile:
        """Return the profile with the address of its stream, on the camera's own host, over TCP."""
        token = f"<t:ProfileToken>{escape(profile.token)}</t:ProfileToken>"
        if MEDIA2 in self._services:
            wanted = f"<t:GetStreamUri><t:Protocol>RTSP</t:Protocol>{token}</t:GetStreamUri>"
            body = await _unless_refused(self._soap.call(self._services[MEDIA2], MEDIA2, wanted))
            named = body.text_at("GetStreamUriResponse", "Uri") if body else ""
        else:
            setup = (
                "<t:StreamSetup><tt:Stream>RTP-Unicast</tt:Stream>"
                "<tt:Transport><tt:Protocol>RTSP</tt:Protocol></tt:Transport></t:StreamSetup>"
            )
            wanted = f"<t:GetStreamUri>{setup}{token}</t:GetStreamUri>"
            body = await _unless_refused(self._soap.call(self._services[MEDIA], MEDIA, wanted))
            named = body.text_at("GetStreamUriResponse", "MediaUri", "Uri") if body else ""
        return replace(profile, url=self._own_stream(named))

    def _own_stream(self, named: str) -> str:
        try:
            parts = urlsplit(named)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return ""
        if parts.scheme not in ("rtsp", "rtsps") or not host or len(named) > 1000 or " " in named:
            return ""
        if set("{}") & set(named):  # `${NAME}` stands for a secret in the site file, and no URL has braces
            self._refused = True
            return ""
        own = self._soap.address.host
        if not is_same_host(host, own):
            self._elsewhere.add(host[:NAME_CHARS_MAX])
        shown = bracketed(own)
        return urlunsplit((parts.scheme, f"{shown}:{port}" if port else shown, parts.path or "/", parts.query, ""))


async def _unless_refused(call: Awaitable[_Answer]) -> _Answer | None:
    """None: the camera refused, which for this question is no reason to end."""
    try:
        return await call
    except LoginRefused:
        raise
    except SourceRefused:
        return None


def _token(element: XmlElement) -> str:
    token = element.attributes.get("token", "")
    return token if token.isprintable() and len(token) <= _TOKEN_CHARS_MAX else ""


def _encoder_of(profile: XmlElement) -> XmlElement | None:
    parts = profile.at("Configurations") or profile
    return parts.at("VideoEncoder") or parts.at("VideoEncoderConfiguration")


def _profile(element: XmlElement, encoders: dict[str, XmlElement]) -> StreamProfile:
    parts = element.at("Configurations") or element
    encoder = _encoder_of(element) or XmlElement("")
    if encoder.at("Resolution") is None:
        encoder = encoders.get(_token(encoder), encoder)
    source = parts.at("VideoSource") or parts.at("VideoSourceConfiguration") or XmlElement("")
    codec = encoder.text_at("Encoding").upper()
    width, height = (int(encoder.number_at("Resolution", side) or 0) for side in ("Width", "Height"))
    gop = encoder.attributes.get("GovLength", "") or next((each.text for each in encoder.every("GovLength")), "")
    return StreamProfile(
        token=_token(element),
        name=element.text_at("Name")[:NAME_CHARS_MAX],
        codec=_CODECS.get(codec, codec.lower()[:12]),
        size=(width, height) if 0 < width < 20000 and 0 < height < 20000 else (0, 0),
        fps=encoder.number_at("RateControl", "FrameRateLimit"),
        kbit_s=encoder.number_at("RateControl", "BitrateLimit"),
        gop=number(gop.strip()),
        source=source.text_at("SourceToken")[:NAME_CHARS_MAX],
        can_turn=any(parts.at(name) for name in ("PTZ", "PTZConfiguration")),
    )


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """main: the token of the profile to record; '': none. sub: of that to detect on; '': main. why: a sentence."""

    main: str
    sub: str
    why: str


def choose_streams(profiles: Sequence[StreamProfile], side: int) -> StreamChoice:
    """Choose the largest stream for recording, and for detection the smallest one that fills the network.

    Both come from the same lens. side: the longer side, in pixels, of the network's input.
    """
    usable = [each for each in profiles if each.url and each.codec not in ("mpeg4",)]
    if not usable:
        return StreamChoice("", "", "None of its streams can be read.")
    main = min(usable, key=lambda each: (_WANTED.get(each.codec, 1), -_pixels(each), -(each.kbit_s or 0)))
    others = [
        each
        for each in usable
        if each.url != main.url and each.source == main.source and 0 < _pixels(each) < _pixels(main)
    ]
    enough = [each for each in others if max(each.size) >= side]
    if enough:
        sub = min(enough, key=lambda each: (_pixels(each), _WANTED.get(each.codec, 1)))
        why = f"{_size(sub)} for detection: the smallest stream that fills what the network sees ({side} px)."
        return StreamChoice(main.token, sub.token, why)
    if others:
        largest = max(others, key=_pixels)
        why = (
            f"One stream for both: the other ({_size(largest)}) is smaller than what the network sees ({side} px); "
            "raise it in the camera and detection costs a fraction."
        )
        return StreamChoice(main.token, "", why)
    return StreamChoice(main.token, "", "One stream for both: the camera names no smaller one.")


def clock_advice(ahead_s: float | None) -> str:
    """Return advice about the camera's clock; '' if there is nothing to do."""
    if ahead_s is None or abs(ahead_s) <= CLOCK_OFF_S:
        return ""
    amount = abs(ahead_s)
    shown = (
        f"{amount:.0f} s" if amount < 120 else f"{amount / 60:.0f} min" if amount < 7200 else f"{amount / 3600:.0f} h"
    )
    return (
        f"Its clock is {shown} {'ahead' if ahead_s > 0 else 'behind'}: set its time by NTP and its time zone, "
        "so that the time in its picture is the alert's."
    )


def _pixels(profile: StreamProfile) -> int:
    return profile.size[0] * profile.size[1]


def _size(profile: StreamProfile) -> str:
    return f"{profile.size[0]} × {profile.size[1]}"
