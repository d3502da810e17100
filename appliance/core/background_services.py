"""Builds the services that work on stored data, for one state of the site file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.base.clock import Clock, local_weekday_minute
from appliance.base.machine import clock_sync
from appliance.base.telemetry import LogRing
from appliance.base.threads import Service, ServiceRestarts, periodic_service
from appliance.broker.nats_connection import LinkState
from appliance.config import (
    ArmingConfig,
    DecisionConfig,
    MqttConfig,
    RecheckConfig,
    Schedule,
    StorageConfig,
    Target,
    UplinkConfig,
)
from appliance.core.appliance_monitor import ApplianceMonitor, DiskWatch, SystemProbes
from appliance.core.core_settings import (
    CoreDeps,
    CoreListener,
    CoreSettings,
    CoreStores,
    core_settings,
    router_context,
)
from appliance.core.detector_switch import DetectorSwitch
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.shadow_trial import ShadowTrial
from appliance.core.site_faults import ClockWatch, Neighbours, SiteFaults, UpdateWatch
from appliance.dashboard.deps import CoreProbes, IngestOrders
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.evidence.privacy import PrivacyEgressPolicy, PrivacyRules, ShareableStills
from appliance.health.drift import READ_EVERY_S, DriftMonitor
from appliance.media.recording_reader import SandboxedReader
from appliance.notify.delivery import LoopSignal, NotifierDeps
from appliance.notify.message import MessageBuilder, PushMeans, SnoozeLinks, VapidKey
from appliance.notify.notice_policy import SystemStatus
from appliance.recheck.recheck_policy import NO_CLOUD, busy_text, cloud_away
from appliance.recheck.service import ImageDetector, RecheckService, StatusSources
from appliance.router.router_maintenance import SystemLoadMonitor
from appliance.rules.arming import Arming
from appliance.rules.weekly_hours import armed_at
from appliance.store.database import Database
from appliance.store.notices import NewNotice, NoticeStore
from appliance.store.outbox import Outbox
from appliance.store.preroll_ring import PrerollRing
from appliance.store.push_subscriptions import PushSubscriptionStore, UsedLinkStore
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention
from appliance.store.users import AccessLog, UserStore
from appliance.store.write_backlog import WriteBacklog
from appliance.types import AlertChange, HealthKind, RebaselineCommand, RecheckResult
from appliance.uplink.local_judge import LocalJudge, LocalJudgeSources
from appliance.uplink.outbox_limits import OutboxQuota, OutboxUpkeep, ttl_s
from appliance.uplink.uplink_service import UplinkDeps, UplinkService
from appliance.uplink.worker_announcements import PoolState

if TYPE_CHECKING:
    from appliance.mqtt.publisher import MqttPublisher
    from appliance.notify.notifier import Notifier

RETENTION_EVERY_S = 10.0  # 16 cameras at 4 Mbit/s write 80 MB meanwhile; disk_free_min_mb is 500
RING_EVERY_S = 1.0  # a ring exceeds its size by what is recorded meanwhile


@dataclass(frozen=True, slots=True)
class LastingParts:
    """The parts that stay when the settings change."""

    db: Database
    root: Path
    clock: Clock
    stores: CoreStores
    backlog: WriteBacklog
    supervisor: IngestSupervisor
    readers: tuple[SandboxedReader, SandboxedReader, SandboxedReader]
    """For the dashboard: reads the recording; copies stretches for playing, which may take long; encodes them."""
    log: LogRing
    monitor: ApplianceMonitor
    disk: DiskWatch
    restarts: ServiceRestarts
    image_detector: ImageDetector
    networks: DetectorSwitch
    shadow: ShadowTrial


@dataclass(frozen=True, slots=True)
class BackgroundConfig:
    """The sections of one state of the site file that the background services read."""

    decisions: DecisionConfig
    arming: ArmingConfig
    storage: StorageConfig
    second_look: RecheckConfig
    uplink: UplinkConfig | None
    notify: Mapping[str, Target]
    mqtt: MqttConfig | None
    public_url: str
    certificate: Path | None = None
    """The dashboard's certificate, where the owner brings one."""


