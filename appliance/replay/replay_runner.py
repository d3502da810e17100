"""Replays the footage of one or several cameras through the live parts, and logs what they decide, in order."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.alerts.pipeline import Pipeline
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import Clock, process_cpu_s
from appliance.base.errors import DetectorError
from appliance.config import rule_labels
from appliance.detect.detector import ObjectDetector, prefer_labels
from appliance.health.tamper_detector import TamperDetector
from appliance.media.decoder import DecodedFrame
from appliance.replay.footage import NewSession, SourceItem
from appliance.replay.frame_transform import frame_transform_of
from appliance.replay.replay_log_writer import LogSink, ReplayLog
from appliance.replay.replay_plan import ReplayInput, ReplayOptions, ReplayPlan
from appliance.replay.replay_result import ReplayCost, ReplayResult, ReplayStats, result_of
from appliance.replay.replay_routing import ReplayRouting, router_context_of
from appliance.replay.stream_faults import with_stream_faults
from appliance.replay.verdict_source import FootageRef, PendingVerdicts
from appliance.router.escalation_planner import RouterContext
from appliance.track.stationary_objects import StationaryObjects
from appliance.track.tracker import Tracker
from appliance.types import Detections, Gap, HealthEvent, LogEnd, LogVerdict, PipelineStep, StreamHeader

QUEUED_PER_WORKER = 2  # calls for each thread: one running, one so that it need not wait
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Step(Generic[Result]):
    result: Future[Result]
    then: Callable[[Result], None]


class OrderedExecutor(Generic[Result]):
    """Runs calls on worker threads and handles their results in the order of submission, in the caller's thread.

    State: what waits for a result, or for something before it. Invariants: `then` of a call runs once its result is
    there and all that was submitted before is handled; at most QUEUED_PER_WORKER calls a worker wait. With one worker
    everything runs at once in the caller's thread. Use as a context manager: on leaving, what waits is handled, or
    dropped when an exception leaves (a killed replay is resumed from what its log holds).
    """

    def __init__(self, workers: int = 1) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="replay-worker") if workers > 1 else None
        self._running_max = QUEUED_PER_WORKER * workers
        self._waiting: deque[_Step[Result] | Callable[[], None]] = deque()
        self._running = 0

    def __enter__(self) -> OrderedExecutor[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def submit(self, call: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run `call` on a worker, and hand its result to `then`. Raise its exception when its turn comes."""
        if self._pool is None:
            then(call())
            return
        self._waiting.append(_Step(self._pool.submit(call), then))
        self._running += 1
        while self._running > self._running_max:
            self._next()
        self._collect()

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` when its turn comes."""
        self._waiting.append(action)
        self._collect()

    def drain(self) -> None:
        """Wait until everything that was submitted is handled."""
        while self._waiting:
            self._next()

    def _collect(self) -> None:
        """Handle what need not wait any more, so that a replay in real time writes its log in real time."""
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, _Step) and not first.result.done():
                return
            self._next()

    def _next(self) -> None:
        first = self._waiting.popleft()
        if isinstance(first, _Step):
            self._running -= 1
            first.then(first.result.result())
        else:
            first()


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """The parts that the cameras of a replay share."""

    plan: ReplayPlan
    options: ReplayOptions
    log: ReplayLog
    executor: OrderedExecutor[Detections | None]
    router_context: RouterContext


class CameraReplay:
    """One camera's way from its frames to log lines: CameraAnalysis, rules, alert policy, router.

    State: those parts, the counts, the number of sessions so far. The header of a session is written with its first
    frame, which gives the size; a gap before it waits for that. Invariant: CameraAnalysis selects frames ahead of the
    detector; tracker, rules, router, log and counts follow in order, all through `ReplayContext.executor`, so nothing
    depends on how long the detector took.
    """

    def __init__(self, footage: ReplayInput, context: ReplayContext) -> None:
        plan = context.plan
        self.camera = camera = footage.replayed.camera
        self.source = with_stream_faults(footage.source, camera, plan.conditions)
        self.run = footage.replayed.run
        self._context, self._plan, self._journal = context, plan, context.options.detections
        settings = plan.config.cameras[camera]
        self._pipeline = Pipeline(camera, settings, plan.config.alerts, plan.local_time)
        self._routing = ReplayRouting(plan.config, camera, plan.detector.name, context.router_context)
        self._verdicts = PendingVerdicts(plan.verdict_source, FootageRef(self.source.name, footage.replayed.t_from))
        # As live, they are known to the camera's next session; nothing is kept on disk.
        self._known_before = camera in plan.stood_before
        parked = StationaryObjects(plan.stood_before.get(camera, ()))
        self.analysis = CameraAnalysis(
            camera,
            plan.detector,
            lambda labels: Tracker(labels, parked),
            settings.detect,
            tamper=TamperDetector(camera, plan.config.health, settings.health_ignore, self._log_health, mend=False),
            frame_filter=frame_transform_of(plan.conditions),
            drain=context.executor.drain,
            # Conditions change frames; packet sizes know nothing of them.
            decode_everything=bool(plan.conditions.conditions),
        )
        self.analysis.watch_lines(settings.rule_lines)
        self._sessions = 0
        self._gaps: list[Gap] = []
        self.stats = ReplayStats()
        self._end: LogEnd | None = None

    def take(self, item: SourceItem) -> None:
        """Process the next item of the source."""
        if isinstance(item, DecodedFrame):
            self._frame(item)
        elif isinstance(item, NewSession):
            self.analysis.end_session()
        else:
            self._gap(item)

    def close(self) -> None:
        """End what is open, and log that; the source is at its end."""
        self.stats.t = max(self.stats.t, round(self.source.counts.t, 3))
        self._context.executor.call(self._close)

    def _close(self) -> None:
        reason = "end of clip" if self.source.error is None else "clip broke off"
        self._step(self._pipeline.close(self.stats.t, reason))
        self._log_verdicts(self._verdicts.remaining())
        counts = self.source.counts
        self._end = end = LogEnd(
            camera=self.camera,
            run=self.run,
            t=self.stats.t,
            reason=reason,
            frames=counts.frames,
            examined=self.stats.examined,
            unlooked=self.stats.unlooked,
            decode_errors=counts.damaged,
            time_jumps=counts.jumps,
            footage_bytes=self.source.bytes,
            suppressed=tuple(self.stats.suppressed),
            error=self.source.error,
            skipped=counts.skipped,
        )
        self._context.log.write(end)

    def result(self, cost: ReplayCost) -> ReplayResult:
        """Return the result; `cost` is that of the whole replay. Call it after `close`, when all is in the log."""
        assert self._end is not None, "close() first"
        source, plan = self._plan.verdict_source, self._plan
        answered_by = source.answered_by if source else None
        found = result_of(
            self.source.name, plan.detector.name, self._end, self.stats, answered_by, str(plan.conditions)
        )
        remembered = self._journal.remembered if self._journal else 0
        return replace(found, cost=replace(cost, remembered=remembered))

    def _frame(self, frame: DecodedFrame) -> None:
        if not self.analysis.has_session or self.analysis.begins_session(frame):
            self._start_session(frame)
        t = round(frame.t, 3)
        self.stats.t = t
        request = self.analysis.select(replace(frame, t=t))
        if request is None:
            return
        journal, then = self._journal, partial(self._examined, self._sessions, request)
        if journal is not None and journal.has_next:
            self._context.executor.call(partial(then, journal.read_next(self.camera, request.frame_index)))
            return
        detect = partial(_detect, self._plan.detector, self.analysis.detector_input(request))
        self._context.executor.submit(detect, partial(self._keep, request, then))

    def _keep(
        self, request: InferenceRequest, then: Callable[[Detections | None], None], found: Detections | None
    ) -> None:
        """Write new detections to the journal before anything of them is in the log."""
        if self._journal is not None:
            self._journal.append(self.camera, request.frame_index, found)
        then(found)

    def _examined(self, session: int, request: InferenceRequest, found: Detections | None) -> None:
        """Process the detections of a frame; None: the detector failed."""
        boxes = self.analysis.result(request, found)
        self._log_verdicts(self._verdicts.due(boxes.t))
        self.stats.add_boxes(session, boxes)
        self._context.log.write(boxes)
        self._routing.add(boxes, request.av_frame)
        if self._context.options.observer is not None:
            self._context.options.observer(boxes, request)
        self._step(self._pipeline.feed(boxes))

    def _start_session(self, frame: DecodedFrame) -> None:
        """Begin a session; as live, earlier tracks are no longer known."""
        run = (
            self.run
            if self._sessions == 0
            else hashlib.sha256(f"{self.run}|{self._sessions}".encode()).hexdigest()[:16]
        )
        self._sessions += 1
        self.stats.size = self.analysis.start_session(frame)
        header = StreamHeader(
            camera=self.camera,
            clip=self.source.name,
            model=self._plan.detector.name,
            size=self.stats.size,
            run=run,
            known_before=self._known_before or self._sessions > 1,
            calibration=self.analysis.calibration,
        )
        gaps, self._gaps = self._gaps, []
        self._context.executor.call(partial(self._log_start, header, gaps))

    def _log_health(self, event: HealthEvent) -> None:
        """Log a fault at its place among the examined frames."""
        self.stats.health[event.id] = event
        self._context.executor.call(partial(self._context.log.write, event))

    def _log_start(self, header: StreamHeader, gaps: Sequence[Gap]) -> None:
        self._context.log.header(header)
        self._routing.begin(header)
        for gap in gaps:
            self._context.log.write(gap)
        self._step(self._pipeline.feed(header))

    def _gap(self, gap: Gap) -> None:
        self.stats.gaps.append(gap)
        if self._sessions == 0:
            self._gaps.append(gap)
        else:
            self._context.executor.call(partial(self._log_gap, gap))

    def _log_gap(self, gap: Gap) -> None:
        self._context.log.write(gap)
        if gap.t_end is not None:  # time passed without boxes, as when a live camera is away
            self._step(self._pipeline.tick(gap.t_end))

    def _step(self, step: PipelineStep) -> None:
        routes = self._routing.decide(step)
        self._verdicts.submit(self._routing.escalations)
        step = self._verdicts.with_verdicts(step)
        self._context.log.step(step, routes)
        self.stats.add_step(step, routes)

    def _log_verdicts(self, verdicts: Sequence[LogVerdict]) -> None:
        for verdict in verdicts:
            self._context.log.write(verdict)
        self.stats.verdicts += verdicts


def _detect(detector: ObjectDetector, image: NDArray[np.uint8]) -> Detections | None:
    """Return the detections; None: the detector failed."""
    try:
        return detector.detect([image])[0]
    except DetectorError:
        return None


class ReplayPacer:
    """Holds frames back until they are due. Decides nothing: a replay that cannot keep up drops no frame.

    State: when and at which second of the footage it began; the furthest it fell behind.
    """

    def __init__(self, clock: Clock, speed: float | None) -> None:
        """speed: times real time; None: as fast as the machine allows."""
        self._clock = clock
        self._speed = speed
        self._begin: tuple[float, float] | None = None
        self.behind_s = 0.0

    def wait(self, t: float) -> None:
        """Return when the footage's second `t` is due; the first call sets where it begins."""
        if self._speed is None:
            return
        now = self._clock.monotonic()
        if self._begin is None:
            self._begin = (now, t)
            return
        ahead_s = self._begin[0] + (t - self._begin[1]) / self._speed - now
        self.behind_s = max(self.behind_s, -ahead_s)
        if ahead_s > 0:
            self._clock.sleep(ahead_s)


def play(plan: ReplayPlan, log: LogSink | None, options: ReplayOptions) -> tuple[ReplayResult, ...]:
    """Replay all inputs to their ends, merged by time; of frames at the same time the input named first comes first.

    Raises SourceError when one of them is no video, OSError when the log cannot be written.
    """
    steps = playing(plan, log, options)
    while True:
        try:
            done = next(steps)
        except StopIteration as end:
            results: tuple[ReplayResult, ...] = end.value
            return results
        if options.progress is not None:
            options.progress(*done)


def playing(
    plan: ReplayPlan, log: LogSink | None, options: ReplayOptions
) -> Generator[tuple[float, float | None], None, tuple[ReplayResult, ...]]:
    """Play the same frame by frame; yield the seconds of footage done and its length, if that is known."""
    wall_s, cpu_s = options.clock.monotonic(), process_cpu_s()
    prefer_labels(plan.detector, rule_labels(plan.config.cameras.values()))
    pacer = ReplayPacer(options.clock, options.speed)
    with OrderedExecutor[Detections | None](options.workers) as executor:
        routing = router_context_of(plan.config, plan.local_time)
        context = ReplayContext(plan, options, ReplayLog(log, plan.header()), executor, routing)
        cameras = [CameraReplay(each, context) for each in plan.inputs]
        for camera, item in _merged(cameras):
            if isinstance(item, DecodedFrame) and not (options.detections and options.detections.has_next):
                pacer.wait(item.t)
            camera.take(item)
            if isinstance(item, DecodedFrame):
                yield camera.stats.t, _length_s(cameras)
    cost = ReplayCost(options.clock.monotonic() - wall_s, process_cpu_s() - cpu_s, pacer.behind_s)
    return tuple(camera.result(cost) for camera in cameras)


@dataclass(frozen=True, slots=True)
class _Head:
    """The next item of one camera's source, and the rest."""

    camera: CameraReplay
    item: SourceItem
    rest: Iterator[SourceItem]

    @property
    def t(self) -> float:
        """A frame's time; a gap where it begins; a new session at once, after what its own source gave before."""
        if isinstance(self.item, DecodedFrame):
            return round(self.item.t, 3)
        return self.item.t_start if isinstance(self.item, Gap) else float("-inf")


def _merged(cameras: Sequence[CameraReplay]) -> Iterator[tuple[CameraReplay, SourceItem]]:
    """Return the items of all sources in order of time.

    A camera whose source is at its end is closed at once, so the order is always the same. Holds one frame of each
    source.
    """
    playing = [(camera, camera.source.play(camera.analysis.decode_policy)) for camera in cameras]
    heads = [head for camera, items in playing for head in _next(camera, items)]
    while heads:
        index = min(range(len(heads)), key=lambda each: (heads[each].t, each))
        head = heads[index]
        yield head.camera, head.item
        heads[index : index + 1] = _next(head.camera, head.rest)


def _next(camera: CameraReplay, items: Iterator[SourceItem]) -> list[_Head]:
    item = next(items, None)
    if item is None:
        camera.close()
        return []
    return [_Head(camera, item, items)]


def _length_s(cameras: Sequence[CameraReplay]) -> float | None:
    lengths = [camera.source.length_s for camera in cameras]
    known = [length for length in lengths if length is not None]
    return max(known) if len(known) == len(lengths) else None
