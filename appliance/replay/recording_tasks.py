"""The tasks of child processes that decide spans of a camera's recording again; they hold no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from appliance.base.config_model import DetectorConfig
from appliance.config import CameraConfig, DecisionConfig, HealthConfig
from appliance.detect.runtime_choice import with_remembered_runtime
from appliance.types import Event, Gap, SegmentRow

AROUND_S = 20.0  # before and after an alert
ALERT_S_MAX = 120.0  # of one that lasts
LEAD_S = 30.0  # before the span, for tracks to be what they were


@dataclass(frozen=True, slots=True)
class SpanTask:
    """A span of one camera, UTC seconds. root: the storage folder; rows, gaps: of the recording from t0 - lead_s on.

    site: see `without_secrets`. reported: events of before, for cooldowns. local_begin: weekday and minute of the day
    at t0 - lead_s at the site. model_folder: where the network's file lies; "": it has none.
    """

    root: str
    camera: str
    t0: float
    t1: float
    lead_s: float
    site: DecisionConfig
    rows: tuple[SegmentRow, ...]
    gaps: tuple[Gap, ...]
    reported: tuple[Event, ...]
    local_begin: tuple[int, int]
    model_folder: str = ""

    @property
    def begin(self) -> float:
        return self.t0 - self.lead_s

    def local_time(self) -> Callable[[float], tuple[int, int]]:
        """Weekday and minute of a UTC time: a sandbox cannot read the time zone."""
        return local_time_from(self.begin, self.local_begin)


def local_time_from(begin: float, local_begin: tuple[int, int]) -> Callable[[float], tuple[int, int]]:
    """Weekday and minute of a UTC time near `begin`, at which it is `local_begin`."""
    first = local_begin[0] * 1440 + local_begin[1] - int(begin // 60)

    def at(t: float) -> tuple[int, int]:
        weekday, minute = divmod((first + int(t // 60)) % (7 * 1440), 1440)
        return weekday, minute

    return at


@dataclass(frozen=True, slots=True)
class TrialSpan:
    """A stretch of the recording, UTC seconds. local_begin: weekday and minute of the day at t0 at the site."""

    t0: float
    t1: float
    rows: tuple[SegmentRow, ...]
    gaps: tuple[Gap, ...]
    local_begin: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """One set of settings.

    site: see `without_secrets`. model_folder: where the network's file lies; "": it has none.
    """

    site: DecisionConfig
    model_folder: str = ""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """Stretches of one camera, oldest first, and both sets of settings. root: the storage folder.

    every_alert: the result lists all alerts, for who counts them.
    """

    root: str
    camera: str
    spans: tuple[TrialSpan, ...]
    now: TrialSetup
    then: TrialSetup
    every_alert: bool = False


@dataclass(frozen=True, slots=True)
class ScenariosTask:
    """Kept scenarios, run with the settings that they were kept with and with those in force.

    files: of the scenarios. now: what is in force, by camera (see `without_secrets`); a camera that is not there has
    none. model_folder: where its network lies; "": it has none. way: the detector in force, as the appliance runs it.
    """

    files: tuple[str, ...]
    now: dict[str, DecisionConfig]
    way: DetectorConfig
    model_folder: str = ""


SCENARIOS_TASK: TypeAdapter[ScenariosTask] = TypeAdapter(ScenariosTask)
# As plain values, which a child process is sent. Decoding raises pydantic's ValidationError.
SPAN_TASK: TypeAdapter[SpanTask] = TypeAdapter(SpanTask)
TRIAL_TASK: TypeAdapter[TrialTask] = TypeAdapter(TrialTask)


def merged_spans(asked: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the stretches that these cover together, oldest first."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(asked):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((max(0.0, begin), end))
    return merged


def around_alert(t_start: float, t_end: float | None) -> tuple[float, float]:
    """Return the stretch in which an alert of these times is tried again."""
    end = t_start if t_end is None else min(t_end, t_start + ALERT_S_MAX)
    return t_start - AROUND_S, end + AROUND_S


def without_secrets(config: DecisionConfig, camera: str, storage: Path | str) -> DecisionConfig:
    """Return the sections that decide about one camera, without addresses, passwords, token or other cameras.

    The network runs on the CPU, there as the choice remembered in the storage folder says.
    """
    plan = config.cameras[camera].model_copy(update={"url": "rtsp://recorded/", "detect_url": None, "onvif": None})
    return replace(
        config,
        detector=with_remembered_runtime(config.detector.model_copy(update={"device": "cpu"}), Path(storage)),
        cameras={camera: CameraConfig.model_validate(plan.model_dump(mode="json"))},
        health=HealthConfig(),
    )
