"""The figures an integrator reads of a detector on footage of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.types import Detections
from models import evaluate
from models.evaluation import arithmetic, sets
from models.evaluation.arithmetic import Judged, figures
from models.evaluation.sets import SetFault
from models.train import dataset
from tests.support.scripted_sources import clip

FEMTO = "deimv2_hgnetv2_femto_coco_416.onnx"


class Scripted:
    """A detector that answers what it was told, picture after picture."""

    name = "scripted"
    warning = ""
    labels: tuple[str, ...] = ("person", "car")

    def __init__(self, answers: Sequence[Detections]) -> None:
        self._answers = list(answers)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [self._answers.pop(0) for _ in pictures]


def scattered(rng: np.random.Generator, pictures: int) -> list[Judged]:
    """Random truth; answers near most of it, some double, some wrong; some truth that does not count."""
    rows = []
    for _ in range(pictures):
        count = int(rng.integers(0, 6))
        corner, side = rng.uniform(0, 300, (count, 2)), rng.uniform(10, 120, (count, 2))
        truth = np.concatenate([corner, corner + side], 1)
        near = np.repeat(truth, 2, axis=0) + rng.normal(0, 6, (2 * count, 4))
        wrong = rng.uniform(0, 300, (2, 2))
        found = np.concatenate([near, np.concatenate([wrong, wrong + 40], 1)])
        names = ("person",) * count, ("person",) * len(found)
        rows.append(
            Judged(truth, names[0], rng.uniform(size=count) < 0.2, found, names[1], rng.uniform(size=len(found)))
        )
    return rows


def found(boxes: Sequence[Sequence[float]], scores: Sequence[float], classes: Sequence[int]) -> Detections:
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes, np.int32)
    )


def test_perfect_and_blind_detectors() -> None:
    box = np.array([[0.0, 0, 10, 20]])
    perfect = arithmetic.match([(box, np.array([0.9]))], [box], [np.zeros((0, 4))])
    blind = arithmetic.match([(np.zeros((0, 4)), np.zeros(0))], [box], [np.zeros((0, 4))])
    nobody = arithmetic.match([(box, np.array([0.9]))], [np.zeros((0, 4))], [np.zeros((0, 4))])
    assert arithmetic.average_precision(perfect) == 1.0
    assert arithmetic.average_precision(blind) == 0.0
    assert np.isnan(arithmetic.average_precision(nobody))
    assert arithmetic.best_threshold(perfect) == arithmetic.Working(0.9, 1.0, 1.0, 1.0)


def test_an_answer_on_a_doubtful_region_counts_neither_way() -> None:
    box, doubtful = np.array([[0.0, 0, 10, 20]]), np.array([[50.0, 0, 90, 90]])
    both = np.array([[55.0, 5, 70, 60], [0, 0, 10, 20]])
    matched = arithmetic.match([(both, np.array([0.9, 0.5]))], [box], [doubtful])
    assert arithmetic.average_precision(matched) == 1.0
    assert matched.void.tolist() == [True, False]


def test_recall_is_told_by_height_at_the_threshold() -> None:
    truth = np.array([[0.0, 0, 10, 12], [50, 0, 60, 14], [100, 0, 120, 80]])
    matched = arithmetic.match([(truth[[0, 2]], np.array([0.3, 0.9]))], [truth], [np.zeros((0, 4))])
    assert arithmetic.recall_by_height(matched, (0, 16, 100), 0.2) == [(0, 16, 2, 0.5), (16, 100, 1, 1.0)]
    assert arithmetic.recall_by_height(matched, (0, 16, 100), 0.5) == [(0, 16, 2, 0.0), (16, 100, 1, 1.0)]


@pytest.mark.parametrize("seed", range(4))
def test_our_arithmetic_is_that_of_pycocotools(seed: int) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools comes with the extras `dev` and `train`")
    from models.evaluation.arithmetic import figures

    judged = scattered(np.random.default_rng(seed), 40)
    theirs = figures(judged, ["person"])[0]
    answers = [(each.found, each.scores) for each in judged]
    truth, crowd = [each.truth[~each.crowd] for each in judged], [each.truth[each.crowd] for each in judged]
    ours = arithmetic.average_precision(arithmetic.match(answers, truth, crowd))
    assert 0.2 < theirs.ap50 < 0.9
    assert ours == pytest.approx(theirs.ap50, abs=0.005)


def test_a_coco_set_is_measured_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools comes with the extras `dev` and `train`")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 200, 3), np.uint8))
    labels = [
        {"id": 1, "image_id": 7, "category_id": 3, "bbox": [20, 10, 40, 80]},
        {"id": 2, "image_id": 7, "category_id": 9, "bbox": [100, 10, 40, 40]},
        {"id": 3, "image_id": 7, "category_id": 4, "bbox": [0, 0, 5, 5]},
    ]
    names = [{"id": 3, "name": "Pedestrian"}, {"id": 9, "name": "van"}, {"id": 4, "name": "boat"}]
    table = {"images": [{"id": 7, "file_name": "a.png"}], "annotations": labels, "categories": names}
    (tmp_path / "set.json").write_text(json.dumps(table))
    eye = Scripted([found([[0.1, 0.1, 0.3, 0.9], [0.5, 0.5, 0.6, 0.6]], [0.9, 0.8], [0, 1])])
    monkeypatch.setattr(evaluate.detector_loader, "load", lambda settings: eye)
    arguments = [
        "x.onnx",
        "--coco",
        str(tmp_path / "set.json"),
        "--rename",
        "van=car",
        "--json",
        str(tmp_path / "o.json"),
    ]
    assert evaluate.main(arguments) == 0
    written = json.loads((tmp_path / "o.json").read_text())
    assert {each["name"]: each["ap50"] for each in written["classes"]} == {"car": 0.0, "person": 1.0}
    assert written["classes"][1]["threshold"] == 0.9
    assert (written["pictures"], written["ap50"]) == (1, 0.5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "persn"], "--only persn: the set labels boat"),
        (["--only", "boat"], "nothing to measure: the set labels boat, of which"),
        (["--json", "nowhere/o.json"], "--json nowhere/o.json: No such file or directory"),
    ],
)
def test_a_measurement_that_leaves_no_figures_is_a_fault(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 200, 3), np.uint8))
    name = "boat" if "--only" in words else "person"
    table = {
        "images": [{"id": 7, "file_name": "a.png"}], "categories": [{"id": 3, "name": name}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [20, 10, 40, 80]}],
    }  # fmt: skip
    (tmp_path / "set.json").write_text(json.dumps(table))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        evaluate.detector_loader, "load", lambda settings: Scripted([found([[0.1, 0.1, 0.3, 0.9]], [0.9], [0])])
    )
    assert evaluate.main(["x.onnx", "--coco", "set.json", *words]) == 2
    assert told in capsys.readouterr().err


def test_classes_may_be_written_as_people_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 200, 3), np.uint8))
    boxes = [{"id": n, "image_id": 7, "category_id": n, "bbox": [20, 10, 40, 80]} for n in (1, 2)]
    table = {
        "images": [{"id": 7, "file_name": "a.png"}], "annotations": boxes,
        "categories": [{"id": 1, "name": "pedestrian"}, {"id": 2, "name": "car"}],
    }  # fmt: skip
    (tmp_path / "set.json").write_text(json.dumps(table))
    monkeypatch.setattr(
        evaluate.detector_loader, "load", lambda settings: Scripted([found([[0, 0, 1, 1]], [0.9], [0])])
    )
    assert evaluate.main(["x.onnx", "--coco", str(tmp_path / "set.json"), "--only", "Pedestrian, car"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in ("person", "car"))


@pytest.mark.parametrize(("degrees", "bright"), [(0, "left"), (90, "bottom"), (-90, "top"), (180, "right")])
def test_a_film_that_lies_on_its_side_is_measured_as_it_is_shown(tmp_path: Path, degrees: int, bright: str) -> None:
    """People label, and the appliance examines, what a player shows of a film of a telephone."""
    with av.open(str(tmp_path / "plain.mp4"), "w") as out:
        stream = out.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        picture = np.zeros((32, 64, 3), np.uint8)
        picture[:, :32] = 255
        for _ in range(3):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "bgr24")))
        out.mux(stream.encode(None))
    with av.open(str(tmp_path / "plain.mp4")) as source, av.open(str(tmp_path / "film.mp4"), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0], opaque=True)
        if degrees:
            stream.set_display_rotation(degrees)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    (tmp_path / "gt.txt").write_text("1,1,1,1,4,8,1,1,1\n")
    first = next(
        sets.mot(tmp_path / "film.mp4", tmp_path / "gt.txt", {1: "person"}, 1, lambda width, height: (width, height))
    )
    seen = first.pixels.mean(axis=2)
    halves = {"left": seen[:, : seen.shape[1] // 2], "right": seen[:, seen.shape[1] // 2 :],
              "top": seen[: seen.shape[0] // 2], "bottom": seen[seen.shape[0] // 2 :]}  # fmt: skip
    assert first.size == ((32, 64) if degrees % 180 else (64, 32)) == seen.shape[::-1]
    assert max(halves, key=lambda half: float(halves[half].mean())) == bright


@pytest.mark.parametrize("words", [["--every", "0"], ["--threads", "0"]])
def test_numbers_that_cannot_be_are_wrong_use(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main(["x.onnx", "--mot", "clip.mp4", *words])


def test_what_is_no_number_of_a_class_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate.detector_loader, "load", lambda settings: Scripted([]))
    assert evaluate.main(["x.onnx", "--mot", "clip.mp4", "--classes", "person=1"]) == 2
    assert "--classes: `person` is no number" in capsys.readouterr().err


def test_yolo_rows_may_be_boxes_or_polygons(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    cv2.imwrite(str(tmp_path / "images" / "a.jpg"), np.zeros((100, 200, 3), np.uint8))
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.3 0.1 0.2 0.5\n")
    (tmp_path / "data.yaml").write_text("names: {0: person, 1: car}\n")
    with (tmp_path / "labels" / "a.txt").open("a") as file:
        file.write("\n")  # some tools end a file so
    (picture,) = sets.yolo(tmp_path, sets.yolo_names(tmp_path / "data.yaml"))
    assert picture.names == ("person", "car")
    assert np.allclose(picture.boxes, [[80, 30, 120, 70], [20, 10, 60, 50]])
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.4\n2 0.5 0.5 0.1 0.1\n")
    with pytest.raises(SetFault, match=r"a\.txt, line 2: class 2 has no name"):
        list(sets.yolo(tmp_path, ["person", "car"]))


@pytest.mark.shared
def test_the_teacher_scores_on_pets_what_is_known_of_it(shared_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools comes with the extras `dev` and `train`")
    clip = shared_data / "footage" / "pets09_s2l1_vtest_768x576.mp4"
    truth = shared_data / "groundtruth" / "pets09_s2l1" / "gt.txt"
    out = tmp_path / "figures.json"
    arguments = [str(shared_data / "models" / FEMTO), "--mot", str(clip), "--gt", str(truth)]
    assert evaluate.main([*arguments, "--every", "10", "--json", str(out)]) == 0
    person = json.loads(out.read_text())["classes"][0]
    assert person["boxes"] == 467
    assert person["ap50"] == pytest.approx(0.907, abs=0.006)


def test_an_answer_on_what_has_no_name_counts_for_no_class() -> None:
    """A statue, a mirror's picture: labelled so that finding them is no mistake."""
    pytest.importorskip("pycocotools", reason="pycocotools comes with the extras `dev` and `train`")
    truth = np.array([[0, 0, 10, 20.0], [50, 0, 60, 20.0]])
    seen = Judged(truth, ("person", ""), np.array([False, True]), truth, ("person",) * 2, np.array([0.5, 0.9]))
    (row,) = figures([seen], ["person"])
    assert (row.boxes, row.ap50, row.precision, row.recall) == (1, pytest.approx(1.0), 1.0, 1.0)


