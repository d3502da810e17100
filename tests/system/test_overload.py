"""An ingest process whose detector was promised to too many cameras says so, per camera, and when it is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.json_lines import decode_ingest
from appliance.config import SiteConfig
from appliance.ingest.camera_detectors import NetworkTable
from appliance.ingest.core_channel import IngestChannel
from appliance.ingest.process import IngestProcess
from appliance.types import CameraMeter, Detections, HealthEvent, IngestMessage
from tests.support.scripted_sources import CountingTracker, clip
from tests.support.waiting import until

PACE = 5.0  # a second here is a fifth of one
CAMERAS = ("door", "gate", "yard")


class FastClock(SystemClock):
    """Time that passes PACE times as fast."""

    def __init__(self) -> None:
        self._began, self._wall = time.monotonic(), time.time()

    def now(self) -> float:
        return self._wall + (time.monotonic() - self._began) * PACE

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * PACE

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        return super().sleep(seconds / PACE, stop)


class SlowDetector:
    """Takes `call_s` of its clock for a call, whatever is in the frame."""

    name, warning, labels = "slow", "", ("person",)

    def __init__(self, clock: SystemClock, call_s: float) -> None:
        self.call_s = call_s
        self._clock = clock

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, frames: object) -> list[Detections]:
        self._clock.sleep(self.call_s)
        return [Detections.empty()]


class Overcommitted:
    """Three cameras on which something always moves, and one detector. As a context manager it runs."""

    def __init__(self, root: Path, call_s: float) -> None:
        clock = FastClock()
        made = clip(root / "c.mp4", 100)
        cameras = {name: {"url": f"file:{made}", "record": False} for name in CAMERAS}
        site = SiteConfig.model_validate({"storage": {"dir": str(root / "data")}, "cameras": cameras})
        reading, writing = os.pipe()
        self.detector = SlowDetector(clock, call_s)
        self.messages: list[IngestMessage] = []
        self._channel, self._writing = os.fdopen(reading, "rb"), writing
        self.process = IngestProcess(
            site.for_ingest(), NetworkTable({"": self.detector}, {}), CountingTracker, IngestChannel(writing), clock
        )
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self.process.run)]

    def __enter__(self) -> Overcommitted:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        self._threads[1].join(60)
        os.close(self._writing)
        self._threads[0].join(60)
        self._channel.close()

    def of(self, kind: type) -> list:
        return [message for message in tuple(self.messages) if isinstance(message, kind)]

    def open(self) -> set[str]:
        """The cameras that are overloaded now."""
        last = {event.camera: event for event in self.of(HealthEvent) if event.kind == "overloaded"}
        return {camera for camera, event in last.items() if event.t_end is None}

    def _read(self) -> None:
        self.messages.extend(_decoded(self._channel))


def _decoded(lines: Iterator[bytes]) -> Iterator[IngestMessage]:
    return map(decode_ingest, lines)


def test_a_detector_that_was_promised_to_too_many_cameras_is_told_and_so_is_its_end(tmp_path: Path) -> None:
    with Overcommitted(tmp_path, call_s=0.25) as box:  # four a second, for fifteen that are due
        until(lambda: box.open() == set(CAMERAS))
        first = next(event for event in box.of(HealthEvent) if event.kind == "overloaded")
        assert "inferences a second: the detector is at work" in first.reason
        assert "fewer cameras" in first.reason
        last = box.of(CameraMeter)[-1].decoding
        assert last.promised_fps == pytest.approx(5, abs=0.6)
        assert last.examined_fps is not None
        assert 0.3 < last.examined_fps < 3
        box.detector.call_s = 0.01
        until(lambda: not box.open())
    assert {event.kind for event in box.of(HealthEvent)} == {"overloaded"}
    assert len({event.id for event in box.of(HealthEvent)}) == len(CAMERAS)


def test_a_detector_that_keeps_its_promise_is_not_overloaded(tmp_path: Path) -> None:
    with Overcommitted(tmp_path, call_s=0.02) as box:
        until(lambda: len(box.of(CameraMeter)) > 45 * len(CAMERAS))
        assert box.of(CameraMeter)[-1].decoding.examined_fps == pytest.approx(5, abs=1.2)
    assert box.of(HealthEvent) == []
