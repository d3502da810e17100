"""Runs recorded footage of one or several cameras through the live pipeline, merged by time, at a given speed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.clock import Clock, SystemClock, process_cpu_s
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.lab.cassette.verdict_source import VerdictSource
from appliance.lab.conditions.condition_spec import NO_CONDITIONS, ConditionSet
from appliance.lab.conditions.stream_faults import with_stream_faults
from appliance.lab.footage import ClipSource, FrameSource, SourceItem
from appliance.lab.replay.camera_replay import CameraReplay, InferenceObserver, ReplayContext
from appliance.lab.replay.ordered_executor import OrderedExecutor
from appliance.lab.replay.replay_log_writer import LogHeader, LogSink, Replayed, ReplayLog, opening, run_id, settings_of
from appliance.lab.replay.replay_result import ReplayResult
from appliance.lab.replay.replay_resume import DetectionJournal
from appliance.lab.replay.replay_routing import router_context_of
from appliance.media.decoder import DecodedFrame
from appliance.rules.schedule import LocalTime
from appliance.types import Detections, Gap


class ReplayPacer:
    """Holds frames back until they are due. Decides nothing: a replay that cannot keep up drops no frame.

    State: when and where it began; the furthest it fell behind. speed None: as fast as the machine allows.
    """

    def __init__(self, clock: Clock, speed: float | None) -> None:
        self._clock = clock
        self._speed = speed
        self._begin: tuple[float, float] | None = None
        self.behind_s = 0.0

    def wait(self, t: float) -> None:
        """Return when the footage's second `t` is due; the first call says where it begins."""
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


