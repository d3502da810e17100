"""`/api/v1/analyze`: a picture or clip and a question in; boxes, answer, tier, confidence and cost out.

The appliance's detector answers first. A question that it cannot answer is processed like an alert of the named camera
(privacy, router, budgets, outbox, worker), and the answer is then at the status URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import Depends, Response

from appliance.base.analyze_protocol import (
    PATH,
    AnalyzeAnswer,
    AnalyzeAnswers,
    AnalyzeBox,
    AnalyzeCost,
    AnalyzeItem,
    AnalyzeRequest,
    RequestRate,
    media_kind,
)
from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError
from appliance.config import CameraConfig, DecisionConfig
from appliance.dashboard.deps import CoreProbes
from appliance.evidence.privacy import PrivacyRules
from appliance.evidence.uploaded_media import ASKED, UploadedFrame, UploadReader
from appliance.router.escalation_planner import API_RULE, ApiEscalation
from appliance.sandbox.sandbox import SandboxError
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.costs import price_work
from appliance.store.verdict_stats import DailyJudgeWork
from appliance.types import Box, RecheckResult, TrackStability
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import VisitorSlots, visitor, visitor_keys
from appliance.wire import BY_APPLIANCE, analyze_answer

AT_ONCE_MAX = 2  # requests; each holds a decoder and up to 12 MB
AT_ONCE_EACH_MAX = 1  # of one account or address
_DIGITS = 6  # decimals of money, as in the router's rows
_NO_PIXELS = "the privacy rules of this camera keep its pictures on the appliance"
_WORDS = "a question in words is for the cloud model, and tier edge forbids it: name a label, or leave tier out"


class TooMany(Exception):
    """More requests come at once than can be served."""


@dataclass(frozen=True, slots=True)
class EdgeLook:
    """The local detector's answer to an item. chance: that the label is there; None: no label, or nobody looked."""

    boxes: list[AnalyzeBox] = field(default_factory=list)
    score: float = 0.0
    chance: float | None = None
    model: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AnalyzeSettings:
    """The parts of the site file by which pictures are answered. per_minute: items of one caller."""

    decisions: DecisionConfig
    per_minute: int
    currency: str
    privacy: PrivacyRules


class AnalyzeCallers:
    """Counts who asks. State: how many requests are under way, and what each caller has left of a minute."""

    def __init__(self, clock: Clock) -> None:
        busy = "Too many pictures are being looked at; try again in a moment."
        self.slots = VisitorSlots(AT_ONCE_MAX, AT_ONCE_EACH_MAX, TooMany, busy, "Send one request after the other.")
        self.rate = RequestRate(clock.monotonic)


