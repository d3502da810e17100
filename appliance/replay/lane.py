"""One camera of a replay: frames in, log lines and counts out, by the very parts of the live box."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import av
import numpy as np
from numpy.typing import NDArray

from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.errors import DetectorError
from appliance.escalate.router.outlook import Outlook
from appliance.ingest.clip import picture_size
from appliance.ingest.decode import Frame
from appliance.ingest.examine import Examiner, Look
from appliance.ingest.health.sentry import Sentry
from appliance.ingest.thrift.thrift import Thrift
from appliance.pipeline import Pipeline
from appliance.replay.answers import Answers, Place
from appliance.replay.cassette_docket import Docket
from appliance.replay.film import Film, NewRun, Scene
from appliance.replay.inorder import InOrder
from appliance.replay.log import ReplayLog
from appliance.replay.looks import Looks
from appliance.replay.result import ReplayResult, sent_bytes, unanswered
from appliance.replay.routing import Routing
from appliance.replay.tally import Tally
from appliance.rules.schedule import Wall
from appliance.track.places import Places
from appliance.track.tracker import Tracker
from appliance.types import (
    Detections,
    FrameBoxes,
    Gap,
    HealthEvent,
    LogEnd,
    LogVerdict,
    Step,
    StreamHeader,
)
from appliance.weather.lens import lens_of
from appliance.weather.weather import CLEAR, Weather

Watch = Callable[[FrameBoxes, Look], None]
"""Shown every look and what was found in it, before anything is decided about it; changes nothing of the replay."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all lanes of a replay have in common. outlook: what the routers know of the whole site. looks None: no
    answer of the detector is kept. watch: see `Watch`. answers: who answers the questions to the cloud; None: nobody.
    weather: what is made of the pictures."""

    config: SiteConfig
    detector: ObjectDetector
    log: ReplayLog
    order: InOrder[Detections | None]
    outlook: Outlook
    looks: Looks | None = None
    wall: Wall | None = None
    watch: Watch | None = None
    answers: Answers | None = None
    weather: Weather = CLEAR


class Lane:
    """One camera's way through gate, detector, tracker, rules, policy and router.

    State: those parts, the counts, whether the next frame begins a run. The header of a run is written with its first
    frame, which tells the size; a gap before it waits for that. Which frames are due is found out ahead of the
    detector's answers; tracker, rules, router, log and counts follow them, all through `Shared.order`, so that
    nothing depends on how long an answer took.
    """

    def __init__(self, camera: str, film: Film, run: str, shared: Shared, t_from: float | None = None) -> None:
        """t_from: UTC seconds of the footage's t = 0, where they are known."""
        self.camera = camera
        self.film = film
        self.run = run
        self._shared = shared
        plan = shared.config.cameras[camera]
        self._plan = plan.detect
        self._pipeline = Pipeline(camera, plan, shared.config.alerts, shared.wall)
        self._routing = Routing(shared.config, camera, shared.detector.name, shared.outlook)
        self._docket = Docket(shared.answers, Place(film.name, t_from))
        self._lens = lens_of(shared.weather)
        # Weather is made of pictures; the sizes of the packets know nothing of it.
        latency = "lowest" if shared.weather.conditions else plan.detect.latency
        self.thrift = Thrift(latency, plan.detect.fps, plan.detect.heartbeat_s, self)
        self._sentry = Sentry(camera, shared.config.health, plan.health_ignore, self._ill, mend=False)
        self._examiner: Examiner | None = None
        self._places = Places()  # as live, what is parked there is known to the camera's next run; nothing is kept
        self._runs = 0
        self._gaps: list[Gap] = []
        self._tally = Tally()

    @property
    def t(self) -> float:
        """Seconds of the last frame."""
        return self._tally.t

    def take(self, scene: Scene) -> None:
        """What the film shows next."""
        if isinstance(scene, Frame):
            self._frame(scene)
        elif isinstance(scene, NewRun):
            self._examiner = None
        else:
            self._gap(scene)

    def close(self) -> None:
        """The film is over: end what is open, and say so in the log."""
        self._tally.t = max(self._tally.t, round(self.film.t, 3))
        self._shared.order.do(self._close)

    def _close(self) -> None:
        reason = "end of clip" if self.film.error is None else "clip broke off"
        self._step(self._pipeline.close(self._tally.t, reason))
        self._told(self._docket.rest())
        self._shared.log.end(self._end(reason))
        self._shared.log.flush()

    def result(self, *, wall_s: float, cpu_s: float, behind_s: float) -> ReplayResult:
        tally, film = self._tally, self.film
        return ReplayResult(
            clip=film.name,
            camera=self.camera,
            model=self._shared.detector.name,
            run=self.run,
            size=tally.size,
            frames=film.decoded + film.skipped,
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
            skipped=film.skipped,
            decode_errors=film.damaged,
            time_jumps=film.jumps,
            error=film.error,
            routes=tuple(tally.routes),
            gaps=tuple(tally.gaps),
            health=tuple(tally.health.values()),
            sent_bytes=sent_bytes(tally.routes, tally.verdicts),
            footage_bytes=film.bytes,
            behind_s=behind_s,
            remembered=self._shared.looks.remembered if self._shared.looks else 0,
            answered_by=str(self._shared.answers.answered_by) if self._shared.answers else "",
            verdicts=tuple(tally.verdicts),
            unanswered=unanswered(tally.routes, tally.verdicts) if self._shared.answers else 0,
            weather=str(self._shared.weather),
        )

    def busy(self, t: float) -> bool:
        """See `thrift.attention.Attention`, as are the next three."""
        return self._examiner is None or self._examiner.busy(t)

    def moved(self, t: float) -> bool:
        return self._examiner is None or self._examiner.moved(t)

    def overdue(self, t: float) -> bool:
        return self._examiner is None or self._examiner.overdue(t)

    def changed(self, picture: av.VideoFrame) -> bool:
        return self._examiner is not None and self._examiner.changed(picture)

    def _frame(self, frame: Frame) -> None:
        examiner = self._examiner or self._begin(frame)
        t = round(frame.t, 3)
        self._tally.t = t
        look = examiner.due(frame.index, t, frame.picture, next_s=frame.next_s)
        if look is None:
            return
        looks, then = self._shared.looks, partial(self._looked, examiner, self._runs, look)
        if looks is not None and looks.has_next:
            self._shared.order.do(partial(then, looks.recall(self.camera, look.frame)))
            return
        question = partial(_answer, self._shared.detector, examiner.picture(look))
        self._shared.order.ask(question, partial(self._keep, look, then))

    def _keep(self, look: Look, then: Callable[[Detections | None], None], found: Detections | None) -> None:
        """An answer that is new: remembered before anything of it stands in the log."""
        if self._shared.looks is not None:
            self._shared.looks.keep(self.camera, look.frame, found)
        then(found)

    def _looked(self, examiner: Examiner, run: int, look: Look, found: Detections | None) -> None:
        """What follows from an answer; None: the detector did not answer."""
        boxes = examiner.result(look, found)
        self._told(self._docket.due(boxes.t))
        self._tally.look(run, boxes)
        self._shared.log.boxes(boxes)
        self._routing.look(boxes, look.picture)
        if self._shared.watch is not None:
            self._shared.watch(boxes, look)
        self._step(self._pipeline.feed(boxes))

    def _begin(self, frame: Frame) -> Examiner:
        """A run begins: as live, what was tracked before is no longer known."""
        detector = self._shared.detector
        order = self._shared.order
        tracker = Tracker(detector.labels, self._places)
        self._examiner = Examiner(
            self.camera, detector, tracker, self._plan, lens=self._lens, settle=order.settle, seen=self._sentry.look
        )
        run = self.run if self._runs == 0 else hashlib.sha256(f"{self.run}|{self._runs}".encode()).hexdigest()[:16]
        self._runs += 1
        self._tally.size = picture_size(frame)
        header = StreamHeader(
            camera=self.camera, clip=self.film.name, model=detector.name, size=self._tally.size, run=run
        )
        gaps, self._gaps = self._gaps, []
        order.do(partial(self._begun, header, gaps))
        return self._examiner

    def _ill(self, event: HealthEvent) -> None:
        """What the sentry says of the picture, in its place among the looks."""
        self._tally.health[event.id] = event
        self._shared.order.do(partial(self._shared.log.health, event))

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
            self._shared.order.do(partial(self._away, gap))

    def _away(self, gap: Gap) -> None:
        self._shared.log.gap(gap)
        if gap.t_end is not None:  # time passed without boxes, as when a live camera is away
            self._step(self._pipeline.tick(gap.t_end))

    def _step(self, step: Step) -> None:
        routes = self._routing.decide(step)
        if self._docket.wanted:
            self._docket.ask(self._routing.questions())
        step = self._docket.settle(step)
        self._shared.log.step(step, routes)
        self._tally.step(step, routes)

    def _told(self, verdicts: Sequence[LogVerdict]) -> None:
        for verdict in verdicts:
            self._shared.log.verdict(verdict)
        self._tally.verdicts += verdicts

    def _end(self, reason: str) -> LogEnd:
        return LogEnd(
            camera=self.camera,
            run=self.run,
            t=self._tally.t,
            reason=reason,
            frames=self.film.decoded + self.film.skipped,
            examined=self._tally.examined,
            unlooked=self._tally.unlooked,
            decode_errors=self.film.damaged,
            time_jumps=self.film.jumps,
            footage_bytes=self.film.bytes,
            suppressed=tuple(event.id for event in self._tally.suppressed),
            error=self.film.error,
            skipped=self.film.skipped,
        )


def _answer(detector: ObjectDetector, picture: NDArray[np.uint8]) -> Detections | None:
    """None: the detector did not answer."""
    try:
        return detector.detect([picture])[0]
    except DetectorError:
        return None
