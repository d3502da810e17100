"""A constant-velocity Kalman filter for a box, with real time steps."""

from __future__ import annotations

import math

from appliance.types import Box

# Height by width of a frame, between 9/16 and 3/4; only noise scales depend on it.
ASPECT = 0.65
MEASURED_STD = 0.08  # of a detector's box, in shares of its size
SPEED_STD = (1.5, 1.5, 0.3, 0.3)  # of a new track, in sizes a second (x, y) and shares (width, height)
# The variance that a speed gains per second (the density of the acceleration's noise), in squared sizes a second, or
# shares. Persons begin and stop walking within about two seconds; sizes change slowly.
ACCELERATION = (0.5, 0.5, 0.02, 0.02)


class Kalman:
    """The filter of one box over (centre x, centre y, width, height) in shares, each coordinate on its own.

    Coordinates are independent, so there are four 2x2 filters in plain numbers. For the few boxes of a camera this is
    faster than arrays, and gives the same bits on every machine. All noise is in units of the object's size (the
    geometric mean of its sides), after SORT/ByteTrack (arXiv 1602.00763, 2110.06864), but as densities over time, since
    frames come 0.2 s apart while something moves and seconds apart when idle. State: for each coordinate its position,
    its speed, and their covariance matrix: variance of the position, covariance of both, variance of the speed.

    box: xyxy as predicted or corrected last; may lie outside the frame.
    """

    __slots__ = ("_axes", "box")

    def __init__(self, box: Box) -> None:
        """Begin at `box`, standing still as far as is known."""
        position = to_centre(box)
        self._axes = [
            (at, 0.0, _square(size * MEASURED_STD), 0.0, _square(size * speed))
            for at, size, speed in zip(position, _scale(position), SPEED_STD, strict=True)
        ]
        self.box = self._box()

    def predict(self, dt: float, *, still: bool = False) -> None:
        """Predict `dt` seconds ahead, dt >= 0; a `still` object keeps its position, and only its variance grows."""
        squared, cubed = dt * dt, dt**3
        scales = _scale(self._position())
        moved = []
        for (at, speed, pp, ps, ss), gained, size in zip(self._axes, ACCELERATION, scales, strict=True):
            noise, pace = gained * (size * size), 0.0 if still else speed
            moved.append(
                (
                    at + pace * dt,
                    pace,
                    pp + 2 * dt * ps + squared * ss + noise * cubed / 3,
                    ps + dt * ss + noise * dt * dt / 2,
                    ss + noise * dt,
                )
            )
        # A box must not shrink through zero while it is not detected.
        for side in (2, 3):
            if moved[side][0] < 1e-3:
                moved[side] = (1e-3, *moved[side][1:])
        self._axes = moved
        self.box = self._box()

    def correct(self, box: Box, doubt: float = 1.0) -> None:
        """Take in the measured `box`. doubt: its variance as a multiple of the usual one."""
        measured = to_centre(box)
        taken = []
        for (at, speed, pp, ps, ss), seen, size in zip(self._axes, measured, _scale(measured), strict=True):
            spread = pp + _square(size * MEASURED_STD) * doubt
            gain_p, gain_s = pp / spread, ps / spread
            missed = seen - at
            taken.append(
                (at + gain_p * missed, speed + gain_s * missed, (1 - gain_p) * pp, (1 - gain_p) * ps, ss - gain_s * ps)
            )
        self._axes = taken
        self.box = self._box()

    @property
    def speed(self) -> Box:
        """Speed of centre x, centre y, width and height, in shares a second."""
        x, y, width, height = self._axes
        return x[1], y[1], width[1], height[1]

    def spread(self) -> tuple[float, float]:
        """Return the standard deviation of the centre, in shares."""
        return math.sqrt(self._axes[0][2]), math.sqrt(self._axes[1][2])

    def _position(self) -> Box:
        x, y, width, height = self._axes
        return x[0], y[0], width[0], height[0]

    def _box(self) -> Box:
        x, y, width, height = self._position()
        half_width, half_height = width / 2, height / 2
        return x - half_width, y - half_height, x + half_width, y + half_height


def to_centre(box: Box) -> Box:
    """Convert xyxy to centre x, centre y, width, height."""
    x1, y1, x2, y2 = box
    width, height = x2 - x1, y2 - y1
    return x1 + width / 2, y1 + height / 2, width, height


def sizes(position: Box) -> tuple[float, float]:
    """Return the geometric mean of the sides in shares of the width and of the height.

    position: a box as `to_centre` gives it.
    """
    height = math.sqrt(max(position[2] * position[3] / ASPECT, 1e-8))
    return height * ASPECT, height


def _scale(position: Box) -> Box:
    """Return `sizes` for the centre, and once more for the sides."""
    width, height = sizes(position)
    return width, height, width, height


def _square(value: float) -> float:
    """Return the square by multiplication: `value**2` is a power and may differ in the last bit."""
    return value * value
