"""Builds the parts with which the core decides, and the stores that it writes to, for one state of the site file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from appliance.alerts.incidents import IncidentLinker
from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import Clock, local_period, local_weekday_minute
from appliance.config import AlertsConfig, CameraConfig, DecisionConfig, Rule, Target
from appliance.evidence.privacy import PrivacyRules
from appliance.notify.notice_policy import NoticePlanner, Recipient
from appliance.router.escalation_planner import EscalationPlanner, EscalationRequests, RouterContext
from appliance.router.router_maintenance import RouterMaintenance, SilentFrameAudit
from appliance.router.track_stats import RecentEscalations, restore_recent
from appliance.rules.arming import Arming
from appliance.rules.weekly_hours import armed_at, off_peak_in_s
from appliance.store.alert_rows import EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.arming import ArmingStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.decisions import DecisionStore
from appliance.store.escalations import EscalationStore, SeverityAfter
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NewNotice
from appliance.store.segments import SegmentStore
from appliance.store.silent_frames import SilentFrameStore
from appliance.store.timeline import TimelineStore
from appliance.types import (
    AlertChange,
    FrameBoxes,
    HealthKind,
    RecheckResult,
    StreamHeader,
    SystemLoad,
)


@dataclass(slots=True)
class CameraContext:
    """The state that the core keeps of one camera."""

    name: str
    """Its key in the site file."""
    settings: CameraConfig
    pipeline: Pipeline
    planner: EscalationPlanner
    silence: SilentFrameAudit
    header: StreamHeader | None = None
    """The header of the present session."""
    last_t: float | None = None
    """Time of the last frame by the camera's clock, UTC seconds."""
    last_at: float = 0.0
    """Monotonic seconds when that frame came."""
    buffered: list[FrameBoxes] = field(default_factory=list)
    """Examined frames that are not yet written."""

    @property
    def session(self) -> str:
        return self.header.run if self.header is not None else ""

    def now(self, clock: Clock) -> float:
        """Return the time by the camera's clock: a camera with a wrong clock must not end its alerts early or never."""
        return clock.now() if self.last_t is None else self.last_t + (clock.monotonic() - self.last_at)

    def take_over(self, old: CameraContext, *, unchanged: bool) -> None:
        """Go on where `old` stops: with its frames and session, and if nothing changed with its open alerts too.

        To new rules, what is in view was there at the start: the old ones have reported it already, or did not want it.
        """
        self.header, self.last_t, self.last_at, self.buffered = old.header, old.last_t, old.last_at, old.buffered
        if unchanged:
            self.pipeline = old.pipeline
            self.planner.take_over(old.planner)
        elif old.header is not None:
            self.pipeline.feed(replace(old.header, known_before=False))
            self.planner.begin(old.header)


class CoreListener:
    """The listener that is called when the core has decided, in the core's thread: no method may wait.

    This base class does nothing.
    """

    def alert_stored(self) -> None:
        """Take note that an alert, or a change of one, was handed to the store: evidence and notices are due."""

    def alert_unstored(self, change: AlertChange, notices: Sequence[NewNotice], reason: str) -> None:
        """Take note that the disk did not take the change of an alert, and so not its notices either."""

    def recheck_answered(self, result: RecheckResult) -> None:
        """Take the answer of the ingest process to a recheck."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """The parts by which the core decides, made from one state of the site file."""

    cameras: Mapping[str, CameraContext]
    """The enabled ones, by name."""
    alerts: AlertsConfig
    incidents: IncidentLinker
    """Which alerts of different cameras are one incident."""
    notices: NoticePlanner
    maintenance: RouterMaintenance | None
    """Maintenance of the router; None: there is no uplink."""
    listener: CoreListener
    severity_after: SeverityAfter
    """Returns the severity that a verdict makes of another."""
    language: str
    """The language of reasons."""
    arming: Arming
    appliance_faults: Callable[[], Mapping[HealthKind, str]]
    """Returns the lasting faults of the appliance itself, a sentence each."""


@dataclass(frozen=True, slots=True)
class CoreStores:
    """The stores that the core writes to."""

    alerts: AlertStore
    boxes: BoxStore
    cameras: CameraStore
    segments: SegmentStore
    meter: Meter
    decisions: DecisionStore
    escalations: EscalationStore
    health: HealthEventStore
    silent: SilentFrameStore
    timeline: TimelineStore
    arming: ArmingStore
    evidence: EvidenceStore
    displaced: Callable[[], str]
    """Why the database is not where it was opened; '': it is."""
    requests: EscalationRequests = field(default_factory=EscalationRequests)

    @classmethod
    def of(cls, db: Database, meter: Meter) -> CoreStores:
        return cls(
            AlertStore(db),
            BoxStore(db),
            CameraStore(db),
            SegmentStore(db),
            meter,
            DecisionStore(db),
            EscalationStore(db),
            HealthEventStore(db),
            SilentFrameStore(db),
            TimelineStore(db),
            ArmingStore(db),
            EvidenceStore(db),
            lambda: db.displaced,
        )


@dataclass(frozen=True, slots=True)
class CoreDeps:
    """The neighbours that the core's parts call."""

    stores: CoreStores
    clock: Clock
    listener: CoreListener = field(default_factory=CoreListener)
    system_load: Callable[[], SystemLoad] = SystemLoad
    """Returns how link and appliance are doing, for the router."""
    appliance_faults: Callable[[], Mapping[HealthKind, str]] = dict


