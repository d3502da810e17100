"""Holds the parts that the dashboard's handlers depend on: lasting ones, and those made anew with the settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI

from appliance.base.clock import local_weekday_minute
from appliance.canary.candidates import CandidateStore
from appliance.canary.proof_store import ProofStore
from appliance.config import DashboardSections
from appliance.dashboard.access_rights import CameraOf, ViewLog, may
from appliance.dashboard.agreement_api import AgreementReader
from appliance.dashboard.alert_page import AlertPageView
from appliance.dashboard.alert_reader import AlertCountCache, AlertReader
from appliance.dashboard.alerts_api import AlertReviewer
from appliance.dashboard.analyze_api import AnalyzeCallers, AnalyzeSettings, ImageAnalyzer
from appliance.dashboard.backup_api import SiteBackups
from appliance.dashboard.cameras_api import CameraReader
from appliance.dashboard.cascade_api import CascadeReader
from appliance.dashboard.costs_api import COST_DAYS, CostReader, first_day_t
from appliance.dashboard.deps import CoreProbes, MediaReaders, StorageRoot, StoredSite
from appliance.dashboard.exports import ClipExporter
from appliance.dashboard.false_alarms_api import FalseAlarmReader
from appliance.dashboard.headroom_api import HeadroomReader
from appliance.dashboard.health_api import HealthReader
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.metrics_api import ApplianceCollector
from appliance.dashboard.models_api import ModelPuller, ModelReader
from appliance.dashboard.notify_api import NotifyContext
from appliance.dashboard.proofs_api import NetworkProver
from appliance.dashboard.ptz_api import PtzControl
from appliance.dashboard.recording_jobs import RecordingJobs
from appliance.dashboard.recordings import FrameCache, RecordingCuts
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.savings_api import SavingsReader
from appliance.dashboard.settings_api import RuleTrials, SettingsPart
from appliance.dashboard.setup_probe_api import CameraFinder, CameraProber
from appliance.dashboard.snapshots import SnapshotCache, cut_snapshot
from appliance.dashboard.stream_api import StreamHub, changes_of
from appliance.dashboard.system_api import SystemReader
from appliance.dashboard.timeline_api import TimelineReader
from appliance.dashboard.trial_store import TrialStore
from appliance.dashboard.trials_api import SettingsTrials
from appliance.dashboard.why_api import WhyReader
from appliance.evidence.privacy import PrivacyRules
from appliance.evidence.uploaded_media import UploadReader
from appliance.health.drift import DriftMonitor
from appliance.rules.arming import Arming
from appliance.scenario.scenario_exporter import ScenarioExporter
from appliance.settings.settings_service import SettingsService
from appliance.store.alerts import AlertStore
from appliance.store.arming import ArmingStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.health_events import HealthEventStore
from appliance.store.notices import NoticeStore
from appliance.store.quotas import StorageLimits
from appliance.store.reviews import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.store.storage_report import StorageReportCache
from appliance.store.timeline import TimelineStore
from appliance.store.users import AccessLog, SecondFactorStore, SessionStore, UserStore
from appliance.store.verdict_stats import JudgeWorkCache
from appliance.types.accounts import AccountTables
from appliance.web.auth import Access
from appliance.web.routes import provide
from appliance.web.templating import Navigation, Templates
from appliance.web.texts import N_
from appliance.web.visitor import FORWARDED

if TYPE_CHECKING:
    from appliance.web.tls import ServerCertificate  # cryptography: 9 MB, only where it speaks HTTPS

NAVIGATION = Navigation(
    (("/", N_("Alerts")), ("/live", N_("Live")), ("/timeline", N_("Timeline")), ("/cameras", N_("Cameras"))),
    (
        (N_("Appliance"), (("/settings", N_("Settings")), ("/notify", N_("Notifications")), ("/users", N_("Users")),
                           ("/storage", N_("Storage")), ("/system", N_("System")))),
        (N_("Reports"), (("/savings", N_("Savings")), ("/agreement", N_("Are alerts right?")),
                         ("/access", N_("Who looked")))),
        (N_("Detection"), (("/models", N_("Models")), ("/scenarios", N_("Scenarios")))),
    ),
)  # fmt: skip


class DashboardParts:
    """Makes and holds what handlers depend on. Parts that stay are attributes; `configure` makes the others."""

    def __init__(
        self,
        stored: StoredSite,
        config: DashboardSections,
        *,
        media: MediaReaders,
        settings: SettingsService | None,
        setup_code: str,
        certificate: ServerCertificate | None,
    ) -> None:
        """See `app.create_app`."""
        db, meter, root, clock, reader = stored.db, stored.meter, stored.root, stored.clock, media.reader
        self._db, self._meter, self._root, self._clock, self._reader = db, meter, root, clock, reader
        self._alerts, self._cameras, self._health_events = AlertStore(db), CameraStore(db), HealthEventStore(db)
        self._drift = DriftMonitor(db)
        self._segments, self._boxes, self._arming = SegmentStore(db), BoxStore(db), ArmingStore(db)
        changes = changes_of(db.rev, self._alerts, self._cameras, self._health_events)
        self.hub = StreamHub(db.rev, changes, clock)
        self.live = LiveHub(self._segments, self._boxes, root, clock)
        self._access_log = AccessLog(db)
        tables = AccountTables(UserStore(db), SessionStore(db), SecondFactorStore(db), self._access_log)
        self.access = Access(config.dashboard.token, clock, tables, setup_code, config.dashboard.second_factor)
        self._alert_counts, self._work = AlertCountCache(db, self._alerts), JudgeWorkCache(db)
        self._snapshots = SnapshotCache(
            self._segments, self._boxes, root, clock, media.cut or partial(cut_snapshot, reader)
        )
        self.frames = FrameCache(self._segments, root, reader)
        self._cuts = RecordingCuts(self._segments, root, media.cutter or reader, clock)
        self.ptz, self._finder = PtzControl(clock), CameraFinder(clock)
        self._renditions = Renditions(self._cuts, root, media.converter or reader, clock)
        self._exporter = ClipExporter(db, root, media.converter or reader, self._cuts, clock)
        self._views = ViewLog(self._access_log)
        self.jobs, self._trials = RecordingJobs(root.absolute(), clock), TrialStore(root)
        header = config.dashboard.user_header.lower()
        self.ignored_headers = Counter(dict.fromkeys((*FORWARDED, *filter(None, [header])), 0))
        self._prober, self._camera_of = CameraProber(clock), CameraOf(self._alerts, self._health_events)
        self._detect, self._callers = media.detect, AnalyzeCallers(clock)
        self._editable = settings is not None
        self._settings = SettingsPart(settings, certificate)
        self._backups, self._puller = SiteBackups(root, self._settings, clock), ModelPuller()

    def warm_up(self) -> None:
        """Sum what takes long to sum, the judges' work of the days before today; any thread. Raises StoreError."""
        self._work.since(first_day_t(self._clock.now(), COST_DAYS))

    def configure(self, app: FastAPI, config: DashboardSections, probes: CoreProbes) -> Templates:
        """Let the handlers of `app` work with these sections and these parts of the core from the next request on.

        Return the templates of that state.
        """
        decisions, cameras = config.decisions, config.decisions.cameras
        health_reader = HealthReader(self._health_events, self._cameras, probes, self._clock)
        templates = Templates(
            decisions.site.shown, navigation=NAVIGATION, guarded=lambda: self.access.guarded, may=may,
            editable=self._editable, shown=decisions.shown, troubles=health_reader.troubles,
            has_uplink=probes.link is not None,
        )  # fmt: skip
        self.hub.notes = lambda: health_reader.notes
        limits = StorageLimits.of(config.storage, cameras)
        storage = StorageReportCache(self._db, self._root, limits)
        self._configure_lasting(config, probes, limits)
        undo_s = config.storage.undo_delete_hours * 3600
        alert_reader = AlertReader(self._alerts, NoticeStore(self._db), self._root, self._clock, undo_s=undo_s)
        reviewer = AlertReviewer(alert_reader, self._alerts, ReviewStore(self._db), self._clock)
        headroom = HeadroomReader(cameras, self._meter, self._health_events, probes)
        readers = (health_reader, headroom, storage, self._cameras, self._meter)
        arming = probes.arming or Arming(config.arming, cameras, self._arming, self._clock, local_weekday_minute)
        provide(
            app, self._db, StorageRoot(self._root), probes, *self._lasting, templates, storage, alert_reader,
            reviewer, health_reader, headroom, *self._money(config),
            *self._replays(config, arming),
            self._analyzer(config, probes),
            CameraReader(self._cameras, self._segments, self._boxes, self._meter, cameras),
            FalseAlarmReader(self._db, cameras),
            CascadeReader(self._db, probes),
            AgreementReader(self._alerts, self._drift.report),
            proofs := ProofStore(self._root), NetworkProver(decisions, self._root, self.jobs, proofs),
            CandidateStore(self._root),
            ModelReader(decisions, probes, headroom, self._settings, self._puller),
            NotifyContext(config, probes, self._db, self._meter),
            arming,
            SystemReader(decisions, self._root, self._clock, probes, readers),
            AlertPageView(alert_reader, health_reader, self._boxes, probes, decisions.alerts),
            ApplianceCollector(
                db=self._db, meter=self._meter, cameras=self._cameras, health_events=self._health_events,
                alert_counts=self._alert_counts, storage=storage, probes=probes, snapshots=self._snapshots,
                frames=self.frames, cuts=self._cuts, renditions=self._renditions, hub=self.hub, live=self.live,
                jobs=self.jobs, ignored_headers=self.ignored_headers,
            ),
        )  # fmt: skip
        return templates

    @property
    def _lasting(self) -> tuple[object, ...]:
        """The parts that handlers depend on and that outlive a change of the settings."""
        return (
            self.access, self._access_log, self._views, self._camera_of, self.hub, self._exporter, self.live,
            self._snapshots, self.frames, self._cuts, self._renditions, self._alert_counts, self._settings,
            self._backups, self._prober, self._finder, self.ptz, self.jobs,
        )  # fmt: skip

    def _configure_lasting(self, config: DashboardSections, probes: CoreProbes, limits: StorageLimits) -> None:
        """Tell the parts that outlive a change of the settings what changed for them."""
        decisions = config.decisions
        self._cuts.keep_free = limits.free_bytes_wanted
        self.ptz.cameras = self._finder.cameras = self._exporter.cameras = decisions.cameras
        self._finder.model = decisions.detector.model
        self.live.newest_boxes = probes.boxes
        self._exporter.public_url = config.dashboard.public_url.rstrip("/")

    def _money(self, config: DashboardSections) -> Iterator[object]:
        """Yield the readers of the page Savings."""
        prices = config.decisions.escalation.prices
        yield SavingsReader(self._clock, self._meter, self._cameras, config.decisions.cameras)
        yield CostReader(self._db, self._meter, prices, config.costs, self._work)

    def _replays(self, config: DashboardSections, arming: Arming) -> Iterator[object]:
        """Yield the parts that decide the recording again, or read what was decided: Why, trials, scenarios."""
        decisions, root = config.decisions, str(self._root.absolute())
        timelines = TimelineReader(TimelineStore(self._db), self._cameras, decisions.cameras, self._clock)
        yield timelines
        yield WhyReader(self._db, decisions, self._clock, timelines, self.jobs, root, arming)
        yield SettingsTrials(self._db, decisions, self.jobs, self._trials, timelines, root)
        yield RuleTrials(self._boxes, self._cameras, decisions, self._clock)
        yield ScenarioExporter(
            self._root, decisions, config.storage.disk_free_min_mb, self._clock, reader=self._reader,
            settings_at=self._settings.decisions_at,
        )  # fmt: skip

    def _analyzer(self, config: DashboardSections, probes: CoreProbes) -> ImageAnalyzer:
        decisions = config.decisions
        privacy = PrivacyRules(decisions.site, decisions.cameras, local_weekday_minute)
        return ImageAnalyzer(
            AnalyzeSettings(decisions, config.dashboard.analyze_per_minute, config.costs.currency, privacy),
            self._alerts, UploadReader(self._root, self._reader, decisions.escalation), self._detect, probes,
            self._clock, self._callers,
        )  # fmt: skip
