"""Puts the dashboard together: one FastAPI application that reads the store and the evidence, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, Request
from starlette.responses import Response

from appliance.base.clock import Clock
from appliance.config import DashboardConfig, SiteConfig
from appliance.dashboard import (
    account_api,
    alerts_api,
    arming_api,
    assets,
    auth,
    backup_api,
    camera_edit_page,
    camera_finder_api,
    camera_setup_api,
    cameras_api,
    cascade_api,
    event_stream,
    false_alarms_api,
    headroom_api,
    health_api,
    language_api,
    live_api,
    metrics,
    notify_api,
    pages,
    problems,
    ptz_api,
    recordings_api,
    savings_api,
    savings_history_api,
    scenarios_api,
    settings_api,
    setup_page,
    storage_api,
    system_api,
    texts,
    timeline_api,
    trials_api,
    trials_page,
    users_api,
    web_app,
    why_api,
    why_page,
)
from appliance.dashboard.access_rights import authorise
from appliance.dashboard.app_parts import DashboardParts
from appliance.dashboard.deps import NO_PROBES, CoreProbes
from appliance.dashboard.guard import AllowedHosts, AnswerBug, RequestGuard
from appliance.dashboard.openapi import operation_id, serve_openapi
from appliance.dashboard.problems import RouteMethods
from appliance.dashboard.proxy_headers import ProxyHeaders
from appliance.dashboard.snapshots import CutSnapshot
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.settings.settings_service import SettingsService
from appliance.store.database import Database
from appliance.store.meter import Meter

if TYPE_CHECKING:
    from appliance.dashboard.tls import DashboardCertificate  # cryptography: 9 MB, only where it speaks HTTPS

ROUTERS = (
    account_api.router, account_api.page_router,
    alerts_api.router, arming_api.router, camera_finder_api.router, camera_finder_api.page_router,
    camera_setup_api.router, camera_setup_api.page_router, cameras_api.router, cascade_api.router,
    false_alarms_api.router, headroom_api.router, live_api.router,
    health_api.router, ptz_api.router, recordings_api.router, recordings_api.alert_router,
    savings_api.router, savings_history_api.router,
    scenarios_api.router, settings_api.router,
    storage_api.router, timeline_api.router, event_stream.router, metrics.router, auth.router, pages.router,
    backup_api.router,
    system_api.router, system_api.page_router, users_api.router, users_api.page_router, setup_page.router,
    language_api.router, notify_api.router, notify_api.page_router, web_app.router,
    why_api.router, why_page.router, camera_edit_page.router, trials_api.router, trials_page.router,
)  # fmt: skip


def create_app(
    *,
    db: Database,
    meter: Meter,
    root: Path,
    config: SiteConfig,
    clock: Clock,
    cut: CutSnapshot | None = None,
    reader: RecordingReader = READ_DIRECTLY,
    cutter: RecordingReader | None = None,
    converter: RecordingReader | None = None,
    probes: CoreProbes = NO_PROBES,
    settings: SettingsService | None = None,
    setup_code: str = "",
    certificate: DashboardCertificate | None = None,
) -> FastAPI:
    """The dashboard of one site. `root` is the storage folder; `meter` is the core's own; settings None: read only.

    certificate: of a server that speaks HTTPS; None: it speaks HTTP. reader: of the recording; cutter: another one for
    stretches of it, which may take long; converter: a third one that encodes them; None: the same.
    """
    parts = DashboardParts(
        db=db, meter=meter, root=root, config=config, clock=clock, cut=cut, reader=reader, cutter=cutter,
        converter=converter, settings=settings, setup_code=setup_code, certificate=certificate,
    )  # fmt: skip
    app = FastAPI(
        title="Vedette", summary="Alerts, cameras and savings of one site.", version="1",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=_watching(parts),
        responses=problems.DOCUMENTED, dependencies=[Depends(authorise, scope="function")],
        generate_unique_id_function=operation_id,
    )  # fmt: skip
    serve_openapi(app)
    methods = RouteMethods([route for router in ROUTERS for route in router.routes])

    def configure(config: SiteConfig, probes: CoreProbes) -> None:
        """Answer by these sections of the site file and with these parts of the core from the next request on."""
        app.state.on_bug = problems.install(app, parts.configure(app, config, probes), methods)
        app.state.language = config.site.language

    configure(config, probes)
    app.state.configure = configure
    app.state.empty_caches = parts.frames.empty
    app.state.warm_up = partial(_warm_up, app, parts)
    app.state.streams = (parts.hub, parts.live)
    _guard(app, config.dashboard, parts, clock, certificate, methods)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", assets.AssetFiles(directory=assets.STATIC), name="static")
    return app


def _guard(
    app: FastAPI,
    served: DashboardConfig,
    parts: DashboardParts,
    clock: Clock,
    certificate: DashboardCertificate | None,
    methods: RouteMethods,
) -> None:
    """What each request passes before its handler, the last one first."""
    app.add_middleware(
        RequestGuard, hosts=AllowedHosts.of(served), access=parts.access, clock=clock,
        on_bug=partial(_answer_bug, app), certificate=certificate, methods=methods,
        language=lambda: str(app.state.language),
    )  # fmt: skip
    app.add_middleware(
        ProxyHeaders, proxies=served.trusted_proxies, user_header=served.user_header, ignored=parts.ignored_headers,
    )  # fmt: skip


def _warm_up(app: FastAPI, parts: DashboardParts) -> None:
    parts.warm_up()
    texts.catalogues()
    assets.version()
    for route in app.routes:  # FastAPI prepares those of a router when first one of them could be meant
        route.matches({"type": "http", "method": "GET", "path": "/", "root_path": ""})


async def _answer_bug(app: FastAPI, request: Request, error: Exception) -> Response:
    """In the words and with the name of the settings that are in force."""
    answer: AnswerBug = app.state.on_bug
    return await answer(request, error)


def _watching(parts: DashboardParts) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(parts.hub.run(), name="dashboard hub")
        try:
            yield
        finally:
            await parts.live.finish()
            await asyncio.to_thread(parts.jobs.close)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await parts.ptz.close()

    return life
