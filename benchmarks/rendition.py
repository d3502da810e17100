"""Cost of an H.264 copy: `python -m benchmarks.rendition [clip] [--size 1920x1080] [--seconds 10]`.

The benchmark encodes a clip as H.265 of that size first, then converts it as the sandbox does. It counts processor
seconds, not wall time, so that other work on the machine does not matter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av

from appliance.media.rendition import make_rendition

YARD = Path(__file__).parent.parent / "fixtures" / "clips" / "yard.mp4"
FPS = 15


def encode(clip: Path, path: Path, size: tuple[int, int], seconds: float) -> float:
    """Write the beginning of `clip` as H.265 to `path`; returns its length in seconds."""
    frames = 0
    with av.open(str(clip)) as reading, av.open(str(path), "w") as writing:
        stream = writing.add_stream("libx265", rate=FPS)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.options = {"preset": "ultrafast", "x265-params": f"log-level=none:keyint={2 * FPS}"}
        for frame in reading.decode(video=0):
            if frames >= seconds * FPS:
                break
            scaled = frame.reformat(*size, "yuv420p")
            scaled.pts, scaled.time_base = frames, Fraction(1, FPS)
            writing.mux(stream.encode(scaled))
            frames += 1
        writing.mux(stream.encode())
    return frames / FPS


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
        print(f"H.264: {cost:.3f} s of processor per second of video, {made.bytes * 8e-6 / length_s:.2f} Mbit/s")


if __name__ == "__main__":
    main()
