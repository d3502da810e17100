"""Cost of an H.264 copy: `python -m benchmarks.rendition [clip] [--size 1920x1080] [--seconds 10]`.

The benchmark encodes a clip as H.265 of that size first, then converts it as the sandboxes do, for the timeline and for
live video. It counts processor seconds, not wall time, so that other work on the machine does not matter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import cast

import av

from appliance.media import live_rendition
from appliance.media.fragmented_mp4 import FragmentReader
from appliance.media.rendition import make_rendition

YARD = Path(__file__).parent.parent / "fixtures" / "clips" / "yard.mp4"
FPS = 15
_FRAGMENTED = {"movflags": "frag_keyframe+default_base_moof+delay_moov", "frag_duration": "500000"}


def encode(clip: Path, path: Path, size: tuple[int, int], seconds: float) -> float:
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


def convert_live(source: Path) -> tuple[float, int]:
    """Convert piece by piece as live video; returns seconds of the processor, and bytes."""
    reader = FragmentReader(source, 1e9)
    fragments = reader.read()
    began, made = time.process_time(), 0
    for n, each in enumerate(fragments):
        answer = live_rendition.convert(each.init.data, each.data, n == 0, False)
        made += len(cast(bytes, answer["data"]))
    return time.process_time() - began, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", nargs="?", type=Path, default=YARD)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--seconds", type=float, default=10.0)
    wanted = parser.parse_args()
    width, height = map(int, wanted.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "hevc.mp4"
        length_s = encode(wanted.clip, source, (width, height), wanted.seconds)
        began = time.process_time()
        made = make_rendition(source, Path(folder) / "h264.mp4")
        cost = (time.process_time() - began) / length_s
        rate = source.stat().st_size * 8e-6 / length_s
        print(f"{length_s:.1f} s of H.265 {width}x{height} at {FPS} fps, {rate:.2f} Mbit/s")
        live_s, live_bytes = convert_live(source)
        print(f"H.264: {cost:.3f} s of processor per second of video, {made.bytes * 8e-6 / length_s:.2f} Mbit/s")
        print(f"live: {live_s / length_s:.3f} s, {live_bytes * 8e-6 / length_s:.2f} Mbit/s")


if __name__ == "__main__":
    main()