def test_regions_to_ignore_are_ignored_for_all_that_they_are_mistaken_for(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 200, 3), np.uint8))
    any_class, car = dataset.Label(dataset.ANY, 0, 0, 0.5, 0.5), dataset.Label(2, 0.5, 0.5, 1, 1)
    person = (dataset.Label(0, 0.2, 0.2, 0.3, 0.6),)
    entry = dataset.Entry("a.png", "", "0" * 16, 200, 100, person, (any_class, car), "site", "val")
    dataset.write(tmp_path, [entry])
    (picture,) = sets.assembled(tmp_path, "val")
    ignored = [name for name, crowd in zip(picture.names, picture.crowd, strict=True) if crowd]
    assert ignored == [*dataset.CLASSES, "car", "bus", "truck"]
    assert picture.names[0] == "person"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1,1,10,10,20,20,1,1,1\n\n", ""),
        ("1,1,10,10,20,20,1,1\n", r"gt\.txt, line 1: not a row of nine numbers"),
        ("\n1,1,ten,10,20,20,1,1,1\n", r"gt\.txt, line 2: not a row of nine numbers"),
    ],
)
def test_a_truth_with_a_torn_row_is_a_fault_and_an_empty_line_none(text: str, told: str, tmp_path: Path) -> None:
    film, truth = clip(tmp_path / "a.mp4", 2, fps=5, gop=2), tmp_path / "gt.txt"
    truth.write_text(text)
    pictures = sets.mot(film, truth, {1: "person"}, 1, lambda width, height: (width, height))
    if told:
        with pytest.raises(SetFault, match=told):
            next(pictures)
    else:
        assert [each.names for each in pictures] == [("person",), ()]


@pytest.mark.parametrize(("every", "last", "told"), [(1, 6, False), (1, 7, True), (4, 8, False), (4, 9, True)])
def test_a_film_that_is_shorter_than_its_truth_is_not_measured(
    every: int, last: int, told: bool, tmp_path: Path
) -> None:
    film, truth = clip(tmp_path / "a.mp4", 6, fps=5, gop=2), tmp_path / "gt.txt"
    truth.write_text(f"{last},1,10,10,20,20,1,1,1\n")
    pictures = sets.mot(film, truth, {1: "person"}, every, lambda width, height: (width, height))
    if told:
        with pytest.raises(SetFault, match=rf"it has frame {last}, and .*a\.mp4 ends or breaks off"):
            list(pictures)
    else:
        assert len(list(pictures)) == len(range(0, 6, every))
