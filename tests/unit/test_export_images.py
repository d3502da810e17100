"""Which looks become pictures, and what stands in them."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.lab.export_folder import (
    ExportedAlert,
    ExportSample,
    LabelledBox,
    coco_files,
    yolo_data_yaml,
    yolo_label_text,
)
from appliance.lab.export_samples import choose_backgrounds, choose_labelled, labels_in
from appliance.types import FrameBoxes, TrackedObject
from tests.support.sample_rows import T0

LABELS = ("person", "car")


def look(t: float, *there: tuple[int, str]) -> FrameBoxes:
    objects = tuple(
        TrackedObject(track=track, label=label, score=0.8, box=(0.1, 0.2, 0.3, 0.6)) for track, label in there
    )
    return FrameBoxes(camera="gate", seq=0, frame=0, t=T0 + t, looked=True, objects=objects)


def times(found: list[FrameBoxes]) -> list[float]:
    return [round(each.t - T0, 3) for each in found]


def test_images_are_spread_over_the_alert_first_and_last_among_them() -> None:
    frames = [look(n / 5, (1, "person")) for n in range(51)]
    assert times(choose_labelled(frames, [1], LABELS, 6)) == [0, 2, 4, 6, 8, 10]
    assert times(choose_labelled(frames, [1], LABELS, 1)) == [0]
    assert times(choose_labelled(frames[:3], [1], LABELS, 6)) == [0, 0.2, 0.4]


def test_a_frame_in_which_one_of_them_was_lost_is_passed_over() -> None:
    frames = [look(0, (1, "person"), (2, "person")), look(1, (1, "person")), look(2, (1, "person"), (2, "person"))]
    assert times(choose_labelled(frames, [1, 2], LABELS, 9)) == [0, 2]


def test_a_frame_with_another_person_is_second_choice_and_then_has_their_box_too() -> None:
    alone, crowd = look(0, (1, "person")), look(1, (1, "person"), (9, "car"))
    assert times(choose_labelled([alone, crowd], [1], LABELS, 9)) == [0]
    (only,) = choose_labelled([crowd], [1], LABELS, 9)
    assert [(each.label, each.flagged) for each in labels_in(only, [1], LABELS)] == [("person", True), ("car", False)]
    assert [each.label for each in labels_in(only, [1], ("car",))] == ["car"]


def test_a_background_holds_nothing_that_should_have_a_label() -> None:
    frames = [look(0, (1, "person")), look(1, (1, "person"), (9, "car")), look(2, (9, "car")), look(3, (1, "person"))]
    assert times(choose_backgrounds(frames, [1], LABELS, 9)) == [0, 3]
    assert times(choose_backgrounds(frames, [1], ("person",), 9)) == [0, 1, 3], "cars have no label in this export"


def test_files_of_both_formats_name_the_same_boxes() -> None:
    box = LabelledBox(label="car", track=4, score=0.7, box=(0.25, 0.5, 0.75, 1.0), flagged=True)
    sample = ExportSample(file="a.jpg", t=T0, width=200, height=100, drawn=(box,))
    one = ExportedAlert(alert="a", camera="gate", t_start=T0, review="reviewed", split="train", samples=(sample,))
    assert yolo_label_text(sample, LABELS) == b"1 0.500000 0.750000 0.500000 0.500000\n"
    assert yolo_label_text(sample.model_copy(update={"drawn": ()}), LABELS) == b""
    assert b'"bbox": [\n    50.0,\n    50.0,\n    100.0,\n    50.0\n   ]' in coco_files([one], LABELS, "s")[str(TRAIN)]
    read = json.loads(coco_files([one], LABELS, "s")[str(TRAIN)])
    (drawn,), (image,) = read["annotations"], read["images"]
    assert {each["id"]: each["name"] for each in read["categories"]}[drawn["category_id"]] == "car"
    assert [each["id"] for each in read["categories"]] == [1, 2], "0 is the background to trainers"
    assert (image["alert"], image["camera"], image["background"]) == ("a", "gate", False)
    assert (drawn["image_id"], image["file_name"], image["width"], image["height"]) == (image["id"], "a.jpg", 200, 100)
    assert (drawn["area"], drawn["iscrowd"], drawn["track"], drawn["score"], drawn["flagged"]) == (
        5000,
        0,
        4,
        0.7,
        True,
    )
    assert b'"annotations": []' in coco_files([one], LABELS, "s")["annotations/instances_val.json"]
    assert b"names:\n  0: person\n  1: car\n" in yolo_data_yaml(LABELS)


TRAIN = Path("annotations/instances_train.json")
