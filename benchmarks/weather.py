"""Cost of each condition of `--with`: milliseconds of CPU a frame of 1280x720, one core, median of several frames.

The command is `python -m benchmarks.weather --json weather.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import av
import cv2

from appliance.replay.conditions.condition_spec import CONDITION_KINDS, ConditionSet
from appliance.replay.conditions.frame_transform import frame_transform_of
from benchmarks.__main__ import ROOT

SIZE = (1280, 720)
T = 10.2


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.weather", description=__doc__)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options.add_argument("--frames", type=int, default=15)
    chosen = options.parse_args()
    cv2.setNumThreads(1)
    frames = frames_of_clip(chosen.frames)
    texts = {
        kind.name: f"{kind.name}@10s" if kind.when == "moment" else kind.name
        for kind in CONDITION_KINDS
        if not kind.stream
    }
    figures = {name: cost_ms(text, frames) for name, text in texts.items()}
    figures["rain,night,shake,jpeg"] = cost_ms("rain,night,shake,jpeg", frames)
    for name, value in figures.items():
        print(f"{name:<24} {value:6.1f} ms")
    if chosen.json:
        chosen.json.write_text(json.dumps({"size": SIZE, "ms": figures}, indent=1))
    return 0


def frames_of_clip(count: int) -> list[av.VideoFrame]:
    found = []
    with av.open(str(ROOT / "fixtures" / "clips" / "yard.mp4")) as film:
        for frame in film.decode(video=0):
            found.append(frame.reformat(*SIZE, "yuv420p"))
            if len(found) == count:
                break
    return found


def cost_ms(text: str, frames: list[av.VideoFrame]) -> float:
    lens = frame_transform_of(ConditionSet.parse([text]))
    assert lens is not None, text
    lens(0, T, frames[0])  # what is made once for the whole footage
    took = []
    for number, frame in enumerate(frames):
        begin = time.thread_time()
        lens(number, T, frame)
        took.append(1000 * (time.thread_time() - begin))
    return round(statistics.median(took), 1)


if __name__ == "__main__":
    sys.exit(main())
