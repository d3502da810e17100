"""Replays of the recording for the dashboard: stretches with other settings compared, and one span decided again."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from appliance.alerts.pipeline import Pipeline
from appliance.alerts.span_explanation import SpanExplainer
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import SystemClock
from appliance.base.errors import DetectorError, SourceError
from appliance.config import rule_labels
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector, prefer_labels
from appliance.media.decoder import DecodedFrame
from appliance.replay.footage import NewSession, RecordingSource, TimeSpan
from appliance.replay.recording_tasks import SpanTask, TrialSetup, TrialSpan, TrialTask, local_time_from
from appliance.replay.replay_diff import compare_logs
from appliance.replay.replay_diff_match import alert_pairs
from appliance.replay.replay_log_writer import Replayed
from appliance.replay.replay_plan import ReplayInput, ReplayOptions, ReplayPlan
from appliance.replay.replay_result import RecordedLog, parse_log
from appliance.replay.replay_resume import MemoizedDetector
from appliance.replay.replay_routing import ReplayRouting, router_context_of
from appliance.replay.replay_runner import playing
from appliance.track.tracker import Tracker
from appliance.types import Alert, Box, Detections, FrameBoxes, Gap, Route, StreamHeader, iou

LISTED_MAX = 200  # of alerts, of events, of tracks; all are counted
PROGRESS_EVERY_S = 1.0  # of footage
TOTALS = ("looks", "tracks", "events", "alerts", "questions")


@dataclass(slots=True)
class _Found:
    """The differences, of all stretches together. alerts: all of them; events, tracks: those that are not alike."""

    alerts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    tracks: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    totals: tuple[dict[str, int], dict[str, int]] = field(
        default_factory=lambda: (dict.fromkeys(TOTALS, 0), dict.fromkeys(TOTALS, 0))
    )
    settings: tuple[str, ...] = ()
    same: bool = True

    def add(self, span: TrialSpan, before: RecordedLog, after: RecordedLog) -> None:
        difference = compare_logs(before, after)
        self.settings = difference.settings
        self.same &= difference.same
        for side, total in zip(self.totals, (difference.total_before, difference.total_after), strict=True):
            for name in TOTALS:
                side[name] += getattr(total, name)
        for pair in alert_pairs(*([line for line in log.lines if isinstance(line, Alert)] for log in (before, after))):
            change: Literal["same", "changed", "missing", "new"] = "changed" if pair.what else "same"
            if pair.before is None or pair.after is None:
                change = "new" if pair.before is None else "missing"
            sides = {"before": _alert(pair.before, span.t0), "after": _alert(pair.after, span.t0)}
            self.alerts.append({"change": change, **sides})
        for event in difference.events:
            self.events.append({**asdict(event), "t": round(event.t + span.t0, 3)})
        for track in difference.tracks:
            begin, end = round(track.t_start + span.t0, 3), round(track.t_end + span.t0, 3)
            self.tracks.append({**asdict(track), "t_start": begin, "t_end": end})
        for gap in (line for line in before.lines if isinstance(line, Gap) and line.t_end is not None):
            begin, end = round(gap.t_start + span.t0, 3), round((gap.t_end or 0.0) + span.t0, 3)
            self.missing.append({"t_start": begin, "t_end": end, "reason": gap.reason})

    def report(self, *, every_alert: bool) -> dict[str, Any]:
        most = {"alerts": None if every_alert else LISTED_MAX, "events": LISTED_MAX, "tracks": LISTED_MAX}
        listed = {name: getattr(self, name) for name in ("alerts", "events", "tracks")}
        self.alerts.sort(key=lambda each: (each["change"] == "same", (each["before"] or each["after"])["t_start"]))
        return {
            **{name: rows[: most[name]] for name, rows in listed.items()},
            "left_out": {name: len(rows) - len(rows[: most[name]]) for name, rows in listed.items()},
            "missing": self.missing[:LISTED_MAX], "totals": list(self.totals), "settings": list(self.settings),
            "same": self.same,
        }  # fmt: skip


def _alert(alert: Alert | None, t0: float) -> dict[str, Any] | None:
    if alert is None:
        return None
    end, best = alert.t_start if alert.t_end is None else alert.t_end, alert.best
    return {
        "t_start": round(alert.t_start + t0, 3), "t_end": round(end + t0, 3), "rules": alert.rules,
        "labels": alert.labels, "severity": alert.severity, "tracks": len(alert.tracks),
        "best_t": round((best.t if best else alert.t_start) + t0, 3),
    }  # fmt: skip


def settings_compared(task: TrialTask) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return all that differs, as plain values. Raises SourceError, ModelError.

    Each stretch begins as a replay does: what stood there before, and which rule had just reported, is not known.
    """
    length_s = sum(span.t1 - span.t0 for span in task.spans)
    logs: list[dict[int, RecordedLog]] = [{}, {}]
    unread: list[str] = []
    names: list[str] = []
    detector: ObjectDetector | None = None
    for side, setup in enumerate((task.now, task.then)):
        if detector is None or setup.site.detector != task.now.site.detector:
            detector = _loaded(setup)
        names.append(detector.name)
        done_s = 0.0
        for number, span in enumerate(task.spans):
            try:
                steps = _replayed(task, setup, span, detector)
                while True:
                    try:
                        t = next(steps)
                    except StopIteration as end:
                        logs[side][number], error = end.value
                        break
                    yield round((side + (done_s + min(t, span.t1 - span.t0)) / length_s) / 2, 4)
            except SourceError as failed:
                error = str(failed)
            unread += [error] if error and error not in unread else []
            done_s += span.t1 - span.t0
    found = _Found()
    both = sorted(logs[0].keys() & logs[1].keys())
    if not both:
        raise SourceError(unread[0])
    for number in both:
        found.add(task.spans[number], logs[0][number], logs[1][number])
    return {**found.report(every_alert=task.every_alert), "unread": unread[:20], "models": names, "replayed": len(both)}


