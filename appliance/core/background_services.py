"""The services that work on what is stored, made for one state of the site file, and what others need of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.base.clock import Clock, local_weekday_minute
from appliance.base.telemetry import LogRing
from appliance.base.threads import Service, ServiceRestarts, periodic_service
from appliance.config import (
    ArmingConfig,
    CameraConfig,
    DecisionConfig,
    EscalationConfig,
    MqttConfig,
    RecheckConfig,
    StorageConfig,
    Target,
    UplinkConfig,
)
from appliance.core.appliance_monitor import ApplianceMonitor
from appliance.core.core_settings import (
    CoreDeps,
    CoreListener,
    CoreSettings,
    CoreStores,
    core_settings,
    router_context,
)
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.system_probes import SystemProbes
from appliance.dashboard.deps import CoreProbes
from appliance.evidence.maker import EvidenceMaker
from appliance.evidence.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.evidence.shareable_still import ShareableStills
from appliance.media.recording_reader import SandboxedReader
from appliance.notify.delivery import LoopSignal, NotifierDeps
from appliance.notify.message import MessageBuilder
from appliance.notify.push_means import PushMeans, VapidKey
from appliance.notify.snooze_links import SnoozeLinks
from appliance.notify.system_status import SystemStatus
from appliance.recheck.service import RecheckService, StatusSources
from appliance.router.escalation_planner import RouterContext
from appliance.router.router_maintenance import SystemLoadMonitor
from appliance.rules.arming import Arming
from appliance.rules.schedule import armed_at
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.notices import NewNotice, NoticeStore
from appliance.store.outbox_store import OutboxQueue
from appliance.store.preroll_ring import PrerollRing
from appliance.store.push_subscriptions import PushSubscriptionStore, UsedLinkStore
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention
from appliance.store.users import AccessLog, UserStore
from appliance.store.write_backlog import WriteBacklog
from appliance.types import Alert, HealthKind, RebaselineCommand, RecheckResult
from appliance.uplink.outbox import CommitBatcher, Outbox
from appliance.uplink.rate_limiter import ttl_s
from appliance.uplink.send_queue import SendQueue
from appliance.uplink.uplink_service import UplinkDeps, UplinkService

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
    viewer: SandboxedReader
    """Reads the recording for the dashboard."""
    cutter: SandboxedReader
    """Copies stretches of the recording for playing, which may take long."""
    log: LogRing
    converter: SandboxedReader
    """Encodes such stretches, which takes longer."""
    monitor: ApplianceMonitor
    restarts: ServiceRestarts


@dataclass(frozen=True, slots=True)
class BackgroundServices:
    """The services that work on what is stored, made for one state of the site file, and what others need of them."""

    services: tuple[Service, ...]
    core_settings: CoreSettings
    dashboard_probes: CoreProbes
    preroll: PrerollRing


@dataclass(frozen=True, slots=True)
class _BackgroundParts:
    """The parts made for one state of the site file. None: the site file has no use for it."""

    context: RouterContext
    arming: Arming
    probes: SystemProbes
    uplink: UplinkService | None
    links: SnoozeLinks
    push: PushMeans
    notifier: Notifier | None
    publisher: MqttPublisher | None
    evidence: EvidenceMaker
    reader: SandboxedReader
    recheck: RecheckService
    ring: PrerollRing


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


def build_background(config: BackgroundConfig, lasting: LastingParts) -> BackgroundServices:
    """Make the services; nothing is started. Raises UsageError."""
    parts = _build_parts(config, lasting)
    return BackgroundServices(
        _services(config, lasting, parts),
        _core_settings(config.decisions, config.notify, lasting, parts),
        _dashboard_probes(lasting, parts),
        parts.ring,
    )


def _build_parts(config: BackgroundConfig, lasting: LastingParts) -> _BackgroundParts:
    db, root, clock, stores, supervisor = lasting.db, lasting.root, lasting.clock, lasting.stores, lasting.supervisor
    decisions, cameras = config.decisions, config.decisions.cameras
    context, notices_due = router_context(decisions), LoopSignal()
    privacy = PrivacyRules(decisions.site, cameras, local_weekday_minute)
    arming = Arming(config.arming, cameras, stores.arming, clock, local_weekday_minute)
    uplink = None
    if config.uplink is not None:
        egress = PrivacyEgressPolicy(privacy, cameras, stores.alerts.events_of)
        deps = _uplink_deps(decisions.escalation, config.uplink, lasting)
        uplink = UplinkService(
            config.uplink, decisions.site.name, deps, clock, changed=notices_due.fire, egress_policy=egress
        )
    probes = SystemProbes(
        decisions.escalation.enabled, supervisor, uplink, lasting.backlog, db, clock, arming, lasting.monitor
    )
    links = SnoozeLinks(root, config.public_url, UsedLinkStore(db))
    push = PushMeans(
        VapidKey(root), PushSubscriptionStore(db), partial(_user_sees, UserStore(db)), _contact(config.public_url)
    )
    reader = SandboxedReader(root)  # not the dashboard's: a long clip must not keep the live view waiting
    sources = StatusSources(probes.appliance, probes.cloud, lambda: context.calibration)
    return _BackgroundParts(
        context=context,
        arming=arming,
        probes=probes,
        uplink=uplink,
        links=links,
        push=push,
        notifier=_build_notifier(config, privacy, lasting, probes, _NoticeMeans(notices_due, links, push, reader)),
        publisher=_build_mqtt(config, privacy, lasting, probes),
        evidence=EvidenceMaker(db, root, decisions, clock, ready=uplink.wake if uplink else None, reader=reader),
        reader=reader,
        recheck=RecheckService(
            config.second_look, decisions.escalation.router, db, stores.meter, clock, supervisor.send, sources
        ),
        ring=_preroll_ring(config.storage, decisions, lasting),
    )


def _services(config: BackgroundConfig, lasting: LastingParts, parts: _BackgroundParts) -> tuple[Service, ...]:
    """Return the services in the order of starting."""
    evidence, recheck = parts.evidence, parts.recheck
    optional = (("notifier", parts.notifier), ("mqtt", parts.publisher), ("uplink", parts.uplink))
    return (
        *_storage_services(config.storage, config.decisions.cameras, lasting, parts.ring),
        Service("evidence", evidence.run, partial(stop_all, evidence.stop, parts.reader.close)),
        Service("rechecks", recheck.run, recheck.stop),
        *(
            lasting.restarts.guard(Service(name, each.run, each.stop, resumes=False))
            for name, each in optional
            if each is not None
        ),
    )


def _core_settings(
    config: DecisionConfig, targets: Mapping[str, Target], lasting: LastingParts, parts: _BackgroundParts
) -> CoreSettings:
    stores, clock, monitor, uplink, probes = lasting.stores, lasting.clock, lasting.monitor, parts.uplink, parts.probes
    system_load = SystemLoadMonitor(
        probes.link if uplink else None,
        stores.escalations,
        clock,
        probes.temperature_c,
        pool=(lambda: uplink.pool) if uplink else None,
        offload=lambda: monitor.shed.offload,
    )
    deps = CoreDeps(
        stores,
        clock,
        _CoreListener(parts.evidence, parts.notifier, parts.recheck),
        system_load.read,
        partial(_faults, lasting, config.health.ignore),
    )
    return core_settings(config, targets, parts.arming, parts.context, deps)


def _faults(lasting: LastingParts, ignored: Collection[HealthKind]) -> Mapping[HealthKind, str]:
    """Return the faults of the appliance and of the services that are started again."""
    fault = "" if "service" in ignored else lasting.restarts.fault
    return {**lasting.monitor.faults(), **({"service": fault} if fault else {})}


def _dashboard_probes(lasting: LastingParts, parts: _BackgroundParts) -> CoreProbes:
    stores, monitor, supervisor = lasting.stores, lasting.monitor, lasting.supervisor
    uplink, notifier, publisher = parts.uplink, parts.notifier, parts.publisher
    return CoreProbes(
        link=parts.probes.link if uplink else None,
        health=parts.probes.health,
        targets=lambda: notifier.statuses if notifier else (),
        mqtt=(lambda: publisher.status) if publisher else None,
        rebaseline=lambda camera, kind: supervisor.send(RebaselineCommand(camera=camera, kind=kind)),
        calibration=lambda: parts.context.calibration,
        pool=(lambda: uplink.pool) if uplink else None,
        escalate=stores.requests.ask if uplink else None,
        arming=parts.arming,
        log=lasting.log.tail,
        boxes=stores.boxes.noted,
        snooze_links=parts.links,
        push=parts.push,
        sensors=lambda: monitor.status,
        shedding=lambda: monitor.shed,
    )


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

    def alert_stored(self) -> None:
        self.evidence.wake()
        if self.notifier is not None:
            self.notifier.wake()

    def alert_unstored(self, alert: Alert, notices: Sequence[NewNotice], reason: str) -> None:
        if self.notifier is not None:
            self.notifier.notify_unstored(alert, notices, reason)

    def recheck_answered(self, result: RecheckResult) -> None:
        self.recheck.receive(result)


def _uplink_deps(escalation: EscalationConfig, uplink: UplinkConfig, lasting: LastingParts) -> UplinkDeps:
    return UplinkDeps(
        outbox=Outbox(lasting.db, escalation.expire_hours * 3600, ttl_s(escalation, uplink)),
        queue=SendQueue(OutboxQueue(lasting.db)),
        commits=CommitBatcher(lasting.db),
        meter=lasting.stores.meter,
        alerts=lasting.stores.alerts,
        root=lasting.root,
    )


@dataclass(frozen=True, slots=True)
class _NoticeMeans:
    """The parts that the notifier shares with the uplink (due), dashboard (links, push) and evidence (reader)."""

    due: LoopSignal
    links: SnoozeLinks
    push: PushMeans
    reader: SandboxedReader


def _build_notifier(
    config: BackgroundConfig, privacy: PrivacyRules, lasting: LastingParts, probes: SystemProbes, means: _NoticeMeans
) -> Notifier | None:
    """Build the notifier; None: no target is enabled."""
    if not any(each.enabled for each in config.notify.values()):
        return None
    from appliance.notify.notifier import (  # it brings an HTTP client: only where people are notified
        Notifier,
        new_sender,
    )

    db, stores, clock = lasting.db, lasting.stores, lasting.clock
    site, cameras = config.decisions.site.name, config.decisions.cameras
    link = probes.link if probes.uplink else None
    stills = ShareableStills(
        lasting.root, means.reader, stores.boxes, cameras, lambda event: privacy.level(event) == "free"
    )
    deps = NotifierDeps(
        notices=NoticeStore(db),
        alerts=stores.alerts,
        messages=MessageBuilder(site, config.public_url, lambda event: privacy.level(event) == "never"),
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
    """Return True if the user may see the camera; '' is the owner without a user."""
    row = users.users().get(user)
    return not user or (row is not None and row.enabled and (row.cameras is None or camera in row.cameras))


def _contact(public_url: str) -> str:
    """Return the address that a push service may turn to; some take no address without a domain."""
    return public_url if public_url.startswith("https:") else "mailto:vedette@example.org"


def _build_mqtt(
    config: BackgroundConfig, privacy: PrivacyRules, lasting: LastingParts, probes: SystemProbes
) -> MqttPublisher | None:
    """Build the publisher; None: there is no broker, or it is switched off."""
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
        privacy=privacy,
        arming=probes.arming,
        log=AccessLog(lasting.db),
        meter=stores.meter,
        clock=lasting.clock,
        warning=probes.warning,
        detector_load=lambda: probes.appliance().detector_load,
    )
    return MqttPublisher(config.mqtt, config.decisions.site.name, config.decisions.cameras, config.public_url, deps)


def _preroll_ring(storage: StorageConfig, config: DecisionConfig, lasting: LastingParts) -> PrerollRing:
    rings = StorageLimits.of(storage, config.cameras).rings
    before_s = max(config.alerts.pre_roll_s, config.escalation.span_s)
    return PrerollRing(lasting.db, lasting.root, rings, before_s=before_s, after_s=config.alerts.post_roll_s)


def _storage_services(
    storage: StorageConfig, cameras: Mapping[str, CameraConfig], lasting: LastingParts, ring: PrerollRing
) -> tuple[Service, Service]:
    retention = Retention(lasting.db, lasting.root, storage, cameras, rows_wait=lambda: lasting.backlog.waiting > 0)
    return (
        periodic_service("retention", RETENTION_EVERY_S, retention.run_once, lasting.clock),
        periodic_service("ring", RING_EVERY_S, ring.run_once, lasting.clock),
    )
