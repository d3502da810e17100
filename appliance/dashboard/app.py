"""Puts the dashboard together: one FastAPI application that reads the store and the evidence, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from fastapi import Depends, FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from appliance.clock import Clock, local_weekday_minute
from appliance.config import SiteConfig
from appliance.dashboard import (
    account_api,
    alerts_api,
    arming_api,
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
    timeline_api,
    trials_api,
    trials_page,
    users_api,
    web_app,
    why_api,
    why_page,
)
from appliance.dashboard.access_rights import CameraOf, authorise, may
from appliance.dashboard.alert_page import AlertPageView
from appliance.dashboard.alerts_api import AlertCountCache, AlertReader
from appliance.dashboard.auth import Access
from appliance.dashboard.backup_api import SiteBackups
from appliance.dashboard.camera_finder_api import CameraFinder
from appliance.dashboard.camera_setup_api import CameraProber
from appliance.dashboard.cameras_api import CameraReader
from appliance.dashboard.cascade_api import CascadeReader
from appliance.dashboard.deps import NO_PROBES, CoreProbes, provide
from appliance.dashboard.event_stream import StreamHub
from appliance.dashboard.false_alarms_api import FalseAlarmReader
from appliance.dashboard.guard import AllowedHosts, AnswerBug, RequestGuard
from appliance.dashboard.headroom_api import HeadroomReader
from appliance.dashboard.health_api import HealthReader
from appliance.dashboard.lab_jobs import LabJobs
from appliance.dashboard.live_feed import LiveHub
from appliance.dashboard.metrics import ApplianceCollector
from appliance.dashboard.notify_api import NotifyContext
from appliance.dashboard.openapi import operation_id, serve_openapi
from appliance.dashboard.problems import RouteMethods
from appliance.dashboard.proxy_headers import FORWARDED, ProxyHeaders
from appliance.dashboard.ptz_api import PtzControl
from appliance.dashboard.recordings import FrameCache, RecordingCuts
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.savings_api import CostReader, SavingsReader
from appliance.dashboard.savings_history_api import HistoryReader
from appliance.dashboard.settings_api import RuleTrials, SettingsPart
from appliance.dashboard.snapshots import CutSnapshot, SnapshotCache, cut_snapshot
from appliance.dashboard.system_api import SystemReader
from appliance.dashboard.templating import Templates
from appliance.dashboard.timeline_api import TimelineReader
from appliance.dashboard.tls import DashboardCertificate
from appliance.dashboard.trial_store import TrialStore
from appliance.dashboard.trials_api import SettingsTrials
from appliance.dashboard.why_api import WhyReader
from appliance.keep.scenario_exporter import ScenarioExporter
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.rules.arming import Arming
from appliance.settings.settings_service import SettingsService
from appliance.store.alerts import AlertStore
from appliance.store.arming import ArmingStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NoticeStore
from appliance.store.quotas import StorageLimits
from appliance.store.review_writes import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.store.storage_report import StorageReportCache
from appliance.store.timeline import TimelineStore
from appliance.store.verdict_stats import JudgeWorkCache

STATIC = Path(__file__).parent / "static"
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
    alerts, cameras, health_events = AlertStore(db), CameraStore(db), HealthEventStore(db)
    segments, boxes, arming_store = SegmentStore(db), BoxStore(db), ArmingStore(db)
    hub = StreamHub(db.rev, event_stream.changes_of(alerts, cameras, health_events), clock)
    live = LiveHub(segments, boxes, root, clock)
    access = Access(config.dashboard.token, clock, db, setup_code, config.dashboard.second_factor)
    alert_counts, snapshots = (
        AlertCountCache(db, alerts),
        SnapshotCache(segments, boxes, root, clock, cut or partial(cut_snapshot, reader)),
    )
    frames = FrameCache(segments, root, reader)
    cuts = RecordingCuts(segments, root, cutter or reader, clock)
    ptz, finder = PtzControl(clock), CameraFinder(clock)
    renditions = Renditions(cuts, root, converter or reader, clock)
    jobs, trials = LabJobs(root.absolute(), clock), TrialStore(root)
    app = FastAPI(
        title="Vedette", summary="Alerts, cameras and savings of one site.", version="1",
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None, lifespan=_watching(hub, live, ptz, jobs),
        responses=problems.DOCUMENTED, dependencies=[Depends(authorise)], generate_unique_id_function=operation_id,
    )  # fmt: skip
    serve_openapi(app)

    ignored_headers = Counter(dict.fromkeys((*FORWARDED, *filter(None, [config.dashboard.user_header.lower()])), 0))
    methods = RouteMethods([route for router in ROUTERS for route in router.routes])
    prober, camera_of = CameraProber(clock), CameraOf(alerts, health_events)
    settings_part = SettingsPart(settings, certificate)
    backups = SiteBackups(root, settings_part, clock)

    def configure(config: SiteConfig, probes: CoreProbes) -> None:
        """Answer by these sections of the site file and with these parts of the core from the next request on."""
        templates = Templates(config.site.name, guarded=lambda: access.guarded, may=may, editable=settings is not None)
        limits = StorageLimits.of(config.storage, config.cameras)
        storage = StorageReportCache(db, root, limits)
        cuts.keep_free = limits.free_bytes_wanted
        ptz.cameras = finder.cameras = config.cameras
        finder.model = config.detector.model
        live.newest_boxes = probes.boxes
        undo_s = config.storage.undo_delete_hours * 3600
        alert_reader = AlertReader(alerts, ReviewStore(db), NoticeStore(db), root, clock, undo_s=undo_s)
        health_reader = HealthReader(health_events, cameras, probes, clock)
        headroom = HeadroomReader(config.cameras, meter, health_events, probes)
        readers = (health_reader, headroom, storage, cameras, meter)
        provide(
            app, db, templates, access, access.log, camera_of, hub, live, probes, snapshots, frames, cuts, renditions,
            storage,
            alert_counts, alert_reader, health_reader,
            CameraReader(cameras, segments, boxes, meter, config.cameras),
            FalseAlarmReader(db, config.cameras),
            headroom,
            SavingsReader(meter, cameras, config.cameras),
            CascadeReader(db, probes),
            CostReader(db, meter, config.escalation.prices, config.costs),
            HistoryReader(db, meter, config.escalation.prices, config.costs, JudgeWorkCache(db)),
            ScenarioExporter(root, config, clock, reader=reader),
            settings_part, backups,
            NotifyContext(config, probes, db, meter),
            probes.arming or Arming(config.arming, config.cameras, arming_store, clock, local_weekday_minute),
            prober, finder, ptz,
            RuleTrials(boxes, cameras, config, clock),
            SystemReader(config, root, clock, probes, readers),
            timelines := TimelineReader(TimelineStore(db), cameras, config.cameras, clock),
            jobs,
            WhyReader(db, config, clock, timelines, jobs, str(root.absolute())),
            SettingsTrials(db, config, jobs, trials, timelines, str(root.absolute())),
            AlertPageView(alert_reader, health_reader, boxes, probes, config.alerts),
            ApplianceCollector(
                db=db, meter=meter, cameras=cameras, health_events=health_events, alert_counts=alert_counts,
                storage=storage, probes=probes, snapshots=snapshots, frames=frames, cuts=cuts,
                renditions=renditions, hub=hub, live=live, jobs=jobs,
                ignored_headers=ignored_headers,
            ),
        )  # fmt: skip
        app.state.on_bug = problems.install(app, templates, methods)
        app.state.language = config.site.language

    configure(config, probes)
    app.state.configure = configure
    app.state.empty_caches = frames.empty
    app.state.streams = (hub, live)
    app.add_middleware(
        RequestGuard, hosts=AllowedHosts.of(config.dashboard), access=access, clock=clock,
        on_bug=partial(_answer_bug, app), certificate=certificate, methods=methods,
        language=lambda: str(app.state.language),
    )  # fmt: skip
    app.add_middleware(
        ProxyHeaders, proxies=config.dashboard.trusted_proxies, user_header=config.dashboard.user_header,
        ignored=ignored_headers,
    )  # fmt: skip
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


async def _answer_bug(app: FastAPI, request: Request, error: Exception) -> Response:
    """In the words and with the name of the settings that are in force."""
    answer: AnswerBug = app.state.on_bug
    return await answer(request, error)


def _watching(
    hub: StreamHub, live: LiveHub, ptz: PtzControl, jobs: LabJobs
) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run(), name="dashboard hub")
        try:
            yield
        finally:
            await live.finish()
            await asyncio.to_thread(jobs.close)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await ptz.close()

    return life
