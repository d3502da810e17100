"""The reading thread rests while nothing is wanted: how often, for how long, and when it must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.ingest.reconnecting_reader import PROMPT_READ_EVERY_S, READ_PAUSE_BYTES_MAX, READ_PAUSE_S_MAX, ReadPacer

FPS = 15
FRAME_S = 1 / FPS


class Socket:
    """Where a camera's packets wait until somebody reads them; taking one that is not there yet takes time."""

    def __init__(self, clock: ManualClock, size: int = 5000) -> None:
        self.clock, self.size = clock, size
        self.wakes = 0
        self.lags: list[float] = []

    def packets(self, seconds: float) -> Iterator[float]:
        """Camera times, each when it is read."""
        begin = self.clock.now()
        for n in range(round(seconds * FPS)):
            t = begin + n * FRAME_S
            if self.clock.now() < t:
                self.clock.advance(t - self.clock.now())
                self.wakes += 1
            self.lags.append(self.clock.now() - t)
            yield t


def read(socket: Socket, seconds: float, until_needed_s: float) -> tuple[ReadPacer, list[float]]:
    """Read for a while; the rests that were taken."""
    pacer, rests = ReadPacer(socket.clock), []
    for t in socket.packets(seconds):
        pause_s = pacer.pause_s(socket.size, t, until_needed_s)
        if pause_s:
            socket.clock.advance(pause_s)
            socket.wakes += 1
            rests.append(pause_s)
    return pacer, rests


def test_an_idle_camera_wakes_its_thread_a_third_as_often() -> None:
    eager, patient = Socket(ManualClock()), Socket(ManualClock())
    read(eager, 60, 0.0)
    pacer, rests = read(patient, 60, READ_PAUSE_S_MAX)
    assert eager.wakes == pytest.approx(60 * FPS, abs=1)
    assert patient.wakes < 0.35 * eager.wakes
    assert pacer.pauses == len(rests) > 100
    assert max(patient.lags) <= READ_PAUSE_S_MAX + FRAME_S


def test_one_packet_a_second_is_waited_for_since_its_arrival_tells_the_time() -> None:
    socket = Socket(ManualClock())
    read(socket, 30, READ_PAUSE_S_MAX)
    prompt = sum(lag < 1e-3 for lag in socket.lags)
    assert prompt >= 30 / (PROMPT_READ_EVERY_S + READ_PAUSE_S_MAX + FRAME_S) - 1


def test_who_has_fallen_behind_does_not_rest() -> None:
    clock = ManualClock()
    pacer = ReadPacer(clock)
    for _ in range(30):  # up to date, so that it is known how late a packet usually is
        pacer.pause_s(5000, clock.now(), 0.0)
        clock.advance(FRAME_S)
    clock.advance(3)
    late = [pacer.pause_s(5000, clock.now() - 3 + n * FRAME_S, READ_PAUSE_S_MAX) for n in range(40)]
    assert late == [0.0] * 40


def test_a_camera_that_claims_another_time_is_read_as_any_other() -> None:
    """Camera time may be a minute off, by the sender's reports: only how late a packet is beside others counts."""
    clock = ManualClock()
    pacer = ReadPacer(clock)
    rested = 0
    for _ in range(30):
        rested += pacer.pause_s(5000, clock.now() - 59.0, READ_PAUSE_S_MAX) > 0
        clock.advance(0.3)
    assert rested >= 20


def test_much_must_not_pile_up_in_the_socket() -> None:
    socket = Socket(ManualClock(), size=40_000)  # 4.8 Mbit/s
    _, rests = read(socket, 30, READ_PAUSE_S_MAX)
    assert rests
    assert max(rests) <= READ_PAUSE_BYTES_MAX / (40_000 * FPS) * 1.3
    assert read(Socket(ManualClock(), size=200_000), 30, READ_PAUSE_S_MAX)[1] == []


def test_no_rest_where_the_next_packet_is_wanted() -> None:
    assert read(Socket(ManualClock()), 10, 0.05)[1] == []
