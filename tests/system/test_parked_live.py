"""The ingest process with the default network before a row of parked cars, ended, killed and started anew."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
from test_ingest_process import ROOT, Process

from appliance.types import FrameBoxes, TrackedObject
from tests.support.waiting import until

pytestmark = pytest.mark.slow  # in real time: a car is parked once it has stood for five seconds


@pytest.fixture
def lives() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for each in started:
        each.end()


def three_times_as_long(film: Path, to: Path) -> Path:
    """So that a busy machine, whose first look comes late, still sees the cars stand. The same packets, one after the
    other: the parked cars do not move where it begins anew."""
    with av.open(str(film)) as source, av.open(str(to), "w") as made:
        stream = source.streams.video[0]
        into = made.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.pts is not None]
        length = sum(packet.duration for packet in packets)
        for _ in range(3):
            for packet in packets:
                packet.stream = into
                made.mux(packet)
            for packet in packets:
                packet.pts, packet.dts = packet.pts + length, packet.dts + length
    return to


def site(folder: Path) -> dict[str, Any]:
    film = three_times_as_long(ROOT / "fixtures" / "family" / "parked.mp4", folder / "parked.mp4")
    return {
        "cameras": {"gate": {"url": f"file:{film}", "loop": False, "record": False}},
        "storage": {"dir": str(folder)},
        "detector": {"model": "vedette-nano"},
    }


def cars(process: Process) -> list[TrackedObject]:
    return [found for boxes in process.of(FrameBoxes) for found in boxes.objects if found.label != "person"]


def test_parked_cars_are_known_after_an_end_and_after_a_kill(lives: list[Process], tmp_path: Path) -> None:
    kept = tmp_path / "parked" / "gate.json"
    first = Process(site(tmp_path))
    lives.append(first)
    until(lambda: any(boxes.t for boxes in first.of(FrameBoxes)), seconds=20)
    began = first.of(FrameBoxes)[0].t
    until(lambda: first.of(FrameBoxes)[-1].t - began > 9, seconds=40)
    assert first.child.stdin is not None
    first.child.stdin.close()
    assert first.wait() == 0
    assert cars(first)
    assert all(found.stood_s is None for found in cars(first))
    assert kept.exists()
    for _ in range(2):  # the second of them begins after a kill -9
        again = Process(site(tmp_path))
        lives.append(again)
        until(lambda again=again: len(cars(again)) >= 10, seconds=30)  # type: ignore[misc]
        again.child.send_signal(signal.SIGKILL)
        again.wait()
        known = [found for found in cars(again) if found.stood_s is not None]
        assert len(known) >= len(cars(again)) // 2
        assert all(found.stood_s is not None and found.stood_s > 3 for found in known)
