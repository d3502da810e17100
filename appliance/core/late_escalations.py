"""Escalates alerts that are stored already: after a second look, when a person asks, and for questions of the API."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from appliance import wire
from appliance.base.clock import Clock
from appliance.base.errors import StoreUnavailable
from appliance.core.core_settings import CoreSettings, CoreStores
from appliance.router.escalation_planner import ApiEscalation, RequestAnswer
from appliance.store.rows import alert_of
from appliance.store.write_backlog import WriteBacklog
from appliance.types import Alert, AlertChange, Route
from appliance.version import version

logger = logging.getLogger(__name__)

RECHECKS_PER_RUN = 8  # alerts in one turn; frames wait meanwhile
_ASKED = {
    "ready": "it is being sent already",
    "sent": "the cloud has it already, and has not answered yet",
    "settled": "the cloud has answered already",
    "expired": "it was asked about, and no answer came in time",
}


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
            chance = max(row.inputs.chance, row.confidence) if row.rechecked != "unsure" else row.inputs.chance
            known = replace(row.inputs, rechecked=row.rechecked, chance=chance)
            camera = settings.cameras.get(row.alert.camera)
            alert = alert_of(row.alert)
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
        asked = _ASKED.get(found.alert.delivery or "")
        if asked:
            return RequestAnswer(False, asked)
        camera, alert, now = settings.cameras.get(found.alert.camera), alert_of(found.alert), self._clock.now()
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