def _loaded(setup: TrialSetup) -> ObjectDetector:
    if setup.model_folder:
        os.environ["VEDETTE_MODELS"] = setup.model_folder
    return MemoizedDetector(detector_loader.load(setup.site.detector))


def _replayed(
    task: TrialTask, setup: TrialSetup, span: TrialSpan, detector: ObjectDetector
) -> Generator[float, None, tuple[RecordedLog, str]]:
    """Yield the seconds that are done; return the log, and what could not be read. Raises SourceError."""
    camera, at = task.camera, local_time_from(span.t0, span.local_begin)
    source = RecordingSource(Path(task.root), camera, TimeSpan(span.t0, span.t1), span.rows, span.gaps)
    replayed = Replayed(
        camera=camera, kind="recording", clip=source.name, run=f"trial-{span.t0:.0f}", files=len(span.rows),
        t_from=span.t0, t_to=span.t1,
    )  # fmt: skip
    inputs = (ReplayInput(source, replayed),)
    plan = ReplayPlan(inputs, setup.site, detector, local_time=lambda t: at(span.t0 + t))
    log, progress_t = io.BytesIO(), 0.0
    for t, _ in playing(plan, log, ReplayOptions(SystemClock())):
        if t - progress_t >= PROGRESS_EVERY_S:
            progress_t = t
            yield t
    log.seek(0)
    return parse_log(Path(source.name), enumerate(log, 1)), source.error or ""


DETECTIONS_MAX = 4000  # points on the strip of a page 1000 px wide
FRAMES_MAX = 8000  # two minutes (dashboard.why_api.SPAN_S_MAX) at 60 frames a second

Use = Literal["confirmed", "unconfirmed", "tentative", "unused"]
"""How the tracker used a detection: a reported object; one seen too seldom, or too doubtful, to be; nothing."""


@dataclass(frozen=True, slots=True)
class DecodedMoment:
    """A decoded frame.

    what: examined because of motion, examined because it was due (heartbeat, something followed), or gated: nothing
    moved, or too soon after the last. keys_only: only key frames were being decoded. motion: the share of the frame
    that moved; parts: how many parts of it the detector was shown, 0: all of it.
    """

    t: float
    what: Literal["motion", "due", "gated"]
    keys_only: bool
    motion: float
    parts: int


@dataclass(frozen=True, slots=True)
class FoundDetection:
    """A detection of the network, however weak, and what the tracker made of it."""

    t: float
    label: str
    score: float
    box: Box
    use: Use


