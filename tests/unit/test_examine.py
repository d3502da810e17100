"""Which frames are looked at, and what is said about them: by camera time only, and always the same."""

from __future__ import annotations

import itertools

import av
import numpy as np
import pytest
from media import picture
from streams import CountingTracker, NumberReader, clip

from appliance import config
from appliance.ingest.clip import Clip
from appliance.ingest.examine import QUIET_AFTER_S, Examiner
from appliance.types import Detections, FrameBoxes, TrackedObject

STILL = av.VideoFrame.from_ndarray(np.full((240, 320, 3), 90, np.uint8), format="rgb24").reformat(format="yuv420p")


def moving(n: int) -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(picture(n * 3000 % 65536), format="rgb24").reformat(format="yuv420p")


class Blind(NumberReader):
    """Sees nothing, ever."""

    def detect(self, pictures: object) -> list[Detections]:
        return [Detections.empty()]


def examiner(*, fps: float = 5, heartbeat_s: float = 2, detector: NumberReader | None = None) -> Examiner:
    plan = config.Detect(fps=fps, heartbeat_s=heartbeat_s)
    return Examiner("gate", detector or Blind(), CountingTracker(("number",)), plan)


def looked_at(each: Examiner, times: list[float], *, frame: av.VideoFrame | None = None) -> list[float]:
    return [t for n, t in enumerate(times) if each.due(n, t, moving(n) if frame is None else frame)]


@pytest.mark.parametrize(
    ("camera_fps", "fps", "expected"), [(10, 5, 5), (25, 5, 5), (30, 5, 5), (5, 5, 5), (12.5, 5, 4.5)]
)
def test_while_something_moves_frames_are_due_at_fps(camera_fps: float, fps: float, expected: float) -> None:
    times = [n / camera_fps for n in range(round(20 * camera_fps))]
    assert len(looked_at(examiner(fps=5), times)) / 20 == pytest.approx(expected, abs=0.6)


def test_a_late_frame_does_not_bring_two_after_it() -> None:
    times = [0.0, 0.2, 1.0, 1.04, 1.08, 1.2, 1.24, 1.4]
    assert looked_at(examiner(), times) == [0.0, 0.2, 1.0, 1.2, 1.4]


def test_a_quiet_yard_is_still_looked_at_each_heartbeat() -> None:
    """The gate is a priority, never a permission."""
    times = [n / 10 for n in range(300)]
    due = looked_at(examiner(heartbeat_s=2), times, frame=STILL)
    late = [t for t in due if t > QUIET_AFTER_S]
    assert len(late) == pytest.approx((30 - QUIET_AFTER_S) / 2, abs=1)
    assert max(b - a for a, b in itertools.pairwise(due)) <= 2.0 + 1e-6


def test_a_low_rate_does_not_stretch_the_heartbeat() -> None:
    due = looked_at(examiner(fps=0.1, heartbeat_s=2), [n / 10 for n in range(200)], frame=STILL)
    assert len(due) == 10


def test_movement_after_quiet_is_looked_at_at_once() -> None:
    each = examiner(heartbeat_s=30)
    looked_at(each, [n / 10 for n in range(100)], frame=STILL)
    look = each.due(100, 10.0, moving(1))
    assert look is not None
    assert look.priority > 0


def test_as_long_as_something_is_followed_frames_are_due_though_nothing_moves() -> None:
    each = Examiner("gate", NumberReader(), CountingTracker(("number",)), config.Detect(fps=5, heartbeat_s=30))
    seen = [each.examine(n, n / 5, STILL) for n in range(100)]
    assert all(seen)


def test_a_detector_that_fails_is_not_an_empty_yard_and_does_not_reach_the_tracker() -> None:
    detector = NumberReader(fail=lambda n: True)
    tracker = CountingTracker(detector.labels)
    each = Examiner("gate", detector, tracker, config.Detect())
    assert each.examine(0, 0.0, moving(0)) == FrameBoxes(camera="gate", seq=0, frame=0, t=0.0, looked=False)
    assert tracker.times == []


def test_numbers_are_rounded_for_the_wire() -> None:
    each = Examiner("gate", NumberReader(), CountingTracker(("number",)), config.Detect())
    found = each.examine(7, 1.4, av.VideoFrame.from_ndarray(picture(123), format="rgb24").reformat(format="yuv420p"))
    assert found is not None
    assert found.objects == (TrackedObject(track=1, label="number", score=0.988, box=(0.123, 0.1, 0.1231, 0.2)),)
    assert (found.seq, found.frame, found.t) == (0, 7, 1.4)


def test_the_same_footage_gives_the_same_boxes_also_in_the_split_form(tmp_path: object) -> None:
    path = clip(tmp_path / "c.mp4", 60)  # type: ignore[operator]

    def whole() -> list[FrameBoxes]:
        each = examiner(detector=NumberReader())
        with Clip(str(path)) as footage:
            return [boxes for f in footage.frames() if (boxes := each.examine(f.index, f.t, f.picture))]

    def split() -> list[FrameBoxes]:
        detector = NumberReader()
        each = examiner(detector=detector)
        out = []
        with Clip(str(path)) as footage:
            for f in footage.frames():
                look = each.due(f.index, f.t, f.picture)
                if look is not None:
                    out.append(each.result(look, detector.detect([each.picture(look)])[0]))
        return out

    assert whole() == whole() == split()
    assert len(whole()) == 30
