"""False persons where nobody is: what counts, what a stopped command goes on with, and scenes without people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.errors import UsageError
from appliance.types import Detections
from fixtures.render.family.make import SCENES
from models.evaluation import empty
from models.evaluation.public import Pixels

HERE, THERE = (0.1, 0.1, 0.2, 0.4), (0.6, 0.1, 0.7, 0.4)


class Scripted:
    """Takes something at HERE for a person in the looks that it is told of, and a dog at THERE in all."""

    name = "scripted"
    warning = ""
    labels: tuple[str, ...] = ("person", "dog")

    def __init__(self, looks: Sequence[int], score: float = 0.7) -> None:
        self._looks, self._score, self.seen = looks, score, 0

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        person = self.seen in self._looks
        self.seen += 1
        boxes = np.array([HERE, THERE][0 if person else 1 :], np.float32)
        scores = np.array([self._score, 0.9][0 if person else 1 :], np.float32)
        return [Detections(boxes, scores, np.array([0, 1][0 if person else 1 :], np.int32)) for _ in frames]


def pictures(count: int) -> Iterator[Pixels]:
    return (np.zeros((36, 64, 3), np.uint8) for _ in range(count))


@pytest.mark.parametrize(
    ("looks", "score", "answers", "stays"),
    [
        ((), 0.7, 0, 0),
        ((1, 3, 5), 0.7, 3, 0),  # never two after one another
        ((1, 2, 3, 4), 0.7, 4, 1),  # one thing that stays counts once
        ((0, 1, 2, 5, 6, 7), 0.7, 6, 2),
        ((1, 2, 3), 0.49, 0, 0),
    ],
)
def test_a_false_person_that_stays_counts_once(looks: tuple[int, ...], score: float, answers: int, stays: int) -> None:
    (found,) = empty.count({"net": Scripted(looks, score)}, "real", "yard", 2.0, pictures(9))
    assert (found.looks, found.answers, found.stays) == (9, answers, stays)
    assert found.worst == pytest.approx(score if looks else 0.0)


def test_the_command_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    eyes, stops = [Scripted((0, 1, 2)), Scripted(())], [True, False]

    def sources(*_: object) -> Iterator[tuple[str, str, float, Iterator[Pixels]]]:
        for name in ("a", "b", "c"):
            if stops[0] and name == "c":
                raise UsageError("stopped")
            yield "rendered", name, 1800.0, pictures(4)

    monkeypatch.setattr(empty, "sources", sources)
    monkeypatch.setattr(empty, "named", lambda _model: "net@12345678")
    monkeypatch.setattr(empty, "load", lambda _model: eyes[0])
    log = tmp_path / "empty.jsonl"
    assert empty.main(["net", "--log", str(log)]) == 2
    del eyes[0], stops[0]
    assert empty.main(["net", "--log", str(log)]) == 0
    assert eyes[0].seen == 4  # only c was left
    assert "| net@12345678 | rendered | 1.50 | 12 | 3 | 1 | 0.70 |" in capsys.readouterr().out


def test_each_rate_of_looks_has_a_row_of_its_own() -> None:
    passes = [
        empty.Pass(kind="real", name=name, network="net", seconds=1800.0, looks=9, answers=1, stays=0, worst=0.6)
        for name in ("a", "b", "a@1")
    ]
    assert empty.text(passes).splitlines()[2:] == [
        "| net | real | 1.00 | 18 | 2 | 0 | 0.60 |",
        "| net | real@1 | 0.50 | 9 | 1 | 0 | 0.60 |",
    ]


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_a_picture_that_is_none_is_named_and_not_left_out(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Files:
        def names(self) -> list[str]:
            return ["highway/input/in1.jpg"]

        def read(self, name: str) -> bytes:
            return content

    monkeypatch.setattr(empty, "find", lambda *_: Files())
    _, _, shown = next(empty.real(Path("clones")))
    with pytest.raises(UsageError, match=r"in1\.jpg: not a picture"):
        list(shown)


def test_a_rendered_scene_has_no_people_and_its_cars_and_weather_stay() -> None:
    take = SCENES["vehicles"]()
    firsts = []
    for name, seconds, frames in empty.rendered("vehicles", take, (1, 2)):
        assert (name, seconds) == (f"vehicles-{len(firsts) + 1}", take.seconds)
        firsts.append(next(frames).astype(float))
    assert firsts[0].shape == (take.camera.height, take.camera.width, 3)
    assert firsts[0].std() > 10
    assert 0.5 < np.abs(firsts[0] - firsts[1]).mean() < 10, "the same place under another grain"


def test_a_scene_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="no such scene; there are day"):
        next(empty.sources(None, 1, ["nowhere"]))


def test_fewer_looks_a_second_are_fewer_pictures_and_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    blank = np.zeros((4, 4, 3), np.uint8)
    monkeypatch.setattr(empty, "Studio", lambda _take: None)
    monkeypatch.setattr(empty, "film", lambda take, numbers, _studio: ((number, blank, ()) for number in numbers))
    often, seldom = (next(empty.sources(None, 1, ["vehicles"], looks)) for looks in (empty.LOOKS_A_SECOND, 1.0))
    assert (often[1], seldom[1], often[2]) == ("vehicles-0", "vehicles-0@1", seldom[2])
    shown = [len(list(pictures)) for *_, pictures in (often, seldom)]
    assert shown[1] == round(seldom[2])
    assert shown[0] == pytest.approx(5 * shown[1], abs=5)
