"""Measures on one brightness plane: black, frozen, and against the learnt edges of the view, covered or moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlackTuning:
    """When a frame is black, or shows nothing."""

    black_max: int = 32
    """Brightness of 255. Video black is 16, so this is under 8 % of the way to white."""
    black_share: float = 0.99
    """The share of the pixels that must be as dark: a lamp or the burnt-in clock may be brighter."""
    flat_max: float = 6.0
    """Standard deviation of brightness. Nothing stands out of a black frame."""


@dataclass(frozen=True, slots=True)
class FrozenTuning:
    """When a picture stands still that should not."""

    step_min: int = 2
    """Levels of brightness by which a pixel must change to count as changed."""
    still_share: float = 0.02
    """Of the pixels. Living sensors change 0.106 and more in 7 s, frozen ones at most 0.012."""
    retry_s: float = 60.0
    """Seconds from the first reconnection of a frozen camera to the next; doubled each time."""
    retry_s_max: float = 600.0
    """The most of those seconds."""


@dataclass(frozen=True, slots=True)
class ViewTuning:
    """How the view of a camera is learnt and compared."""

    edge_rows: int = 8
    """One row of so many is left out at the top and bottom: cameras write the time there."""
    block: int = 10
    """Side in pixels of the blocks in which edges are compared."""
    learn_s: float = 8.0
    """A view is known after so many seconds, and"""
    samples_min: int = 4
    """after so many samples."""
    tau_s: float = 120.0
    """Time constant of learning in seconds: dawn, fog and a lorry that stays become part of the view in minutes."""
    texture_min: float = 0.025
    """Log brightness a pixel from which a block has structure. The quietest wall has half of it."""
    blocks_min: int = 15
    """Blocks with structure without which nothing can be called covered."""
    kept_min: float = 0.35
    """Share of its structure below which a block has lost it."""
    in_place: float = 0.9
    """Likeness. One pixel off is 0.82, and the least move to be reported is five pixels."""
    edges_every_s: float = 1.0
    """Seconds from one comparison of edges to the next."""
    shift_every_s: float = 2.0
    """Seconds from one measurement of the displacement to the next."""
    early_s: float = 0.05
    """Jitter of frames in seconds: a frame that comes so much early counts as due."""


@dataclass(frozen=True, slots=True)
class CoverTuning:
    """When a camera is covered or out of focus."""

    covered_share: float = 0.85
    """Of the blocks that lost their structure. Covered and strongly blurred clips have 0.92 and more, the
    worst weather 0.37, slight blur 0.56, a lorry over 60 % of the frame 0.55."""
    uncovered_share: float = 0.6
    """The same, below which a covered camera is free again."""
    doubt_share: float = 0.5
    """Of the blocks. Beyond it the view is not learnt,"""
    doubt_s_max: float = 60.0
    """for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class MoveTuning:
    """When a camera was turned."""

    agree_share: float = 0.01
    """Of the frame's side, within which two displacements agree. What is no move stays within 0.012."""
    peak_min: float = 0.25
    """Of the phase correlation, from which a displacement is believed."""
    unlike_max: float = 0.15
    """Likeness below which the view is another place."""
    lit_mean_min: float = 35.0
    """Mean brightness from which edges are not mere noise, and"""
    lit_deviation_min: float = 12.0
    """standard deviation of it likewise."""


@dataclass(frozen=True, slots=True)
class TamperTuning:
    """Thresholds of tamper detection, measured on PETS, Intel, a street and our rendered yard by day, dusk and night.

    The weather and faults of docs/health.md were applied to each.
    """

    black: BlackTuning = BlackTuning()
    frozen: FrozenTuning = FrozenTuning()
    view: ViewTuning = ViewTuning()
    covered: CoverTuning = CoverTuning()
    moved: MoveTuning = MoveTuning()


TUNING = TamperTuning()
_LOG: NDArray[np.float32] = np.log(np.maximum(np.arange(256) - 16, 0) + 8.0).astype(np.float32)


def is_black(plane: Plane) -> bool:
    """Nearly all of it is as dark as video gets, and nothing stands out of it. plane: uint8 (H, W)."""
    bright = np.count_nonzero(plane > TUNING.black.black_max)
    if bright > (1 - TUNING.black.black_share) * plane.size:
        return False
    deviation = float(cv2.meanStdDev(plane)[1][0, 0])
    return deviation <= TUNING.black.flat_max


