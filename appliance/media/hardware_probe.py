"""`python -m appliance.media.hardware_probe`: which hardware of this appliance decodes video, proved and measured.

A kind works when it gives the same frames as software: as many, with the same time stamps and the same pixels, which
H.264 and H.265 lay down to the bit. Asked in a process of its own, since a driver that does not suit takes it along.
One JSON object on standard input (`kind`, `device`, `program`), one on standard output.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.base.child_processes import HARDWARE_PROBE, exit_text
from appliance.base.clock import process_cpu_s
from appliance.base.errors import VedetteError
from appliance.detect.cuda_runtime import CudaRuntime
from appliance.media.decoder import NO_LOOP_FILTER
from appliance.media.frames import FrameConverter, at_host
from appliance.media.hardware_codec import (
    REMEDIES,
    DecodeWay,
    FrameCodec,
    HardwareCodec,
    HardwareFailed,
    LibavCodec,
    new_context,
    ways,
)
from appliance.media.piped_codec import PipedCodec
from appliance.media.source import SECOND_US, StreamInfo
from appliance.sandbox.sandbox import child_environment
from appliance.types import HardwareKind

CLIP_SIZE = (1280, 720)  # 720p: hardware decoders refuse very small pictures
CLIP_FRAMES = 24  # more than a decoder holds back (16, H.264's largest DPB)
ROUNDS = 4  # of the clip, one after the other as after a cue: what a decoder costs at its start is spread
PROBE_S_MAX = 60.0  # all kinds, of which a hanging driver may stop one
_ENCODERS = {"h264": "libx264", "hevc": "libx265"}
_OFF_MAX = 1  # grey level


@dataclass(frozen=True, slots=True)
class ProbedHardware:
    """The result of probing one kind. ways: by the stream's codec, those that gave the same frames as software.

    reason: why nothing of it works, or ''. cpu_ms, software_ms: processor time a frame of 720p, the child's included.
    """

    kind: HardwareKind
    ways: Mapping[str, DecodeWay]
    reason: str = ""
    cpu_ms: float = 0.0
    software_ms: float = 0.0

    @property
    def works(self) -> bool:
        return bool(self.ways)

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.works:
            return f"{self.reason}; {REMEDIES[self.kind]}"
        codecs = " and ".join(each.upper() for each in self.ways)
        by = "" if all(way.by == "libav" for way in self.ways.values()) else ", by the system's ffmpeg"
        saves = "less" if self.cpu_ms < self.software_ms else "more"
        return (
            f"decodes {codecs}{by}, the same frames as software; {self.cpu_ms:.2f} ms of CPU a frame of 720p, "
            f"{saves} than software ({self.software_ms:.2f})"
        )


def probe_hardware(
    kinds: Sequence[HardwareKind], device: str | None = None, program: str = "ffmpeg"
) -> dict[HardwareKind, ProbedHardware]:
    """Try each kind in a child process. Takes a second, or up to PROBE_S_MAX where a driver hangs."""
    with tempfile.TemporaryDirectory(prefix="vedette-probe-") as clips:
        return {kind: _probe_in_child(kind, device, program, clips) for kind in kinds}


def _probe_in_child(kind: HardwareKind, device: str | None, program: str, clips: str) -> ProbedHardware:
    asked = json.dumps({"kind": kind, "device": device, "program": program, "clips": clips}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-m", HARDWARE_PROBE], input=asked, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=child_environment(("LD_LIBRARY_PATH", "LIBVA_DRIVER_NAME")),
            timeout=PROBE_S_MAX, check=False,
        )  # fmt: skip
        return from_json(json.loads(done.stdout))
    except OSError as error:  # no memory or no process is left for it
        return ProbedHardware(kind, {}, f"it could not be tried: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ProbedHardware(kind, {}, f"its driver did not answer within {PROBE_S_MAX:.0f} s")
    except (ValueError, KeyError, TypeError):
        how = exit_text(done.returncode)
        return ProbedHardware(kind, {}, f"its driver ended the process that tried it ({how})")


def probe_kind(kind: HardwareKind, device: str | None, program: str, clips: Path | None = None) -> ProbedHardware:
    """Probe one kind in this process. clips: a folder in which test clips are kept for the next kind."""
    working: dict[str, DecodeWay] = {}
    costs: list[tuple[float, float]] = []
    reasons: list[str] = []
    with contextlib.ExitStack() as held:
        if kind == "cuda":  # as in ingest, where the detector makes the GPU's context before any decoder comes
            with contextlib.suppress(VedetteError):
                held.callback(CudaRuntime().close)
        for codec, encoder in _ENCODERS.items():
            for way in ways(kind, device, program):
                if codec in working or codec not in way.decoders:
                    continue
                try:
                    must_exist(way, codec)
                    clip = proof_clip(encoder, clips)
                    proved, hardware_ms = _prove(way, clip)
                except HardwareFailed as error:
                    reasons.append(str(error))
                    continue
                working[codec] = proved
                costs.append((hardware_ms, software_frames(clip, loop_filter=False)[1]))
    if not working:
        return ProbedHardware(kind, {}, "; ".join(dict.fromkeys(reasons)))
    own, software = (round(sum(each) / len(costs), 3) for each in zip(*costs, strict=True))
    return ProbedHardware(kind, working, "", own, software)


def must_exist(way: DecodeWay, codec: str) -> None:
    """Check the cheap half of the proof. Raise HardwareFailed: there is no such device, decoder or program."""
    if way.by == "libav":
        new_context(way, codec)
    elif shutil.which(way.program) is None:
        raise HardwareFailed(f"{way.kind}: there is no program {way.program}")


def open_codec(way: DecodeWay, info: StreamInfo) -> HardwareCodec:
    """Open a decoder of this kind. Raise HardwareFailed."""
    return LibavCodec(way, info) if way.by == "libav" else PipedCodec(way, info)


@dataclass(frozen=True, slots=True)
class ProofClip:
    """A stream in memory, opened, and its packets in microseconds."""

    container: av.container.InputContainer
    info: StreamInfo
    packets: tuple[av.Packet[av.VideoStream], ...]


def proof_clip(encoder: str, clips: Path | None = None) -> ProofClip:
    """Encode a short clip, or read the one that is kept in `clips`. Raise HardwareFailed: FFmpeg cannot make one."""
    kept = clips and clips / f"{encoder}.mp4"
    if kept and kept.exists():
        data = kept.read_bytes()
    else:
        data = _encoded(encoder)
        if kept:
            kept.write_bytes(data)
    container = av.open(io.BytesIO(data), "r")
    stream = container.streams.video[0]
    packets = []
    for packet in container.demux(stream):
        if packet.size and packet.pts is not None and packet.dts is not None:
            scale = packet.time_base * SECOND_US
            packet.pts, packet.dts = round(packet.pts * scale), round(packet.dts * scale)
            packet.time_base = Fraction(1, SECOND_US)
            packets.append(packet)
    codec = stream.codec_context.name
    info = StreamInfo(codec, (stream.codec_context.width, stream.codec_context.height), stream, "test clip", 1 / 15)
    return ProofClip(container, info, tuple(packets))


@functools.cache
def _encoded(encoder: str) -> bytes:
    """CLIP_FRAMES frames of something that moves, with some noise: one GOP without B frames, as cameras send it."""
    width, height = CLIP_SIZE
    out = io.BytesIO()
    noise = np.random.default_rng(7)
    ground = noise.integers(40, 200, (height // 8, width // 8), np.uint8).repeat(8, 0).repeat(8, 1)
    try:
        with av.open(out, "w", format="mp4") as container:
            stream = container.add_stream(encoder, rate=15)
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            quiet = {"x265-params": "log-level=none:bframes=0:keyint=48"} if encoder == "libx265" else {}
            stream.options = {"preset": "ultrafast", "bf": "0", "g": "48", **quiet}
            for index in range(CLIP_FRAMES):
                grey = np.roll(ground, 6 * index, axis=1) + noise.integers(0, 8, (height, width), np.uint8)
                frame = av.VideoFrame.from_ndarray(grey, "gray").reformat(format="yuv420p")
                frame.pts = index
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except (av.error.FFmpegError, ValueError) as error:
        raise HardwareFailed(f"no test clip can be made: {error}") from error
    return out.getvalue()


def software_frames(clip: ProofClip, *, loop_filter: bool = True) -> tuple[list[tuple[int, NDArray[np.uint8]]], float]:
    """Return the (PTS, brightness) of each frame, decoded in software in one thread, and the processor's ms a frame.

    loop_filter: as hardware decodes; False: as ingest decodes in software, which takes less time.
    """
    context = av.CodecContext.create(clip.info.codec, "r")
    assert isinstance(context, av.VideoCodecContext)
    context.extradata, context.thread_count = clip.info.stream.codec_context.extradata, 1
    context.options = {} if loop_filter else NO_LOOP_FILTER
    return _frames_of(context, clip.packets)


def _prove(way: DecodeWay, clip: ProofClip) -> tuple[DecodeWay, float]:
    """Return the way with its delay, and the processor's ms a frame. Raise HardwareFailed: frames are not the same."""
    before, began = _children_s(), process_cpu_s()
    codec = open_codec(way, clip.info)
    try:
        for _ in range(ROUNDS - 1):
            for packet in clip.packets:
                codec.decode(packet)
            codec.flush_buffers()
        found, _ = _frames_of(codec, clip.packets)
        delay = codec.delay if isinstance(codec, PipedCodec) else 0
    except av.error.FFmpegError as error:
        raise HardwareFailed(f"{way.kind} does not decode: {error}") from error
    finally:
        codec.close()
    cpu_s = process_cpu_s() - began + _children_s() - before
    same_frames(way.kind, found, software_frames(clip)[0])
    return replace(way, delay=delay), cpu_s * 1000 / (ROUNDS * len(clip.packets))


