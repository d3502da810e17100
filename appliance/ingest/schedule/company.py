"""Who may share a call of the detector: nobody, pictures of one size, or small ones laid on one sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appliance.clock import Clock
from appliance.types import Detections

GAIN_MIN = 0.1
TRIES = 3
GREY = 114
Pictures = Sequence[NDArray[np.uint8]]
Size = tuple[int, int]


class Looker(Protocol):
    """The part of a detector that is needed to have pictures looked at."""

    def picture_size(self, width: int, height: int) -> Size: ...
    def detect(self, pictures: Pictures) -> list[Detections]: ...


@runtime_checkable
class Batching(Protocol):
    """A detector that says how many pictures of one size it takes in one call of its accelerator. It may gain from it,
    and it may not: that is measured."""

    batch_max: int


class Company(Protocol):
    """A way of calling the detector. `most`: pictures a call, at most."""

    @property
    def most(self) -> int: ...

    def fits(self, sizes: Sequence[Size]) -> bool:
        """Pictures of these (width, height) go into one call."""
        ...

    def seconds(self, alone_s: Sequence[float]) -> float:
        """What the call will take, of pictures that would take so long each by themselves."""
        ...

    def ask(self, looker: Looker, pictures: Pictures) -> list[Detections]:
        """One answer for each picture. May raise DetectorError."""
        ...


class Alone:
    """One picture a call."""

    most = 1

    def fits(self, sizes: Sequence[Size]) -> bool:
        return len(sizes) <= 1

    def seconds(self, alone_s: Sequence[float]) -> float:
        return sum(alone_s)

    def ask(self, looker: Looker, pictures: Pictures) -> list[Detections]:
        return looker.detect(pictures)


class Batch:
    """Pictures of the same size in one call. ratios[n - 1]: what a call with n takes, in calls with one."""

    def __init__(self, ratios: Sequence[float]) -> None:
        self._ratios = tuple(ratios)

    @property
    def most(self) -> int:
        return len(self._ratios)

    def fits(self, sizes: Sequence[Size]) -> bool:
        return len(sizes) <= 1 or (len(sizes) <= self.most and len(set(sizes)) == 1 and sizes[0] != (0, 0))

    def seconds(self, alone_s: Sequence[float]) -> float:
        return max(alone_s) * self._ratios[len(alone_s) - 1]

    def ask(self, looker: Looker, pictures: Pictures) -> list[Detections]:
        return looker.detect(pictures)


def measured(looker: Looker, clock: Clock, batch_max: int) -> Batch | Alone:
    """As many a call as pay: each doubling up to `batch_max` has to save GAIN_MIN of a picture's time. The best of
    TRIES counts. Raises DetectorError."""
    width, height = looker.picture_size(640, 360)
    picture = np.full((height, width, 3), GREY, np.uint8)
    alone_s = _seconds(looker, clock, picture, 1)
    counts, ratios = [1], [1.0]
    while alone_s > 0 and counts[-1] < batch_max:
        count = min(2 * counts[-1], batch_max)
        ratio = _seconds(looker, clock, picture, count) / alone_s
        if ratio / count > (1 - GAIN_MIN) * ratios[-1] / counts[-1]:
            break
        counts.append(count)
        ratios.append(ratio)
    if counts == [1]:
        return Alone()
    return Batch(tuple(float(np.interp(n, counts, ratios)) for n in range(1, counts[-1] + 1)))


def _seconds(looker: Looker, clock: Clock, picture: NDArray[np.uint8], count: int) -> float:
    took = []
    for _ in range(TRIES):
        began = clock.monotonic()
        looker.detect([picture] * count)
        took.append(clock.monotonic() - began)
    return min(took)
