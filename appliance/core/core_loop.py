"""Takes the messages of the ingest process, decides about alerts and escalations, and stores the outcome.

Alerts that were stored without an escalation may be escalated later, as people, verdicts and time decide.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from appliance import config, version, wire
from appliance.base.clock import Clock
from appliance.base.errors import StoreUnavailable
from appliance.core.core_settings import CameraContext, CoreSettings, CoreStores
from appliance.core.site_faults import LastingFaults
from appliance.router.escalation_planner import ApiEscalation, RequestAnswer
from appliance.store.meter import Meter, Metric, MetricName
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
    NetworksAnswer,
    PipelineStep,
    RecheckResult,
    Route,
    SegmentRow,
    StreamHeader,
)

BOXES_BUFFERED_MAX = 256  # frames a camera; fewer mean more commits, more mean more memory
RECHECKS_EVERY_S = 5.0  # a second detection takes longer
CLOCKS_APART_S_MAX = 3.0  # of a camera and the appliance, with the second that a frame is under way
STOPPED = "the appliance was stopped"
SETTINGS_CHANGED = "the settings of this camera were changed"
RECHECKS_PER_RUN = 8  # alerts in one turn; frames wait meanwhile
_ASKED = {
    "ready": "it is being sent already",
    "sent": "the cloud has it already, and has not answered yet",
    "settled": "the cloud has answered already",
    "expired": "it was asked about, and no answer came in time",
}

logger = logging.getLogger(__name__)


class Core:
    """Feeds each camera's pipeline and commits what it decides.

    Owner: the supervisor's thread; `take` and `lost` are called by it alone. State: one pipeline and planner a camera,
    and at most `BOXES_BUFFERED_MAX` examined frames a camera that are not yet written
    (flushed each second and with every event).
    Invariant: an alert and its escalation are committed together, before the next message is taken; while the disk
    refuses they wait in the backlog, in order, and so does all else but boxes, which are dropped and counted.
    """

    def __init__(self, stores: CoreStores, settings: CoreSettings, backlog: WriteBacklog, clock: Clock) -> None:
        self._stores = stores
        self._settings = settings
        stores.alerts.escalations.severity_after = settings.severity_after
        self._next_settings: CoreSettings | None = None
        self._backlog = backlog
        self._clock = clock
        self._faults = LastingFaults(stores, backlog, clock)
        self._late = LateEscalations(stores, backlog, clock)
        self._rechecks_at = float("-inf")

    def reconfigure(self, settings: CoreSettings) -> None:
        """Decide by these settings from the next message on. Any thread.

        A camera of which something else decides than before, or the `alerts` section, ends its open alert and starts
        afresh on the same session; all others go on with their alerts.
        """
        self._next_settings = settings

    def take(self, message: IngestMessage) -> None:
        """Handle one message of the ingest process. Raises StoreError when the database is beyond waiting."""
        self._take_next_settings()
        if isinstance(message, IngestHealth):
            self._faults.ingest_lives()
            self._each_second()
            return
        if isinstance(message, HealthEvent):
            self._faults.note(message)
            return
        if isinstance(message, NetworksAnswer):
            return  # the supervisor has it
        if isinstance(message, RecheckResult):
            self._settings.listener.recheck_answered(message)
            return
        camera = self._settings.cameras.get(message.camera)
        if camera is None:
            logger.warning("a message for the unknown camera %s was dropped", message.camera)
            return
        match message:
            case FrameBoxes():
                self._boxes(camera, message)
            case StreamHeader():
                self._header(camera, message)
            case SegmentRow():
                self._backlog.write(partial(self._stores.segments.put, message), key=message.path)
            case CameraState():
                self._backlog.write(partial(self._stores.cameras.write_state, message))
            case Gap():
                self._faults.pause(message, camera.settings.health_ignore)
                self._backlog.write(partial(self._stores.cameras.write_gap, message))
            case CameraMeter():
                _meter(self._stores.meter, message)

    def lost(self, reason: str, *, intended: bool = False) -> None:
        """End what was going on and show every camera as lost: the ingest process has died, or was ended for another.

        What lasts of the appliance's own faults lasts on.
        """
        self._end_run(reason)
        self._faults.end_of_ingest(reason)
        self._faults.ingest_died(reason, intended=intended)
        self._faults.watch_appliance(self._settings)

    def _end_run(self, reason: str) -> None:
        for camera in self._settings.cameras.values():
            self._flush(camera)
            self._commit(camera, camera.pipeline.close(camera.now(self._clock), reason))
        self._backlog.write(partial(self._stores.cameras.mark_all_lost, self._clock.now(), reason))

    def close(self) -> None:
        """Write what is held and end open alerts: the appliance stops."""
        self._end_run(STOPPED)
        self._faults.end_all(STOPPED)
        self._backlog.retry()
        if self._backlog.waiting:
            logger.error("stopped before they could be written, and so lost: %s", self._backlog.warning)

    def _take_next_settings(self) -> None:
        new, self._next_settings = self._next_settings, None
        if new is None:
            return
        old, self._settings = self._settings, new
        self._stores.alerts.escalations.severity_after = new.severity_after
        for name, camera in old.cameras.items():
            following = new.cameras.get(name)
            same = following is not None and _decisive(following) == _decisive(camera) and old.alerts == new.alerts
            if not same:
                self._flush(camera)
                self._commit(camera, camera.pipeline.close(camera.now(self._clock), SETTINGS_CHANGED))
            if following is not None:
                following.take_over(camera, unchanged=same)
        self._faults.end_of_others(new.cameras)

    def _header(self, camera: CameraContext, header: StreamHeader) -> None:
        self._flush(camera)
        self._commit(camera, camera.pipeline.feed(header))
        camera.planner.begin(header)
        if header.run != camera.session:
            self._settings.incidents.begin(camera.name)
        camera.header = header
        self._backlog.write(partial(self._stores.cameras.write_header, header))

    def _boxes(self, camera: CameraContext, boxes: FrameBoxes) -> None:
        camera.last_t, camera.last_at = boxes.t, self._clock.monotonic()
        camera.buffered.append(boxes)
        self._stores.boxes.note(boxes)
        camera.planner.observe(boxes)
        # by another clock than ours nobody knows who came after whom
        same_clock = abs(self._clock.now() - boxes.t) <= CLOCKS_APART_S_MAX
        self._settings.incidents.see(boxes if same_clock else replace(boxes, looked=False))
        evicted = camera.pipeline.rules.evicted
        step = camera.pipeline.feed(boxes, off=self._settings.arming.off_rules(camera.name))
        evicted = camera.pipeline.rules.evicted - evicted
        self._stores.meter.add(camera.name, Metric(MetricName.TRACKS_EVICTED), evicted)
        self._audit_silence(camera, boxes, step)
        if step.changes or len(camera.buffered) >= BOXES_BUFFERED_MAX:
            self._flush(camera)
        self._commit(camera, step)

    def _audit_silence(self, camera: CameraContext, boxes: FrameBoxes, step: PipelineStep) -> None:
        """Send a frame without a report to the cloud if it is one of the sample that is audited."""
        if step.events or not camera.planner.is_quiet or camera.header is None:
            return
        frame = camera.silence.draw(boxes, camera.header.model, camera.session, self._clock.now())
        if frame is not None:
            escalation = complete(frame.escalation, self._settings.language)
            self._backlog.write(partial(self._stores.silent.add, escalation, frame.labels, frame.run))
            self._settings.listener.alert_stored()

    def _each_second(self) -> None:
        self._faults.watch_appliance(self._settings)
        self._backlog.retry()
        for camera in self._settings.cameras.values():
            self._flush(camera)
            self._commit(camera, camera.pipeline.tick(camera.now(self._clock)))
        self._late.answer_requests(self._settings)
        if self._settings.maintenance is not None and not self._backlog.waiting:
            self._settings.maintenance.run_once(self._backlog.write)
            if self._clock.monotonic() >= self._rechecks_at:
                self._rechecks_at = self._clock.monotonic() + RECHECKS_EVERY_S
                self._late.take_rechecks(self._settings)

    def _commit(self, camera: CameraContext, step: PipelineStep) -> None:
        for event in step.suppressed:
            self._stores.meter.add(camera.name, Metric(MetricName.HELD_BACK, event.rule), 1)
        if step.suppressed:
            self._backlog.write(partial(self._stores.alerts.add_suppressed, step.suppressed, camera.session))
        for change in step.changes:
            self._apply(camera, change)
            if change.kind == "opened":
                self._stores.meter.add(camera.name, Metric(MetricName.ALERTS), 1)
                rules, labels = ", ".join(change.alert.rules), ", ".join(change.alert.labels)
                logger.info("alert on %s: %s (%s)", camera.name, rules, labels)

    def _apply(self, camera: CameraContext, change: AlertChange) -> None:
        plan = camera.planner.plan(change, self._clock.now())
        notices = self._settings.notices.plan(change, self._clock.now())
        self._backlog.write(
            partial(
                self._stores.alerts.apply,
                change,
                escalation=complete(plan.escalation, self._settings.language) if plan and plan.escalation else None,
                priority=plan.route.priority if plan else "",
                route=plan.route if plan else None,
                notices=notices,
                incident=self._settings.incidents.place(change),
            )
        )
        if notices and self._backlog.waiting:
            self._settings.listener.alert_unstored(change, notices, self._backlog.warning)
        self._settings.listener.alert_stored()

    def _flush(self, camera: CameraContext) -> None:
        if camera.buffered:
            frames, camera.buffered = camera.buffered, []
            self._backlog.write_or_drop(
                partial(self._stores.boxes.append, camera.name, camera.session, frames), len(frames)
            )


def _decisive(camera: CameraContext) -> object:
    """Return what decides about a camera's alerts in its section of the site file."""
    return camera.settings.model_dump(exclude=config.NO_MATTER_OF_ALERTS)


