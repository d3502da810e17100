"""Which part of a picture the detector is shown while something moves, so that it costs by what moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import fitted
from appliance.ingest.gate import joined
from appliance.types import Box, Detections, TrackedObject

# In the detector's pixels: a network needs some of what is around an object to know it. Chosen on PETS and the
# rendered clips: docs/gate.md.
AROUND_MOVED = 32
AROUND_FOLLOWED = 24
SIDE_MIN = 128
SURE = 0.5
SHARE_MAX = 0.6  # a part that is hardly smaller than the whole saves nothing, and sees less
CUT = 2.5  # pixels of the detector's: a box that ends so near to where the part was cut goes on beyond it
TOLD_MIN = 0.3  # a cut box of less is no reason to look at the whole picture


def choose(moved: Iterable[Box], followed: Iterable[Box], size: tuple[int, int], step: int) -> Box | None:
    """The part that holds what moved and what is followed, with what is around it; None: look at the whole picture.

    Boxes in shares of the picture. size: (width, height) in which the detector is shown the whole picture; step: what
    its sides are rounded up to. None too when there is nothing to be shown.
    """
    width, height = size
    parts = [_grown(box, AROUND_MOVED / width, AROUND_MOVED / height) for box in moved]
    parts += [_grown(box, AROUND_FOLLOWED / width, AROUND_FOLLOWED / height) for box in followed]
    if not parts:
        return None
    held = parts[0]
    for part in parts[1:]:
        held = joined(held, part)
    full = max(size)
    left, right, across = _side(held[0], held[2], width, full, step)
    top, bottom, down = _side(held[1], held[3], height, full, step)
    if across * down > SHARE_MAX * fitted(width, full, step) * fitted(height, full, step):
        return None
    return left, top, right, bottom


def known(followed: Iterable[Box], objects: Sequence[TrackedObject]) -> bool:
    """Whether somebody was found just now, and all that is followed surely.

    At the edge of what a network can see, a person is found in one look and not in the next, and less of the
    surroundings tips the scales: then the whole picture is looked at more often.
    """
    sure = [each.box for each in objects if each.score >= SURE]
    return bool(sure) and all(any(within(box, each) > 0.5 for each in sure) for box in followed)


def size_of(part: Box, size: tuple[int, int], step: int) -> tuple[int, int]:
    """(width, height) in which that part is shown, so that it is seen at the scale of the whole."""
    width, height = (part[2] - part[0]) * size[0], (part[3] - part[1]) * size[1]
    return _near(width, step), _near(height, step)


def placed(found: Detections, part: Box) -> Detections:
    """What was found in a part, in shares of the whole picture."""
    x1, y1, x2, y2 = part
    scale = np.array([x2 - x1, y2 - y1, x2 - x1, y2 - y1], np.float32)
    boxes = found.boxes * scale + np.array([x1, y1, x1, y1], np.float32)
    return Detections(boxes.astype(np.float32), found.scores, found.class_ids)


def cut_off(found: Detections, part: Box, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(N,) which boxes (shares of the whole picture) end where the part was cut, and not where the picture ends."""
    near = np.array([CUT / size[0], CUT / size[1]] * 2, np.float32)
    inner = np.array([part[0] > 0, part[1] > 0, part[2] < 1, part[3] < 1])
    return np.asarray(((np.abs(found.boxes - np.array(part, np.float32)) <= near) & inner).any(axis=1), np.bool_)


def within(box: Sequence[float], other: Sequence[float]) -> float:
    """Which part of `box` lies in `other`, 0..1."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return width * height / area if width > 0 and height > 0 and area > 0 else 0.0


def _grown(box: Box, x: float, y: float) -> Box:
    """With at least so much around it, and a quarter of its own size."""
    x, y = max(x, (box[2] - box[0]) / 4), max(y, (box[3] - box[1]) / 4)
    return max(0.0, box[0] - x), max(0.0, box[1] - y), min(1.0, box[2] + x), min(1.0, box[3] + y)


def _side(low: float, high: float, pixels: int, full: int, step: int) -> tuple[float, float, int]:
    """One side as (from, to) in shares, and how many pixels the network gets of it.

    It begins where a convolutional network meets the same grid as in the whole picture, which lies in the middle of its
    input (see `fitted`): elsewhere the scores of small people change by 0.1 either way. So does a part at the picture's
    edge, which is laid in the middle of its own: it is as many steps long as the whole, or two, four … fewer.
    """
    cells = fitted(pixels, full, step) // step
    edge = (cells * step - pixels) // 2
    first = math.floor((low * pixels + edge) / step + 1e-6)
    last = math.ceil((high * pixels + edge) / step - 1e-6)
    while last - first < min(cells, SIDE_MIN // step):
        first, last = max(0, first - 1), min(cells, last + (1 if first == 0 else 0))
    if (first == 0 or last == cells) and (last - first) % 2 != cells % 2:
        first, last = (0, last + 1) if first == 0 else (first - 1, cells)
    if first == 0:  # what is cut at the far end is laid in the middle, too
        return 0.0, min(1.0, (last * step - 2 * edge) / pixels), last * step
    if last == cells:
        return first * step / pixels, 1.0, (last - first) * step
    return (first * step - edge) / pixels, (last * step - edge) / pixels, (last - first) * step


def _near(pixels: float, step: int) -> int:
    """To the multiple of `step` that it was before it was taken to even pixels of the camera's; else as it is."""
    whole = step * max(1, round(pixels / step))
    return whole if abs(whole - pixels) <= 4 else max(1, round(pixels))
