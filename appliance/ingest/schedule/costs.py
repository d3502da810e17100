"""What a look will cost, learnt from those that were."""

from __future__ import annotations

FIRST_S = 0.02
LEAST_S = 1e-4
CLASSES = 8
_SMOOTHING = 0.1


class Costs:
    """State: the mean time of a call for each class of area (eighths of a whole picture). Owner: the detector's thread.

    A class that was never seen is reckoned from its nearest neighbour: at most as much as a larger one, in proportion
    to a smaller one.
    """

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._means: dict[int, float] = {}

    def learn(self, area: float, seconds: float) -> None:
        """A look at so many whole pictures took so long."""
        size, seconds = _class(area), max(seconds, LEAST_S)
        mean = self._means.get(size)
        self._means[size] = seconds if mean is None else mean + (seconds - mean) * _SMOOTHING

    def of(self, area: float) -> float:
        """Seconds that such a look is likely to take."""
        size = _class(area)
        known = self._means.get(size)
        if known is not None:
            return known
        if not self._means:
            return self._first_s
        near = min(self._means, key=lambda other: (abs(other - size), other))
        return self._means[near] * max(1.0, size / near)


def _class(area: float) -> int:
    return max(1, round(area * CLASSES))
