"""Pictures go into a network's input and boxes come back to the same place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.detect.letterbox import GREY, Letterbox, Placing

sides = st.integers(1, 3000)
placings = st.sampled_from(["stretch", "corner", "centre"])


@pytest.mark.parametrize(
    ("placing", "wanted"), [("stretch", (416, 416)), ("corner", (416, 234)), ("centre", (416, 234))]
)
def test_asks_for_the_size_that_fits(placing: Placing, wanted: tuple[int, int]) -> None:
    assert Letterbox(416, 416, placing).picture_size(1920, 1080) == wanted


def test_what_has_the_wanted_size_already_is_not_copied_when_stretched() -> None:
    picture = np.zeros((416, 416, 3), np.uint8)
    assert Letterbox(416, 416, "stretch").lay(picture) is picture


@pytest.mark.parametrize(("placing", "top"), [("corner", 0), ("centre", 20)])
def test_the_rest_is_grey(placing: Placing, top: int) -> None:
    laid = Letterbox(80, 80, placing).lay(np.full((100, 200, 3), 255, np.uint8))
    assert laid.shape == (80, 80, 3)
    assert (laid[top : top + 40] == 255).all()
    assert (laid[:top] == GREY).all()
    assert (laid[top + 40 :] == GREY).all()


@given(placings, sides, sides)
def test_the_wanted_size_is_a_fixed_point_and_fits(placing: Placing, width: int, height: int) -> None:
    letterbox = Letterbox(416, 320, placing)
    wanted = letterbox.picture_size(width, height)
    assert letterbox.picture_size(*wanted) == wanted
    assert 1 <= wanted[0] <= 416
    assert 1 <= wanted[1] <= 320


@given(placings, st.integers(40, 3000), st.integers(40, 3000))
def test_the_whole_picture_comes_back_as_the_whole_picture(placing: Placing, width: int, height: int) -> None:
    letterbox = Letterbox(416, 320, placing)
    laid = letterbox.lay(np.full((height, width, 3), 255, np.uint8))
    ys, xs = np.nonzero(laid[:, :, 0] == 255)
    box = np.array([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], np.float32)
    np.testing.assert_array_equal(letterbox.to_shares(box, width, height), [[0, 0, 1, 1]])


def test_boxes_in_the_grey_are_clipped_to_the_picture() -> None:
    box = np.array([[-50, 10, 900, 400]], np.float32)
    shares = Letterbox(416, 416, "corner").to_shares(box, 768, 576)
    assert shares.min() >= 0
    assert shares.max() <= 1
