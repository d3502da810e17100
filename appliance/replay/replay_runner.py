"""Runs recorded footage of one or several cameras through the live pipeline, merged by time, at a given speed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.base.clock import Clock, process_cpu_s
from appliance.base.errors import printable
from appliance.config import DecisionConfig, rule_labels
from appliance.detect.detector import ObjectDetector, prefer_labels
from appliance.ingest.camera_hardware import HardwareDecoders, HardwareOnly
from appliance.media.decoder import DecodedFrame
from appliance.replay.camera_replay import CameraReplay, InferenceObserver, ReplayContext
from appliance.replay.conditions.condition_spec import NO_CONDITIONS, ConditionSet
from appliance.replay.conditions.stream_faults import with_stream_faults
from appliance.replay.footage import ClipSource, FrameSource, SourceItem
from appliance.replay.ordered_executor import OrderedExecutor
from appliance.replay.replay_log_writer import LogHeader, LogSink, Replayed, ReplayLog, opening, run_id, settings_of
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_resume import DetectionJournal
from appliance.replay.replay_routing import router_context_of
from appliance.replay.stood_before import StoodBefore, digest_of
from appliance.replay.verdict_source import VerdictSource
from appliance.rules.schedule import LocalTime
from appliance.types import Detections, Gap, HardwareKind


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


WORKERS_MAX = 8  # decoding, in one thread, feeds no more detectors than that
ReplayProgress = Callable[[float, float | None], None]
"""Called with the seconds of footage done, and the footage's length if it is known."""


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """A camera's footage and how the log's first line names it."""

    source: FrameSource
    replayed: Replayed


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Inputs that are replayed together, synchronised by their time: everything that decides what is logged."""

    inputs: tuple[ReplayInput, ...]
    config: DecisionConfig
    detector: ObjectDetector
    local_time: LocalTime | None = None  # of a time in the footage, for schedules; None: every rule is armed
    verdict_source: VerdictSource | None = None  # None: no escalation is answered
    conditions: ConditionSet = NO_CONDITIONS  # see `with_conditions`
    stood_before: StoodBefore = field(default_factory=dict)  # see `with_stood_before`
    decoder: HardwareKind | None = None  # see `with_hardware`

    def header(self) -> LogHeader:
        """Return the log's first line; its `digest` tells replays apart."""
        replayed = [each.replayed for each in self.inputs]
        cameras = [each.camera for each in replayed]
        settings = settings_of(
            self.config,
            cameras,
            self.detector,
            scheduled=self.local_time is not None,
            verdicts=self.verdict_source.answered_by if self.verdict_source is not None else None,
            conditions=self.conditions,
            stood_before=digest_of(self.stood_before),
            decoder=self.decoder,
        )
        return opening(replayed, settings)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a plan is played; nothing of it changes what is found."""

    clock: Clock
    speed: float | None = None  # times real time; None: as fast as the machine allows
    progress: ReplayProgress | None = None
    detections: DetectionJournal | None = None
    # Threads that run the detector, each on another frame. More than one only for a detector that several threads may
    # use at once and that is deterministic, as those of `appliance.detect` are.
    workers: int = 1
    observer: InferenceObserver | None = None


def clip_input(clip: Path, config: DecisionConfig, camera: str, detector: ObjectDetector) -> ReplayInput:
    """Return a file as the footage of a camera. Raises SourceError when it cannot be read."""
    run = run_id(clip, camera, config.cameras[camera], config.detector, detector.name)
    return ReplayInput(
        ClipSource(clip, camera), Replayed(camera=camera, kind="clip", clip=printable(clip.name), run=run)
    )


def workers_for(config: DecisionConfig) -> int:
    """As many workers as this machine has cores for, each of `detector.threads`.

    Only for detectors of `appliance.detect`, see `ReplayOptions`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(WORKERS_MAX, cores // config.detector.threads))


def with_conditions(plan: ReplayPlan, conditions: ConditionSet) -> ReplayPlan:
    """Return the same plan under other conditions; its sessions get other ids, since other boxes are found."""
    if not conditions.conditions:
        return replace(plan, conditions=conditions)
    return replace(plan, conditions=conditions, inputs=_renamed(plan, f"{conditions.texts}|{conditions.seed}"))


def with_stood_before(plan: ReplayPlan, known: StoodBefore) -> ReplayPlan:
    """Return the same plan where it is known what stood there before; its sessions get other ids."""
    if not known:
        return plan
    return replace(plan, stood_before=known, inputs=_renamed(plan, digest_of(known)))


def with_hardware(plan: ReplayPlan, decoders: HardwareDecoders, kind: HardwareKind) -> ReplayPlan:
    """Return the same plan decoded by hardware; its sessions get other ids, since its pixels differ a little.

    What fails ends the footage with an error: the log's first line has said what decodes it.
    """
    inputs = _renamed(plan, f"decoder {kind}")
    decoded = [replace(each, source=each.source.decoded_by(HardwareOnly(decoders, kind))) for each in inputs]
    return replace(plan, decoder=kind, inputs=tuple(decoded))


def _renamed(plan: ReplayPlan, reason: str) -> tuple[ReplayInput, ...]:
    inputs = []
    for each in plan.inputs:
        run = hashlib.sha256(f"{each.replayed.run}|{reason}".encode()).hexdigest()[:16]
        inputs.append(replace(each, replayed=each.replayed.model_copy(update={"run": run})))
    return tuple(inputs)


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
        context = ReplayContext(
            plan.config,
            plan.detector,
            ReplayLog(log, plan.header()),
            executor,
            router_context_of(plan.config, plan.local_time),
            options.detections,
            plan.local_time,
            observer=options.observer,
            verdict_source=plan.verdict_source,
            conditions=plan.conditions,
            stood_before=plan.stood_before,
        )
        cameras = [
            CameraReplay(
                each.replayed.camera,
                with_stream_faults(each.source, each.replayed.camera, plan.conditions),
                each.replayed.run,
                context,
                each.replayed.t_from,
            )
            for each in plan.inputs
        ]
        for camera, item in _merged(cameras):
            if isinstance(item, DecodedFrame) and not (options.detections and options.detections.has_next):
                pacer.wait(item.t)
            camera.take(item)
            if isinstance(item, DecodedFrame):
                yield camera.t, _length_s(cameras)
    cost = {"wall_s": options.clock.monotonic() - wall_s, "cpu_s": process_cpu_s() - cpu_s, "behind_s": pacer.behind_s}
    return tuple(camera.result(**cost) for camera in cameras)


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
