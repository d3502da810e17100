"""The task of a child process that replays a recording with the settings in force and with others."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config import DecisionConfig
from appliance.explain.span_task import TaskCodec
from appliance.types import Gap, SegmentRow


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

    site: see `span_task.without_secrets`. model_folder: where the network's file lies; "": it has none.
    """

    site: DecisionConfig
    model_folder: str = ""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """Stretches of one camera, oldest first, and both sets of settings. root: the storage folder."""

    root: str
    camera: str
    spans: tuple[TrialSpan, ...]
    now: TrialSetup
    then: TrialSetup


TRIAL_TASK = TaskCodec(TrialTask)
