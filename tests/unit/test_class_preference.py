"""A class that no rule wants does not beat one that a rule wants; all else stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.config import CameraConfig, rule_labels
from appliance.detect.class_labels import COCO_80
from appliance.detect.detector import prefer_labels
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.detect.output_head import ClassPreference
from appliance.types import Detections
from tests.support.tiny_networks import Thing, detr, yolo

PLACE = (30.0, 30.0, 90.0, 70.0)
CAR, TRUCK, PHONE, BOAT, DOG = (COCO_80.index(each) for each in ("car", "truck", "cell phone", "boat", "dog"))
RED = np.zeros((128, 128, 3), np.uint8)
RED[..., 2] = 255


def gives_way(label: str, to: str, *wanted: str) -> bool:
    return bool(ClassPreference(COCO_80, wanted).gives_way[COCO_80.index(label), COCO_80.index(to)])


def labels_of(found: list[Detections], names: tuple[str, ...]) -> list[tuple[str, float]]:
    (one,) = found
    return [(names[each], round(float(score), 2)) for each, score in zip(one.class_ids, one.scores, strict=True)]


@pytest.mark.parametrize(
    ("label", "to", "wanted", "expected"),
    [
        ("cell phone", "car", ("car",), True),
        ("cell phone", "car", ("car", "cell phone"), False),
        ("cell phone", "car", ("person",), False),
        ("boat", "car", ("car",), True),
        ("truck", "car", ("car",), False),
        ("boat", "truck", ("car",), True),
        ("dog", "person", ("person",), False),
        ("car", "person", ("person",), False),
        ("bicycle", "motorcycle", ("motorcycle",), True),
        ("kite", "person", ("person",), True),
    ],
)
def test_what_gives_way_to_what(label: str, to: str, wanted: tuple[str, ...], expected: bool) -> None:
    assert gives_way(label, to, *wanted) is expected


def test_the_wanted_class_of_one_answer_is_taken_if_it_is_there_at_all() -> None:
    preference = ClassPreference(("person", "car", "cell phone"), ("car",))
    scores = np.array([[0.0, 0.3, 0.9], [0.0, 0.05, 0.9], [0.8, 0.3, 0.1], [0.0, 0.6, 0.2]], np.float32)
    assert preference.best(scores, 0.1).tolist() == [1, 2, 0, 1]


def test_a_detr_that_calls_a_car_a_cell_phone_still_shows_the_car(tmp_path: Path) -> None:
    things = [Thing(PLACE, 0.9, PHONE), Thing(PLACE, 0.5, CAR)]
    path = detr(tmp_path / "detr.onnx", things)
    eye = NetworkDetector(path, OnnxRuntime(path))
    assert labels_of(eye.detect([RED]), COCO_80) == [("cell phone", 0.9)]
    prefer_labels(eye, ["car"])
    assert labels_of(eye.detect([RED]), COCO_80) == [("car", 0.5)]
    prefer_labels(eye, ["person"])
    assert labels_of(eye.detect([RED]), COCO_80) == [("cell phone", 0.9)]


def test_so_does_a_network_that_suppresses_class_by_class(tmp_path: Path) -> None:
    things = [Thing(PLACE, 0.9, 1), Thing(PLACE, 0.5, 0)]
    path = yolo(tmp_path / "yolo.onnx", things, ["car", "cell phone"])
    eye = NetworkDetector(path, OnnxRuntime(path))
    assert labels_of(eye.detect([RED]), eye.labels) == [("cell phone", 0.9), ("car", 0.5)]
    prefer_labels(eye, ["car"])
    assert labels_of(eye.detect([RED]), eye.labels) == [("car", 0.5)]


def test_elsewhere_nothing_gives_way(tmp_path: Path) -> None:
    things = [Thing((5.0, 5.0, 25.0, 25.0), 0.9, 1), Thing(PLACE, 0.5, 0)]
    path = yolo(tmp_path / "yolo.onnx", things, ["car", "cell phone"])
    eye = NetworkDetector(path, OnnxRuntime(path))
    (before,) = eye.detect([RED])
    prefer_labels(eye, ["car"])
    (after,) = eye.detect([RED])
    assert np.array_equal(before.boxes, after.boxes)
    assert np.array_equal(before.scores, after.scores)


def test_what_rules_want_is_what_any_rule_of_any_camera_names() -> None:
    def camera(*labels: str) -> CameraConfig:
        rule = {"name": "any", "kind": "enter", "zone": "all", "labels": labels}
        zones = {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]}
        return CameraConfig.model_validate({"url": "file:x", "zones": zones, "rules": [rule]})

    assert rule_labels([camera("person", "dog"), camera("car")]) == {"person", "dog", "car"}
