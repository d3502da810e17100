"""`vedette evaluate` on tiny sets, with networks whose answers are known: figures, faults of sets, the gate."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from appliance.__main__ import main
from appliance.detect import detector_loader
from appliance.lab.detection_figures import ClassBoxes, detection_figures, figures_by_height
from tests.support import tiny_networks
from tests.support.tiny_networks import Thing

ROOT = Path(__file__).parents[2]
NAMES = ("person", "car", "truck", "dog")
PERSON = (8.0, 16.0, 40.0, 112.0)  # pixels of a 128x128 image
TRUCK = (64.0, 64.0, 120.0, 104.0)
SEEN, DARK = 255, 0  # how red an image is: what the network finds is that sure


@pytest.fixture
def network(tmp_path: Path) -> str:
    """Finds a person (0.9) and a truck (0.8) in every red image."""
    things = [Thing(PERSON, 0.9, 0), Thing(TRUCK, 0.8, 2)]
    return str(tiny_networks.yolo(tmp_path / "tiny.onnx", things, NAMES))


def write_image(path: Path, red: int = SEEN) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.zeros((128, 128, 3), np.uint8)
    image[..., 2] = red
    assert cv2.imwrite(str(path), image)


def coco(folder: Path, annotations: Sequence[dict[str, Any]], reds: Sequence[int] = (SEEN,), **changes: Any) -> Path:
    """A COCO set of images 1, 2, …; categories are NAMES from 1."""
    for number, red in enumerate(reds, 1):
        write_image(folder / f"{number}.png", red)
    content = {
        "images": [{"id": number, "file_name": f"{number}.png"} for number in range(1, len(reds) + 1)],
        "annotations": list(annotations),
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps({**content, **changes}))
    return path


def label(box: tuple[float, float, float, float], name: str, image: int = 1, **more: Any) -> dict[str, Any]:
    x1, y1, x2, y2 = box
    return {"image_id": image, "category_id": NAMES.index(name) + 1, "bbox": [x1, y1, x2 - x1, y2 - y1], **more}


def yolo(folder: Path, rows: str, names: str = "[person, car, truck, dog]") -> Path:
    write_image(folder / "images" / "a.png")
    (folder / "labels").mkdir()
    (folder / "labels" / "a.txt").write_text(rows)
    (folder / "data.yaml").write_text(f"train: images\nnc: 4\nnames: {names}\n")
    return folder


def clip(path: Path, frames: int = 4) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=5)
        stream.width = stream.height = 128
        red = np.zeros((128, 128, 3), np.uint8)
        red[..., 2] = SEEN
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(red, format="bgr24")))
        container.mux(stream.encode(None))
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict[str, Any]]:
    """The figures by `set, class` of a run with --json."""
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return {f"{row['set']}, {row['label']}": row for row in report["figures"]}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["evaluate", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


# Figures


def test_ap_by_height_counts_only_boxes_of_that_height() -> None:
    """An image 100 pixels high in the input, with persons of 20, 40 and 80 pixels.

    The surest answer (25 high) is wrong: below 32 pixels the right one comes second, so AP is 1/2. From 32 on the first
    answer is right, and the wrong one (50 high) after it costs nothing. The answer on the person of 80 pixels overlaps
    it by 0.6: right at IoU 0.5, wrong at 0.7.
    """
    truth = np.array([[0, 0, 0.1, 0.2], [0.2, 0, 0.4, 0.4], [0.5, 0, 0.7, 0.8]])
    found = np.array(
        [[0.8, 0, 0.9, 0.25], [0, 0, 0.1, 0.2], [0.2, 0, 0.4, 0.4], [0.75, 0.5, 0.95, 1.0], [0.5, 0, 0.62, 0.8]]
    )
    scores = np.array([0.95, 0.9, 0.8, 0.7, 0.6])
    boxes = ClassBoxes(truth, np.zeros(3, bool), found, scores, 100.0)
    rows = figures_by_height([boxes])
    assert [(row.low, row.boxes) for row in rows] == [(16, 1), (32, 1), (64, 1), (128, 0)]
    assert [row.ap50 for row in rows] == [pytest.approx(0.5), pytest.approx(1), pytest.approx(1), None]
    assert [row.ap70 for row in rows] == [pytest.approx(0.5), pytest.approx(1), pytest.approx(0), None]
    assert figures_by_height([replace(boxes, input_px=0.0)]) == ()
    whole = detection_figures([boxes])
    # Of five answers right at 0.5 are the 2nd, 3rd and 5th: precisions 2/3 up to 2/3 of recall, then 3/5.
    assert whole.ap50 == pytest.approx((67 * 2 / 3 + 34 * 3 / 5) / 101)
    assert whole.ap70 == pytest.approx(67 * 2 / 3 / 101)


def test_what_is_found_and_what_is_missed_is_counted(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [label(PERSON, "person"), label(PERSON, "person", image=2), label(TRUCK, "truck"), label(PERSON, "dog", 2)]
    figures = evaluated(capsys, network, "--coco", coco(tmp_path, labels, (SEEN, DARK)))
    person = figures["instances, person"]
    assert (person["images"], person["boxes"], person["precision"], person["recall"]) == (2, 2, 1.0, 0.5)
    assert person["ap50"] == person["ap50_95"] == pytest.approx(51 / 101, abs=1e-4)  # of 101 recalls 0 to 0.5 are met
    assert (person["ap50_low"], person["ap50_high"]) == (0.0, 1.0)
    assert person["calibration_error"] == pytest.approx(0.1, abs=0.005)  # it was 0.9 sure, and right each time
    assert figures["instances, vehicle"]["recall"] == 1.0
    assert figures["instances, dog"]["precision"] is None


def test_a_car_that_is_called_a_truck_is_a_vehicle_found(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = coco(tmp_path, [label(TRUCK, "car"), label(PERSON, "person")])
    merged = evaluated(capsys, network, "--coco", labels)
    assert {name: row["ap50"] for name, row in merged.items()} == {"instances, person": 1.0, "instances, vehicle": 1.0}
    apart = evaluated(capsys, network, "--coco", labels, "--by-class")
    assert {name: row["ap50"] for name, row in apart.items()} == {"instances, person": 1.0, "instances, car": 0.0}


def test_a_vehicle_with_two_names_is_one_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = [Thing(TRUCK, 0.9, 1), Thing(TRUCK, 0.8, 2)]
    model = tiny_networks.yolo(tmp_path / "twice.onnx", twice, NAMES)
    found = evaluated(capsys, model, "--coco", coco(tmp_path, [label(TRUCK, "car")]))
    assert found["instances, vehicle"]["precision"] == 1.0


def test_a_crowd_is_neither_right_nor_wrong(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [label(PERSON, "person", iscrowd=1), label(PERSON, "person", image=2)]
    person = evaluated(capsys, network, "--coco", coco(tmp_path, labels, (SEEN, SEEN)))["instances, person"]
    assert (person["boxes"], person["ap50"], person["precision"]) == (1, 1.0, 1.0)


def test_kinds_of_view_stand_in_one_table(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yolo(tmp_path / "shop", "0 0.1875 0.5 0.25 0.75\n")  # PERSON
    coco_folder = tmp_path / "street"
    coco_folder.mkdir()
    coco(coco_folder, [label(TRUCK, "truck")])
    clip(tmp_path / "yard.mp4")
    (tmp_path / "yard.gt.txt").write_text("2,1,8,16,32,96,1,1,1\n3,1,8,16,32,96,1,9,1\n")
    sets = [
        f"{name}={tmp_path / path}" for name, path in (("shop", "shop"), ("street", "street"), ("yard", "yard.mp4"))
    ]
    arguments = [network, "builtin:hog", *(part for each in sets for part in ("--per", each))]
    found = evaluated(capsys, network, *arguments[2:])
    assert {name: row["recall"] for name, row in found.items()} == {
        "shop, person": 1.0,
        "street, vehicle": 1.0,
        "yard, person": 1.0,
    }
    assert found["yard, person"]["images"] == 4
    assert found["yard, person"]["precision"] == pytest.approx(1 / 3, abs=1e-4)  # frame 3 has a class without a name
    assert main(["evaluate", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "shop, person" in out
    assert "mean AP50 vehicle" in out
    assert "yard.gt.txt: boxes of class 9 are ignored" in out
    assert "builtin:hog does not report vehicle" in out
    assert "tiny" in out
    assert "street" not in err  # no bar where there is no terminal


def test_every_nth_frame_of_a_clip_is_examined(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gt.txt").write_text("1,1,8,16,32,96,1,1,1\n4,1,8,16,32,96,1,1,1\n")
    arguments = [network, "--clip", clip(tmp_path / "a.mp4", 6), "--mot", tmp_path / "gt.txt", "--every", 3]
    person = evaluated(capsys, *arguments)["a, person"]
    assert (person["images"], person["boxes"], person["recall"]) == (2, 2, 1.0)


def coco_average_precision(images: Sequence[ClassBoxes]) -> tuple[float, float]:
    """AP50 and AP50:95 by pycocotools, all areas, up to 300 answers an image."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    labels: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, each in enumerate(images, 1):
        for box, ignored in zip(each.truth, each.ignored, strict=True):
            labels.append({**_coco_row(len(labels) + 1, number, box), "iscrowd": int(ignored)})
        for box, score in zip(each.found, each.scores, strict=True):
            found.append({**_coco_row(len(found) + 1, number, box), "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        both = []
        for rows in (labels, found):
            content = COCO()
            content.dataset = {
                "images": [{"id": number} for number in range(1, len(images) + 1)],
                "annotations": rows,
                "categories": [{"id": 1, "name": "all"}],
            }
            content.createIndex()
            both.append(content)
        run = COCOeval(*both, "bbox")
        run.params.maxDets = [1, 100, 300]
        run.evaluate()
        run.accumulate()
    precision = np.maximum(run.eval["precision"][:, :, 0, 0, -1], 0)  # by IoU and recall; all areas, all detections
    return float(precision[0].mean()), float(precision.mean())


def _coco_row(row_id: int, image_id: int, box: np.ndarray) -> dict[str, Any]:
    x, y, width, height = float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])
    return {
        "id": row_id,
        "image_id": image_id,
        "category_id": 1,
        "bbox": [x, y, width, height],
        "area": width * height,
        "iscrowd": 0,
    }


