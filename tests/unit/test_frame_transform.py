"""Weather changes what a picture looks like, not where things are in it; and always in the same way."""

from __future__ import annotations

from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from av.video.reformatter import ColorRange
from numpy.typing import NDArray

from appliance.replay.footage_conditions import CONDITION_KINDS, KIND_BY_NAME, ConditionKind, ConditionSet
from appliance.replay.frame_transform import FrameTransform, frame_transform_of, shake_offset

WIDTH, HEIGHT = 640, 360
BLOCK = (60, 130)
T = 10.5  # inside the window of every example below
# How far (pixels) an edge of the block may seem to be from where it is. Blur and fog soften it, coarse pixels and JPEG
# blocks round it, drops and flakes lie on it.
EDGE_PX = 4.0
PICTURES = [kind for kind in CONDITION_KINDS if not kind.stream and kind.name != "black"]


def text_of(name: str) -> str:
    return f"{name}@{T - 0.1}s" if name == "flash" else name


def street(frame: int) -> NDArray[np.uint8]:
    """Rough grey ground and, on it, one light block that walks."""
    rough = np.random.default_rng(1).integers(60, 95, (HEIGHT // 4, WIDTH // 4, 3), np.uint8)
    image = np.asarray(cv2.resize(rough, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC), np.uint8)
    x, y, width, height = place(frame)
    image[y : y + height, x : x + width] = (215, 225, 205)
    return image


def place(frame: int) -> tuple[int, int, int, int]:
    return 120 + 13 * frame % 380, 170, *BLOCK


def frame_of(frame: int) -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(street(frame), format="bgr24").reformat(format="yuv420p")


def found(image: av.VideoFrame) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of the largest light patch, in pixels of the whole-sized picture."""
    grey = cv2.GaussianBlur(image.to_ndarray(format="gray8"), (0, 0), 1.5)
    ground, top = np.median(grey), np.percentile(grey, 97.5)
    _, light = cv2.threshold(grey, (float(ground) + float(top)) / 2, 255, cv2.THRESH_BINARY)
    light = cv2.morphologyEx(light, cv2.MORPH_OPEN, np.ones((9, 9), np.uint8))
    _, _, stats, _ = cv2.connectedComponentsWithStats(light)
    x, y, width, height, _ = max(stats[1:].tolist(), key=lambda row: row[4])
    scale = WIDTH / image.width
    return x * scale, y * scale, (x + width) * scale, (y + height) * scale


def truth(condition_set: ConditionSet, frame: int) -> tuple[float, float, float, float]:
    x, y, width, height = place(frame)
    dx, dy = shake_offset(condition_set, frame, T)
    return x + dx, y + dy, x + width + dx, y + height + dy


def off_by(condition_set: ConditionSet, frames: range) -> list[float]:
    """Of each frame, how far the worst edge is from the truth."""
    transform = FrameTransform(condition_set)
    pairs = [(found(transform(n, T, frame_of(n))), truth(condition_set, n)) for n in frames]
    return [max(abs(a - b) for a, b in zip(seen, true, strict=True)) for seen, true in pairs]


@pytest.mark.parametrize("kind", PICTURES, ids=lambda kind: kind.name)
def test_under_each_condition_the_block_is_where_the_truth_says(kind: ConditionKind) -> None:
    condition_set = ConditionSet.parse([text_of(kind.name)], 5)
    errors = off_by(condition_set, range(24))
    assert np.median(errors) <= EDGE_PX
    # Dirt and a moth may hide an edge now and then; nothing else may.
    assert np.quantile(errors, 0.8 if kind.name in ("dirt", "insects") else 1.0) <= 2 * EDGE_PX


def test_all_at_once_it_is_still_there() -> None:
    errors = off_by(ConditionSet.parse(["rain,fog:150m,night:10lux,shake,noise,blur,jpeg:40,scale"], 2), range(12))
    assert np.median(errors) <= 1.5 * EDGE_PX


def test_a_truth_that_is_not_shaken_along_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    condition_set = ConditionSet.parse(["shake:20px"], 5)
    assert max(off_by(condition_set, range(24))) <= EDGE_PX
    monkeypatch.setattr("test_frame_transform.shake_offset", lambda *_: (0.0, 0.0))
    assert max(off_by(condition_set, range(24))) > 3 * EDGE_PX


def test_the_mast_never_moves_further_than_its_limit_and_not_in_leaps() -> None:
    condition_set = ConditionSet.parse(["shake:3px"], 1)
    way = np.array([shake_offset(condition_set, n, n / 15) for n in range(600)])
    assert np.abs(way).max() <= 3.0
    assert np.abs(way).max() > 2.0
    assert np.abs(np.diff(way, axis=0)).max() <= 2.5
    assert np.ptp(way, axis=0).min() > 3.0


def pixels(image: av.VideoFrame) -> bytes:
    return image.to_ndarray().tobytes()


@pytest.mark.parametrize("kind", [*PICTURES, KIND_BY_NAME["black"]], ids=lambda kind: kind.name)
def test_the_effects_on_a_frame_do_not_depend_on_which_frames_were_examined(kind: ConditionKind) -> None:
    name = kind.name
    condition_set = ConditionSet.parse([f"black:2s@{T - 1}s" if name == "black" else text_of(name)], 3)
    transform = FrameTransform(condition_set)
    for n in (1, 2, 5):
        transform(n, T - 0.4 + n / 15, frame_of(n))
    alone = pixels(FrameTransform(condition_set)(7, T, frame_of(7)))
    assert pixels(transform(7, T, frame_of(7))) == alone
    assert pixels(transform(7, T, frame_of(7))) == alone
    assert alone != pixels(frame_of(7))


@pytest.mark.parametrize("name", ["rain", "snow", "fog", "night", "dirt", "insects", "shake", "noise"])
def test_another_seed_is_another_day_and_another_frame_another_moment(name: str) -> None:
    one, other = (FrameTransform(ConditionSet.parse([name], seed)) for seed in (1, 2))
    assert pixels(one(4, T, frame_of(4))) != pixels(other(4, T, frame_of(4)))
    same = frame_of(4)
    later = pixels(one(40, T + 2.4, same))
    assert (pixels(one(4, T, same)) == later) is (name in ("dirt",))


def test_one_condition_does_not_change_the_randomness_of_another() -> None:
    plain, much = ConditionSet.parse(["shake"], 4), ConditionSet.parse(["rain,fog,shake,drop:5%"], 4)
    assert [shake_offset(plain, n, 1.0) for n in range(9)] == [shake_offset(much, n, 1.0) for n in range(9)]


def test_a_condition_begins_and_ends_at_its_time() -> None:
    transform = FrameTransform(ConditionSet.parse(["exposure:2ev@10s-20s"]))
    light = [transform(0, t, frame_of(0)).to_ndarray(format="gray8").mean() for t in (9.9, 10.0, 19.9, 20.0)]
    assert light[0] == light[3] < light[1] == light[2]
    assert pixels(transform(0, 5.0, frame_of(0))) == pixels(frame_of(0))


def test_switching_to_infrared_bleaches_the_frame_for_a_moment_and_takes_the_colour() -> None:
    transform = FrameTransform(ConditionSet.parse(["ir@20s"]))
    before, at, after = (transform(0, t, frame_of(0)).to_ndarray() for t in (19.9, 20.0, 22.0))
    assert at[:HEIGHT].mean() > 1.3 * after[:HEIGHT].mean()
    assert set(np.unique(after[HEIGHT:])) == {128}
    assert len(np.unique(before[HEIGHT:])) > 3


def test_a_flash_is_gone_after_half_a_second() -> None:
    transform = FrameTransform(ConditionSet.parse(["flash@10s"]))
    light = [transform(0, t, frame_of(0)).to_ndarray(format="gray8").mean() for t in (9.9, 10.0, 10.25, 10.6)]
    assert light[0] == light[3] < light[2] < light[1]


def test_a_turned_frame_comes_out_upright_with_rain_falling_down() -> None:
    """A phone's clip: the display matrix says a quarter turn."""
    turned = frame_of(0)
    upright = FrameTransform(ConditionSet.parse(["blur:0.3"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("appliance.replay.image_effects.quarter_turns", lambda frame: 1)
        shown = upright(0, 0.0, turned)
    assert (shown.width, shown.height, shown.rotation) == (HEIGHT, WIDTH, 0)
    expected = np.rot90(turned.to_ndarray(format="gray8"), 1).astype(int)
    assert np.abs(shown.to_ndarray(format="gray8").astype(int) - expected).mean() < 2


@pytest.mark.parametrize("name", ["yuv420p", "yuvj420p", "nv12", "yuv444p", "gray", "yuv420p10le"])
def test_frames_of_any_format_and_odd_sizes_are_taken(name: str) -> None:
    odd = frame_of(0).reformat(641, 359, format=name)
    odd.pts, odd.time_base = 77, Fraction(1, 90)
    shown = FrameTransform(ConditionSet.parse(["rain,shake,jpeg"]))(0, 0.0, odd)
    assert (shown.width, shown.height, shown.format.name, shown.pts) == (640, 358, "yuv420p", 77)


def test_narrow_range_stays_narrow_and_full_range_full() -> None:
    for name, black in (("yuv420p", 16), ("yuvj420p", 0)):
        plain = frame_of(0).reformat(format=name)
        shown = FrameTransform(ConditionSet.parse(["black@0s"]))(0, 0.5, plain)
        assert shown.to_ndarray()[:HEIGHT].max() == black
        assert shown.color_range == (ColorRange.JPEG if black == 0 else ColorRange.MPEG)
        bright = FrameTransform(ConditionSet.parse(["exposure:6ev"]))(0, 0.5, plain)
        assert bright.to_ndarray()[:HEIGHT].max() == (255 if black == 0 else 235)


def test_no_conditions_and_stream_faults_need_no_transform() -> None:
    assert frame_transform_of(ConditionSet.parse([])) is None
    assert frame_transform_of(ConditionSet.parse(["drop,jitter"])) is None
