"""The ingest process re-checks its recording, close up, when the detector is idle; a failure is no finding."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import DetectorError
from appliance.base.json_lines import decode_command, decode_ingest, encode_command, encode_ingest
from appliance.inference.inference_worker import IdleDetector, InferenceWorker
from appliance.media.stills import CONTEXT, crop_region
from appliance.recheck.service import ImageDetector
from appliance.recheck.worker import WAITING_MAX, RecheckWorker, crop_context, crop_image, crop_size, found_objects
from appliance.store.database import Database
from appliance.types import (
    Command,
    CropRequest,
    Detections,
    FootageSpan,
    RebaselineCommand,
    RecheckCommand,
    RecheckResult,
)
from tests.support.recheck_yard import FPS, PATH, record, walk
from tests.support.waiting import until

T0 = 1_700_000_000.0


class ScriptedDetector:
    """Finds one person in the middle of every frame, a little to the left, or fails."""

    name, labels, warning, shape_step = "eye", ("person",), "", 32

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.seen: list[NDArray[np.uint8]] = []
        self.gate = threading.Event()
        self.gate.set()

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return 416, 416 * height // width

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        assert self.gate.wait(60)
        self.seen += images
        if self.error:
            raise DetectorError(self.error)
        box = np.array([[0.3, 0.3, 0.5, 0.7]], np.float32)
        return [Detections(box, np.array([0.8], np.float32), np.array([0], np.int32)) for _ in images]


def command_for(*frames: int, path: str = PATH) -> RecheckCommand:
    boxes = walk()
    return RecheckCommand(
        id="a1.1",
        camera="gate",
        glimpses=tuple(CropRequest(t=T0 + frame / FPS, box=boxes[frame]) for frame in frames),
        footage=(FootageSpan(path=path, t_start=T0, t_end=T0 + 62.0),),
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    record(tmp_path, db, T0)
    db.close()
    return tmp_path


def test_the_object_is_cut_out_of_the_recording_crop_image(root: Path) -> None:
    detector, frames = ScriptedDetector(), sorted(walk())
    result = RecheckWorker(root, lambda: detector, print, SystemClock()).recheck(command_for(frames[9], frames[12]))
    assert (result.error, result.model, len(result.sightings)) == ("", "eye", 2)
    assert [picture.shape for picture in detector.seen] == [(288, 288, 3)] * 2, "what the network sees it best in"
    for crop in result.sightings:
        (found,) = crop.found
        middle, seen_at = (crop.box[0] + crop.box[2]) / 2, (found.box[0] + found.box[2]) / 2
        side = 2.5 * (crop.box[3] - crop.box[1]) * 540 / 960
        assert seen_at == pytest.approx(middle - 0.1 * side, abs=0.01), "as far left of the middle as in the crop"
    assert result == decode_ingest(encode_ingest(result)), "boxes and words are all that leaves"


@pytest.mark.parametrize(
    ("label", "enough", "examined"), [("person", 0.7, 1), ("person", 0.9, 3), ("car", 0.7, 3), ("", 0.7, 3)]
)
def test_a_first_crop_that_is_sure_of_the_object_spares_the_others(
    root: Path, label: str, enough: float, examined: int
) -> None:
    detector, command = ScriptedDetector(), command_for(*sorted(walk())[9:12])
    wide = tuple(  # enough for what the network finds left of the middle to be at the object's place
        replace(each, box=(each.box[0] - 0.04, each.box[1], each.box[2] + 0.04, each.box[3]))
        for each in command.glimpses
    )
    command = replace(command, glimpses=wide, label=label, enough=enough)
    result = RecheckWorker(root, lambda: detector, print, SystemClock()).recheck(command)
    assert (result.error, len(result.sightings), len(detector.seen)) == ("", examined, examined)
    assert [each.t for each in result.sightings] == [each.t for each in command.glimpses[:examined]]


def test_a_crop_lies_in_the_frame_and_its_boxes_are_of_the_whole() -> None:
    region = crop_region((0.0, 0.5, 0.05, 0.7), 1000, 500, crop_context(32))
    assert region == (0, 175, round(0.2 * 500 * CONTEXT), 425)
    picture = crop_image(np.zeros((500, 1000, 3), np.uint8), region, (416, 416))
    assert picture.shape == (416, 416, 3)
    all_of_it = Detections(np.array([[0, 0, 1, 1]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32))
    (found,) = found_objects(all_of_it, ("person",), region, (1000, 500))
    assert found.box == (0.0, 0.35, 0.25, 0.85)


def test_an_object_is_as_large_in_an_input_of_fixed_size_as_in_a_free_one() -> None:
    box = (0.45, 0.4, 0.5, 0.6)
    free, fixed = (crop_region(box, 1000, 1000, crop_context(step)) for step in (32, 0))
    assert (crop_size((416, 416), 32), crop_size((416, 416), 0)) == ((288, 288), (416, 416))
    assert 288 / (free[2] - free[0]) == pytest.approx(416 / (fixed[2] - fixed[0]), rel=0.02)
    assert crop_size((416, 208), 32) == (288, 144), "proportions stay"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (command_for(180, path="segments/gate/gone.mp4"), "gone.mp4"),
        (command_for(180, path="../outside.mp4"), "leads out of"),
        (command_for(), "asks for nothing"),
        (
            RecheckCommand(
                id="x",
                camera="gate",
                glimpses=(CropRequest(t=T0 + 900, box=(0.1, 0.1, 0.2, 0.2)),),
                footage=(FootageSpan(path=PATH, t_start=T0, t_end=T0 + 62.0),),
            ),
            "does not hold",
        ),
    ],
    ids=["the file is gone", "a path that leads out", "nothing", "a moment that is not recorded"],
)
def test_what_cannot_be_rechecked_fails_with_the_reason(root: Path, command: RecheckCommand, words: str) -> None:
    result = RecheckWorker(root, ScriptedDetector, print, SystemClock()).recheck(command)
    assert words in result.error
    assert result.sightings == ()


def test_a_recheck_goes_without_a_frame_that_is_not_recorded(root: Path) -> None:
    whole = command_for(sorted(walk())[9])
    command = replace(whole, glimpses=(*whole.glimpses, CropRequest(t=T0 + 900, box=(0.1, 0.1, 0.2, 0.2))))
    result = RecheckWorker(root, ScriptedDetector, print, SystemClock()).recheck(command)
    assert (result.error, [each.t for each in result.sightings]) == ("", [whole.glimpses[0].t])


def test_a_failed_detection_is_no_finding(root: Path) -> None:
    result = RecheckWorker(root, lambda: ScriptedDetector("out of memory"), print, SystemClock()).recheck(
        command_for(sorted(walk())[0])
    )
    assert "out of memory" in result.error
    assert result.sightings == ()


def test_too_many_commands_are_refused_at_once(root: Path) -> None:
    results: list[RecheckResult] = []
    worker = RecheckWorker(root, ScriptedDetector, results.append, SystemClock())
    for _ in range(WAITING_MAX + 1):
        worker.submit(command_for(180))
    assert [result.error for result in results] == ["too many second looks are under way"]


def test_every_command_is_answered_once_by_a_thread_of_its_own(root: Path) -> None:
    results: list[RecheckResult] = []
    worker = RecheckWorker(root, ScriptedDetector, results.append, SystemClock())
    worker.start()
    worker.submit(command_for(sorted(walk())[0]))
    until(lambda: len(results) == 1)
    worker.stop()
    assert results[0].error == ""


@pytest.fixture
def idle_worker() -> Iterator[tuple[InferenceWorker, ScriptedDetector]]:
    """The detector's thread with no camera to look at."""
    detector = ScriptedDetector()
    worker = InferenceWorker(detector, [], SystemClock())
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield worker, detector
    detector.gate.set()
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_an_idle_detector_examines_what_waits(idle_worker: tuple[InferenceWorker, ScriptedDetector]) -> None:
    idle = idle_worker[0].idle_detector
    assert len(idle.detect([np.zeros((96, 96, 3), np.uint8)])[0]) == 1
    assert idle_worker[0].load() == 0.0, "the cameras' load is not that of re-checks"
    idle_worker[1].error = "broken"
    with pytest.raises(DetectorError, match="broken"):
        idle.detect([np.zeros((96, 96, 3), np.uint8)])
    idle_worker[1].error = ""
    assert len(idle.detect([np.zeros((96, 96, 3), np.uint8)])) == 1, "one that failed stops nothing"


