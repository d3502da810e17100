"""How well detectors and tracker do on footage with ground truth; the figures of fixtures/accuracy.json.

    python tests/replay/measure_pets.py              # measure and print
    python tests/replay/measure_pets.py --update     # and write fixtures/accuracy.json

Frames are scaled by the decoder to the size the detector wants, as in the appliance. The tracker's constants were
chosen on PETS09-S2L1 (fixtures/accuracy.json says so); the Intel clip was not used for that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import measure_scenes
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.base.errors import ModelError
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.media.frames import FrameConverter
from appliance.scenario.metrics import LabelledBoxes, average_precision, clear_mot, hota_figures
from appliance.track.appearance import Planes
from appliance.track.tracker import Tracker
from appliance.types import Detections, TrackedObject

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "fixtures" / "accuracy.json"
COMMAND = "python tests/replay/measure_pets.py --update"
PETS = "pets09_s2l1_vtest_768x576.mp4"
PETS_FPS, PETS_FRAMES = 10, 795
PETS_SIZE = np.array([768, 576, 768, 576], float)
INTEL, INTEL_FPS, INTEL_FRAMES = "intel_one-by-one-person.mp4", 10, 1394
FEMTO = "deimv2_hgnetv2_femto_coco_416.onnx"
OWN = "vedette-nano"
SMALL = "vedette-nano-int8"
BF16 = "vedette-nano+openvino-bf16"
MODELS = {
    OWN: OWN,
    SMALL: SMALL,
    BF16: BF16,
    "deimv2-femto": FEMTO,
    "yolox-nano": "yolox_nano_416.onnx",
    "builtin:hog": "builtin:hog",
}
TRACKED = (OWN, SMALL, BF16, "deimv2-femto", "yolox-nano")
PERSON = 0


def load_detector(data: Path, model: str, score_min: float) -> ObjectDetector:
    """model: a file of the shared data or a name, perhaps with what runs it: `vedette-nano+openvino-bf16`."""
    model, _, runtime = model.partition("+")
    backend, _, precision = runtime.partition("-")
    asked = {"backend": backend, "precision": precision} if runtime else {}
    path = str(data / "models" / model) if model.endswith(".onnx") else model
    return detector_loader.load(config.DetectorConfig.model_validate({"model": path, "score_min": score_min, **asked}))


def detections_of(
    data: Path, clip: str, every: int, network: ObjectDetector
) -> Iterator[tuple[int, Detections, Planes]]:
    """(frame, detections, planes for the tracker) of every `every`th frame."""
    pictures = FrameConverter()
    with av.open(str(data / "footage" / clip)) as container:
        stream = container.streams.video[0]
        size = network.preferred_size(stream.width, stream.height)
        for index, frame in enumerate(container.decode(stream)):
            if index % every == 0:
                yield index, network.detect([pictures.bgr(frame, size)])[0], pictures.planes(frame)


def pets_truth(data: Path) -> list[LabelledBoxes]:
    """The boxes (shares) and identities of every frame."""
    rows = np.loadtxt(data / "groundtruth" / "pets09_s2l1" / "gt.txt", delimiter=",")
    corners = np.concatenate([rows[:, 2:4], rows[:, 2:4] + rows[:, 4:6]], axis=1)
    boxes = np.clip(corners / PETS_SIZE, 0, 1)
    return [
        LabelledBoxes(boxes[rows[:, 0] == frame + 1], rows[rows[:, 0] == frame + 1, 1]) for frame in range(PETS_FRAMES)
    ]


def detection_figures(data: Path, model: str) -> float:
    """AP50 of person on every 10th frame of PETS09-S2L1."""
    truth, found, boxes = pets_truth(data), [], []
    for frame, detections, _ in detections_of(data, PETS, 10, load_detector(data, model, 0.02)):
        persons = detections.select(detections.class_ids == PERSON)
        found.append(LabelledBoxes(persons.boxes.astype(float), persons.scores.astype(float)))
        boxes.append(truth[frame].boxes)
    return round(average_precision(found, boxes), 4)


def tracking_figures(data: Path, model: str) -> dict[str, float]:
    """HOTA, MOTA, IDF1 and the rest on PETS09-S2L1 at 5 fps (every 2nd frame)."""
    network, truth = load_detector(data, model, 0.1), pets_truth(data)
    tracker, found, expected = Tracker(network.labels), [], []
    for frame, detections, planes in detections_of(data, PETS, 2, network):
        found.append(_labelled(tracker.update(detections, frame / PETS_FPS, planes)))
        expected.append(truth[frame])
    result = clear_mot(found, expected)
    counts = {name: getattr(result, name) for name in ("switches", "missed", "false", "boxes", "tracks")}
    quality = {"hota": hota_figures(found, expected).hota, "mota": result.mota, "idf1": result.idf1}
    return {**{name: round(value, 4) for name, value in quality.items()}, **counts}


def visit_figures(data: Path, model: str) -> dict[str, int]:
    """Six persons come one after the other: how many person tracks, and how many visits share a track or have none."""
    events = json.loads((data / "groundtruth" / "intel_events.json").read_text())[INTEL]
    network = load_detector(data, model, 0.1)
    tracker, seen_in = Tracker(network.labels), dict[int, list[int]]()
    for frame, detections, planes in detections_of(data, INTEL, 3, network):
        for each in tracker.update(detections, frame / INTEL_FPS, planes):
            if each.label == "person":
                seen_in.setdefault(each.track, []).append(frame)
    exact = 0
    for visit in events["visits"]:
        inside = [track for track, frames in seen_in.items() if visit["first"] - 3 <= frames[0] <= visit["last"] + 3]
        exact += len(inside) == 1 and seen_in[inside[0]][-1] <= visit["last"] + 3
    return {"persons": events["count_persons"], "tracks": len(seen_in), "visits_with_one_track": exact}


def _labelled(objects: tuple[TrackedObject, ...]) -> LabelledBoxes:
    persons = [each for each in objects if each.label == "person"]
    boxes: NDArray[np.float64] = np.array([each.box for each in persons], float).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array([each.track for each in persons], float))


def runs_here(data: Path, model: str) -> bool:
    """Whether this machine can run it: bfloat16 needs a CPU that has it. What it cannot run is left out, and said."""
    try:
        load_detector(data, model, 0.02)
    except ModelError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True


def measure(data: Path) -> dict[str, Any]:
    models = {name: model for name, model in MODELS.items() if runs_here(data, model)}
    tracked = [name for name in TRACKED if name in models]
    return {
        "command": COMMAND,
        "note": "The tracker's constants and builtin:hog's calibration were tuned on PETS09-S2L1 itself; the Intel "
        "clip was not used for either.",
        "pets09_s2l1_every_10th_frame_person_ap50": {
            name: detection_figures(data, model) for name, model in models.items()
        },
        "pets09_s2l1_5_looks_a_second": {name: tracking_figures(data, models[name]) for name in tracked},
        "intel_one_by_one_3.3_looks_a_second": {name: visit_figures(data, models[name]) for name in tracked},
        **scenes(data, models),
    }


def scenes(data: Path, models: Mapping[str, str]) -> dict[str, Any]:
    """What is measured beside PETS; tests/replay/measure_scenes.py says how."""
    all_networks = {name: load_detector(data, model, 0.02) for name, model in models.items()}
    networks = {name: network for name, network in all_networks.items() if name != "builtin:hog"}
    return {
        "rendered_clips_person_ap50": {
            name: {clip: measure_scenes.rendered_person_ap50(network, clip) for clip in ("yard", "gate")}
            for name, network in all_networks.items()
        },
        "traffic_stills_vehicle_ap50": {
            name: measure_scenes.traffic_vehicle_ap50(network, data) for name, network in networks.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure detectors and tracker on footage with ground truth.")
    parser.add_argument("--update", action="store_true", help=f"write {FIGURES.relative_to(ROOT)}")
    options = parser.parse_args()
    data = Path(os.environ.get("VEDETTE_SHARED", ROOT / ".." / "shared")) / "data"
    text = json.dumps(measure(data), indent=2) + "\n"
    print(text, end="")
    if options.update:
        FIGURES.write_text(text)


if __name__ == "__main__":
    main()
