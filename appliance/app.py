"""`vedette run`: builds every service, hands each what it needs, and runs them until a signal stops them."""

from __future__ import annotations

import logging
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.broker import LinkState
from appliance.clock import Clock, SystemClock, local_day, local_weekday_minute
from appliance.config import SiteConfig, UplinkConfig
from appliance.core import Core, CoreStores
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.dashboard.server import DashboardServer
from appliance.errors import MissingDependency, redact
from appliance.evidence.maker import EvidenceMaker
from appliance.malloc import return_large_blocks
from appliance.media.segment_recovery import recover_segment
from appliance.notify.delivery import NotifierDeps, SystemStatus, TargetStatus
from appliance.notify.message import MessageBuilder
from appliance.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.recheck.recheck_policy import ApplianceStatus, CloudStatus
from appliance.recheck.service import RecheckService, StatusSources
from appliance.router.system_load import SystemLoadMonitor, load_per_core, temperature_c
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import NOT_RUNNING, CameraStore
from appliance.store.database import Database
from appliance.store.decisions import DecisionStore
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NoticeStore
from appliance.store.paths import DATABASE
from appliance.store.preroll_ring import PrerollRing, prepare_ring_folder
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention
from appliance.store.segments import SegmentStore
from appliance.supervisor import IngestSupervisor
from appliance.threads import Service, ServiceGroup, periodic_service
from appliance.types import RebaselineCommand
from appliance.uplink.outbox import Outbox
from appliance.uplink.rate_limiter import ttl_s
from appliance.uplink.uplink_service import UplinkService

if TYPE_CHECKING:
    from appliance.notify.notifier import Notifier

logger = logging.getLogger(__name__)

METER_S = 1.0
RETENTION_S = 10.0
RING_S = 1.0


def run(config: SiteConfig) -> int:
    """Run the appliance until SIGINT or SIGTERM. Returns 0, 1 after a failure of one part, 2 for an unusable model.

    Raises UsageError before anything is started: a taken port, an unusable storage folder. The model is loaded where
    it is used, in the ingest process: here it would cost 70 MB for nothing.
    """
    return_large_blocks()
    parts = ServiceGroup()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: parts.stop())
    clock = SystemClock()
    root = _storage(config)
    db = Database(root / DATABASE, clock)
    try:
        appliance = Appliance(config, root, db, clock)
        for part in appliance.parts():
            parts.start(part)
        logger.info("site %s, %d cameras; %s", config.site.name, len(config.cameras), appliance.where)
        code = parts.wait()
        appliance.close()
        return code
    finally:
        db.close()


