"""One camera of a replay: frames in, log lines and counts out, by the very parts of the live box."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.config import SiteConfig
from appliance.errors import DetectorError
from appliance.ingest.clip import picture_size
from appliance.ingest.decode import Frame
from appliance.ingest.examine import Detector, Examiner, Look
from appliance.pipeline import Pipeline
from appliance.replay.film import Film, NewRun, Scene
from appliance.replay.log import ReplayLog
from appliance.replay.looks import Looks
from appliance.replay.result import ReplayResult
from appliance.replay.routing import Routing
from appliance.rules.schedule import Wall
from appliance.track.tracker import Tracker
from appliance.types import Alert, Detections, Event, FrameBoxes, Gap, LogEnd, Route, Step, StreamHeader


@dataclass(slots=True)
class _Tally:
    """Counts of one lane as it goes."""

    size: tuple[int, int] = (0, 0)
    examined: int = 0
    unlooked: int = 0
    boxes: int = 0
    tracks: set[tuple[int, int]] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    suppressed: list[Event] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    t: float = 0.0

    def look(self, run: int, boxes: FrameBoxes) -> None:
        self.examined += 1
        self.unlooked += not boxes.looked
        self.boxes += len(boxes.objects)
        self.tracks.update((run, found.track) for found in boxes.objects)

    def step(self, step: Step, routes: Sequence[Route]) -> None:
        self.events += step.events
        self.suppressed += step.suppressed
        self.alerts += [change.alert for change in step.changes if change.kind == "ended"]
        self.routes += routes


@dataclass(frozen=True, slots=True)
class Shared:
    """What all lanes of a replay have in common. looks None: no answer of the detector is kept."""

    config: SiteConfig
    detector: Detector
    log: ReplayLog
    looks: Looks | None = None
    wall: Wall | None = None


class Lane:
    """One camera's way through gate, detector, tracker, rules, policy and router.

    State: those parts, the counts, whether the next frame begins a run. The header of a run is written with its first
    frame, which tells the size; a gap before it waits for that.
    """

    def __init__(self, camera: str, film: Film, run: str, shared: Shared) -> None:
        self.camera = camera
        self.film = film
        self.run = run
        self._shared = shared
        plan = shared.config.cameras[camera]
        self._plan = plan.detect
        self._pipeline = Pipeline(camera, plan, shared.config.alerts, shared.wall)
        self._routing = Routing(shared.config, camera, shared.detector.name)
        self._examiner: Examiner | None = None
        self._runs = 0
        self._gaps: list[Gap] = []
        self._tally = _Tally()

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
        reason = "end of clip" if self.film.error is None else "clip broke off"
        self._step(self._pipeline.close(self._tally.t, reason))
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
            frames=film.decoded,
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
            decode_errors=film.damaged,
            time_jumps=film.jumps,
            error=film.error,
            routes=tuple(tally.routes),
            gaps=tuple(tally.gaps),
            sent_bytes=sum(route.bytes for route in tally.routes),
            footage_bytes=film.bytes,
            behind_s=behind_s,
            remembered=self._shared.looks.remembered if self._shared.looks else 0,
        )

    def _frame(self, frame: Frame) -> None:
        examiner = self._examiner or self._begin(frame)
        t = round(frame.t, 3)
        self._tally.t = t
        look = examiner.due(frame.index, t, frame.picture)
        if look is None:
            return
        boxes = examiner.result(look, self._answer(examiner, look))
        self._tally.look(self._runs, boxes)
        self._shared.log.boxes(boxes)
        self._routing.look(boxes, frame.picture)
        self._step(self._pipeline.feed(boxes))

    def _answer(self, examiner: Examiner, look: Look) -> Detections | None:
        """What the detector says, or said before the replay was killed; None: it did not answer."""
        looks = self._shared.looks
        if looks is not None and looks.has_next:
            return looks.recall(self.camera, look.frame)
        try:
            found: Detections | None = self._shared.detector.detect([examiner.picture(look)])[0]
        except DetectorError:
            found = None
        if looks is not None:
            looks.keep(self.camera, look.frame, found)
        return found

    def _begin(self, frame: Frame) -> Examiner:
        """A run begins: as live, what was tracked before is no longer known."""
        detector = self._shared.detector
        self._examiner = Examiner(self.camera, detector, Tracker(detector.labels), self._plan)
        run = self.run if self._runs == 0 else hashlib.sha256(f"{self.run}|{self._runs}".encode()).hexdigest()[:16]
        self._runs += 1
        self._tally.size = picture_size(frame)
        header = StreamHeader(
            camera=self.camera, clip=self.film.name, model=detector.name, size=self._tally.size, run=run
        )
        self._shared.log.header(header)
        self._routing.begin()
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            self._shared.log.gap(gap)
        self._step(self._pipeline.feed(header))
        return self._examiner

    def _gap(self, gap: Gap) -> None:
        self._tally.gaps.append(gap)
        if self._runs == 0:
            self._gaps.append(gap)
            return
        self._shared.log.gap(gap)
        if gap.t_end is not None:  # time passed without boxes, as when a live camera is away
            self._step(self._pipeline.tick(gap.t_end))

    def _step(self, step: Step) -> None:
        routes = self._routing.decide(step)
        self._shared.log.step(step, routes)
        self._tally.step(step, routes)

    def _end(self, reason: str) -> LogEnd:
        return LogEnd(
            camera=self.camera,
            run=self.run,
            t=self._tally.t,
            reason=reason,
            frames=self.film.decoded,
            examined=self._tally.examined,
            unlooked=self._tally.unlooked,
            decode_errors=self.film.damaged,
            time_jumps=self.film.jumps,
            footage_bytes=self.film.bytes,
            suppressed=tuple(event.id for event in self._tally.suppressed),
            error=self.film.error,
        )
