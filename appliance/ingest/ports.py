"""What the ingest process asks of a tracker, and of a detector beyond `ObjectDetector`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import av
import numpy as np
from numpy.typing import NDArray

from appliance.types import Box, Detections, TrackedObject


@runtime_checkable
class Elastic(Protocol):
    """A detector to which a part of the picture costs less than the whole one. Optional; see `Examiner.picture`."""

    @property
    def shape_step(self) -> int:
        """A picture costs by its area, its sides rounded up to multiples of this; 0: as much as a whole one."""
        ...


class Tracker(Protocol):
    """Follows objects through the frames of one camera run."""

    @property
    def unsettled(self) -> tuple[Box, ...]:
        """Where the next look is needed because of what is followed: all but what rests."""
        ...

    @property
    def unconfirmed(self) -> bool:
        """Somebody was found in the last look who is not told of until another one has found them, too."""
        ...

    def update(
        self, detections: Detections, t: float, planes: Sequence[NDArray[np.uint8]], parts: Sequence[Box] = ()
    ) -> tuple[TrackedObject, ...]:
        """The objects of this frame. Called only for frames that were looked at; `t` rises.

        planes: the whole picture, brightness and perhaps two colour planes, upright (see `Pictures.planes`). parts:
        of the picture, those that were looked at; none: all of it. Boxes are always shares of the whole picture.
        """
        ...


Lens = Callable[[int, float, av.VideoFrame], av.VideoFrame]
"""(frame, t, picture) to the picture that is examined instead: how a replay makes weather."""
