"""Takes the messages of the ingest process, decides about alerts and escalations, and stores the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from appliance import wire
from appliance.clock import Clock, local_period, local_weekday_minute
from appliance.config import SiteConfig
from appliance.notify.notice_policy import NoticePlanner, Recipient
from appliance.pipeline import Pipeline
from appliance.privacy import PrivacyRules
from appliance.router.calibration import Calibration
from appliance.router.decide import SystemLoad
from appliance.router.escalation_planner import EscalationPlanner, RouterContext
from appliance.router.recent_escalations import RecentEscalations, restore_recent
from appliance.router.router_maintenance import RouterMaintenance
from appliance.rules.schedule import armed_at, off_peak_in_s
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.decisions import DecisionStore
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import DecodeStatus, Meter
from appliance.store.notices import NewNotice
from appliance.store.segments import SegmentStore
from appliance.store.write_backlog import WriteBacklog
from appliance.types import (
    AGE_EDGES_MS,
    Alert,
    AlertChange,
    CameraMeter,
    CameraState,
    FrameBoxes,
    Gap,
    HealthEvent,
    IngestHealth,
    IngestMessage,
    PipelineStep,
    RecheckResult,
    SegmentRow,
    StreamHeader,
)
from appliance.version import version

logger = logging.getLogger(__name__)

BOXES_BUFFERED_MAX = 256


@dataclass(slots=True)
class _CameraContext:
    """What the core remembers of one camera."""

    pipeline: Pipeline
    planner: EscalationPlanner
    run: str = ""
    last_t: float | None = None
    last_at: float = 0.0
    held: list[FrameBoxes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CoreStores:
    """The parts of the store that the core writes."""

    alerts: AlertStore
    boxes: BoxStore
    cameras: CameraStore
    segments: SegmentStore
    meter: Meter
    decisions: DecisionStore
    health: HealthEventStore | None = None


class Core:
    """Feeds each camera's pipeline and commits what it decides.

    Owner: the supervisor's thread; `take` and `lost` are called by it alone. State: one pipeline and
    planner a camera, and at most `BOXES_HELD_MAX` examined frames that are not yet written (flushed each second and
    with every event).
    Invariant: an alert and its escalation are committed together, before the next message is taken; while the disk
    refuses they wait in the backlog, in order, and so does all else but boxes, which are dropped and counted.
    """

    def __init__(
        self,
        config: SiteConfig,
        shelves: CoreStores,
        clock: Clock,
        around: Callable[[], SystemLoad] = SystemLoad,
    ) -> None:
        """around: how link and box are doing, for the router."""
        self._shelves = shelves
        self._clock = clock
        self._backlog = WriteBacklog(clock)
        self._ill: dict[str, HealthEvent] = {}
        self.alerted: Callable[[], None] = lambda: None  # told of each alert that is written; its evidence waits
        self.unwritten: Callable[[Alert, Sequence[NewNotice], str], None] = lambda *_: None  # the disk did not take it
        self.seen_again: Callable[[RecheckResult], None] = lambda sight: None  # told what a second look saw
        off_peak = off_peak_in_s(config.escalation.off_peak, local_weekday_minute)
        outlook = RouterContext.of(config, local_period, off_peak, PrivacyRules(config, local_weekday_minute).level)
        self._outlook = outlook
        self._notices = _notice_planner(config)
        self._rounds = RouterMaintenance(shelves.decisions, outlook, clock, around) if config.uplink else None
        self._desks = {
            name: _CameraContext(
                Pipeline(name, camera, config.alerts, wall=local_weekday_minute),
                EscalationPlanner(config, name, outlook, self._asked(config, name)),
            )
            for name, camera in config.cameras.items()
            if camera.enabled
        }

    @property
    def warning(self) -> str:
        """What a person should know now, or ''."""
        return self._backlog.warning

    @property
    def calibration(self) -> Calibration:
        """What the router believes of scores, as learnt so far. Any thread."""
        return self._outlook.calibration

    def take(self, message: IngestMessage) -> None:
        """Handle one message of the ingest process. Raises StoreError when the database is beyond waiting."""
        if isinstance(message, IngestHealth):
            self._second_passed()
            return
        if isinstance(message, HealthEvent):
            self._health(message)
            return
        if isinstance(message, RecheckResult):
            self.seen_again(message)
            return
        desk = self._desks.get(message.camera)
        if desk is None:
            logger.warning("a message for the unknown camera %s was dropped", message.camera)
            return
        match message:
            case FrameBoxes():
                self._boxes(message.camera, desk, message)
            case StreamHeader():
                self._header(message.camera, desk, message)
            case SegmentRow():
                self._backlog.write(partial(self._shelves.segments.put, message), key=message.path)
            case CameraState():
                self._backlog.write(partial(self._shelves.cameras.state, message))
            case Gap():
                self._backlog.write(partial(self._shelves.cameras.gap, message))
            case CameraMeter():
                self._meter(message)

    def lost(self, reason: str) -> None:
        """The ingest process died: end what was going on, and show every camera as lost."""
        self._end_all(reason)
        self._backlog.write(partial(self._shelves.cameras.mark_all_lost, self._clock.now(), reason))
        if self._shelves.health is not None:
            self._backlog.write(partial(self._shelves.health.end_open, self._clock.now(), reason))
        self._ill.clear()

    def close(self) -> None:
        """The appliance stops: write what is held and end open alerts."""
        self.lost("the appliance was stopped")
        self._backlog.retry()
        if self._backlog.waiting:
            logger.error("stopped before they could be written, and so lost: %s", self._backlog.warning)

    def _asked(self, config: SiteConfig, camera: str) -> RecentEscalations | None:
        """What the cloud was asked about before this start."""
        if config.uplink is None:
            return None
        shelves, repeat_s = self._shelves, config.escalation.router.repeat_s
        return restore_recent(shelves.decisions, shelves.boxes, camera, repeat_s, self._clock.now())

    def _end_all(self, reason: str) -> None:
        for name, desk in self._desks.items():
            self._flush(name, desk)
            self._commit(name, desk, desk.pipeline.close(self._camera_now(desk), reason))

    def _header(self, name: str, desk: _CameraContext, header: StreamHeader) -> None:
        self._flush(name, desk)
        self._commit(name, desk, desk.pipeline.feed(header))
        desk.planner.begin(header)
        desk.run = header.run
        self._backlog.write(partial(self._shelves.cameras.header, header))

    def _boxes(self, name: str, desk: _CameraContext, boxes: FrameBoxes) -> None:
        desk.last_t, desk.last_at = boxes.t, self._clock.monotonic()
        desk.held.append(boxes)
        desk.planner.observe(boxes)
        step = desk.pipeline.feed(boxes)
        if step.changes or len(desk.held) >= BOXES_BUFFERED_MAX:
            self._flush(name, desk)
        self._commit(name, desk, step)

    def _second_passed(self) -> None:
        self._backlog.retry()
        for name, desk in self._desks.items():
            self._flush(name, desk)
            self._commit(name, desk, desk.pipeline.tick(self._camera_now(desk)))
        if self._rounds is not None and not self._backlog.waiting:
            self._rounds.run_once(self._backlog.write)

    def _commit(self, name: str, desk: _CameraContext, step: PipelineStep) -> None:
        if step.suppressed:
            self._backlog.write(partial(self._shelves.alerts.add_suppressed, step.suppressed, desk.run))
        for change in step.changes:
            self._apply(desk, change)
            if change.kind == "opened":
                rules, labels = ", ".join(change.alert.rules), ", ".join(change.alert.labels)
                logger.info("alert on %s: %s (%s)", name, rules, labels)

    def _apply(self, desk: _CameraContext, change: AlertChange) -> None:
        plan = desk.planner.plan(change, self._clock.now())
        notices = self._notices.plan(change, self._clock.now())
        self._backlog.write(
            partial(
                self._shelves.alerts.apply,
                change,
                escalation=_with_version(plan.escalation) if plan and plan.escalation else None,
                priority=plan.route.priority if plan else "",
                route=plan.route if plan else None,
                notices=notices,
            )
        )
        if notices and self._backlog.waiting:
            self.unwritten(change.alert, notices, self._backlog.warning)
        self.alerted()

    def _flush(self, name: str, desk: _CameraContext) -> None:
        if desk.held:
            held, desk.held = desk.held, []
            self._backlog.write_or_drop(partial(self._shelves.boxes.append, name, desk.run, held), len(held))

    def _meter(self, message: CameraMeter) -> None:
        add = self._shelves.meter.add
        add(message.camera, "camera_bytes" if message.exact else "camera_bytes_estimated", message.received)
        for kind in ("packets", "decoded", "skipped", "examined", "unexamined", "reconnects", "unrecorded", "retried"):
            add(message.camera, kind, getattr(message, kind))
        for reason, count in message.why.items():
            add(message.camera, f"unexamined_{reason}", count)
        for edge, count in zip((*AGE_EDGES_MS, "more", "sum"), message.ages, strict=False):
            add(message.camera, f"age_ms_{edge}", count)
        if message.decoding is not None:
            now = DecodeStatus(message.decoding, message.decoding_reason, message.behind_s)
            self._shelves.meter.note(message.camera, now)

    def _health(self, event: HealthEvent) -> None:
        """Written, counted when it is new, and logged at each turn."""
        if self._shelves.health is not None:
            self._backlog.write(partial(self._shelves.health.put, event), key=f"health {event.id}")
        who = f"camera {event.camera}" if event.camera else "the box"
        known, key = self._ill.get(event.id), event.id
        if event.t_end is not None:
            self._ill.pop(key, None)
            logger.info("%s is well again: %s ended after %.0f s", who, event.kind, event.t_end - event.t_start)
            return
        self._ill[key] = event
        if known is None:
            self._shelves.meter.add(event.camera, f"health_{event.kind}", 1)
            logger.warning("%s is ill (%s): %s", who, event.kind, event.reason)
        if event.attempts > (known.attempts if known else 0):
            logger.info("%s: %s; tried: %s (%d)", who, event.kind, event.recovery, event.attempts)

    def _camera_now(self, desk: _CameraContext) -> float:
        """The camera's own time now: a camera with a wrong clock must not end its alerts early or never."""
        if desk.last_t is None:
            return self._clock.now()
        return desk.last_t + (self._clock.monotonic() - desk.last_at)


def _notice_planner(config: SiteConfig) -> NoticePlanner:
    """Who is to be told of what, and what the privacy rules keep from whoever is not on the site."""
    rules = PrivacyRules(config, local_weekday_minute)
    targets = {
        name: Recipient(name, target, armed_at(target.schedule, local_weekday_minute))
        for name, target in config.notify.items()
    }
    return NoticePlanner(config.site.name, targets, lambda event: rules.level(event) == "never")


def _with_version(question: wire.Escalation) -> wire.Escalation:
    """By the box that asks; a replay's questions are nobody's, and the same whatever version replays."""
    return question.model_copy(update={"box_version": version()})