def test_without_a_result_in_time_detection_fails() -> None:
    idle = IdleDetector(ScriptedDetector(), wait_s=0.01)
    with pytest.raises(DetectorError, match="had no time"):
        idle.detect([np.zeros((8, 8, 3), np.uint8)])
    assert not idle.run_once(), "and it does not lie about for later"
    idle.stop()
    with pytest.raises(DetectorError, match="stops"):
        idle.detect([np.zeros((8, 8, 3), np.uint8)])


def test_a_bug_of_a_model_is_resultsas_a_failure() -> None:
    class Bug(ScriptedDetector):
        def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            raise RuntimeError("bug")

    idle, heard = IdleDetector(Bug()), []

    def ask() -> None:
        with pytest.raises(DetectorError, match="the detector failed"):
            idle.detect([np.zeros((8, 8, 3), np.uint8)])
        heard.append(True)

    thread = threading.Thread(target=ask)
    thread.start()

    def turn() -> bool:
        try:
            return idle.run_once()
        except RuntimeError:
            return True

    until(turn)
    thread.join(20)
    assert heard


@pytest.mark.parametrize("command", [command_for(180), RebaselineCommand(camera="gate", kind="moved")])
def test_commands_cross_the_channel_whole(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_pictures_of_a_command_are_detected_in_whole_and_one_that_is_none_is_a_reason(tmp_path: Path) -> None:
    eye, answers = ScriptedDetector(), list[RecheckResult]()
    worker = RecheckWorker(tmp_path, lambda: eye, answers.append, SystemClock())
    drawn = base64.b64encode(cv2.imencode(".jpg", np.full((240, 320, 3), 99, np.uint8))[1].tobytes()).decode()
    command = RecheckCommand(id="picture.1", camera="gate", glimpses=(), footage=(), images=(drawn, drawn))
    assert decode_command(encode_command(command)) == command
    found = worker.recheck(command)
    assert [each.shape for each in eye.seen] == [(312, 416, 3)] * 2
    assert [(each.t, each.found[0].box) for each in found.sightings] == [(n, (0.3, 0.3, 0.5, 0.7)) for n in (0.0, 1.0)]
    broken = worker.recheck(replace(command, images=(base64.b64encode(b"none").decode(),)))
    assert (broken.error, broken.sightings) == ("a picture cannot be read", ())


def test_an_answer_finds_who_asked_and_a_process_that_is_gone_is_said() -> None:
    sent: list[RecheckCommand] = []

    def send(command: RecheckCommand) -> bool:
        sent.append(command)
        return asking.receive(RecheckResult(id=command.id, camera=command.camera, model="eye"))

    asking = ImageDetector(send)
    assert asking.detect("gate", [b"jpeg"]).model == "eye"
    assert sent[0].images == (base64.b64encode(b"jpeg").decode(),)
    assert not asking.receive(RecheckResult(id="a1.1", camera="gate")), "that one is for the re-checks of alerts"
    assert ImageDetector(lambda command: False).detect("gate", []).error == "the ingest process does not run"
