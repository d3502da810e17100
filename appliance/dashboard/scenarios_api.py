"""`/api/v1/scenarios`: reviewed alerts that are kept as scenarios: listed, run, and deleted by a person.

`/api/v1/alerts/{id}/keep` keeps one and runs it once; the page of the alert has its panel.
"""

from __future__ import annotations

import logging
from typing import Annotated
from urllib.parse import quote

from fastapi import Body, Depends
from pydantic import Field
from starlette.responses import FileResponse

from appliance.base.errors import EvidenceError, ModelError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError
from appliance.dashboard.alert_reader import AlertsPart
from appliance.dashboard.openapi import media
from appliance.dashboard.recording_jobs import JobRunning, RecordingJob, RecordingJobs, model_places
from appliance.dashboard.recording_jobs_api import Jobs
from appliance.dashboard.schemas import API, ApiModel, Flag, NothingMore, RequestModel
from appliance.detect.runtime_choice import with_remembered_runtime
from appliance.replay.recording_tasks import SCENARIOS_TASK, ScenariosTask, without_secrets
from appliance.scenario.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.scenario.scenario_file import ReviewedAs
from appliance.scenario.scenario_store import NOTE_LENGTH_MAX, StoredScenario
from appliance.store.alerts import AlertDetail
from appliance.web.problems import Problem, refused_as, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.texts import N_

logger = logging.getLogger(__name__)

router = RouteList(prefix=API, tags=["scenarios"])
# The errors of a ScenarioExporter, as statuses.
REFUSALS: dict[type[Exception], int] = {
    PreconditionError: 409,
    UsageError: 422,
    DiskWriteError: 507,
    EvidenceError: 410,
}

OUTCOME_TEXTS = {
    "passed": N_("passes"), "failed": N_("fails"), "known failing": N_("fails, as expected"),
    "skipped": N_("could not be run"), "not run": N_("could not be run"), "": "–",
}  # fmt: skip


class ScenarioItem(ApiModel):
    """A kept scenario and where it lies on the appliance. Times are UTC seconds. `complete`: nothing else may come.

    proof: whether it passed when it was kept: "" while it runs, "not run" where it could not. proof_text: what did not.

    `alert` and what follows is null where the scenario was put there by hand; such a one is not deleted from here.
    """

    name: str
    folder: str
    bytes: int
    clip: str | None
    alert: str | None = None
    alert_page: str | None = None
    camera: str | None = None
    truth: ReviewedAs | None = None
    complete: bool | None = None
    note: str | None = None
    kept_t: float | None = None
    t_start: float | None = None
    t_end: float | None = None
    expect: int | None = None
    never: int | None = None
    lacks: str | None = None
    proof: str | None = None
    proof_text: str | None = None

    @classmethod
    def of(cls, stored: StoredScenario) -> ScenarioItem:
        kept = stored.card
        place = {"name": stored.name, "folder": str(stored.folder), "bytes": stored.bytes}
        if kept is None:
            return cls.model_validate({**place, "clip": None})
        return cls.model_validate(
            {
                **kept.model_dump(exclude={"name"}),
                **place,
                "clip": f"{API}/scenarios/{quote(stored.name, safe='')}/clip.mp4",
                "alert_page": f"/alerts/{quote(kept.alert, safe='')}",
            }
        )


class ScenarioList(ApiModel):
    """All of one folder, the newest first."""

    folder: str
    bytes: int
    scenarios: list[ScenarioItem]


class ComparedItem(ApiModel):
    """Outcome of a scenario, with the settings that it was kept with (`then`) and with those in force (`now`).

    Each is passed, failed or another status of a scenario, not run, or "" where it was not; the texts say what is
    wrong.
    """

    name: str
    then: str
    then_text: str
    now: str
    now_text: str


class ScenarioRun(ApiModel):
    """The last run of all kept scenarios. state: "" where there was none since the start; share: what is done, 0..1."""

    state: str = ""
    share: float = 0.0
    seconds: float = 0.0
    began_t: float = 0.0
    error: str = ""
    results: list[ComparedItem] = []

    @classmethod
    def of(cls, jobs: RecordingJobs) -> ScenarioRun:
        job = jobs.newest("run_scenarios")
        if job is None:
            return cls()
        results = job.result if job.state == "done" else None
        return cls.of_row(job, results=[ComparedItem.model_validate(each) for each in results or ()])


Exporter = Annotated[ScenarioExporter, Depends(provided(ScenarioExporter))]


def listed(exporter: ScenarioExporter) -> ScenarioList:
    """Return what is kept on this appliance."""
    exporter.store.sweep()
    items = [ScenarioItem.of(each) for each in exporter.store.all()]
    return ScenarioList(folder=str(exporter.store.folder), bytes=sum(each.bytes for each in items), scenarios=items)


@router.get("/scenarios")
def list_scenarios(exporter: Exporter) -> ScenarioList:
    """Return the scenarios that were kept on this appliance, the newest first."""
    return listed(exporter)


@router.get("/scenarios/run")
def scenario_run(jobs: Jobs) -> ScenarioRun:
    """Return the last run of the kept scenarios, as far as it is."""
    return ScenarioRun.of(jobs)


