"""Does it pay to lay several cameras' regions into one input? `python -m benchmarks.packing [clip ...]`

Each clip is a camera. What the examiner would show of them at five looks a second is put to the same network three
ways, turn by turn: one region a call into a fixed input, regions packed into that input, and one region a call into an
input of its own size. Prints milliseconds of CPU a region and how far packed answers are those of the region alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import av
import numpy as np
import onnx
from numpy.typing import NDArray

from appliance import config
from appliance.analysis.frame_analyzer import FrameAnalyzer
from appliance.clock import process_cpu_s
from appliance.detect.onnx_detector import OnnxDetector
from appliance.inference.scheduler import SingleFrame
from appliance.inference.sheet_packing import PackedDetector, Sheets
from appliance.track.association import iou_matrix
from appliance.track.tracker import Tracker
from appliance.types import Detections

ROOT = Path(__file__).parents[1]
NETWORK = ROOT / "models" / "vedette-nano.onnx"
SIDE = 416
SURE = 0.3  # score from which on a box has to be found again
Picture = NDArray[np.uint8]


@dataclass
class Tally:
    """What the three ways cost, and how packed answers compare."""

    regions: int = 0
    calls: int = 0
    cpu_s: dict[str, float] = field(default_factory=lambda: {"fixed": 0.0, "packed": 0.0, "own size": 0.0})
    boxes: int = 0
    again: int = 0
    overlaps: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", nargs="*", type=Path, default=sorted((ROOT / "fixtures" / "family").glob("*.mp4")))
    parser.add_argument("--turns", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fixed = OnnxDetector(pinned(Path(folder)), score_min=0.1)
        own = OnnxDetector(NETWORK, score_min=0.1)
    assert fixed.sheet == (SIDE, SIDE), "the network's input is not pinned"
    cameras = [regions(clip, fixed) for clip in arguments.clips]
    tally = Tally()
    for _, turn in zip(range(arguments.turns), zip_longest(*cameras), strict=False):
        measure([each for each in turn if each is not None], fixed, own, tally)
    report(len(cameras), tally)


def pinned(folder: Path) -> Path:
    """The network with an input of SIDE x SIDE and no other, as accelerators want it."""
    network = onnx.load(NETWORK)
    for axis in (2, 3):
        network.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = SIDE
    onnx.save(network, folder / "pinned.onnx")
    return folder / "pinned.onnx"


def regions(clip: Path, detector: OnnxDetector) -> Iterator[Picture]:
    """The parts that the detector would be shown, in order; whole pictures are looked at, but not handed on."""
    looker = PackedDetector(detector)
    examiner = FrameAnalyzer(clip.stem, looker, Tracker(detector.labels), config.DetectConfig())
    with av.open(str(clip)) as film:
        for index, frame in enumerate(film.decode(video=0)):
            look = examiner.select(index, float(frame.time or 0.0), frame)
            if look is None:
                continue
            picture = examiner.detector_input(look)
            examiner.result(look, looker.detect([picture])[0])
            if look.mosaic is not None:
                yield picture


def measure(pictures: Sequence[Picture], fixed: OnnxDetector, own: OnnxDetector, tally: Tally) -> None:
    """One turn: a region of each camera that has one."""
    together = Sheets((SIDE, SIDE), SingleFrame())
    calls = list(shares(pictures, together))
    alone = timed(tally, "fixed", lambda: [together.ask(fixed, [each])[0] for each in pictures])
    packed = timed(tally, "packed", lambda: [found for call in calls for found in together.ask(fixed, call)])
    timed(tally, "own size", lambda: own.detect(pictures))
    tally.regions += len(pictures)
    tally.calls += len(calls)
    order = [id(picture) for call in calls for picture in call]
    for picture, found in zip(pictures, alone, strict=True):
        compare(found, packed[order.index(id(picture))], tally)


def shares(pictures: Sequence[Picture], together: Sheets) -> Iterator[list[Picture]]:
    """Who goes into one call: as many as fit, in their order."""
    left = list(pictures)
    while left:
        call: list[Picture] = []
        for picture in list(left):
            if together.fits([(each.shape[1], each.shape[0]) for each in (*call, picture)]):
                call.append(picture)
        left = [each for each in left if not any(each is taken for taken in call)]
        yield call


def timed(tally: Tally, way: str, ask: Callable[[], list[Detections]]) -> list[Detections]:
    began = process_cpu_s()
    found = ask()
    tally.cpu_s[way] += process_cpu_s() - began
    return found


def compare(alone: Detections, packed: Detections, tally: Tally) -> None:
    sure = np.flatnonzero(alone.scores >= SURE)
    tally.boxes += len(sure)
    if not len(packed) or not len(sure):
        return
    shared = iou_matrix(alone.boxes.astype(np.float64), packed.boxes.astype(np.float64))
    shared *= alone.class_ids[:, None] == packed.class_ids[None, :]
    for row in sure:
        best = int(shared[row].argmax())
        if shared[row, best] >= 0.5:
            tally.again += 1
            tally.overlaps.append(float(shared[row, best]))
            tally.scores.append(abs(float(alone.scores[row] - packed.scores[best])))


def report(cameras: int, tally: Tally) -> None:
    print(f"{cameras} cameras, {tally.regions} regions, {tally.regions / tally.calls:.2f} a packed call")
    for way, cpu_s in tally.cpu_s.items():
        print(f"  {way:9} {1000 * cpu_s / tally.regions:6.2f} ms of CPU a region")
    print(
        f"  packed: {tally.again} of {tally.boxes} boxes from {SURE} on found again, overlap "
        f"{np.mean(tally.overlaps):.3f} (95 %: at least {np.quantile(tally.overlaps, 0.05):.3f}), score off by "
        f"{np.mean(tally.scores):.3f} (95 %: at most {np.quantile(tally.scores, 0.95):.3f})"
    )


if __name__ == "__main__":
    main()
