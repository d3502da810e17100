"""Detects tampering and failure of one camera's picture: black, frozen, covered, moved, and a clock that jumps."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.health.camera_health import HealthCondition, HealthListener
from appliance.types import HealthKind

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
    """Share of the pixels. Living sensors change 0.106 and more in 7 s, frozen ones at most 0.012."""
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
    """Share of the blocks that lost their structure. Covered and strongly blurred clips have 0.92 and more, the worst
    weather 0.37, slight blur 0.56, a lorry over 60 % of the frame 0.55."""
    uncovered_share: float = 0.6
    """The same, below which a covered camera is free again."""
    doubt_share: float = 0.5
    """Share of the blocks beyond which the view is not learnt,"""
    doubt_s_max: float = 60.0
    """for at most so many seconds."""


@dataclass(frozen=True, slots=True)
class MoveTuning:
    """When a camera was turned."""

    agree_share: float = 0.01
    """Share of the frame's side within which two displacements agree. A view that did not move stays within 0.012."""
    peak_min: float = 0.25
    """Peak of the phase correlation from which a displacement is believed."""
    unlike_max: float = 0.15
    """Likeness below which the view is another place."""
    lit_mean_min: float = 35.0
    """Mean brightness from which edges are not mere noise, and"""
    lit_deviation_min: float = 12.0
    """standard deviation of it likewise."""


