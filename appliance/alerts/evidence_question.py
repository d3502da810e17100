"""Gives each message of a question its evidence: cut-outs, the whole picture, a short clip, as the plan says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from appliance import wire
from appliance.alerts.evidence_cover import (
    BOXES_WAIT_S,
    ENDED_GRACE_S,
    FRAMES_WAIT_S,
    Coverage,
    Outcome,
    Patience,
    Recording,
    disk_may_recover,
)
from appliance.alerts.evidence_exhibit import Exhibit, Exhibits
from appliance.alerts.evidence_moments import Moment
from appliance.alerts.evidence_plan import FACTS_ALONE, Plan, moments_of, plan
from appliance.alerts.evidence_still import Still, cut_stills
from appliance.alerts.evidence_veil import HIDDEN, Veil
from appliance.config import SiteConfig
from appliance.errors import EvidenceError
from appliance.store.alerts import Alerts
from appliance.store.boxes import Boxes
from appliance.store.database import Database
from appliance.store.evidence import Evidence
from appliance.store.rows import AlertDetail, EscalationRow
from appliance.types import Event

CLIP_AFTER_S = 1.0  # what somebody does next is part of what they did

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Case:
    """One question while it is served. due: what is not there now is not waited for any longer."""

    asked: EscalationRow
    detail: AlertDetail
    plan: Plan
    due: bool
    age_s: float
    event: Event
    made: list[Exhibit] = field(default_factory=list)


class QuestionEvidence:
    """Turns waiting escalations into ready ones. Owner: the evidence maker's thread.

    Invariant: the first message of a question leaves `waiting` with all the pictures that could be had; after
    `FRAMES_WAIT_S` it goes with those there are, if need be with none: a question without pictures is worth more than
    no question. A later message goes with what was asked for or not at all, and the question then ends as `unsure`.
    """

    def __init__(self, db: Database, root: Path, config: SiteConfig, recording: Recording, patience: Patience) -> None:
        self._alerts = Alerts(db)
        self._boxes = Boxes(db)
        self._evidence = Evidence(db)
        self._config = config
        self._settings = config.escalation
        self._recording = recording
        self._patience = patience
        self._veils = {name: Veil(camera) for name, camera in config.cameras.items()}
        self._exhibits = Exhibits(root, config.escalation, recording, self._veil_of, self._boxes)

    @staticmethod
    def key(asked: EscalationRow) -> str:
        """Under which the patience with this message is kept."""
        return f"frames {asked.id} {asked.step}"

    def serve(self, asked: EscalationRow) -> Outcome:
        """Make one escalation ready if its time has come. Raises StoreError."""
        case = self._case(asked)
        if case is None:
            return "nothing"
        if case.plan is FACTS_ALONE and asked.step:
            return self._over(case, "this site sends no pictures")
        if asked.need == "clip" and not case.plan.clip:
            return self._over(case, "this camera sends no clips: its pictures are veiled")
        moments = self._moments(case)
        if not case.due and (moments is None or any(self._covered(case, each.t) == "later" for each in moments)):
            return "nothing"
        if case.plan.clip and not case.due and self._recording.covered_until(asked.camera) < _clip_end(case.event):
            return "nothing"
        return self._make(case, moments or [])

    def _case(self, asked: EscalationRow) -> _Case | None:
        age_s = self._patience.age_s(self.key(asked))
        detail = self._alerts.get(asked.alert)
        if detail is None or not self._patience.may_try(self.key(asked)):
            return None
        clips = not self._veil_of(asked.camera).mark
        chosen = plan(asked.evidence or self._settings.first, asked.need or None, asked.step, clips=clips)
        if self._config.image_free(asked.camera):
            chosen = FACTS_ALONE
        over = age_s >= ENDED_GRACE_S and self._recording.over(asked.camera)
        due = over or age_s >= FRAMES_WAIT_S or self._recording.off(asked.camera)
        return _Case(asked, detail, chosen, due, age_s, _event_of(asked, detail))

    def _veil_of(self, camera: str) -> Veil:
        """Of a camera that is no longer in the site file: all is hidden."""
        return self._veils.get(camera, HIDDEN)

    def _covered(self, case: _Case, t: float) -> Coverage:
        return self._recording.coverage(case.asked.camera, t)

    def _moments(self, case: _Case) -> list[Moment] | None:
        """When the pictures are taken; None: the boxes of the event's frame are not in the table yet."""
        if case.plan.cut == "none":
            return []
        event, camera = case.event, case.asked.camera
        newest = self._boxes.latest(camera)
        patient = case.age_s < BOXES_WAIT_S and not case.due
        if patient and (newest is None or newest.t < event.t):
            return None
        run = case.detail.alert.run or None
        seen = self._boxes.span(camera, event.t - self._settings.span_s, event.t, run=run)
        return moments_of(case.plan.cut, self._settings, event, seen, case.detail.alert.best)

    def _make(self, case: _Case, moments: Sequence[Moment]) -> Outcome:
        there = [each for each in moments if self._covered(case, each.t) == "ready"]
        try:
            shots = self._cut(case.asked, there)
            if there and not shots and not case.due:
                self._patience.failed(self.key(case.asked))
                return "nothing"
            case.made = self._exhibits.pictures(case.detail, case.plan.cut, shots)
            if case.plan.cut == "frame" and not case.made:
                case.made = self._exhibits.still_as_frame(case.detail)
            if case.plan.clip:
                case.made += self._exhibits.clip(case.detail, *self._clip_span(case))
        except EvidenceError as error:
            self._patience.failed(self.key(case.asked))
            if disk_may_recover(error, case.age_s):
                logger.info("the evidence of escalation %s waits: %s", case.asked.id, error)
                return "nothing"
            if case.asked.step:
                return self._over(case, str(error))
        return self._send(case)

    def _clip_span(self, case: _Case) -> tuple[float, float, float]:
        return case.event.t - self._settings.span_s, case.event.t, _clip_end(case.event)

    def _cut(self, asked: EscalationRow, moments: Sequence[Moment]) -> list[tuple[Moment, Still]]:
        if not moments:
            return []
        segments = self._recording.of(asked.camera, moments[0].t - 1, moments[-1].t + 1)
        try:
            return list(zip(moments, cut_stills(segments, [each.t for each in moments]), strict=True))
        except EvidenceError:
            pass  # one bad frame spoils the batch: take them one by one
        pictures = []
        for moment in moments:
            try:
                pictures.append((moment, cut_stills(segments, [moment.t])[0]))
            except EvidenceError as error:
                logger.info("a frame for escalation %s is missing: %s", asked.id, error)
        return pictures

    def _send(self, case: _Case) -> Outcome:
        asked, chosen = case.asked, case.plan
        known = {ref.id for ref in asked.body.media}
        new = {each.ref.id: each for each in case.made if each.ref.id not in known}
        if asked.step and not new:
            seen = "it has seen all of that already" if case.made else self._recording.lack(asked.camera)
            return self._over(case, seen)
        if not new and (chosen.cut != "none" or chosen.clip):
            logger.warning("escalation %s goes without pictures: none could be cut", asked.id)
        body = asked.body.model_copy(
            update={"step": asked.step, "can": chosen.can, "image_free": chosen is FACTS_ALONE}
        )
        first = len(known)
        media = [each.media(asked.id, first + n) for n, each in enumerate(new.values())]
        evidence = chosen.evidence if new else "facts"
        if not self._evidence.make_ready(body, media, [each.row for each in new.values()], evidence):
            return "nothing"
        return "made" if new or chosen.evidence == "facts" else "missing"

    def _over(self, case: _Case, why: str) -> Outcome:
        """What the cloud asked for cannot be had: the question ends as it answered it."""
        logger.warning("escalation %s ends as unsure: %s", case.asked.id, why)
        return "missing" if self._evidence.give_up(case.asked, why) else "nothing"


def _event_of(asked: EscalationRow, detail: AlertDetail) -> Event:
    """The event that was asked about; as the question tells it, when the table does not hold it."""
    same = [event for event in detail.events if event.rule == asked.body.rule] or list(detail.events)
    found = min(same, key=lambda event: abs(event.t - asked.body.t), default=None)
    return found or _told(asked.body)


def _told(body: wire.Escalation) -> Event:
    return Event(camera=body.camera, rule=body.rule, kind="enter", track=-1, label=body.label, t=body.t)


def _clip_end(event: Event) -> float:
    return event.t + CLIP_AFTER_S
