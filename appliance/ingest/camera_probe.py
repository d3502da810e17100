"""Opens one camera or clip for a moment and reports what came: for `vedette check`, and for the dashboard.

The dashboard has it done by `python -m appliance.ingest.camera_probe`, a process of its own: it decodes the stream of a
stranger's camera where there is neither a token nor a database, and no port but the camera's. One JSON object on
standard input (`url`), one on standard output (`CameraReport` with the picture in base64, or `error`).

FFmpeg is imported in the functions: the appliance's core starts this process and needs none for that.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from appliance.base.child_processes import INGEST_PROBE, signal_at_parents_end
from appliance.base.clock import SystemClock, thread_cpu_s
from appliance.base.errors import SourceError, SourceLost, VedetteError, printable
from appliance.sandbox.confinement import confine
from appliance.sandbox.sandbox import child_environment

if TYPE_CHECKING:
    from appliance.config import CameraConfig
    from appliance.media.decoder import DecodedFrame, Decoder
    from appliance.media.source import StreamInfo, VideoPacket, VideoSource

FIRST_FRAME_S_MAX = 15.0  # cameras with key frames each 10 s are still tried whole
PACKETS_MAX = 2000  # 30 s of 60 frames a second; a stream of packets without a picture ends here
RATE_S = 1.5  # of a live camera, for its frame rate and what decoding costs
RATE_PACKETS_MIN, RATE_PACKETS_MAX = 8, 60  # fewer jitter by a frame in eight; more only take time
WATCH_S = 4.0  # a group of pictures of most cameras, for bit rate and key frames
ANSWER_S_MAX = 30.0  # twice FIRST_FRAME_S_MAX: main and second stream
SIDE_MAX = 960  # pixels of the picture that the page shows; larger only costs bytes
_MEMORY_BYTES_MAX = 3 << 30  # of address space, most of it libraries
_ANSWER_BYTES_MAX = 4 << 20  # a JPEG of SIDE_MAX in base64 has 0.5 MB


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
    from appliance.ingest.file_source import FRAME_S_DEFAULT
    from appliance.media.decoder import Decoder
    from appliance.media.frames import upright_size

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
    from appliance.ingest.file_source import FileSource
    from appliance.ingest.rtsp_source import RtspSource
    from appliance.ingest.socket_meter import SocketFinder

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
    raise SourceLost(_no_frame(name, info))


def _no_frame(name: str, info: StreamInfo) -> str:
    return f"camera {name}: {info.label} was opened, but no picture came (no key frame?)"


@dataclass(frozen=True, slots=True)
class CameraReport:
    """The stream that a camera sent, in figures.

    size: width and height of its frames, upright. fps: as counted. kbit_s: of video. keyframe_s: the longest time
    between key frames that was seen; None: no second one came in WATCH_S. first_frame_s: until the first frame could be
    shown. image: that frame, as JPEG.
    """

    codec: str
    size: tuple[int, int]
    fps: float
    kbit_s: float
    keyframe_s: float | None
    first_frame_s: float
    image: bytes = b""


class ProbeFailed(VedetteError):
    """The camera could not be shown; the message says why and what to do."""


def probe_camera(url: str) -> CameraReport:
    """Watch the camera at `url` for some seconds, in a child process; it takes up to 30 s.

    Raise ProbeFailed.
    """
    command = [sys.executable, "-m", INGEST_PROBE]
    try:
        done = subprocess.run(
            command, input=json.dumps({"url": url}).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**child_environment(), "OPENBLAS_NUM_THREADS": "1"}, timeout=ANSWER_S_MAX, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout[:_ANSWER_BYTES_MAX])
        if "error" in answer:
            raise ProbeFailed(printable(str(answer["error"]))[:300])
        image = base64.b64decode(answer.pop("image"))
        report = CameraReport(**{**answer, "size": tuple(answer["size"])}, image=image)
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"the camera gave no picture within {ANSWER_S_MAX:.0f} s") from None
    except (ValueError, KeyError, TypeError):
        raise ProbeFailed("what the camera sent could not be decoded") from None
    return report


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal_at_parents_end(signal.SIGKILL)
    url = str(json.load(sys.stdin)["url"])
    import av

    from appliance.ingest.file_source import clip_path
    from appliance.ingest.ingest_resources import camera_policy, port_of

    av.logging.set_level(None)  # its own log would print addresses with their passwords
    port = port_of(url)
    try:
        confine(camera_policy([clip_path(url)], []) if port is None else camera_policy([], [port]))
        report = asdict(watch(url))
        answer = {**report, "image": base64.b64encode(report["image"]).decode()}
    except SourceError as error:
        answer = {"error": str(error).removeprefix("camera new: ").replace("cameras.new.url", "the address")}
    sys.stdout.write(json.dumps(answer))
    return 0


def watch(url: str, watch_s: float = WATCH_S) -> CameraReport:
    """Watch the camera in this process; raise SourceError."""
    from appliance.ingest.file_source import FileSource
    from appliance.ingest.rtsp_source import RtspSource
    from appliance.ingest.socket_meter import SocketFinder
    from appliance.media.decoder import Decoder
    from appliance.media.frames import upright_bgr, upright_size
    from appliance.media.stills import encode_jpeg

    clock = SystemClock()
    source = (
        FileSource("new", url, clock, threading.Event())
        if url.startswith("file:")
        else RtspSource("new", url, clock, SocketFinder(), key="url")
    )
    began = clock.monotonic()
    times: list[float] = []
    keys: list[float] = []
    size_bytes, first_s, jpeg, size = 0, 0.0, b"", (0, 0)
    try:
        info = source.open()
        decoder = Decoder("camera new", info)
        for packet in source.packets():
            times.append(packet.t)
            size_bytes += packet.size
            if packet.keyframe:
                keys.append(packet.t)
            for frame in [] if jpeg else decoder.decode(packet):
                size, first_s = upright_size(frame.av_frame), clock.monotonic() - began
                jpeg = encode_jpeg(upright_bgr(frame.av_frame), side_max=SIDE_MAX)
                break
            watched_s = clock.monotonic() - began
            if (jpeg and times[-1] - times[0] >= watch_s) or watched_s > FIRST_FRAME_S_MAX:
                break
    finally:
        source.close()
    if not jpeg:
        raise SourceError(_no_frame("new", info))
    seconds = max(times[-1] - times[0], 1e-3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(keys)]
    return CameraReport(
        codec=info.codec,
        size=size,
        fps=round((len(times) - 1) / seconds, 2),
        kbit_s=round(size_bytes * 8 / 1000 / seconds, 1),
        keyframe_s=round(max(gaps), 2) if gaps else None,
        first_frame_s=round(first_s, 2),
        image=jpeg,
    )


if __name__ == "__main__":
    sys.exit(main())
