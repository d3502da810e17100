"""One thing that may be wrong with a camera: debounces single readings into one event with a beginning and an end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from appliance.types import HealthEvent, HealthKind

HealthListener = Callable[[HealthEvent], None]

CLEAR_S = 5.0
REOPEN_WITHIN_S = 60.0  # what comes back sooner than this is the same event: somebody should not be told thirty times
SILENCE_S_MAX = 12.0


class HealthCondition:
    """Opens when what is wrong has lasted `hold_s`, closes when it has been right for `clear_s`.

    State: since when it is bad or good, the event as it was last told. Owner: one thread. Invariant: at most one event
    of the kind is open; each change of it is told once. Times are the camera's; one that is set back, or that leaps,
    only makes the case begin to count again.
    """

    def __init__(
        self, camera: str, kind: HealthKind, tell: HealthListener, *, hold_s: float, clear_s: float = CLEAR_S
    ) -> None:
        self.kind = kind
        self._camera = camera
        self._tell = tell
        self._hold_s = hold_s
        self._clear_s = clear_s
        self._event: HealthEvent | None = None
        self._bad_from: float | None = None
        self._bad_at = float("-inf")
        self._good_from: float | None = None
        self._muted = False

    @property
    def is_open(self) -> bool:
        return self._event is not None and self._event.t_end is None

    @property
    def is_suspected(self) -> bool:
        """Open, or perhaps soon."""
        return self.is_open or self._bad_from is not None

    @property
    def event(self) -> HealthEvent | None:
        """As it was last told."""
        return self._event

    def update(self, t: float, bad: bool | None, reason: str = "", began: float | None = None) -> None:
        """One reading at camera time `t`; None: it cannot be told now. began: since when, where that is known."""
        if self._bad_from is not None and not -1.0 < t - self._bad_at < SILENCE_S_MAX:
            self._bad_from = None
        if bad:
            self._is_bad(t, reason, began)
        elif bad is not None:
            self._bad_from, self._muted = None, False
            self._good_from = t if self._good_from is None or self._good_from > t else self._good_from
        if self.is_open and self._good_from is not None and t - self._good_from >= self._clear_s:
            self._close(t, self._good_from)

    def record_recovery(self, t: float, what: str, attempts: int = 1) -> None:
        """Somebody tried to mend it: part of the event, if there is one."""
        if self._event is not None and self.is_open:
            self._say(replace(self._event, t=t, recovery=what, attempts=self._event.attempts + attempts))

    def dismiss(self, t: float) -> None:
        """A person says that it is right as it is: ends it; it may come back, as another, only after it was gone."""
        self._muted, self._bad_from = True, None
        if self.is_open:
            self._close(t, t)
        self._event = None

    def _is_bad(self, t: float, reason: str, began: float | None) -> None:
        self._bad_at, self._good_from = t, None
        if self._bad_from is None:
            self._bad_from = t if began is None else min(began, t)
        if not self.is_open and not self._muted and t - self._bad_from >= self._hold_s:
            self._open(t, self._bad_from, reason)

    def _open(self, t: float, began: float, reason: str) -> None:
        last = self._event
        if last is not None and last.t_end is not None and 0 <= began - last.t_end < REOPEN_WITHIN_S:
            self._say(replace(last, t=t, t_end=None, reason=reason, times=last.times + 1))
            return
        name = hashlib.sha256(f"{self._camera}|{self.kind}|{began!r}".encode()).hexdigest()[:16]
        self._say(HealthEvent(camera=self._camera, id=name, kind=self.kind, t=t, t_start=began, reason=reason))

    def _close(self, t: float, ended: float) -> None:
        assert self._event is not None
        self._good_from = None
        self._say(replace(self._event, t=t, t_end=max(ended, self._event.t_start)))

    def _say(self, event: HealthEvent) -> None:
        self._event = event
        self._tell(event)
