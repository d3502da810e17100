"""Recorded footage through the same pipeline as a live camera, as fast as the machine allows or as is wished."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.clock import Clock, SystemClock, process_cpu_s
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.ingest.decode import Frame
from appliance.replay.answers import Answers
from appliance.replay.faulty import weathered
from appliance.replay.film import ClipFilm, Film, Scene
from appliance.replay.header import LogHeader, Replayed, opening, settings_of
from appliance.replay.inorder import InOrder
from appliance.replay.lane import Lane, Shared, Watch
from appliance.replay.log import ReplayLog, Sink, run_id
from appliance.replay.looks import Looks
from appliance.replay.pace import Pace
from appliance.replay.result import ReplayResult
from appliance.replay.routing import outlook_of
from appliance.rules.schedule import Wall
from appliance.types import Detections, Gap
from appliance.weather.weather import CLEAR, Weather

HANDS_MAX = 8  # decoding feeds no more looks than that
Progress = Callable[[float, float | None], None]
"""Told the seconds of footage done, and the footage's length if it is known."""


@dataclass(frozen=True, slots=True)
class Reel:
    """A camera's footage and how the log's first line calls it."""

    film: Film
    replayed: Replayed


@dataclass(frozen=True, slots=True)
class Show:
    """Reels that are replayed together, synchronised by the time in them: everything that decides what is logged.

    wall: weekday and minute of a time in the footage, for schedules; None: every rule is armed. answers: who answers
    the questions to the cloud; None: nobody. weather: what is made of the footage, see `under`.
    """

    reels: tuple[Reel, ...]
    config: SiteConfig
    detector: ObjectDetector
    wall: Wall | None = None
    answers: Answers | None = None
    weather: Weather = CLEAR

    def opening(self) -> LogHeader:
        """What the log's first line will say; its `digest` tells replays apart."""
        replayed = [reel.replayed for reel in self.reels]
        cameras = [each.camera for each in replayed]
        settings = settings_of(
            self.config,
            cameras,
            self.detector,
            scheduled=self.wall is not None,
            verdicts=self.answers.answered_by if self.answers is not None else None,
            weather=self.weather,
        )
        return opening(replayed, settings)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a show is played; nothing of it changes what is found. speed None: as fast as the machine allows.

    hands: threads that ask the detector, each of them for another look. More than one only for a detector that can be
    asked from several threads at once and answers each time the same, as those of `appliance.detect` do.
    """

    clock: Clock
    speed: float | None = None
    progress: Progress | None = None
    looks: Looks | None = None
    hands: int = 1
    watch: Watch | None = None


def replay(
    clip: Path,
    config: SiteConfig,
    camera: str,
    detector: ObjectDetector,
    log: Sink | None = None,
    progress: Progress | None = None,
    *,
    wall: Wall | None = None,
    clock: Clock | None = None,
    speed: float | None = None,
    hands: int = 1,
    weather: Weather = CLEAR,
    answers: Answers | None = None,
) -> ReplayResult:
    """Replay `clip` as if `camera` of the site had filmed it.

    The log (see docs/replay.md) depends on the clip, the site file, the model and its backend, on nothing else: no
    clock is in it and no path. wall: weekday and minute of a clip time, for schedules; without it every rule is
    armed. clock: for the pace and for the cost in the result only. A clip that breaks off gives what was found until
    then, and `error`. Raises SourceError when it is not a video at all, OSError when the log cannot be written.
    """
    show = under(Show((clip_reel(clip, config, camera, detector),), config, detector, wall, answers=answers), weather)
    (result,) = play(show, log, Manner(clock or SystemClock(), speed, progress, hands=hands))
    return result


def clip_reel(clip: Path, config: SiteConfig, camera: str, detector: ObjectDetector) -> Reel:
    """A file as the footage of a camera. Raises SourceError when it cannot be read."""
    run = run_id(clip, camera, config.cameras[camera], config.detector, detector.name)
    return Reel(ClipFilm(clip, camera), Replayed(camera=camera, kind="clip", clip=clip.name, run=run))


def hands_for(config: SiteConfig) -> int:
    """As many threads as this machine has cores for looks, each of `detector.threads`. Only for detectors of
    `appliance.detect`, see `Manner`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(HANDS_MAX, cores // config.detector.threads))


def under(show: Show, weather: Weather) -> Show:
    """The same show in other weather; its runs get other ids, since other boxes are found."""
    if not weather.conditions:
        return replace(show, weather=weather)
    reels = []
    for reel in show.reels:
        run = hashlib.sha256(f"{reel.replayed.run}|{weather.words}|{weather.seed}".encode()).hexdigest()[:16]
        reels.append(replace(reel, replayed=reel.replayed.model_copy(update={"run": run})))
    return replace(show, weather=weather, reels=tuple(reels))


def play(show: Show, log: Sink | None, manner: Manner) -> tuple[ReplayResult, ...]:
    """Play all reels to their ends, merged by time; of frames at the same time the reel named first is first.

    Raises SourceError when one of them is no video, OSError when the log cannot be written.
    """
    wall_s, cpu_s = manner.clock.monotonic(), process_cpu_s()
    pace = Pace(manner.clock, manner.speed)
    with InOrder[Detections | None](manner.hands) as order:
        shared = Shared(
            show.config,
            show.detector,
            ReplayLog(log, show.opening()),
            order,
            outlook_of(show.config, show.wall),
            manner.looks,
            show.wall,
            watch=manner.watch,
            answers=show.answers,
            weather=show.weather,
        )
        lanes = [
            Lane(
                reel.replayed.camera,
                weathered(reel.film, reel.replayed.camera, show.weather),
                reel.replayed.run,
                shared,
                reel.replayed.t_from,
            )
            for reel in show.reels
        ]
        for lane, scene in _merged(lanes):
            if isinstance(scene, Frame) and not (manner.looks and manner.looks.has_next):
                pace.wait(scene.t)
            lane.take(scene)
            if isinstance(scene, Frame) and manner.progress is not None:
                manner.progress(lane.t, _length_s(lanes))
    cost = {"wall_s": manner.clock.monotonic() - wall_s, "cpu_s": process_cpu_s() - cpu_s, "behind_s": pace.behind_s}
    return tuple(lane.result(**cost) for lane in lanes)


def _merged(lanes: Sequence[Lane]) -> Iterator[tuple[Lane, Scene]]:
    """What the films show, in order of time; a film that is over closes its lane at once, so the order is always the
    same. Holds one frame of each film."""
    films = [(lane, lane.film.play(lane.thrift)) for lane in lanes]
    heads: list[tuple[Lane, Iterator[Scene], Scene]] = []
    for lane, film in films:
        heads += _head(lane, film)
    while heads:
        index = min(range(len(heads)), key=lambda each: (_time(heads[each]), each))
        lane, film, scene = heads[index]
        yield lane, scene
        heads[index : index + 1] = _head(lane, film)


def _head(lane: Lane, film: Iterator[Scene]) -> list[tuple[Lane, Iterator[Scene], Scene]]:
    scene = next(film, None)
    if scene is None:
        lane.close()
        return []
    return [(lane, film, scene)]


def _time(head: tuple[Lane, Iterator[Scene], Scene]) -> float:
    """A frame's time; a gap where it begins; a new run at once, after what its own film showed before."""
    scene = head[2]
    if isinstance(scene, Frame):
        return round(scene.t, 3)
    return scene.t_start if isinstance(scene, Gap) else float("-inf")


def _length_s(lanes: Sequence[Lane]) -> float | None:
    lengths = [lane.film.length_s for lane in lanes]
    known = [length for length in lengths if length is not None]
    return max(known) if len(known) == len(lengths) else None
