"""Puts the dashboard together: one FastAPI application that reads the store and the evidence, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from appliance.base import analyze_protocol
from appliance.base.clock import Clock
from appliance.config import DashboardConfig, DashboardSections
from appliance.dashboard import (
    account_api,
    agreement_api,
    alert_page,
    alerts_api,
    alerts_page,
    analyze_api,
    arming_api,
    backup_api,
    cameras_api,
    cameras_page,
    cascade_api,
    costs_api,
    exports_api,
    false_alarms_api,
    headroom_api,
    health_api,
    live_api,
    live_page,
    metrics_api,
    models_api,
    notify_api,
    notify_page,
    proofs_api,
    ptz_api,
    push_api,
    recording_jobs_api,
    recordings_api,
    savings_api,
    savings_page,
    scenarios_api,
    settings_api,
    settings_page,
    setup_api,
    setup_page,
    setup_probe_api,
    storage_api,
    stream_api,
    system_api,
    system_page,
    timeline_api,
    timeline_page,
    trials_api,
    users_api,
    users_page,
    why_api,
    why_page,
)
from appliance.dashboard.access_rights import authorise
from appliance.dashboard.app_parts import DashboardParts
from appliance.dashboard.deps import NO_PROBES, READ_HERE, CoreProbes, MediaReaders, StoredSite
from appliance.dashboard.openapi import operation_id, serve_openapi
from appliance.settings.settings_service import SettingsService
from appliance.web import assets, login_api, problems, texts
from appliance.web.guard import AllowedHosts, AnswerBug, PathRules, RequestGuard
from appliance.web.problems import RouteMethods
from appliance.web.visitor import ProxyHeaders

if TYPE_CHECKING:
    from appliance.web.templating import Templates
    from appliance.web.tls import ServerCertificate  # cryptography: 9 MB, only where it speaks HTTPS

APIS = (
    account_api, agreement_api, alerts_api, analyze_api, arming_api, backup_api, cameras_api, cascade_api,
    costs_api, exports_api, false_alarms_api, headroom_api, health_api, live_api, metrics_api, models_api, notify_api,
    proofs_api, ptz_api, push_api, recording_jobs_api, recordings_api, savings_api, scenarios_api, login_api,
    settings_api, setup_api, setup_probe_api, storage_api, stream_api, system_api, timeline_api, trials_api,
    users_api, why_api,
)  # fmt: skip
PAGES = (
    alert_page, alerts_page, cameras_page, live_page, notify_page, savings_page, settings_page,
    setup_page, system_page, timeline_page, users_page, why_page,
)  # fmt: skip
ROUTES = (
    *(each.router for each in (*APIS, *PAGES)),
    exports_api.shared_router, notify_api.snooze_router, push_api.app_router,
    setup_api.first_user_router, storage_api.erasure_router,
)  # fmt: skip

# Of the application, too: a route that somebody adds to it is for admins only.
_OF_EACH_ROUTE: dict[str, Any] = {
    "responses": problems.DOCUMENTED, "dependencies": [Depends(authorise, scope="function")],
    "generate_unique_id_function": operation_id,
}  # fmt: skip
UPLOAD = "/api/v1/restore/upload"
PATHS = PathRules(
    open=PathRules().open | {"/manifest.webmanifest", "/sw.js"},
    open_below=("/static/", "/snooze/", "/shared/"),  # links: signed for one act, or for one clip until they end
    body_bytes_max={
        UPLOAD: 1024 * 1024,  # a piece of a backup
        "/api/v1/settings": 256 * 1024,  # a camera's section with all its zones
        analyze_protocol.PATH: analyze_protocol.BODY_BYTES_MAX,
    },
    uploads=frozenset({UPLOAD}),
)


def create_app(
    storage: StoredSite,
    config: DashboardSections,
    *,
    media: MediaReaders = READ_HERE,
    probes: CoreProbes = NO_PROBES,
    settings: SettingsService | None = None,
    setup_code: str = "",
    certificate: ServerCertificate | None = None,
) -> FastAPI:
    """Return the dashboard of one site.

    settings None: read only. setup_code: the code that the first user must know; '': none is needed. certificate: of a
    server that speaks HTTPS; None: it speaks HTTP.
    """
    parts = DashboardParts(
        storage, config, media=media, settings=settings, setup_code=setup_code, certificate=certificate
    )
    app = FastAPI(
        title="Vedette", summary="Alerts, cameras and savings of one site.", version="1",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=_watching(parts),
        routes=list(_built_routes()), **_OF_EACH_ROUTE,
    )  # fmt: skip
    serve_openapi(app)
    app.mount("/static", assets.AssetFiles(), name="static")
    methods = RouteMethods([route for route in app.routes if isinstance(route, APIRoute)])

    def configure(config: DashboardSections, probes: CoreProbes) -> None:
        """Answer by these sections of the site file and with these parts of the core from the next request on."""
        app.state.templates = parts.configure(app, config, probes)
        app.state.language = config.decisions.site.language

    configure(config, probes)
    app.state.configure = configure
    on_bug = problems.install(app, lambda: cast("Templates", app.state.templates), methods)
    app.state.empty_caches = parts.frames.empty
    app.state.warm_up = lambda: _warm_up(parts, str(app.state.language))
    app.state.streams = (parts.hub, parts.live)
    _guard(app, config.dashboard, parts, storage.clock, certificate, methods, on_bug)
    return app


@cache
def _built_routes() -> tuple[BaseRoute, ...]:
    """Return the routes of every dashboard in this process: building them takes half a second of CPU.

    They hold nothing of one site; handlers find its parts in the application that the request came to.
    """
    router = APIRouter(**_OF_EACH_ROUTE)
    for routes in ROUTES:
        routes.add_to(router)
    return tuple(router.routes)


def _guard(
    app: FastAPI,
    served: DashboardConfig,
    parts: DashboardParts,
    clock: Clock,
    certificate: ServerCertificate | None,
    methods: RouteMethods,
    on_bug: AnswerBug,
) -> None:
    """Add what each request passes before its handler, the last one first."""
    app.add_middleware(
        RequestGuard, hosts=AllowedHosts.of(served), access=parts.access, clock=clock,
        on_bug=on_bug, certificate=certificate,
        language=lambda: str(app.state.language), paths=replace(PATHS, methods=methods),
    )  # fmt: skip
    app.add_middleware(
        ProxyHeaders, proxies=served.trusted_proxies, user_header=served.user_header, ignored=parts.ignored_headers,
    )  # fmt: skip


def _warm_up(parts: DashboardParts, language: str) -> None:
    parts.warm_up()
    # The site's language; any other is read with the first page in it.
    texts.catalogues()[texts.choose_language("", "", language)].text("")
    assets.version()


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
