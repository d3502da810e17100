"""How well a detector does beside PETS: our rendered clips, traffic stills, and where there is nothing to see.

Called by measure_pets.py, which writes fixtures/accuracy.json, and by the tests that compare.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect.detector import ObjectDetector
from appliance.track.tracker import Tracker
from models.evaluation.arithmetic import average_precision, match
from models.evaluation.sets import yolo, yolo_names

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
EVERY = 5
PERSON, VEHICLES = "person", ("car", "bus", "truck")
# The rule of fixtures/README.md: what is smaller or more hidden is nobody's mistake.
HEIGHT_MIN, VISIBLE_MIN = 100.0, 0.5
LOOKS_PER_S = 5
Floats = NDArray[np.float64]


def rendered_person_ap50(eye: ObjectDetector, clip: str) -> float:
    """AP50 of persons at least 100 px tall and half visible on every 5th frame of a bundled clip."""
    truth, doubtful = _rendered_truth(CLIPS / f"{clip}.gt.txt")
    found, right, ignored = [], [], []
    for frame, picture, size in _frames(CLIPS / f"{clip}.mp4", eye, EVERY):
        found.append(_named(eye, picture, (PERSON,), size))
        right.append(np.array(truth[frame], float).reshape(-1, 4))
        ignored.append(np.array(doubtful[frame], float).reshape(-1, 4))
    return round(average_precision(match(found, right, ignored)), 4)


def traffic_vehicle_ap50(eye: ObjectDetector, data: Path) -> float:
    """AP50 of car, bus and truck as one class on the traffic stills."""
    folder = data / "groundtruth" / "atl_traffic"
    found, right, ignored = [], [], []
    for still in yolo(folder / "valid", yolo_names(folder / "data.yaml")):
        vehicle = np.array([name in VEHICLES for name in still.names], bool)
        found.append(_named(eye, still.pixels, VEHICLES, still.size))
        right.append(still.boxes[vehicle])
        ignored.append(still.boxes[:0])
    return round(average_precision(match(found, right, ignored)), 4)


def phantoms_in_empty_spans(eye: ObjectDetector, data: Path) -> int:
    """Tracks that are confirmed where the Intel one-by-one clip is empty, 5 looks a second, span by span."""
    name = "intel_one-by-one-person.mp4"
    events = json.loads((data / "groundtruth" / "intel_events.json").read_text())[name]
    tolerance = 3  # frames, as the file says
    trackers = {(first + tolerance, last - tolerance): Tracker(eye.labels) for first, last in events["empty_ranges"]}
    seen = set[tuple[int, int]]()
    for frame, picture, _ in _frames(data / "footage" / name, eye, round(events["fps"] / LOOKS_PER_S)):
        for (first, last), tracker in trackers.items():
            if first <= frame <= last:
                seen |= {
                    (first, each.track) for each in tracker.update(eye.detect([picture])[0], frame / events["fps"])
                }
    return len(seen)


def phantoms(eye: ObjectDetector, pictures: Iterator[NDArray[np.uint8]]) -> int:
    """Tracks that are confirmed in pictures without anything, 5 a second."""
    tracker, seen = Tracker(eye.labels), set[int]()
    for number, picture in enumerate(pictures):
        size = eye.preferred_size(picture.shape[1], picture.shape[0])
        scaled = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
        seen |= {each.track for each in tracker.update(eye.detect([scaled])[0], number / LOOKS_PER_S)}
    return len(seen)


def black(seconds: int = 20) -> Iterator[NDArray[np.uint8]]:
    """A covered lens: nothing but the sensor's noise."""
    rng = np.random.default_rng(0)
    for _ in range(seconds * LOOKS_PER_S):
        yield rng.poisson(3, (360, 640, 3)).astype(np.uint8)


def static(clip: str, seconds: int = 20) -> Iterator[NDArray[np.uint8]]:
    """The empty first frame of a bundled clip, again and again under new noise."""
    rng = np.random.default_rng(0)
    with av.open(str(CLIPS / f"{clip}.mp4")) as container:
        first = next(container.decode(video=0)).to_ndarray(format="bgr24")
    for _ in range(seconds * LOOKS_PER_S):
        yield np.clip(first + rng.normal(0, 3, first.shape), 0, 255).astype(np.uint8)


def _frames(clip: Path, eye: ObjectDetector, every: int) -> Iterator[tuple[int, NDArray[np.uint8], tuple[int, int]]]:
    """(number, picture as the detector wants it, size in the film); scaled as the appliance scales."""
    with av.open(str(clip)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number % every == 0:
                width, height = eye.preferred_size(frame.width, frame.height)
                picture = frame.to_ndarray(format="bgr24", width=width, height=height, interpolation="AREA")
                yield number, picture, (frame.width, frame.height)


def _named(
    eye: ObjectDetector, picture: NDArray[np.uint8], names: tuple[str, ...], size: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Boxes in pixels of `size` and scores of the classes `names`."""
    seen = eye.detect([picture])[0]
    mine = seen.select(np.isin(seen.class_ids, [eye.labels.index(name) for name in names if name in eye.labels]))
    return mine.boxes.astype(float) * np.array([*size, *size], float), mine.scores.astype(float)


def _rendered_truth(path: Path) -> tuple[dict[int, list[list[float]]], dict[int, list[list[float]]]]:
    """Persons that count and those that do not, by 0-based frame."""
    truth, doubtful = defaultdict(list), defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.reader(file):
            x, y, w, h = (float(value) for value in row[2:6])
            if row[7] == "1":
                counts = h >= HEIGHT_MIN and float(row[8]) >= VISIBLE_MIN
                (truth if counts else doubtful)[int(row[0]) - 1].append([x, y, x + w, y + h])
    return truth, doubtful
