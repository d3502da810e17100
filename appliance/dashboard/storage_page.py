"""The page of the storage: what the recording takes, and how long that lasts."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.dashboard import storage_api
from appliance.dashboard.deps import Rev
from appliance.dashboard.storage_api import StoragePart, StorageReport
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/storage")
def storage_page(rev: Rev, templates: TemplatesPart, cache: StoragePart) -> HTMLResponse:
    """Return the page of what the recording takes, how long that lasts, and what was deleted."""
    found = StorageReport.of(cache.read())
    return templates.page(
        "storage.html",
        here="/storage",
        rev=rev,
        storage=found,
        class_texts=storage_api.CLASS_TEXTS,
        reason_texts=storage_api.REASON_TEXTS,
        mode_texts=storage_api.MODE_TEXTS,
        days=storage_api.days,
        outlook=storage_api.sentence(found.forecast),
        lasts={each.camera: storage_api.lasts(each) for each in found.cameras},
    )