def same_frames(
    kind: HardwareKind, found: Sequence[tuple[int, NDArray[np.uint8]]], wanted: Sequence[tuple[int, NDArray[np.uint8]]]
) -> None:
    """Raise HardwareFailed if the frames differ, and say in what."""
    if [pts for pts, _ in found] != [pts for pts, _ in wanted]:
        raise HardwareFailed(
            f"{kind} decodes, but gives {len(found)} frames where software gives {len(wanted)}, or at other times"
        )
    for n, ((_, luma), (_, expected)) in enumerate(zip(found, wanted, strict=True)):
        off = _OFF_MAX + 1 if luma.shape != expected.shape else int(np.abs(luma.astype(int) - expected).max())
        if off > _OFF_MAX:
            raise HardwareFailed(f"{kind} decodes, but its frame {n} is not what software makes of the same packets")


def _frames_of(
    codec: FrameCodec, packets: Iterable[av.Packet[av.VideoStream]]
) -> tuple[list[tuple[int, NDArray[np.uint8]]], float]:
    converter = FrameConverter()
    frames: list[av.VideoFrame] = []
    began = process_cpu_s()
    for packet in packets:
        frames += [at_host(frame) for frame in codec.decode(packet)]
    frames += [at_host(frame) for frame in codec.decode(None)]
    cpu_ms = (process_cpu_s() - began) * 1000 / max(1, len(frames))
    return [(frame.pts or 0, converter.planes(frame)[0].copy()) for frame in frames], cpu_ms


def _children_s() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def from_json(answer: Mapping[str, object]) -> ProbedHardware:
    """Read the answer of the child. Raise KeyError, TypeError or ValueError."""
    given = dict(answer)
    found = given.pop("ways")
    if not isinstance(found, dict):
        raise TypeError("ways")
    return ProbedHardware(**given, ways={codec: DecodeWay(**way) for codec, way in found.items()})  # type: ignore[arg-type]


def main() -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    av.logging.set_level(None)
    asked = json.load(sys.stdin)
    found = probe_kind(asked["kind"], asked["device"], asked["program"], Path(asked["clips"]))
    sys.stdout.write(json.dumps(asdict(found)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