@pytest.mark.parametrize("seed", range(4))
def test_our_arithmetic_is_that_of_pycocotools(seed: int) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools comes with the extras `dev` and `train`")
    random = np.random.default_rng(seed)
    images = []
    for _ in range(40):
        corners = random.uniform(0, 0.7, (5, 2))
        truth = np.concatenate([corners, corners + random.uniform(0.05, 0.3, (5, 2))], axis=1)
        found = np.concatenate([truth + random.normal(0, 0.008, truth.shape), truth[:2] + 0.2])
        found = found[random.random(len(found)) < 0.8]
        images.append(ClassBoxes(truth, random.random(5) < 0.2, found, random.random(len(found))))
    ap50, ap50_95 = coco_average_precision(images)
    ours = detection_figures(images)
    assert 0.2 < ap50 < 0.95
    assert ours.ap50 == pytest.approx(ap50, abs=1e-6)
    assert ours.ap50_95 == pytest.approx(ap50_95, abs=1e-6)
    assert ours.ap50_low < ours.ap50 < ours.ap50_high


def test_ctrl_c_ends_it_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        name, warning, labels = "interrupted", "", ("person",)

        def preferred_size(self, width: int, height: int) -> tuple[int, int]:
            return width, height

        def detect(self, frames: object) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(detector_loader, "load", lambda settings: Interrupted())
    assert main(["evaluate", "x", "--coco", str(coco(tmp_path, [label(PERSON, "person")]))]) == 130
    assert capsys.readouterr() == ("", "")


