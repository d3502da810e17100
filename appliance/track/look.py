"""One look while it is being understood: what was found, in which part of the picture, and who was taken for whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes, describe
from appliance.types import Box, Detections

Floats = NDArray[np.float64]

HIGH = 0.4  # scores from here on take part in the first stage, lower ones only continue what is known


class Look:
    """What was found, in plain numbers, a row each: boxes, scores, classes, groups (the class each may be mistaken
    within).

    planes: the picture; parts: those of it that were looked at, none: all of it. taken: track row to detection. State
    besides: what those who were asked for look like.
    """

    __slots__ = ("_boxes", "_known", "boxes", "class_ids", "groups", "parts", "planes", "scores", "taken")

    def __init__(self, found: Detections, group_of: Sequence[int], planes: Planes, parts: Sequence[Box]) -> None:
        self._boxes = found.boxes
        self._known: dict[int, Floats] = {}
        self.boxes: list[Box] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in found.boxes.tolist()]
        self.scores: list[float] = found.scores.tolist()
        self.class_ids: list[int] = found.class_ids.tolist()
        self.groups = [group_of[class_id] for class_id in self.class_ids]
        self.planes = planes
        self.parts = tuple(parts)
        self.taken: dict[int, int] = {}

    def free(self, least: float, most: float = 2.0) -> list[int]:
        """Which detections with a score from `least` to below `most` no track has."""
        used = set(self.taken.values())
        return [index for index, score in enumerate(self.scores) if least <= score < most and index not in used]

    def appearance(self, wanted: Iterable[int]) -> list[Floats]:
        """What the detections `wanted` look like (`describe`); only where there is a picture."""
        rows = list(wanted)
        if any(row not in self._known for row in rows):
            # Whoever was surely seen will most likely be asked for, too: to describe all at once costs little more.
            likely = {*rows, *(row for row, score in enumerate(self.scores) if score >= HIGH)}
            new = sorted(likely.difference(self._known))
            self._known.update(zip(new, describe(self.planes, self._boxes[new]), strict=True))
        return [self._known[row] for row in rows]


def watched(box: Box, parts: Iterable[Box]) -> bool:
    """Whether `box`, as far as it is in the picture, lies wholly in one of `parts`.

    What stands there would have been found; what an inner edge cuts is not trusted.
    """
    x1, y1, x2, y2 = clipped(box)
    return any(
        x1 >= part[0] - 1e-6 and y1 >= part[1] - 1e-6 and x2 <= part[2] + 1e-6 and y2 <= part[3] + 1e-6
        for part in parts
    )


def apart(box: Box, parts: Iterable[Box]) -> bool:
    """Whether `box` lies wholly outside all of `parts`."""
    return all(box[2] <= part[0] or box[0] >= part[2] or box[3] <= part[1] or box[1] >= part[3] for part in parts)


def clipped(box: Box) -> Box:
    """What of `box` is in the picture."""
    x1, y1, x2, y2 = box
    return min(1.0, max(0.0, x1)), min(1.0, max(0.0, y1)), min(1.0, max(0.0, x2)), min(1.0, max(0.0, y2))
