"""The pages of trials: what changed settings would have reported of the recording, beside those in force."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.trials_api import TrialId, Trials, page_of
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras/{name}/trials")
def trials_page(rev: Rev, templates: TemplatesPart, cameras: Cameras, reader: Trials, name: str) -> HTMLResponse:
    """Return the page of what was tried on a camera's recording."""
    return templates.page("trials.html", here="/cameras", rev=rev, camera=cameras.full(name), trials=reader.all(name))


@router.get("/cameras/{name}/trials/{trial}")
def trial_page(
    rev: Rev, templates: TemplatesPart, cameras: Cameras, reader: Trials, name: str, trial: TrialId
) -> HTMLResponse:
    """One of them: how far it is, then what differs."""
    report = reader.report(name, trial)
    return templates.page(
        "trial.html", here="/cameras", rev=rev, camera=cameras.full(name), trial=report, all_of_them=page_of(name)
    )