def test_one_part_of_a_yolo_set_is_named_by_its_images(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = yolo(tmp_path / "set", "0 0.1875 0.5 0.25 0.75\n", names="{0: person, 3: dog}")
    for kind in ("images", "labels"):
        (folder / kind / "val").mkdir()
    write_image(folder / "images" / "val" / "b.png", DARK)
    (folder / "labels" / "val" / "b.txt").write_text("0 0.1875 0.5 0.25 0.75\n")
    assert evaluated(capsys, network, "--yolo", folder)["set, person"]["recall"] == 0.5
    assert evaluated(capsys, network, "--yolo", folder / "images" / "val")["val, person"]["recall"] == 0.0


# Faults of sets


@pytest.mark.parametrize(
    ("annotations", "changes", "fault"),
    [
        ([label(PERSON, "person") | {"category_id": 9}], {}, r"annotations\[0\]\.category_id: 9 is none of"),
        ([label(PERSON, "person", image=7)], {}, r"annotations\[0\]\.image_id: 7 is none of"),
        (
            [label((100, 100, 300, 300), "person")],
            {},
            r"annotations\[0\]\.bbox: the box .* outside its image of 128x128",
        ),
        ([label((50, 50, 40, 60), "person")], {}, r"annotations\[0\]\.bbox: x, y, width, height are wanted"),
        (
            [label(PERSON, "person"), {"image_id": 1, "category_id": 1, "segmentation": [[1, 1, 9, 9, 1, 9]]}],
            {},
            r"annotations\[1\]\.bbox: it is missing.*polygons alone are not measured",
        ),
        ([], {}, "no box in it counts"),
        ([label(PERSON, "person")], {"images": "none"}, "instances.json: images: "),
        (
            [label(PERSON, "person")],
            {"images": [{"id": 1, "file_name": "1.png", "width": 640, "height": 480}]},
            "it is 128x128, but instances.json labels one of 640x480",
        ),
        (
            [label(PERSON, "person")],
            {"images": [{"id": 1, "file_name": "1.png"}, {"id": 1, "file_name": "1.png"}]},
            r"images\[1\]\.id: 1 stands twice",
        ),
    ],
)
def test_a_fault_in_a_coco_file_is_named_with_its_key(
    annotations: list[dict[str, Any]],
    changes: dict[str, Any],
    fault: str,
    network: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = refused(capsys, network, "--coco", coco(tmp_path, annotations, **changes))
    assert_matches(fault, err)


@pytest.mark.parametrize(("text", "fault"), [("9" * 5000, "too many digits"), ("[" * 100_000, "nested too deeply")])
def test_json_that_python_cannot_hold_is_refused(
    text: str, fault: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "instances.json"
    labels.write_text(f'{{"images": {text}')
    assert fault in refused(capsys, network, "--coco", labels)


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


def test_a_missing_image_is_found_before_the_first_inference(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = coco(tmp_path, [label(PERSON, "person")], (SEEN, SEEN))
    (tmp_path / "2.png").unlink()
    assert "2.png is missing; name its folder with --images" in refused(capsys, network, "--coco", labels)
    (tmp_path / "2.png").write_bytes(b"no image")
    assert "2.png: missing or not an image" in refused(capsys, network, "--coco", labels)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"images": [],\n "annotations": [}', "instances.json, line 2: not JSON"),
        ("[" * 100_000, "instances.json: not a COCO instances file"),
        ("\xff\xfe", "instances.json: the labels are not text in UTF-8"),
        ("{}", "instances.json: images: it is missing"),
        ("[]", "instances.json: file: an object is wanted"),
        ('{"images": 3}', "instances.json: images: a list is wanted"),
    ],
)
def test_a_broken_json_file_is_named_with_its_line(
    content: str, fault: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "instances.json").write_bytes(content.encode("latin-1"))
    assert fault in refused(capsys, network, "--coco", tmp_path / "instances.json")


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (
            "0 0.5 0.5 0.2 0.2\n7 0.5 0.5 0.2 0.2\n",
            "a.txt, line 2: class 7 has no name in data.yaml (it has 0, 1, 2, 3)",
        ),
        ("0 0.1 0.1 0.2 0.1 0.2 0.3\n", "a.txt, line 1: a polygon of 6 numbers; a box has 4"),
        ("0 64 64 20 20\n", "a.txt, line 1: width and height are shares"),
        ("0 1.5 0.5 0.2 0.2\n", "a.txt, line 1: the box lies outside the image"),
        ("0 nan 0.5 0.2 0.2\n", "a.txt, line 1: the box lies outside the image"),
        ("person 0.5 0.5 0.2 0.2\n", "a.txt, line 1: not `class x y width height`"),
        ("0 0.5\n", "a.txt, line 1: not `class x y width height`"),
        ("", "no box in it counts"),
    ],
)
def test_a_fault_in_a_yolo_file_is_named_with_its_line(
    rows: str, fault: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in refused(capsys, network, "--yolo", yolo(tmp_path / "set", rows))


@pytest.mark.parametrize("named", ["val: valid/images", "val: ../valid/images", "val: [a, b]\ntest: valid/images"])
def test_a_yolo_set_is_read_where_its_data_yaml_names_its_split(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    folder = yolo(tmp_path / "valid", "0 0.1875 0.5 0.25 0.75\n")
    text = (folder / "data.yaml").read_text()
    (folder / "data.yaml").unlink()
    (tmp_path / "data.yaml").write_text(f"{text}{named}\n")
    assert evaluated(capsys, network, "--yolo", tmp_path)[f"{tmp_path.name}, person"]["recall"] == 1.0


def test_a_yolo_folder_that_lacks_a_part_is_refused(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = yolo(tmp_path / "set", "0 0.5 0.5 0.2 0.2\n")
    (folder / "labels" / "b.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    assert "b.txt: its image is missing below" in refused(capsys, network, "--yolo", folder)
    (folder / "images" / "a.png").unlink()
    assert "no images (" in refused(capsys, network, "--yolo", folder)
    (folder / "data.yaml").write_text("names: 3\n")
    assert "data.yaml, line 1: names: must be a list: [a, b]; it names" in refused(capsys, network, "--yolo", folder)
    (folder / "data.yaml").write_text("nc: 4\n")
    assert "names: this key is required" in refused(capsys, network, "--yolo", folder)
    (folder / "data.yaml").unlink()
    assert "no data.yaml here or above" in refused(capsys, network, "--yolo", folder)
    assert "no such folder; a YOLO set has images/" in refused(capsys, network, "--yolo", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("1,1,8,16\n", "gt.txt: not MOTChallenge rows: line 1 has 4 columns"),
        ("1,1,8,16,32,96\n2,x,8,16,32,96\n", "gt.txt: not MOTChallenge rows: line 2 is not a row of numbers"),
        ("1,1,8,16,32,nan\n", "line 1 is not a row of numbers"),
        ("0,1,8,16,32,96\n", "gt.txt, line 1: frames count from 1"),
        ("1,1,8,16,32,96\n9,1,8,16,32,96\n", "gt.txt, line 2: frame 9 of a clip of 4"),
        ("1,1,500,16,32,96\n", "gt.txt, line 1: the box lies outside the frame of 128x128"),
        ("1,1,8,16,32,96,1,3,1\n", "--classes names none of its classes (it has 3)"),
        ("", "no box in it counts"),
    ],
)
def test_a_fault_in_a_clip_s_truth_is_named_with_its_line(
    rows: str, fault: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gt.txt").write_text(rows)
    assert fault in refused(capsys, network, "--clip", clip(tmp_path / "a.mp4"), "--mot", tmp_path / "gt.txt")


def test_a_clip_that_is_broken_is_refused(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gt.txt").write_text("1,1,8,16,32,96\n")
    broken = tmp_path / "a.mp4"
    broken.write_bytes(b"no video")
    err = refused(capsys, network, "--clip", broken, "--mot", tmp_path / "gt.txt")
    assert "a.mp4: it cannot be decoded: " in err
    assert "no such clip" in refused(capsys, network, "--clip", tmp_path / "b.mp4")
    clip(broken)
    assert "a.gt.txt: the truth cannot be read" in refused(capsys, network, "--clip", broken)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--only", "persn"), "--only persn: neither the sets nor the models know this class; did you mean person?"),
        (("--only", "dog"), "--only dog: no set labels it (they have: person)"),
        (("--only", "car"), "--only car: it counts as `vehicle` here"),
        (("--only", "vehicle", "--by-class"), "--only vehicle: not with --by-class"),
        (("--per", "elsewhere"), "--per elsewhere: write NAME=DIR"),
        (("--per", "a=nowhere"), "nowhere: no such folder or clip"),
        (("--classes", "person"), "--classes person: write NUMBER=NAME"),
        (("--mot", "gt.txt"), "--mot to --clip"),
        (("--gate", "nowhere.json"), "nowhere.json: the figures cannot be read"),
    ],
)
def test_wrong_use_is_answered_with_what_would_be_right(
    arguments: tuple[str, ...], fault: str, network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = coco(tmp_path, [label(PERSON, "person")])
    assert fault in refused(capsys, network, "--coco", labels, *arguments)


def test_a_class_that_a_network_cannot_report_is_an_error_and_no_empty_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = tiny_networks.yolo(tmp_path / "people.onnx", [Thing(PERSON, 0.9, 0)], ("person",))
    labels = coco(tmp_path, [label(PERSON, "person"), label(TRUCK, "truck")])
    err = refused(capsys, people, "--coco", labels, "--only", "vehicle")
    assert "--only vehicle: people cannot report it (it knows: person)" in err


def test_a_set_without_a_class_that_a_network_can_report_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = tiny_networks.yolo(tmp_path / "people.onnx", [], ("person",))
    err = refused(capsys, people, "--coco", coco(tmp_path, [label(PERSON, "dog")]))
    assert "the set instances labels nothing that a model here knows (it has: dog)" in err


def test_no_set_no_model_and_names_given_twice_are_refused(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to measure on" in refused(capsys, network)
    labels = coco(tmp_path, [label(PERSON, "person")])
    assert "is named twice" in refused(capsys, network, network, "--coco", labels)
    assert "nowhere.onnx" in refused(capsys, "nowhere.onnx", "--coco", labels)
    err = refused(capsys, network, "--coco", labels, "--per", f"instances={tmp_path}")
    assert "two sets are called `instances`" in err


# The gate


@pytest.fixture
def kept(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Path]:
    """A set, and the figures of the network on it."""
    labels = coco(tmp_path, [label(PERSON, "person"), label(TRUCK, "truck")])
    assert main(["evaluate", network, "--coco", str(labels), "--json"]) == 0
    figures = tmp_path / "figures.json"
    figures.write_text(capsys.readouterr().out)
    return labels, figures


def test_a_network_as_good_as_before_passes_the_gate(
    network: str, kept: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    labels, figures = kept
    assert main(["evaluate", network, "--coco", str(labels), "--gate", str(figures)]) == 0
    assert capsys.readouterr().err == ""


def test_each_figure_that_fell_is_a_line(
    kept: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, figures = kept
    shifted = (PERSON[0] + 8, *PERSON[1:])
    worse = tiny_networks.yolo(tmp_path / "worse.onnx", [Thing(shifted, 0.45, 0), Thing(TRUCK, 0.8, 2)], NAMES)
    assert main(["evaluate", str(worse), "--coco", str(labels), "--gate", str(figures), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["type"] == "vedette.evaluation"
    assert err.splitlines() == [
        "instances, person, worse: AP50:95 fell from 1.000 to 0.600",
        "instances, person, worse: precision fell from 1.000 to nothing was found",
        "instances, person, worse: recall fell from 1.000 to 0.000",
        "instances, person, worse: calibration error rose from 0.100 to 0.550",
    ]
    gate = ["evaluate", str(worse), "--coco", str(labels), "--gate", str(figures)]
    assert main([*gate, "--only", "vehicle"]) == 0
    assert main([*gate, "--only", "person", "--tolerance", "1"]) == 1  # found nothing where something was


def test_a_class_that_is_no_longer_reported_has_fallen(
    kept: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = tiny_networks.yolo(tmp_path / "people.onnx", [Thing(PERSON, 0.9, 0)], ("person",))
    assert main(["evaluate", str(people), "--coco", str(kept[0]), "--gate", str(kept[1])]) == 1
    assert capsys.readouterr().err == "instances, vehicle, tiny: no longer measured\n"


def test_a_gate_of_something_else_is_refused(
    network: str, kept: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, figures = kept

    def gated(*more: str) -> str:
        assert main(["evaluate", network, "--coco", str(labels), "--gate", str(figures), *more]) == 2
        return capsys.readouterr().err

    assert "the figures were made without --by-class" in gated("--by-class")
    coco(tmp_path, [label(PERSON, "person"), label(TRUCK, "truck")], (SEEN, SEEN))
    assert "1 boxes in 1 images then, 1 in 2 now: another set" in gated()
    figures.write_text("{}")
    assert "not figures of `vedette evaluate`; write it with" in gated()


def test_vedette_nano_is_not_worse_on_the_rendered_clips_than_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are kept; fixtures/README.md has the command that writes them anew."""
    clips = ROOT / "fixtures" / "clips"
    views = [part for name in ("yard", "gate") for part in ("--per", f"{name}={clips / name}.mp4")]
    gate = ["--gate", str(ROOT / "fixtures" / "evaluation.json"), "--tolerance", "0.02"]
    options = ["--classes", "1=person,2=car", "--every", "15"]
    assert main(["evaluate", "vedette-nano", *views, *options, *gate]) == 0, capsys.readouterr().err
