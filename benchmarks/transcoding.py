"""Cost of what the appliance encodes: `python -m benchmarks.transcoding h264|redaction|sound`. CPU time, one core.

h264: an H.264 copy of H.265, as for a browser that cannot play it: a file for the timeline, and piece by piece for live
video. `[clip] [--size 1920x1080] [--seconds 10]`; the clip is encoded as H.265 of that size first.

redaction: a clip of 720p at 25 frames a second with a mosaic around one object. `[--seconds 20] [--rounds 3]`; the
footage is fixtures/clips/yard.mp4, scaled up and encoded as a camera would; the object is the one of its truth.

sound: G.711 at 8 kHz that is encoded to AAC in a segment, as the share of a core that it would take in real time.
`[--seconds 300]`. AAC is copied, and costs what copying does.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np

from appliance.media import rendition
from appliance.media.fragmented_mp4 import FragmentReader
from appliance.media.recorded import ClipRedaction, ExaminedMoment, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.media.rendition import make_rendition
from appliance.media.segment_writer import SoundTrack
from appliance.types import Box

CLIPS = Path(__file__).parents[1] / "fixtures" / "clips"
YARD = CLIPS / "yard.mp4"
FPS = 15  # of the yard, and of its copy
_FRAGMENTED = {"movflags": "frag_keyframe+default_base_moof+delay_moov", "frag_duration": "500000"}
REDACTED_SIZE, REDACTED_FPS = (1280, 720), 25
BEGIN_S = 8.0  # a person walks through the yard from here on
SOUND_HZ = 8000


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transcoding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    h264 = kinds.add_parser("h264")
    h264.add_argument("clip", nargs="?", type=Path, default=YARD)
    h264.add_argument("--size", default="1920x1080")
    h264.add_argument("--seconds", type=float, default=10.0)
    redaction = kinds.add_parser("redaction")
    redaction.add_argument("--seconds", type=float, default=20.0)
    redaction.add_argument("--rounds", type=int, default=3)
    kinds.add_parser("sound").add_argument("--seconds", type=int, default=300)
    chosen = parser.parse_args(arguments)
    if chosen.kind == "h264":
        width, height = map(int, chosen.size.split("x"))
        measure_h264(chosen.clip, (width, height), chosen.seconds)
    elif chosen.kind == "redaction":
        measure_redaction(chosen.seconds, chosen.rounds)
    else:
        measure_sound(chosen.seconds)


def measure_h264(clip: Path, size: tuple[int, int], seconds: float) -> None:
    """Print the processor seconds of a second of video, and the bit rates before and after."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "hevc.mp4"
        length_s = encode_h265(clip, source, size, seconds)
        began = time.process_time()
        made = make_rendition(source, Path(folder) / "h264.mp4")
        cost = (time.process_time() - began) / length_s
        rate = source.stat().st_size * 8e-6 / length_s
        print(f"{length_s:.1f} s of H.265 {size[0]}x{size[1]} at {FPS} fps, {rate:.2f} Mbit/s")
        live_s, live_bytes = _convert_live(source)
        print(f"H.264: {cost:.3f} s of processor per second of video, {made.bytes * 8e-6 / length_s:.2f} Mbit/s")
        print(f"live: {live_s / length_s:.3f} s, {live_bytes * 8e-6 / length_s:.2f} Mbit/s")


def encode_h265(clip: Path, path: Path, size: tuple[int, int], seconds: float) -> float:
    """Write the beginning of `clip` as H.265 to `path`; returns its length in seconds."""
    frames = 0
    with av.open(str(clip)) as reading, av.open(str(path), "w", options=_FRAGMENTED) as writing:
        stream = writing.add_stream("libx265", rate=FPS)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "ultrafast", "x265-params": f"log-level=none:pools=none:keyint={2 * FPS}"}
        for frame in reading.decode(video=0):
            if frames >= seconds * FPS:
                break
            scaled = frame.reformat(*size, "yuv420p")
            scaled.pts, scaled.time_base = frames, Fraction(1, FPS)
            writing.mux(stream.encode(scaled))
            frames += 1
        writing.mux(stream.encode())
    return frames / FPS


