"""One look while it is being understood: what was found, in which part of the picture, and who was taken for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes
from appliance.track.association import cover
from appliance.types import Box

Floats = NDArray[np.float64]

# A newcomer whose box lies to such a part in one that is taken (or the other way round) is the same object twice.
DOUBLE = 0.7


@dataclass(slots=True)
class Look:
    """Boxes (N, 4), scores, classes, groups (the class each may be mistaken within) and what they look like, if known.

    planes: the picture; region: the part of it that was looked at, None: all. taken: track row to detection.
    """

    boxes: Floats
    scores: Floats
    class_ids: NDArray[np.int32]
    groups: NDArray[np.intp]
    appearance: Floats | None
    planes: Planes
    region: Box | None
    taken: dict[int, int] = field(default_factory=dict)

    def free(self, wanted: NDArray[np.bool_]) -> list[int]:
        used = set(self.taken.values())
        return [index for index in np.flatnonzero(wanted).tolist() if index not in used]

    def doubles(self, index: int, others: Iterable[int], held: Floats, held_groups: NDArray[np.intp]) -> bool:
        """Whether a box is one of `others` again: half a person, or a van that is also a truck; or part of what is
        `held` (M, 4), of the groups (M,)."""
        group = self.groups[index]
        rows = [other for other in others if self.groups[other] == group]
        there = np.concatenate([self.boxes[rows], held[held_groups == group]]) if len(held) else self.boxes[rows]
        return bool(len(there)) and bool((cover(self.boxes[[index]], there) > DOUBLE).any())


def watched(boxes: Floats, region: Box) -> NDArray[np.bool_]:
    """(N,): which of `boxes` (N, 4), as far as they are in the picture, lie wholly in `region`.

    What stands there would have been found; what an inner edge cuts is not trusted.
    """
    seen = np.clip(boxes, 0.0, 1.0)
    x1, y1, x2, y2 = region[0] - 1e-6, region[1] - 1e-6, region[2] + 1e-6, region[3] + 1e-6
    return np.asarray((seen[:, 0] >= x1) & (seen[:, 1] >= y1) & (seen[:, 2] <= x2) & (seen[:, 3] <= y2))


def apart(boxes: Floats, region: Box) -> NDArray[np.bool_]:
    """(N,): which of `boxes` (N, 4) lie wholly outside `region`."""
    x1, y1, x2, y2 = region
    return np.asarray((boxes[:, 2] <= x1) | (boxes[:, 0] >= x2) | (boxes[:, 3] <= y1) | (boxes[:, 1] >= y2))
