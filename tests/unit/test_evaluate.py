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

from appliance.detect import detector_loader
from appliance.lab.detection_figures import ClassBoxes, detection_figures
from appliance.types import Detections
from models import evaluate
from models.evaluation import arithmetic, kinds, sets
from models.evaluation.arithmetic import Judged
from models.evaluation.sets import SetFault
from models.train import dataset, sources


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


def test_an_answer_on_a_doubtful_region_counts_neither_way() -> None:
    box, doubtful = np.array([[0.0, 0, 10, 20]]), np.array([[50.0, 0, 90, 90]])
    both = np.array([[55.0, 5, 70, 60], [0, 0, 10, 20]])
    matched = arithmetic.match([(both, np.array([0.9, 0.5]))], [box], [doubtful])
    assert arithmetic.average_precision(matched) == 1.0
    assert matched.void.tolist() == [True, False]


@pytest.mark.parametrize("seed", range(4))
def test_our_arithmetic_is_that_of_the_product(seed: int) -> None:
    """The product's is held to pycocotools' in test_evaluate_command.py."""
    judged = scattered(np.random.default_rng(seed), 40)
    theirs = detection_figures([ClassBoxes(each.truth, each.crowd, each.found, each.scores) for each in judged])
    ours = kinds.figure("val", "person", ("person",), judged, rounds=0)
    assert 0.2 < theirs.ap50 < 0.9
    wanted = (theirs.ap50, theirs.ap50_95, theirs.ap70, theirs.recall)
    assert (ours.ap50, ours.ap, ours.ap70, ours.recall) == pytest.approx(wanted)


def write_set(folder: Path) -> Path:
    """A set with one held-back picture: a person on the left, a lorry on the right."""
    cv2.imwrite(str(folder / "a.png"), np.zeros((100, 200, 3), np.uint8))
    labels = (dataset.Label(0, 0.1, 0.1, 0.3, 0.9), dataset.Label(5, 0.5, 0.1, 0.7, 0.5))
    dataset.write(folder, [dataset.Entry("a.png", "", "0" * 16, 200, 100, labels, (), "site", "val")])
    return folder


@pytest.fixture
def eye(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector that finds the person, and takes something else for a car."""
    answer = found([[0.1, 0.1, 0.3, 0.9], [0.5, 0.5, 0.6, 0.6]], [0.9, 0.8], [0, 1])
    monkeypatch.setattr(detector_loader, "load", lambda settings: Scripted([answer]))


@pytest.mark.usefixtures("eye")
def test_a_set_is_measured_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["x.onnx", "--index", str(write_set(tmp_path)), "--json", str(tmp_path / "o.json")]
    assert evaluate.main(asked) == 0
    assert "The detector does not know: truck (left out)" in capsys.readouterr().out
    written = json.loads((tmp_path / "o.json").read_text())
    assert [(each["name"], each["ap50"], each["pictures"]) for each in written["classes"]] == [("person", 1.0, 1)]


@pytest.mark.usefixtures("eye")
def test_classes_that_are_merged_count_as_one(tmp_path: Path) -> None:
    asked = ["x.onnx", "--index", str(write_set(tmp_path)), "--json", str(tmp_path / "o.json")]
    assert evaluate.main([*asked, "--merge", "vehicle=car,bus,truck"]) == 0
    written = json.loads((tmp_path / "o.json").read_text())
    assert {each["name"]: each["ap50"] for each in written["classes"]} == {"person": 1.0, "vehicle": 0.0}


@pytest.mark.usefixtures("eye")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "persn"], "--only persn: the set labels person, truck"),
        (["--only", "truck"], "nothing to measure: the set labels person, truck, of which"),
        (["--json", "nowhere/o.json"], "--json nowhere/o.json: No such file or directory"),
        (["--merge", "vehicle"], "--merge vehicle: NEW=A,B"),
    ],
)
def test_a_measurement_that_leaves_no_figures_is_a_fault(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_set(tmp_path))
    assert evaluate.main(["x.onnx", "--index", ".", *words]) == 2
    assert told in capsys.readouterr().err


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
    _, pixels, size = next(sources.frames(tmp_path / "film.mp4", 1))
    seen = pixels.mean(axis=2)
    halves = {"left": seen[:, : seen.shape[1] // 2], "right": seen[:, seen.shape[1] // 2 :],
              "top": seen[: seen.shape[0] // 2], "bottom": seen[seen.shape[0] // 2 :]}  # fmt: skip
    assert size == ((32, 64) if degrees % 180 else (64, 32)) == seen.shape[::-1]
    assert max(halves, key=lambda half: float(halves[half].mean())) == bright


def test_a_number_that_cannot_be_is_wrong_use() -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main(["x.onnx", "--index", "set", "--threads", "0"])


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


def test_an_answer_on_what_has_no_name_counts_for_no_class() -> None:
    """A statue, a mirror's picture: labelled so that finding them is no mistake."""
    truth = np.array([[0, 0, 10, 20.0], [50, 0, 60, 20.0]])
    seen = Judged(truth, ("person", ""), np.array([False, True]), truth, ("person",) * 2, np.array([0.5, 0.9]))
    row = kinds.figure("val", "person", ("person",), [seen])
    assert (row.boxes, row.ap50, row.recall) == (1, pytest.approx(1.0), 1.0)


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
