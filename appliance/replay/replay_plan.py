"""The plan of a replay: the footage of each camera, what stood before it, all that decides what is logged, the pace.

Objects that stood before a camera when its footage began come from an appliance's memory or an earlier replay log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import Clock
from appliance.base.errors import UsageError, printable
from appliance.config import DecisionConfig
from appliance.detect.detector import ObjectDetector
from appliance.ingest.hardware_decoders import HardwareDecoders, HardwareOnly
from appliance.replay.footage import ClipSource, FrameSource
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet
from appliance.replay.replay_log_writer import LogHeader, Replayed, opening, run_id_of, settings_of
from appliance.replay.replay_result import read_log
from appliance.replay.replay_resume import DetectionJournal
from appliance.replay.verdict_source import VerdictSource
from appliance.rules.weekly_hours import LocalTime
from appliance.track.standstill import is_unmoved
from appliance.track.stationary_objects import PARKED_FOLDER, StationaryObject, read_stationary_objects
from appliance.track.tracker import VEHICLE, VEHICLES
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, FrameBoxes, HardwareKind, StreamHeader

InferenceObserver = Callable[[FrameBoxes, InferenceRequest], None]
"""Called with each examined frame and its boxes before anything is decided about them; must change nothing."""

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
    run = run_id_of([(clip, None)], camera, config.cameras[camera], config.detector, detector.name)
    return ReplayInput(
        ClipSource(clip, camera), Replayed(camera=camera, kind="clip", clip=printable(clip.name), run=run)
    )


def workers_for(config: DecisionConfig) -> int:
    """Return how many workers this machine has cores for, each of `detector.threads`.

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

    A failure of the hardware ends the footage with an error, since the log's first line names the decoder.
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


StoodBefore = Mapping[str, tuple[StationaryObject, ...]]
"""By camera; a camera that is not in it: nothing is known of before."""
SEEN_LAST_S = 5.0  # what a log shows within so long before its end still stood there then


def read_stood_before(path: Path, cameras: Sequence[str]) -> StoodBefore:
    """Read the objects that stood before `cameras`, as of the first frame (t = 0).

    path: a replay log (`.jsonl`); an appliance's `parked/<camera>.json`, for one camera; or the storage folder that
    holds such files. Raise UsageError.
    """
    if path.is_dir():
        folder = path / PARKED_FOLDER if (path / PARKED_FOLDER).is_dir() else path
        files = {camera: folder / f"{camera}.json" for camera in cameras}
        found = {camera: _from_file(file) for camera, file in files.items() if file.is_file()}
        if not found:
            raise UsageError(f"--stood-before: {folder} has no {' or '.join(file.name for file in files.values())}")
        return found
    if path.suffix == ".json":
        if len(cameras) != 1:
            raise UsageError(f"--stood-before: {path} is of one camera; for several give the folder that it lies in")
        return {cameras[0]: _from_file(path)}
    log = read_log(path)
    known = {camera: _standing(camera, log.lines) for camera in cameras if camera in log.header.settings.cameras}
    if not known:
        raise UsageError(
            f"--stood-before: {path} is of {', '.join(log.header.settings.cameras)}, none of them replayed"
        )
    return known


def standing(label: str, box: Box, stood_s: float) -> StationaryObject:
    """Return an object that has stood at `box` for so long when the footage begins (t = 0)."""
    return StationaryObject(VEHICLE if label in VEHICLES else label, box, -stood_s, 0.0, stood_s)


def digest_of(known: StoodBefore) -> str:
    """Return 16 hex digits of what is known; "" if it is nothing."""
    if not known:
        return ""
    content = [
        (
            camera,
            each.kind,
            each.box,
            round(each.stood_s, 3),
            None if each.patch is None else each.patch.tobytes().hex(),
        )
        for camera in sorted(known)
        for each in known[camera]
    ]
    return hashlib.sha256(repr((sorted(known), content)).encode()).hexdigest()[:16]


def _from_file(file: Path) -> tuple[StationaryObject, ...]:
    try:
        return tuple(
            replace(each, t_first=-each.stood_s, t_last=0.0, patch_t=0.0) for each in read_stationary_objects(file)
        )
    except OSError as error:
        raise UsageError(f"--stood-before: {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--stood-before: {file} is no memory of parked vehicles: {error}") from None


def _standing(camera: str, lines: Iterable[object]) -> tuple[StationaryObject, ...]:
    """Return the objects that stood at the log's end, by their boxes.

    They stood for as long as the tracker would have wanted, and in one place.
    """
    stays: dict[int, StationaryObject] = {}
    end = 0.0
    for line in lines:
        if isinstance(line, StreamHeader) and line.camera == camera:
            stays.clear()
        if not isinstance(line, FrameBoxes) or line.camera != camera:
            continue
        end = line.t
        for each in line.objects:
            stay = stays.get(each.track)
            if stay is None or not is_unmoved(stay.box, each.box):
                kind = VEHICLE if each.label in VEHICLES else each.label
                stay = stays[each.track] = StationaryObject(kind, each.box, line.t, line.t, each.stood_s or 0.0)
            stay.t_last = line.t
    found = []
    for stay in stays.values():
        stood_s = stay.stood_s + stay.t_last - stay.t_first
        needed_s = TUNING.parking.parked_s if stay.kind == VEHICLE else TUNING.parking.furniture_s
        if stood_s >= needed_s and end - stay.t_last <= SEEN_LAST_S:
            found.append(replace(stay, stood_s=stood_s, t_first=-stood_s, t_last=0.0))
    return tuple(found)
