"""What the core would ask the cloud about a replayed camera, and the bytes it would send for that."""

from __future__ import annotations

from dataclasses import replace

import av

from appliance.clock import film_period
from appliance.config import SiteConfig
from appliance.escalate.router.outlook import Outlook
from appliance.escalate.router.planner import Plan, Planner
from appliance.privacy import PrivacyRules
from appliance.replay.answers import Question
from appliance.replay.cassette_questions import question_of
from appliance.replay.pictures import Album
from appliance.rules.schedule import Wall, off_peak_in_s
from appliance.types import AlertChange, FrameBoxes, Route, Step, StreamHeader


def outlook_of(config: SiteConfig, wall: Wall | None = None) -> Outlook:
    """What the router knows beyond one camera, in a replay: the site file's budgets, off-peak hours where the footage
    has a time of day, nothing of link and box, and nothing learnt."""
    privacy = PrivacyRules(config, wall)
    return Outlook.of(config, film_period, off_peak_in_s(config.escalation.off_peak, wall), privacy.of)


class Routing:
    """The decisions of one camera by the planner that the core uses, with the bytes of what it would ask.

    State: the planner's, the last looks with their pictures, the questions of the last `decide`. Nothing is held for a
    site that never asks.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str, outlook: Outlook | None = None) -> None:
        """outlook: what the cameras of one replay share."""
        self._asks = config.uplink is not None and config.escalation.enabled
        self._camera = camera
        self._model = model
        self._planner = Planner(config, camera, outlook or outlook_of(config))
        self._album = Album(config, camera)
        self._t = 0.0
        self._questions: tuple[Question, ...] = ()
        self.begin()

    def begin(self, header: StreamHeader | None = None) -> None:
        """A run begins: tracks of before are others."""
        self._album.clear()
        self._planner.begin(header or StreamHeader(camera=self._camera, clip="", model=self._model, size=(0, 0)))

    def look(self, boxes: FrameBoxes, picture: av.VideoFrame) -> None:
        """The picture of an examined frame, before what it decides is handed to `decide`."""
        self._t = boxes.t
        self._planner.look(boxes)
        if self._asks:
            self._album.look(boxes, picture)

    def decide(self, step: Step) -> tuple[Route, ...]:
        """One route for each alert that was opened, and another when a later event changes the router's mind."""
        routes, questions = [], []
        for change in step.changes:
            now = self._t if change.event is None else change.event.t
            plan = self._planner.plan(change, now)
            if plan is None:
                continue
            route, question = self._measured(plan, change)
            routes.append(route)
            questions += [question] if question else []
        self._questions = tuple(questions)
        return tuple(routes)

    def questions(self) -> tuple[Question, ...]:
        """Those of the last `decide`, as they would be sent; the pictures of later messages can be cut until the next
        look."""
        return self._questions

    def _measured(self, plan: Plan, change: AlertChange) -> tuple[Route, Question | None]:
        """The route with the bytes of its question in place of those expected; none for one that was put off before."""
        route = plan.route
        if plan.escalation is None:
            return route, None
        if plan.again:
            return replace(route, bytes=0, message_bytes=0, picture_bytes=0), None
        pictures = self._album.pictures(change.alert, plan.event, route.evidence)
        question = question_of(self._album, change.alert, plan.event, plan.escalation, pictures, route.priority)
        measured = replace(
            route,
            bytes=question.bytes,
            message_bytes=question.bytes - pictures.bytes,
            picture_bytes=pictures.bytes,
            pictures=pictures.count,
            pictures_guessed=pictures.guessed,
        )
        return measured, question
