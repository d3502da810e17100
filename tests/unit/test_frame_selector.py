"""Which frames are looked at, and what is said about them: by camera time only, and always the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.analysis import frame_selector
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.health.tamper_detector import TamperDetector
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import upright_box
from appliance.replay.footage import ClipReader
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes, HealthEvent, TrackedObject, contained_share
from tests.support.numbered_footage import numbered_image
from tests.support.scripted_sources import CountingTracker, FrameByFrame, NumberReader, clip

QUIET_AFTER_S, STOPPED_S = frame_selector.TUNING.active_s, frame_selector.TUNING.stopped_s
WHOLE_EVERY_S = frame_selector.REGION_TUNING.whole_every_s
STILL = av.VideoFrame.from_ndarray(np.full((240, 320, 3), 90, np.uint8), format="rgb24").reformat(format="yuv420p")


def moving(n: int) -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(numbered_image(n * 3000 % 65536), format="rgb24").reformat(format="yuv420p")


class Blind(NumberReader):
    """Sees nothing, ever."""

    def detect(self, pictures: object) -> list[Detections]:
        return [Detections.empty()]


class Following(CountingTracker):
    """One number for all; what stands where it stood needs no look."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        super().__init__(labels)
        self._before: list[tuple[float, ...]] = []

    def update(
        self, detections: Detections, t: float, planes: object = (), parts: object = ()
    ) -> tuple[TrackedObject, ...]:
        found = super().update(detections, t, planes, parts)
        places = [tuple(round(side, 2) for side in each.box) for each in found]
        self.active_boxes = tuple(each.box for each, at in zip(found, places, strict=True) if at not in self._before)
        self._before = places
        return found


def driver(*, fps: float = 5, heartbeat_s: float = 2, detector: NumberReader | None = None) -> FrameByFrame:
    settings = config.DetectConfig(fps=fps, heartbeat_s=heartbeat_s)
    return FrameByFrame("gate", detector or Blind(), CountingTracker(("number",)), settings)


def due_times(each: FrameByFrame, times: list[float], *, frame: av.VideoFrame | None = None) -> list[float]:
    return [t for n, t in enumerate(times) if each.select(n, t, moving(n) if frame is None else frame)]


@pytest.mark.parametrize(
    ("camera_fps", "fps", "expected"), [(10, 5, 5), (25, 5, 5), (30, 5, 5), (5, 5, 5), (12.5, 5, 4.5)]
)
def test_while_something_moves_frames_are_due_at_fps(camera_fps: float, fps: float, expected: float) -> None:
    times = [n / camera_fps for n in range(round(20 * camera_fps))]
    assert len(due_times(driver(fps=5), times)) / 20 == pytest.approx(expected, abs=0.6)


def test_a_late_frame_does_not_bring_two_after_it() -> None:
    times = [0.0, 0.2, 1.0, 1.04, 1.08, 1.2, 1.24, 1.4]
    assert due_times(driver(), times) == [0.0, 0.2, 1.0, 1.2, 1.4]


def test_a_quiet_yard_is_still_looked_at_each_heartbeat() -> None:
    """The gate is a priority, never a permission."""
    times = [n / 10 for n in range(300)]
    due = due_times(driver(heartbeat_s=2), times, frame=STILL)
    late = [t for t in due if t > QUIET_AFTER_S]
    assert len(late) == pytest.approx((30 - QUIET_AFTER_S) / 2, abs=1)
    assert max(b - a for a, b in itertools.pairwise(due)) <= 2.0 + 1e-6


def test_a_low_rate_does_not_stretch_the_heartbeat() -> None:
    due = due_times(driver(fps=0.1, heartbeat_s=2), [n / 10 for n in range(200)], frame=STILL)
    assert len(due) == 10


def test_movement_after_quiet_is_looked_at_at_once() -> None:
    each = driver(heartbeat_s=30)
    due_times(each, [n / 10 for n in range(100)], frame=STILL)
    request = each.select(100, 10.0, moving(1))
    assert request is not None
    assert request.priority > 0


def test_as_long_as_something_is_followed_frames_are_due_though_nothing_moves() -> None:
    each = FrameByFrame(
        "gate", NumberReader(), CountingTracker(("number",)), config.DetectConfig(fps=5, heartbeat_s=30)
    )
    seen = [each.examine(n, n / 5, STILL) for n in range(100)]
    assert all(seen)


