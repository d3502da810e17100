"""How much has moved: a priority for the detector, never a permission to skip a camera.

A small brightness plane is compared, block by block, with a slowly following background. Each block learns how noisy
it usually is (rain, leaves, sensor noise at night), so what it always does no longer counts; what it learns is capped,
so no block can be taught to see nothing. A change of light over the whole picture is taken out first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 10
FLOOR = 3.0
NOISE_MAX = 12.0
NOISE_FACTOR = 2.5
BACKGROUND_SHARE = 0.08
NOISE_SHARE = 0.05
MOVING_BLOCKS = 1


class Gate:
    """State: background plane, noise per block. Owner: one camera run. Deterministic in the planes it is given."""

    def __init__(self) -> None:
        self._background: NDArray[np.float32] | None = None
        self._noise: NDArray[np.float32] | None = None

    def measure(self, luma: NDArray[np.uint8]) -> float:
        """Share of the picture that changed more than it usually does, 0..1. luma: uint8 (90, 160)."""
        plane = luma.astype(np.float32)
        if self._background is None or self._noise is None:
            self._background = plane
            self._noise = np.zeros((plane.shape[0] // BLOCK, plane.shape[1] // BLOCK), np.float32)
            return 1.0
        blocks = _change(plane, self._background)
        moved = blocks > FLOOR + NOISE_FACTOR * self._noise
        self._background += BACKGROUND_SHARE * (plane - self._background)
        # Learned only from blocks at rest, so that a person walking by does not blind the place they walked through;
        # a block that never rests learns slowly all the same.
        pace = np.where(moved, NOISE_SHARE / 5, NOISE_SHARE).astype(np.float32)
        self._noise += pace * (np.minimum(blocks, NOISE_MAX) - self._noise)
        return float(moved.sum()) / moved.size if int(moved.sum()) >= MOVING_BLOCKS else 0.0

    def peek(self, luma: NDArray[np.uint8]) -> float:
        """What `measure` would say, without learning anything."""
        if self._background is None or self._noise is None:
            return 1.0
        moved = _change(luma.astype(np.float32), self._background) > FLOOR + NOISE_FACTOR * self._noise
        return float(moved.sum()) / moved.size if int(moved.sum()) >= MOVING_BLOCKS else 0.0


def _change(plane: NDArray[np.float32], background: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean change of each block, without what the whole picture has in common."""
    change = plane - background
    change -= np.median(change[::3, ::4])
    rows, columns = plane.shape[0] // BLOCK, plane.shape[1] // BLOCK
    return np.asarray(np.abs(change).reshape(rows, BLOCK, columns, BLOCK).mean(axis=(1, 3)), np.float32)
