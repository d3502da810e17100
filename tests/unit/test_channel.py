"""The one way out: ordered, bounded, and what is dropped is counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from appliance.base.json_lines import decode_ingest
from appliance.ingest.core_channel import ChannelClosed, IngestChannel, signs_of_life
from appliance.types import (
    CameraMeter,
    CameraState,
    DecodeStatus,
    DetectCounts,
    FrameBoxes,
    IngestHealth,
    IngestMessage,
    SegmentRow,
)
from tests.support.waiting import until


def boxes(seq: int) -> FrameBoxes:
    return FrameBoxes(camera="gate", seq=seq, frame=seq, t=float(seq), looked=True)


def state(n: int) -> CameraState:
    return CameraState(camera="gate", state="live", t=float(n))


def segment(path: str, frames: int) -> SegmentRow:
    return SegmentRow(
        camera="gate",
        path=path,
        t_start=0,
        t_end=frames,
        bytes=1,
        frames=frames,
        codec="h264",
        size=(8, 8),
        complete=False,
    )


def meter(received: int, *, exact: bool = True) -> CameraMeter:
    return CameraMeter(
        camera="gate",
        t=1,
        received=received,
        exact=exact,
        packets=1,
        reconnects=5,
        detect_received=received // 10,
        detect=DetectCounts(
            decoded=2, examined=3, unexamined=4, dropped={"newer": 3, "late": 1}, ages=(1, 2, 30), retries=1
        ),
        decoding=DecodeStatus("everything"),
    )


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            continue


def drained(channel: IngestChannel, reading: int, writing: int) -> list[IngestMessage]:
    """All that the channel sends once its reader reads."""
    writer = threading.Thread(target=channel.run, args=(lambda: None,))
    channel.close()
    writer.start()
    lines: list[IngestMessage] = []
    reader = threading.Thread(target=lambda: lines.extend(map(decode_ingest, os.fdopen(os.dup(reading), "rb"))))
    reader.start()
    writer.join(80)
    os.close(writing)
    reader.join(80)
    return lines


def test_messages_come_out_in_order(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1])
    sent = [state(0), boxes(0), boxes(1), segment("a", 1), state(1), boxes(2)]
    for message in sent:
        channel.put(message)
    assert drained(channel, *pipe) == sent


def test_meters_that_wait_together_lose_no_count(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1])
    one = meter(1)
    detect = replace(one.detect, decoder_failures=2, retries=3, skipped=4)
    first = replace(one, detect_received=7, unrecorded=1, detect=detect, decoding=DecodeStatus("idle", behind_s=3.0))
    for each in (first, replace(first, decoding=DecodeStatus("active", behind_s=0.5))):
        channel.put(each)
    (sent,) = drained(channel, *pipe)
    assert isinstance(sent, CameraMeter)
    for part, of_first in ((sent, first), (sent.detect, first.detect)):
        counts = [field.name for field in fields(part) if field.type == "int"]
        assert [getattr(part, name) for name in counts] == [2 * getattr(of_first, name) for name in counts]
    assert sent.decoding == DecodeStatus("active", behind_s=3.0)


def test_when_the_core_does_not_read_the_oldest_boxes_go_and_nothing_else(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1], boxes_max=10)
    for n in range(1000):
        channel.put(boxes(n))
        if n % 100 == 0:
            channel.put(state(n))
            channel.put(segment(f"s{n}", 1))
    assert channel.dropped() == 990
    out = drained(channel, *pipe)
    assert [message.seq for message in out if isinstance(message, FrameBoxes)] == list(range(990, 1000))
    assert sum(isinstance(message, CameraState) for message in out) == 10
    assert sum(isinstance(message, SegmentRow) for message in out) == 10


def test_dropped_boxes_leave_no_litter_in_the_queue(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1], boxes_max=10, kept_max=50)
    channel.put(state(0))
    for n in range(5000):
        channel.put(boxes(n))
    assert len(channel._queue) <= 22


def test_a_newer_row_of_a_segment_takes_the_place_of_the_one_that_waits(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1])
    for frames in range(100):
        channel.put(segment("a", frames))
        channel.put(segment("b", frames))
    assert drained(channel, *pipe) == [segment("a", 99), segment("b", 99)]


def test_waiting_meters_are_added_up_and_only_the_last_health_counts(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1])
    for n in range(3):
        channel.put(meter(100 + n, exact=n != 1))
        channel.put(IngestHealth(t=n, detector_ms=1, queue=0, rss_bytes=1))
    summed, health = drained(channel, *pipe)
    assert isinstance(summed, CameraMeter)
    assert (summed.received, summed.exact, summed.packets, summed.reconnects) == (303, False, 3, 15)
    assert summed.detect_received == 30
    assert (summed.detect.dropped, summed.detect.ages) == ({"newer": 9, "late": 3}, (3, 6, 90))
    assert summed.detect.retries == 3
    assert isinstance(health, IngestHealth)
    assert health.t == 2


def test_a_core_that_has_been_gone_for_hours_ends_the_process_instead_of_losing_a_segment(
    pipe: tuple[int, int],
) -> None:
    channel = IngestChannel(pipe[1], kept_max=20)
    for n in range(20):
        channel.put(state(n))
    with pytest.raises(ChannelClosed):
        channel.put(state(20))


def test_a_reader_that_hangs_up_is_noticed(pipe: tuple[int, int]) -> None:
    channel = IngestChannel(pipe[1])
    closed = threading.Event()
    os.close(pipe[0])
    writer = threading.Thread(target=channel.run, args=(closed.set,), daemon=True)
    writer.start()
    channel.put(state(0))
    until(closed.is_set)
    with pytest.raises(ChannelClosed):
        channel.put(state(1))


def test_while_a_detector_loads_the_end_of_the_reader_is_noticed(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    gone = threading.Event()
    with signs_of_life(writing, gone.set, 0.01):
        assert os.read(reading, 1) == b"\n"
        assert not gone.is_set()
        os.close(reading)
        assert gone.wait(60)
