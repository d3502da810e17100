"""`vedette run` in three steps: build every service, recover what a kill left behind, start."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import signal
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from appliance.box_monitor import READ_EVERY_S, BoxMonitor
from appliance.broker import LinkState
from appliance.clock import Clock, SystemClock, local_day, local_weekday_minute
from appliance.config import DashboardConfig, SiteConfig, StorageConfig, UplinkConfig
from appliance.core import Core, CoreListener, CoreSettings, CoreStores, core_settings, router_context
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.dashboard.server import DashboardServer
from appliance.dashboard.setup_page import new_setup_code
from appliance.dashboard.tls import DashboardCertificate
from appliance.errors import MissingDependency, UsageError
from appliance.evidence.maker import EvidenceMaker
from appliance.evidence.shareable_still import ShareableStills
from appliance.health.load_shedding import LoadShedding
from appliance.machine import load_per_core, temperature_c
from appliance.malloc import TRIM_EVERY_S, return_large_blocks, trim_heaps
from appliance.media.recording_reader import LIMITS, SandboxedReader
from appliance.media.segment_recovery import recover_segment
from appliance.notify.delivery import LoopSignal, NotifierDeps, SystemStatus
from appliance.notify.message import MessageBuilder
from appliance.notify.push_crypto import PushMeans, VapidKey
from appliance.notify.snooze_links import SnoozeLinks
from appliance.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.recheck.recheck_policy import ApplianceStatus, CloudStatus
from appliance.recheck.service import RecheckService, StatusSources
from appliance.router.system_load import SystemLoadMonitor
from appliance.rules.arming import Arming
from appliance.rules.schedule import armed_at
from appliance.settings.settings_service import SettingsService
from appliance.store.access_log import AccessLog
from appliance.store.cameras import NOT_RUNNING, CameraStore
from appliance.store.database import Database
from appliance.store.escalations import OutboxStore
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NewNotice, NoticeStore
from appliance.store.paths import CUTS, DATABASE, EVIDENCE, PREROLL, SCENARIOS, SEGMENTS
from appliance.store.preroll_ring import PrerollRing, prepare_ring_folder
from appliance.store.push_subscriptions import PushSubscriptionStore, UsedLinkStore
from appliance.store.quotas import StorageLimits
from appliance.store.reconcile import MeasureSegment
from appliance.store.retention import Retention
from appliance.store.users import UserStore
from appliance.store.write_backlog import WriteBacklog
from appliance.supervisor import IngestSupervisor
from appliance.telemetry import LogRing
from appliance.threads import Service, ServiceGroup, periodic_service
from appliance.types import Alert, HealthEvent, RebaselineCommand, RecheckResult
from appliance.uplink.commit_batcher import CommitBatcher
from appliance.uplink.outbox import Outbox
from appliance.uplink.rate_limiter import ttl_s
from appliance.uplink.send_queue import SendQueue
from appliance.uplink.uplink_service import UplinkDeps, UplinkService

if TYPE_CHECKING:
    from appliance.mqtt.publisher import MqttPublisher
    from appliance.notify.notifier import Notifier

logger = logging.getLogger(__name__)

OPEN_FILES_MAX = 8192
METER_EVERY_S = 1.0
VIEW_IDLE_S = 60.0  # after which the child that decodes for the live view ends
RETENTION_EVERY_S = 10.0
RING_EVERY_S = 1.0


def run(config: SiteConfig, site_file: Path | None = None) -> int:
    """Run the appliance until SIGINT or SIGTERM. Returns 0, 1 after a service failed, 2 for an unusable model.

    site_file: that `config` was read from; the dashboard may change it. None: the settings stay as they are.

    Raises UsageError before anything is started: a taken port, an unusable storage folder. The model is loaded where
    it is used, in the ingest process: here it would cost 70 MB for nothing.
    """
    os.umask(0o077)  # recordings show people: they are nobody else's on this machine
    return_large_blocks()
    _raise_open_files_limit()
    group = ServiceGroup()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: group.stop())
    clock = SystemClock()
    log = LogRing(clock)
    logging.getLogger().addHandler(log)
    root = storage_folder(config.storage)
    db = Database(root / DATABASE, clock)
    try:
        users = UserStore(db).users()
        setup_code = new_setup_code() if site_file and is_in_setup(config, users) else ""
        if not setup_code:
            check_guarded(config, users)
        appliance = build(config, root, db, clock, group, site_file, setup_code, log=log)
        reader = SandboxedReader(root)
        recover(config, root, appliance.stores, clock, reader.recover_segment, new_database=db.is_new)
        reader.close()
        start(appliance, group)
        logger.info("site %s, %d cameras; %s", config.site.name, len(config.cameras), appliance.where)
        if appliance.fingerprint:
            text = "The browser will not know this box's certificate; compare its SHA-256:"
            print(f"{text}\n{appliance.fingerprint}", flush=True)
        if setup_code:  # on the console and not in the log, which goes to other places
            print(f"\nSet this box up in a browser: {appliance.url}setup   code {setup_code}\n", flush=True)
        code = group.wait()
        appliance.close(clock)
        return code
    finally:
        db.close()


def _raise_open_files_limit() -> None:
    """Each connection, segment and database reader is one; systemd and shells give 1024, of which few are meant."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Appliance:
    """Everything that runs, wired.

    State: the settings that are in force, and the services that are made anew when these change. where: the dashboard's
    address, for people. `reconfigure` is called by one thread at a time.
    """

    def __init__(
        self,
        config: SiteConfig,
        lasting: _Lasting,
        background: _Background,
        core: Core,
        group: ServiceGroup,
        site_file: Path | None,
        setup_code: str = "",
    ) -> None:
        """group: that runs the services. site_file: which the settings are changed in; None: they are not."""
        self.config = config
        self.core = core
        self.stores = lasting.stores
        self._lasting = lasting
        self._background = background
        self._group = group
        self.settings = (
            SettingsService(site_file, lasting.root, lasting.clock, self.reconfigure) if site_file is not None else None
        )
        self._dashboard = (
            _build_dashboard(config, lasting, background, self.settings, setup_code)
            if config.dashboard.enabled
            else None
        )
        lasting.box.configure(config.load_shedding, config.health.ignore, self._shed_memory)
        self.url = self._dashboard.url if self._dashboard else ""
        self.fingerprint = self._dashboard.fingerprint if self._dashboard else ""
        self.where = f"dashboard at {self._dashboard.url}" if self._dashboard else "no dashboard"

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order of starting. What makes alerts starts last, and so stops first."""
        lasting, dashboard = self._lasting, self._dashboard
        meter = periodic_service(
            "meter", METER_EVERY_S, partial(_flush_meter, lasting.stores.meter, lasting.clock), lasting.clock
        )
        memory = periodic_service("memory", TRIM_EVERY_S, trim_heaps, lasting.clock)
        sensors = periodic_service("sensors", READ_EVERY_S, lasting.box.run_once, lasting.clock)
        services = [meter, memory, sensors, *self._background.services]
        if dashboard is not None:
            services.append(
                Service(
                    "dashboard",
                    dashboard.run,
                    partial(
                        _stop_all, dashboard.stop, lasting.viewer.close, lasting.cutter.close, lasting.converter.close
                    ),
                    resumes=False,
                )
            )
        supervisor = lasting.supervisor
        return (*services, Service("core", partial(supervisor.run, self.core), supervisor.stop))

    def reconfigure(self, config: SiteConfig) -> tuple[str, ...]:
        """Put new settings in force while it runs. Returns the keys that a restart alone can change: they stay.

        Cameras that did not change are not touched: neither their connection nor their recording nor their open alerts.
        Raises UsageError before anything was changed.
        """
        config, waiting = keep_until_restart(self.config, config)
        background = _build_background(config, self._lasting)
        self._group.replace(self._background.services, background.services)
        self._background, self.config = background, config
        cameras = {name: camera.url for name, camera in config.cameras.items() if camera.enabled}
        self.stores.cameras.configure(cameras)
        self.core.reconfigure(background.core_settings)
        self._lasting.supervisor.reconfigure(config.for_ingest())
        self._lasting.box.configure(config.load_shedding, config.health.ignore, self._shed_memory)
        background.preroll.shrink(self._preroll_share())
        if self._dashboard is not None:
            self._dashboard.configure(config, background.dashboard_probes)
        return waiting

    def _shed_memory(self, shed: LoadShedding) -> None:
        """Memory is short, or not any more: what can be had again is let go of. In the monitor's thread."""
        self._background.preroll.shrink(self._preroll_share())
        if shed.memory.step == 0:
            return
        for reader in (self._lasting.viewer, self._lasting.cutter, self._lasting.converter):
            reader.rest()
        if self._dashboard is not None:
            self._dashboard.empty_caches()

    def _preroll_share(self) -> float:
        """A ring on a disk takes no memory, and so gives none back."""
        return 1.0 if self.config.storage.preroll_dir is None else self._lasting.box.shed.preroll_share

    def close(self, clock: Clock) -> None:
        """Write what is buffered; call after the services have stopped."""
        self.core.close()
        _flush_meter(self.stores.meter, clock)