class FreezeDetector:
    """Finds since when a camera's frames have not changed. State: the plane and time of the last change.

    A living sensor's noise moves some pixels all the time; a frozen frame stays as it is, but for a few pixels when the
    encoder makes a key frame of it. Rows at the top and bottom do not count: cameras write the time there.
    """

    def __init__(self) -> None:
        self._anchor: Plane | None = None
        self._since = 0.0

    def unchanged_since(self, t: float, plane: Plane) -> float:
        """Return the time at which the frame became what it is now; `t` if it has just changed."""
        margin = plane.shape[0] // TUNING.view.edge_rows
        middle = plane[margin:-margin]
        if self._anchor is None or t < self._since or self._anchor.shape != middle.shape:
            self._keep(t, middle)
        else:
            changed = np.count_nonzero(cv2.absdiff(middle, self._anchor) >= TUNING.frozen.step_min)
            if changed > TUNING.frozen.still_share * middle.size:
                self._keep(t, middle)
        return self._since

    def _keep(self, t: float, middle: Plane) -> None:
        self._anchor, self._since = middle.copy(), t


Edges = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ViewShift:
    """By how much the view is displaced.

    Attributes:
        x, y: shares of the frame's width and height.
        peak: of the phase correlation, 0..1: how sure the displacement is.
        likeness: correlation of the edges now with the learnt ones, undisplaced; 1: the same, 0: another place.
    """

    x: float
    y: float
    peak: float
    likeness: float

    @property
    def distance(self) -> float:
        """The larger of the two."""
        return max(abs(self.x), abs(self.y))


class SceneBaseline:
    """The usual view of a camera, as its edges.

    The edges are those of the logarithm of brightness, so that an exposure step, dusk, or the switch to infrared, which
    scale brightness, leave them where they are and nearly as strong. Displacement: phase correlation (Kuglin and Hines,
    1975) of the edges now with the learnt ones. State: the learnt edges, and for how long they were learnt. Owner: one
    camera. Planes are uint8 (90, 160).
    """

    def __init__(self) -> None:
        self._learnt: Edges | None = None
        self._blocks: Edges | None = None
        self._samples = 0
        self._seconds = 0.0
        self._window: Edges | None = None

    @property
    def is_known(self) -> bool:
        """It was learnt for long enough to judge what is missing."""
        return self._seconds >= TUNING.view.learn_s and self._samples >= TUNING.view.samples_min

    def forget(self) -> None:
        """Learn from the beginning."""
        self._learnt, self._blocks, self._samples, self._seconds = None, None, 0, 0.0

    def learn(self, edges: Edges, passed_s: float) -> None:
        """Learn the edges of now. passed_s: seconds since the last time."""
        if self._learnt is None or self._learnt.shape != edges.shape:
            self.forget()
            self._learnt = edges.copy()
        self._samples += 1
        self._seconds += passed_s
        share = max(1 / self._samples, min(0.5, passed_s / TUNING.view.tau_s))
        cv2.accumulateWeighted(edges, self._learnt, share)
        self._blocks = blocks_of(self._learnt)

    def lost(self, edges: Edges) -> float | None:
        """Share of the blocks with structure that have lost it; None: not known, or too few blocks have structure."""
        if not self.is_known or self._blocks is None:
            return None
        structured = self._blocks > TUNING.view.texture_min
        if int(structured.sum()) < TUNING.view.blocks_min:
            return None
        now = blocks_of(edges)
        return float((now[structured] < TUNING.view.kept_min * self._blocks[structured]).mean())

    def shift(self, edges: Edges) -> ViewShift | None:
        """Return the displacement of the learnt edges; None if it is not known."""
        if not self.is_known or self._learnt is None:
            return None
        likeness = _likeness(self._learnt, edges)
        if likeness >= TUNING.view.in_place:
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
    """Mean strength in square blocks of `TUNING.view.block` pixels."""
    height, width = edges.shape
    return np.asarray(
        cv2.resize(edges, (width // TUNING.view.block, height // TUNING.view.block), interpolation=cv2.INTER_AREA),
        np.float32,
    )


def _likeness(a: Edges, b: Edges) -> float:
    """Correlation coefficient, 0 where there is nothing to correlate."""
    one, other = a - a.mean(), b - b.mean()
    strength = float(np.vdot(one, one)) * float(np.vdot(other, other))
    return float(np.vdot(one, other)) / math.sqrt(strength) if strength > 0 else 0.0
