"""Replays one camera: frames in; log lines, events, alerts and counts out, by the parts of the live appliance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.errors import DetectorError
from appliance.health.tamper_detector import TamperDetector
from appliance.lab.cassette.verdict_source import FootageRef, PendingVerdicts, VerdictSource
from appliance.lab.conditions.condition_spec import NO_CONDITIONS, ConditionSet
from appliance.lab.conditions.frame_transform import frame_transform_of
from appliance.lab.footage import FrameSource, NewSession, SourceItem
from appliance.lab.replay.ordered_executor import OrderedExecutor
from appliance.lab.replay.replay_log_writer import ReplayLog
from appliance.lab.replay.replay_result import ReplayResult, ReplayStats, sent_bytes, unanswered
from appliance.lab.replay.replay_resume import DetectionJournal
from appliance.lab.replay.replay_routing import ReplayRouting
from appliance.media.decoder import DecodedFrame
from appliance.pipeline import Pipeline
from appliance.router.escalation_planner import RouterContext
from appliance.rules.schedule import LocalTime
from appliance.track.parked_vehicles import StationaryObjects
from appliance.track.tracker import Tracker
from appliance.types import (
    Detections,
    FrameBoxes,
    Gap,
    HealthEvent,
    LogEnd,
    LogVerdict,
    PipelineStep,
    StreamHeader,
)

InferenceObserver = Callable[[FrameBoxes, InferenceRequest], None]
"""Shown every look and what was found in it, before anything is decided about it; changes nothing of the replay."""


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """What all lanes of a replay have in common. outlook: what the routers know of the whole site. looks None: no
    answer of the detector is kept. watch: see `Watch`. answers: who answers the questions to the cloud; None: nobody.
    weather: what is made of the pictures."""

    config: SiteConfig
    detector: ObjectDetector
    log: ReplayLog
    executor: OrderedExecutor[Detections | None]
    router_context: RouterContext
    detections: DetectionJournal | None = None
    local_time: LocalTime | None = None
    observer: InferenceObserver | None = None
    verdict_source: VerdictSource | None = None
    conditions: ConditionSet = NO_CONDITIONS


class CameraReplay:
    """One camera's way through gate, detector, tracker, rules, policy and router.

    State: those parts, the counts, whether the next frame begins a run. The header of a run is written with its first
    frame, which tells the size; a gap before it waits for that. Which frames are due is found out ahead of the
    detector's answers; tracker, rules, router, log and counts follow them, all through `Shared.order`, so that
    nothing depends on how long an answer took.
    """

    def __init__(
        self, camera: str, film: FrameSource, run: str, shared: ReplayContext, t_from: float | None = None
    ) -> None:
        """t_from: UTC seconds of the footage's t = 0, where they are known."""
        self.camera = camera
        self.source = film
        self.run = run
        self._shared = shared
        plan = shared.config.cameras[camera]
        self._pipeline = Pipeline(camera, plan, shared.config.alerts, shared.local_time)
        self._routing = ReplayRouting(shared.config, camera, shared.detector.name, shared.router_context)
        self._docket = PendingVerdicts(shared.verdict_source, FootageRef(film.name, t_from))
        parked = StationaryObjects()  # as live, they are known to the camera's next session; nothing is kept on disk
        self.analysis = CameraAnalysis(
            camera,
            shared.detector,
            lambda labels: Tracker(labels, parked),
            plan.detect,
            tamper=TamperDetector(camera, shared.config.health, plan.health_ignore, self._ill, mend=False),
            frame_filter=frame_transform_of(shared.conditions),
            drain=shared.executor.drain,
            # Conditions change frames; packet sizes know nothing of them.
            decode_everything=bool(shared.conditions.conditions),
        )
        self._runs = 0
        self._gaps: list[Gap] = []
        self._tally = ReplayStats()

    @property
    def t(self) -> float:
        """Seconds of the last frame."""
        return self._tally.t

    def take(self, scene: SourceItem) -> None:
        """What the film shows next."""
        if isinstance(scene, DecodedFrame):
            self._frame(scene)
        elif isinstance(scene, NewSession):
            self.analysis.end_session()
        else:
            self._gap(scene)

    def close(self) -> None:
        """The film is over: end what is open, and say so in the log."""
        self._tally.t = max(self._tally.t, round(self.source.counts.t, 3))
        self._shared.executor.call(self._close)

    def _close(self) -> None:
        reason = "end of clip" if self.source.error is None else "clip broke off"
        self._step(self._pipeline.close(self._tally.t, reason))
        self._told(self._docket.remaining())
        self._shared.log.end(self._end(reason))
        self._shared.log.flush()

    def result(self, *, wall_s: float, cpu_s: float, behind_s: float) -> ReplayResult:
        tally, source, counts = self._tally, self.source, self.source.counts
        return ReplayResult(
            clip=source.name,
            camera=self.camera,
            model=self._shared.detector.name,
            run=self.run,
            size=tally.size,
            frames=counts.frames,
            examined=tally.examined,
            unlooked=tally.unlooked,
            boxes=tally.boxes,
            tracks=len(tally.tracks),
            events=tuple(tally.events),
            suppressed=tuple(tally.suppressed),
            alerts=tuple(tally.alerts),
            footage_s=tally.t,
            wall_s=wall_s,
            cpu_s=cpu_s,
            skipped=counts.skipped,
            decode_errors=counts.damaged,
            time_jumps=counts.jumps,
            error=source.error,
            routes=tuple(tally.routes),
            gaps=tuple(tally.gaps),
            health=tuple(tally.health.values()),
            sent_bytes=sent_bytes(tally.routes, tally.verdicts),
            footage_bytes=source.bytes,
            behind_s=behind_s,
            remembered=self._shared.detections.remembered if self._shared.detections else 0,
            answered_by=str(self._shared.verdict_source.answered_by) if self._shared.verdict_source else "",
            verdicts=tuple(tally.verdicts),
            unanswered=unanswered(tally.routes, tally.verdicts) if self._shared.verdict_source else 0,
            weather=str(self._shared.conditions),
        )

    def _frame(self, frame: DecodedFrame) -> None:
        if not self.analysis.has_session:
            self._start_session(frame)
        t = round(frame.t, 3)
        self._tally.t = t
        look = self.analysis.select(replace(frame, t=t))
        if look is None:
            return
        looks, then = self._shared.detections, partial(self._looked, self._runs, look)
        if looks is not None and looks.has_next:
            self._shared.executor.call(partial(then, looks.read_next(self.camera, look.frame_index)))
            return
        question = partial(_answer, self._shared.detector, self.analysis.detector_input(look))
        self._shared.executor.submit(question, partial(self._keep, look, then))

    def _keep(
        self, look: InferenceRequest, then: Callable[[Detections | None], None], found: Detections | None
    ) -> None:
        """An answer that is new: remembered before anything of it stands in the log."""
        if self._shared.detections is not None:
            self._shared.detections.append(self.camera, look.frame_index, found)
        then(found)

    def _looked(self, run: int, look: InferenceRequest, found: Detections | None) -> None:
        """What follows from an answer; None: the detector did not answer."""
        boxes = self.analysis.result(look, found)
        self._told(self._docket.due(boxes.t))
        self._tally.add_boxes(run, boxes)
        self._shared.log.boxes(boxes)
        self._routing.add(boxes, look.av_frame)
        if self._shared.observer is not None:
            self._shared.observer(boxes, look)
        self._step(self._pipeline.feed(boxes))

    def _start_session(self, frame: DecodedFrame) -> None:
        """As live, what was tracked before is no longer known."""
        run = self.run if self._runs == 0 else hashlib.sha256(f"{self.run}|{self._runs}".encode()).hexdigest()[:16]
        self._runs += 1
        self._tally.size = self.analysis.start_session(frame)
        header = StreamHeader(
            camera=self.camera,
            clip=self.source.name,
            model=self._shared.detector.name,
            size=self._tally.size,
            run=run,
        )
        gaps, self._gaps = self._gaps, []
        self._shared.executor.call(partial(self._begun, header, gaps))

    def _ill(self, event: HealthEvent) -> None:
        """What the sentry says of the picture, in its place among the looks."""
        self._tally.health[event.id] = event
        self._shared.executor.call(partial(self._shared.log.health, event))

    def _begun(self, header: StreamHeader, gaps: Sequence[Gap]) -> None:
        self._shared.log.header(header)
        self._routing.begin(header)
        for gap in gaps:
            self._shared.log.gap(gap)
        self._step(self._pipeline.feed(header))

    def _gap(self, gap: Gap) -> None:
        self._tally.gaps.append(gap)
        if self._runs == 0:
            self._gaps.append(gap)
        else:
            self._shared.executor.call(partial(self._away, gap))

    def _away(self, gap: Gap) -> None:
        self._shared.log.gap(gap)
        if gap.t_end is not None:  # time passed without boxes, as when a live camera is away
            self._step(self._pipeline.tick(gap.t_end))

    def _step(self, step: PipelineStep) -> None:
        routes = self._routing.decide(step)
        if self._docket.enabled:
            self._docket.submit(self._routing.escalations())
        step = self._docket.with_verdicts(step)
        self._shared.log.step(step, routes)
        self._tally.add_step(step, routes)

    def _told(self, verdicts: Sequence[LogVerdict]) -> None:
        for verdict in verdicts:
            self._shared.log.verdict(verdict)
        self._tally.verdicts += verdicts

    def _end(self, reason: str) -> LogEnd:
        counts = self.source.counts
        return LogEnd(
            camera=self.camera,
            run=self.run,
            t=self._tally.t,
            reason=reason,
            frames=counts.frames,
            examined=self._tally.examined,
            unlooked=self._tally.unlooked,
            decode_errors=counts.damaged,
            time_jumps=counts.jumps,
            footage_bytes=self.source.bytes,
            suppressed=tuple(event.id for event in self._tally.suppressed),
            error=self.source.error,
            skipped=counts.skipped,
        )


def _answer(detector: ObjectDetector, picture: NDArray[np.uint8]) -> Detections | None:
    """None: the detector did not answer."""
    try:
        return detector.detect([picture])[0]
    except DetectorError:
        return None
