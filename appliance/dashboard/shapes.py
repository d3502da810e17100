"""The JSON of the HTTP API. Fields may be added; those that stand here stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from appliance.store.cameras import CameraRow
from appliance.store.health import HealthRow
from appliance.store.rows import (
    AlertDetail,
    AlertRow,
    Delivery,
    EscalationRow,
    EvidenceRow,
    EvidenceState,
    StepEvidence,
    StepRow,
)
from appliance.types import (
    Box,
    CameraStateName,
    Decision,
    DecodeState,
    EventKind,
    Gap,
    HealthKind,
    Review,
    Severity,
    ShedReason,
    TrackedObject,
)
from appliance.wire import Need, Verdict

API = "/api/v1"
Standing = Literal["edge", "unverified", "confirmed", "withdrawn", "unsure"]


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class AlertItem(Shape):
    """An alert as lists show it. Times are UTC seconds; `t_end` null while it lasts; links null until ready.

    `best_box`: where the flagged object was in its best view, of which the still is cut; null: not known.
    `delivery` null: the alert was settled on the edge, nothing was asked of the cloud. `standing`: edge (nobody else
    was asked), unverified (asked, no answer yet, or none came), and then confirmed, withdrawn or unsure.
    """

    id: str
    camera: str
    title: str
    severity: Severity
    rules: tuple[str, ...]
    labels: tuple[str, ...]
    tracks: tuple[int, ...]
    score: float
    best_box: Box | None
    t_start: float
    t_end: float | None
    end_reason: str
    verdict: Decision | None
    delivery: Delivery | None
    standing: Standing
    review: Review | None
    review_t: float | None
    rev: int
    still: str | None
    still_state: EvidenceState | None
    clip: str | None
    page: str
    camera_page: str

    @classmethod
    def of(cls, row: AlertRow) -> AlertItem:
        evidence = f"{API}/alerts/{quote(row.id, safe='')}/evidence"
        return cls(
            id=row.id, camera=row.camera, title=_title(row), severity=row.severity, rules=row.rules, labels=row.labels,
            tracks=row.tracks, score=row.score,
            best_box=row.best.box if row.best else None, t_start=row.t_start, t_end=row.t_end,
            end_reason=row.end_reason, verdict=row.verdict, delivery=row.delivery,
            standing=_standing(row), review=row.review,
            review_t=row.review_t, rev=row.rev,
            still=f"{evidence}/still.jpg" if row.still == "ready" else None, still_state=row.still,
            clip=f"{evidence}/clip.mp4" if row.clip == "ready" else None,
            page=f"/alerts/{quote(row.id, safe='')}", camera_page=f"/cameras/{quote(row.camera, safe='')}",
        )  # fmt: skip


def _standing(row: AlertRow) -> Standing:
    if row.verdict is None:
        return "edge" if row.delivery is None else "unverified"
    return "withdrawn" if row.verdict == "rejected" else row.verdict


def _title(row: AlertRow) -> str:
    labels = " and ".join(row.labels[:2]) or "Something"
    return labels[:1].upper() + labels[1:] + (f" and {len(row.labels) - 2} more" if len(row.labels) > 2 else "")


HEALTH_TITLES: dict[HealthKind, str] = {
    "stalled": "No picture comes",
    "frozen": "Frozen picture",
    "black": "Black picture",
    "covered": "Covered or out of focus",
    "moved": "Camera moved",
    "clock": "Clock jumped",
    "detector": "Detector stuck",
    "unexamined": "Not examined",
}
LEARNABLE: frozenset[HealthKind] = frozenset({"black", "covered", "moved"})


class HealthItem(Shape):
    """Something was not as it should be; `camera` "" for the box, `t_end` null while it lasts.

    told_t: when it was noticed. recovery: what was tried last, attempts: how often; times: how often it came back.
    seen_t: when a person said that it was seen. learnable: seen means that what is seen now is right.
    """

    id: str
    camera: str
    kind: HealthKind
    title: str
    t_start: float
    t_end: float | None
    told_t: float
    reason: str
    recovery: str
    attempts: int
    times: int
    ended_by: str
    seen_t: float | None
    learnable: bool
    rev: int
    url: str
    camera_page: str | None

    @classmethod
    def of(cls, row: HealthRow) -> HealthItem:
        return cls(
            id=row.id, camera=row.camera, kind=row.kind, title=HEALTH_TITLES[row.kind], t_start=row.t_start,
            t_end=row.t_end, told_t=row.told_t, reason=row.reason, recovery=row.recovery, attempts=row.attempts,
            times=row.times, ended_by=row.ended_by, seen_t=row.seen_t, learnable=row.kind in LEARNABLE, rev=row.rev,
            url=f"{API}/health/events/{quote(row.id, safe='')}",
            camera_page=f"/cameras/{quote(row.camera, safe='')}" if row.camera else None,
        )  # fmt: skip


class HealthPage(Shape):
    """`next` is the query of the page with older events; null: there are none."""

    events: list[HealthItem]
    next: str | None


class AlertPage(Shape):
    """`next` is the query of the page with older alerts; null: there are none."""

    alerts: list[AlertItem]
    next: str | None


class EventItem(Shape):
    """A rule fired."""

    id: str
    rule: str
    kind: EventKind
    track: int
    label: str
    score: float
    t: float
    box: Box
    zone: str
    line: str
    severity: Severity


class EvidenceItem(Shape):
    """One piece of evidence; `url` null unless the state is ready, `reason` says why it is missing."""

    kind: str
    n: int
    state: EvidenceState
    url: str | None
    t_start: float
    t_end: float
    bytes: int
    sha256: str
    width: int
    height: int
    box: Box | None
    reason: str

    @classmethod
    def of(cls, row: EvidenceRow) -> EvidenceItem:
        name = EVIDENCE_NAMES.get(row.kind) if row.n == 0 else None
        ready = row.state == "ready" and name is not None
        return cls(
            kind=row.kind, n=row.n, state=row.state, t_start=row.t_start, t_end=row.t_end, bytes=row.bytes,
            sha256=row.sha256, width=row.width, height=row.height, box=row.box, reason=row.reason,
            url=f"{API}/alerts/{quote(row.alert, safe='')}/evidence/{name}" if ready else None,
        )  # fmt: skip


EVIDENCE_NAMES = {"still": "still.jpg", "clip": "clip.mp4", "boxes": "boxes.json"}


class StepItem(Shape):
    """One message of the question: the evidence it brought ("" while it is made), and what it put on the uplink.

    `need`: what the cloud then asked to see, because of `reason`; null: nothing more.
    """

    n: int
    evidence: StepEvidence | Literal[""]
    bytes: int
    need: Need | None
    reason: str

    @classmethod
    def of(cls, row: StepRow) -> StepItem:
        answer = row.answer
        need, reason = (answer.need, answer.reason) if answer else (None, "")
        return cls(n=row.n, evidence=row.evidence, bytes=row.bytes_sent, need=need, reason=reason)


class DeliveryItem(Shape):
    """How far the question to the cloud got. `bytes` counts payload and headers, retries included, of all `steps`."""

    escalation: str
    state: Delivery
    priority: str
    created_t: float
    sent_t: float | None
    settled_t: float | None
    attempts: int
    bytes: int
    error: str
    steps: tuple[StepItem, ...] = ()

    @classmethod
    def of(cls, row: EscalationRow, steps: Sequence[StepRow]) -> DeliveryItem:
        return cls(
            escalation=row.id, state=row.state, priority=row.priority, created_t=row.created_t, sent_t=row.sent_t,
            settled_t=row.settled_t, attempts=row.attempts, bytes=row.bytes_sent, error=row.error,
            steps=tuple(StepItem.of(step) for step in steps if step.escalation == row.id),
        )  # fmt: skip


class AlertFull(Shape):
    """Everything about one alert. `verdict` and `delivery` null: there is none."""

    alert: AlertItem
    events: list[EventItem]
    evidence: list[EvidenceItem]
    delivery: DeliveryItem | None
    verdict: Verdict | None

    @classmethod
    def of(cls, detail: AlertDetail) -> AlertFull:
        asked, answer = detail.escalation, detail.verdict
        return cls(
            alert=AlertItem.of(detail.alert),
            events=[EventItem.model_validate(event) for event in detail.events],
            evidence=[EvidenceItem.of(row) for row in detail.evidence],
            delivery=DeliveryItem.of(asked, detail.steps) if asked else None,
            verdict=answer.body if answer else None,
        )


class ReviewChange(BaseModel):
    """What a person says of an alert; null takes it back."""

    model_config = ConfigDict(extra="forbid")
    review: Review | None


class CameraItem(Shape):
    """A camera and what it last said. `source` is its URL without the password; width 0: not opened yet."""

    name: str
    state: CameraStateName
    reason: str
    since_t: float
    source: str
    model: str
    width: int
    height: int
    rev: int
    url: str
    page: str
    picture: str
    boxes: str

    @classmethod
    def of(cls, row: CameraRow) -> CameraItem:
        name = quote(row.name, safe="")
        return cls(
            name=row.name, state=row.state, reason=row.reason, since_t=row.since_t, source=row.source, model=row.model,
            width=row.size[0], height=row.size[1], rev=row.rev, url=f"{API}/cameras/{name}", page=f"/cameras/{name}",
            picture=f"{API}/cameras/{name}/picture", boxes=f"{API}/cameras/{name}/boxes",
        )  # fmt: skip


class GapItem(Shape):
    """Nothing was received; `t_end` null while it lasts."""

    t_start: float
    t_end: float | None
    reason: str


class CameraFull(CameraItem):
    """One camera with its numbers: fps of the newest recording, looks a second over the last seconds, today's sums.

    decoding: all of its pictures (`everything`, by order or because the stream allows nothing else), all while
    something may happen (`active`), key frames only (`idle`); null: not known yet. skipped_today: packets not decoded.
    unexamined_why_today: `unexamined_today` by reason, see docs/scheduling.md. behind_s:
    how late its packets are read; beyond 2 s they are recorded and not looked at.
    """

    codec: str = ""
    fps: float | None = None
    looks_fps: float | None = None
    received_today: int = 0
    received_exact: bool = True
    examined_today: int = 0
    unexamined_today: int = 0
    unexamined_why_today: dict[ShedReason, int] = {}
    reconnects_today: int = 0
    decoding: DecodeState | None = None
    decoding_reason: str = ""
    behind_s: float = 0.0
    decoded_today: int = 0
    skipped_today: int = 0
    zones: dict[str, tuple[tuple[float, float], ...]] = {}
    lines: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {}
    gaps: list[GapItem] = []


def gap_items(gaps: list[Gap]) -> list[GapItem]:
    return [GapItem.model_validate(gap) for gap in gaps]


class FrameItem(Shape):
    """What is known of one examined frame. `looked` false: the detector gave no answer, `objects` says nothing."""

    t: float
    looked: bool
    objects: tuple[TrackedObject, ...]