@dataclass(frozen=True, slots=True)
class ImageAnalyzer:
    """Answers items, one after the other, in the thread of the request. detect: finds objects in JPEG pictures."""

    settings: AnalyzeSettings
    alerts: AlertStore
    uploads: UploadReader
    detect: Callable[[str, Sequence[bytes]], RecheckResult] | None
    probes: CoreProbes
    clock: Clock
    callers: AnalyzeCallers

    def admit(self, request: AnalyzeRequest) -> None:
        """Raise Problem unless the visitor may ask all this of these cameras, now."""
        cameras: Mapping[str, CameraConfig] = self.settings.decisions.cameras
        for each in request.items:
            if each.camera not in cameras or not visitor().sees(each.camera):
                raise Problem(404, f"There is no camera {each.camera} among yours.")
        per_minute = self.settings.per_minute
        if not per_minute:
            raise Problem(403, "This appliance takes no pictures: dashboard.analyze_per_minute is 0.")
        wait_s = self.callers.rate.take(" ".join(visitor_keys()[:1]), len(request.items), per_minute)
        if wait_s:
            seconds = int(wait_s) + 1
            text = f"You may send {per_minute} pictures a minute (dashboard.analyze_per_minute): wait {seconds} s."
            raise Problem(429, text, {"Retry-After": str(seconds)})

    def answer(self, item: AnalyzeItem) -> AnalyzeAnswer:
        """Answer one item; what cannot be answered is refused with its reason. Raise StoreError."""
        refused = AnalyzeAnswer(camera=item.camera, status="refused")
        kind, camera = media_kind(item.media), self.settings.decisions.cameras[item.camera]
        if kind is None:
            return refused.model_copy(update={"reason": "media is no JPEG, PNG, WebP or MP4"})
        t = self.clock.now() if item.t is None else item.t
        try:
            frames = self.uploads.frames(item.media, clip=kind == "clip", camera=camera, t=t)
        except (EvidenceError, SandboxError) as error:
            return refused.model_copy(update={"reason": sentence(error)})
        look = self._look(item, frames)
        edge = _edge_answer(item, look)
        if item.tier == "edge" or not (item.question or item.label):
            if item.question:
                return edge.model_copy(update={"status": "refused", "reason": _WORDS})
            return edge
        return self._ask(item, frames, look, edge, t)

    def status(self, detail: AlertDetail) -> AnalyzeAnswer:
        """Return the answer as it stands; its boxes came with the first one. Raise Problem if nothing was asked."""
        alert, escalation, verdict = detail.alert, detail.escalation, detail.verdict
        if escalation is None or API_RULE not in alert.rules:
            raise Problem(404, "Nothing was asked under this id.")
        url = f"{PATH}/{alert.id}"
        if verdict is not None:
            answer = analyze_answer(verdict.body, self._cost(detail), url)
            tier = "edge" if verdict.body.answered_by == BY_APPLIANCE else answer.tier
            return answer.model_copy(update={"camera": alert.camera, "tier": tier})
        status: Literal["refused", "pending"] = "refused" if escalation.state == "expired" else "pending"
        reason = escalation.error or (f"it waits: {escalation.wait}" if escalation.wait else "")
        return AnalyzeAnswer(id=alert.id, camera=alert.camera, status=status, reason=reason, status_url=url)

    def detail(self, name: str) -> AlertDetail:
        """Return what is stored of a question. Raise Problem if there is none, StoreError."""
        found = self.alerts.get(name)
        if found is None:
            raise Problem(404, "Nothing was asked under this id.")
        return found

    def _look(self, item: AnalyzeItem, frames: list[UploadedFrame]) -> EdgeLook:
        if self.detect is None:
            return EdgeLook(error="no detector runs here")
        found: RecheckResult = self.detect(item.camera, [each.shown for each in frames])
        if found.error:
            return EdgeLook(error=found.error)
        boxes = [
            AnalyzeBox(label=each.label, score=each.score, box=each.box, t=round(frames[int(sighting.t)].t, 3))
            for sighting in found.sightings
            for each in sighting.found
        ]
        score = max((each.score for each in boxes if each.label == item.label), default=0.0)
        calibration = self.probes.calibration()
        chance = calibration.probability(item.camera, item.label, TrackStability(score=score)) if item.label else None
        return EdgeLook(boxes, score, chance, found.model, seconds=found.ms / 1000)

    def _ask(
        self, item: AnalyzeItem, frames: list[UploadedFrame], look: EdgeLook, edge: AnalyzeAnswer, t: float
    ) -> AnalyzeAnswer:
        """Hand it to the core, which decides as about an alert; its refusal leaves the appliance's own answer."""

        def kept(why: str) -> AnalyzeAnswer:
            if edge.answer and item.tier == "auto" and not item.question:
                return edge.model_copy(update={"flagged": why})
            return edge.model_copy(update={"status": "refused", "tier": "", "answer": "", "reason": sentence(why)})

        if not self.settings.privacy.lets_frames_leave(item.camera, t):
            return kept(_NO_PIXELS)
        if self.probes.escalate is None:
            return kept("this site has no uplink")
        name = f"{ASKED}{uuid4().hex[:16]}"
        requested = item.tier == "cloud" or bool(item.question) or bool(look.error)
        asked = ApiEscalation(name, item.camera, item.label, item.question, look.score, t, (), requested, look.model)
        try:
            seen = [_best_box(look.boxes, item.label, each) for each in frames]
            images = self.uploads.keep(name, self.settings.decisions.cameras[item.camera], frames, seen)
            decided = self.probes.escalate(replace(asked, images=images))
        except EvidenceError as error:
            self.uploads.forget(name)
            return kept(str(error))
        if not decided.accepted:
            self.uploads.forget(name)
            return kept(decided.reason)
        route = decided.route
        cost = AnalyzeCost(currency=self.settings.currency, estimated=True)
        if route is not None:
            due = route.cost
            cost = cost.model_copy(update={"money": due.money, "gpu_s": due.gpu_s, "bytes": due.bytes})
        flagged = (route.cascade.flagged if route else "") if edge.answer else ""
        later = {"id": name, "status": "pending", "cost": cost, "flagged": flagged, "status_url": f"{PATH}/{name}"}
        return edge.model_copy(update={**later, "reason": decided.reason})

    def _cost(self, detail: AlertDetail) -> AnalyzeCost:
        escalation, verdict = detail.escalation, detail.verdict
        assert escalation is not None
        assert verdict is not None
        body = verdict.body
        if body.answered_by == BY_APPLIANCE:
            return AnalyzeCost(currency=self.settings.currency, bytes=escalation.bytes_sent)
        work = DailyJudgeWork(
            day="", camera=escalation.camera, verdicts=1, judge_s=body.seconds, tokens_in=body.tokens_in,
            tokens_out=body.tokens_out, bytes=escalation.bytes_sent,
        )  # fmt: skip
        return AnalyzeCost(
            money=round(price_work(work, self.settings.decisions.escalation.prices).total, _DIGITS),
            currency=self.settings.currency, gpu_s=body.seconds, bytes=escalation.bytes_sent,
            tokens_in=body.tokens_in, tokens_out=body.tokens_out,
        )  # fmt: skip


