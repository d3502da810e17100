"""A reader that cannot keep up: how late it is, and what is left out so that what is looked at is now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from appliance.base.clock import ManualClock
from appliance.ingest.file_source import FileSource
from appliance.ingest.socket_meter import LAG_S_MAX, LagEstimator, LagFilter
from appliance.media.source import StreamInfo, VideoPacket
from tests.support.scripted_sources import clip

FPS, SMALL, KEY = 15, 1_000, 100_000
GOP = 30
SIZES = [KEY if n % GOP == 0 else SMALL for n in range(20 * GOP)]
RATE = (KEY + (GOP - 1) * SMALL) * FPS / GOP


def test_a_reader_that_keeps_up_is_never_behind_although_the_next_picture_has_always_begun_to_come() -> None:
    estimator = LagEstimator(0.0)
    late = [estimator.lag_s(size, n / FPS, SIZES[(n + 1) % GOP], n / FPS + 0.02) for n, size in enumerate(SIZES)]
    assert max(late) <= 1.5 / FPS, "a key frame on its way is no backlog"


def test_a_camera_with_one_picture_a_second_is_not_behind_for_that() -> None:
    estimator = LagEstimator(0.0)
    assert max(estimator.lag_s(SMALL, float(n), SMALL, n + 0.02) for n in range(60)) == 0


def test_a_backlog_is_told_in_seconds_and_is_no_longer_than_it_can_have_been_waiting() -> None:
    estimator = LagEstimator(0.0)
    for n in range(10 * FPS):
        estimator.lag_s(SIZES[n], n / FPS, 0, n / FPS)
    at = 10.0
    told = [estimator.lag_s(SIZES[n], at + n / FPS, round(5 * RATE), at + 2 * n / FPS) for n in range(120)]
    assert all(seconds <= 2 * n / FPS + 1 / FPS + 1e-6 for n, seconds in enumerate(told))
    assert 4 < told[-1] < 6
    assert estimator.lag_s(SMALL, 20.0, 0, 30.0) == 0


def test_where_the_system_does_not_say_what_waits_nobody_is_behind() -> None:
    estimator = LagEstimator(0.0)
    assert all(estimator.lag_s(SMALL, n / FPS, None, 10.0 * n) == 0 for n in range(100))


class Looker:
    def __init__(self) -> None:
        self.taken: list[float] = []
        self.calls: list[str] = []

    def begin(self, info: StreamInfo, run: str) -> None:
        self.calls.append("begin")

    def take(self, packet: VideoPacket) -> None:
        self.taken.append(packet.t)

    def end(self) -> None:
        self.calls.append("end")


def test_what_is_late_is_left_out_until_a_key_frame_that_is_not(tmp_path: Path) -> None:
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 60)), ManualClock())
    sink = Looker()
    lag_filter = LagFilter("gate", sink, ManualClock(), key_frame_every_s=60.0)
    lag_filter.begin(source.open(), "run")
    late = dict.fromkeys(range(12, 33), LAG_S_MAX + 1)
    first = None
    for n, packet in enumerate(source.packets()):
        first = packet.t if first is None else first
        lag_filter.take(replace(packet, lag_s=late.get(n, 0.0)))
        if n == 20:
            assert lag_filter.is_lagging, "a key frame, but late itself"
            assert lag_filter.take_worst_s() == LAG_S_MAX + 1
    lag_filter.end()
    assert first is not None
    assert [round(10 * (t - first)) for t in sink.taken] == [*range(12), *range(40, 60)]
    assert (lag_filter.skipped, lag_filter.skips, lag_filter.is_lagging) == (28, 1, False)
    lag_filter.take_worst_s()
    assert lag_filter.take_worst_s() == 0
    assert sink.calls == ["begin", "end"]


def test_who_never_catches_up_still_sees_a_key_frame_now_and_then(tmp_path: Path) -> None:
    source = FileSource("gate", str(clip(tmp_path / "c.mp4", 100)), ManualClock())
    sink = Looker()
    lag_filter = LagFilter("gate", sink, ManualClock(), key_frame_every_s=2.0)
    lag_filter.begin(source.open(), "run")
    packets = list(source.packets())
    for packet in packets:
        lag_filter.take(replace(packet, lag_s=LAG_S_MAX + 1))
    assert [round(10 * (t - packets[0].t)) for t in sink.taken] == [0, 20, 40, 60, 80]
    assert lag_filter.is_lagging
    assert lag_filter.skipped == 95
