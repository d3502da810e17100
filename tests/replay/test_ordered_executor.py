"""Looks are asked for ahead, on several threads; what follows from them is done as if each had waited for the last."""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from films import BrightBlock, film, site
from numpy.typing import NDArray
from waiting import until

from appliance.clock import ManualClock
from appliance.config import SiteConfig
from appliance.lab.replay.ordered_executor import QUEUED_PER_WORKER, OrderedExecutor
from appliance.lab.replay.replay_runner import ReplayOptions, ReplayPlan, clip_input, play, replay, workers_for
from appliance.types import Detections


class Uneven(BrightBlock):
    """Several may ask at once. Every other answer is held back until the one after it is there.

    State: how many looks it has begun, and which are answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._begun = 0
        self.overtaken = 0
        self.at_once = 0
        self._inside = 0
        self._done: set[int] = set()

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
            self._inside += 1
            self.at_once = max(self.at_once, self._inside)
        if number % 2 == 0 and self._wait_for(number + 1):
            self.overtaken += 1
        found = [self._look(picture) for picture in pictures]
        with self._lock:
            self._inside -= 1
            self._done.add(number)
        return found

    def _wait_for(self, number: int) -> bool:
        """False where nobody asks for it within a while: the replay waits for this one before it decides."""
        try:
            until(lambda: number in self._done, seconds=0.3)
        except AssertionError:
            return False
        return True


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walks in, stands still for longer than the gate remembers, walks out; then nothing for a while."""

    def left(t: float) -> float | None:
        if t < 1 or t > 10:
            return None
        return 0.1 + 0.25 * min(t - 1, 2.0) if t < 8 else 0.6 - 0.25 * (t - 8)

    return film(tmp_path_factory.mktemp("films") / "stand.mp4", 14, left)


def log_of(clip: Path, hands: int, detector: BrightBlock) -> bytes:
    log = io.BytesIO()
    replay(clip, site(), "gate", detector, log, clock=ManualClock(), workers=hands)
    return log.getvalue()


def test_answers_that_come_in_another_order_change_nothing(clip: Path) -> None:
    alone = log_of(clip, 1, BrightBlock())
    uneven = Uneven()
    assert log_of(clip, 2, uneven) == alone
    assert uneven.overtaken > 5, "the detector was to be asked ahead"
    assert uneven.at_once == 2
    assert {log_of(clip, hands, BrightBlock()) for hands in (2, 3, 4, 8)} == {alone}


class Slow(BrightBlock):
    """Answers long after the next frames are decoded."""

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        threading.Event().wait(0.03)
        return [self._look(picture) for picture in pictures]


def test_where_a_look_hangs_on_what_was_seen_before_it_waits_for_that(tmp_path: Path) -> None:
    """Who has always stood there is followed though nothing moves, and so looked at every second or two, long after the
    gate has lost interest."""
    standing = film(tmp_path / "standing.mp4", 12, lambda t: 0.6)
    config = site(detect={"fps": 1, "heartbeat_s": 30})

    def looked_at(hands: int) -> list[float]:
        log = io.BytesIO()
        replay(standing, config, "gate", Slow(), log, clock=ManualClock(), workers=hands)
        rows = [json.loads(line) for line in log.getvalue().splitlines()]
        return [row["t"] for row in rows if row["type"] == "boxes"]

    alone = looked_at(1)
    assert alone[:3] == [0, 1, 2]
    assert all(b - a <= 3.0 for a, b in itertools.pairwise([*alone, 12.0])), "a key frame is waited for"
    assert len(alone) < 12
    assert looked_at(3) == alone


def test_cameras_together_with_several_hands_leave_the_same_log(clip: Path, tmp_path: Path) -> None:
    config = two_cameras()
    other = film(tmp_path / "other.mp4", 5, lambda t: 0.8 - 0.1 * t)

    def together(hands: int) -> bytes:
        log, eye = io.BytesIO(), BrightBlock()
        reels = (clip_input(clip, config, "gate", eye), clip_input(other, config, "yard", eye))
        play(ReplayPlan(reels, config, eye), log, ReplayOptions(ManualClock(), workers=hands))
        return log.getvalue()

    alone = together(1)
    assert {together(hands) for hands in (2, 2, 3, 5, 8)} == {alone}
    assert alone.count(b'"type":"end"') == 2


def two_cameras() -> SiteConfig:
    one = site().cameras["gate"]
    return site().model_copy(update={"cameras": {"gate": one, "yard": one}})


class Breaks(BrightBlock):
    """A bug in a detector: not a DetectorError."""

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        raise ZeroDivisionError("scripted")


def test_a_bug_in_the_detector_stops_the_replay_and_leaves_no_thread(clip: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="scripted"):
        log_of(clip, 3, Breaks())
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("replay-look")])


def test_a_detector_that_does_not_answer_is_not_looked_at_with_several_hands_too(clip: Path) -> None:
    class Mute(BrightBlock):
        def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            from appliance.errors import DetectorError

            raise DetectorError("scripted")

    assert log_of(clip, 2, Mute()) == log_of(clip, 1, Mute())
    assert b'"looked":false' in log_of(clip, 2, Mute())


# The line in which things wait.


def test_things_are_done_in_the_order_in_which_they_were_handed_in() -> None:
    done: list[object] = []
    held = threading.Event()
    with OrderedExecutor[int](2) as order:
        order.submit(lambda: 1 if held.wait(60) else 0, done.append)
        order.call(lambda: done.append("then"))
        order.submit(lambda: 2, done.append)
        assert done == []
        held.set()
        order.drain()
        assert done == [1, "then", 2]
        order.call(lambda: done.append("now"))
        assert done[-1] == "now"


def test_no_more_wait_than_was_said() -> None:
    held, asked = threading.Event(), []
    done: list[int] = []
    with OrderedExecutor[int](2) as order:

        def push() -> None:
            for number in range(2 * QUEUED_PER_WORKER + 1):
                order.submit(lambda number=number: number if held.wait(60) else -1, done.append)  # type: ignore[misc]
                asked.append(number)

        pushing = threading.Thread(target=push)
        pushing.start()
        until(lambda: len(asked) == 2 * QUEUED_PER_WORKER)
        assert done == []
        held.set()
        pushing.join(60)
    assert done == list(range(2 * QUEUED_PER_WORKER + 1))


def test_one_hand_asks_at_once_in_the_caller_s_thread() -> None:
    seen = []
    with OrderedExecutor[str]() as order:
        order.submit(lambda: threading.current_thread().name, seen.append)
        assert seen == [threading.current_thread().name]


def test_what_waits_is_dropped_when_an_error_leaves() -> None:
    done: list[int] = []
    held = threading.Event()

    def leave() -> None:
        with OrderedExecutor[int](2) as order:
            order.submit(lambda: int(held.wait(0.2)), done.append)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert done == []


def test_a_machine_s_cores_are_shared_out_among_looks_of_several_threads() -> None:
    def of(threads: int) -> int:
        detector = site().detector.model_copy(update={"threads": threads})
        return workers_for(site().model_copy(update={"detector": detector}))

    assert of(1) >= 1
    assert of(64) == 1
