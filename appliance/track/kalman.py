"""Constant-velocity Kalman filters for many boxes at once, with real time steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A picture is taken to be this much higher than wide is long: 9/16 .. 3/4. Only noise scales depend on it.
ASPECT = 0.65
MEASURED_STD = 0.08
SPEED_STD = np.array([1.5, 1.5, 0.3, 0.3])
# Who stands may walk, and who walks may stand, within about two seconds; sizes change slowly.
ACCELERATION = np.array([0.5, 0.5, 0.02, 0.02])


class KalmanBank:
    """One filter per row over (centre x, centre y, width, height) in shares, each coordinate on its own.

    Coordinates do not influence each other, so a filter is four 2x2 ones and everything is element-wise: no matrix
    product, the same bits on every machine. All noise is in units of the object's size (the geometric mean of its
    sides), after SORT/ByteTrack (arXiv 1602.00763, 2110.06864), but as densities over time, since looks come 0.2 s
    apart while something moves and seconds apart when idle: ACCELERATION is the variance that speed gains per second.
    """

    def __init__(self) -> None:
        self.position: Floats = np.zeros((0, 4))
        self.speed: Floats = np.zeros((0, 4))
        self._pp: Floats = np.zeros((0, 4))
        self._ps: Floats = np.zeros((0, 4))
        self._ss: Floats = np.zeros((0, 4))
        self._boxes: Floats | None = None

    def __len__(self) -> int:
        return len(self.position)

    def add(self, boxes: NDArray[np.floating]) -> None:
        """New filters at `boxes` (N, 4) xyxy, standing still as far as is known."""
        self._boxes = None
        position = to_centre(boxes)
        scale = _scale(position)
        self.position = np.concatenate([self.position, position])
        self.speed = np.concatenate([self.speed, np.zeros_like(position)])
        self._pp = np.concatenate([self._pp, (scale * MEASURED_STD) ** 2])
        self._ps = np.concatenate([self._ps, np.zeros_like(position)])
        self._ss = np.concatenate([self._ss, (scale * SPEED_STD) ** 2])

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget all filters that `rows` does not mark."""
        self._boxes = None
        self.position, self.speed = self.position[rows], self.speed[rows]
        self._pp, self._ps, self._ss = self._pp[rows], self._ps[rows], self._ss[rows]

    def predict(self, dt: float, still: NDArray[np.bool_] | None = None) -> None:
        """Move all filters on by `dt` seconds, dt >= 0; those that `still` (N,) marks stay where they are, and only
        grow unsure."""
        self._boxes = None
        noise = ACCELERATION * _scale(self.position) ** 2
        if still is not None:
            self.speed = np.where(still[:, None], 0.0, self.speed)
        self.position = self.position + self.speed * dt
        # A box must not shrink through zero while nobody looks.
        self.position[:, 2:] = np.maximum(self.position[:, 2:], 1e-3)
        self._pp = self._pp + 2 * dt * self._ps + dt * dt * self._ss + noise * dt**3 / 3
        self._ps = self._ps + dt * self._ss + noise * dt * dt / 2
        self._ss = self._ss + noise * dt

    def correct(self, rows: NDArray[np.intp], boxes: NDArray[np.floating], doubt: Floats | None = None) -> None:
        """Take in the measured `boxes` (len(rows), 4) xyxy for the filters `rows`.

        doubt: (len(rows),) how many times the usual variance each box has; None: 1 for all.
        """
        self._boxes = None
        measured = to_centre(boxes)
        pp, ps = self._pp[rows], self._ps[rows]
        usual = (_scale(measured) * MEASURED_STD) ** 2
        spread = pp + (usual if doubt is None else usual * doubt[:, None])
        gain_p, gain_s = pp / spread, ps / spread
        missed = measured - self.position[rows]
        self.position[rows] += gain_p * missed
        self.speed[rows] += gain_s * missed
        self._ss[rows] -= gain_s * ps
        self._ps[rows] = (1 - gain_p) * ps
        self._pp[rows] = (1 - gain_p) * pp

    def boxes(self) -> Floats:
        """(N, 4) xyxy as predicted or corrected last; may lie outside the picture. Not to be written into."""
        if self._boxes is not None:
            return self._boxes
        half = self.position[:, 2:] / 2
        found = np.empty_like(self.position)
        found[:, :2] = self.position[:, :2] - half
        found[:, 2:] = self.position[:, :2] + half
        self._boxes = found
        return found

    def spread(self) -> Floats:
        """(N, 2) standard deviation of the centre, in shares."""
        return np.sqrt(self._pp[:, :2])


def to_centre(boxes: NDArray[np.floating]) -> Floats:
    """xyxy (N, 4) to centre x, centre y, width, height."""
    found = np.array(boxes, np.float64)
    found[:, 2:] -= found[:, :2]
    found[:, :2] += found[:, 2:] / 2
    return found


def sizes(position: Floats) -> Floats:
    """(N, 2): the geometric mean of the sides in shares of the width and of the height."""
    return _scale(position)[:, :2]


def _scale(position: Floats) -> Floats:
    """(N, 4): `sizes` for the centre, and again for the sides."""
    scale = np.empty((len(position), 4))
    height = np.sqrt(np.maximum(position[:, 2] * position[:, 3] / ASPECT, 1e-8))
    scale[:, 1] = scale[:, 3] = height
    scale[:, 0] = scale[:, 2] = height * ASPECT
    return scale
