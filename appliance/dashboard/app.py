"""Puts the dashboard together: one FastAPI application that reads the store and the evidence, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.dashboard import (
    alerts_api,
    cameras_api,
    costs_api,
    event_stream,
    evidence_files_api,
    health_api,
    login,
    metrics,
    pages,
    problems,
    savings_api,
    scenarios_api,
    storage_api,
)
from appliance.dashboard import healthz as health_room
from appliance.dashboard.auth import LoginThrottle, SessionCookies
from appliance.dashboard.deps import NO_PROBES, AlertCountCache, CoreProbes, DashboardDeps
from appliance.dashboard.event_stream import StreamHub
from appliance.dashboard.guard import AllowedHosts, RequestGuard
from appliance.dashboard.snapshots import CutSnapshot, SnapshotCache, cut_snapshot
from appliance.dashboard.templating import Templates
from appliance.keep.scenario_exporter import ScenarioExporter
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NoticeStore
from appliance.store.segments import SegmentStore
from appliance.store.storage_report import StorageReportCache

STATIC = Path(__file__).parent / "static"


def create_app(
    *,
    db: Database,
    meter: Meter,
    root: Path,
    config: SiteConfig,
    clock: Clock,
    cut: CutSnapshot = cut_snapshot,
    probes: CoreProbes = NO_PROBES,
) -> FastAPI:
    """The dashboard of one site. `root` is the storage folder; `meter` is the core's own."""
    token = config.dashboard.token
    desk = _desk(db, meter, root, config, clock, probes, cut)
    hub = StreamHub(db.rev, event_stream.changes_of(desk.alerts, desk.cameras, desk.health_events), clock)
    sessions = SessionCookies(token.get_secret_value(), clock) if token is not None else None
    throttle = LoginThrottle(clock)
    app = FastAPI(
        title="Vedette", summary="Alerts, cameras and savings of one site.", version="1",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=_watching(hub),
    )  # fmt: skip
    app.state.desk, app.state.hub, app.state.sessions, app.state.throttle = desk, hub, sessions, throttle
    problems.install(app, desk.templates)
    app.add_middleware(RequestGuard, hosts=AllowedHosts.of(config.dashboard), sessions=sessions, throttle=throttle)
    resources = (
        alerts_api,
        evidence_files_api,
        cameras_api,
        health_api,
        savings_api,
        costs_api,
        scenarios_api,
        storage_api,
    )
    for room in (*resources, event_stream, health_room, metrics, login, pages):
        app.include_router(room.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _desk(
    db: Database,
    meter: Meter,
    root: Path,
    config: SiteConfig,
    clock: Clock,
    probes: CoreProbes,
    cut: CutSnapshot,
) -> DashboardDeps:
    alerts_room, segments, boxes = AlertStore(db), SegmentStore(db), BoxStore(db)
    return DashboardDeps(
        db=db,
        root=root,
        config=config,
        clock=clock,
        alerts=alerts_room,
        cameras=CameraStore(db),
        boxes=boxes,
        segments=segments,
        meter=meter,
        health_events=HealthEventStore(db),
        counts=AlertCountCache(db, alerts_room),
        snapshots=SnapshotCache(segments, boxes, root, clock, cut),
        templates=Templates(config.site.name, guarded=config.dashboard.token is not None),
        exporter=ScenarioExporter(root, config, clock),
        storage=StorageReportCache(db, root, config),
        probes=probes,
        notices=NoticeStore(db),
    )


def _watching(hub: StreamHub) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run(), name="dashboard hub")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return life
