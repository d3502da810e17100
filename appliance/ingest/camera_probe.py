"""Opens one camera or clip for a moment and reports what came: for `vedette check`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance.base.clock import SystemClock, thread_cpu_s
from appliance.base.errors import SourceError, SourceLost
from appliance.config import CameraConfig
from appliance.ingest.file_source import FRAME_S_DEFAULT, FileSource
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.media.source import StreamInfo, VideoPacket, VideoSource

FIRST_FRAME_S_MAX = 15.0  # cameras with key frames each 10 s are still tried whole
PACKETS_MAX = 2000  # 30 s of 60 frames a second; a stream of packets without a picture ends here
RATE_S = 1.5  # of a live camera, for its frame rate and what decoding costs
RATE_PACKETS_MIN, RATE_PACKETS_MAX = 8, 60  # fewer jitter by a frame in eight; more only take time


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe: the stream that a camera sent."""

    codec: str
    size: tuple[int, int]  # (width, height) of the first frame, upright
    fps: float | None  # as its stamps say, else as announced; None: neither says
    first_frame_s: float  # seconds until the first frame came
    decode_s: float = 0.0  # CPU seconds to decode one frame, in the mean; 0: not known

    @property
    def decode_share(self) -> float:
        """Share of one core that is used while every frame is decoded."""
        return self.decode_s * (self.fps or 0.0)

    def summary(self) -> str:
        width, height = self.size
        rate = "frame rate not announced" if self.fps is None else f"{self.fps:.3g} fps"
        return f"{self.codec} {width}x{height}, {rate}, first picture after {self.first_frame_s:.1f} s"


def probe(name: str, camera: CameraConfig, url: str, key: str) -> ProbeResult:
    """Open `url` (the camera's `key`), decode for a moment, and close it.

    Raise SourceRefused, SourceLost or SourceError.
    """
    clock = SystemClock()
    source = _source(name, camera, url, key, clock)
    began = clock.monotonic()
    try:
        info = source.open()
        packets = source.packets()
        decoder = Decoder(f"camera {name}", info)
        frame = _first_frame(name, packets, decoder, info, lambda: clock.monotonic() > began + FIRST_FRAME_S_MAX)
        took_s = clock.monotonic() - began
        rate = _rate(packets, decoder, clock)
    finally:
        source.close()
    announced = 1 / info.frame_s if info.frame_s != FRAME_S_DEFAULT else None
    return ProbeResult(info.codec, upright_size(frame.av_frame), rate.fps or announced, took_s, rate.decode_s)


@dataclass(frozen=True, slots=True)
class _Rate:
    """fps: by the stamps; None: too few came. decode_s: see ProbeResult."""

    fps: float | None = None
    decode_s: float = 0.0


def _rate(packets: Iterator[VideoPacket], decoder: Decoder, clock: SystemClock) -> _Rate:
    """Measure the frame rate and the decoding time over the next frames.

    A camera that falls silent or ends meanwhile has still given its first frame.
    """
    times: list[float] = []
    spent_s, until = 0.0, clock.monotonic() + RATE_S
    with contextlib.suppress(SourceError):
        for packet in itertools.islice(packets, RATE_PACKETS_MAX):
            times.append(packet.t)
            before_s = thread_cpu_s()
            for _ in decoder.decode(packet):
                pass
            spent_s += thread_cpu_s() - before_s
            if clock.monotonic() > until:
                break
    span_s = max(times) - min(times) if times else 0.0
    if len(times) < RATE_PACKETS_MIN or span_s <= 0:
        return _Rate()
    return _Rate((len(times) - 1) / span_s, spent_s / len(times))


def _source(name: str, camera: CameraConfig, url: str, key: str, clock: SystemClock) -> VideoSource:
    if url.startswith("file:"):
        return FileSource(f"camera {name}", url)
    connect_s, stall_s = camera.connect_timeout_s, camera.stall_timeout_s
    return RtspSource(name, url, clock, SocketFinder(), connect_s=connect_s, stall_s=stall_s, key=key)


def _first_frame(
    name: str, packets: Iterator[VideoPacket], decoder: Decoder, info: StreamInfo, too_late: Callable[[], bool]
) -> DecodedFrame:
    for count, packet in enumerate(packets):
        for frame in decoder.decode(packet):
            return frame
        if count > PACKETS_MAX or too_late():
            break
    for frame in decoder.flush():
        return frame
    raise SourceLost(f"camera {name}: {info.label} was opened, but no picture came (no key frame?)")
