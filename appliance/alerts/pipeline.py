"""Decides on the tracked boxes of one camera: rules make events, and a policy merges events into alerts.

The policy opens one alert per incident, with cooldown and a limit on length. It also scores how well an object is seen
in each frame; the still of an alert is cut from the best one.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence, Set
from math import sqrt

from appliance.config import AlertsConfig, CameraConfig, Rule
from appliance.rules.engine import RulesEngine
from appliance.rules.weekly_hours import LocalTime
from appliance.types import (
    SEVERITIES,
    Alert,
    AlertChange,
    BestView,
    Box,
    Event,
    FrameBoxes,
    PipelineStep,
    Severity,
    StreamHeader,
    TrackedObject,
)

TRACKS_MAX = 256  # listed in one alert
# Examined frames that are kept for an event about a track that is no longer in view. One that walks out of view is
# missed for 3 s before its exit fires: 15 frames, or 180 of the fastest camera.
RECENT_FRAMES = 256
# A better still is worth a write when a person would notice: a fifth larger or surer. Also the bound on the number of
# such writes, since quality lies in 0..1.
BETTER_VIEW_RATIO = 1.2
# Seconds by which a camera delivers a frame out of order now and then; more than this is a clock that was set.
_REORDER_S = 1.0
_NEVER = float("-inf")
_EDGE = 0.01  # share of the frame
_CUT_OFF = 0.5  # weight of a view whose box touches the frame's border: half of the object may be outside


class Cooldowns:
    """The cooldowns of one camera's rules, by the last event that each of them reported."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._length_s = {rule.name: rule.cooldown_s for rule in rules}
        self._last: dict[str, tuple[float, Severity]] = {}
        """By rule: when its cooldown ends, and how severe the reported event was."""

    def begin(self, event: Event) -> None:
        """Begin a rule's cooldown with an event that is reported."""
        self._last[event.rule] = event.t + self._length_s.get(event.rule, 0.0), event.severity

    def holds_back(self, event: Event) -> bool:
        """Return whether the event falls into its rule's cooldown and is no more severe than the one before."""
        t_end, severity = self._last.get(event.rule, (_NEVER, event.severity))
        return event.t < t_end and SEVERITIES.index(event.severity) <= SEVERITIES.index(severity)

    def until(self, rule: str) -> float | None:
        """Return until when the cooldown of a rule lasts; None: it has reported nothing."""
        return self._last[rule][0] if rule in self._last else None

    def clear(self) -> None:
        """Forget all: earlier times mean nothing now."""
        self._last.clear()