def _meter(meter: Meter, message: CameraMeter) -> None:
    detect = message.detect
    counted = {
        Metric(MetricName.CAMERA_BYTES, "" if message.exact else "estimated"): message.received,
        Metric(MetricName.DETECT_BYTES): message.detect_received,
        Metric(MetricName.PACKETS): message.packets,
        Metric(MetricName.DECODED): detect.decoded,
        Metric(MetricName.SKIPPED): detect.skipped,
        Metric(MetricName.EXAMINED): detect.examined,
        Metric(MetricName.UNEXAMINED): detect.unexamined,
        Metric(MetricName.RECONNECTS): message.reconnects,
        Metric(MetricName.UNRECORDED): message.unrecorded,
        Metric(MetricName.RETRIED): detect.retries,
        Metric(MetricName.DECODER_FAILED): detect.decoder_failures,
    }
    counted |= {Metric(MetricName.UNEXAMINED, reason): count for reason, count in detect.dropped.items()}
    edges = (*map(str, AGE_EDGES_MS), "more", "sum")
    counted |= {Metric(MetricName.FRAME_AGE_MS, edge): count for edge, count in zip(edges, detect.ages, strict=False)}
    for metric, amount in counted.items():
        meter.add(message.camera, metric, amount)
    meter.note(message.camera, message.decoding)


