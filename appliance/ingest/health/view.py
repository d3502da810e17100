"""Where a camera usually looks: its learnt edges, how many of them are gone, and by how much they have moved.

Edges are those of the logarithm of brightness, so that an exposure step, dusk, or the switch to infrared, which make
everything brighter or darker by a factor, leave them where they are and nearly as strong. Displacement: phase
correlation (Kuglin and Hines, 1975) of the edges now with the learnt ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.ingest.health.plain import Plane

Edges = NDArray[np.float32]

BLOCK = 10
LEARN_S = 8.0
LOOKS_MIN = 4
TAU_S = 120.0  # dawn, fog and a lorry that stays are part of the place after a few minutes
TEXTURE_MIN = 0.025  # log brightness a pixel; the quietest wall of the footage at hand has half of it
BLOCKS_MIN = 15
KEPT_MIN = 0.35
IN_PLACE = 0.9  # likeness: one pixel off it is 0.82 (the rendered yard), and the least move to be told is five
_LOG: NDArray[np.float32] = np.log(np.maximum(np.arange(256) - 16, 0) + 8.0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the view is off, in shares of the picture's width and height; peak: how sure that is, 0..1.

    likeness: correlation of the edges now with the learnt ones, as they lie; 1: the same, 0: another place.
    """

    x: float
    y: float
    peak: float
    likeness: float

    @property
    def far(self) -> float:
        """The larger of the two."""
        return max(abs(self.x), abs(self.y))


class View:
    """State: the learnt edges, and for how long they were learnt. Owner: one camera. Planes are uint8 (90, 160)."""

    def __init__(self) -> None:
        self._learnt: Edges | None = None
        self._blocks: Edges | None = None
        self._looks = 0
        self._seconds = 0.0
        self._window: Edges | None = None

    @property
    def is_known(self) -> bool:
        """Has it been seen for long enough to say that something is missing?"""
        return self._seconds >= LEARN_S and self._looks >= LOOKS_MIN

    def forget(self) -> None:
        self._learnt, self._blocks, self._looks, self._seconds = None, None, 0, 0.0

    def learn(self, edges: Edges, passed_s: float) -> None:
        """Take in what is seen now. passed_s: since the last time."""
        if self._learnt is None or self._learnt.shape != edges.shape:
            self.forget()
            self._learnt = edges.copy()
        self._looks += 1
        self._seconds += passed_s
        share = max(1 / self._looks, min(0.5, passed_s / TAU_S))
        cv2.accumulateWeighted(edges, self._learnt, share)
        self._blocks = blocks_of(self._learnt)

    def lost(self, edges: Edges) -> float | None:
        """Share of the places with structure in which it is gone; None: not known, or there never was much."""
        if not self.is_known or self._blocks is None:
            return None
        structured = self._blocks > TEXTURE_MIN
        if int(structured.sum()) < BLOCKS_MIN:
            return None
        now = blocks_of(edges)
        return float((now[structured] < KEPT_MIN * self._blocks[structured]).mean())

    def shift(self, edges: Edges) -> Shift | None:
        """Where the learnt edges are now. None: not known."""
        if not self.is_known or self._learnt is None:
            return None
        likeness = _likeness(self._learnt, edges)
        if likeness >= IN_PLACE:
            return Shift(0.0, 0.0, 1.0, likeness)
        height, width = edges.shape
        if self._window is None or self._window.shape != edges.shape:
            self._window = np.asarray(cv2.createHanningWindow((width, height), cv2.CV_32F), np.float32)
        # Windowed here: given the window, phaseCorrelate multiplies it into the very arrays it was handed.
        (x, y), peak = cv2.phaseCorrelate(self._learnt * self._window, edges * self._window)
        return Shift(x / width, y / height, float(peak), likeness)


def edges_of(plane: Plane) -> Edges:
    """Strength of the edges, float32 (H, W): log brightness a pixel."""
    logarithm = _LOG[plane]
    x = cv2.Sobel(logarithm, cv2.CV_32F, 1, 0, ksize=3, scale=1 / 8)
    y = cv2.Sobel(logarithm, cv2.CV_32F, 0, 1, ksize=3, scale=1 / 8)
    return np.asarray(np.abs(x) + np.abs(y), np.float32)


def blocks_of(edges: Edges) -> Edges:
    """Mean strength in blocks of `BLOCK` by `BLOCK` pixels."""
    height, width = edges.shape
    return np.asarray(cv2.resize(edges, (width // BLOCK, height // BLOCK), interpolation=cv2.INTER_AREA), np.float32)


def _likeness(a: Edges, b: Edges) -> float:
    """Correlation coefficient, 0 where there is nothing to correlate."""
    one, other = a - a.mean(), b - b.mean()
    strength = float(np.vdot(one, one)) * float(np.vdot(other, other))
    return float(np.vdot(one, other)) / math.sqrt(strength) if strength > 0 else 0.0
