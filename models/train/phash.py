"""Computes a 64-bit perceptual hash: similar pictures differ in few bits, whatever their size, coding or brightness."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

SIDE = 32
BITS = 64
_ONES = np.array([value.bit_count() for value in range(1 << 16)], np.uint8)


def phash(picture: NDArray[np.uint8]) -> int:
    """Which of the 8 x 8 lowest DCT coefficients of the grey 32 x 32 picture exceed their median (Zauner 2010)."""
    grey = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY) if picture.ndim == 3 else picture
    small = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    low = cv2.dct(small.astype(np.float32))[:8, :8].ravel()
    # The mean brightness is left out of the median, as one coefficient a hundred times the others.
    bits = low > np.median(low[1:])
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def mirrored(picture: NDArray[np.uint8]) -> int:
    """Return the hash of the picture seen in a mirror."""
    return phash(np.ascontiguousarray(picture[:, ::-1]))


def distances(one: NDArray[np.uint64], many: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return (N, M): in how many of their 64 bits each of `one` (N,) differs from each of `many` (M,)."""
    different = one[:, None] ^ many[None, :]
    words = different.view(np.uint16).reshape(*different.shape, 4)
    return np.asarray(_ONES[words].sum(axis=-1, dtype=np.uint8))


def as_hex(value: int) -> str:
    """Return 16 hex digits, as the index holds it."""
    return f"{value:016x}"


def from_hex(text: str) -> int:
    """Return the hash that `as_hex` wrote."""
    return int(text, 16)