def core_settings(
    config: DecisionConfig, targets: Mapping[str, Target], arming: Arming, context: RouterContext, deps: CoreDeps
) -> CoreSettings:
    """Make the core's parts from the sections that each reads. Reads the store for earlier alerts and escalations."""
    stores, clock = deps.stores, deps.clock
    privacy = PrivacyRules(config.site, config.cameras, local_weekday_minute)
    cameras = {
        name: CameraContext(
            name,
            camera,
            _pipeline(config, name, stores, clock),
            EscalationPlanner(name, camera.rules, context, _recent_escalations(config, name, stores, clock)),
            SilentFrameAudit(name, camera.rules, context, partial(_armed, arming, name), privacy.lets_frames_leave),
        )
        for name, camera in config.cameras.items()
        if camera.enabled
    }
    return CoreSettings(
        cameras,
        config.alerts.model_copy(update={"adjoining": ()}),  # which decide nothing on one camera
        IncidentLinker(config.alerts.adjoining, config.cameras),
        _notice_planner(config.site.name, targets, privacy),
        RouterMaintenance(stores.decisions, stores.escalations, context, stores.meter, clock, deps.system_load)
        if config.has_judge
        else None,
        deps.listener,
        config.severity_after,
        config.site.language,
        arming,
        deps.appliance_faults,
    )


def router_context(config: DecisionConfig) -> RouterContext:
    """Return what the router knows beyond one camera, as at the start: nothing learnt, nothing spent."""
    off_peak = off_peak_in_s(config.escalation.off_peak, local_weekday_minute)
    privacy = PrivacyRules(config.site, config.cameras, local_weekday_minute).level
    return RouterContext.of(
        config.site.name, config.escalation, local_period, privacy,
        uplink=config.has_judge, off_peak_in_s=off_peak,
    )  # fmt: skip


def _pipeline(config: DecisionConfig, camera: str, stores: CoreStores, clock: Clock) -> Pipeline:
    """Return a camera's pipeline; cooldowns that began before this start, or before a change of settings, go on."""
    made = Pipeline(camera, config.cameras[camera], config.alerts, local_time=local_weekday_minute)
    longest_s, now = max((rule.cooldown_s for rule in config.cameras[camera].rules), default=0.0), clock.now()
    if longest_s:
        made.policy.recall(each.event for each in stores.timeline.events(camera, now - longest_s, now) if each.alert)
    return made


def _recent_escalations(
    config: DecisionConfig, camera: str, stores: CoreStores, clock: Clock
) -> RecentEscalations | None:
    """Return what the cloud was asked before this start; None: there is no uplink."""
    if not config.has_judge:
        return None
    return restore_recent(stores.decisions, stores.boxes, camera, config.escalation.router.repeat_s, clock.now())


def _armed(arming: Arming, camera: str, rule: Rule, t: float) -> bool:
    """Return True if the rule reports anything at this time (UTC seconds)."""
    return rule.name not in arming.off_rules(camera) and armed_at(rule.schedule, local_weekday_minute)(t)


def _notice_planner(site: str, targets: Mapping[str, Target], privacy: PrivacyRules) -> NoticePlanner:
    """Plan which targets are notified of what; the privacy rules keep some of it from those off the site."""
    recipients = {
        name: Recipient(name, target, armed_at(target.schedule, local_weekday_minute))
        for name, target in targets.items()
    }
    return NoticePlanner(site, recipients, lambda event: privacy.level(event) == "never")
