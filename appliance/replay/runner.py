"""Recorded footage through the same pipeline as a live camera, as fast as the machine allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import av

from appliance.clock import Clock, SystemClock, process_cpu_s
from appliance.config import SiteConfig
from appliance.errors import SourceError
from appliance.ingest.clip import Clip, picture_size
from appliance.ingest.decode import Frame
from appliance.ingest.examine import Detector, Examiner
from appliance.pipeline import Pipeline
from appliance.replay.log import ReplayLog, run_id
from appliance.replay.result import ReplayResult
from appliance.rules.schedule import Wall
from appliance.track.tracker import Tracker
from appliance.types import Alert, Event, FrameBoxes, Step, StreamHeader

Progress = Callable[[float, float | None], None]
"""Told the seconds of footage done, and the clip's length if it is known."""

# The last frame may be shown for a while, and edit lists hide some: this much less than announced is not a cut.
_SHORT_S = 2.0
_SHORT_SHARE = 0.1

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tally:
    """Counts of one replay as it goes."""

    size: tuple[int, int] = (0, 0)
    examined: int = 0
    unlooked: int = 0
    boxes: int = 0
    tracks: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    suppressed: list[Event] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    t: float = 0.0

    def look(self, boxes: FrameBoxes) -> None:
        self.examined += 1
        self.unlooked += not boxes.looked
        self.boxes += len(boxes.objects)
        self.tracks.update(found.track for found in boxes.objects)

    def step(self, step: Step) -> None:
        self.events += step.events
        self.suppressed += step.suppressed
        self.alerts += [change.alert for change in step.changes if change.kind == "ended"]


class _Replay:
    """One replay. Frames in, log and tally out; the header is written with the first frame, which tells the size."""

    def __init__(self, header: StreamHeader, examiner: Examiner, pipeline: Pipeline, log: ReplayLog) -> None:
        self.tally = _Tally()
        self._header = header
        self._examiner = examiner
        self._pipeline = pipeline
        self._log = log

    def frame(self, frame: Frame) -> None:
        if frame.index == 0:
            self._begin(picture_size(frame))
        t = round(frame.t, 3)
        self.tally.t = t
        boxes = self._examiner.examine(frame.index, t, frame.picture)
        if boxes is None:
            return
        self.tally.look(boxes)
        self._log.boxes(boxes)
        self._step(self._pipeline.feed(boxes))

    def close(self, reason: str) -> None:
        self._step(self._pipeline.close(self.tally.t, reason))
        self._log.flush()

    def _begin(self, size: tuple[int, int]) -> None:
        self.tally.size = size
        header = replace(self._header, size=size)
        self._log.header(header)
        self._step(self._pipeline.feed(header))

    def _step(self, step: Step) -> None:
        self._log.step(step)
        self.tally.step(step)


def replay(
    clip: Path,
    config: SiteConfig,
    camera: str,
    detector: Detector,
    log: BinaryIO | None = None,
    progress: Progress | None = None,
    *,
    wall: Wall | None = None,
    clock: Clock | None = None,
) -> ReplayResult:
    """Replay `clip` as if `camera` of the site had filmed it.

    The log (see docs/design.md) depends on the clip, the site file, the model and its backend, on nothing else: no
    clock is in it and no path. wall: weekday and minute of a clip time, for schedules; without it every rule is
    armed. clock: for the cost in the result only. A clip that breaks off gives what was found until then, and
    `error`. Raises SourceError when it is not a video at all, OSError when the log cannot be written.
    """
    clock = clock or SystemClock()
    wall_s, cpu_s = clock.monotonic(), process_cpu_s()
    plan = config.cameras[camera]
    run = run_id(clip, camera, plan, config.detector, detector.name)
    header = StreamHeader(camera=camera, clip=clip.name, model=detector.name, size=(0, 0), run=run)
    examiner = Examiner(camera, detector, Tracker(detector.labels), plan.detect)
    going = _Replay(header, examiner, Pipeline(camera, plan, config.alerts, wall), ReplayLog(log))
    with Clip(str(clip), f"replay as {camera}") as film:
        error = _play(film, going, progress)
        going.close("end of clip" if error is None else "clip broke off")
    tally = going.tally
    return ReplayResult(
        clip=clip.name,
        camera=camera,
        model=detector.name,
        run=run,
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
        wall_s=clock.monotonic() - wall_s,
        cpu_s=process_cpu_s() - cpu_s,
        decode_errors=film.damaged,
        time_jumps=film.jumps,
        error=error,
    )


def _play(film: Clip, going: _Replay, progress: Progress | None) -> str | None:
    """Every frame through the replay; why it broke off, if it did. A clip without any picture raises SourceError."""
    length_s = _length_s(film)
    try:
        for frame in film.frames():
            going.frame(frame)
            if progress is not None:
                progress(going.tally.t, length_s)
    except SourceError as error:
        if film.decoded == 0:
            raise
        logger.warning("%s", error)
        return str(error)
    return _cut_short(film.info.label, going.tally.t, length_s)


def _cut_short(name: str, t: float, length_s: float | None) -> str | None:
    """A file that was cut off simply ends; only its own announcement tells."""
    if length_s is None or length_s - t <= max(_SHORT_S, _SHORT_SHARE * length_s):
        return None
    return f"{name} breaks off after {t:.1f} s of the {length_s:.1f} s that it announces"


def _length_s(film: Clip) -> float | None:
    """What the file says of the length of its video; many say nothing, or only of the whole with its sound."""
    stream = film.info.stream
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    container = stream.container
    if isinstance(container, av.container.InputContainer) and container.duration and len(container.streams) == 1:
        return float(container.duration / av.time_base)
    return None
