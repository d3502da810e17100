"""Footage whose every frame says its own number, so that a test can ask a picture which frame it is.

The number stands in the picture as 16 blocks, black or white, most significant first, over a grey that moves; it
survives H.264, HEVC and JPEG. Segments are written as the recorder does: fragmented MP4, copied packets, the first of
which is at t_start.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.types import SegmentRow

BITS = 16
MICROSECOND = Fraction(1, 1_000_000)
BEEP_S = 0.3  # of each second of a `beeping` film: it begins with a picture whose number ends in 0
_FRAGMENTED = {"movflags": "empty_moov+default_base_moof", "frag_duration": "1"}


@dataclass(frozen=True)
class EncodedFootage:
    """An encoded film: packets in decode order with pts and dts in frames."""

    source: av.container.InputContainer  # kept open: its stream is the template for copies
    packets: tuple[tuple[bytes, int, int, bool], ...]
    fps: float
    size: tuple[int, int]
    codec: str


def numbered_image(n: int, size: tuple[int, int] = (320, 240)) -> NDArray[np.uint8]:
    """Frame `n` as (H, W, 3) RGB."""
    width, height = size
    image = np.full((height, width, 3), 96 + n % 32, np.uint8)
    for bit in range(BITS):
        x0, x1 = bit * width // BITS, (bit + 1) * width // BITS
        image[height // 3 : 2 * height // 3, x0:x1] = 235 if n >> (BITS - 1 - bit) & 1 else 20
    return image


def pixels(data: bytes) -> NDArray[np.uint8]:
    """A JPEG or WebP as (H, W, 3) BGR."""
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), np.uint8)


def number(image: NDArray[np.uint8]) -> int:
    """The frame number that a picture (any size, RGB or BGR) shows."""
    height, width = image.shape[:2]
    middle = image[height * 5 // 12 : height * 7 // 12].mean(axis=(0, 2))
    found = 0
    for bit in range(BITS):
        centre = int((bit + 0.5) * width / BITS)
        found = found << 1 | int(middle[centre - 1 : centre + 2].mean() > 128)
    return found


@functools.lru_cache(maxsize=16)  # the same film is recorded by many tests of a process
def encoded_footage(
    first: int,
    count: int,
    *,
    fps: float = 10.0,
    gop: int = 10,
    size: tuple[int, int] = (320, 240),
    codec: str = "libx264",
    b_frames: int = 0,
) -> EncodedFootage:
    """Encode frames `first` .. `first + count - 1`; a key frame every `gop`."""
    rate = Fraction(fps).limit_denominator(1000)
    made = io.BytesIO()
    with av.open(made, "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size = gop
        stream.options = {"preset": "ultrafast", "bf": str(b_frames), "sc_threshold": "0"}
        if codec == "libx265":
            stream.options = {
                "preset": "ultrafast",
                "x265-params": f"log-level=none:pools=none:keyint={gop}:bframes={b_frames}",
            }
        for n in range(count):
            frame = av.VideoFrame.from_ndarray(numbered_image(first + n, size), format="rgb24")
            frame.pts, frame.time_base = n, 1 / rate
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    copy = av.open(io.BytesIO(made.getvalue()))
    template = copy.streams.video[0]
    unit = float(template.time_base * rate)
    packets = [
        (bytes(each), round(each.pts * unit), round(each.dts * unit), each.is_keyframe)
        for each in copy.demux(template)
        if each.size
    ]
    return EncodedFootage(copy, tuple(packets), fps, size, "hevc" if codec == "libx265" else "h264")


def record(
    root: Path,
    made: EncodedFootage,
    t0: float,
    *,
    camera: str = "yard",
    name: str = "",
    complete: bool = True,
    skip: range = range(0),
) -> SegmentRow:
    """Write a film as one recorded segment that begins at camera time `t0`; pictures in `skip` were never received."""
    path = f"segments/{camera}/{name or f'{t0:.3f}'}.mp4"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    kept = [each for each in made.packets if each[1] not in skip]
    first_pts = kept[0][1]
    with av.open(str(root / path), "w", format="mp4", options=_FRAGMENTED) as out:
        stream = out.add_stream_from_template(made.source.streams.video[0], opaque=True)
        stream.time_base = MICROSECOND
        for data, pts, dts, key in kept:
            packet = av.Packet(data)
            packet.time_base = MICROSECOND
            packet.pts = round((pts - first_pts) * 1e6 / made.fps)
            packet.dts = round((dts - first_pts) * 1e6 / made.fps)
            packet.duration = round(1e6 / made.fps)
            packet.is_keyframe = key
            packet.stream = stream
            out.mux(packet)
    return SegmentRow(
        camera=camera,
        path=path,
        t_start=t0,
        t_end=t0 + (max(each[1] for each in kept) - first_pts + 1) / made.fps,
        bytes=(root / path).stat().st_size,
        frames=len(kept),
        codec=made.codec,
        size=made.size,
        complete=complete,
    )


def beeping(path: Path, codec: str = "aac", *, rate: int = 16_000, seconds: int = 8, b_frames: int = 0) -> Path:
    """A film of pictures that say their number, ten a second, with a beep at the beginning of each second."""
    made = encoded_footage(0, 10 * seconds, b_frames=b_frames)
    with av.open(str(path), "w") as out:
        video = out.add_stream_from_template(made.source.streams.video[0], opaque=True)
        sound = out.add_stream(codec, rate=rate, layout="mono")
        for data, pts, dts, key in made.packets:
            packet = av.Packet(data)
            packet.time_base, packet.pts, packet.dts, packet.is_keyframe = Fraction(1, 10), pts, dts, key
            packet.duration, packet.stream = 1, video
            out.mux(packet)
        t = np.arange(rate * seconds) / rate
        wave = np.where(t % 1 < BEEP_S, np.sin(2 * np.pi * 700 * t), 0.0)
        format_ = "fltp" if codec == "aac" else "s16"
        samples = (wave * (0.5 if codec == "aac" else 16_000)).astype(np.float32 if codec == "aac" else np.int16)
        for at in range(0, len(samples), 1024):
            frame = av.AudioFrame.from_ndarray(samples[None, at : at + 1024], format=format_, layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
            out.mux(sound.encode(frame))
        out.mux(sound.encode(None))
    return path
