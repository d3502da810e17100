"""The dashboard's jobs on recorded video, run in a sandbox of low priority (`sandbox.Sandbox`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from appliance.canary import frame_survey
from appliance.explain.recording_tasks import SPAN_TASK, TRIAL_TASK
from appliance.replay.span_replay import replayed_explanation
from appliance.replay.trial_replay import settings_compared
from appliance.scenario import scenario_runner
from appliance.scenario.scenario_loader import load_scenario
from appliance.scenario.scenario_runner import DetectorCache

NICE = 15  # recording and live detection come first


def replay_span(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return the result of `span_replay.replayed_explanation`. values: a SpanTask."""
    _give_way()
    task = SPAN_TASK.validate_python(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    return (yield from replayed_explanation(task))


def try_settings(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return the result of `trial_replay.settings_compared`. values: a TrialTask."""
    _give_way()
    return (yield from settings_compared(TRIAL_TASK.validate_python(values)))


def survey_frames(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return a Survey. values: a SurveyTask (canary.frame_survey)."""
    _give_way()
    return (yield from frame_survey.survey_frames(values))


def run_scenario(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Run the scenario `file` with networks of `model_folder`; returns its status and what is wrong, in words.

    model: in place of the one that the scenario names.
    """
    _give_way()
    if values["model_folder"]:
        os.environ["VEDETTE_MODELS"] = values["model_folder"]
    plan = load_scenario(Path(values["file"]))
    yield 0.0
    result = scenario_runner.run_scenario(plan, DetectorCache(values.get("model")))
    return {"status": result.status, "text": result.text}


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
