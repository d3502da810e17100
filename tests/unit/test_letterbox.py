"""Pictures go into a network's input and boxes come back to the same place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.detect.letterbox import GREY, InputForm, Letterbox, Normalisation, Placing
from appliance.detect.network_inputs import InputBuffer, NetworkInputs, Numbers

sides = st.integers(1, 3000)
placings = st.sampled_from(["stretch", "corner", "centre"])


@pytest.mark.parametrize(
    ("placing", "wanted"), [("stretch", (416, 416)), ("corner", (416, 234)), ("centre", (416, 234))]
)
def test_asks_for_the_size_that_fits(placing: Placing, wanted: tuple[int, int]) -> None:
    assert Letterbox(416, 416, placing).preferred_size(1920, 1080) == wanted


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
    wanted = letterbox.preferred_size(width, height)
    assert letterbox.preferred_size(*wanted) == wanted
    assert 1 <= wanted[0] <= 416
    assert 1 <= wanted[1] <= 320


@given(placings, st.integers(40, 3000), st.integers(40, 3000))
def test_the_whole_frame_comes_back_as_the_whole_frame(placing: Placing, width: int, height: int) -> None:
    letterbox = Letterbox(416, 320, placing)
    laid = letterbox.lay(np.full((height, width, 3), 255, np.uint8))
    ys, xs = np.nonzero(laid[:, :, 0] == 255)
    box = np.array([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], np.float32)
    np.testing.assert_array_equal(letterbox.to_shares(box, width, height), [[0, 0, 1, 1]])


def test_boxes_in_the_grey_are_clipped_to_the_frame() -> None:
    box = np.array([[-50, 10, 900, 400]], np.float32)
    shares = Letterbox(416, 416, "corner").to_shares(box, 768, 576)
    assert shares.min() >= 0
    assert shares.max() <= 1


FREE = Letterbox(416, 416, "centre", step=32)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [((1920, 1080), (416, 288)), ((768, 576), (416, 352)), ((1080, 1920), (288, 416)), ((100, 60), (160, 96))],
    ids=str,
)
def test_a_free_input_is_small_and_lies_on_the_grid_of_the_whole_one(
    given: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert FREE.input_size(*given) == wanted
    assert all((416 - side) % 64 == 0 for side in wanted), "as many steps are left out on one side as on the other"
    assert FREE.lay(np.zeros((given[1], given[0], 3), np.uint8)).shape == (wanted[1], wanted[0], 3)


def test_a_part_of_a_frame_keeps_its_scale_and_fills_its_own_input() -> None:
    part = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    assert FREE.lay(part) is part
    small = FREE.lay(part[:50, :90])
    np.testing.assert_array_equal(small[23:73, 3:93], part[:50, :90])
    assert FREE.preferred_size(90, 50) == (416, 231), "a whole picture of that size is wanted larger"


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_there_are_few_shapes_and_the_scale_is_that_of_the_square(width: int, height: int) -> None:
    across, down = FREE.input_size(width, height)
    assert 32 <= across <= 416
    assert 32 <= down <= 416
    assert across % 32 == down % 32 == 0
    if max(width, height) > 416:
        assert FREE.preferred_size(width, height) == Letterbox(416, 416, "centre").preferred_size(width, height)


@given(st.integers(40, 1000), st.integers(40, 1000))
def test_boxes_come_back_from_a_free_input_too(width: int, height: int) -> None:
    laid = FREE.lay(np.full((height, width, 3), 255, np.uint8))
    ys, xs = np.nonzero(laid[:, :, 0] == 255)
    box = np.array([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], np.float32)
    np.testing.assert_array_equal(FREE.to_shares(box, width, height), [[0, 0, 1, 1]])


IMAGENET = Normalisation((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
@pytest.mark.parametrize("normalisation", [None, IMAGENET])
def test_a_frame_is_written_into_the_tensor_as_it_would_be_laid(
    dtype: Numbers, normalisation: Normalisation | None
) -> None:
    """Whatever lay there before it: larger, smaller, elsewhere, or the same."""
    letterbox = Letterbox(96, 96, "centre", step=32)
    inputs = NetworkInputs("images", dtype, 96, 96, "", free=True)
    buffer = InputBuffer(inputs, letterbox, InputForm("centre", normalisation=normalisation))
    random = np.random.default_rng(5)
    for width, height in [(96, 54), (96, 54), (70, 54), (54, 96), (64, 32), (90, 50), (200, 100), (96, 54), (7, 7)]:
        frame = random.integers(0, 256, (height, width, 3), np.uint8)
        planes = letterbox.lay(frame)[:, :, ::-1].transpose(2, 0, 1)
        if dtype is np.uint8:
            wanted = planes
        elif normalisation is None:
            wanted = planes * np.float32(1 / 255)
        else:
            mean, std = (np.array(each, np.float32)[:, None, None] for each in (normalisation.mean, normalisation.std))
            wanted = (planes - mean).astype(dtype) / std
        tensor = buffer.fill([frame])
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor, wanted.astype(dtype)[None])


def test_frames_of_one_run_lie_each_in_its_own_row() -> None:
    letterbox = Letterbox(64, 64, "corner")
    buffer = InputBuffer(NetworkInputs("images", np.float32, 64, 64, ""), letterbox, InputForm("centre", False, 1.0))
    frames = [np.full((36, 64, 3), 10, np.uint8), np.full((64, 20, 3), 200, np.uint8)]
    for _ in range(2):
        wanted = np.stack([letterbox.lay(frame).transpose(2, 0, 1) for frame in frames])
        np.testing.assert_array_equal(buffer.fill(frames), wanted)
        frames.reverse()
