"""Turns what went wrong in a scenario into faults that a person can act on, and explains missed events.

The explanations reach as far as the detections tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.base.box_arrays import iou_matrix
from appliance.config import CameraConfig, DwellRule, LineRule
from appliance.replay.replay_report import format_time, missing_verdicts_text
from appliance.replay.replay_result import ReplayResult
from appliance.rules.conditions import Calibration
from appliance.rules.engine import can_report, unknown_labels
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.scenario.expectations import FalseAlarm, Miss
from appliance.scenario.loss_attribution import FRAMES_MAX, LEAD_S, Culprit, MissRecord, find_culprit
from appliance.scenario.metrics import Estimate, EventFigures, TrackFigures, format_estimate
from appliance.scenario.scenario_result import Fault, FaultMoment, WatchedCamera
from appliance.scenario.scenario_schema import AtMost, RequiredFigures
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, FrameBoxes, TrackedObject, iou

DIAGNOSED_TRACKS_MAX = 200  # a report of more is read by nobody; the log has all
ON_TRUTH_IOU_MIN = 0.3  # a box of half of the object lies on it
# Without a detection the stills show the beginning, the middle and the end of the expected time (shares of it).
_STILLS_AT = (0.2, 0.5, 0.8)


@dataclass(slots=True)
class _TimeInZone:
    """When a track was first and last inside the zone, seconds."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class NetworkTraits:
    """The traits of the network in a diagnosis: its classes, and the scale of its scores (see `StreamHeader`)."""

    labels: tuple[str, ...]
    calibration: Calibration


