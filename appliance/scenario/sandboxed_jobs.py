"""Functions that a sandbox of low priority (`sandbox.Sandbox`) runs on recorded video, by name.

Callers: the dashboard's `RecordingJobs` (JobKind has the names) and the trial of a network (`CandidateTrial`). Each
function takes a dict that came as JSON; its docstring names the dataclass or the keys that are in it. `now` are the
settings in force. `then` are the settings to be tried, but in `run_scenarios` those with which a scenario was kept.
`way` is a DetectorConfig: the runtime and the precision in which the appliance runs a network.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import VedetteError
from appliance.canary import frame_survey
from appliance.canary.candidate_trial import TRIAL_PLAN, CandidateTrial
from appliance.canary.proof_store import PROOF_REPORT
from appliance.config import CameraConfig, DecisionConfig
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.detect.model_files import named_model
from appliance.detect.runtime_choice import as_at_run_time, measure_candidates
from appliance.replay.recording_tasks import SCENARIOS_TASK, SPAN_TASK, TRIAL_TASK
from appliance.replay.trial_replay import replayed_explanation, settings_compared
from appliance.rules.engine import rule_place
from appliance.scenario import scenario_runner
from appliance.scenario.scenario_loader import ScenarioPlan, load_scenario
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader

NICE = 15  # recording and live detection come first


def replay_span(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return the result of `replayed_explanation`. values: a SpanTask."""
    _give_way()
    task = SPAN_TASK.validate_python(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    return (yield from replayed_explanation(task))


def try_settings(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return the result of `settings_compared`. values: a TrialTask."""
    _give_way()
    return (yield from settings_compared(TRIAL_TASK.validate_python(values)))


def survey_frames(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return a Survey. values: a SurveyTask (canary.frame_survey)."""
    _give_way()
    return (yield from frame_survey.survey_frames(values))


def compare_costs(values: dict[str, Any]) -> Generator[float, None, list[tuple[float, float]]]:
    """Yield the share that is done; return CPU times of two networks. values: a CostTask (canary.frame_survey)."""
    _give_way()
    return (yield from frame_survey.compare_costs(values))


def prove_network(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return a ProofReport. values: `plan`, a TrialPlan, and `made_t`, UTC seconds.

    For trials that the dashboard starts, which have no scenarios. Both networks run in this child: one that crashes or
    hangs ends it, and with it the trial, without a result. `vedette models prove` gives each network a child of its
    own, by `survey_frames` and `compare_costs`.
    """
    _give_way()
    plan = TRIAL_PLAN.validate_python(values["plan"])
    plan = replace(plan, then=as_at_run_time(plan.then, measure=measure_candidates))
    trial = CandidateTrial(plan, _survey_here)
    yield from trial.steps()
    return dict(PROOF_REPORT.dump_python(trial.report(values["made_t"]), mode="json"))


def _survey_here(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
    """Call a job in this process, where `CandidateTrial` expects a child (a `canary.trial.JobCall`).

    cpu_s: not used; the limits of this child hold for the whole trial.
    """
    jobs = {"survey_frames": frame_survey.survey_frames, "compare_costs": frame_survey.compare_costs}
    steps: Generator[float, None, Any] = jobs[function](dict(values))
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def run_scenario(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Run the scenario `file` with networks of `model_folder`; returns its status and what is wrong, in words.

    values: `file`, `model_folder`, `way` (a DetectorConfig, see `_loading`) and, if it replaces the network that the
    scenario names, `model`. Callers: `canary.trial` and the dashboard's `scenarios_api`.
    """
    _give_way()
    if values["model_folder"]:
        os.environ["VEDETTE_MODELS"] = values["model_folder"]
    plan = load_scenario(Path(values["file"]))
    yield 0.0
    way, tried = DetectorConfig.model_validate(values["way"]), None
    if model := values.get("model"):  # its labels and head are those of the site, and not of the scenario's network
        network = {"labels": way.labels, "head": way.head}
        tried = replace(plan.config, detector=plan.config.detector.with_model(model).model_copy(update=network))
    result = scenario_runner.run_scenario(plan, DetectorCache(load=_loading(way)), override=tried)
    return {"status": result.status, "text": result.text}


def run_scenarios(values: dict[str, Any]) -> Generator[float, None, list[dict[str, Any]]]:
    """Yield the share that is done; return for each scenario what both settings gave. values: a ScenariosTask."""
    _give_way()
    task = SCENARIOS_TASK.validate_python(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    models, found = DetectorCache(load=_loading(task.way)), []
    for number, file in enumerate(task.files):
        yield number / len(task.files)
        row = {"name": Path(file).parent.name, "then": "", "then_text": "", "now": "", "now_text": ""}
        found.append(row)
        try:
            plan = load_scenario(Path(file))
            row["then"], row["then_text"] = _outcome(scenario_runner.run_scenario(plan, models))
            yield (number + 0.5) / len(task.files)
            if (today := _today(plan, task.now)) is not None:
                row["now"], row["now_text"] = _outcome(scenario_runner.run_scenario(plan, models, override=today))
        except VedetteError as error:  # one that cannot be run keeps no other from it
            row["then"], row["then_text"] = row["then"] or "not run", row["then_text"] or str(error)
    return found


def _loading(way: DetectorConfig) -> DetectorLoader:
    """Return what loads a detector: a network as `way` runs it, where the settings name that one and leave it open."""

    def load(settings: DetectorConfig) -> ObjectDetector:
        is_open = settings.precision == "auto" and settings.backend in ("auto", way.backend)
        if is_open and named_model(settings.model) == named_model(way.model):
            settings = settings.model_copy(update={name: getattr(way, name) for name in ("backend", "precision")})
        return detector_loader.load(settings)

    return load


def _outcome(result: ScenarioResult) -> tuple[str, str]:
    return result.status, result.text


def _today(plan: ScenarioPlan, now: Mapping[str, DecisionConfig]) -> DecisionConfig | None:
    """Return the settings in force for the scenario's camera; None: there is none, or somebody gave it several.

    The scenario's expectations use the names of zones and lines of the time when it was kept. So a zone or line that
    was renamed since gets its old name back here: the rule of the same name and kind tells which one it is. Rules with
    hours that the scenario does not have are left out, since a replay arms every rule at all hours.
    """
    if len(plan.parts) != 1:
        return None
    (part,) = plan.parts
    site, then = now.get(part.camera), plan.config.cameras[part.camera]
    if site is None:
        return None
    camera, kept = site.cameras[part.camera], {rule.name: rule for rule in then.rules}
    names = {
        rule_place(rule): rule_place(kept[rule.name])
        for rule in camera.rules
        if rule.name in kept and rule.kind == kept[rule.name].kind
    }
    zones = {old[0]: new[0] for old, new in names.items() if old[0] and new[0] not in camera.zones}
    lines = {old[1]: new[1] for old, new in names.items() if old[1] and new[1] not in camera.lines}
    changed = camera.model_dump(mode="json")
    changed["zones"] = {zones.get(name, name): points for name, points in changed["zones"].items()}
    changed["lines"] = {lines.get(name, name): points for name, points in changed["lines"].items()}
    changed["ignore"] = [zones.get(name, name) for name in changed["ignore"]]
    changed["rules"] = [
        {
            **rule,
            **{
                key: known.get(rule[key], rule[key]) for key, known in (("zone", zones), ("line", lines)) if key in rule
            },
        }
        for rule in changed["rules"]
        if rule["name"] in kept or rule["schedule"] is None
    ]
    changed.pop("privacy"), changed.pop("quota")  # they decide nothing here, and name zones
    return replace(
        plan.config, alerts=site.alerts, detector=site.detector,
        cameras={part.camera: CameraConfig.model_validate({**changed, "url": then.url})},
    )  # fmt: skip


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
