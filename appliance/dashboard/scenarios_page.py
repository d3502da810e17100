"""The page of kept scenarios."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.dashboard import scenarios_api
from appliance.dashboard.deps import Rev
from appliance.dashboard.scenarios_api import Exporter
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/scenarios")
def scenarios_page(rev: Rev, templates: TemplatesPart, exporter: Exporter) -> HTMLResponse:
    """Return the page of alerts that were kept to prove changes on."""
    return templates.page("scenarios.html", here="/scenarios", rev=rev, kept=scenarios_api.listed(exporter))