def test_a_detector_that_fails_is_not_an_empty_yard_and_does_not_reach_the_tracker() -> None:
    detector = NumberReader(fail=lambda n: True)
    tracker = CountingTracker(detector.labels)
    each = FrameByFrame("gate", detector, tracker, config.DetectConfig())
    assert each.examine(0, 0.0, moving(0)) == FrameBoxes(camera="gate", seq=0, frame=0, t=0.0, looked=False)
    assert tracker.times == []


def test_numbers_are_rounded_for_the_wire() -> None:
    each = FrameByFrame("gate", NumberReader(), CountingTracker(("number",)), config.DetectConfig())
    found = each.examine(
        7, 1.4, av.VideoFrame.from_ndarray(numbered_image(123), format="rgb24").reformat(format="yuv420p")
    )
    assert found is not None
    assert found.objects == (TrackedObject(track=1, label="number", score=0.988, box=(0.123, 0.1, 0.1231, 0.2)),)
    assert (found.seq, found.frame, found.t) == (0, 7, 1.4)


def test_the_same_footage_gives_the_same_boxes_also_in_the_split_form(tmp_path: object) -> None:
    path = clip(tmp_path / "c.mp4", 60)  # type: ignore[operator]

    def whole() -> list[FrameBoxes]:
        each = driver(detector=NumberReader())
        with ClipReader(str(path)) as footage:
            return [boxes for f in footage.frames() if (boxes := each.examine(f.index, f.t, f.av_frame))]

    def split() -> list[FrameBoxes]:
        detector = NumberReader()
        each = driver(detector=detector)
        out = []
        with ClipReader(str(path)) as footage:
            for f in footage.frames():
                request = each.select(f.index, f.t, f.av_frame)
                if request is not None:
                    out.append(each.infer(request))
        return out

    assert whole() == whole() == split()
    assert len(whole()) == 30


# Looks at a part of the picture.

STEP = 32
SIDE = 20
WHOLE = (640, 352)


class Spotter(Blind):
    """Finds what is bright, wherever it is shown it, and costs by the area of what it is shown."""

    labels = ("person",)
    shape_step = STEP

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return WHOLE

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [self._spot(picture) for picture in pictures]

    def _spot(self, picture: NDArray[np.uint8]) -> Detections:
        height, width = picture.shape[:2]
        self.sizes.append((width, height))
        _, _, stats, _ = cv2.connectedComponentsWithStats((picture[:, :, 1] > 170).astype(np.uint8))
        x, y, w, h = (stats[1:, column].astype(np.float32) for column in range(4))
        boxes = np.stack([x / width, y / height, (x + w) / width, (y + h) / height], axis=1)
        return Detections(boxes, np.full(len(boxes), 0.9, np.float32), np.zeros(len(boxes), np.int32))


