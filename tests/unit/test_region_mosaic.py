"""Parts of one picture side by side: the same pixels, never over each other, and what is found told in its place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from appliance.analysis.region_mosaic import (
    TUNING,
    DetectorGrid,
    GridRect,
    Mosaic,
    choose_parts,
    lay_mosaic,
)
from appliance.detect.letterbox import Letterbox
from appliance.types import Box, Detections

GRID = DetectorGrid((416, 234), 32, 416)
NOISE = np.random.default_rng(5).integers(0, 256, (234, 416, 3)).astype(np.uint8)
LEFT: Box = (0.05, 0.4, 0.1, 0.6)
RIGHT: Box = (0.85, 0.5, 0.9, 0.9)


def mosaic(*moved: Box) -> Mosaic:
    made = lay_mosaic(choose_parts(moved, [], [], GRID), GRID)
    assert made is not None
    return made


def found(made: Mosaic, *pixels: tuple[float, float, float, float]) -> Detections:
    """Boxes in pixels of the mosaic, as a detector tells them."""
    boxes = (np.array(pixels, np.float32) / np.array(made.size * 2, np.float32)).astype(np.float32)
    return Detections(boxes, np.full(len(boxes), 0.9, np.float32), np.zeros(len(boxes), np.int32))


def test_the_grid_is_that_of_the_whole_picture_in_the_middle_of_its_input() -> None:
    assert GRID.cells == (13, 9)
    assert GRID.edge == (0, 27)
    assert GRID.pixels(GridRect(0, 0, 13, 9)) == (0, 0, 416, 234)
    assert GRID.pixels(GridRect(2, 1, 6, 5)) == (64, 5, 192, 133)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.75, 0.5])
@pytest.mark.parametrize("frame", [(1280, 720), (640, 480), (720, 1280), (500, 500), (1600, 500)])
def test_the_grid_holds_all_of_the_picture_where_the_network_has_it_at_any_resolution(
    frame: tuple[int, int], share: float
) -> None:
    network = Letterbox(416, 416, "centre", 32)
    full = network.preferred_size(*frame)
    size = round(full[0] * share), round(full[1] * share)
    grid, place = DetectorGrid(size, 32, max(full)), network.placement(*size)
    assert (*(32 * each for each in grid.cells), *grid.edge) == (*place.input_size, place.left, place.top)
    assert grid.box(GridRect(0, 0, *grid.cells)) == (0, 0, 1, 1)


def test_a_grid_holds_a_picture_whose_longer_side_is_no_multiple_of_its_step() -> None:
    grid = DetectorGrid((537, 384), 32, 537)
    assert grid.box(GridRect(0, 0, *grid.cells)) == (0, 0, 1, 1)


def test_tiles_show_the_very_pixels_of_the_whole_on_its_grid() -> None:
    made = mosaic(LEFT, RIGHT)
    assert len(made.tiles) == 2
    assert made.size[0] % 32 == made.size[1] % 32 == 0
    sheet = made.draw(NOISE)
    assert sheet.shape[1::-1] == made.size
    for tile in made.tiles:
        (x, y), (width, height), (left, top) = tile.position, tile.size, tile.corner
        assert (sheet[y : y + height, x : x + width] == NOISE[top : top + height, left : left + width]).all()
        assert (x - left - GRID.edge[0]) % 32 == (y - top - GRID.edge[1]) % 32 == 0


def test_tiles_do_not_lie_over_each_other_and_hold_all_that_moved() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        corners = random.uniform(0, 0.9, (random.integers(1, 7), 2))
        sizes = random.uniform(0.02, 0.1, corners.shape)
        moved = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(corners.tolist(), sizes.tolist(), strict=True)]
        parts = choose_parts(moved, [], [], GRID)
        assert 1 <= len(parts) <= TUNING.parts_max
        assert not any(a.overlaps(b) for a, b in itertools.combinations(parts, 2))
        made = lay_mosaic(parts, GRID)
        if made is None:
            continue
        assert made.size[0] * made.size[1] <= TUNING.share_max * 13 * 9 * 32 * 32
        for (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) in itertools.combinations((t.cells for t in made.tiles), 2):
            assert ax2 <= bx1 or bx2 <= ax1 or ay2 <= by1 or by2 <= ay1
        for box in moved:
            assert any(p[0] <= box[0] and p[1] <= box[1] and box[2] <= p[2] and box[3] <= p[3] for p in made.parts)


def test_what_is_found_in_a_tile_is_told_where_it_is_in_the_picture() -> None:
    made = mosaic(LEFT, RIGHT)
    for tile in made.tiles:
        x, y = tile.position
        whole, cut = made.split(found(made, (x + 40, y + 50, x + 60, y + 80)))
        assert len(cut) == 0
        left, top = tile.corner[0] + 40, tile.corner[1] + 50
        assert whole.boxes[0] == pytest.approx((left / 416, top / 234, (left + 20) / 416, (top + 30) / 234), abs=1e-5)


def test_what_reaches_to_where_a_part_was_cut_is_not_believed_and_what_reaches_the_pictures_end_is() -> None:
    made = mosaic(LEFT, RIGHT)
    left, right = made.tiles
    assert left.box[0] == 0
    assert right.box[2] == 1
    inner_edge, outer_edge = left.cells[2], left.cells[0]
    whole, cut = made.split(
        found(made, (inner_edge - 30, 40, inner_edge + 9, 90), (outer_edge, 40, outer_edge + 30, 90))
    )
    assert (len(whole), len(cut)) == (1, 1)
    assert cut.boxes[0][2] == pytest.approx(left.box[2])
    assert whole.boxes[0][0] == 0


def test_who_walks_side_by_side_is_one_part_and_a_crowd_is_the_whole_picture() -> None:
    assert len(choose_parts([(0.3, 0.4, 0.35, 0.6), (0.42, 0.4, 0.47, 0.6)], [], [], GRID)) == 1
    crowd = [(0.08 * k, 0.9 * (k % 2), 0.08 * k + 0.05, 0.9 * (k % 2) + 0.05) for k in range(12)]
    parts = choose_parts(crowd, [], [], GRID)
    assert not parts or lay_mosaic(parts, GRID) is None


def test_a_part_is_widened_so_that_nobody_is_cut_in_two() -> None:
    (alone,) = choose_parts([LEFT], [], [], GRID)
    edge = GRID.box(alone)[2]
    parked: Box = (edge - 0.02, 0.5, edge + 0.1, 0.7)
    (wider,) = choose_parts([LEFT], [], [parked], GRID)
    assert GRID.box(wider)[2] >= parked[2]
    far: Box = (0.7, 0.5, 0.8, 0.7)
    assert choose_parts([LEFT], [], [far], GRID) == (alone,)


def test_nothing_to_be_shown_is_the_whole_picture() -> None:
    assert choose_parts([], [], [(0.1, 0.1, 0.2, 0.2)], GRID) == ()
