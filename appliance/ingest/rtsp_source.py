"""A camera over RTSP/TCP, through PyAV: connects, reads, and reports in one sentence what went wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import unquote, urlsplit

import av

from appliance.base.clock import Clock
from appliance.base.errors import SourceError, SourceLost, SourceRefused, redact
from appliance.ingest.file_source import describe_stream
from appliance.ingest.ingest_resources import port_of
from appliance.ingest.socket_meter import LagEstimator, SocketFinder, SocketMeter
from appliance.ingest.timestamps import SenderReports, Timeline
from appliance.media.source import (
    MICROSECOND,
    SECOND_US,
    ReceivedBytes,
    SourceStalled,
    StreamInfo,
    VideoPacket,
    stamp_us,
)

UNRESOLVED = "cannot be resolved"  # in the reason of a camera whose host is not found by its name
_OPTIONS = {
    "rtsp_transport": "tcp",
}
SOUND_OFF_US_MAX = 2 * SECOND_US  # from the pictures that come with it; more is another clock
HearSound = Callable[["av.Packet[av.AudioStream]", int], None]
# The SDP of nearly every camera carries the parameter sets, so nothing need be probed (1.1 s -> 0.06 s). Never
# fflags=nobuffer: it throws away what was read while probing, the first key frame included.
_FAST = {"analyzeduration": "0", "probesize": "32"}


@dataclass(frozen=True, slots=True)
class _Address:
    """An RTSP URL in parts; `label` names it without user and password."""

    host: str
    port: int
    label: str
    secrets: tuple[str, ...]


def is_address(url: str) -> bool:
    """Return True if a host, and a port where one is written, can be read from the URL."""
    try:
        return bool(urlsplit(url).hostname) and port_of(url) is not None
    except ValueError:
        return False


class RtspSource:
    """One camera's stream.

    State: the connection, its byte meter, the time line. Owner: one thread, which `open`s, reads and closes;
    `received` may be called from any. The end of the stream is a loss: cameras do not end.
    """

    loops = False

    def __init__(
        self,
        camera: str,
        url: str,
        clock: Clock,
        finder: SocketFinder,
        *,
        connect_s: float = 5.0,
        stall_s: float = 5.0,
        key: str = "url",
        hear: HearSound | None = None,
    ) -> None:
        """Prepare the source; nothing is connected yet.

        hear: given each packet of sound and its camera time in microseconds, by the thread that reads; None: the camera
        is not asked for sound.
        """
        self._name = f"camera {camera}"
        self._where = f"cameras.{camera}.{key}"
        self._url = url
        self._clock = clock
        self._finder = finder
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._hear = hear
        self._frame_at = 0.0
        self._sound_off_us = 0
        self._timeline = Timeline()
        self._container: av.container.InputContainer | None = None
        self._info: StreamInfo | None = None
        self._meter: SocketMeter | None = None
        self._earlier = ReceivedBytes(0, exact=True)
        self._packet_bytes = 0
        self._scale = 1, 1
        self._sender_reports = SenderReports()
        self._lag = LagEstimator(clock.monotonic())

    @property
    def jumps(self) -> int:
        """How often the camera's time stamps jumped and time was anchored anew."""
        return self._timeline.jumps

    def open(self) -> StreamInfo:
        self.close()
        address = self._address()
        self._check_reachable(address)
        with self._finder.watching((address.host, address.port)) as found:
            self._container = self._connect(address, _FAST)
            if not _complete(self._container):
                self._container.close()
                self._container = self._connect(address, {})
            self._meter = found.meter()
        self._packet_bytes = 0
        streams = self._container.streams.video
        if not streams:
            self.close()
            raise SourceRefused(f"{self._name}: {address.label} offers no video; check the path in {self._where}")
        try:
            self._info = describe_stream(streams[0], address.label, self._name)
            if self._hear is not None:
                self._info = replace(self._info, sound=next(iter(self._container.streams.audio), None))
        except SourceError:
            self.close()
            raise
        base = streams[0].time_base or MICROSECOND
        self._scale = base.numerator * SECOND_US, base.denominator
        self._sender_reports = SenderReports()
        self._timeline.restart()
        self._lag = LagEstimator(self._clock.monotonic())
        return self._info

    def packets(self) -> Iterator[VideoPacket]:
        container, info = self._container, self._info
        assert container is not None, "open() first"
        assert info is not None
        try:
            self._frame_at = self._clock.monotonic()
            for packet in container.demux(info.stream, *(() if info.sound is None else (info.sound,))):
                if not packet.size:
                    continue
                if packet.stream is not info.stream:
                    self._take_sound(cast("av.Packet[av.AudioStream]", packet))
                    continue
                yield self._stamped(cast("av.Packet[av.VideoStream]", packet), info)
                self._frame_at = self._clock.monotonic()
        except av.error.FFmpegError as error:
            raise self._lost(error) from None
        raise SourceLost(f"{self._name}: {info.label} ended the stream")

    def received(self) -> ReceivedBytes:
        meter, earlier = self._meter, self._earlier
        if meter is not None:
            return ReceivedBytes(earlier.bytes + meter.received(), earlier.exact)
        return ReceivedBytes(earlier.bytes + self._packet_bytes, earlier.exact and not self._packet_bytes)

    def unread_bytes(self) -> int | None:
        """Return the bytes that the camera sent and that were not read yet; None if the system does not say."""
        return None if self._meter is None else self._meter.unread_bytes()

    def close(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()
        meter = self._meter
        self._earlier = self.received()
        self._meter, self._packet_bytes = None, 0
        if meter is not None:
            meter.close()

    def _stamped(self, packet: av.Packet[av.VideoStream], info: StreamInfo) -> VideoPacket:
        pts, dts = packet.pts, packet.dts
        per_tick, ticks = self._scale  # whole numbers: fractions would cost more than all the rest
        order_s = ((pts if dts is None else dts) or 0) * per_tick / ticks / SECOND_US
        lag_s = self._lag.lag_s(packet.size, order_s, self.unread_bytes(), self._clock.monotonic())
        arrival = round((self._clock.now() - lag_s) * SECOND_US)
        stamp = self._timeline.stamp_live(
            None if pts is None else pts * per_tick // ticks,
            None if dts is None else dts * per_tick // ticks,
            arrival,
            self._sender_reports.utc_us(packet, None if pts is None else pts * per_tick // ticks),
        )
        self._packet_bytes += packet.size
        packet.pts, packet.dts, packet.time_base = stamp.pts, stamp.dts, MICROSECOND
        t = (stamp.dts if stamp.pts is None else stamp.pts) / SECOND_US
        return VideoPacket(packet, t, packet.is_keyframe, packet.size, stamp.jump, lag_s)

    def _take_sound(self, packet: av.Packet[av.AudioStream]) -> None:
        """Hand a packet of sound on with its camera time, which is that of the frames.

        Raise SourceStalled if only sound comes.
        """
        self._packet_bytes += packet.size
        if self._clock.monotonic() - self._frame_at > self._stall_s:
            raise SourceStalled(f"{self._name}: only sound came for {self._stall_s:g} s")
        stamp = packet.pts if packet.pts is not None else packet.dts
        video_us = self._timeline.last_us
        if self._hear is None or stamp is None or video_us is None or not packet.time_base:
            return
        us = self._timeline.camera_us(stamp_us(stamp, packet.time_base))
        if us is None:
            return
        if abs(us + self._sound_off_us - video_us) > SOUND_OFF_US_MAX:
            self._sound_off_us = video_us - us
        self._hear(packet, us + self._sound_off_us)

    def _address(self) -> _Address:
        if not is_address(self._url):
            raise SourceRefused(f"{self._name}: {self._where} is not an address like rtsp://host:554/path")
        parts = urlsplit(self._url)
        host, port = parts.hostname or "", port_of(self._url) or 0
        secrets = tuple(part for part in (parts.password, unquote(parts.password or "")) if part)
        shown = f"[{host}]" if ":" in host else host
        return _Address(host, port, f"{parts.scheme}://{shown}:{port}{parts.path}", secrets)

    def _check_reachable(self, address: _Address) -> None:
        """Connect once: the system's errors are clearer than FFmpeg's, and a dead host delays no other camera."""
        at = f"{address.host}:{address.port}"
        try:
            socket.create_connection((address.host, address.port), self._connect_s).close()
        except socket.gaierror:
            raise SourceLost(f"{self._name}: the name {address.host} {UNRESOLVED}") from None
        except TimeoutError:
            raise SourceLost(f"{self._name}: {at} did not answer within {self._connect_s:g} s") from None
        except OSError as error:
            raise SourceLost(
                f"{self._name}: {at} cannot be reached: {(error.strerror or 'no answer').lower()}"
            ) from None

    def _connect(self, address: _Address, probing: dict[str, str]) -> av.container.InputContainer:
        began = self._clock.monotonic()
        try:
            return av.open(
                self._url,
                options={**_OPTIONS, "allowed_media_types": "video+audio" if self._hear else "video", **probing},
                timeout=(self._connect_s, self._stall_s),
                metadata_errors="ignore",
            )
        except av.error.FFmpegError as error:
            # FFmpeg says "invalid data" when it was interrupted while it waited for an answer.
            waited = self._clock.monotonic() - began >= 0.9 * self._connect_s
            raise self._refused(error, address, waited=waited) from None

    def _refused(self, error: av.error.FFmpegError, address: _Address, *, waited: bool) -> SourceError:
        where = f"{self._name}: {address.label}"
        if isinstance(error, av.error.HTTPUnauthorizedError):
            what = "refused the password" if address.secrets else "asks for a user and a password"
            return SourceRefused(f"{where} {what} (401); check user and password in {self._where}")
        if isinstance(error, av.error.HTTPForbiddenError):
            return SourceRefused(f"{where} does not let this user watch (403); check the user's rights at the camera")
        if isinstance(error, av.error.HTTPNotFoundError):
            return SourceRefused(f"{where} does not exist (404); check the path in {self._where}")
        if isinstance(error, av.error.HTTPOtherClientError | av.error.ProtocolNotFoundError):
            return SourceRefused(f"{where} refused (4xx), perhaps RTSP over TCP (461); allow TCP at the camera")
        if isinstance(error, av.error.HTTPError):
            return SourceLost(f"{where} has trouble of its own ({_plain(error, address)})")
        if waited or isinstance(error, av.error.ExitError | av.error.TimeoutError):
            return SourceLost(f"{where} accepts connections but gave no RTSP answer within {self._connect_s:g} s")
        return SourceLost(f"{where} does not answer as an RTSP camera ({_plain(error, address)})")

    def _lost(self, error: av.error.FFmpegError) -> SourceError:
        assert self._info is not None
        where = f"{self._name}: {self._info.label}"
        if isinstance(error, av.error.ExitError | av.error.TimeoutError):
            return SourceStalled(f"{where} sent nothing for {self._stall_s:g} s")
        return SourceLost(f"{where} broke off ({_plain(error, None)})")


def _complete(container: av.container.InputContainer) -> bool:
    """Return True if the SDP alone gave all that decoder and recorder need."""
    streams = container.streams.video
    if not streams:
        return True
    context = streams[0].codec_context
    return bool(context.width and context.height and (context.extradata or context.name in {"mjpeg", "jpeg"}))


def _plain(error: av.error.FFmpegError, address: _Address | None) -> str:
    text = redact(error.strerror or type(error).__name__).lower()
    for secret in address.secrets if address else ():
        text = text.replace(secret.lower(), "***")
    return text
