"""Detects tampering and failure of one camera's picture: black, frozen, covered, moved, and a clock that jumps."""

from __future__ import annotations

import threading
from collections.abc import Collection

from appliance import config
from appliance.health.conditions import HealthCondition, HealthListener
from appliance.health.tamper_measures import Edges, FreezeDetector, Plane, SceneBaseline, ViewShift, edges_of, is_black
from appliance.types import HealthKind

EDGES_EVERY_S = 1.0
SHIFT_EVERY_S = 2.0
RETRY_S = 60.0
RETRY_S_MAX = 600.0
COVERED_SHARE = 0.85
UNCOVERED_SHARE = 0.6
DOUBT_SHARE = 0.5
DOUBT_S_MAX = 60.0
AGREE_SHARE = 0.01
PEAK_MIN = 0.25
UNLIKE_MAX = 0.15
_EARLY_S = 0.05

BLACK_TEXT = "the picture is black: no light, a dead sensor, or a cover on the lens"
FROZEN_TEXT = "pictures come, but not even the noise in them changes: the camera shows an old picture"
CLOCK_TEXT = "the camera's clock jumped"
IS_BLACK = "the picture is black"
IS_COVERED = "the scene cannot be seen"
IS_ELSEWHERE = "the picture shows another view"
COVERED_TEXT = "the edges of the scene are gone: the lens is covered, painted over or out of focus"