class Appliance:
    """All parts of one box, wired. Owner: the main thread."""

    def __init__(self, config: SiteConfig, root: Path, db: Database, clock: Clock) -> None:
        self._config = config
        self._root = root
        self._db = db
        self._clock = clock
        meter = Meter(db, secrets.token_hex(8))
        self._shelves = CoreStores(
            AlertStore(db),
            BoxStore(db),
            CameraStore(db),
            SegmentStore(db),
            meter,
            DecisionStore(db),
            HealthEventStore(db),
        )
        self._recover()
        self._uplink = self._make_uplink(config.uplink) if config.uplink else None
        watch = SystemLoadMonitor(self._link_state if self._uplink else None, self._shelves.decisions, clock)
        self._core = Core(config, self._shelves, clock, watch.read)
        self._supervisor = IngestSupervisor(config, self._core.take, self._core.lost, clock)
        self._second = self._make_second_looks()
        self._notifier = self._make_notifier() if any(each.enabled for each in config.notify.values()) else None
        self._dashboard = self._make_dashboard() if config.dashboard.enabled else None
        self.where = f"dashboard at {self._dashboard.url}" if self._dashboard else "no dashboard"

    def parts(self) -> list[Service]:
        """In the order of starting; what makes alerts comes last, and so stops first."""
        wake = self._uplink.wake if self._uplink else None
        evidence = EvidenceMaker(self._db, self._root, self._config, self._clock, ready=wake)
        self._core.alerted = partial(_call_all, evidence.wake, self._wake_notifier)
        config = self._config
        retention = Retention(self._db, self._root, config.storage, config.cameras)
        before_s = max(config.alerts.pre_roll_s, config.escalation.span_s)
        rings = StorageLimits.of(config.storage, config.cameras).rings
        ring = PrerollRing(self._db, self._root, rings, before_s=before_s, after_s=config.alerts.post_roll_s)
        found = [
            periodic_service("meter", METER_S, self._flush_meter, self._clock),
            periodic_service("retention", RETENTION_S, retention.run_once, self._clock),
            periodic_service("ring", RING_S, ring.run_once, self._clock),
            Service("evidence", evidence.run, evidence.stop),
            Service("second looks", self._second.run, self._second.stop),
        ]
        if self._notifier is not None:
            found.append(Service("notifier", self._notifier.run, self._notifier.stop))
        if self._uplink is not None:
            found.append(Service("uplink", self._uplink.run, self._uplink.stop))
        if self._dashboard is not None:
            found.append(Service("dashboard", self._dashboard.run, self._dashboard.stop))
        found.append(Service("core", self._supervisor.run, self._supervisor.stop))
        return found

    def close(self) -> None:
        """Write what is held; call after the parts have stopped."""
        self._core.close()
        self._flush_meter()

    def _recover(self) -> None:
        """After a kill: index against disk, alerts that a dead core left open, cameras as the file has them."""
        prepare_ring_folder(self._root, self._config.storage.preroll_dir)
        self._shelves.segments.reconcile(self._root, measure=recover_segment)
        ended = self._shelves.alerts.end_interrupted()
        if ended:
            logger.info("%d alerts were left open by the last run; they were ended where their boxes end", ended)
        if self._shelves.health is not None:
            self._shelves.health.end_open(self._clock.now(), NOT_RUNNING)
        sources = {name: redact(camera.url) for name, camera in self._config.cameras.items() if camera.enabled}
        self._shelves.cameras.ensure(sources)

    def _flush_meter(self) -> None:
        self._shelves.meter.flush(local_day(self._clock.now()))

    def _make_uplink(self, uplink: UplinkConfig) -> UplinkService:
        outbox = Outbox(self._db, self._config.escalation.expire_hours * 3600, ttl_s(self._config))
        shelves = self._shelves
        return UplinkService(
            uplink,
            self._config.site.name,
            outbox,
            self._root,
            shelves.meter,
            shelves.alerts,
            self._clock,
            changed=self._wake_notifier,
            border=PrivacyEgressPolicy(self._config, local_weekday_minute, shelves.alerts.events_of),
        )

    def _make_notifier(self) -> Notifier:
        from appliance.notify.notifier import Notifier  # it brings an HTTP client: only where somebody is told

        rules, shelves = PrivacyRules(self._config, local_weekday_minute), self._shelves
        link = self._link_state if self._uplink else None
        public_url = self._config.dashboard.public_url
        means = NotifierDeps(
            notices=NoticeStore(self._db),
            alerts=shelves.alerts,
            messages=MessageBuilder(self._config.site.name, public_url, lambda event: rules.level(event) == "never"),
            status=SystemStatus(link, HealthEventStore(self._db), lambda: self._core.warning, self._clock),
            meter=shelves.meter,
            clock=self._clock,
        )
        made = Notifier(self._config.notify, means, self._db)
        self._core.unwritten = made.notify_unstored
        return made

    def _wake_notifier(self) -> None:
        if self._notifier is not None:
            self._notifier.wake()

    def _targets(self) -> tuple[TargetStatus, ...]:
        return self._notifier.statuses if self._notifier else ()

    def _make_second_looks(self) -> RecheckService:
        views = StatusSources(self._box, self._cloud, lambda: self._core.calibration)
        made = RecheckService(self._config, self._db, self._shelves.meter, self._clock, self._supervisor.send, views)
        self._core.seen_again = made.receive
        return made

    def _box(self) -> ApplianceStatus:
        status = self._supervisor.status
        if status.pid == 0 or status.health is None:
            return ApplianceStatus()
        return ApplianceStatus(
            starts=status.starts,
            load=load_per_core(),
            temperature_c=temperature_c(),
            detector_load=status.health.load,
            detector_queue=status.health.queue,
        )

    def _cloud(self) -> CloudStatus:
        if self._uplink is None or not self._config.escalation.enabled:
            return CloudStatus()
        link = self._uplink.link
        down_s = None if link.up else self._clock.now() - link.since
        return CloudStatus(asked=True, down_s=down_s, silent=link.up and link.breaker != "closed")

    def _make_dashboard(self) -> DashboardServer:
        app = create_app(
            db=self._db,
            root=self._root,
            config=self._config,
            clock=self._clock,
            meter=self._shelves.meter,
            probes=CoreProbes(
                link=self._link_state if self._uplink else None,
                health=self._health,
                targets=self._targets,
                rebaseline=lambda camera, kind: self._supervisor.send(RebaselineCommand(camera=camera, kind=kind)),
            ),
        )
        return DashboardServer(app, self._config.dashboard.host, self._config.dashboard.port)

    def _link_state(self) -> LinkState:
        assert self._uplink is not None
        state = self._uplink.link
        return replace(state, error=state.error or self._uplink.waits_for)

    def _health(self) -> SystemHealth:
        status = self._supervisor.status
        warnings = [self._core.warning, status.health.warning if status.health else ""]
        state = SystemHealth(
            ingest_running=status.pid != 0,
            ingest_starts=status.starts,
            warnings=tuple(text for text in warnings if text),
        )
        if status.health is None:
            return state
        return replace(
            state,
            detector_ms=status.health.detector_ms,
            queue=status.health.queue,
            rss_bytes=status.health.rss_bytes,
            load=status.health.load,
            age_p95_ms=status.health.age_p95_ms,
        )


def _call_all(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def _storage(config: SiteConfig) -> Path:
    root = config.storage.dir.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingDependency(f"storage.dir {root} cannot be made: {error.strerror}") from None
    return root