WORKERS_MAX = 8  # decoding feeds no more looks than that
ReplayProgress = Callable[[float, float | None], None]
"""Told the seconds of footage done, and the footage's length if it is known."""


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """A camera's footage and how the log's first line calls it."""

    source: FrameSource
    replayed: Replayed


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Reels that are replayed together, synchronised by the time in them: everything that decides what is logged.

    wall: weekday and minute of a time in the footage, for schedules; None: every rule is armed. answers: who answers
    the questions to the cloud; None: nobody. weather: what is made of the footage, see `under`.
    """

    inputs: tuple[ReplayInput, ...]
    config: SiteConfig
    detector: ObjectDetector
    local_time: LocalTime | None = None
    verdict_source: VerdictSource | None = None
    conditions: ConditionSet = NO_CONDITIONS

    def header(self) -> LogHeader:
        """What the log's first line will say; its `digest` tells replays apart."""
        replayed = [reel.replayed for reel in self.inputs]
        cameras = [each.camera for each in replayed]
        settings = settings_of(
            self.config,
            cameras,
            self.detector,
            scheduled=self.local_time is not None,
            verdicts=self.verdict_source.answered_by if self.verdict_source is not None else None,
            weather=self.conditions,
        )
        return opening(replayed, settings)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a show is played; nothing of it changes what is found. speed None: as fast as the machine allows.

    hands: threads that ask the detector, each of them for another look. More than one only for a detector that can be
    asked from several threads at once and answers each time the same, as those of `appliance.detect` do.
    """

    clock: Clock
    speed: float | None = None
    progress: ReplayProgress | None = None
    detections: DetectionJournal | None = None
    workers: int = 1
    observer: InferenceObserver | None = None


def replay(
    clip: Path,
    config: SiteConfig,
    camera: str,
    detector: ObjectDetector,
    log: LogSink | None = None,
    progress: ReplayProgress | None = None,
    *,
    local_time: LocalTime | None = None,
    clock: Clock | None = None,
    speed: float | None = None,
    workers: int = 1,
    conditions: ConditionSet = NO_CONDITIONS,
    verdict_source: VerdictSource | None = None,
) -> ReplayResult:
    """Replay `clip` as if `camera` of the site had filmed it.

    The log (see docs/replay.md) depends on the clip, the site file, the model and its backend, on nothing else: no
    clock is in it and no path. wall: weekday and minute of a clip time, for schedules; without it every rule is
    armed. clock: for the pace and for the cost in the result only. A clip that breaks off gives what was found until
    then, and `error`. Raises SourceError when it is not a video at all, OSError when the log cannot be written.
    """
    show = with_conditions(
        ReplayPlan(
            (clip_input(clip, config, camera, detector),), config, detector, local_time, verdict_source=verdict_source
        ),
        conditions,
    )
    (result,) = play(show, log, ReplayOptions(clock or SystemClock(), speed, progress, workers=workers))
    return result


def clip_input(clip: Path, config: SiteConfig, camera: str, detector: ObjectDetector) -> ReplayInput:
    """A file as the footage of a camera. Raises SourceError when it cannot be read."""
    run = run_id(clip, camera, config.cameras[camera], config.detector, detector.name)
    return ReplayInput(ClipSource(clip, camera), Replayed(camera=camera, kind="clip", clip=clip.name, run=run))


def workers_for(config: SiteConfig) -> int:
    """As many threads as this machine has cores for looks, each of `detector.threads`. Only for detectors of
    `appliance.detect`, see `Manner`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(WORKERS_MAX, cores // config.detector.threads))


def with_conditions(show: ReplayPlan, weather: ConditionSet) -> ReplayPlan:
    """The same show in other weather; its runs get other ids, since other boxes are found."""
    if not weather.conditions:
        return replace(show, conditions=weather)
    reels = []
    for reel in show.inputs:
        run = hashlib.sha256(f"{reel.replayed.run}|{weather.texts}|{weather.seed}".encode()).hexdigest()[:16]
        reels.append(replace(reel, replayed=reel.replayed.model_copy(update={"run": run})))
    return replace(show, conditions=weather, inputs=tuple(reels))


def play(show: ReplayPlan, log: LogSink | None, manner: ReplayOptions) -> tuple[ReplayResult, ...]:
    """Play all reels to their ends, merged by time; of frames at the same time the reel named first is first.

    Raises SourceError when one of them is no video, OSError when the log cannot be written.
    """
    wall_s, cpu_s = manner.clock.monotonic(), process_cpu_s()
    pace = ReplayPacer(manner.clock, manner.speed)
    with OrderedExecutor[Detections | None](manner.workers) as order:
        shared = ReplayContext(
            show.config,
            show.detector,
            ReplayLog(log, show.header()),
            order,
            router_context_of(show.config, show.local_time),
            manner.detections,
            show.local_time,
            observer=manner.observer,
            verdict_source=show.verdict_source,
            conditions=show.conditions,
        )
        lanes = [
            CameraReplay(
                reel.replayed.camera,
                with_stream_faults(reel.source, reel.replayed.camera, show.conditions),
                reel.replayed.run,
                shared,
                reel.replayed.t_from,
            )
            for reel in show.inputs
        ]
        for lane, scene in _merged(lanes):
            if isinstance(scene, DecodedFrame) and not (manner.detections and manner.detections.has_next):
                pace.wait(scene.t)
            lane.take(scene)
            if isinstance(scene, DecodedFrame) and manner.progress is not None:
                manner.progress(lane.t, _length_s(lanes))
    cost = {"wall_s": manner.clock.monotonic() - wall_s, "cpu_s": process_cpu_s() - cpu_s, "behind_s": pace.behind_s}
    return tuple(lane.result(**cost) for lane in lanes)


def _merged(lanes: Sequence[CameraReplay]) -> Iterator[tuple[CameraReplay, SourceItem]]:
    """What the films show, in order of time; a film that is over closes its lane at once, so the order is always the
    same. Holds one frame of each film."""
    films = [(lane, lane.source.play(lane.analysis.decode_policy)) for lane in lanes]
    heads: list[tuple[CameraReplay, Iterator[SourceItem], SourceItem]] = []
    for lane, film in films:
        heads += _head(lane, film)
    while heads:
        index = min(range(len(heads)), key=lambda each: (_time(heads[each]), each))
        lane, film, scene = heads[index]
        yield lane, scene
        heads[index : index + 1] = _head(lane, film)


def _head(
    lane: CameraReplay, film: Iterator[SourceItem]
) -> list[tuple[CameraReplay, Iterator[SourceItem], SourceItem]]:
    scene = next(film, None)
    if scene is None:
        lane.close()
        return []
    return [(lane, film, scene)]


def _time(head: tuple[CameraReplay, Iterator[SourceItem], SourceItem]) -> float:
    """A frame's time; a gap where it begins; a new run at once, after what its own film showed before."""
    scene = head[2]
    if isinstance(scene, DecodedFrame):
        return round(scene.t, 3)
    return scene.t_start if isinstance(scene, Gap) else float("-inf")


def _length_s(lanes: Sequence[CameraReplay]) -> float | None:
    lengths = [lane.source.length_s for lane in lanes]
    known = [length for length in lengths if length is not None]
    return max(known) if len(known) == len(lengths) else None
