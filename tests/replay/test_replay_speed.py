"""A replay at any speed, and over again, leaves the same bytes; the speed is only how long it takes."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.replay.replay_result import ReplayResult
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay


def walk(t: float) -> float:
    return 0.1 + 0.25 * min(t, 2.4)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "walk.mp4", 4, walk)


class SlowDetector(BrightBlock):
    """Takes two seconds for each look, by the clock that the replay is paced with."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def detect(self, images):  # type: ignore[no-untyped-def]
        self._clock.advance(2.0)
        return super().detect(images)


class CountingClock(ManualClock):
    """Notes how often and how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        self.naps.append(seconds)
        return super().sleep(seconds, stop)


def run(clip: Path, clock: ManualClock, speed: float | None) -> tuple[ReplayResult, bytes]:
    log = io.BytesIO()
    return replay(clip, site().for_decisions(), "gate", BrightBlock(), log, clock=clock, speed=speed), log.getvalue()


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 3.9), (10.0, 0.39), (0.5, 7.8)])
def test_a_paced_replay_takes_the_footage_s_time_divided_by_the_speed(clip: Path, speed: float, seconds: float) -> None:
    clock = CountingClock()
    result, _ = run(clip, clock, speed)
    assert result.cost.wall_s == pytest.approx(seconds)
    assert len(clock.naps) == 39
    assert result.cost.behind_s == 0


def test_without_a_speed_nothing_waits(clip: Path) -> None:
    clock = CountingClock()
    run(clip, clock, None)
    assert clock.naps == []


def test_the_log_is_the_same_at_every_speed_five_times_over(clip: Path) -> None:
    logs = {run(clip, ManualClock(now), speed)[1] for now in (0.0, 1e9) for speed in (1.0, 10.0, None, 3.7, None)}
    assert len(logs) == 1
    assert logs.pop().count(b'"type":"boxes"') == 20


def test_on_the_machine_s_own_clock_too(clip: Path) -> None:
    clock = SystemClock()
    results, logs = [], set()
    for speed in (30.0, None, 30.0, None, 30.0):
        log = io.BytesIO()
        results.append(replay(clip, site().for_decisions(), "gate", BrightBlock(), log, clock=clock, speed=speed))
        logs.add(log.getvalue())
    assert len(logs) == 1
    assert min(result.cost.wall_s for result in results[::2]) >= 3.9 / 30


def test_a_machine_that_cannot_keep_up_drops_no_frame_and_reports_how_late_it_was(clip: Path) -> None:
    clock, log = ManualClock(), io.BytesIO()
    result = replay(clip, site().for_decisions(), "gate", SlowDetector(clock), log, clock=clock, speed=1.0)
    assert log.getvalue() == run(clip, ManualClock(), None)[1]
    assert result.cost.behind_s == pytest.approx(19 * 2.0 - 3.8 + 2.0 - 0.1, abs=2.1)