class MissDiagnosis:
    """Collects what was detected around one missed event.

    State: the best detection so far and the tracks inside the zone. Fed every examined frame of the camera in order.
    zone and line: those of the rules that could have reported the event, "" if none.
    """

    def __init__(
        self,
        miss: Miss,
        camera: CameraConfig,
        footage_s: float,
        network: NetworkTraits,
        *,
        known_before: bool = False,
        counted: frozenset[str] | None = None,
    ) -> None:
        """known_before: what stood there when the footage began is known. counted: see `MissRecord`."""
        self._counted = counted
        self._pattern = miss.wanted.pattern
        self._at, self._box = miss.wanted.at, miss.wanted.box
        self._frame_at_truth: FrameBoxes | None = None
        self._start = min(self._pattern.start, footage_s)
        self._end = min(self._pattern.end, footage_s)
        self._footage_s = footage_s
        wanted = self._pattern
        self._rules = tuple(
            rule for rule in camera.rules if can_report(rule, wanted.rule, wanted.zone, wanted.line, wanted.label)
        )
        labels = {label for rule in self._rules for label in rule.labels}
        self._labels = {self._pattern.label} if self._pattern.label else labels
        zones = {rule.zone for rule in self._rules if not isinstance(rule, LineRule)}
        self.zone = next(iter(sorted(zones)), "")
        self.line = next((rule.line for rule in self._rules if isinstance(rule, LineRule)), "")
        self._network = network
        self._known_before = known_before
        self._rule_texts = [each.text for each in unknown_labels(self._rules, network.labels) if each.never]
        self._zones = [Polygon(points) for name, points in camera.zones.items() if name in zones]
        self._frames = self._unanswered = 0
        self._best: tuple[FrameBoxes, TrackedObject] | None = None
        self._best_inside: tuple[FrameBoxes, TrackedObject] | None = None
        self._inside: dict[int, _TimeInZone] = {}
        self._still_times = [self._start + share * (self._end - self._start) for share in _STILLS_AT]
        self._still_frames: list[FrameBoxes | None] = [None] * len(_STILLS_AT)
        self._camera = camera
        self._record: deque[FrameBoxes] = deque(maxlen=FRAMES_MAX)

    def add(self, frame: FrameBoxes) -> None:
        """One examined frame of the camera."""
        if self._start - LEAD_S <= frame.t <= self._end:
            self._record.append(frame)
        if not self._start <= frame.t <= self._end:
            return
        self._frames += 1
        self._unanswered += not frame.looked
        if self._at is not None and (
            self._frame_at_truth is None or abs(frame.t - self._at) < abs(self._frame_at_truth.t - self._at)
        ):
            self._frame_at_truth = frame
        for index, target in enumerate(self._still_times):
            before = self._still_frames[index]
            if before is None or abs(frame.t - target) < abs(before.t - target):
                self._still_frames[index] = frame
        for found in frame.objects:
            if found.label in self._labels:
                self._add_object(frame, found)

    def _add_object(self, frame: FrameBoxes, found: TrackedObject) -> None:
        self._best = _better(self._best, frame, found)
        if not any(zone.contains(foot(found.box)) for zone in self._zones):
            return
        self._best_inside = _better(self._best_inside, frame, found)
        interval = self._inside.get(found.track)
        if interval is not None:
            interval.last = frame.t
        elif len(self._inside) < DIAGNOSED_TRACKS_MAX:
            self._inside[found.track] = _TimeInZone(frame.t, frame.t)

    def moments(self) -> tuple[FaultMoment, ...]:
        """Return the frame at the true moment, if that is known.

        Else it is the best detection, inside the zone if there was one; else three frames spread over the time.
        """
        if self._frame_at_truth is not None:
            return (_moment(self._frame_at_truth, self._focus(self._frame_at_truth), self._box),)
        best = self._best_inside or self._best
        if best is not None:
            return (_moment(best[0], best[1].track),)
        frames = {boxes.frame: boxes for boxes in self._still_frames if boxes is not None}
        return tuple(_moment(boxes, None) for boxes in frames.values())

    def _focus(self, boxes: FrameBoxes) -> int | None:
        """Return the track that is meant: the one with most overlap with the true box, else the best of its label."""
        alike = [found for found in boxes.objects if found.label in self._labels]
        if self._box is not None and alike:
            shared = iou_matrix(np.array([self._box], float), np.array([found.box for found in alike], float))[0]
            return alike[int(shared.argmax())].track if shared.max() > 0 else None
        inside = [found for found in alike if any(zone.contains(foot(found.box)) for zone in self._zones)]
        return max(inside or alike, key=lambda found: found.score).track if alike else None

    def _tracks_at_truth(self) -> frozenset[int] | None:
        """Return the tracks whose boxes overlap the true box at its moment; None if that is not known."""
        if self._frame_at_truth is None or self._box is None:
            return None
        alike = [found for found in self._frame_at_truth.objects if found.label in self._labels]
        return frozenset(found.track for found in alike if iou(found.box, self._box) >= ON_TRUTH_IOU_MIN)

    def culprit(self, result: ReplayResult) -> Culprit:
        """Return the part that decided against the event. result: of the camera."""
        if self._pattern.start > self._footage_s:
            return Culprit("footage")
        if self._rule_texts and not self._labels & set(self._network.labels):
            return Culprit("network")
        if self._frames == self._unanswered:
            return Culprit("detector" if self._frames else "gate")
        record = MissRecord(
            self._pattern, self._camera, self._rules, result, tuple(self._record), self._network.calibration,
            self._known_before, self._counted, self._tracks_at_truth(),
        )  # fmt: skip
        found = find_culprit(record)
        if found.name != "unknown":
            return found
        if self._best is None:
            return Culprit("detector", "nothing of the label was followed")
        return Culprit("place") if self._zones and self._best_inside is None else found

    def sentence(self) -> str:
        """Return the likely reason, in one sentence."""
        label = _alternatives(sorted(self._labels))
        if self._pattern.start > self._footage_s:
            return f"the clip ends before that, at {format_time(self._footage_s)}"
        if self._rule_texts and not self._labels & set(self._network.labels):
            return self._rule_texts[0]
        if self._frames == self._unanswered:
            return (
                "nobody looked in this time: the detector did not answer" if self._frames else "no frame fell due then"
            )
        if self._best is None:
            return (
                f"no {label} was followed in any of the {self._frames} looks of this time "
                f"(a track begins from a score of {TUNING.scores.spawn_score_min:.2f} on, "
                f"of who walks from {TUNING.scores.tentative_score_min:.2f} on)"
            )
        if self._zones and self._best_inside is None:
            return f"a {label} was found ({_score_text(self._best)}), but never stood in the zone"
        seen = self._best_inside or self._best
        floor = min((rule.score_min for rule in self._rules), default=0.0)
        if seen[1].score < floor:
            return f"the best {label} scored {_score_text(seen)}; the rule wants {floor:.2f}"
        if self._zones:
            return self._inside_text(label)
        return f"a {label} was found ({_score_text(seen)}), but none was followed across the line"

    def _inside_text(self, label: str) -> str:
        longest = max(self._inside.values(), key=lambda interval: interval.last - interval.first)
        inside_s, tracks = longest.last - longest.first, len(self._inside)
        text = f"a {label} was in the zone from {format_time(longest.first)} for {inside_s:.1f} s"
        wanted = [rule.seconds for rule in self._rules if isinstance(rule, DwellRule)]
        if wanted and inside_s < min(wanted):
            text += f" of the {min(wanted):g} s that the rule wants"
        if tracks > 1:
            return f"{text}, as {tracks} different tracks: does the tracker lose them?"
        return f"{text} (track {next(iter(self._inside))}), but the rule did not fire then"


