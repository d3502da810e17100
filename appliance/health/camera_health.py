"""Watchdogs: a camera that is silent, unexamined or overloaded, a detector that is stuck or replaced by another.

Also clocks that disagree: two streams of a camera, and the appliance's own when it is set.

`HealthCondition` is one thing that may be wrong, here or in a picture: it debounces single readings into one event
with a beginning and an end.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from appliance import config
from appliance.base.clock import Clock, ClockStepDetector
from appliance.types import CameraStateName, HealthEvent, HealthKind

HealthListener = Callable[[HealthEvent], None]

CLEAR_S = 5.0  # a fault is over when it has been gone for so long
REOPEN_WITHIN_S = 60.0  # a fault that returns sooner is the same event: a person should not get thirty of them
SILENCE_S_MAX = 12.0  # without a reading for so long, a suspicion begins anew
WINDOW_S = 5.0  # rates are of so many seconds: a detector that was held up for less is no overload
KEPT_SHARE = 0.8  # of the promise; less is below it
CLEARED_SHARE = 0.9  # of the promise; so much is kept again, and between the two nothing changes
MISSING_MIN = 0.5  # inferences a second: of a heartbeat each few seconds one may be missed
BUSY_LOAD = 0.8  # of the detector's time; above it the detector is what there is too little of
STEP_S_MIN = 2.0  # a smaller step of the system clock is what NTP does
OFFSET_HOLD_S = 8.0  # a stream that was just opened is steered to its sender's clock first


class HealthCondition:
    """Opens an event when a fault has lasted `hold_s` seconds, closes it when the fault has been gone for `clear_s`.

    State: since when readings are faulty or good, the event as it was last reported. Owner: one thread. Invariant: at
    most one event of the kind is open; each change of it is reported once. Times are the camera's; a time that is set
    back, or leaps, only makes the condition begin to count again.
    """

    def __init__(
        self, camera: str, kind: HealthKind, report: HealthListener, *, hold_s: float, clear_s: float = CLEAR_S
    ) -> None:
        self.kind = kind
        self._camera = camera
        self._report = report
        self._hold_s = hold_s
        self._clear_s = clear_s
        self._event: HealthEvent | None = None
        self._fault_from: float | None = None
        self._fault_at = float("-inf")
        self._good_from: float | None = None
        self._muted = False

    @property
    def is_open(self) -> bool:
        return self._event is not None and self._event.t_end is None

    @property
    def is_suspected(self) -> bool:
        """Open, or a fault is being counted."""
        return self.is_open or self._fault_from is not None

    @property
    def event(self) -> HealthEvent | None:
        """As it was last reported."""
        return self._event

    def update(self, t: float, fault: bool | None, reason: str = "", began: float | None = None) -> None:
        """Take in one reading at camera time `t`.

        fault None: it cannot be judged now. began: when the fault began, where that is known.
        """
        if self._fault_from is not None and not -1.0 < t - self._fault_at < SILENCE_S_MAX:
            self._fault_from = None
        if fault:
            self._faulty(t, reason, began)
        elif fault is not None:
            self._fault_from, self._muted = None, False
            self._good_from = t if self._good_from is None or self._good_from > t else self._good_from
        if self.is_open and self._good_from is not None and t - self._good_from >= self._clear_s:
            self._close(t, self._good_from)

    def record_recovery(self, t: float, what: str, attempts: int = 1) -> None:
        """Note an attempt at recovery as a part of the event, if one is open."""
        if self._event is not None and self.is_open:
            self._emit(replace(self._event, t=t, recovery=what, attempts=self._event.attempts + attempts))

    def dismiss(self, t: float) -> None:
        """End the event: a person confirms that all is right. Another begins only after the fault was gone."""
        self._muted, self._fault_from = True, None
        if self.is_open:
            self._close(t, t)
        self._event = None

    def _faulty(self, t: float, reason: str, began: float | None) -> None:
        self._fault_at, self._good_from = t, None
        if self._fault_from is None:
            self._fault_from = t if began is None else min(began, t)
        if not self.is_open and not self._muted and t - self._fault_from >= self._hold_s:
            self._open(t, self._fault_from, reason)

    def _open(self, t: float, began: float, reason: str) -> None:
        last = self._event
        # A fault that began before the last one was taken to be over is the same, too.
        if last is not None and last.t_end is not None and last.t_start <= began < last.t_end + REOPEN_WITHIN_S:
            self._emit(replace(last, t=t, t_end=None, reason=reason, times=last.times + 1))
            return
        name = hashlib.sha256(f"{self._camera}|{self.kind}|{began!r}".encode()).hexdigest()[:16]
        self._emit(HealthEvent(camera=self._camera, id=name, kind=self.kind, t=t, t_start=began, reason=reason))

    def _close(self, t: float, ended: float) -> None:
        assert self._event is not None
        self._good_from = None
        self._emit(replace(self._event, t=t, t_end=max(ended, self._event.t_start)))

    def _emit(self, event: HealthEvent) -> None:
        self._event = event
        self._report(event)


@dataclass(frozen=True, slots=True)
class InferenceRates:
    """Inferences a second over the last WINDOW_S.

    promised: the frames that were due by motion, tracks and heartbeat, never more than `detect.fps`; all of that while
    packets are read so late that frames are not even considered. examined: those that the detector answered.
    """

    promised: float
    examined: float

    @property
    def is_below(self) -> bool | None:
        """Less than was promised; None: a little less, which neither begins an overload nor ends it."""
        if self.promised - self.examined >= MISSING_MIN and self.examined < KEPT_SHARE * self.promised:
            return True
        kept = self.promised - self.examined < MISSING_MIN or self.examined >= CLEARED_SHARE * self.promised
        return False if kept else None


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    due: int
    examined: int
    lagging: bool


class InferenceRateMeter:
    """Measures the `InferenceRates` of one camera.

    State: the readings of the last WINDOW_S, one a second. Owner: as of `CameraWatchdog`.
    """

    def __init__(self, fps: float) -> None:
        """fps: `detect.fps` of the camera."""
        self._fps = fps
        self._readings: deque[_Reading] = deque()

    def clear(self) -> None:
        """Forget all readings, because what comes next has nothing to do with them.

        The camera was silent, or the detector stuck.
        """
        self._readings.clear()

    def add(self, at: float, due: int, examined: int, *, lagging: bool) -> InferenceRates | None:
        """Take in the counts since the start, at monotonic seconds `at`. None: not known yet.

        due: frames that were examined, or dropped because the detector was busy. lagging: packets are read late, and
        most of them go past the detector.
        """
        self._readings.append(_Reading(at, due, examined, lagging))
        while len(self._readings) > 2 and at - self._readings[1].at >= WINDOW_S:
            self._readings.popleft()
        first = self._readings[0]
        passed_s = at - first.at
        if passed_s < WINDOW_S - 0.5:
            return None
        wanted = self._fps if any(each.lagging for each in self._readings) else (due - first.due) / passed_s
        return InferenceRates(min(self._fps, wanted), (examined - first.examined) / passed_s)


def overload_reason(rates: InferenceRates, detector_load: float) -> str:
    """Return one sentence that says what is too little, and what helps.

    detector_load: share of the time that the detector works.
    """
    got = f"{rates.examined:.1f} of {rates.promised:.1f} inferences a second"
    if detector_load >= BUSY_LOAD:
        return (
            f"it gets {got}: the detector is at work {min(1.0, detector_load):.0%} of the time; lower detect.fps, take "
            "a quicker network, or fewer cameras"
        )
    return (
        f"it gets {got}, though the detector is at work only {detector_load:.0%} of the time: the processor is too "
        "busy; use a smaller detect_url, set detect.latency: thrifty, or take fewer cameras"
    )


SILENT_S = 2.5  # without a packet on one of its streams, a camera counts as silent
FLOW_S = 2.0  # packets must flow for so long to end a silence
REMEDY_S = 15.0  # from one remedy for unexamined frames to the next
REPORT_TRIES_S = 30.0  # how often the attempts to reconnect are reported
STARTING_S = 20.0  # models warm up and cameras connect: nobody was promised anything yet
OVERLOAD_CLEAR_S = 10.0  # so long the promise has to be kept again
QUIET_FPS = 1.0  # promised so few, how many came says little of whether more could
QUIET_S = 60.0  # and after so long of that nobody is overloaded
BUSY_S_MAX = 1.0  # a call of the detector that lasts longer counts as stuck

Remedy = Literal["", "examine", "connect"]
"""Say what the camera should do: examine the next frame whatever the motion gate says, or reconnect."""


@dataclass(frozen=True, slots=True)
class CameraActivity:
    """The counts and state of a camera since the process began.

    Attributes:
        packets: received on each of its streams.
        decoded, examined: frames.
        reason: why it is in `state`, or ''.
        tries: connections that failed.
        breaks: how often one of its streams was reported as anything but live.
        crowded_out: frames that were due and not examined because the detector was busy.
        lagging: its packets are read so late that most go past the detector.
        waiting: more comes than can be read, so that no packet was taken says nothing.
        apart_s: by how much camera time of the detect stream is ahead of the main stream's; None: not known, or one
            stream.
        decoder_fault: why the hardware that was asked for does not decode it, or ''.
    """

    packets: tuple[int, ...]
    decoded: int
    examined: int
    state: CameraStateName
    reason: str
    tries: int
    breaks: int = 0
    crowded_out: int = 0
    lagging: bool = False
    apart_s: float | None = None
    waiting: bool = False
    decoder_fault: str = ""


@dataclass(frozen=True, slots=True)
class DetectorActivity:
    """The shared detector now. load: share of the time that it is at work, 0..1; stuck: it does not answer."""

    load: float = 0.0
    stuck: bool = False


def streams_apart_s(main_behind_s: float | None, detect_behind_s: float | None) -> float | None:
    """Return by how much the detect stream's camera time is ahead of the main stream's. None: one is not known.

    main_behind_s, detect_behind_s: by how much each stream's camera time is behind the appliance's clock.
    """
    return None if main_behind_s is None or detect_behind_s is None else main_behind_s - detect_behind_s


class StreamOffset:
    """The condition `offset` of one camera: boxes have the detect stream's time, the recording the main stream's.

    Owner: as of `CameraWatchdog`.
    """

    def __init__(self, camera: str, report: HealthListener, offset_s: float) -> None:
        """offset_s: from so much on it is a fault."""
        self._condition = HealthCondition(camera, "offset", report, hold_s=OFFSET_HOLD_S)
        self._offset_s = offset_s

    def update(self, now: float, apart_s: float | None) -> None:
        """Take in `streams_apart_s` at camera time `now`."""
        reason = f"its second stream is {abs(apart_s or 0.0):.1f} s {'ahead of' if (apart_s or 0.0) > 0 else 'behind'} "
        reason += "its main stream by their clocks: boxes lie beside what they are of, and stills show another moment; "
        reason += "set the camera's time (NTP), or detect on the main stream"
        self._condition.update(now, None if apart_s is None else abs(apart_s) > self._offset_s, reason)


class ClockStep:
    """The condition `clock` of the appliance. Owner: as of `ApplianceWatchdog`."""

    def __init__(self, report: HealthListener, clock: Clock) -> None:
        self._steps = ClockStepDetector(clock, STEP_S_MIN)
        self._condition = HealthCondition("", "clock", report, hold_s=0.0)

    def update(self, now: float) -> None:
        """Compare the clocks; call it once a second."""
        step_s = self._steps.step_s()
        self._condition.update(now, step_s != 0, f"the clock of this appliance was set by {step_s:+.0f} s")
        if step_s:
            self._condition.record_recovery(now, "connecting to all cameras again, so that their times are true")


class CameraWatchdog:
    """One camera's conditions that need a clock: stalled, unexamined, overloaded, and streams that are apart in time.

    Owner: the thread that calls `tick`, once a second. State: when each of the counts last rose, the conditions.
    Invariant: while a camera is silent, or the detector stuck, the camera counts as neither unexamined nor overloaded,
    and one that is overloaded not as unexamined: one cause, one event.
    """

    def __init__(
        self,
        camera: str,
        settings: config.HealthConfig,
        disabled: Collection[HealthKind],
        report: HealthListener,
        clock: Clock,
        *,
        heartbeat_s: float,
        fps: float,
    ) -> None:
        """heartbeat_s, fps: of the camera's `detect` section."""
        self._disabled = frozenset(settings.ignore) | frozenset(disabled)
        self._stalled = HealthCondition(camera, "stalled", report, hold_s=settings.stalled_s)
        self._unexamined = HealthCondition(camera, "unexamined", report, hold_s=0.0)
        self._decoder = HealthCondition(camera, "decoder", report, hold_s=0.0)
        self._overloaded = HealthCondition(camera, "overloaded", report, hold_s=0.0, clear_s=OVERLOAD_CLEAR_S)
        self._overloaded_s = settings.overloaded_s
        self._below_s = 0.0  # for so long it got less than was promised, quiet times left out
        self._rated_at = self._below_at = float("-inf")
        self._offset = StreamOffset(camera, report, settings.offset_s)
        self.rates: InferenceRates | None = None
        self._rate_meter = InferenceRateMeter(fps)
        self._started_at = clock.monotonic()
        self._heartbeat_s = heartbeat_s
        self._unexamined_s = heartbeat_s + settings.unexamined_s
        self._clock = clock
        self._received_at: list[float] = []
        self._flowing_from: list[float | None] = []
        self._decoded_at = self._examined_at = clock.monotonic()
        self._last: CameraActivity | None = None
        self._tries = 0
        self._tried_at = self._remedy_at = float("-inf")

    def tick(self, activity: CameraActivity, detector: DetectorActivity) -> Remedy:
        """Judge what the camera did since the last call. `rates` are then those of now; None: not known."""
        now, at = self._clock.now(), self._clock.monotonic()
        self._note_activity(activity, at)
        if "decoder" not in self._disabled:
            self._decoder.update(now, bool(activity.decoder_fault), activity.decoder_fault)
        if activity.state == "ended":
            self._stalled.update(now, None)
            self._overloaded.update(now, False)
            self._forget_rates()
            return ""
        silent_s = at - min(self._received_at)
        if "stalled" not in self._disabled:
            self._check_silence(now, at, silent_s, activity)
        if silent_s > SILENT_S or detector.stuck:
            # An open event stays: the silence of a reconnection that is to mend it proves nothing.
            if self._unexamined.is_open:
                self._unexamined.update(now, None)
            else:
                self._decoded_at = self._examined_at = at
            self._forget_rates()
            return ""
        if "offset" not in self._disabled:
            is_measured = activity.state == "live" and not activity.lagging
            self._offset.update(now, activity.apart_s if is_measured else None)
        if self._check_rates(now, at, activity, detector.load):
            self._unexamined.update(now, None)
            return ""
        return "" if "unexamined" in self._disabled else self._check_examined(now, at)

    def _note_activity(self, activity: CameraActivity, at: float) -> None:
        last, self._last = self._last, activity
        if last is None or len(last.packets) != len(activity.packets):
            self._received_at = [at] * len(activity.packets)
            self._flowing_from = [at] * len(activity.packets)
            return
        for n, (before, after) in enumerate(zip(last.packets, activity.packets, strict=True)):
            flowing_from = self._flowing_from[n]
            if activity.waiting:
                self._received_at[n] = at
            elif activity.breaks != last.breaks:
                self._flowing_from[n] = None
            elif after != before and flowing_from is None:
                self._flowing_from[n] = at
            elif after != before and flowing_from is not None and at - flowing_from >= FLOW_S:
                # Not before: a camera that hangs often sends what it had left to each new connection, and no more.
                self._received_at[n] = at
        if activity.decoded != last.decoded:
            self._decoded_at = at
        if activity.examined != last.examined:
            self._examined_at = at

    def _check_silence(self, now: float, at: float, silent_s: float, activity: CameraActivity) -> None:
        reason = activity.reason or "connected, but no picture comes"
        self._stalled.update(now, silent_s > SILENT_S, reason, began=now - silent_s)
        if not self._stalled.is_open:
            self._tries, self._tried_at = activity.tries, float("-inf")
        elif at - self._tried_at >= REPORT_TRIES_S and silent_s > SILENT_S:
            self._stalled.record_recovery(now, "connecting to the camera again", max(1, activity.tries - self._tries))
            self._tries, self._tried_at = activity.tries, at

    def _check_rates(self, now: float, at: float, activity: CameraActivity, detector_load: float) -> bool:
        """Return True if the camera gets less than it was promised."""
        due = activity.examined + activity.crowded_out
        self.rates = self._rate_meter.add(at, due, activity.examined, lagging=activity.lagging)
        if self.rates is None or "overloaded" in self._disabled or at - self._started_at < STARTING_S:
            return False
        below = self._still_below(self.rates, at)
        enough = self._overloaded.is_open or self._below_s >= self._overloaded_s
        fault = None if below and not enough else below
        self._overloaded.update(now, fault, overload_reason(self.rates, detector_load), began=now - self._below_s)
        return self._overloaded.is_open or self._below_s > 0

    def _still_below(self, rates: InferenceRates, at: float) -> bool | None:
        """As `InferenceRates.is_below`, where pauses in which hardly anything was due neither add nor take away."""
        below, passed_s = rates.is_below, at - self._rated_at
        self._rated_at = at
        if below:
            self._below_s += passed_s if passed_s < WINDOW_S else 0.0
            self._below_at = at
        elif rates.promised < QUIET_FPS and at - self._below_at < QUIET_S:
            return None
        elif below is False:
            self._below_s = 0.0
        return below

    def _forget_rates(self) -> None:
        self.rates = None
        self._rate_meter.clear()
        self._below_s = 0.0

    def _check_examined(self, now: float, at: float) -> Remedy:
        unexamined_s = at - self._examined_at
        undecoded = at - self._decoded_at > self._heartbeat_s + SILENT_S  # an idle camera is decoded at its heartbeat
        what = "no picture could be made of what comes" if undecoded else "pictures come, but none was looked at"
        reason = f"{what} for longer than {self._unexamined_s:.0f} s"
        self._unexamined.update(now, unexamined_s > self._unexamined_s, reason, began=now - unexamined_s)
        if not self._unexamined.is_open or unexamined_s <= self._unexamined_s or at - self._remedy_at < REMEDY_S:
            return ""
        self._remedy_at = at
        self._unexamined.record_recovery(
            now, "connecting to the camera again" if undecoded else "looking whatever the gate says"
        )
        return "connect" if undecoded else "examine"


