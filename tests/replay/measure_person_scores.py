"""What a threshold on persons' scores does: recall where people are, false boxes where nobody is, network by network.

    python tests/replay/measure_person_scores.py                  # a table, with the reference data where it is
    python tests/replay/measure_person_scores.py --json out.json

Two looks a second. Recall: boxes of people at least a tenth of the frame high and half visible, one to one at an IoU
of 0.5. False: person boxes a hundred looks on footage without a person, as it is and in weather; on PETS, what lies on
nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from measure_pets import FEMTO, INTEL, OWN, PERSON, PETS, SMALL, load_detector, pets_truth
from numpy.typing import NDArray

from appliance.base.box_arrays import iou_matrix, take_best
from appliance.detect.detector import ObjectDetector
from appliance.media.frames import FrameConverter
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.frame_transform import FrameTransform
from appliance.scenario.ground_truth import read_mot

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "fixtures" / "family"
SHARED = Path(os.environ.get("VEDETTE_SHARED", ROOT / ".." / "shared")) / "data"
NETWORKS = {OWN: OWN, SMALL: SMALL, "yolox-nano": "yolox_nano_416.onnx", "deimv2-femto": FEMTO}
THRESHOLDS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)
LOOKS_PER_S = 2
PEOPLED = {"rendered, day": ("day", "dusk", "crowd"), "rendered, poor": ("infrared", "rain", "ir_rain", "far")}
EMPTY = ("empty", "vehicles", "dog")
WEATHER = {"as it is": (), "rain": ("rain",), "night": ("night:1lux",), "fog": ("fog:60m",), "infrared": ("ir",)}
Boxes = NDArray[np.float64]


def looks(clip: Path, network: ObjectDetector, weather: tuple[str, ...] = ()) -> Iterator[tuple[int, Boxes, Boxes]]:
    """Yield frame number, boxes and scores of persons."""
    pictures = FrameConverter()
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        every = max(1, round(float(stream.average_rate or 10) / LOOKS_PER_S))
        size = network.preferred_size(stream.width, stream.height)
        change = FrameTransform(ConditionSet.parse(weather, 0)) if weather else None
        for index, frame in enumerate(container.decode(stream)):
            if index % every:
                continue
            shown = change(index, float(frame.time or 0.0), frame) if change else frame
            found = network.detect([pictures.bgr(shown, size)])[0]
            persons = found.select(found.class_ids == PERSON)
            yield index, persons.boxes.astype(float), persons.scores.astype(float)


class Tally:
    """What each threshold found, was right about, and missed, in so many looks."""

    def __init__(self) -> None:
        self.looks = self.people = 0
        self.right, self.false = np.zeros(len(THRESHOLDS), int), np.zeros(len(THRESHOLDS), int)

    def add(self, boxes: Boxes, scores: Boxes, counted: Boxes, doubtful: Boxes) -> None:
        """Add a look. A box on a `doubtful` person is neither right nor false."""
        order = np.argsort(-scores, kind="stable")
        boxes, scores = boxes[order], scores[order]
        self.looks, self.people = self.looks + 1, self.people + len(counted)
        right = take_best(iou_matrix(boxes, counted), 0.5) >= 0
        left_out = iou_matrix(boxes, doubtful).max(axis=1, initial=0.0) >= 0.3
        for place, least in enumerate(THRESHOLDS):
            self.right[place] += int((right & (scores >= least)).sum())
            self.false[place] += int((~right & ~left_out & (scores >= least)).sum())

    def rows(self) -> list[dict[str, float | None]]:
        """Return a row for each threshold; recall and precision None where nobody is."""
        return [
            {
                "score_min": least,
                "recall": round(int(right) / self.people, 3) if self.people else None,
                "precision": round(int(right) / max(1, int(right + false)), 3) if self.people else None,
                "false_per_100": round(100 * int(false) / max(1, self.looks), 1),
            }
            for least, right, false in zip(THRESHOLDS, self.right, self.false, strict=True)
        ]


def rendered_people(name: str, folder: Path) -> tuple[dict[int, list[Any]], dict[int, list[Any]]]:
    """Return persons of a rendered clip by frame, as shares: those that count, those that do not."""
    with av.open(str(folder / f"{name}.mp4")) as container:
        size = np.array([container.streams.video[0].width, container.streams.video[0].height] * 2, float)
    counted, doubtful = defaultdict(list), defaultdict(list)
    for row in read_mot(folder / f"{name}.gt.txt"):
        if row.name == "1":
            box = np.array(row.box) / size
            (counted if box[3] - box[1] >= 0.1 and row.visible >= 0.5 else doubtful)[row.frame].append(box)
    return counted, doubtful


def as_boxes(boxes: list[Any]) -> Boxes:
    return np.array(boxes, float).reshape(-1, 4)


def tally_rendered(network: ObjectDetector, names: tuple[str, ...], weather: tuple[str, ...] = ()) -> Tally:
    tally = Tally()
    for name in names:
        counted, doubtful = rendered_people(name, FAMILY)
        for frame, boxes, scores in looks(FAMILY / f"{name}.mp4", network, weather):
            tally.add(boxes, scores, as_boxes(counted[frame]), as_boxes(doubtful[frame]))
    return tally


def tally_pets(network: ObjectDetector) -> Tally:
    tally, truth = Tally(), pets_truth(SHARED)
    for frame, boxes, scores in looks(SHARED / "footage" / PETS, network):
        tally.add(boxes, scores, truth[frame].boxes, as_boxes([]))
    return tally


def tally_intel_empty(network: ObjectDetector) -> Tally:
    """Tally the spans of the Intel clip in which nobody is."""
    events = json.loads((SHARED / "groundtruth" / "intel_events.json").read_text())[INTEL]
    tally = Tally()
    for frame, boxes, scores in looks(SHARED / "footage" / INTEL, network):
        if any(first + 3 <= frame <= last - 3 for first, last in events["empty_ranges"]):
            tally.add(boxes, scores, as_boxes([]), as_boxes([]))
    return tally


def measure(network: ObjectDetector) -> dict[str, Tally]:
    """Return a tally for each kind of footage."""
    found = {kind: tally_rendered(network, names) for kind, names in PEOPLED.items()}
    found |= {f"nobody, {kind}": tally_rendered(network, EMPTY, each) for kind, each in WEATHER.items()}
    if SHARED.is_dir():
        found |= {"PETS": tally_pets(network), "nobody, Intel": tally_intel_empty(network)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", choices=sorted(NETWORKS), help="only this one (repeatable)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    figures: dict[str, dict[str, list[dict[str, float | None]]]] = {}
    for name in options.network or NETWORKS:
        if NETWORKS[name].endswith(".onnx") and not SHARED.is_dir():
            continue
        tallies = measure(load_detector(SHARED, NETWORKS[name], 0.2))
        figures[name] = {kind: tally.rows() for kind, tally in tallies.items()}
        for kind, rows in figures[name].items():
            sys.stdout.write(f"{name}, {kind} ({tallies[kind].looks} looks)\n")
            for row in rows:
                sys.stdout.write("  " + "  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