def _best_box(boxes: Sequence[AnalyzeBox], label: str, frame: UploadedFrame) -> Box | None:
    found = [each for each in boxes if each.label == label and each.t == round(frame.t, 3)]
    return max(found, key=lambda each: each.score).box if found else None


def _edge_answer(item: AnalyzeItem, look: EdgeLook) -> AnalyzeAnswer:
    """Return the appliance's own answer; refused if its detector could not look."""
    answer = AnalyzeAnswer(camera=item.camera, status="answered", boxes=look.boxes, model=look.model)
    if look.error:
        return answer.model_copy(update={"status": "refused", "reason": f"The detector did not look: {look.error}."})
    update: dict[str, object] = {"timings": {"detect": round(look.seconds, 4)}}
    if item.label and look.chance is not None:
        yes = look.score > 0
        confidence = round(look.chance if yes else 1 - look.chance, 4)
        found = f"{item.label}, {look.score:.2f}" if yes else f"no {item.label}"
        update |= {"tier": "edge", "answer": "yes" if yes else "no", "confidence": confidence}
        update["reason"] = f"The detector found {found}."
    return answer.model_copy(update=update)


Analyzer = Annotated[ImageAnalyzer, Depends(provided(ImageAnalyzer))]
router = RouteList(prefix=PATH, tags=["analyze"])


@router.post("", responses={202: {"model": AnalyzeAnswers, "description": "An answer is pending: ask its status_url"}})
def analyze(analyzer: Analyzer, request: AnalyzeRequest, response: Response) -> AnalyzeAnswers:
    """Ask about pictures or clips: the appliance answers what it can, the cloud model the rest, later.

    429: more came than dashboard.analyze_per_minute allows; Retry-After says when.
    """
    try:
        give_back = analyzer.callers.slots.take()
    except TooMany as error:
        raise Problem(429, str(error), {"Retry-After": "1"}) from None
    try:
        analyzer.admit(request)
        answers = [analyzer.answer(each) for each in request.items]
    finally:
        give_back()
    if any(each.status == "pending" for each in answers):
        response.status_code = 202
    return AnalyzeAnswers(items=answers)


@router.get("/{alert_id}")
def analysis(analyzer: Analyzer, alert_id: str) -> AnalyzeAnswer:
    """Return the answer to a question that was pending."""
    return analyzer.status(analyzer.detail(alert_id))
