"""RF-DETR and SSD's post-processing: tiny networks that answer as the real exporters' do, and the
arithmetic against the plain one of their authors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ModelError
from appliance.detect import detector_loader, yolo_detr_ssd_heads
from appliance.detect.class_labels import COCO_80, COCO_ID_SLOTS
from appliance.detect.output_head import UnknownLayout
from appliance.detect.yolo_detr_ssd_heads import TrialOutput, rfdetr_head, ssd_head
from tests.support import tiny_networks as tiny
from tests.support.tiny_networks import Thing

# Ids of COCO: 1 person, 3 car, 13 stop sign (the twelfth name: id 12 was never used).
THINGS = [Thing((16, 16, 80, 112), 0.9, 1), Thing((60, 8, 120, 40), 0.6, 3), Thing((4, 80, 24, 124), 0.3, 13)]
SIZE = (100, 50)


@pytest.mark.parametrize(
    ("head", "make"),
    [("rf-detr", tiny.rf_detr), ("ssd", tiny.ssd_tensorflow), ("ssd", tiny.ssd_torchvision)],
    ids=["rf-detr", "ssd-tensorflow", "ssd-torchvision"],
)
def test_boxes_colours_scores_and_ids_come_out_as_the_exporter_means_them(
    head: str, make: Callable[..., Path], tmp_path: Path
) -> None:
    path = make(tmp_path / "n.onnx", THINGS)
    looker = detector_loader.load(DetectorConfig(model=str(path), labels=Path("coco-80"), score_min=0.2))
    assert looker._head.name == head
    red = np.zeros((64, 2 * tiny.SIDE, 3), np.uint8)  # twice as wide as the network, so stretched
    red[:, :, 2] = 255
    found, half, blue = looker.detect([red, red // 2, red[:, :, ::-1].copy()])
    np.testing.assert_allclose(found.boxes, [np.array(thing.box) / tiny.SIDE for thing in THINGS], atol=1e-5)
    np.testing.assert_allclose(found.scores, [0.9, 0.6, 0.3], atol=1e-4)
    assert [looker.labels[each] for each in found.class_ids] == ["person", "car", "stop sign"]
    np.testing.assert_allclose(half.scores, [0.9 * 127 / 255, 0.6 * 127 / 255], atol=1e-4)
    assert len(blue) == 0


@pytest.mark.parametrize("make", [tiny.ssd_tensorflow, tiny.ssd_torchvision])
def test_ssd_without_names_asks_for_labels(make: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"n\.onnx: nothing names its classes; set detector\.labels"):
        detector_loader.load(DetectorConfig(model=str(make(tmp_path / "n.onnx", THINGS))))


def test_80_classes_without_a_name_are_taken_for_those_of_coco_and_a_person_is_told(tmp_path: Path) -> None:
    path = tiny.yolox(tmp_path / "n.onnx", THINGS)
    assert "nothing names the network's 80 classes" in detector_loader.load(DetectorConfig(model=str(path))).warning
    told = detector_loader.load(DetectorConfig(model=str(path), labels=Path("coco-80")))
    assert (told.labels, told.warning) == (COCO_80, "")


def reference_rfdetr(
    boxes: NDArray[np.float32], logits: NDArray[np.float32], threshold: float
) -> list[tuple[float, int, tuple[float, ...]]]:
    """PostProcess of rfdetr in plain loops: a sigmoid for each, the best n pairs, corners in shares."""
    pairs = []
    for query, row in enumerate(logits):
        for slot, logit in enumerate(row):
            pairs.append((1 / (1 + np.exp(-float(logit))), slot, query))
    pairs = sorted(pairs, key=lambda each: -each[0])[: len(logits)]
    found = []
    for score, slot, query in pairs:
        x, y, w, h = map(float, boxes[query])
        if score >= threshold and COCO_ID_SLOTS[slot] >= 0:
            found.append((score, COCO_ID_SLOTS[slot], (x - w / 2, y - h / 2, x + w / 2, y + h / 2)))
    return found


def test_rf_detr_ranks_and_decodes_as_its_authors_do() -> None:
    made = np.random.default_rng(7)
    count = 60
    grid = np.stack(np.meshgrid(np.arange(10), np.arange(6)), -1).reshape(-1, 2)  # apart, so that none is a double
    boxes = np.concatenate([(grid + 0.5) / (10, 6), made.uniform(0.02, 0.08, (count, 2))], axis=1).astype(np.float32)
    logits = made.normal(-6, 1, (count, 91)).astype(np.float32)
    used = [slot for slot, place in enumerate(COCO_ID_SLOTS) if place >= 0]
    logits[np.arange(count), made.choice(used, count)] = made.uniform(-3, 5, count)
    outputs = {"dets": boxes[None], "labels": logits[None]}
    head = rfdetr_head(SIZE, outputs, ())
    assert head is not None
    assert head.classes == 80
    found = head.decode(outputs, 0.2)
    wanted = reference_rfdetr(boxes, logits, 0.2)
    assert len(found) == len(wanted) > 30
    np.testing.assert_allclose(found.scores, [score for score, _, _ in wanted], atol=1e-6)
    assert found.class_ids.tolist() == [class_id for _, class_id, _ in wanted]
    np.testing.assert_allclose(found.boxes / (100, 50, 100, 50), [box for _, _, box in wanted], atol=1e-6)


def test_one_object_of_two_classes_is_one_object_for_rf_detr() -> None:
    outputs = {
        "dets": np.full((1, 2, 4), 0.5, np.float32),
        "labels": np.array([[[3, 1, -9], [-9, -9, -9]]], np.float32),
    }
    head = rfdetr_head(SIZE, outputs, ("van", "lorry"))
    assert head is not None
    assert head.decode(outputs, 0.1).class_ids.tolist() == [0]


@pytest.mark.parametrize(
    ("slots", "names", "classes", "last"),
    [(91, (), 80, 79), (91, COCO_80, 80, 79), (91, tuple("abc") * 30, 90, -1), (3, ("a", "b"), 2, -1), (3, (), 2, -1)],
    ids=["coco", "coco named", "90 of one's own", "named", "not named"],
)
def test_the_last_slot_of_rf_detr_is_the_background_but_for_coco(
    slots: int, names: tuple[str, ...], classes: int, last: int
) -> None:
    outputs = {"dets": np.zeros((1, 5, 4), np.float32), "labels": np.zeros((1, 5, slots), np.float32)}
    head = rfdetr_head(SIZE, outputs, names)
    assert head is not None
    assert (head.classes, head.class_of_slot[-1]) == (classes, last)


def test_tflite_counts_classes_from_0_and_a_float_input_wants_minus_one_to_one() -> None:
    outputs = {
        "TFLite_Detection_PostProcess": np.array([[[0.1, 0.2, 0.5, 0.4], [0, 0, 1, 1]]], np.float32),
        "TFLite_Detection_PostProcess:1": np.array([[2, 0]], np.float32),
        "TFLite_Detection_PostProcess:2": np.array([[0.8, 0.7]], np.float32),
        "TFLite_Detection_PostProcess:3": np.array([1], np.float32),
    }
    head = ssd_head(SIZE, outputs, COCO_80)
    assert head is not None
    assert head.form.normalisation is not None
    assert (head.form.normalisation.mean[0], head.form.normalisation.std[0]) == (127.5, 127.5)
    found = head.decode(outputs, 0.1)
    assert found.class_ids.tolist() == [COCO_80.index("car")]
    np.testing.assert_allclose(found.boxes, [[20, 5, 40, 25]], atol=1e-5)
    own = ssd_head(SIZE, outputs, ("???", "cat", "dog", "hen"), integers=True)
    assert own is not None
    assert own.form.normalisation is None
    assert own.decode(outputs, 0.1).class_ids.tolist() == [3], "counted without the background, named with it"


def test_the_file_says_what_shapes_cannot() -> None:
    """One shape may be two layouts, and DEIMv2's larger networks answer as its small ones but want another input."""
    twofold = {"o": np.zeros((1, 84, 85), np.float32)}
    with pytest.raises(UnknownLayout, match="two layouts"):
        yolo_detr_ssd_heads.choose_head(TrialOutput((64, 64), twofold))
    assert (
        yolo_detr_ssd_heads.choose_head(TrialOutput((64, 64), twofold, metadata={"vedette_head": "yolox"})).name
        == "yolox"
    )
    with pytest.raises(UnknownLayout, match="vedette_head says `x`, which is no head"):
        yolo_detr_ssd_heads.choose_head(TrialOutput((64, 64), twofold, metadata={"vedette_head": "x"}))
    outputs = {
        "labels": np.zeros((1, 9), np.int64),
        "boxes": np.zeros((1, 9, 4), np.float32),
        "scores": np.zeros((1, 9), np.float32),
    }
    plain, imagenet = (
        yolo_detr_ssd_heads.choose_head(TrialOutput((640, 640), outputs, "orig_target_sizes", metadata))
        for metadata in ({}, {"vedette_normalisation": "imagenet"})
    )
    assert plain.form.normalisation is None
    assert imagenet.form.normalisation is not None
    assert imagenet.form.normalisation.mean[0] == 123.675


def test_what_yolo26_answers_without_nms_is_read_as_pixels() -> None:
    """Metadata and shape as Ultralytics 8.4.190 writes them for `nms=False`."""
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, :2] = [[10, 20, 60, 90, 0.8, 2], [1, 1, 9, 9, 0.05, 0]]
    metadata = {"task": "detect", "end2end": "True", "imgsz": "[192, 192]", "names": "{0: 'a', 1: 'b', 2: 'c'}"}
    head = yolo_detr_ssd_heads.choose_head(TrialOutput((192, 192), {"output0": rows}, metadata=metadata))
    found = head.decode({"output0": rows}, 0.1)
    assert (head.name, found.boxes.tolist(), found.class_ids.tolist()) == ("yolo-e2e", [[10, 20, 60, 90]], [2])