@router.post("/scenarios/run", status_code=202)
def run_scenarios(exporter: Exporter, jobs: Jobs, wanted: NothingMore) -> ScenarioRun:
    """Run all kept scenarios with the settings that they were kept with and with those in force: a job.

    409: another job is at work, or nothing is kept.
    """
    kept = [each for each in exporter.store.all() if each.card is not None]
    if not kept:
        raise Problem(409, "Nothing is kept yet: keep a reviewed alert as a scenario first.")
    now = {name: without_secrets(exporter.config, name, exporter.root) for name in exporter.config.cameras}
    files = tuple(str(each.folder.absolute() / f"{each.name}.scenario.yaml") for each in kept)
    with refused_as({JobRunning: 409, ModelError: 422}):
        models, readable = model_places(exporter.config.detector)
        way = with_remembered_runtime(exporter.config.detector, exporter.root)
        task = SCENARIOS_TASK.dump_python(ScenariosTask(files, now, way, models), mode="json")
        folders = (*(each.folder.absolute() for each in kept), *readable)
        jobs.start("run_scenarios", "", task, folders, {"page": "/scenarios"})
    return ScenarioRun.of(jobs)


@router.post("/scenarios/run/cancel")
def cancel_run(jobs: Jobs, wanted: NothingMore) -> ScenarioRun:
    """End the run, if one is at work."""
    job = jobs.newest("run_scenarios")
    if job is not None:
        jobs.cancel(job)
    return ScenarioRun.of(jobs)


@router.delete("/scenarios/{name}")
def delete_scenario(exporter: Exporter, name: str) -> ScenarioList:
    """Delete one with its clip; answers with those that are left."""
    with refused_as(REFUSALS):
        found = exporter.store.delete(name)
    if not found:
        raise Problem(404, "There is no such scenario; it may have been deleted.")
    return listed(exporter)


@router.get("/scenarios/{name}/clip.mp4", response_class=FileResponse, responses=media("video/mp4", ranges=True))
def scenario_clip(exporter: Exporter, name: str) -> FileResponse:
    """Return the clip of a kept scenario."""
    kept = next((each for each in exporter.store.all() if each.name == name and each.card), None)
    path = None if kept is None else kept.folder / f"{kept.name}.mp4"
    if path is None or path.is_symlink() or not path.is_file():
        raise Problem(404, "There is no such clip; it may have been deleted.")
    return FileResponse(path, media_type="video/mp4", headers={"Cache-Control": "private, no-cache"})


class KeepRequest(RequestModel):
    """How an alert is to be kept; `{}` will do. `as` only where it is not reviewed."""

    name: Annotated[str, Field(max_length=64)] = ""
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] = ""
    truth: Annotated[ReviewedAs | None, Field(alias="as")] = None
    complete: Flag = False


def panel(exporter: ScenarioExporter, detail: AlertDetail) -> dict[str, object]:
    """Return the variables of the panel "Keep as a scenario". state: shows a script when to load the panel anew."""
    stored = exporter.find(detail.alert.id)
    if stored is not None:
        state = f"kept {stored.name} {stored.card.proof if stored.card else ''}"
    else:
        state = "lasts" if detail.alert.t_end is None else detail.row.reviewed.review or "open"
    return {
        "state": state,
        "kept": None if stored is None else ScenarioItem.of(stored),
        "events": len(detail.events),
        "note_length_max": NOTE_LENGTH_MAX,
    }


@router.post("/alerts/{alert_id}/keep", status_code=201, summary="Keep As Scenario")
def keep_alert(
    exporter: Exporter, alerts: AlertsPart, jobs: Jobs, alert_id: str, request: Annotated[KeepRequest, Body()]
) -> ScenarioItem:
    """Keep a reviewed alert as a scenario, and run that in the background.

    409 states what has to be done first, 410 that its footage is gone.
    """
    alerts.detail(alert_id)
    options = KeepOptions(name=request.name, note=request.note, truth=request.truth, complete=request.complete)
    with refused_as(REFUSALS):
        stored = exporter.keep(alert_id, options)
        _prove(exporter, jobs, stored)
    return ScenarioItem.of(stored)


def _prove(exporter: ScenarioExporter, jobs: RecordingJobs, stored: StoredScenario) -> None:
    """Run it as a job, as trials are. Raises DiskWriteError."""
    assert stored.card is not None, "it was just written"

    def ended(job: RecordingJob) -> None:
        found = job.result if isinstance(job.result, dict) else {"status": "not run", "text": job.error}
        try:
            exporter.store.note_proof(stored, str(found.get("status")), str(found.get("text")))
        except DiskWriteError as error:
            logger.warning("what running the scenario %s gave is lost: %s", stored.name, error)

    folder, about = stored.folder.absolute(), {"page": f"/alerts/{quote(stored.card.alert, safe='')}"}
    try:
        models, readable = model_places(exporter.config.detector)
        way = with_remembered_runtime(exporter.config.detector, exporter.root).model_dump(mode="json")
        task = {"file": str(folder / f"{stored.name}.scenario.yaml"), "model_folder": models, "way": way}
        jobs.start("run_scenario", stored.card.camera, task, (folder, *readable), about, ended=ended)
    except (JobRunning, ModelError) as error:
        exporter.store.note_proof(stored, "not run", sentence(error))
