"""From events to alerts: one alert per incident, calm, and nothing lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.alerts.incident import Incident, rank
from appliance.alerts.view import RecentLooks
from appliance.config import Alerts, Rule
from appliance.types import AlertChange, Event, FrameBoxes, Severity, Step, StreamHeader

# Cameras deliver a frame a little out of order now and then; more than this is a clock that was set.
_REORDER_S = 1.0
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class _Cooldown:
    t_end: float
    severity: Severity


class AlertPolicy:
    """Merges the events of one camera into alerts. Pure: no clock, no I/O.

    Invariants: at most one alert is open; alerts of a camera do not overlap; every event is in exactly one change
    (`opened` or `extended`) or suppressed; every opened alert ends once `close` is called.

    - An open alert absorbs every event of the camera, and stays open while one of its tracks is seen.
    - It ends ("quiet") when for `merge_s` none of its tracks was seen and no event came, or ("length") when it has
      lasted `length_max_s`, or with the run or the stream. Its t_end is when it was last active, not when that was
      noticed. A time in which the detector did not answer is not quiet: nobody looked.
    - With no alert open, an event of a rule that fired (was reported) less than its `cooldown_s` ago is suppressed:
      returned and counted, but opens nothing, unless its severity is higher than that of the last reported one. A
      suppressed event does not prolong the cooldown.
    - `extended` is said for an event, and when the best view has become markedly better; not for time passing.
    """

    def __init__(self, camera: str, alerts: Alerts, rules: Sequence[Rule]) -> None:
        self.camera = camera
        self._merge_s = alerts.merge_s
        self._length_max_s = alerts.length_max_s
        self._cooldown_s = {rule.name: rule.cooldown_s for rule in rules}
        self._cooling: dict[str, _Cooldown] = {}
        self._recent = RecentLooks()
        self._open: Incident | None = None
        self._run = ""
        self._latest = self._blind = self._ended_t = _NEVER
        self.suppressed = 0

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def begin(self, header: StreamHeader) -> Step:
        """A run begins: what was open belongs to tracks that exist no longer. The same run again: no change."""
        if header.run and header.run == self._run:
            return Step()
        changes = self._end("new run")
        self._run = header.run
        self._recent.clear()
        return Step(changes=changes)

    def feed(self, frame: FrameBoxes, events: Iterable[Event] = ()) -> Step:
        """Time has come to `frame.t`: follow the tracks, end what is over, then place the events."""
        changes = [*self._rewound(frame.t), *self._overlong(frame.t)]
        if frame.looked:
            self._recent.add(frame)
            if self._open:
                self._open.look(frame)
        else:
            self._blind = frame.t
        changes += self._quiet(frame.t)
        suppressed: list[Event] = []
        for event in events:
            change = self._place(event)
            if change:
                changes.append(change)
            else:
                suppressed.append(event)
        changes += self._improved()
        self.suppressed += len(suppressed)
        return Step(changes=tuple(changes), suppressed=tuple(suppressed))

    def tick(self, t: float) -> Step:
        """Time passes without boxes, because the camera is gone: an open alert may be over."""
        return Step(changes=(*self._overlong(t), *self._quiet(t)))

    def close(self, t: float, reason: str) -> Step:
        """The stream ends at `t`, for `reason`. An alert that is over by then for another reason says that one."""
        return Step(changes=(*self.tick(t).changes, *self._end(reason)))

    def _place(self, event: Event) -> AlertChange | None:
        # How its track is, or was last, seen: a still cut at the time of an exit would show nobody.
        view = self._recent.last_view(event.track)
        if self._open is None:
            if self._is_cooling(event):
                return None
            self._open = Incident(event, self._run, view, not_before=self._ended_t)
            self._cool(event)
            return AlertChange("opened", self._open.told(), event)
        self._open.absorb(event, view)
        self._cool(event)
        return AlertChange("extended", self._open.told(), event)

    def _is_cooling(self, event: Event) -> bool:
        cooldown = self._cooling.get(event.rule)
        return cooldown is not None and event.t < cooldown.t_end and rank(event.severity) <= rank(cooldown.severity)

    def _cool(self, event: Event) -> None:
        self._cooling[event.rule] = _Cooldown(event.t + self._cooldown_s.get(event.rule, 0.0), event.severity)

    def _improved(self) -> tuple[AlertChange, ...]:
        if self._open is None or not self._open.markedly_better:
            return ()
        return (AlertChange("extended", self._open.told()),)

    def _overlong(self, t: float) -> tuple[AlertChange, ...]:
        if self._open is None or t - self._open.t_start < self._length_max_s:
            return ()
        return self._end("length")

    def _quiet(self, t: float) -> tuple[AlertChange, ...]:
        if self._open is None or t - max(self._open.active, self._blind) <= self._merge_s:
            return ()
        return self._end("quiet")

    def _rewound(self, t: float) -> tuple[AlertChange, ...]:
        """A camera clock that was set back: times of before cannot be compared with times of now."""
        if self._latest - t <= _REORDER_S:
            self._latest = max(self._latest, t)
            return ()
        changes = self._end("clock set back")
        self._cooling.clear()
        self._recent.clear()
        self._latest, self._blind, self._ended_t = t, _NEVER, _NEVER
        return changes

    def _end(self, reason: str) -> tuple[AlertChange, ...]:
        if self._open is None:
            return ()
        ended = self._open.told(self._open.active, reason)
        self._ended_t = self._open.active
        self._open = None
        return (AlertChange("ended", ended),)