class AlertPolicy:
    """Merges the events of one camera into alerts. Pure: no clock, no I/O.

    Invariants: at most one alert is open; alerts of a camera do not overlap; every event is in exactly one change
    (`opened` or `extended`) or suppressed; every opened alert ends once `close` is called.

    - An open alert absorbs every event of the camera, and stays open while one of its tracks is seen.
    - It ends ("quiet") when for `merge_s` none of its tracks was seen and no event came, or ("length") when it has
      lasted `length_max_s`, or with the session or the stream. Its t_end is when it was last active, not when that was
      noticed. A time in which the detector failed is not quiet: it was not examined.
    - With no alert open, an event of a rule that was reported less than its `cooldown_s` ago is suppressed:
      returned and counted, but opens nothing, unless its severity is higher than that of the last reported one. A
      suppressed event does not prolong the cooldown.
    - `extended` is emitted for an event, and when the best view has become markedly better; not for time passing.
    """

    def __init__(self, alerts: AlertsConfig, rules: Sequence[Rule]) -> None:
        self._merge_s = alerts.merge_s
        self._length_max_s = alerts.length_max_s
        self.cooldowns = Cooldowns(rules)
        self._recent: deque[FrameBoxes] = deque(maxlen=RECENT_FRAMES)
        self._open: OpenAlert | None = None
        self._session = ""
        self._latest = self._blind = self._ended_t = _NEVER
        self.suppressed = 0

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def recall(self, reported: Iterable[Event]) -> None:
        """Events of before the first frame, oldest first, which were reported then: their cooldowns may last."""
        for event in reported:
            self.cooldowns.begin(event)

    def begin(self, header: StreamHeader) -> PipelineStep:
        """Begin a session: what was open belongs to tracks that exist no longer. The same session changes nothing."""
        if header.run and header.run == self._session:
            return PipelineStep()
        changes = self._end("new run")
        self._session = header.run
        self._recent.clear()
        return PipelineStep(changes=changes)

    def feed(self, frame: FrameBoxes, events: Iterable[Event] = ()) -> PipelineStep:
        """Time has come to `frame.t`: follow the tracks, end what is over, then place the events."""
        changes = [*self._rewound(frame.t), *self._overlong(frame.t)]
        if frame.looked:
            self._recent.append(frame)
            if self._open:
                self._open.follow(frame)
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
        return PipelineStep(changes=tuple(changes), suppressed=tuple(suppressed))

    def tick(self, t: float) -> PipelineStep:
        """Time passes without boxes, because the camera is gone: an open alert may be over."""
        return PipelineStep(changes=(*self._overlong(t), *self._quiet(t)))

    def close(self, t: float, reason: str) -> PipelineStep:
        """End the stream at `t`, for `reason`. An alert that is over by then for another reason keeps that one."""
        return PipelineStep(changes=(*self.tick(t).changes, *self._end(reason)))

    def _place(self, event: Event) -> AlertChange | None:
        # How its track is, or was last, seen: a still cut at the time of an exit would show nothing.
        view = last_view(self._recent, event.track)
        if self._open is None:
            if self.cooldowns.holds_back(event):
                return None
            self._open = OpenAlert(event, self._session, view, not_before=self._ended_t)
            self.cooldowns.begin(event)
            return AlertChange("opened", self._open.snapshot(), event)
        self._open.absorb(event, view)
        self.cooldowns.begin(event)
        return AlertChange("extended", self._open.snapshot(), event)

    def _improved(self) -> tuple[AlertChange, ...]:
        if self._open is None or not self._open.markedly_better:
            return ()
        return (AlertChange("extended", self._open.snapshot()),)

    def _overlong(self, t: float) -> tuple[AlertChange, ...]:
        if self._open is None or t - self._open.t_start < self._length_max_s:
            return ()
        return self._end("length")

    def _quiet(self, t: float) -> tuple[AlertChange, ...]:
        if self._open is None or t - max(self._open.active, self._blind) <= self._merge_s:
            return ()
        return self._end("quiet")

    def _rewound(self, t: float) -> tuple[AlertChange, ...]:
        """End the open alert: the camera's clock was set back, so earlier times mean nothing now."""
        if self._latest - t <= _REORDER_S:
            self._latest = max(self._latest, t)
            return ()
        changes = self._end("clock set back")
        self.cooldowns.clear()
        self._recent.clear()
        self._latest, self._blind, self._ended_t = t, _NEVER, _NEVER
        return changes

    def _end(self, reason: str) -> tuple[AlertChange, ...]:
        if self._open is None:
            return ()
        ended = self._open.snapshot(self._open.active, reason)
        self._ended_t = self._open.active
        self._open = None
        return (AlertChange("ended", ended),)


