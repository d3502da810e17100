"""True boxes from MOT, CVAT and COCO files: frames from 0, shares of the picture, and what does not count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from appliance.base.errors import ConfigError
from appliance.lab.scenario.scenario_command import junit_report
from appliance.scenario import ground_truth
from appliance.scenario.ground_truth import TrueFrames, TrueObject
from appliance.scenario.metrics import compare_with_truth
from appliance.scenario.scenario_result import Fault, ScenarioResult
from appliance.scenario.scenario_schema import TruthFile
from appliance.types import FrameBoxes, TrackedObject

SIZE = (100, 50)
BOX = (0.1, 0.2, 0.3, 0.8)
CVAT = """\
<annotations><meta><task><original_size><width>200</width><height>100</height></original_size></task></meta>
<track id="4" label="person"><box frame="0" outside="0" xtl="20" ytl="20" xbr="60" ybr="80"/>
<box frame="1" outside="1" xtl="20" ytl="20" xbr="60" ybr="80"/></track>
<track id="5" label="dog"><box frame="0" outside="0" xtl="0" ytl="0" xbr="9" ybr="9"/></track></annotations>
"""

COCO = """{"categories": [{"id": 1, "name": "person"}],
"images": [{"id": 9, "file_name": "frame_000012.png", "width": 100, "height": 50}],
"annotations": [{"image_id": 9, "category_id": 1, "bbox": [10, 10, 20, 30]}]}"""


def read(path: Path, text: str, **settings: object) -> TrueFrames:
    path.write_text(text)
    kind = {".txt": "mot", ".xml": "cvat", ".json": "coco"}[path.suffix]
    return ground_truth.read_truth(path, TruthFile.model_validate({kind: path, **settings}), SIZE)


def test_mot_frames_count_from_one_and_boxes_become_shares(tmp_path: Path) -> None:
    assert read(tmp_path / "gt.txt", "1,7,10,10,20,30,1,1,0.5\n\n") == {0: (TrueObject(7, "person", BOX, True),)}


def test_mot_rows_that_are_marked_small_or_hidden_do_not_count(tmp_path: Path) -> None:
    rows = "1,1,10,10,20,30,0,1,1\n1,2,10,10,20,30,1,1,0.2\n1,3,10,10,20,4,1,1,1\n1,4,10,10,20,30,1,1,-1\n"
    found = read(tmp_path / "gt.txt", rows, visible_min=0.3, height_min=0.1)[0]
    assert [(each.id, each.counts) for each in found] == [(1, False), (2, False), (3, False), (4, True)]


def test_several_kinds_of_number_want_words(tmp_path: Path) -> None:
    rows = "1,1,10,10,20,30,1,1,1\n1,2,10,10,20,30,1,2,1\n"
    with pytest.raises(ConfigError, match=r"it has the classes 1, 2: say which is which, as in `classes: {1: person}`"):
        read(tmp_path / "gt.txt", rows)
    found = read(tmp_path / "gt.txt", rows, classes={1: "person", 2: "van"})
    assert [each.id for each in found[0]] == [1]


def test_cvat_tracks_have_their_own_size_and_leave_the_frame(tmp_path: Path) -> None:
    assert read(tmp_path / "a.xml", CVAT) == {0: (TrueObject(4, "person", BOX, True),)}


def test_coco_frames_come_from_the_name_and_without_identity_nothing_is_followed(tmp_path: Path) -> None:
    data = {
        "categories": [{"id": 1, "name": "person"}],
        "images": [{"id": 9, "file_name": "frame_000012.png", "width": 100, "height": 50}],
        "annotations": [{"image_id": 9, "category_id": 1, "bbox": [10, 10, 20, 30], "iscrowd": 0}],
    }
    found = read(tmp_path / "a.json", json.dumps(data))
    assert found == {12: (TrueObject(-1, "person", BOX, True),)}
    assert not ground_truth.has_identities(found)
    figures = compare_with_truth([frame_boxes(12, BOX)], found, ["person"])
    assert (figures.ap50, figures.idf1, figures.hota) == (1.0, None, None)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("gt.txt", "1,2,3\n", "line 1 has 3 columns"),
        ("gt.txt", "frame,id,x,y,w,h\n", "could not convert"),
        ("gt.txt", "", "no box of person"),
        ("a.xml", "<annotations>", "not a file of cvat truth"),
        ("a.xml", "<annotations/>", "export as `CVAT for video 1.1`"),
        ("a.json", "[]", "not a file of coco truth"),
        ("a.json", "{}", "not a file of coco truth"),
        ("a.json", COCO.replace('"width": 100', '"width": 0'), "its frame size is 0x50"),
        ("a.json", COCO.replace('"width": 100', '"width": 1e400'), "not a file of coco truth"),
        ("a.json", COCO.replace('"bbox"', '"track_id": 1e400, "bbox"'), "not a file of coco truth"),
        ("a.json", COCO.replace("[10, ", "[NaN, "), "a box of frame 12 has no finite sides"),
        ("a.json", COCO.replace("20, 30]", "1e400, 30]"), "a box of frame 12 has no finite sides"),
        ("a.xml", CVAT.replace('xbr="60"', 'xbr="nan"'), "a box of frame 0 has no finite sides"),
        ("a.xml", '<?xml version="1.0" encoding="foo"?><a/>', "unknown encoding: foo"),
    ],
)
def test_what_is_no_truth_is_one_sentence(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path / name, text)


def frame_boxes(frame: int, *boxes: tuple[float, float, float, float]) -> FrameBoxes:
    objects = tuple(
        TrackedObject(track=number, label="person", score=0.9, box=box) for number, box in enumerate(boxes, start=1)
    )
    return FrameBoxes(camera="gate", seq=frame, frame=frame, t=frame / 10, looked=True, objects=objects)


def test_an_answer_on_what_does_not_count_is_neither_right_nor_wrong() -> None:
    frames = {0: (TrueObject(1, "person", BOX, True), TrueObject(2, "person", (0.6, 0.2, 0.8, 0.8), False))}
    figures = compare_with_truth([frame_boxes(0, BOX, (0.6, 0.2, 0.8, 0.8))], frames, ["person"])
    assert (figures.mota, figures.ap50, figures.boxes) == (1.0, 1.0, 1)
    beside = compare_with_truth([frame_boxes(0, BOX, (0.6, 0.2, 0.65, 0.3))], frames, ["person"])
    assert beside.mota == 0.0


@pytest.mark.parametrize(("name", "text"), [("gt.txt", "1,7,10,10,20,30,1,1,0.5\r\n"), ("a.json", COCO)])
def test_the_mark_that_windows_puts_before_a_text_is_no_part_of_it(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path / name, f"\ufeff{text}") == read(tmp_path / name, text)


def test_a_frame_without_a_size_is_refused_in_the_scenario() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TruthFile.model_validate({"mot": "gt.txt", "size": [0, 100]})


def test_tracking_is_not_perfect_where_nothing_was_compared() -> None:
    truth = {7: (TrueObject(1, "person", BOX, True),)}
    for frames in ([], [frame_boxes(3)]):
        figures = compare_with_truth(frames, truth, ["person"])
        assert (figures.mota, figures.idf1, figures.hota, figures.boxes) == (None, None, None, 0)


def test_an_unanswered_frame_is_not_compared() -> None:
    frames = {0: (TrueObject(1, "person", BOX, True),)}
    blind = FrameBoxes(camera="gate", seq=0, frame=0, t=0.0, looked=False)
    assert compare_with_truth([blind], frames, ["person"]).looks == 0


def test_junit_survives_any_text() -> None:
    fault = Fault(kind="false alarm", title="a < b & \x00 \ud800 “c”", detail="d")
    verdict = ScenarioResult(name="<n>", file=Path("./a/b.scenario.yaml"), note="", status="failed", faults=(fault,))
    from xml.etree import ElementTree

    root = ElementTree.fromstring(junit_report([verdict], 1_700_000_000.0))
    case = root[0][0]
    assert (case.get("classname"), case.get("name"), root[0].get("timestamp")) == ("a", "<n>", "2023-11-14T22:13:20")
    failure = case[0]
    assert (failure.get("message"), failure.get("type")) == ("a < b & ? ? “c”", "false-alarm")