def _convert_live(source: Path) -> tuple[float, int]:
    """Convert piece by piece as live video; returns seconds of the processor, and bytes."""
    reader = FragmentReader(source, 1e9)
    fragments = reader.read()
    began, made = time.process_time(), 0
    for n, each in enumerate(fragments):
        answer = rendition.convert(each.init.data, each.data, n == 0, False)
        made += len(cast(bytes, answer["data"]))
    return time.process_time() - began, made


def measure_redaction(seconds: float, rounds: int) -> None:
    """Print the CPU seconds of a second of video, by round and in the median."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "yard.mp4"
        _encode_720p(source, seconds)
        segment = RecordedSegment(source, 0.0, seconds)
        order = ClipRedaction("surroundings", (), _moments(seconds))
        shares = []
        for _ in range(rounds):
            cpu, wall = time.process_time(), time.perf_counter()
            READ_DIRECTLY.redacted_clip([segment], 0.0, seconds, Path(folder) / "clip.mp4", order)
            shares.append((time.process_time() - cpu) / seconds)
            print(f"{shares[-1]:.3f} CPU s and {(time.perf_counter() - wall) / seconds:.3f} s for a second")
    print(f"median {statistics.median(shares):.3f} CPU s: {1 / statistics.median(shares):.1f} x real time on one core")


def _encode_720p(path: Path, seconds: float) -> None:
    """Write `seconds` of the yard in 720p, each frame of it shown as one of 25 a second."""
    with av.open(str(YARD)) as source, av.open(str(path), "w") as made:
        stream = made.add_stream("libx264", rate=REDACTED_FPS)
        stream.width, stream.height, stream.pix_fmt = *REDACTED_SIZE, "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "24", "bf": "0", "g": str(2 * REDACTED_FPS)}
        wanted = round(seconds * REDACTED_FPS)
        for n, frame in enumerate(source.decode(video=0)):
            if n < BEGIN_S * FPS:
                continue
            if wanted == 0:
                break
            larger = frame.reformat(*REDACTED_SIZE, "yuv420p")
            larger.pts, larger.time_base = None, Fraction(1, REDACTED_FPS)
            made.mux(stream.encode(larger))
            wanted -= 1
        made.mux(stream.encode())


def _moments(seconds: float) -> tuple[ExaminedMoment, ...]:
    """Return the boxes of person 2 at each fifth frame, as five frames a second are examined."""
    boxes: dict[int, Box] = {}
    for line in (CLIPS / "yard.gt.txt").read_text().splitlines():
        frame, key, x, y, w, h = map(int, line.split(",")[:6])
        if key == 2:
            boxes[frame - 1 - round(BEGIN_S * FPS)] = (x / 960, y / 540, (x + w) / 960, (y + h) / 540)
    return tuple(
        ExaminedMoment(n / REDACTED_FPS, (("2", boxes[n]),) if n in boxes else (), ())
        for n in range(0, round(seconds * REDACTED_FPS), 5)
    )


def measure_sound(seconds: int) -> None:
    """Print the share of a core, and the bit rate."""
    with av.open(io.BytesIO(_g711(seconds)), "r") as opened:
        stream = opened.streams.audio[0]
        track = SoundTrack(stream)
        packets = [packet for packet in opened.demux(stream) if packet.size and packet.pts is not None]
        began = time.process_time()
        frames = [heard for each in packets for heard in track.frames(each, round((each.pts or 0) * 1e6 / SOUND_HZ))]
        spent = time.process_time() - began
    size = sum(len(each.data) for each in frames)
    print(f"G.711 to AAC: {100 * spent / seconds:.2f} % of a core, {size * 8e-3 / seconds:.0f} kbit/s")


def _g711(seconds: int) -> bytes:
    """Return a container of noise that swells, in mu-law."""
    made = io.BytesIO()
    with av.open(made, "w", format="wav") as out:
        stream = out.add_stream("pcm_mulaw", rate=SOUND_HZ, layout="mono")
        rng = np.random.default_rng(7)
        for n in range(seconds * SOUND_HZ // 800):
            wave = (rng.standard_normal((1, 800)) * 4000 * (1 + np.sin(n / 20))).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(wave, format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = SOUND_HZ, n * 800, Fraction(1, SOUND_HZ)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return made.getvalue()


if __name__ == "__main__":
    main()
