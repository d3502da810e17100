"""One clock: what becomes of a stream's own time stamps."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from appliance.ingest.timestamps import Timeline
from appliance.media.source import SECOND_US

T0 = 1_700_000_000 * SECOND_US
FRAME = SECOND_US // 10


def live(stamps: list[tuple[int | None, int | None, int]]) -> tuple[Timeline, list[int]]:
    """Feed (pts, dts, arrival after T0); the camera times that came out, after T0."""
    timeline = Timeline()
    out = []
    for pts, dts, arrival in stamps:
        stamp = timeline.stamp_live(pts, dts, T0 + arrival)
        out.append((stamp.dts if stamp.pts is None else stamp.pts) - T0)
    return timeline, out


def test_a_live_stream_is_anchored_where_its_first_packet_arrived() -> None:
    _, out = live([(500, 500, 0), (500 + FRAME, 500 + FRAME, FRAME + 7000)])
    assert out == [0, FRAME]


def test_the_first_packet_without_a_stamp_is_stamp_zero() -> None:
    """FFmpeg leaves the stamp off the first RTP packet and counts from it."""
    _, out = live([(None, None, 0), (FRAME, FRAME, FRAME + 9000), (2 * FRAME, 2 * FRAME, 2 * FRAME)])
    assert out[:2] == [0, FRAME]


def test_frames_that_travel_out_of_order_keep_their_own_time_and_a_rising_order() -> None:
    timeline = Timeline()
    given = [(None, None), (1, None), (2, None), (6, 1), (4, 2), (3, 3), (5, 4)]
    stamps = [
        timeline.stamp_live(None if p is None else p * FRAME, None if d is None else d * FRAME, T0 + n * FRAME)
        for n, (p, d) in enumerate(given)
    ]
    assert [stamp.pts for stamp in stamps] == [T0 + n * FRAME for n in (0, 1, 2, 6, 4, 3, 5)]
    assert all(a.dts < b.dts for a, b in itertools.pairwise(stamps))
    assert all(stamp.dts <= (stamp.pts or 0) for stamp in stamps)


def test_a_senders_report_is_believed_when_it_is_near() -> None:
    timeline = Timeline()
    stamp = timeline.stamp_live(0, 0, T0, T0 - 300_000)
    assert stamp.pts == T0 - 300_000


def test_a_camera_that_thinks_it_is_1970_is_not_believed() -> None:
    timeline = Timeline()
    assert timeline.stamp_live(0, 0, T0, 86_400 * SECOND_US).pts == T0


def test_a_camera_that_is_ahead_of_us_is_not_believed() -> None:
    """No picture arrives before it was taken."""
    assert Timeline().stamp_live(0, 0, T0, T0 + 11 * SECOND_US).pts == T0


def test_after_a_jump_the_report_from_before_it_is_not_believed_but_the_next_one_is() -> None:
    """FFmpeg reckons with the last report until another comes: it would put the pictures 11 s into the past."""
    timeline, back = Timeline(), 11 * SECOND_US
    late = FRAME // 2
    for n in range(50):
        timeline.stamp_live(n * FRAME, n * FRAME, T0 + n * FRAME + late, T0 + n * FRAME)
    stamps = []
    for n in range(50, 150):
        own = n * FRAME - back
        report = T0 + own if n < 80 else T0 + n * FRAME
        stamps.append(timeline.stamp_live(own, own, T0 + n * FRAME + late, report))
    assert timeline.jumps == 1
    off = [(stamp.pts or 0) - T0 - n * FRAME for n, stamp in enumerate(stamps, 50)]
    assert max(map(abs, off)) <= late
    assert abs(off[-1]) < late / 2, "it is steered towards the report again"


def test_a_clock_that_jumps_back_is_anchored_anew_and_counted() -> None:
    timeline, out = live(
        [(n * FRAME, n * FRAME, n * FRAME) for n in range(50)] + [(0, 0, 50 * FRAME), (FRAME, FRAME, 51 * FRAME)]
    )
    assert timeline.jumps == 1
    assert out[-2:] == [50 * FRAME, 51 * FRAME]


def test_a_clock_that_jumps_ahead_is_anchored_anew_but_a_real_pause_is_kept() -> None:
    timeline, out = live([(0, 0, 0), (60 * SECOND_US, 60 * SECOND_US, FRAME)])
    assert (timeline.jumps, out) == (1, [0, FRAME])
    timeline, out = live([(0, 0, 0), (20 * SECOND_US, 20 * SECOND_US, 20 * SECOND_US)])
    assert (timeline.jumps, out) == (0, [0, 20 * SECOND_US])


def test_a_late_burst_does_not_move_the_clock() -> None:
    _, out = live([(0, 0, 0), *((n * FRAME, n * FRAME, 40 * FRAME) for n in range(1, 41))])
    assert out == [n * FRAME for n in range(41)]


def test_a_crystal_that_runs_fast_is_followed() -> None:
    """50 ppm is 4 s a day; after an hour of it camera time is within 20 ms of arrival."""
    timeline = Timeline()
    late = 0
    for n in range(36_000):
        stream = round(n * FRAME * 1.00005)
        stamp = timeline.stamp_live(stream, stream, T0 + n * FRAME)
        late = T0 + n * FRAME - (stamp.pts or 0)
    assert abs(late) < 20_000


def test_a_file_begins_at_its_first_shown_picture_and_keeps_its_holes() -> None:
    timeline = Timeline()
    given = [5 * SECOND_US, 5 * SECOND_US + FRAME, 7 * SECOND_US]
    assert [timeline.stamp_clip(us, us, 0, FRAME).pts for us in given] == [0, FRAME, 2 * SECOND_US]


def test_a_file_without_stamps_counts_frames() -> None:
    timeline = Timeline()
    stamps = [timeline.stamp_clip(None, None, 0, FRAME) for _ in range(3)]
    assert [stamp.dts for stamp in stamps] == [0, FRAME, 2 * FRAME]
    assert all(stamp.pts is None for stamp in stamps)


def test_a_file_whose_stamps_jump_goes_on_without_a_hole() -> None:
    timeline = Timeline()
    given = [0, FRAME, 2 * FRAME, -11 * SECOND_US, -11 * SECOND_US + FRAME]
    stamps = [timeline.stamp_clip(us, us, 0, FRAME) for us in given]
    assert [stamp.pts for stamp in stamps] == [n * FRAME for n in range(5)]
    assert [stamp.jump for stamp in stamps] == [False, False, False, True, False]


STAMP = st.none() | st.integers(-(2**40), 2**40)


@given(st.lists(st.tuples(STAMP, STAMP, st.integers(0, SECOND_US)), max_size=60))
def test_whatever_the_stream_says_decode_time_rises(given: list[tuple[int | None, int | None, int]]) -> None:
    cameras, clips, arrival = Timeline(), Timeline(), T0
    lasts = [-(2**60), -(2**60)]
    for pts, dts, later in given:
        arrival += later
        for which, stamp in enumerate((cameras.stamp_live(pts, dts, arrival), clips.stamp_clip(pts, dts, 0, FRAME))):
            assert stamp.dts > lasts[which]
            lasts[which] = stamp.dts
