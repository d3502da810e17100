"""How fast a clip is redacted: CPU seconds for each second of 720p video at 25 frames a second.

    python -m benchmarks.redacted_clip [--seconds 20] [--rounds 3]

The footage is fixtures/clips/yard.mp4, scaled up and encoded as a camera would; the object is the one of its truth.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av

from appliance.media.recorded import ClipRedaction, ExaminedMoment, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.types import Box

CLIPS = Path(__file__).parents[1] / "fixtures" / "clips"
SIZE, FPS, SOURCE_FPS = (1280, 720), 25, 15
BEGIN_S = 8.0  # a person walks through the yard from here on


def footage(path: Path, seconds: float) -> None:
    """Write `seconds` of the yard in 720p, each frame of it shown as one of 25 a second."""
    with av.open(str(CLIPS / "yard.mp4")) as source, av.open(str(path), "w") as made:
        stream = made.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "24", "bf": "0", "g": str(2 * FPS)}
        wanted = round(seconds * FPS)
        for n, frame in enumerate(source.decode(video=0)):
            if n < BEGIN_S * SOURCE_FPS:
                continue
            if wanted == 0:
                break
            larger = frame.reformat(*SIZE, "yuv420p")
            larger.pts, larger.time_base = None, Fraction(1, FPS)
            made.mux(stream.encode(larger))
            wanted -= 1
        made.mux(stream.encode())


def moments(seconds: float) -> tuple[ExaminedMoment, ...]:
    """Return the boxes of person 2 at each third frame, as five frames a second are examined."""
    boxes: dict[int, Box] = {}
    for line in (CLIPS / "yard.gt.txt").read_text().splitlines():
        frame, key, x, y, w, h = map(int, line.split(",")[:6])
        if key == 2:
            boxes[frame - 1 - round(BEGIN_S * SOURCE_FPS)] = (x / 960, y / 540, (x + w) / 960, (y + h) / 540)
    return tuple(
        ExaminedMoment(n / FPS, (("2", boxes[n]),) if n in boxes else (), ()) for n in range(0, round(seconds * FPS), 5)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "yard.mp4"
        footage(source, wanted.seconds)
        segment = RecordedSegment(source, 0.0, wanted.seconds)
        order = ClipRedaction("surroundings", (), moments(wanted.seconds))
        shares = []
        for _ in range(wanted.rounds):
            cpu, wall = time.process_time(), time.perf_counter()
            READ_DIRECTLY.redacted_clip([segment], 0.0, wanted.seconds, Path(folder) / "clip.mp4", order)
            shares.append((time.process_time() - cpu) / wanted.seconds)
            print(f"{shares[-1]:.3f} CPU s and {(time.perf_counter() - wall) / wanted.seconds:.3f} s for a second")
    print(f"median {statistics.median(shares):.3f} CPU s: {1 / statistics.median(shares):.1f} x real time on one core")


if __name__ == "__main__":
    main()