class OpenAlert:
    """The alert that lasts. Owner: the AlertPolicy, which holds at most one per camera.

    `active`: the last time at which one of its tracks was seen or an event came. Lists keep the order in which things
    came and hold nothing twice; beyond TRACKS_MAX tracks are still followed by their events but not listed.
    """

    def __init__(self, first: Event, session: str, view: BestView | None, not_before: float) -> None:
        """view: how the first event's track was last seen. not_before: when the camera's previous alert ended."""
        self.id = hashlib.sha256(f"alert|{first.id}|{first.camera}|{first.t!r}".encode()).hexdigest()[:16]
        self.active = self.t_start = max(first.t, not_before)
        self._camera = first.camera
        self._session = session
        self._severity: Severity = first.severity
        self._score = first.score
        self._rules: dict[str, None] = {}
        self._labels: dict[str, None] = {}
        self._tracks: dict[int, None] = {}
        self._best = view or BestView(track=first.track, label=first.label, t=first.t, score=first.score, box=first.box)
        self._best_quality = quality(self._best.score, self._best.box)
        self._reported_quality = 0.0
        self.absorb(first, view)

    def absorb(self, event: Event, view: BestView | None) -> None:
        """Add an event to this alert. view: how its track was last seen."""
        self._rules[event.rule] = None
        self._labels[event.label] = None
        if len(self._tracks) < TRACKS_MAX:
            self._tracks[event.track] = None
        if SEVERITIES.index(event.severity) > SEVERITIES.index(self._severity):
            self._severity = event.severity
        self._score = max(self._score, event.score)
        self.active = max(self.active, event.t)
        if view is not None and quality(view.score, view.box) > self._best_quality:
            self._best, self._best_quality = view, quality(view.score, view.box)

    def follow(self, frame: FrameBoxes) -> None:
        """Take in where its tracks are in an examined frame."""
        for found in frame.objects:
            if found.track in self._tracks:
                self.active = max(self.active, frame.t)
                found_quality = quality(found.score, found.box)
                if found_quality > self._best_quality:
                    self._best, self._best_quality = view_of(found, frame.t), found_quality

    @property
    def markedly_better(self) -> bool:
        """Return whether the best view is one that a person would rather see than the one reported last."""
        return (
            self._best_quality > self._reported_quality
            and self._best_quality >= BETTER_VIEW_RATIO * self._reported_quality
        )

    def snapshot(self, t_end: float | None = None, end_reason: str = "") -> Alert:
        """Return the alert as it stands now; its best view counts as reported."""
        self._reported_quality = self._best_quality
        return Alert(
            camera=self._camera,
            id=self.id,
            rules=tuple(self._rules),
            severity=self._severity,
            t_start=self.t_start,
            t_end=t_end,
            tracks=tuple(self._tracks),
            labels=tuple(self._labels),
            score=self._score,
            run=self._session,
            best=self._best,
            end_reason=end_reason,
        )


def quality(score: float, box: Box) -> float:
    """Score times the root of the area: sure and large; halved where the frame's edge cuts the object off."""
    x1, y1, x2, y2 = box
    whole = x1 > _EDGE and y1 > _EDGE and x2 < 1 - _EDGE and y2 < 1 - _EDGE
    return score * sqrt(max(0.0, x2 - x1) * max(0.0, y2 - y1)) * (1.0 if whole else _CUT_OFF)


def view_of(found: TrackedObject, t: float) -> BestView:
    return BestView(track=found.track, label=found.label, t=t, score=found.score, box=found.box)


def last_view(recent: Sequence[FrameBoxes], track: int) -> BestView | None:
    """Return the track as it was last seen in examined frames, oldest first; None: not in these."""
    seen = (view_of(found, frame.t) for frame in reversed(recent) for found in frame.objects if found.track == track)
    return next(seen, None)


class Pipeline:
    """The decisions of one camera. Owner: the core (one per camera) or a replay; not shared between threads.

    local_time: the weekday (Monday 0) and minute of the day of a frame time, for schedules; None: every rule is always
    armed, as in a replay, whose times are seconds since the clip began. Messages are fed in the order in which they
    were made. A message of another camera is a mistake of the caller: ValueError. rules, policy: to be asked, not fed.
    """

    def __init__(
        self, camera_name: str, camera: CameraConfig, alerts: AlertsConfig, local_time: LocalTime | None = None
    ) -> None:
        self._camera = camera_name
        self.rules = RulesEngine(camera_name, camera, local_time)
        self.policy = AlertPolicy(alerts, camera.rules)

    @property
    def is_idle(self) -> bool:
        """No track is remembered and no alert is open: a frame in which nothing is decides nothing."""
        return not self.policy.is_open and not self.rules.tracks

    def feed(self, message: StreamHeader | FrameBoxes, *, off: Set[str] = frozenset()) -> PipelineStep:
        """Everything this message decides: its events, and for each the change or suppression it caused, in order.

        off: names of rules that report nothing now.
        """
        if message.camera != self._camera:
            raise ValueError(f"a message of camera {message.camera} was fed to the pipeline of {self._camera}")
        events = self.rules.feed(message, off=off)
        if isinstance(message, StreamHeader):
            return self.policy.begin(message)
        decided = self.policy.feed(message, events)
        return PipelineStep(events, decided.changes, decided.suppressed)

    def tick(self, t: float) -> PipelineStep:
        """Time has come to `t` (the camera's time) without boxes; call it while the camera is not delivering."""
        return self.policy.tick(t)

    def close(self, t: float, reason: str) -> PipelineStep:
        """End the stream at `t`; an open alert ends with it."""
        return self.policy.close(t, reason)
