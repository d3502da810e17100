"""The planes of a decoded picture as the tracker sees them."""

from __future__ import annotations

import av
import numpy as np
import pytest

from appliance.analysis.motion_gate import MotionGate
from appliance.media.frames import PLANES_WIDTH_MAX, FrameConverter

WIDTH, HEIGHT = 322, 180  # rows of it are padded


def frame(form: str) -> av.VideoFrame:
    """The left half red, the right half dark blue."""
    rgb = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    rgb[:, : WIDTH // 2] = (200, 40, 40)
    rgb[:, WIDTH // 2 :] = (20, 20, 120)
    return av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=form)


@pytest.mark.parametrize("form", ["yuv420p", "nv12", "yuv444p", "yuv422p", "yuv420p10le", "bgr24"])
def test_brightness_and_both_colours_lie_where_they_are(form: str) -> None:
    planes = FrameConverter().planes(frame(form))
    assert planes[0].shape == (HEIGHT, WIDTH)
    for plane, left, right in zip(planes, (91, 104, 198), (43, 172, 121), strict=True):
        rows, columns = plane.shape
        assert plane.dtype == np.uint8
        assert int(plane[rows // 2, columns // 4]) == pytest.approx(left, abs=3)
        assert int(plane[rows // 2, columns * 3 // 4]) == pytest.approx(right, abs=3)


def test_a_camera_without_colours_has_one_plane() -> None:
    (only,) = FrameConverter().planes(frame("gray"))
    assert only.shape == (HEIGHT, WIDTH)


def test_what_must_be_converted_is_made_no_wider_than_needed() -> None:
    wide = frame("yuv420p").reformat(width=1920, height=1080, format="yuv420p10le")
    planes = FrameConverter().planes(wide)
    assert planes[0].shape == (360, PLANES_WIDTH_MAX)


def test_plain_pictures_are_not_copied() -> None:
    shown = frame("yuv420p")
    first, again = FrameConverter().planes(shown)[0], FrameConverter().planes(shown)[0]
    assert np.shares_memory(first, again)


@pytest.mark.parametrize("size", [(1920, 2), (4096, 16), (2, 1080), (2, 2), (1, 1)])
@pytest.mark.parametrize("form", ["yuv420p", "yuv420p10le"])
def test_a_frame_of_hardly_any_height_has_a_motion_plane(size: tuple[int, int], form: str) -> None:
    """No camera sends it, but a damaged description of the stream may say so."""
    strip = frame("yuv420p").reformat(width=size[0], height=size[1], format=form)
    plane = FrameConverter().motion_plane(strip)
    assert plane.size
    gate = MotionGate()
    assert gate.measure(plane).whole
    assert gate.measure(plane).priority == 0