def _better(
    best: tuple[FrameBoxes, TrackedObject] | None, frame: FrameBoxes, found: TrackedObject
) -> tuple[FrameBoxes, TrackedObject]:
    return (frame, found) if best is None or found.score > best[1].score else best


def _score_text(seen: tuple[FrameBoxes, TrackedObject]) -> str:
    return f"{seen[1].score:.2f} at {format_time(seen[0].t)}, track {seen[1].track}"


def _moment(boxes: FrameBoxes, focus: int | None, truth: Box | None = None) -> FaultMoment:
    return FaultMoment(
        camera=boxes.camera, t=boxes.t, frame=boxes.frame, objects=boxes.objects, focus=focus, truth=truth
    )


def _alternatives(labels: list[str]) -> str:
    """`bus, car or truck`."""
    return " or ".join([*([", ".join(labels[:-1])] if labels[1:] else []), *labels[-1:]]) or "object"


def nearest_event_text(miss: Miss) -> str:
    """When an event of the same kind came instead, if one did."""
    event, pattern = miss.nearest, miss.wanted.pattern
    if event is None:
        return ""
    early, late = pattern.start - event.t, event.t - pattern.end
    apart = f"{early:.1f} s too early" if early > 0 else f"{late:.1f} s too late"
    return f"one came at {format_time(event.t)}, {apart}"