class BackgroundServices:
    """The services that work on what is stored, made for one state of the site file, and what others need of them.

    Nothing is started. services: in the order of starting. A part is None where the site file has no use for it.
    """

    def __init__(
        self, config: BackgroundConfig, lasting: LastingParts, before: BackgroundServices | None = None
    ) -> None:
        """Make the services. before: those of the settings until now. Raise UsageError."""
        self._config, self._lasting = config, lasting
        db, root, clock, stores, supervisor = (
            lasting.db,
            lasting.root,
            lasting.clock,
            lasting.stores,
            lasting.supervisor,
        )
        decisions, cameras = config.decisions, config.decisions.cameras
        self._context, self._notices_due = router_context(decisions), LoopSignal()
        self._privacy = PrivacyRules(decisions.site, cameras, local_weekday_minute)
        self._egress = PrivacyEgressPolicy(self._privacy, cameras, stores.alerts.events_of)
        self._arming = Arming(config.arming, cameras, stores.arming, clock, local_weekday_minute)
        self._uplink_deps = self._make_uplink_deps()
        self._uplink = self._build_uplink()
        enabled, monitor = decisions.escalation.enabled, lasting.monitor
        self._probes = SystemProbes(
            enabled, supervisor, self._uplink, lasting.backlog, db, clock, self._arming, monitor
        )
        self._links = SnoozeLinks(root, config.public_url, UsedLinkStore(db))
        sees, contact = partial(_user_sees, UserStore(db)), _contact(config.public_url)
        self._push = PushMeans(VapidKey(root), PushSubscriptionStore(db), sees, contact, in_hours=_in_hours)
        self._reader = SandboxedReader(root)  # not the dashboard's: a long clip must not keep the live view waiting
        self._local_judge = self._build_local_judge()
        self._notifier = self._build_notifier()
        self._publisher = self._build_mqtt()
        ready = self._uplink.wake if self._uplink else None
        self._evidence = EvidenceMaker(db, root, decisions, clock, ready=ready, reader=self._reader)
        sources = StatusSources(self._probes.appliance, self._probes.cloud, lambda: self._context.calibration)
        router = decisions.escalation.router
        self._recheck = RecheckService(config.second_look, router, db, stores.meter, clock, supervisor.send, sources)
        rings = StorageLimits.of(config.storage, cameras).rings
        before_s = max(decisions.alerts.pre_roll_s, decisions.escalation.span_s)
        self._drift: DriftMonitor = before._drift if before else DriftMonitor(db)
        self._faults = self._site_faults()
        if before:
            self._follow(before)
        self.preroll = PrerollRing(db, root, rings, before_s=before_s, after_s=decisions.alerts.post_roll_s)
        self.services = self._services()
        self.core_settings = self._core_settings()
        self.dashboard_probes = self._dashboard_probes()

    def _follow(self, before: BackgroundServices) -> None:
        """Go on telling what is wrong with the neighbours that are the same as before."""
        new, old = self._config, before._config
        alike: set[HealthKind] = {"notify"}  # by target, below
        alike |= {"uplink"} if new.uplink == old.uplink else set()
        alike |= {"mqtt"} if new.mqtt == old.mqtt else set()
        self._faults.follow(before._faults, alike)
        if self._notifier and before._notifier:
            self._notifier.follow(before._notifier)

    def _services(self) -> tuple[Service, ...]:
        lasting, evidence = self._lasting, self._evidence
        cameras = self._config.decisions.cameras
        retention = Retention(
            lasting.db, lasting.root, self._config.storage, cameras, rows_wait=lambda: lasting.backlog.waiting > 0
        )
        optional = (
            ("notifier", self._notifier), ("mqtt", self._publisher), ("uplink", self._uplink),
            ("local judge", self._local_judge),
        )  # fmt: skip
        return (
            periodic_service("retention", RETENTION_EVERY_S, retention.run_once, lasting.clock),
            periodic_service("ring", RING_EVERY_S, self.preroll.run_once, lasting.clock),
            periodic_service("drift", READ_EVERY_S, self._drift.report, lasting.clock),
            Service("evidence", evidence.run, partial(stop_all, evidence.stop, self._reader.close)),
            Service("rechecks", self._recheck.run, self._recheck.stop),
            *(
                lasting.restarts.guard(Service(name, each.run, each.stop, resumes=False))
                for name, each in optional
                if each is not None
            ),
        )

    def _core_settings(self) -> CoreSettings:
        """Make the parts by which the core decides. Reads the store."""
        lasting, uplink, config = self._lasting, self._uplink, self._config.decisions
        system_load = SystemLoadMonitor(
            self._probes.link if uplink else None,
            lasting.stores.escalations,
            lasting.clock,
            self._probes.temperature_c,
            pool=(lambda: uplink.pool) if uplink else None,
            offload=lambda: lasting.monitor.shed.offload,
        )
        listener = _CoreListener(self._evidence, self._notifier, self._recheck, lasting.image_detector)
        deps = CoreDeps(lasting.stores, lasting.clock, listener, system_load.read, self._faults.read)
        return core_settings(config, self._config.notify, self._arming, self._context, deps)

    def _site_faults(self) -> SiteFaults:
        """Make who gathers the faults of the machine, of the services that are started again, and of the neighbours."""
        uplink, notifier, publisher = self._uplink, self._notifier, self._publisher
        lasting, broker = self._lasting, self._config.uplink
        files = {
            "the certificate of the dashboard": self._config.certificate,
            "the certificate for the cloud link": broker.tls_cert if broker else None,
            "the token for the cloud link": broker.credentials if broker else None,
        }
        neighbours = Neighbours(
            link=self._link if uplink else None,
            mqtt=(lambda: publisher.status) if publisher else None,
            targets=lambda: notifier.statuses if notifier else (),
            expiring={what: path for what, path in files.items() if path is not None},
        )

        watch = ClockWatch(lasting.stores.segments.newest_t, lambda: clock_sync().synchronised, lasting.clock)
        update = UpdateWatch(lasting.root, lasting.clock)

        def own() -> Mapping[HealthKind, str]:
            refused = lasting.backlog.refused
            disk = lasting.disk.fault or (f"the database cannot be written: {refused}" if refused else "")
            return {
                **lasting.monitor.faults(), "service": lasting.restarts.fault, "disk": disk, "drift": self._drift.fault,
                "fallback": lasting.networks.fault,
                "time": watch.fault, "update": update.fault,
            }  # fmt: skip

        return SiteFaults(own, neighbours, self._config.decisions.health.ignore, lasting.clock)

    def _dashboard_probes(self) -> CoreProbes:
        stores, monitor, supervisor = self._lasting.stores, self._lasting.monitor, self._lasting.supervisor
        uplink, notifier, publisher = self._uplink, self._notifier, self._publisher
        networks, shadow = self._lasting.networks, self._lasting.shadow
        return CoreProbes(
            link=self._link if uplink else None,
            health=self._probes.health,
            targets=lambda: notifier.statuses if notifier else (),
            mqtt=(lambda: publisher.status) if publisher else None,
            orders=IngestOrders(
                lambda camera, kind: supervisor.send(RebaselineCommand(camera=camera, kind=kind)),
                networks.wake,
                lambda: networks.status,
                lambda: shadow.status,
            ),
            calibration=lambda: self._context.calibration,
            pool=self._pool if self._uplink_deps else None,
            escalate=stores.requests.ask if self._uplink_deps else None,
            arming=self._arming,
            log=self._lasting.log.tail,
            boxes=stores.boxes.noted,
            snooze_links=self._links,
            push=self._push,
            sensors=lambda: monitor.status,
            shedding=lambda: monitor.shed,
            health_events=stores.health,
        )

    def _make_uplink_deps(self) -> UplinkDeps | None:
        uplink, lasting, escalation = self._config.uplink, self._lasting, self._config.decisions.escalation
        if not self._config.decisions.has_judge:
            return None
        return UplinkDeps(
            outbox=Outbox(lasting.db, escalation.expire_hours * 3600, ttl_s(escalation, uplink)),
            meter=lasting.stores.meter,
            alerts=lasting.stores.alerts,
            root=lasting.root,
            settles_here=escalation.local_judge.url is not None,
        )

    def _build_uplink(self) -> UplinkService | None:
        uplink, deps, changed = self._config.uplink, self._uplink_deps, self._notices_due.fire
        if uplink is None or deps is None:
            return None
        name, clock = self._config.decisions.site.name, self._lasting.clock
        return UplinkService(uplink, name, deps, clock, self._egress, changed=changed)

    def _build_local_judge(self) -> LocalJudge | None:
        """Build the appliance's own judge; None: the site file names no model server."""
        settings, deps, probes = self._config.decisions.escalation.local_judge, self._uplink_deps, self._probes
        if settings.url is None or deps is None:
            return None
        second_look, router = self._config.second_look, self._config.decisions.escalation.router
        monitor = self._lasting.monitor
        upkeep = None if probes.uplink else self._outbox_upkeep(deps)
        sources = LocalJudgeSources(
            cloud_away=lambda: NO_CLOUD if upkeep else cloud_away(probes.cloud()),
            busy=lambda: busy_text(probes.appliance(), second_look, router),
            shed=lambda: "; ".join(monitor.shed.faults.values()),
            upkeep=upkeep,
        )
        changed, clock = self._notices_due.fire, self._lasting.clock
        return LocalJudge(settings, deps, self._egress, clock, sources, changed)

    def _outbox_upkeep(self, deps: UplinkDeps) -> Callable[[], None]:
        """Return what keeps the outbox of a site without an uplink, by the bounds of one that says nothing else."""
        mb_max: float = UplinkConfig.model_fields["outbox_mb_max"].default
        quota = OutboxQuota(deps.outbox, deps.root, mb_max, deps.meter)
        return OutboxUpkeep(deps.outbox, quota, deps.meter, self._lasting.clock).run_once

    def _link(self) -> LinkState:
        """Return the link's state, and if the appliance judges meanwhile; only where there is an uplink."""
        return replace(self._probes.link(), judged_here=self._is_judged_here())

    def _is_judged_here(self) -> bool:
        return self._local_judge is not None and self._local_judge.state.in_use

    def _pool(self) -> PoolState:
        pool = self._uplink.pool if self._uplink else PoolState()
        return replace(pool, local=self._local_judge.state if self._local_judge else None)

    def _build_notifier(self) -> Notifier | None:
        """Build the notifier; None: no target is enabled."""
        config, privacy, probes = self._config, self._privacy, self._probes
        if not any(each.enabled for each in config.notify.values()):
            return None
        from appliance.notify.notifier import (  # it brings an HTTP client: only where people are notified
            Notifier,
            new_sender,
        )

        db, stores, clock = self._lasting.db, self._lasting.stores, self._lasting.clock
        site, cameras = config.decisions.site.name, config.decisions.cameras
        link = probes.link if probes.uplink else None
        stills = ShareableStills(
            self._lasting.root, self._reader, stores.boxes, cameras, lambda event: privacy.level(event) == "free"
        )
        deps = NotifierDeps(
            notices=NoticeStore(db),
            alerts=stores.alerts,
            messages=MessageBuilder(
                site, config.public_url, lambda event: privacy.level(event) == "never", config.decisions.shown
            ),
            status=SystemStatus(link, stores.health, probes.warning, clock, self._is_judged_here),
            health=stores.health,
            armed=lambda target, t: armed_at(target.schedule, local_weekday_minute)(t),
            in_quiet_hours=lambda target, t: (
                target.quiet_hours is not None and armed_at(target.quiet_hours, local_weekday_minute)(t)
            ),
            quiet_reason=probes.arming.quiet_reason,
            still=stills.read,
            snooze_link=self._links.link,
            meter=stores.meter,
            clock=clock,
            due=self._notices_due,
        )
        return Notifier(config.notify, deps, db, partial(new_sender, push=self._push))

    def _build_mqtt(self) -> MqttPublisher | None:
        """Build the publisher; None: there is no broker, or it is switched off."""
        config, lasting, probes = self._config, self._lasting, self._probes
        if config.mqtt is None or not config.mqtt.enabled:
            return None
        from appliance.mqtt.publisher import MqttDeps, MqttPublisher  # only where home automation listens

        stores = lasting.stores
        deps = MqttDeps(
            db=lasting.db,
            root=lasting.root,
            alerts=stores.alerts,
            boxes=stores.boxes,
            cameras=stores.cameras,
            health=stores.health,
            privacy=self._privacy,
            arming=probes.arming,
            log=AccessLog(lasting.db),
            meter=stores.meter,
            clock=lasting.clock,
            warning=probes.warning,
            detector_load=lambda: probes.appliance().detector_load,
        )
        return MqttPublisher(config.mqtt, config.decisions.site.name, config.decisions.cameras, config.public_url, deps)


