"""The head is chosen by what the network answers with; what fits nothing, or two things, is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.base.errors import ModelError
from appliance.detect import class_labels, yolo_detr_ssd_heads
from appliance.detect.class_labels import COCO_80
from appliance.detect.network_inputs import SIDE_DEFAULT, STEP, network_inputs, shape_step
from appliance.detect.network_runtime import TensorSpec
from appliance.detect.output_head import UnknownLayout, filter_and_sort, non_maximum_suppression
from appliance.detect.yolo_detr_ssd_heads import TrialOutput
from appliance.types import Detections


def answer(*shapes: tuple[int, ...], size: int = 416, sizes_input: str = "", **metadata: str) -> TrialOutput:
    outputs = {f"o{index}": np.zeros(shape, np.float32) for index, shape in enumerate(shapes)}
    return TrialOutput((size, size), outputs, sizes_input, metadata)


@pytest.mark.parametrize(
    ("seen", "name", "classes"),
    [
        (answer((1, 3549, 85)), "yolox", 80),
        (answer((1, 3549, 6)), "yolox", 1),
        (answer((1, 756, 6), size=192), "yolox", 1),
        (answer((1, 84, 3549)), "yolo", 80),
        (answer((1, 5, 8400), size=640), "yolo", 1),
        (answer((1, 300, 6), size=640), "yolo-e2e", None),
        (answer((1, 8500, 85), size=640), "yolox", 80),
        (answer((1, 300), (1, 300, 4), (1, 300), sizes_input="sizes"), "detr", None),
        (answer(*[(1, n, 80) for n in (2704, 676, 169)], *[(1, n, 32) for n in (2704, 676, 169)]), "nanodet", 80),
        (answer(*[(1, n, 3) for n in (2704, 676, 169, 49)], *[(1, n, 32) for n in (2704, 676, 169, 49)]), "picodet", 3),
        (answer((1, 85, 22, 22), size=352), "fastestdet", 80),
    ],
    ids=lambda value: value.shapes() if isinstance(value, TrialOutput) else str(value),
)
def test_the_layout_tells_the_head(seen: TrialOutput, name: str, classes: int | None) -> None:
    if name == "detr":
        seen.outputs["o0"] = seen.outputs["o0"].astype(np.int64)  # type: ignore[index]
    head = yolo_detr_ssd_heads.choose_head(seen)
    assert (head.name, head.classes) == (name, classes)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (answer((1, 25200, 85), size=640), "8400 or 8500 anchors"),
        (answer((1, 85, 22, 22)), "not \\[1, rows, columns\\]"),
        (answer(*[(1, n, 80) for n in (2704, 676, 169)], *[(1, n, 30) for n in (2704, 676, 169)]), "no known layout"),
        (answer(*[(1, n, 80) for n in (2704, 676, 170)], *[(1, n, 32) for n in (2704, 676, 170)]), "no known layout"),
        (answer((1, 100, 4), (1, 100, 91)), "no known layout"),
        (answer((1, 300), (1, 300, 4), (1, 300)), "orig_target_sizes"),
        (answer((1, 300), (1, 300, 7), (1, 300), sizes_input="s"), "are not labels"),
        (answer((1, 116, 3549), task="segment"), "task `segment`"),
        (answer((1, 84, 85), size=64), "two layouts; set detector.head"),
    ],
)
def test_what_fits_nothing_is_refused_with_the_reason(seen: TrialOutput, reason: str) -> None:
    with pytest.raises(UnknownLayout, match=reason):
        yolo_detr_ssd_heads.choose_head(seen)


def test_the_site_file_settles_what_the_shape_cannot() -> None:
    twofold = answer((1, 84, 85), size=64)
    assert yolo_detr_ssd_heads.choose_head(twofold, "yolox").name == "yolox"
    assert yolo_detr_ssd_heads.choose_head(answer((1, 3549, 84)), "yolo").classes == 80
    with pytest.raises(UnknownLayout):
        yolo_detr_ssd_heads.choose_head(answer((1, 84, 3549)), "yolox")
    with pytest.raises(UnknownLayout):
        yolo_detr_ssd_heads.choose_head(answer((1, 84, 3549)), "detr")


def test_end_to_end_rows_that_are_not_pixels_are_not_taken_for_pixels() -> None:
    seen = answer((1, 300, 6))
    seen.outputs["o0"][0, :, :4] = 0.7  # type: ignore[index]
    with pytest.raises(UnknownLayout, match="not in pixels"):
        yolo_detr_ssd_heads.choose_head(seen)


def test_yolox_decodes_each_stride_on_its_own_grid() -> None:
    head = yolo_detr_ssd_heads.choose_head(answer((1, 3549, 6)))
    rows = np.zeros((1, 3549, 6), np.float32)
    # Cell (3, 2) of stride 8, cell (1, 1) of stride 16, cell (12, 12) of stride 32.
    for row, (x, y) in {2 * 52 + 3: (0.5, 0.25), 2704 + 26 + 1: (0, 0), 3548: (0.5, 0.5)}.items():
        rows[0, row] = [x, y, 0, 0, 0.9, 1]
    found = filter_and_sort(head.decode({"o0": rows}, 0.1), 0.1)
    centres = sorted(((found.boxes[:, :2] + found.boxes[:, 2:]) / 2).tolist())
    assert centres == [[16, 16], [28, 18], [400, 400]]
    assert sorted((found.boxes[:, 2] - found.boxes[:, 0]).tolist()) == [8, 16, 32]


def test_numbers_that_are_no_numbers_make_no_boxes() -> None:
    head = yolo_detr_ssd_heads.choose_head(answer((1, 3549, 6)))
    rows = np.zeros((1, 3549, 6), np.float32)
    rows[0, :, 4:] = 1
    rows[0, :, 5] = np.nan
    rows[0, 0, :] = [np.nan, 0, 0, 0, 1, 1]
    rows[0, 1, :] = [0, 0, np.inf, 1e30, 1, 1]
    with np.errstate(invalid="ignore"):
        found = filter_and_sort(head.decode({"o0": rows}, 0.1), 0.1)
    assert np.isfinite(found.boxes).all()
    assert len(found) <= 1


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan, 3e38])
def test_a_box_that_overflowed_hides_no_other_and_is_not_the_whole_frame(wrong: float) -> None:
    columns = np.zeros((1, 5, 3549), np.float32)
    people = [(50, 50), (50.5, 50), (200, 200), (200.5, 200)]  # each of two twice
    for n, (x, y) in enumerate(people):
        columns[0, :, n] = [x, y, 40, 80, 0.8]
    columns[0, :, 5] = [100, 100, wrong, wrong, 0.9]
    head = yolo_detr_ssd_heads.choose_head(answer((1, 5, 3549)))
    with np.errstate(over="ignore"):
        found = head.decode({"o0": columns}, 0.2)
    assert sorted((found.boxes[:, 0] + 20).tolist())[-2:] == pytest.approx([50, 200], abs=0.5)
    if not np.isfinite(wrong):
        assert len(found) == 2


def test_one_object_with_two_labels_is_one_object_for_detr() -> None:
    head = yolo_detr_ssd_heads.DetrHead("l", "b", "s")
    outputs = {
        "l": np.array([[2, 7, 0]]),
        "b": np.array([[[10, 10, 50, 40], [10, 10, 50, 40], [200, 200, 240, 300]]], np.float32),
        "s": np.array([[0.8, 0.6, 0.05]], np.float32),
    }
    found = head.decode(outputs, 0.1)
    assert found.class_ids.tolist() == [2]


def test_suppression_keeps_classes_apart_only_if_wanted() -> None:
    pair = Detections(
        np.array([[0, 0, 10, 10], [0, 0, 10, 11]], np.float32),
        np.array([0.5, 0.9], np.float32),
        np.array([0, 1], np.int32),
    )
    assert non_maximum_suppression(pair, 0.5, per_class=True).scores.tolist() == pytest.approx([0.9, 0.5])
    assert non_maximum_suppression(pair, 0.5, per_class=False).class_ids.tolist() == [1]


def test_equal_scores_come_in_the_order_of_their_boxes() -> None:
    boxes = np.array([[0.5, 0, 1, 1], [0.1, 0.2, 1, 1], [0.1, 0, 1, 1]], np.float32)
    same = Detections(boxes, np.full(3, 0.5, np.float32), np.zeros(3, np.int32))
    np.testing.assert_array_equal(filter_and_sort(same, 0.1).boxes, boxes[[2, 1, 0]])


MODEL = Path("m.onnx")


def test_labels_given_come_before_those_in_the_file_before_those_of_coco() -> None:
    metadata = {"names": "{0: 'walker', 1: 'van'}"}
    assert class_labels.resolve(MODEL, 2, metadata, ("a", "b")) == ("a", "b")
    assert class_labels.resolve(MODEL, 2, metadata) == ("walker", "van")
    assert class_labels.resolve(MODEL, 80, {}) == COCO_80
    assert class_labels.guessed(80, {}, ()).startswith("nothing names the network's 80 classes")
    assert class_labels.guessed(80, {}, COCO_80) == class_labels.guessed(2, metadata, ()) == ""


@pytest.mark.parametrize(
    ("classes", "metadata", "given", "message"),
    [
        (3, {}, (), "nothing names its 3 classes; set detector.labels"),
        (None, {}, (), "nothing names its classes; set detector.labels .* coco-80"),
        (3, {"names": "{0: 'a'}"}, (), "its metadata name 1 classes, its output has 3"),
        (3, {}, ("a", "b"), "the labels given name 2 classes"),
        (1, {"names": "__import__('os').getcwd()"}, (), "cannot be understood"),
        (1, {"names": "{1: 'a'}"}, (), "cannot be understood"),
        (1, {"names": "[" * 5000}, (), "cannot be understood"),
        (1, {"names": "{[1]: 'a'}"}, (), "cannot be understood"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    classes: int, metadata: dict[str, str], given: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        class_labels.resolve(MODEL, classes, metadata, given)


def test_coco_is_named_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert class_labels.read(Path("coco-80")) == COCO_80
    (tmp_path / "coco-80").write_text("a\nb\n")
    assert class_labels.read(Path("coco-80")) == ("a", "b")


def test_a_labels_file_has_a_name_on_every_line(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("person\ntraffic light\n")
    assert class_labels.read(path) == ("person", "traffic light")
    path.write_text("person\n\ncar\n")
    with pytest.raises(ModelError, match="every line"):
        class_labels.read(path)
    with pytest.raises(ModelError, match=r"gone\.txt: the labels file cannot be read"):
        class_labels.read(tmp_path / "gone.txt")


@pytest.mark.parametrize("name", ["\ud800", "person\x1b[31m", "a\nb"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="cannot be shown"):
        class_labels.from_metadata(Path("m.onnx"), repr({0: name}))
    with pytest.raises(ModelError, match="cannot be shown"):
        class_labels.resolve(Path("m.onnx"), 1, {}, (name,))


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "99999999"])
def test_sizes_in_the_metadata_that_are_no_numbers_of_pixels_count_for_nothing(number: str) -> None:
    spec = TensorSpec("images", "float32", (1, 3, None, None))
    found = network_inputs(Path("m.onnx"), [spec], {"imgsz": f"[{number}]"})
    assert (found.width, found.height) == (SIDE_DEFAULT, SIDE_DEFAULT)
    assert shape_step({"stride": number}) == STEP, "a trial picture of so many pixels would take all memory"
