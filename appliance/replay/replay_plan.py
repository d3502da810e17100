"""The plan of a replay: the footage of each camera, all that decides what is logged, and how fast it is played."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.clock import Clock
from appliance.base.errors import printable
from appliance.config import DecisionConfig
from appliance.detect.detector import ObjectDetector
from appliance.ingest.camera_hardware import HardwareDecoders, HardwareOnly
from appliance.replay.conditions.condition_spec import NO_CONDITIONS, ConditionSet
from appliance.replay.footage import ClipSource, FrameSource
from appliance.replay.replay_log_writer import LogHeader, Replayed, opening, run_id, settings_of
from appliance.replay.replay_resume import DetectionJournal
from appliance.replay.stood_before import StoodBefore, digest_of
from appliance.replay.verdict_source import VerdictSource
from appliance.rules.schedule import LocalTime
from appliance.types import FrameBoxes, HardwareKind

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
    run = run_id(clip, camera, config.cameras[camera], config.detector, detector.name)
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
