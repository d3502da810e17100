"""Watchdogs on a clock: a camera that has gone silent or is not examined, a stuck detector, a system clock that was
set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from appliance import config
from appliance.clock import Clock, ClockStepDetector
from appliance.health.conditions import HealthCondition, HealthListener
from appliance.types import CameraStateName, HealthKind

SILENT_S = 2.5
FLOW_S = 2.0
STEP_S_MIN = 2.0
REMEDY_S = 15.0
TELL_TRIES_S = 30.0

Remedy = Literal["", "look", "connect"]
"""What the camera is to do about it: look at the next picture whatever the gate says, or connect anew."""


@dataclass(frozen=True, slots=True)
class CameraActivity:
    """What a camera did since it was made. packets: of each of its streams; tries: connections that came to nothing;
    breaks: how often one of its streams was said to be anything but live."""

    packets: tuple[int, ...]
    decoded: int
    examined: int
    state: CameraStateName
    reason: str
    tries: int
    breaks: int = 0


class CameraWatchdog:
    """One camera's cases that need a clock: stalled, and not examined. Owner: the thread that calls `tick`, once a
    second.

    State: when each of the counts last rose, the cases. While a camera is silent, or the detector stuck, it is not held
    against the camera that nobody looks: one cause, one event.
    """

    def __init__(
        self,
        camera: str,
        plan: config.HealthConfig,
        off: Collection[HealthKind],
        tell: HealthListener,
        clock: Clock,
        *,
        heartbeat_s: float,
    ) -> None:
        self._off = frozenset(plan.ignore) | frozenset(off)
        self._stalled = HealthCondition(camera, "stalled", tell, hold_s=plan.stalled_s)
        self._unexamined = HealthCondition(camera, "unexamined", tell, hold_s=0.0)
        self._heartbeat_s = heartbeat_s
        self._unexamined_s = heartbeat_s + plan.unexamined_s
        self._clock = clock
        self._heard_at: list[float] = []
        self._flows_from: list[float | None] = []
        self._decoded_at = self._examined_at = clock.monotonic()
        self._last: CameraActivity | None = None
        self._tries = 0
        self._tried_at = self._remedy_at = float("-inf")

    def tick(self, signs: CameraActivity, *, blind: bool = False) -> Remedy:
        """blind: the detector is stuck."""
        now, at = self._clock.now(), self._clock.monotonic()
        self._rise(signs, at)
        if signs.state == "ended":
            self._stalled.update(now, None)
            return ""
        quiet_s = at - min(self._heard_at)
        if "stalled" not in self._off:
            self._silent(now, at, quiet_s, signs)
        if quiet_s > SILENT_S or blind:
            self._decoded_at = self._examined_at = at
            return ""
        return "" if "unexamined" in self._off else self._unseen(now, at)

    def _rise(self, signs: CameraActivity, at: float) -> None:
        last, self._last = self._last, signs
        if last is None or len(last.packets) != len(signs.packets):
            self._heard_at = [at] * len(signs.packets)
            self._flows_from = [at] * len(signs.packets)
            return
        for n, (before, after) in enumerate(zip(last.packets, signs.packets, strict=True)):
            flows_from = self._flows_from[n]
            if signs.breaks != last.breaks:
                self._flows_from[n] = None
            elif after != before and flows_from is None:
                self._flows_from[n] = at
            elif after != before and flows_from is not None and at - flows_from >= FLOW_S:
                # Not before: a camera that hangs often sends what it had left to each new connection, and no more.
                self._heard_at[n] = at
        if signs.decoded != last.decoded:
            self._decoded_at = at
        if signs.examined != last.examined:
            self._examined_at = at

    def _silent(self, now: float, at: float, quiet_s: float, signs: CameraActivity) -> None:
        reason = signs.reason or "connected, but no picture comes"
        self._stalled.update(now, quiet_s > SILENT_S, reason, began=now - quiet_s)
        if not self._stalled.is_open:
            self._tries, self._tried_at = signs.tries, float("-inf")
        elif at - self._tried_at >= TELL_TRIES_S and quiet_s > SILENT_S:
            self._stalled.record_recovery(now, "connecting to the camera again", max(1, signs.tries - self._tries))
            self._tries, self._tried_at = signs.tries, at

    def _unseen(self, now: float, at: float) -> Remedy:
        unseen_s = at - self._examined_at
        undecoded = at - self._decoded_at > self._heartbeat_s + SILENT_S  # an idle camera is decoded at its heartbeat
        what = "no picture could be made of what comes" if undecoded else "pictures come, but none was looked at"
        reason = f"{what} for longer than {self._unexamined_s:.0f} s"
        self._unexamined.update(now, unseen_s > self._unexamined_s, reason, began=now - unseen_s)
        if not self._unexamined.is_open or unseen_s <= self._unexamined_s or at - self._remedy_at < REMEDY_S:
            return ""
        self._remedy_at = at
        self._unexamined.record_recovery(
            now, "connecting to the camera again" if undecoded else "looking whatever the gate says"
        )
        return "connect" if undecoded else "look"


class ApplianceWatchdog:
    """The cases of the box itself, told without a camera: the detector, and the clock. Owner: as of `Vigil`."""

    def __init__(self, plan: config.HealthConfig, tell: HealthListener, clock: Clock) -> None:
        self._off = frozenset(plan.ignore)
        self._detector_s = plan.detector_s
        self._detector = HealthCondition("", "detector", tell, hold_s=plan.detector_s)
        self._steps = ClockStepDetector(clock, STEP_S_MIN)
        self._time = HealthCondition("", "clock", tell, hold_s=0.0)
        self._clock = clock

    @property
    def is_detector_stuck(self) -> bool:
        """The detector does not answer, or perhaps does not."""
        return self._detector.is_suspected

    def tick(self, busy_s: float, failure: str) -> None:
        """busy_s: how long the detector has been at one call; failure: what it last said instead of an answer."""
        now = self._clock.now()
        step_s = self._steps.step_s()
        if "clock" not in self._off:
            self._time.update(now, step_s != 0, f"the clock of this box was set by {step_s:+.0f} s")
            if step_s:
                self._time.record_recovery(now, "connecting to all cameras again, so that their times are true")
        if "detector" in self._off:
            return
        if busy_s > 1.0:
            self._detector.update(now, True, "the detector does not answer", began=now - busy_s)
        else:
            self._detector.update(now, bool(failure), failure)

    def record_restart(self) -> None:
        """The ingest process ends so that a new one has a detector that answers."""
        self._detector.record_recovery(self._clock.now(), "starting the ingest process again")