class SpanReplay:
    """One span decided again with the live appliance's parts.

    It keeps what is not stored live: the frames that were decoded and that the motion gate passed, every detection
    however weak, and tracks that the tracker rejected. State: the parts of the pipeline, and what they said. Owner: one
    thread, once.
    """

    def __init__(self, task: SpanTask, detector: ObjectDetector) -> None:
        plan = task.site.cameras[task.camera]
        local_time = task.local_time()
        pipeline = Pipeline(task.camera, plan, task.site.alerts, local_time)
        pipeline.policy.recall(task.reported)
        self._task = task
        self._detector = detector
        self._explainer = SpanExplainer(plan, pipeline, (task.t0, task.t1))
        self._routing = ReplayRouting(task.site, task.camera, detector.name, router_context_of(task.site, local_time))
        self._tracker: Tracker | None = None
        self._analysis = CameraAnalysis(task.camera, detector, self._new_tracker, plan.detect)
        self._analysis.watch_lines(plan.rule_lines)
        self._sessions = 0
        self._moments: list[DecodedMoment] = []
        self._detections: list[FoundDetection] = []
        self._left_out = 0
        self._routes: list[Route] = []

    def run(self) -> Generator[float, None, dict[str, Any]]:
        """Yield the share that is done. Raises SourceError."""
        task, analysis = self._task, self._analysis
        source = RecordingSource(Path(task.root), task.camera, TimeSpan(task.begin, task.t1), task.rows, task.gaps)
        length_s, reported_t = task.t1 - task.begin, 0.0
        for item in source.play(analysis.decode_policy):
            if isinstance(item, NewSession):
                analysis.end_session()
            elif isinstance(item, DecodedFrame):
                self._frame(replace(item, t=round(item.t + task.begin, 3)))
                if item.t - reported_t >= PROGRESS_EVERY_S:
                    reported_t = item.t
                    yield round(min(1.0, item.t / length_s), 3)
            elif isinstance(item, Gap):
                analysis.end_session()
        found = self._explainer.explanation
        return {
            "explanation": asdict(found),
            "moments": [asdict(each) for each in self._moments],
            "detections": [asdict(each) for each in self._detections],
            "detections_left_out": self._left_out,
            "routes": [
                {"t": each.t, "alert": each.alert, "when": each.when, "reason": each.reason} for each in self._routes
            ],
            "skipped": source.counts.skipped,
            "unread": source.error or "",
            "model": self._detector.name,
        }

    def _new_tracker(self, labels: tuple[str, ...]) -> Tracker:
        self._tracker = Tracker(labels)
        return self._tracker

    def _frame(self, frame: DecodedFrame) -> None:
        analysis = self._analysis
        if not analysis.has_session or analysis.begins_session(frame):
            self._begin(frame)
        keys_only = analysis.decode_policy.state == "idle"
        request = analysis.select(frame)
        if frame.t >= self._task.t0 and len(self._moments) < FRAMES_MAX:
            parts = len(request.mosaic.parts) if request is not None and request.mosaic is not None else 0
            what: Literal["motion", "due", "gated"] = (
                "gated" if request is None else "motion" if request.priority > 0 else "due"
            )
            motion = 0.0 if request is None else round(request.priority, 4)
            self._moments.append(DecodedMoment(frame.t, what, keys_only, motion, parts))
        if request is not None:
            self._examine(request)

    def _begin(self, frame: DecodedFrame) -> None:
        size = self._analysis.start_session(frame)
        self._sessions += 1
        header = StreamHeader(
            camera=self._task.camera, clip="", model=self._detector.name, size=size, run=f"again-{self._sessions}",
            known_before=self._sessions > 1, calibration=self._analysis.calibration,
        )  # fmt: skip
        self._routing.begin(header)
        self._explainer.begin(header)

    def _examine(self, request: InferenceRequest) -> None:
        try:
            found: Detections | None = self._detector.detect([self._analysis.detector_input(request)])[0]
        except DetectorError:
            found = None
        boxes = self._analysis.result(request, found)
        if found is not None and boxes.t >= self._task.t0:
            self._note(request, found, boxes)
        self._routing.add(boxes, request.av_frame)
        routes = self._routing.decide(self._explainer.feed(boxes))
        self._routes += [each for each in routes if each.t >= self._task.t0]

    def _note(self, request: InferenceRequest, found: Detections, boxes: FrameBoxes) -> None:
        shown = [found] if request.mosaic is None else list(request.mosaic.split(found))
        assert self._tracker is not None
        for index, part in enumerate(shown):
            rows = zip(part.boxes.tolist(), part.scores.tolist(), part.class_ids.tolist(), strict=True)
            for corners, score, kind in rows:
                x1, y1, x2, y2 = (round(side, 4) for side in corners)
                if len(self._detections) >= DETECTIONS_MAX:
                    self._left_out += 1
                    continue
                use = self._use((x1, y1, x2, y2), boxes) if index == 0 else "unused"  # what a cut went through
                self._detections.append(
                    FoundDetection(boxes.t, self._detector.labels[kind], round(score, 3), (x1, y1, x2, y2), use)
                )

    def _use(self, box: Box, boxes: FrameBoxes) -> Use:
        assert self._tracker is not None
        if any(iou(box, each.box) >= 0.5 for each in boxes.objects):
            return "confirmed"
        near = [each for each in self._tracker.unreported if iou(box, each.box) >= 0.8]
        if not near:
            return "unused"
        return "tentative" if all(each.tentative for each in near) else "unconfirmed"


def replayed_explanation(task: SpanTask) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return all that was found, as plain values. Raises SourceError, ModelError."""
    detector = detector_loader.load(task.site.detector)
    prefer_labels(detector, rule_labels(task.site.cameras.values()))
    return (yield from SpanReplay(task, detector).run())
