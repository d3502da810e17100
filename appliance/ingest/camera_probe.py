"""Opens one camera or clip for a moment and reports what came: for `vedette check`."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.clock import SystemClock
from appliance.config import CameraConfig
from appliance.errors import SourceLost
from appliance.ingest.file_source import FileSource
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.media.source import StreamInfo, VideoSource

FIRST_FRAME_S_MAX = 15.0
PACKETS_MAX = 2000


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a camera sent."""

    codec: str
    size: tuple[int, int]  # (width, height) of the first frame, upright
    fps: float  # as announced
    first_frame_s: float  # seconds until the first frame came

    def summary(self) -> str:
        width, height = self.size
        return f"{self.codec} {width}x{height}, {self.fps:.3g} fps, first picture after {self.first_frame_s:.1f} s"


def probe(name: str, camera: CameraConfig, url: str, key: str) -> ProbeResult:
    """Open `url` (the camera's `key`), decode one frame, close. Raises SourceRefused, SourceLost or SourceError."""
    clock = SystemClock()
    source = _source(name, camera, url, key, clock)
    began = clock.monotonic()
    try:
        info = source.open()
        frame = _first_frame(name, source, info, clock, began + FIRST_FRAME_S_MAX)
    finally:
        source.close()
    return ProbeResult(info.codec, upright_size(frame.av_frame), 1 / info.frame_s, clock.monotonic() - began)


def _source(name: str, camera: CameraConfig, url: str, key: str, clock: SystemClock) -> VideoSource:
    if url.startswith("file:"):
        return FileSource(f"camera {name}", url)
    waits = {"connect_s": camera.connect_timeout_s, "stall_s": camera.stall_timeout_s}
    return RtspSource(name, url, clock, SocketFinder(), **waits, key=key)


def _first_frame(name: str, source: VideoSource, info: StreamInfo, clock: SystemClock, until: float) -> DecodedFrame:
    decoder = Decoder(f"camera {name}", info)
    for count, packet in enumerate(source.packets()):
        for frame in decoder.decode(packet):
            return frame
        if count > PACKETS_MAX or clock.monotonic() > until:
            break
    for frame in decoder.flush():
        return frame
    raise SourceLost(f"camera {name}: {info.label} was opened, but no picture came (no key frame?)")
