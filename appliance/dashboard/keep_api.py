"""Serves `/api/v1/alerts/{id}/keep` and its panel: keeps a reviewed alert as a scenario, and runs it once."""

from __future__ import annotations

import logging
from typing import Annotated
from urllib.parse import quote

from fastapi import Body
from pydantic import Field

from appliance.base.errors import ModelError
from appliance.dashboard.alert_reader import AlertsPart
from appliance.dashboard.recording_jobs import JobRunning, RecordingJob, RecordingJobs, model_places
from appliance.dashboard.scenarios_api import REFUSALS, Exporter, Jobs, ScenarioItem
from appliance.dashboard.schemas import API, RequestModel
from appliance.detect.runtime_choice import with_remembered_runtime
from appliance.keep.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.keep.scenario_file import ReviewedAs
from appliance.keep.scenario_store import NOTE_LENGTH_MAX, StoredScenario
from appliance.media.atomic_file import DiskWriteError
from appliance.store.alerts import AlertDetail
from appliance.web.problems import refused_as
from appliance.web.routes import RouteList

logger = logging.getLogger(__name__)
router = RouteList(prefix=API, tags=["scenarios"])


class KeepRequest(RequestModel):
    """How an alert is to be kept; `{}` will do. `as` only where it is not reviewed."""

    name: Annotated[str, Field(max_length=64)] = ""
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] = ""
    truth: Annotated[ReviewedAs | None, Field(alias="as")] = None
    complete: bool = False


def panel(exporter: ScenarioExporter, detail: AlertDetail) -> dict[str, object]:
    """Return the variables of the panel "Keep as a scenario". state: shows a script when to load the panel anew."""
    stored = exporter.find(detail.alert.id)
    if stored is not None:
        state = f"kept {stored.name} {stored.card.proof if stored.card else ''}"
    else:
        state = "lasts" if detail.alert.t_end is None else detail.alert.review or "open"
    return {
        "state": state,
        "kept": None if stored is None else ScenarioItem.of(stored),
        "events": len(detail.events),
        "note_length_max": NOTE_LENGTH_MAX,
    }


@router.post("/alerts/{alert_id}/keep", status_code=201)
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
        exporter.store.note_proof(stored, "not run", str(error))
