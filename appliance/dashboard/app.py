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
    alerts,
    cameras,
    costs,
    health_events,
    live,
    login,
    media,
    metrics,
    pages,
    problems,
    savings,
    scenarios,
    storage,
)
from appliance.dashboard import health as health_room
from appliance.dashboard.auth import Sessions, Throttle
from appliance.dashboard.desk import Counts, Desk
from appliance.dashboard.guard import Guard, Hosts
from appliance.dashboard.pictures import Cut, Pictures, cut_from_recording
from appliance.dashboard.ports import HealthProbe, LinkProbe, RelearnOrder, TargetsProbe
from appliance.dashboard.stream import Hub
from appliance.dashboard.templating import Templates
from appliance.keep.keeper import Keeper
from appliance.store.alerts import Alerts
from appliance.store.boxes import Boxes
from appliance.store.cameras import Cameras
from appliance.store.database import Database
from appliance.store.health import HealthEvents
from appliance.store.meter import Meter
from appliance.store.notices import Notices
from appliance.store.segments import Segments
from appliance.store.storage import StorageBook

STATIC = Path(__file__).parent / "static"


def create_app(
    *,
    db: Database,
    meter: Meter,
    root: Path,
    config: SiteConfig,
    clock: Clock,
    link: LinkProbe | None = None,
    health: HealthProbe | None = None,
    cut: Cut = cut_from_recording,
    relearn: RelearnOrder | None = None,
    targets: TargetsProbe = lambda: (),
) -> FastAPI:
    """The dashboard of one site. `root` is the storage folder; `link` None: edge only; `meter` is the core's own."""
    token = config.dashboard.token
    desk = _desk(db, meter, root, config, clock, (link, health, relearn, targets), cut)
    hub = Hub(db.rev, live.changes_of(desk.alerts, desk.cameras, desk.health_events), clock)
    sessions = Sessions(token.get_secret_value(), clock) if token is not None else None
    throttle = Throttle(clock)
    app = FastAPI(
        title="Vedette", summary="Alerts, cameras and savings of one site.", version="1",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=_watching(hub),
    )  # fmt: skip
    app.state.desk, app.state.hub, app.state.sessions, app.state.throttle = desk, hub, sessions, throttle
    problems.install(app, desk.templates)
    app.add_middleware(Guard, hosts=Hosts.of(config.dashboard), sessions=sessions, throttle=throttle)
    resources = (alerts, media, cameras, health_events, savings, costs, scenarios, storage)
    for room in (*resources, live, health_room, metrics, login, pages):
        app.include_router(room.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def _desk(
    db: Database,
    meter: Meter,
    root: Path,
    config: SiteConfig,
    clock: Clock,
    probes: tuple[LinkProbe | None, HealthProbe | None, RelearnOrder | None, TargetsProbe],
    cut: Cut,
) -> Desk:
    alerts_room, segments, boxes = Alerts(db), Segments(db), Boxes(db)
    return Desk(
        db=db,
        root=root,
        config=config,
        clock=clock,
        alerts=alerts_room,
        cameras=Cameras(db),
        boxes=boxes,
        segments=segments,
        meter=meter,
        health_events=HealthEvents(db),
        counts=Counts(db, alerts_room),
        pictures=Pictures(segments, boxes, root, clock, cut),
        templates=Templates(config.site.name, guarded=config.dashboard.token is not None),
        keeper=Keeper(root, config, clock),
        storage=StorageBook(db, root, config),
        link=probes[0],
        health=probes[1],
        relearn=probes[2],
        targets=probes[3],
        notices=Notices(db),
    )


def _watching(hub: Hub) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
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