@dataclass(frozen=True, slots=True)
class _Lasting:
    """The parts that stay when the settings change. viewer: reads the recording for the dashboard, cutter:
    copies stretches of it for playing, which may take long, converter: encodes them, which takes longer."""

    db: Database
    root: Path
    clock: Clock
    stores: CoreStores
    backlog: WriteBacklog
    supervisor: IngestSupervisor
    viewer: SandboxedReader
    cutter: SandboxedReader
    log: LogRing
    converter: SandboxedReader
    box: BoxMonitor


@dataclass(frozen=True, slots=True)
class _Background:
    """The services that work on what is stored, made for one state of the site file, and what others need of them."""

    services: tuple[Service, ...]
    core_settings: CoreSettings
    dashboard_probes: CoreProbes
    preroll: PrerollRing


def keep_until_restart(running: SiteConfig, new: SiteConfig) -> tuple[SiteConfig, tuple[str, ...]]:
    """`new` with what only a restart can change as it is running, and the keys of that."""
    waiting = []
    storage, dashboard, sensors = new.storage, new.dashboard, new.sensors
    if sensors.root != running.sensors.root:
        waiting.append("sensors.root")
        sensors = sensors.model_copy(update={"root": running.sensors.root})
    for key in ("dir", "preroll_dir"):
        if getattr(storage, key) != getattr(running.storage, key):
            waiting.append(f"storage.{key}")
            storage = storage.model_copy(update={key: getattr(running.storage, key)})
    for key in type(dashboard).model_fields:
        if key != "public_url" and getattr(dashboard, key) != getattr(running.dashboard, key):
            waiting.append(f"dashboard.{key}")
            dashboard = dashboard.model_copy(update={key: getattr(running.dashboard, key)})
    return new.model_copy(update={"storage": storage, "dashboard": dashboard, "sensors": sensors}), tuple(waiting)


