"""Replays the footage of one or several cameras through the live parts, and logs what they decide, in order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from appliance.base.clock import Clock, process_cpu_s
from appliance.config import rule_labels
from appliance.detect.detector import prefer_labels
from appliance.media.decoder import DecodedFrame
from appliance.replay.camera_replay import CameraReplay, ReplayContext
from appliance.replay.footage import SourceItem
from appliance.replay.ordered_executor import OrderedExecutor
from appliance.replay.replay_log_writer import LogSink, ReplayLog
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_routing import router_context_of
from appliance.types import Detections, Gap


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