@dataclass(frozen=True, slots=True)
class TamperTuning:
    """Thresholds of tamper detection, measured on PETS, Intel, a street and our rendered yard by day, dusk and night.

    The weather and faults of docs/replay.md were applied to each.
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


BLACK_TEXT = "the picture is black: no light, a dead sensor, or a cover on the lens"
FROZEN_TEXT = "pictures come, but not even the noise in them changes: the camera shows an old picture"
CLOCK_TEXT = "the camera's clock jumped"
LOOP_TURNS = 2  # equal spans between jumps back, from which on it is a recording that loops
LOOP_SHARE = 0.05  # within which spans are equal
LOOP_SLACK_S = 0.5  # a few frames: a repeat is cut at any of them
IS_BLACK = "the picture is black"
IS_COVERED = "the scene cannot be seen"
IS_ELSEWHERE = "the picture shows another view"
COVERED_TEXT = "the edges of the scene are gone: the lens is covered, painted over or out of focus"


class LoopDetector:
    """Tells a recording that loops from a clock that jumps: a loop's jumps are equally far apart.

    State: the times of the last jumps, the period once it is known. Owner: as of `TamperDetector`.
    """

    def __init__(self) -> None:
        self.period_s = 0.0  # 0: it is none
        self._jumps: deque[float] = deque(maxlen=LOOP_TURNS + 1)

    def jumped(self, t: float) -> bool:
        """Note that the clock jumped at `t`; return True if that is news.

        False means one more turn of a loop that is known.
        """
        was_known = self.period_s > 0 and _alike(t - self._jumps[-1], self.period_s)
        self._jumps.append(t)
        spans = [after - before for before, after in pairwise(self._jumps)]
        loops = len(spans) >= LOOP_TURNS and min(spans) > 0 and all(_alike(span, spans[0]) for span in spans)
        self.period_s = fmean(spans) if loops else self.period_s if was_known else 0.0
        return not was_known


def _alike(span_s: float, other_s: float) -> bool:
    return abs(span_s - other_s) <= max(LOOP_SLACK_S, LOOP_SHARE * other_s)


class TamperDetector:
    """One camera's conditions: black, frozen, covered, moved, and a clock that jumps; reported as `HealthEvent`s.

    State: the learnt view, the last changed frame, the conditions. It outlives sessions, since a frozen picture is
    still frozen after a reconnection. Owner: the thread that feeds frames, in order; `rebaseline` may be called by any
    thread. Reads no clock: the events depend only on times and planes.
    """

    def __init__(
        self,
        camera: str,
        settings: config.HealthConfig,
        disabled: Collection[HealthKind],
        report: HealthListener,
        *,
        mend: bool,
    ) -> None:
        """mend: whether a reconnection may help (a camera: yes, a file: no); see `reconnect_reason`."""
        self._disabled = frozenset(settings.ignore) | frozenset(disabled)
        self._moved_share = settings.moved_share
        self._black = HealthCondition(camera, "black", report, hold_s=settings.black_s)
        self._frozen = HealthCondition(camera, "frozen", report, hold_s=settings.frozen_s)
        self._covered = HealthCondition(camera, "covered", report, hold_s=settings.covered_s)
        self._moved = HealthCondition(camera, "moved", report, hold_s=settings.moved_s)
        self._clock = HealthCondition(camera, "clock", report, hold_s=0.0)
        self._loop = LoopDetector()
        self._frozen_s = settings.frozen_s
        self._may_reconnect = mend
        self._freeze = FreezeDetector()
        self._baseline = SceneBaseline()
        self._lock = threading.Lock()
        self._rebaseline: set[HealthKind] = set()
        self._edges_t = self._shift_t = float("-inf")
        self._doubt_t: float | None = None
        self._last_shift: ViewShift | None = None
        self._retry_t = float("-inf")
        self._retry_s = TUNING.frozen.retry_s
        self._reconnected_for: dict[HealthKind, str] = {}

    def observe(self, t: float, plane: Plane) -> None:
        """Take in one frame. plane: uint8 (90, 160), brightness, as the motion gate gets it."""
        self._dismiss(t)
        black = is_black(plane)
        if "black" not in self._disabled:
            self._black.update(t, black, BLACK_TEXT)
        if "frozen" not in self._disabled:
            self._check_frozen(t, plane, black)
        if black or self._frozen.is_open or {"covered", "moved"} <= self._disabled:
            return
        if not 0 <= t - self._edges_t < TUNING.view.edges_every_s - TUNING.view.early_s:
            self._check_edges(t, edges_of(plane), plane)

    def observe_packet(self, t: float, jump: bool) -> None:
        """One packet of a live stream; jump: its clock jumped before it."""
        news = jump and self._loop.jumped(t)
        if (news or self._clock.is_open) and "clock" not in self._disabled:
            self._clock.update(t, news, _clock_text(self._loop.period_s))
            if news:
                self._clock.record_recovery(t, "its times were anchored anew")

    def rebaseline(self, kind: HealthKind) -> None:
        """Learn the view anew: a person confirms that what the camera shows now is right."""
        with self._lock:
            self._rebaseline.add(kind)

    def reconnect_reason(self, t: float) -> str:
        """Return why the camera should be reconnected now, or ''.

        Each event gives one reason; a frozen one gives it repeatedly, with doubling intervals.
        """
        if not self._may_reconnect:
            return ""
        if not self._frozen.is_open or t < self._retry_t <= t + TUNING.frozen.retry_s_max:
            return self._reconnect_once(t)
        self._retry_t, self._retry_s = t + self._retry_s, min(2 * self._retry_s, TUNING.frozen.retry_s_max)
        self._frozen.record_recovery(t, "connecting to the camera again")
        return "the picture stands still"

    def _reconnect_once(self, t: float) -> str:
        """Return the reason to reconnect, once for each event, or ''.

        A reconnection may mend an encoder that sends nothing but black, grey, or another camera's video. If it does
        not, a person must act.
        """
        for condition, reason in ((self._black, IS_BLACK), (self._covered, IS_COVERED), (self._moved, IS_ELSEWHERE)):
            event = condition.event
            if condition.is_open and event is not None and self._reconnected_for.get(condition.kind) != event.id:
                self._reconnected_for[condition.kind] = event.id
                condition.record_recovery(t, "connecting to the camera again")
                return reason
        return ""

    def _check_frozen(self, t: float, plane: Plane, black: bool) -> None:
        since = self._freeze.unchanged_since(t, plane)
        if black or self._covered.is_suspected:  # one cause, one event: in the dark, some cameras make no noise
            self._frozen.update(t, None)
        elif since == t:
            self._frozen.update(t, False)
            self._retry_s = TUNING.frozen.retry_s
        else:
            self._frozen.update(t, True if t - since >= self._frozen_s / 2 else None, FROZEN_TEXT, began=since)

    def _check_edges(self, t: float, edges: Edges, plane: Plane) -> None:
        passed_s = min(max(t - self._edges_t, 0.0), 5.0)
        self._edges_t = t
        lost = self._baseline.lost(edges)
        if "covered" not in self._disabled:
            self._covered.update(t, None if lost is None else _is_covered(lost), COVERED_TEXT)
        doubtful = lost is not None and lost > TUNING.covered.doubt_share
        if (
            "moved" not in self._disabled
            and not 0 <= t - self._shift_t < TUNING.view.shift_every_s - TUNING.view.early_s
        ):
            self._check_displacement(t, edges, doubtful, plane)
        if self._may_learn(t, doubtful or self._moved.is_suspected or self._covered.is_suspected):
            self._baseline.learn(edges, passed_s)

    def _check_displacement(self, t: float, edges: Edges, doubtful: bool, plane: Plane) -> None:
        """Measure the displacement.

        One that disagrees with the one before proves nothing: the camera shakes or turns, or something large went by.
        """
        last, last_t = self._last_shift, self._shift_t
        now = self._last_shift = None if doubtful else self._baseline.shift(edges)
        self._shift_t = t
        if now is None:
            self._moved.update(t, None)
        elif now.peak >= TUNING.moved.peak_min and now.distance < self._moved_share / 2:
            self._moved.update(t, False)
        elif now.peak >= TUNING.moved.peak_min and now.distance >= self._moved_share:
            self._moved.update(t, True if _agree(now, last) else None, _moved_text(now), began=last_t)
        else:
            elsewhere = now.likeness < TUNING.moved.unlike_max and now.peak < TUNING.moved.peak_min and _is_lit(plane)
            self._moved.update(t, True if elsewhere else None, "the camera looks at another place than it used to")

    def _may_learn(self, t: float, doubtful: bool) -> bool:
        """Return True if the view may be learnt.

        A doubtful view is not learnt for a while, lest a fault becomes the baseline; a lorry that stays is.
        """
        if not doubtful:
            self._doubt_t = None
            return True
        self._doubt_t = t if self._doubt_t is None or t < self._doubt_t else self._doubt_t
        return t - self._doubt_t > TUNING.covered.doubt_s_max and not (self._moved.is_open or self._covered.is_open)

    def _dismiss(self, t: float) -> None:
        if not self._rebaseline:
            return
        with self._lock:
            kinds, self._rebaseline = self._rebaseline, set()
        for condition in (self._black, self._covered, self._moved):
            if condition.kind in kinds:
                condition.dismiss(t)
        if kinds & {"covered", "moved"}:
            self._baseline.forget()
            self._doubt_t = self._last_shift = None


def _clock_text(period_s: float) -> str:
    if not period_s:
        return CLOCK_TEXT
    return f"the stream is a recording that loops: its clock begins anew every {period_s:.0f} s, told this once"


def _agree(now: ViewShift, last: ViewShift | None) -> bool:
    return last is not None and max(abs(now.x - last.x), abs(now.y - last.y)) < TUNING.moved.agree_share


def _is_covered(lost: float) -> bool | None:
    """None: too little is lost to say so, and too much to deny it."""
    return True if lost >= TUNING.covered.covered_share else False if lost <= TUNING.covered.uncovered_share else None


def _is_lit(plane: Plane) -> bool:
    """Bright and varied enough that its edges are not mere noise."""
    return float(plane.mean()) >= TUNING.moved.lit_mean_min and float(plane.std()) >= TUNING.moved.lit_deviation_min


def _moved_text(shift: ViewShift) -> str:
    parts = [
        f"{abs(amount):.0%} of the picture's {size} to the {way[0] if amount > 0 else way[1]}"
        if size == "width"
        else f"{abs(amount):.0%} of its height {way[0] if amount > 0 else way[1]}"
        for amount, size, way in ((shift.x, "width", ("right", "left")), (shift.y, "height", ("down", "up")))
        if abs(amount) >= TUNING.moved.agree_share
    ]
    return f"what the camera sees has moved by {' and '.join(parts)}: its zones no longer fit"