def build(
    config: SiteConfig,
    root: Path,
    db: Database,
    clock: Clock,
    group: ServiceGroup,
    site_file: Path | None = None,
    setup_code: str = "",
    *,
    log: LogRing | None = None,
) -> Appliance:
    """Step 1: make each part and hand it its sections of the site file and its neighbours.

    Nothing is written but, with a site file, its text as the newest version. log: where the last lines are kept.
    """
    log = LogRing(clock) if log is None else log
    stores = CoreStores.of(db, Meter(db, secrets.token_hex(8)))
    supervisor = IngestSupervisor(config.for_ingest(), clock, log_line=log.add_child_line)
    viewer = SandboxedReader(root, replace(LIMITS, idle_s=VIEW_IDLE_S))
    cutter = SandboxedReader(root, replace(LIMITS, idle_s=VIEW_IDLE_S))
    converter = SandboxedReader(root, replace(LIMITS, idle_s=VIEW_IDLE_S))
    box = BoxMonitor(config.sensors.root, stores.meter, clock, partial(_count_live, stores.cameras), supervisor)
    lasting = _Lasting(db, root, clock, stores, WriteBacklog(clock), supervisor, viewer, cutter, log, converter, box)
    background = _build_background(config, lasting)
    core = Core(stores, background.core_settings, lasting.backlog, clock)
    return Appliance(config, lasting, background, core, group, site_file, setup_code)


