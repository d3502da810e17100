"""What the dashboard has done to recorded video in a sandbox of low priority (`sandbox.Sandbox`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

from appliance.explain.span_task import SPAN_TASK
from appliance.explain.trial_task import TRIAL_TASK
from appliance.lab.jobs.span_replay import replayed_explanation
from appliance.lab.jobs.trial_replay import settings_compared

NICE = 15  # recording and live detection come first


def replay_span(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yields the share that is done; returns what `span_replay.replayed_explanation` finds. values: a SpanTask."""
    _give_way()
    task = SPAN_TASK.decode(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    return (yield from replayed_explanation(task))


def try_settings(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yields the share that is done; returns what `trial_replay.settings_compared` finds. values: a TrialTask."""
    _give_way()
    return (yield from settings_compared(TRIAL_TASK.decode(values)))


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
