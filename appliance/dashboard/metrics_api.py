"""`/metrics`: counters and gauges in the format of Prometheus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import PlainTextResponse

from appliance.dashboard.metrics import ApplianceCollector
from appliance.web.dependencies import provided

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(collector: Annotated[ApplianceCollector, Depends(provided(ApplianceCollector))]) -> PlainTextResponse:
    """Counters count since this core started (`_total`), gauges tell the moment."""
    return PlainTextResponse(collector.text(), media_type="text/plain; version=0.0.4")