def _build_background(config: SiteConfig, lasting: _Lasting) -> _Background:
    db, root, clock, stores, supervisor = lasting.db, lasting.root, lasting.clock, lasting.stores, lasting.supervisor
    context, notices_due = router_context(config), LoopSignal()
    arming = Arming(config.arming, config.cameras, stores.arming, clock, local_weekday_minute)
    uplink = _build_uplink(config, config.uplink, root, db, stores, clock, notices_due) if config.uplink else None
    probes = _SystemProbes(
        config.escalation.enabled, supervisor, uplink, lasting.backlog, db, clock, arming, lasting.box
    )
    link = probes.link if uplink else None
    box = lasting.box
    links = SnoozeLinks(root, config.dashboard.public_url, UsedLinkStore(db))
    push = PushMeans(
        VapidKey(root), PushSubscriptionStore(db), partial(_user_sees, UserStore(db)), _contact(config.dashboard)
    )
    notifier = _build_notifier(config, root, db, stores, clock, probes, _NoticeMeans(notices_due, links, push))
    publisher = _build_mqtt(config, root, db, stores, clock, probes)
    reader = SandboxedReader(root)  # not the dashboard's: a long clip must not keep the live view waiting
    evidence = EvidenceMaker(db, root, config, clock, ready=uplink.wake if uplink else None, reader=reader)
    sources = StatusSources(probes.appliance, probes.cloud, lambda: context.calibration)
    recheck = RecheckService(
        config.second_look, config.escalation.router, db, stores.meter, clock, supervisor.send, sources
    )
    ring = _preroll_ring(config, root, db)
    services = [
        *_storage_services(config, root, db, clock, ring),
        Service("evidence", evidence.run, partial(_stop_all, evidence.stop, reader.close)),
        Service("rechecks", recheck.run, recheck.stop),
    ]
    services += [
        Service(name, each.run, each.stop, resumes=False)
        for name, each in (("notifier", notifier), ("mqtt", publisher), ("uplink", uplink))
        if each is not None
    ]
    return _Background(
        tuple(services),
        core_settings(
            config,
            stores,
            clock,
            system_load=SystemLoadMonitor(
                link,
                stores.escalations,
                clock,
                pool=(lambda: uplink.pool) if uplink else None,
                offload=lambda: box.shed.offload,
            ).read,
            context=context,
            listener=_CoreListener(evidence, notifier, recheck),
            arming=arming,
            box_faults=box.faults,
        ),
        CoreProbes(
            link=link,
            health=probes.health,
            targets=lambda: notifier.statuses if notifier else (),
            mqtt=(lambda: publisher.status) if publisher else None,
            rebaseline=lambda camera, kind: supervisor.send(RebaselineCommand(camera=camera, kind=kind)),
            calibration=lambda: context.calibration,
            pool=(lambda: uplink.pool) if uplink else None,
            escalate=stores.requests.ask if uplink else None,
            arming=arming,
            log=lasting.log.tail,
            boxes=stores.boxes.noted,
            snooze_links=links,
            push=push,
            box=lambda: box.status,
            shedding=lambda: box.shed,
        ),
        ring,
    )


def recover(
    config: SiteConfig,
    root: Path,
    stores: CoreStores,
    clock: Clock,
    measure: MeasureSegment = recover_segment,
    *,
    new_database: bool = False,
) -> None:
    """Step 2, after a kill: the index against the disk, alerts that were left open, cameras as the file has them."""
    prepare_ring_folder(root, config.storage.preroll_dir)
    had_recordings = new_database and any((root / SEGMENTS).glob("*/*/*"))
    stores.segments.reconcile(root, measure=measure)
    ended = stores.alerts.end_interrupted()
    if ended:
        logger.info("%d alerts were left open by the last run; they were ended where their boxes end", ended)
    stores.health.end_open(clock.now(), NOT_RUNNING)
    if had_recordings:
        _report_new_database(stores, clock)
    stores.cameras.ensure({name: camera.url for name, camera in config.cameras.items() if camera.enabled})


def start(appliance: Appliance, group: ServiceGroup) -> None:
    """Step 3: one thread for each service."""
    for service in appliance.services:
        group.start(service)


def _stop_all(stop: Callable[[], None], *close_readers: Callable[[], None]) -> None:
    """A service that waits for a decoder need not wait for its end."""
    stop()
    for close in close_readers:
        close()


@dataclass(frozen=True, slots=True)
class _CoreListener(CoreListener):
    """Wakes the services that work on what the core has stored."""

    evidence: EvidenceMaker
    notifier: Notifier | None
    recheck: RecheckService

    def alert_stored(self) -> None:
        self.evidence.wake()
        if self.notifier is not None:
            self.notifier.wake()

    def alert_unstored(self, alert: Alert, notices: Sequence[NewNotice], reason: str) -> None:
        if self.notifier is not None:
            self.notifier.notify_unstored(alert, notices, reason)

    def recheck_answered(self, result: RecheckResult) -> None:
        self.recheck.receive(result)