class ApplianceWatchdog:
    """The conditions of the appliance itself, reported without a camera. Owner: as of `CameraWatchdog`."""

    def __init__(self, settings: config.HealthConfig, report: HealthListener, clock: Clock) -> None:
        self._disabled = frozenset(settings.ignore)
        self._detector = HealthCondition("", "detector", report, hold_s=settings.detector_s)
        self._clock_step = ClockStep(report, clock)
        self._fallback = HealthCondition("", "fallback", report, hold_s=0.0)
        self._clock = clock

    @property
    def is_detector_stuck(self) -> bool:
        """The detector does not answer, or may not."""
        return self._detector.is_suspected

    def tick(self, busy_s: float, failure: str, fallback: str = "") -> None:
        """Update the appliance's conditions.

        busy_s: how long the detector has been at one call. failure: why the last call failed, or ''. fallback: what the
        detector stands in for, and why, or ''.
        """
        now = self._clock.now()
        if "fallback" not in self._disabled:
            self._fallback.update(now, bool(fallback), fallback)
        if "clock" not in self._disabled:
            self._clock_step.update(now)
        if "detector" in self._disabled:
            return
        if busy_s > BUSY_S_MAX:
            self._detector.update(now, True, "the detector does not answer", began=now - busy_s)
        else:
            self._detector.update(now, bool(failure), failure)

    def record_restart(self) -> None:
        """Note that the ingest process is being restarted, so that the detector answers again."""
        self._detector.record_recovery(self._clock.now(), "starting the ingest process again")