def stop_all(stop: Callable[[], None], *close_readers: Callable[[], None]) -> None:
    """Stop a service and close the readers that it may be waiting for."""
    stop()
    for close in close_readers:
        close()


@dataclass(frozen=True, slots=True)
class _CoreListener(CoreListener):
    """Wakes the services that work on what the core has stored."""

    evidence: EvidenceMaker
    notifier: Notifier | None
    recheck: RecheckService
    image_detector: ImageDetector

    def alert_stored(self) -> None:
        self.evidence.wake()
        if self.notifier is not None:
            self.notifier.wake()

    def alert_unstored(self, change: AlertChange, notices: Sequence[NewNotice], reason: str) -> None:
        if self.notifier is not None:
            self.notifier.notify_unstored(change, notices, reason)

    def recheck_answered(self, result: RecheckResult) -> None:
        if not self.image_detector.receive(result):
            self.recheck.receive(result)


def _user_sees(users: UserStore, user: str, camera: str) -> bool:
    """Return True if the user may see the camera; '' is the owner without a user."""
    row = users.users().get(user)
    return not user or (row is not None and row.enabled and (row.cameras is None or camera in row.cameras))


def _in_hours(hours: str, t: float) -> bool:
    """Return True if the time (UTC seconds) falls into hours such as `22:00-06:00` of the site."""
    return armed_at(Schedule(hours=(hours,)), local_weekday_minute)(t)


def _contact(public_url: str) -> str:
    """Return the address that a push service may turn to; some take no address without a domain."""
    return public_url if public_url.startswith("https:") else "mailto:vedette@example.org"