class LateEscalations:
    """Escalations of alerts that have been stored without one. Owner: the core's thread."""

    def __init__(self, stores: CoreStores, backlog: WriteBacklog, clock: Clock) -> None:
        self._stores = stores
        self._backlog = backlog
        self._clock = clock

    def answer_requests(self, settings: CoreSettings) -> None:
        """Answer what people and programs have asked for since the last call."""
        self._stores.requests.answer_all(partial(self._escalate, settings), partial(self._ask, settings))

    def take_rechecks(self, settings: CoreSettings) -> None:
        """Escalate alerts that stayed at the edge where the appliance's own recheck asks for it."""
        try:
            rechecked = self._stores.decisions.rechecked(RECHECKS_PER_RUN)
        except StoreUnavailable as error:
            logger.info("second detections are taken into account later: %s", error)
            return
        for row in rechecked:
            chance = row.inputs.calibrated
            if row.rechecked != "unsure":
                chance = replace(chance, chance=max(chance.chance, row.confidence))
            known = replace(row.inputs, rechecked=row.rechecked, calibrated=chance)
            alert, camera = row.alert, settings.cameras.get(row.alert.camera)
            plan = camera.planner.reconsider(alert, row.event, known, self._clock.now()) if camera else None
            self._backlog.write(partial(self._stores.decisions.note_recheck, row.id, known))
            if plan is None or plan.escalation is None:
                continue
            logger.info("alert %s is asked about after a second detection: %s", alert.id, plan.route.reason)
            self._store(settings, alert, plan.escalation, plan.route)

    def _escalate(self, settings: CoreSettings, alert_id: str) -> RequestAnswer:
        """Escalate what a person asks for, within privacy and budget; the router's own estimates do not prevent it."""
        if settings.maintenance is None:
            return RequestAnswer(False, "this site has no uplink")
        if self._backlog.waiting:
            return RequestAnswer(False, "the database cannot be written now")
        try:
            found = self._stores.decisions.last(alert_id)
        except StoreUnavailable as error:
            return RequestAnswer(False, str(error))
        if found is None:
            return RequestAnswer(False, "there is no such alert, or what made it is not kept any more")
        asked = _ASKED.get(found.delivery or "")
        if asked:
            return RequestAnswer(False, asked)
        camera, alert, now = settings.cameras.get(found.alert.camera), found.alert, self._clock.now()
        if camera is None:
            return RequestAnswer(False, "its camera is not watched any more")
        plan = camera.planner.reconsider(alert, found.event, found.inputs, now, requested=True)
        if plan is None:
            return RequestAnswer(False, "its rule is not in the site file any more")
        if plan.escalation is None:
            return RequestAnswer(False, plan.route.reason)
        self._store(settings, alert, plan.escalation, plan.route)
        logger.info("alert %s is escalated: %s", alert.id, plan.route.reason)
        return RequestAnswer(True, plan.route.reason)

    def _ask(self, settings: CoreSettings, asked: ApiEscalation) -> RequestAnswer:
        """Escalate a question that came through the API, as the router decides; what is refused leaves no row."""
        camera = settings.cameras.get(asked.camera)
        if camera is None or settings.maintenance is None:
            return RequestAnswer(False, "this site has no uplink" if camera else "this camera is not watched")
        if self._backlog.waiting:
            return RequestAnswer(False, "the database cannot be written now")
        plan = camera.planner.ask(asked, self._clock.now())
        if plan.escalation is None:
            return RequestAnswer(False, plan.route.reason, plan.route)
        escalation = complete(plan.escalation, settings.language)
        try:
            self._stores.evidence.add_asked(escalation, asked.images, plan.route)
        except StoreUnavailable as error:
            return RequestAnswer(False, str(error))
        settings.listener.alert_stored()
        return RequestAnswer(True, plan.route.reason, plan.route)

    def _store(self, settings: CoreSettings, alert: Alert, escalation: wire.Escalation, route: Route) -> None:
        """Ask about an alert that was stored without an escalation."""
        self._backlog.write(
            partial(
                self._stores.alerts.apply,
                AlertChange("extended", alert),
                escalation=complete(escalation, settings.language),
                priority=route.priority,
                route=route,
            )
        )
        settings.listener.alert_stored()


def complete(escalation: wire.Escalation, language: str) -> wire.Escalation:
    """Add the site's language and this version; a replay leaves them out, so that all versions give the same log."""
    return escalation.model_copy(update={"box_version": version(), "language": language})
