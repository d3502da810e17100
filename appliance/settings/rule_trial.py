"""Tries a camera's rules on the boxes that are stored: what they would have reported, beside the rules in force."""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import local_weekday_minute
from appliance.config import AlertsConfig, CameraConfig
from appliance.store.boxes import BoxRow, BoxStore
from appliance.types import Alert, PipelineStep

ALERTS_MAX = 500  # listed of each side; all are counted


@dataclass(frozen=True, slots=True)
class TrialAlert:
    """An alert that rules would have raised. new: those in force raise none at that time. best_t: its best view."""

    t_start: float
    t_end: float
    rules: tuple[str, ...]
    labels: tuple[str, ...]
    severity: str
    box: tuple[float, float, float, float] | None
    best_t: float
    new: bool


@dataclass(slots=True)
class TrialSide:
    """The reports that one set of rules would have made.

    alerts: the first 500 of `count`. events: by rule. suppressed: what a cooldown held back.
    """

    count: int
    alerts: list[TrialAlert]
    events: dict[str, int]
    suppressed: int


@dataclass(frozen=True, slots=True)
class RuleTrial:
    """The rules in force and others on the same boxes. frames: examined between t0 and t1 (UTC seconds)."""

    t0: float
    t1: float
    frames: int
    now: TrialSide
    then: TrialSide


def try_rules(
    boxes: BoxStore,
    name: str,
    size: tuple[int, int],
    now: tuple[CameraConfig, AlertsConfig],
    then: tuple[CameraConfig, AlertsConfig],
    span: tuple[float, float],
) -> RuleTrial:
    """Judge the stored boxes of a camera by the settings in force and by others.

    It judges tracked boxes as they were recorded. It does not try another threshold of the detector, another network or
    another rate: a replay of the recording does. size: of a frame in pixels.
    """
    sides = [_Side(boxes, name, size, *now), _Side(boxes, name, size, *then)]
    frames, last = 0, span[0]
    for row in boxes.scan(name, *span):
        frames, last = frames + 1, row.t
        for side in sides:
            side.feed(row)
    for side in sides:
        side.close(last)
    before, after = sides[0].result, sides[1].result
    after.alerts = [_marked(alert, before.alerts) for alert in after.alerts]
    return RuleTrial(span[0], span[1], frames, before, after)


class _Side:
    """The pipeline of one set of rules, and what it reported."""

    def __init__(
        self, boxes: BoxStore, name: str, size: tuple[int, int], camera: CameraConfig, alerts: AlertsConfig
    ) -> None:
        self.result = TrialSide(count=0, alerts=[], events={}, suppressed=0)
        self._boxes = boxes
        self._size = size
        self._pipeline = Pipeline(name, camera, alerts, local_time=local_weekday_minute)
        self._run = ""

    def feed(self, row: BoxRow) -> None:
        if row.run != self._run:
            follows, self._run = bool(self._run), row.run
            self._take(self._pipeline.feed(self._boxes.header(row, self._size, follows=follows)))
        if not (row.is_empty and self._pipeline.is_idle):  # most of a day: nothing is there, and nothing was
            self._take(self._pipeline.feed(row.read()))

    def close(self, t: float) -> None:
        self._take(self._pipeline.close(t, "the end of the trial"))
        self.result.suppressed = self._pipeline.policy.suppressed

    def _take(self, step: PipelineStep) -> None:
        for event in step.events:
            self.result.events[event.rule] = self.result.events.get(event.rule, 0) + 1
        for change in step.changes:
            if change.kind == "ended":
                self.result.count += 1
                if len(self.result.alerts) < ALERTS_MAX:
                    self.result.alerts.append(_trial_alert(change.alert))


def _trial_alert(alert: Alert) -> TrialAlert:
    t_end = alert.t_start if alert.t_end is None else alert.t_end
    best = alert.best
    return TrialAlert(
        alert.t_start, t_end, alert.rules, alert.labels, alert.severity,
        best.box if best else None, best.t if best else alert.t_start, False,
    )  # fmt: skip


def _marked(alert: TrialAlert, others: list[TrialAlert]) -> TrialAlert:
    overlaps = any(other.t_start <= alert.t_end and alert.t_start <= other.t_end for other in others)
    return alert if overlaps else replace(alert, new=True)
