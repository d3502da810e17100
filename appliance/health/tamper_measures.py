"""Measures on one brightness plane: black, frozen, and against the learnt edges of the view, covered or moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]

BLACK_MAX = 32  # of 255, where video black is 16: under 8 % of the way to white
BLACK_SHARE = 0.99  # a lamp or the burnt-in clock may be brighter
FLAT_MAX = 6.0
STEP_MIN = 2
STILL_SHARE = 0.02
_EDGE_ROWS = 8  # of ten: the burnt-in clock may go on above a frozen picture


def is_black(plane: Plane) -> bool:
    """Nearly all of it is as dark as video gets, and nothing stands out of it. plane: uint8 (H, W)."""
    bright = np.count_nonzero(plane > BLACK_MAX)
    if bright > (1 - BLACK_SHARE) * plane.size:
        return False
    deviation = float(cv2.meanStdDev(plane)[1][0, 0])
    return deviation <= FLAT_MAX


class FreezeDetector:
    """Since when a picture has not changed. State: the plane and time at which it last had.

    A living sensor's noise moves some pixels all the time: of the quietest real footage at hand at least a tenth of
    the pixels are two levels or more away from where they were 7 s before (see docs/health.md); what is frozen stays
    where it is, but for a few pixels when the encoder makes a key frame of it. Rows at the top and bottom do not
    count: cameras write the time there.
    """

    def __init__(self) -> None:
        self._anchor: Plane | None = None
        self._since = 0.0

    def unchanged_since(self, t: float, plane: Plane) -> float:
        """The time at which the picture became what it is now; `t` when it has just changed."""
        margin = plane.shape[0] // _EDGE_ROWS
        middle = plane[margin:-margin]
        if self._anchor is None or t < self._since or self._anchor.shape != middle.shape:
            self._keep(t, middle)
        else:
            changed = np.count_nonzero(cv2.absdiff(middle, self._anchor) >= STEP_MIN)
            if changed > STILL_SHARE * middle.size:
                self._keep(t, middle)
        return self._since

    def _keep(self, t: float, middle: Plane) -> None:
        self._anchor, self._since = middle.copy(), t


Edges = NDArray[np.float32]

BLOCK = 10
LEARN_S = 8.0
SAMPLES_MIN = 4
TAU_S = 120.0  # dawn, fog and a lorry that stays are part of the place after a few minutes
TEXTURE_MIN = 0.025  # log brightness a pixel; the quietest wall of the footage at hand has half of it
BLOCKS_MIN = 15
KEPT_MIN = 0.35
IN_PLACE = 0.9  # likeness: one pixel off it is 0.82 (the rendered yard), and the least move to be told is five
_LOG: NDArray[np.float32] = np.log(np.maximum(np.arange(256) - 16, 0) + 8.0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ViewShift:
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


class SceneBaseline:
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
        return self._seconds >= LEARN_S and self._looks >= SAMPLES_MIN

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

    def shift(self, edges: Edges) -> ViewShift | None:
        """Where the learnt edges are now. None: not known."""
        if not self.is_known or self._learnt is None:
            return None
        likeness = _likeness(self._learnt, edges)
        if likeness >= IN_PLACE:
            return ViewShift(0.0, 0.0, 1.0, likeness)
        height, width = edges.shape
        if self._window is None or self._window.shape != edges.shape:
            self._window = np.asarray(cv2.createHanningWindow((width, height), cv2.CV_32F), np.float32)
        # Windowed here: given the window, phaseCorrelate multiplies it into the very arrays it was handed.
        (x, y), peak = cv2.phaseCorrelate(self._learnt * self._window, edges * self._window)
        return ViewShift(x / width, y / height, float(peak), likeness)


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
