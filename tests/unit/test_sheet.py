"""Small pictures share a call: laid on a sheet, told apart, and each is answered as if it had been alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.clock import ManualClock
from appliance.inference.scheduler import MeasuredBatch, SingleFrame
from appliance.inference.sheet_packing import GAP, STEP, SheetCell, Sheets, company_of, lay_out, tell_apart
from appliance.types import Detections

SHEET = (416, 416)


class Spotter:
    """Finds white rectangles on whatever it is shown, exactly. Its calls take what `cost` says of their number."""

    batch_max = 1
    sheet: tuple[int, int] | None = SHEET

    def __init__(self, clock: ManualClock | None = None, cost_s: Sequence[float] = ()) -> None:
        self.calls: list[list[tuple[int, int]]] = []
        self._clock, self._cost_s = clock, cost_s

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return 416, 416 * height // width

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.calls.append([(each.shape[1], each.shape[0]) for each in pictures])
        if self._clock is not None and pictures:
            self._clock.advance(self._cost_s[len(pictures) - 1])
        return [spots(each) for each in pictures]


def spots(picture: NDArray[np.uint8]) -> Detections:
    """Connected white rectangles, no two touching; the class is how white they are below 255."""
    import cv2

    mask = (picture[:, :, 0] > 200).astype(np.uint8)
    _, _, rows, _ = cv2.connectedComponentsWithStats(mask)
    found = sorted(tuple(map(int, row[:4])) for row in rows[1:])
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in found], np.float32).reshape(-1, 4)
    shares = boxes / np.array(picture.shape[1::-1] * 2, np.float32)
    count = len(found)
    return Detections(shares.astype(np.float32), np.full(count, 0.9, np.float32), np.zeros(count, np.int32))


def scene(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """A dark picture with a few white rectangles."""
    dice = random.Random(seed)
    picture = np.full((height, width, 3), 20, np.uint8)
    for x in range(4, width - 24, 28):
        y = dice.randint(2, height - 22)
        picture[y : y + dice.randint(8, 20), x : x + dice.randint(8, 20)] = 255
    return picture


@pytest.mark.parametrize("seed", range(20))
def test_pictures_never_touch_and_lie_on_the_grid(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [(dice.randint(16, 300), dice.randint(16, 200)) for _ in range(dice.randint(1, 8))]
    cells = lay_out(sizes, SHEET, sheets_max=2)
    if not cells:
        return
    assert [(cell.width, cell.height) for cell in cells] == sizes
    for n, one in enumerate(cells):
        assert one.x % STEP == one.y % STEP == 0
        assert one.x + one.width <= SHEET[0]
        assert one.y + one.height <= SHEET[1]
        for other in cells[n + 1 :]:
            apart_x = max(other.x - one.x - one.width, one.x - other.x - other.width)
            apart_y = max(other.y - one.y - one.height, one.y - other.y - other.height)
            assert one.sheet != other.sheet or max(apart_x, apart_y) >= GAP


def test_what_does_not_fit_is_not_squeezed_in() -> None:
    assert lay_out([(416, 416)], SHEET)
    assert not lay_out([(416, 416), (32, 32)], SHEET)
    assert not lay_out([(417, 20)], SHEET)
    assert len(lay_out([(416, 234), (192, 128), (160, 128)], SHEET)) == 3, "below a wide picture there is room"


def test_packed_answers_are_those_that_each_picture_would_have_had_alone() -> None:
    pictures = [scene(416, 234, 1), scene(160, 128, 2), scene(192, 96, 3)]
    together, spotter = Sheets(SHEET, SingleFrame()), Spotter()
    answers = together.ask(spotter, pictures)
    assert spotter.calls == [[SHEET]]
    for picture, answer in zip(pictures, answers, strict=True):
        alone = spots(picture)
        order = np.lexsort(answer.boxes.T)
        np.testing.assert_allclose(answer.boxes[order], alone.boxes[np.lexsort(alone.boxes.T)], atol=1e-5)
        assert len(answer) > 3


def test_a_whole_picture_and_what_does_not_fit_after_all_are_handed_on_as_they_are() -> None:
    together, spotter = Sheets(SHEET, SingleFrame()), Spotter()
    together.ask(spotter, [scene(416, 234, 1)])
    together.ask(spotter, [scene(416, 416, 1), scene(160, 128, 2)])
    assert together.ask(spotter, []) == []
    assert spotter.calls == [[(416, 234)], [(416, 416), (160, 128)], []]


def test_a_part_by_itself_is_shown_at_the_same_scale_as_among_others() -> None:
    """A detector would enlarge it to its input."""
    together, spotter = Sheets(SHEET, SingleFrame()), Spotter()
    (alone,) = together.ask(spotter, [scene(160, 128, 2)])
    assert spotter.calls == [[SHEET]]
    np.testing.assert_array_equal(alone.boxes, together.ask(spotter, [scene(160, 128, 2), scene(192, 96, 3)])[0].boxes)


def test_a_box_across_the_gap_belongs_to_nobody() -> None:
    """A network may take two halves of two people for one; nobody is told of it."""
    cells = [SheetCell(0, 0, 0, 100, 100), SheetCell(0, 128, 0, 100, 100)]
    boxes = np.array(
        [
            [10, 10, 50, 90],  # in the first
            [60, 10, 110, 90],  # over its edge, but not to the neighbour: cut off there
            [40, 10, 150, 90],  # over both
            [102, 10, 126, 90],  # in the gap
            [150, 10, 200, 90],  # in the second
        ],
        np.float32,
    )
    seen = Detections(boxes / 416, np.linspace(0.9, 0.5, 5, dtype=np.float32), np.arange(5, dtype=np.int32))
    first, second = tell_apart([seen], cells, SHEET)
    np.testing.assert_allclose(first.boxes, [[0.1, 0.1, 0.5, 0.9], [0.6, 0.1, 1.0, 0.9]], atol=1e-5)
    np.testing.assert_allclose(second.boxes, [[0.22, 0.1, 0.72, 0.9]], atol=1e-5)
    assert (first.class_ids.tolist(), second.class_ids.tolist()) == ([0, 1], [4])
    assert (first.boxes.dtype, first.scores.dtype, first.class_ids.dtype) == (np.float32, np.float32, np.int32)


def test_only_what_fits_together_is_taken_together() -> None:
    together = Sheets(SHEET, SingleFrame())
    assert together.fits([(416, 234), (192, 128)])
    assert not together.fits([(416, 234), (416, 234)])
    assert not together.fits([(192, 128), (0, 0)]), "of unknown size"
    assert Sheets(SHEET, MeasuredBatch([1.0, 1.1])).fits([(416, 234), (416, 234)]), "a batch of two sheets"


def test_a_detector_that_says_nothing_is_handed_one_picture_at_a_time() -> None:
    class Plain(Spotter):
        sheet = None

    assert isinstance(company_of(Plain(), ManualClock()), SingleFrame)
    assert isinstance(company_of(Spotter(), ManualClock()), Sheets)


def test_a_batch_is_as_large_as_measuring_says_that_it_pays() -> None:
    """An accelerator says what it can take; what it gains is seen by trying (here: nothing from four to eight)."""
    clock = ManualClock()
    gains = Spotter(clock, [0.010, 0.012, 0.014, 0.016, 0.022, 0.026, 0.030, 0.034])
    gains.batch_max, gains.sheet = 8, None
    company = company_of(gains, clock)
    assert isinstance(company, MeasuredBatch)
    assert company.most == 4
    assert company.seconds([0.010] * 4) == pytest.approx(0.016)
    assert company.fits([(416, 234)] * 4)
    assert not company.fits([(416, 234), (192, 128)]), "pictures of one size"
    assert not company.fits([(416, 234)] * 5)

    nothing = Spotter(clock, [0.010 * n for n in range(1, 9)])
    nothing.batch_max, nothing.sheet = 8, None
    assert isinstance(company_of(nothing, clock), SingleFrame)
    assert max(len(call) for call in nothing.calls) == 2, "found out cheaply"