@dataclass(frozen=True, slots=True)
class _SystemProbes:
    """How the appliance does now, for the services that ask. Any thread."""

    escalates: bool
    supervisor: IngestSupervisor
    uplink: UplinkService | None
    backlog: WriteBacklog
    db: Database
    clock: Clock
    arming: Arming
    box: BoxMonitor

    def link(self) -> LinkState:
        """Only where there is an uplink."""
        assert self.uplink is not None
        state = self.uplink.link
        return replace(state, error=state.error or self.uplink.waits_for)

    def cloud(self) -> CloudStatus:
        if self.uplink is None or not self.escalates:
            return CloudStatus()
        link = self.uplink.link
        down_s = None if link.up else self.clock.now() - link.since
        return CloudStatus(configured=True, down_s=down_s, silent=link.up and link.breaker != "closed")

    def appliance(self) -> ApplianceStatus:
        status = self.supervisor.status
        if status.pid == 0 or status.health is None:
            return ApplianceStatus()
        return ApplianceStatus(
            starts=status.starts,
            load=load_per_core(),
            temperature_c=temperature_c(),
            detector_load=status.health.load,
            detector_queue=status.health.queue,
            hot=self.box.shed.heat.step > 0,
        )

    def warning(self) -> str:
        """What is wrong with the database, or ''."""
        return self.backlog.warning or self.db.displaced

    def health(self) -> SystemHealth:
        status = self.supervisor.status
        warnings = [self.warning(), status.health.warning if status.health else "", *self.arming.warnings()]
        state = SystemHealth(
            ingest_running=status.pid != 0,
            ingest_starts=status.starts,
            ingest_pid=status.pid,
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


def _build_uplink(
    config: SiteConfig,
    uplink: UplinkConfig,
    root: Path,
    db: Database,
    stores: CoreStores,
    clock: Clock,
    notices_due: LoopSignal,
) -> UplinkService:
    deps = UplinkDeps(
        outbox=Outbox(db, config.escalation.expire_hours * 3600, ttl_s(config.escalation, uplink)),
        queue=SendQueue(OutboxStore(db)),
        commits=CommitBatcher(db),
        meter=stores.meter,
        alerts=stores.alerts,
        root=root,
    )
    rules = PrivacyRules(config.site, config.cameras, local_weekday_minute)
    policy = PrivacyEgressPolicy(rules, config.cameras, stores.alerts.events_of)
    return UplinkService(uplink, config.site.name, deps, clock, changed=notices_due.fire, egress_policy=policy)


def _report_new_database(stores: CoreStores, clock: Clock) -> None:
    """Recordings without their database: it was deleted, moved away or emptied while nothing ran."""
    now = clock.now()
    reason = (
        "the database was gone or empty at the start, and a new one was begun beside the recordings that were there: "
        "they are listed again, alerts and reviews are not; put a copy of it back to have them"
    )
    logger.warning("%s", reason)
    stores.health.put(
        HealthEvent(camera="", id=uuid4().hex[:16], kind="database", t=now, t_start=now, t_end=now, reason=reason)
    )


@dataclass(frozen=True, slots=True)
class _NoticeMeans:
    """What the notifier shares with the uplink (due) and the dashboard (links, push)."""

    due: LoopSignal
    links: SnoozeLinks
    push: PushMeans


def _build_notifier(
    config: SiteConfig,
    root: Path,
    db: Database,
    stores: CoreStores,
    clock: Clock,
    probes: _SystemProbes,
    means: _NoticeMeans,
) -> Notifier | None:
    """None: no target is enabled."""
    if not any(each.enabled for each in config.notify.values()):
        return None
    from appliance.notify.notifier import (  # it brings an HTTP client: only where people are notified
        Notifier,
        new_sender,
    )

    privacy = PrivacyRules(config.site, config.cameras, local_weekday_minute)
    public_url, link = config.dashboard.public_url, probes.link if probes.uplink else None
    stills = ShareableStills(root, stores.boxes, config.cameras, lambda event: privacy.level(event) == "free")
    deps = NotifierDeps(
        notices=NoticeStore(db),
        alerts=stores.alerts,
        messages=MessageBuilder(config.site.name, public_url, lambda event: privacy.level(event) == "never"),
        status=SystemStatus(link, HealthEventStore(db), probes.warning, clock),
        health=HealthEventStore(db),
        armed=lambda target, t: armed_at(target.schedule, local_weekday_minute)(t),
        in_quiet_hours=lambda target, t: (
            target.quiet_hours is not None and armed_at(target.quiet_hours, local_weekday_minute)(t)
        ),
        quiet_reason=probes.arming.quiet_reason,
        still=stills.read,
        snooze_link=means.links.link,
        meter=stores.meter,
        clock=clock,
        due=means.due,
    )
    return Notifier(config.notify, deps, db, partial(new_sender, push=means.push))


def _user_sees(users: UserStore, user: str, camera: str) -> bool:
    """Whether a person may see a camera; '' is the owner without a user."""
    row = users.users().get(user)
    return not user or (row is not None and row.enabled and (row.cameras is None or camera in row.cameras))


def _contact(dashboard: DashboardConfig) -> str:
    """Whom a push service may turn to; some take no address without a domain."""
    return dashboard.public_url if dashboard.public_url.startswith("https:") else "mailto:vedette@example.org"


def _build_mqtt(
    config: SiteConfig, root: Path, db: Database, stores: CoreStores, clock: Clock, probes: _SystemProbes
) -> MqttPublisher | None:
    """None: there is no broker, or it is switched off."""
    if config.mqtt is None or not config.mqtt.enabled:
        return None
    from appliance.mqtt.publisher import MqttDeps, MqttPublisher  # only where home automation listens

    means = MqttDeps(
        db=db,
        root=root,
        alerts=stores.alerts,
        boxes=stores.boxes,
        cameras=stores.cameras,
        health=stores.health,
        privacy=PrivacyRules(config.site, config.cameras, local_weekday_minute),
        arming=probes.arming,
        log=AccessLog(db),
        meter=stores.meter,
        clock=clock,
        warning=probes.warning,
        detector_load=lambda: probes.appliance().detector_load,
    )
    return MqttPublisher(config, config.mqtt, means)


def _build_dashboard(
    config: SiteConfig,
    lasting: _Lasting,
    background: _Background,
    settings: SettingsService | None,
    setup_code: str,
) -> DashboardServer:
    served = config.dashboard
    certificate = DashboardCertificate.of(served, lasting.root, lasting.clock)
    app = create_app(
        db=lasting.db,
        root=lasting.root,
        config=config,
        clock=lasting.clock,
        meter=lasting.stores.meter,
        probes=background.dashboard_probes,
        settings=settings,
        reader=lasting.viewer,
        cutter=lasting.cutter,
        converter=lasting.converter,
        setup_code=setup_code,
        certificate=certificate,
    )
    return DashboardServer(
        app, served.host, served.port, trusted_proxies=served.trusted_proxies, certificate=certificate
    )


def _preroll_ring(config: SiteConfig, root: Path, db: Database) -> PrerollRing:
    rings = StorageLimits.of(config.storage, config.cameras).rings
    before_s = max(config.alerts.pre_roll_s, config.escalation.span_s)
    return PrerollRing(db, root, rings, before_s=before_s, after_s=config.alerts.post_roll_s)


def _storage_services(
    config: SiteConfig, root: Path, db: Database, clock: Clock, ring: PrerollRing
) -> tuple[Service, Service]:
    retention = Retention(db, root, config.storage, config.cameras)
    return (
        periodic_service("retention", RETENTION_EVERY_S, retention.run_once, clock),
        periodic_service("ring", RING_EVERY_S, ring.run_once, clock),
    )


def _count_live(cameras: CameraStore) -> int:
    return sum(each.state == "live" for each in cameras.all())


def _flush_meter(meter: Meter, clock: Clock) -> None:
    meter.count_uptime()
    meter.flush(local_day(clock.now()))


def _keep_from_others(root: Path) -> None:
    """What an earlier version wrote was for every user of the machine to read. A group that was let in stays in."""
    files = (f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", ".lock"))
    for name in (SEGMENTS, PREROLL, EVIDENCE, SCENARIOS, CUTS, *files):
        with contextlib.suppress(FileNotFoundError):
            path = root / name
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & stat.S_IRWXO:
                path.chmod(mode & ~stat.S_IRWXO)


def is_in_setup(config: SiteConfig, users: Collection[str]) -> bool:
    """Whether this is the first run: no camera, nobody who may sign in."""
    return config.dashboard.enabled and not config.cameras and not users and config.dashboard.token is None


def check_guarded(config: SiteConfig, users: Collection[str]) -> None:
    """Raises UsageError: the dashboard would be open to everybody on the network."""
    if config.dashboard.enabled and not users and (fault := config.dashboard.open_to_all):
        raise UsageError(fault)


def storage_folder(storage: StorageConfig) -> Path:
    """The folder that everything is stored in, made if need be. Raises MissingDependency."""
    root = storage.dir.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        _keep_from_others(root)
    except OSError as error:
        raise MissingDependency(f"storage.dir {root} cannot be made: {error.strerror}") from None
    return root