class TamperDetector:
    """Black, frozen, covered, moved, and a clock that jumps: one camera's cases, told as `HealthEvent`s.

    State: the learnt view, the last changed picture, the cases; it outlives runs, since a frozen picture is still
    frozen after a new connection. Owner: whoever feeds pictures, in order; `relearn` may be called by any thread.
    No clock: what is told depends only on times and planes. mend: whether a new connection may help (a camera: yes, a
    file: no); `reconnect_due` then says when one is to be made.
    """

    def __init__(
        self, camera: str, plan: config.HealthConfig, off: Collection[HealthKind], tell: HealthListener, *, mend: bool
    ) -> None:
        self._off = frozenset(plan.ignore) | frozenset(off)
        self._far = plan.moved_share
        self._black = HealthCondition(camera, "black", tell, hold_s=plan.black_s)
        self._frozen = HealthCondition(camera, "frozen", tell, hold_s=plan.frozen_s)
        self._covered = HealthCondition(camera, "covered", tell, hold_s=plan.covered_s)
        self._moved = HealthCondition(camera, "moved", tell, hold_s=plan.moved_s)
        self._clock = HealthCondition(camera, "clock", tell, hold_s=0.0)
        self._frozen_s = plan.frozen_s
        self._mend = mend
        self._stillness = FreezeDetector()
        self._view = SceneBaseline()
        self._lock = threading.Lock()
        self._relearn: set[HealthKind] = set()
        self._edges_t = self._shift_t = float("-inf")
        self._doubt_t: float | None = None
        self._last: ViewShift | None = None
        self._retry_t = float("-inf")
        self._retry_s = RETRY_S
        self._tried: dict[HealthKind, str] = {}

    def observe(self, t: float, plane: Plane) -> None:
        """Take in one picture. plane: uint8 (90, 160), brightness, as the gate gets it."""
        self._dismiss(t)
        black = is_black(plane)
        if "black" not in self._off:
            self._black.update(t, black, BLACK_TEXT)
        if "frozen" not in self._off:
            self._still(t, plane, black)
        if black or self._frozen.is_open or {"covered", "moved"} <= self._off:
            return
        if not 0 <= t - self._edges_t < EDGES_EVERY_S - _EARLY_S:
            self._edges(t, edges_of(plane), plane)

    def observe_packet(self, t: float, jump: bool) -> None:
        """One packet of a live stream; jump: its clock jumped before it."""
        if (jump or self._clock.is_open) and "clock" not in self._off:
            self._clock.update(t, jump, CLOCK_TEXT)
            if jump:
                self._clock.record_recovery(t, "its times were anchored anew")

    def rebaseline(self, kind: HealthKind) -> None:
        """A person has seen it and says that it is right as it is now."""
        with self._lock:
            self._relearn.add(kind)

    def reconnect_reason(self, t: float) -> str:
        """Why the camera is to be connected to anew now, or ''. A reason is given once; while the picture stands still
        again, ever more rarely."""
        if not self._mend:
            return ""
        if not self._frozen.is_open or t < self._retry_t <= t + RETRY_S_MAX:
            return self._once(t)
        self._retry_t, self._retry_s = t + self._retry_s, min(2 * self._retry_s, RETRY_S_MAX)
        self._frozen.record_recovery(t, "connecting to the camera again")
        return "the picture stands still"

    def _once(self, t: float) -> str:
        """A new connection may mend an encoder that sends nothing but black, grey, or another camera's picture. If it
        does not, a person must."""
        for case, reason in ((self._black, IS_BLACK), (self._covered, IS_COVERED), (self._moved, IS_ELSEWHERE)):
            event = case.event
            if case.is_open and event is not None and self._tried.get(case.kind) != event.id:
                self._tried[case.kind] = event.id
                case.record_recovery(t, "connecting to the camera again")
                return reason
        return ""

    def _still(self, t: float, plane: Plane, black: bool) -> None:
        since = self._stillness.unchanged_since(t, plane)
        if black or self._covered.is_suspected:  # one cause, one event: in the dark, some cameras make no noise
            self._frozen.update(t, None)
        elif since == t:
            self._frozen.update(t, False)
            self._retry_s = RETRY_S
        else:
            self._frozen.update(t, True if t - since >= self._frozen_s / 2 else None, FROZEN_TEXT, began=since)

    def _edges(self, t: float, edges: Edges, plane: Plane) -> None:
        passed_s = min(max(t - self._edges_t, 0.0), 5.0)
        self._edges_t = t
        lost = self._view.lost(edges)
        if "covered" not in self._off:
            self._covered.update(t, None if lost is None else _covered(lost), COVERED_TEXT)
        doubtful = lost is not None and lost > DOUBT_SHARE
        if "moved" not in self._off and not 0 <= t - self._shift_t < SHIFT_EVERY_S - _EARLY_S:
            self._displaced(t, edges, doubtful, plane)
        if self._may_learn(t, doubtful or self._moved.is_suspected or self._covered.is_suspected):
            self._view.learn(edges, passed_s)

    def _displaced(self, t: float, edges: Edges, doubtful: bool, plane: Plane) -> None:
        """One measurement of where the view is. One that does not agree with the one before says nothing: it shakes,
        it turns, or something large went by."""
        last, last_t = self._last, self._shift_t
        now = self._last = None if doubtful else self._view.shift(edges)
        self._shift_t = t
        if now is None:
            self._moved.update(t, None)
        elif now.peak >= PEAK_MIN and now.far < self._far / 2:
            self._moved.update(t, False)
        elif now.peak >= PEAK_MIN and now.far >= self._far:
            agrees = last is not None and abs(now.x - last.x) < AGREE_SHARE and abs(now.y - last.y) < AGREE_SHARE
            self._moved.update(t, True if agrees else None, _by(now), began=last_t)
        else:
            elsewhere = now.likeness < UNLIKE_MAX and now.peak < PEAK_MIN and _is_lit(plane)
            self._moved.update(t, True if elsewhere else None, "the camera looks at another place than it used to")

    def _may_learn(self, t: float, doubtful: bool) -> bool:
        """What is doubtful is not learnt for a while, lest it becomes the usual; what lasts (a lorry) is at last."""
        if not doubtful:
            self._doubt_t = None
            return True
        self._doubt_t = t if self._doubt_t is None or t < self._doubt_t else self._doubt_t
        return t - self._doubt_t > DOUBT_S_MAX and not (self._moved.is_open or self._covered.is_open)

    def _dismiss(self, t: float) -> None:
        if not self._relearn:
            return
        with self._lock:
            kinds, self._relearn = self._relearn, set()
        for case in (self._black, self._covered, self._moved):
            if case.kind in kinds:
                case.dismiss(t)
        if kinds & {"covered", "moved"}:
            self._view.forget()
            self._doubt_t = self._last = None


def _covered(lost: float) -> bool | None:
    return True if lost >= COVERED_SHARE else False if lost <= UNCOVERED_SHARE else None


def _is_lit(plane: Plane) -> bool:
    """Bright and varied enough that its edges are not mere noise."""
    return float(plane.mean()) >= 35 and float(plane.std()) >= 12


def _by(shift: ViewShift) -> str:
    parts = [
        f"{abs(amount):.0%} of the picture's {size} to the {way[0] if amount > 0 else way[1]}"
        if size == "width"
        else f"{abs(amount):.0%} of its height {way[0] if amount > 0 else way[1]}"
        for amount, size, way in ((shift.x, "width", ("right", "left")), (shift.y, "height", ("down", "up")))
        if abs(amount) >= AGREE_SHARE
    ]
    return f"what the camera sees has moved by {' and '.join(parts)}: its zones no longer fit"
