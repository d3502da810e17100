"""The page of savings and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import HTMLResponse

from appliance.dashboard import savings_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.cascade_api import CascadePart
from appliance.dashboard.deps import Page
from appliance.dashboard.savings_api import COST_DAYS, HEADLINE_AFTER_S, SETTLED_AFTER_S, CostPart, SavingsPart
from appliance.dashboard.savings_history_api import By, History, draw
from appliance.dashboard.schemas import API
from appliance.dashboard.settings_api import Settings
from appliance.store.meter import Since

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SavingsReaders:
    """The readers of the page's four parts."""

    savings: SavingsPart
    costs: CostPart
    cascade: CascadePart
    history: History


@router.get("/savings")
def savings_page(
    *,
    page: Page,
    readers: Annotated[SavingsReaders, Depends()],
    cameras: Cameras,
    settings: Settings,
    since: Annotated[Since, Query()] = "today",
    by: By = "day",
    camera: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """Return the page of what came from the cameras against what was sent up.

    It has charts of the site or of one camera.
    """
    names = sorted(cameras.configured)
    editable = settings.is_editable and may("POST", f"{API}/settings")
    return page(
        "savings.html",
        here="/savings",
        since=since,
        savings=readers.savings.report(since),
        costs=readers.costs.report(),
        cascade=readers.cascade.report(),
        cost_days=COST_DAYS,
        charts=draw(readers.history, by, camera if camera in names else ""),
        camera_names=names,
        price_base=settings.service.status().digest if editable else "",
        kind_texts=savings_api.KIND_TEXTS,
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
    )