def miss_fault(miss: Miss, diagnosis: MissDiagnosis | None, result: ReplayResult, *, fails: bool) -> Fault:
    """Return the fault of a missed event.

    diagnosis: of the detections at that time; None where too many events were missed to diagnose each. result: of the
    camera that should have reported it.
    """
    wanted = miss.wanted
    culprit = diagnosis.culprit(result) if diagnosis else None
    reported = f" ({wanted.min - miss.missing} of {wanted.min} came)" if wanted.min > 1 else ""
    moments = diagnosis.moments() if diagnosis else ()
    begin = wanted.pattern.start if not moments else moments[len(moments) // 2].t
    t = wanted.at if wanted.at is not None else begin
    parts = [diagnosis.sentence() if diagnosis else "", nearest_event_text(miss)]
    parts += [culprit.sentence] if culprit else []
    return Fault(
        kind="miss",
        title=f"missed at {format_time(t)}: {wanted.pattern.text()}{reported}",
        detail="; ".join(part for part in parts if part),
        source=wanted.source,
        note=wanted.note,
        culprit=culprit.name if culprit else "",
        camera=wanted.pattern.camera or result.end.camera,
        t=t,
        zone=wanted.pattern.zone or (diagnosis.zone if diagnosis else ""),
        line=wanted.pattern.line or (diagnosis.line if diagnosis else ""),
        fails=fails,
        moments=moments,
    )


def alarm_fault(alarm: FalseAlarm, moment: FaultMoment | None, *, fails: bool) -> Fault:
    event = alarm.event
    place = f"zone {event.zone}" if event.zone else f"line {event.line}"
    return Fault(
        kind="false alarm",
        title=f"false alarm at {format_time(event.t)}: rule {event.rule}, {event.label}, {place}",
        detail=f"{alarm.reason}; track {event.track}, score {event.score:.2f}",
        note=alarm.note,
        camera=event.camera,
        t=event.t,
        zone=event.zone,
        line=event.line,
        fails=fails,
        moments=(moment,) if moment else (),
    )


def footage_faults(result: ReplayResult) -> list[Fault]:
    """Return the faults of the footage: a clip that broke off, or frames that the detector did not answer.

    Nobody knows what happened in that part of the scene.
    """
    found, end = [], result.end
    if end.error:
        found.append(Fault(kind="footage", title=end.error, camera=end.camera, t=end.t))
    if end.unlooked:
        title = f"the detector did not answer for {end.unlooked} of {end.examined} looks at {result.clip}"
        found.append(Fault(kind="footage", title=title, camera=end.camera))
    return found


def answer_faults(results: Sequence[ReplayResult], *, fails: bool) -> list[Fault]:
    """Escalations without a verdict: a missing verdict is not a confirmation."""
    return [
        Fault(kind="footage", title=missing_verdicts_text(each), camera=each.end.camera, source="verdicts", fails=fails)
        for each in results
        if each.unanswered
    ]


def limit_faults(at_most: AtMost, watched: Sequence[WatchedCamera], bytes_: int) -> list[Fault]:
    found = []
    alerts = [alert for part in watched for alert in part.alerts]
    if at_most.alerts is not None and len(alerts) > at_most.alerts:
        times = ", ".join(format_time(alert.t_start) for alert in alerts[:12])
        found.append(
            Fault(
                kind="limit",
                title=f"{len(alerts)} alerts; at most {at_most.alerts} are allowed",
                detail=f"they begin at {times}{' …' if len(alerts) > 12 else ''}",
                source="at_most.alerts",
            )
        )
    if at_most.bytes is not None and bytes_ > at_most.bytes:
        title = f"{bytes_:,} bytes would go to the cloud; at most {at_most.bytes:,} are allowed"
        found.append(Fault(kind="limit", title=title, source="at_most.bytes"))
    return found


def figure_faults(require: RequiredFigures, events: EventFigures, tracks: TrackFigures | None) -> list[Fault]:
    """Return a fault for each required figure that was not reached, or that could not be measured at all."""
    figures = (
        ("recall", require.recall, events.recall),
        ("precision", require.precision, events.precision),
        *(
            (name, getattr(require, name), Estimate(getattr(tracks, name, None), None, None, 1))
            for name in ("hota", "idf1", "mota", "ap50")
        ),
    )
    found = [
        _short(name, figure, f"at least {least:g}")
        for name, least, figure in figures
        if least is not None and (figure.value is None or figure.value < least)
    ]
    latest, delay = require.delay_s, events.delay_s
    if latest is not None and (delay.value is None or delay.value > latest):
        found.append(_short("delay_s", delay, f"at most {latest:g}"))
    return found


def _short(name: str, figure: Estimate, wanted: str) -> Fault:
    got = "could not be measured" if figure.value is None else f"is {format_estimate(figure)}"
    return Fault(kind="figure", title=f"{name} {got}; {wanted} is required", source=f"require.{name}")
