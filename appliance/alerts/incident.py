"""One incident while it lasts: the open alert of a camera."""

from __future__ import annotations

import hashlib

from appliance.alerts.view import quality, view_of
from appliance.types import SEVERITIES, Alert, BestView, Event, FrameBoxes, Severity

TRACKS_MAX = 256
# A better still is worth a write when a person would notice: a fifth larger or surer. Also the bound on the number of
# such writes, since quality lies in 0..1.
MARKED = 1.2


def rank(severity: Severity) -> int:
    return SEVERITIES.index(severity)


class Incident:
    """The open alert. Owner: the AlertPolicy, which holds at most one per camera.

    `active`: the last time at which one of its tracks was seen or an event came. Lists keep the order in which things
    came and hold nothing twice; beyond TRACKS_MAX tracks are still followed by their events but not listed.
    """

    def __init__(self, first: Event, run: str, view: BestView | None, not_before: float) -> None:
        """view: how the first event's track was last seen. not_before: when the camera's previous alert ended."""
        self.id = hashlib.sha256(f"alert|{first.id}|{first.camera}|{first.t!r}".encode()).hexdigest()[:16]
        self.active = self._t_start = max(first.t, not_before)
        self._camera = first.camera
        self._run = run
        self._severity: Severity = first.severity
        self._score = first.score
        self._rules: dict[str, None] = {}
        self._labels: dict[str, None] = {}
        self._tracks: dict[int, None] = {}
        self._best = view or BestView(track=first.track, label=first.label, t=first.t, score=first.score, box=first.box)
        self._best_quality = quality(self._best.score, self._best.box)
        self._told_quality = 0.0
        self.absorb(first, view)

    @property
    def t_start(self) -> float:
        return self._t_start

    def absorb(self, event: Event, view: BestView | None) -> None:
        """The event belongs to this incident. view: how its track was last seen."""
        self._rules[event.rule] = None
        self._labels[event.label] = None
        if len(self._tracks) < TRACKS_MAX:
            self._tracks[event.track] = None
        if rank(event.severity) > rank(self._severity):
            self._severity = event.severity
        self._score = max(self._score, event.score)
        self.active = max(self.active, event.t)
        if view is not None and quality(view.score, view.box) > self._best_quality:
            self._best, self._best_quality = view, quality(view.score, view.box)

    def look(self, frame: FrameBoxes) -> None:
        """Follow its tracks in a frame that was looked at."""
        for found in frame.objects:
            if found.track in self._tracks:
                self.active = max(self.active, frame.t)
                seen_so_well = quality(found.score, found.box)
                if seen_so_well > self._best_quality:
                    self._best, self._best_quality = view_of(found, frame.t), seen_so_well

    @property
    def markedly_better(self) -> bool:
        """Whether the best view is one that a person would rather see than the one told last."""
        return self._best_quality > self._told_quality and self._best_quality >= MARKED * self._told_quality

    def told(self, t_end: float | None = None, end_reason: str = "") -> Alert:
        """The alert as it stands now; what it shows counts as told."""
        self._told_quality = self._best_quality
        return Alert(
            camera=self._camera,
            id=self.id,
            rules=tuple(self._rules),
            severity=self._severity,
            t_start=self._t_start,
            t_end=t_end,
            tracks=tuple(self._tracks),
            labels=tuple(self._labels),
            score=self._score,
            run=self._run,
            best=self._best,
            end_reason=end_reason,
        )
