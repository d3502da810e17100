"""What the core would ask the cloud about a replayed camera, and the bytes it would send for that."""

from __future__ import annotations

import av

from appliance import wire
from appliance.config import SiteConfig
from appliance.escalate import router
from appliance.escalate.media import Message
from appliance.replay.pictures import Album
from appliance.types import Alert, AlertChange, Event, FrameBoxes, Route, Step


class Routing:
    """The router's decisions of one camera, as the core takes them: an alert is asked about once, at the first of its
    events that the router wants to ask about.

    State: which open alerts were asked about, or why not. Nothing is held for a site that never asks.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str) -> None:
        self._site = config.site.name
        self._settings = config.escalation
        self._uplink = config.uplink is not None
        self._rules = {rule.name: rule for rule in config.cameras[camera].rules}
        self._model = model
        self._album = Album(config.site.name, config.escalation)
        self._told: dict[str, router.Decision] = {}

    def begin(self) -> None:
        """A run begins: tracks of before are others."""
        self._album.clear()

    def look(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame, before what it decides is handed to `decide`."""
        if self._uplink and self._settings.enabled:
            self._album.look(boxes, picture)

    def decide(self, step: Step) -> tuple[Route, ...]:
        """One route for each alert that was opened, and another when a later event changes the router's mind."""
        routes = []
        for change in step.changes:
            route = self._decide(change)
            if route is not None:
                routes.append(route)
            if change.kind == "ended":
                self._told.pop(change.alert.id, None)
        return tuple(routes)

    def _decide(self, change: AlertChange) -> Route | None:
        alert, event = change.alert, change.event
        told = self._told.get(alert.id)
        if event is None or (told is not None and told.ask):
            return None
        decision = router.decide(alert, self._rules[event.rule], self._settings, uplink=self._uplink)
        if decision == told:
            return None
        self._told[alert.id] = decision
        route = Route(
            camera=alert.camera, alert=alert.id, event=event.id, t=event.t, ask=decision.ask, reason=decision.reason
        )
        return self._asked(route, alert, event, decision.priority) if decision.ask else route

    def _asked(self, route: Route, alert: Alert, event: Event, priority: str) -> Route:
        question = router.build(alert, event, self._rules[event.rule], site=self._site, now=event.t, model=self._model)
        pictures = self._album.pictures(alert, event)
        body = question.model_copy(update={"media": pictures.refs}).to_json()
        subject = wire.escalation_subject(self._site, priority)
        facts = Message(subject, body, {"Nats-Msg-Id": wire.message_id(self._site, question.id)}, "facts")
        return Route(
            camera=route.camera,
            alert=route.alert,
            event=route.event,
            t=route.t,
            ask=True,
            priority=priority,
            reason=route.reason,
            question=question.question,
            bytes=facts.size + pictures.bytes,
            message_bytes=facts.size,
            picture_bytes=pictures.bytes,
            pictures=pictures.count,
            pictures_guessed=pictures.guessed,
        )
