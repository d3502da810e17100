"""A close-up for a second look: the surroundings of one object, in the size in which the network sees it best. Pure.

Larger is not better. A network sees best what is as large as what it learnt from, small parts of pictures: an object
that is enlarged to two fifths of the input is missed more often than one of a quarter (docs/second_look.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.types import Box, Detections, Found

CONTEXT = 2.5  # the side of the close-up, in longer sides of the box
SHARE = 0.7  # of the network's input that the close-up takes, so that the object takes 0.28 of it
SIDE_MIN = 96  # pixels of the camera's picture

Picture = NDArray[np.uint8]
Region = tuple[int, int, int, int]
"""left, top, right, bottom, in pixels."""


def region_of(box: Box, width: int, height: int, step: int) -> Region:
    """The square around `box` (shares) in a picture of `width` x `height`, moved or cut to lie in it.

    step: see `size_of`. A network of fixed shape sees as much more around the object as there is room for.
    """
    context = CONTEXT if step else CONTEXT / SHARE
    x1, y1, x2, y2 = box
    side = max((x2 - x1) * width * context, (y2 - y1) * height * context, SIDE_MIN)
    left, right = _span((x1 + x2) / 2 * width, side, width)
    top, bottom = _span((y1 + y2) / 2 * height, side, height)
    return left, top, right, bottom


def size_of(whole: tuple[int, int], step: int) -> tuple[int, int]:
    """The (width, height) of the close-up. whole: in which the network wants a whole picture of that shape; step: it
    takes smaller ones at less cost, in multiples of this (0: it does not)."""
    if not step:
        return whole
    longer = max(whole)
    side = max(step, int(longer * SHARE) // step * step)
    return max(1, round(whole[0] * side / longer)), max(1, round(whole[1] * side / longer))


def close_up(image: Picture, region: Region, size: tuple[int, int]) -> Picture:
    """The region of `image` (H, W, 3) in `size` (width, height), enlarged or scaled down."""
    left, top, right, bottom = region
    how = cv2.INTER_LINEAR if size[0] > right - left else cv2.INTER_AREA
    return np.ascontiguousarray(cv2.resize(image[top:bottom, left:right], size, interpolation=how), np.uint8)


def told(seen: Detections, labels: Sequence[str], region: Region, size: tuple[int, int]) -> tuple[Found, ...]:
    """What was seen in the region, in shares of the whole picture of `size` (width, height)."""
    return tuple(
        Found(label=labels[int(kind)], score=round(float(score), 3), box=_placed(box, region, size))
        for box, score, kind in zip(seen.boxes.tolist(), seen.scores, seen.class_ids, strict=True)
    )


def _placed(box: Sequence[float], region: Region, size: tuple[int, int]) -> Box:
    x1, y1, x2, y2 = box
    left, top, right, bottom = region
    across, down = right - left, bottom - top
    return (
        round((left + x1 * across) / size[0], 4),
        round((top + y1 * down) / size[1], 4),
        round((left + x2 * across) / size[0], 4),
        round((top + y2 * down) / size[1], 4),
    )


def _span(middle: float, length: float, limit: int) -> tuple[int, int]:
    """`length` pixels around `middle`, moved inward where they would leave 0..limit."""
    whole = max(1, min(round(length), limit))
    begin = min(max(0, round(middle - whole / 2)), limit - whole)
    return begin, begin + whole
