"""One thing that may be wrong with a camera: debounces single readings into one event with a beginning and an end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from appliance.types import HealthEvent, HealthKind

HealthListener = Callable[[HealthEvent], None]

CLEAR_S = 5.0  # a fault is over when it has been gone for so long
REOPEN_WITHIN_S = 60.0  # a fault that returns sooner is the same event: a person should not get thirty of them
SILENCE_S_MAX = 12.0  # without a reading for so long, a suspicion begins anew


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
