"""Detectors run ahead on several threads; what follows is done as if each frame had waited for the one before."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input, workers_for
from appliance.replay.replay_runner import QUEUED_PER_WORKER, OrderedExecutor, play
from appliance.types import Detections
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay
from tests.support.waiting import until


class Uneven(BrightBlock):
    """Several may ask at once. Every other answer is held back until the one after it is there.

    State: how many looks it has begun, and which are answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._begun = 0
        self.overtaken = 0
        self.at_once = 0
        self._inside = 0
        self._done: set[int] = set()

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
            self._inside += 1
            self.at_once = max(self.at_once, self._inside)
        if number % 2 == 0 and self._wait_for(number + 1):
            self.overtaken += 1
        found = [self._look(image) for image in images]
        with self._lock:
            self._inside -= 1
            self._done.add(number)
            self._answered.notify_all()
        return found

    def _wait_for(self, number: int) -> bool:
        """False where it is not submitted for within a while: the replay waits for this one before it decides."""
        with self._answered:
            return self._answered.wait_for(lambda: number in self._done, 0.2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walks in, stands still for longer than the gate remembers, walks out; then nothing for a while."""

    def left(t: float) -> float | None:
        if t < 1 or t > 10:
            return None
        return 0.1 + 0.25 * min(t - 1, 2.0) if t < 8 else 0.6 - 0.25 * (t - 8)

    return block_clip(tmp_path_factory.mktemp("films") / "stand.mp4", 14, left)


def log_of(clip: Path, workers: int, detector: BrightBlock) -> bytes:
    log = io.BytesIO()
    replay(clip, site().for_decisions(), "gate", detector, log, clock=ManualClock(), workers=workers)
    return log.getvalue()


def test_answers_that_come_in_another_order_change_nothing(clip: Path) -> None:
    alone = log_of(clip, 1, BrightBlock())
    uneven = Uneven()
    assert log_of(clip, 2, uneven) == alone
    assert uneven.overtaken > 5, "the detector was to be submitted ahead"
    assert uneven.at_once == 2
    assert {log_of(clip, workers, BrightBlock()) for workers in (2, 3, 4, 8)} == {alone}


class Slow(BrightBlock):
    """Answers long after the next frames are decoded."""

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        threading.Event().wait(0.03)
        return [self._look(image) for image in images]


def test_a_frame_whose_selection_depends_on_detections_before_waits_for_them(tmp_path: Path) -> None:
    """Who has always stood there is followed though nothing moves, and looked at each second while the gate is calm."""
    standing = block_clip(tmp_path / "standing.mp4", 12, lambda t: 0.6)
    config = site(detect={"fps": 1, "heartbeat_s": 30})

    def examined_at(workers: int) -> list[float]:
        log = io.BytesIO()
        replay(standing, config.for_decisions(), "gate", Slow(), log, clock=ManualClock(), workers=workers)
        rows = [json.loads(line) for line in log.getvalue().splitlines()]
        return [row["t"] for row in rows if row["type"] == "boxes"]

    alone = examined_at(1)
    assert alone == list(range(12))
    assert examined_at(3) == alone


def test_cameras_together_with_several_workers_leave_the_same_log(clip: Path, tmp_path: Path) -> None:
    config = two_cameras()
    other = block_clip(tmp_path / "other.mp4", 5, lambda t: 0.8 - 0.1 * t)

    def together(workers: int) -> bytes:
        log, bright_block = io.BytesIO(), BrightBlock()
        inputs = (
            clip_input(clip, config.for_decisions(), "gate", bright_block),
            clip_input(other, config.for_decisions(), "yard", bright_block),
        )
        play(
            ReplayPlan(inputs, config.for_decisions(), bright_block), log, ReplayOptions(ManualClock(), workers=workers)
        )
        return log.getvalue()

    alone = together(1)
    assert {together(workers) for workers in (2, 2, 3, 5, 8)} == {alone}
    assert alone.count(b'"type":"end"') == 2


def two_cameras() -> SiteConfig:
    one = site().cameras["gate"]
    return site().model_copy(update={"cameras": {"gate": one, "yard": one}})


class Breaks(BrightBlock):
    """A bug in a detector: not a DetectorError."""

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        raise ZeroDivisionError("scripted")


def test_a_bug_in_the_detector_stops_the_replay_and_leaves_no_thread(clip: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="scripted"):
        log_of(clip, 3, Breaks())
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("replay-worker")])


def test_a_detector_that_fails_leaves_frames_unexamined_with_several_workers_too(clip: Path) -> None:
    class Mute(BrightBlock):
        def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            from appliance.base.errors import DetectorError

            raise DetectorError("scripted")

    assert log_of(clip, 2, Mute()) == log_of(clip, 1, Mute())
    assert b'"looked":false' in log_of(clip, 2, Mute())


# The line in which things wait.


def test_things_are_done_in_the_order_in_which_they_were_handed_in() -> None:
    done: list[object] = []
    held = threading.Event()
    with OrderedExecutor[int](2) as executor:
        executor.submit(lambda: 1 if held.wait(60) else 0, done.append)
        executor.call(lambda: done.append("then"))
        executor.submit(lambda: 2, done.append)
        assert done == []
        held.set()
        executor.drain()
        assert done == [1, "then", 2]
        executor.call(lambda: done.append("now"))
        assert done[-1] == "now"


def test_no_more_calls_wait_than_the_limit() -> None:
    held, submitted = threading.Event(), []
    done: list[int] = []
    with OrderedExecutor[int](2) as executor:

        def push() -> None:
            for number in range(2 * QUEUED_PER_WORKER + 1):
                executor.submit(lambda number=number: number if held.wait(60) else -1, done.append)  # type: ignore[misc]
                submitted.append(number)

        pushing = threading.Thread(target=push)
        pushing.start()
        until(lambda: len(submitted) == 2 * QUEUED_PER_WORKER)
        assert done == []
        held.set()
        pushing.join(60)
    assert done == list(range(2 * QUEUED_PER_WORKER + 1))


def test_one_hand_asks_at_once_in_the_caller_s_thread() -> None:
    seen = []
    with OrderedExecutor[str]() as executor:
        executor.submit(lambda: threading.current_thread().name, seen.append)
        assert seen == [threading.current_thread().name]


def test_what_waits_is_dropped_when_an_error_leaves() -> None:
    done: list[int] = []
    held = threading.Event()

    def leave() -> None:
        with OrderedExecutor[int](2) as executor:
            executor.submit(lambda: int(held.wait(0.2)), done.append)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert done == []


def test_the_machine_s_cores_are_divided_by_the_threads_of_a_detector() -> None:
    def of(threads: int) -> int:
        detector = site().detector.model_copy(update={"threads": threads})
        return workers_for(site().model_copy(update={"detector": detector}).for_decisions())

    assert of(1) >= 1
    assert of(64) == 1