def yard(*spots: tuple[int, int], size: tuple[int, int] = (1280, 704)) -> av.VideoFrame:
    """A grey yard with white squares; x, y of their top left corners."""
    luma = np.full((size[1] * 3 // 2, size[0]), 128, np.uint8)
    luma[: size[1]] = 90
    for x, y in spots:
        luma[y : y + 2 * SIDE, x : x + 2 * SIDE] = 230
    return av.VideoFrame.from_ndarray(luma, format="yuv420p")


def walked(
    each: FrameByFrame, spotter: Spotter, seconds: float, *others: tuple[int, int]
) -> list[tuple[InferenceRequest, FrameBoxes]]:
    """Somebody walks to the right, 5 looks a second; `others` stand there."""
    taken = []
    for n in range(round(5 * seconds)):
        request = each.select(n, n / 5, yard((300 + 8 * n, 300), *others))
        if request is not None:
            taken.append((request, each.infer(request)))
    return taken


def spotting(label: str = "person", heartbeat_s: float = 2.0) -> tuple[FrameByFrame, Spotter]:
    spotter = Spotter()
    spotter.labels = (label,)
    return FrameByFrame(
        "gate", spotter, Following(spotter.labels), config.DetectConfig(fps=5, heartbeat_s=heartbeat_s)
    ), spotter


def test_between_looks_at_the_whole_only_the_part_that_moves_is_shown() -> None:
    each, spotter = spotting()
    taken = walked(each, spotter, 6)
    parts = [request for request, _ in taken if request.mosaic is not None]
    assert len(taken) == 30
    assert len(parts) > 15
    whole = [request.t for request, _ in taken if request.mosaic is None]
    assert max(b - a for a, b in itertools.pairwise(whole)) <= WHOLE_EVERY_S + 1e-6
    for (request, _), size in zip(taken, spotter.sizes, strict=True):
        if request.mosaic is None:
            assert size == WHOLE
        else:
            assert size[0] % STEP == size[1] % STEP == 0
            assert size[0] * size[1] < 0.3 * WHOLE[0] * WHOLE[1]
            assert size == request.mosaic.size
            (tile,) = request.mosaic.tiles
            assert tile.size[0] == pytest.approx((tile.box[2] - tile.box[0]) * WHOLE[0]), "at the same scale"


def test_on_a_hot_box_too_a_part_shows_what_moves_at_the_lower_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid was smaller than the picture: who stood at its edge was in no part, so the whole was examined."""
    each, spotter = spotting()
    monkeypatch.setattr(spotter, "preferred_size", lambda width, height: (416, 234))
    each.analysis.set_work(frame_selector.WorkShare(input_=0.75))
    parts = []
    for n in range(30):
        request = each.select(n, n / 5, yard((300 + 8 * n, 680), size=(1280, 720)))
        assert request is not None
        each.infer(request)
        parts += [request.mosaic] if request.mosaic else []
    assert len(parts) > 15
    assert all(tile.box[3] == 1 for mosaic in parts for tile in mosaic.tiles)


def test_what_is_found_in_a_part_is_told_where_it_is_in_the_whole() -> None:
    each, spotter = spotting()
    for n, (request, boxes) in enumerate(walked(each, spotter, 6)):
        (found,) = boxes.objects
        left = (300 + 8 * n) / 1280
        assert found.box == pytest.approx((left, 300 / 704, left + 40 / 1280, 340 / 704), abs=0.004), request.mosaic


def test_a_detector_to_which_a_part_costs_as_much_is_shown_the_whole() -> None:
    each, spotter = spotting()
    spotter.shape_step = 0
    each = FrameByFrame("gate", spotter, Following(spotter.labels), config.DetectConfig())
    assert all(request.mosaic is None for request, _ in walked(each, spotter, 3))


def test_where_all_moves_the_whole_is_shown() -> None:
    each, _spotter = spotting()
    for n in range(10):
        rows = [
            ((200 + 300 * k) + (8 * n if row % 2 else -8 * n), 40 + 200 * row) for k in range(4) for row in range(4)
        ]
        request = each.select(n, n / 5, yard(*rows))
        assert request is not None
        assert request.mosaic is None
        each.infer(request)


def test_somebody_who_is_cut_off_is_not_believed_and_the_whole_is_looked_at_next() -> None:
    each, spotter = spotting()
    walked(each, spotter, 2.2)
    request = each.select(11, 2.2, yard((388, 300)))
    assert request is not None
    assert request.mosaic is not None
    cut = Detections(np.array([[0.9, 0.4, 1.0, 0.6]], np.float32), np.array([0.9], np.float32), np.zeros(1, np.int32))
    assert each.result(request, cut).objects == ()
    following = each.select(12, 2.4, yard((396, 300)))
    assert following is not None
    assert following.mosaic is None


def test_after_a_look_that_failed_or_was_skipped_the_whole_is_looked_at() -> None:
    each, spotter = spotting()
    walked(each, spotter, 2.2)
    request = each.select(11, 2.2, yard((388, 300)))
    assert request is not None
    each.result(request, None)
    whole = each.select(12, 2.4, yard((396, 300)))
    assert whole is not None
    assert whole.mosaic is None
    later = [each.select(n, n / 5, yard((300 + 8 * n, 300))) for n in range(13, 17)]  # nobody has looked at `whole`
    assert any(each is not None and each.mosaic is None for each in later)


@pytest.mark.parametrize(("label", "at_first_s", "every_s"), [("car", 4.0, 4.0), ("person", 1.0, 2.0)])
def test_what_rests_is_looked_at_rarely(label: str, at_first_s: float, every_s: float) -> None:
    """The tracker says that nothing it follows needs a look: for a parked car the heartbeat is enough. For somebody who
    stands there it is not, since a rule may wait for them to have stayed long enough; who has only just stopped may
    walk on."""
    each, _spotter = spotting(label, heartbeat_s=4.0)
    times = []
    for n in range(300):
        request = each.select(n, n / 5, yard((300, 300)))
        if request is not None:
            each.infer(request)
            times.append(request.t)
    early = [t for t in times if 2 * QUIET_AFTER_S < t <= STOPPED_S]
    assert len(early) == pytest.approx((STOPPED_S - 2 * QUIET_AFTER_S) / at_first_s, abs=1)
    late = [t for t in times if t > STOPPED_S + 2]
    assert len(late) == pytest.approx((60 - STOPPED_S - 2) / every_s, abs=1)
    assert not each.analysis.probe.is_active(60.0), "and nearly all that is decoded meanwhile are key frames"


def test_when_all_have_gone_nothing_is_looked_at_that_was_seen_a_moment_ago() -> None:
    """The camera stays awake for a moment, lest they come back; the gate watches, the network has nothing to see."""
    each, spotter = spotting(heartbeat_s=4.0)
    walked(each, spotter, 3)
    requests = []
    for n in range(15, 60):
        request = each.select(n, n / 5, yard())
        if request is not None:
            each.infer(request)
            requests.append(request)
    assert requests[0].t == 3.0, "that somebody is gone is movement, too"
    last = max(request.t for request in requests if request.priority > 0)
    assert all(request.t - last >= WHOLE_EVERY_S for request in requests if request.t > last)
    back = each.select(60, 12.0, yard((420, 300)))
    assert back is not None, "who comes back is looked at at once"


def test_two_who_walk_far_apart_are_shown_side_by_side() -> None:
    """And what is between them is not: two small parts, as one picture."""
    each, _spotter = spotting()
    sides: set[int] = set()
    for n in range(15):
        places = (60 + 8 * n, 300), (1180 - 8 * n, 500)
        request = each.select(n, n / 5, yard(*places))
        assert request is not None
        boxes = each.infer(request)
        sides.add(1 if request.mosaic is None else len(request.mosaic.tiles))
        if n > 1:
            found = sorted(found.box for found in boxes.objects)
            for (x, y), box in zip(places, found, strict=True):
                assert box == pytest.approx((x / 1280, y / 704, (x + 40) / 1280, (y + 40) / 704), abs=0.004), request
        if request.mosaic is not None:
            assert request.mosaic.size[0] * request.mosaic.size[1] <= 0.6 * WHOLE[0] * WHOLE[1]
    assert sides == {1, 2}


@pytest.mark.parametrize(("label", "parts"), [("car", True), ("person", False)])
def test_where_more_than_three_people_walk_the_whole_is_shown(label: str, parts: bool) -> None:
    """They cross, and who is who may hang on little; vehicles park next to each other."""
    each, spotter = spotting(label)
    taken = walked(each, spotter, 3, (300, 400), (380, 400), (460, 400))
    assert any(request.mosaic is not None for request, _ in taken if request.t > 0.5) is parts


def test_a_parked_car_is_shown_wholly_or_not_at_all() -> None:
    spotter = Spotter()
    spotter.labels = ("car",)
    each = FrameByFrame("gate", spotter, Tracker(spotter.labels), config.DetectConfig(fps=5))
    taken = walked(each, spotter, 12, (520, 390), (700, 470))
    assert any(request.mosaic is not None and request.t > 8 for request, _ in taken)
    for request, boxes in taken:
        assert len(boxes.objects) == 3 or request.t < 1
        for part in request.mosaic.parts if request.mosaic is not None else ():
            for x, y in ((520, 390), (700, 470)):
                share = contained_share((x / 1280, y / 704, (x + 40) / 1280, (y + 40) / 704), part)
                assert share == 0 or share > 0.99, request


@pytest.mark.parametrize("turns", range(-3, 4))
def test_boxes_turn_with_the_picture_and_back(turns: int) -> None:
    box = (0.1, 0.2, 0.4, 0.9)
    assert upright_box(upright_box(box, turns), -turns) == pytest.approx(box)
    mark = np.zeros((10, 10), int)
    mark[2:9, 1:4] = 1
    x1, y1, x2, y2 = (round(10 * side) for side in upright_box(box, turns))
    turned = np.zeros((10, 10), int)
    turned[y1:y2, x1:x2] = 1
    assert (turned == np.rot90(mark, turns)).all()


def test_a_recording_of_one_second_that_loops_is_not_taken_for_a_frozen_picture() -> None:
    """With a plane each second, the tamper detector was shown the same frame for ever."""
    frames = [moving(n) for n in range(10)]
    for turn, frozen in ((frames, False), (frames[:1] * 10, True)):
        events: list[HealthEvent] = []
        tamper = TamperDetector("gate", config.HealthConfig(), (), events.append, mend=False)
        analysis = CameraAnalysis("gate", Blind(), CountingTracker, config.DetectConfig(), tamper=tamper)
        for n in range(300):
            frame = DecodedFrame(index=n, t=n / 10, av_frame=turn[n % 10])
            if analysis.begins_session(frame):
                analysis.start_session(frame)
            analysis.select(frame)
        assert [event.kind for event in events] == (["frozen"] if frozen else [])
