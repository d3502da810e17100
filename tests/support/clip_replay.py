"""One clip through the replay of the product, with every choice as a keyword."""

from __future__ import annotations

from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.config import DecisionConfig
from appliance.detect.detector import ObjectDetector
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet
from appliance.replay.replay_log_writer import LogSink
from appliance.replay.replay_plan import (
    ReplayOptions,
    ReplayPlan,
    ReplayProgress,
    StoodBefore,
    clip_input,
    with_conditions,
    with_stood_before,
)
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_runner import play
from appliance.replay.verdict_source import VerdictSource
from appliance.rules.weekly_hours import LocalTime


def replay(
    clip: Path,
    config: DecisionConfig,
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
    stood_before: StoodBefore | None = None,
) -> ReplayResult:
    """Replay `clip` as if `camera` of the site had filmed it.

    The log (see docs/replay.md) depends on the clip, the site file, the model and its backend, on nothing else: no
    clock is in it and no path. local_time: of a clip time, for schedules; without it every rule is armed.
    clock: for the pace and for the cost in the result only. A clip that breaks off gives what was found until then, and
    `error`. Raises SourceError when it is not a video at all, OSError when the log cannot be written.
    """
    plan = with_conditions(
        ReplayPlan(
            (clip_input(clip, config, camera, detector),), config, detector, local_time, verdict_source=verdict_source
        ),
        conditions,
    )
    plan = with_stood_before(plan, stood_before or {})
    (result,) = play(plan, log, ReplayOptions(clock or SystemClock(), speed, progress, workers=workers))
    return result
