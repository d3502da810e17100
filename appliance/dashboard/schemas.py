"""Defines the JSON of alerts, and of what all of the HTTP API uses. Fields may be added, but none removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from appliance.store.alert_rows import AlertRow, EvidenceRow, EvidenceState, FirstEvent, Standing
from appliance.store.alerts import AlertDetail
from appliance.store.decisions import DecisionRow
from appliance.store.escalations import Delivery, EscalationRow, StepEvidence, StepRow
from appliance.store.reviews import ChangeRow, RecheckState
from appliance.types import (
    CONFIRMING_KINDS,
    Box,
    Decision,
    EdgeAnswer,
    EdgeVerdict,
    EventKind,
    JudgeKind,
    Review,
    SendTiming,
    Severity,
    Tier,
    TrackedObject,
)
from appliance.web.texts import gettext as _
from appliance.web.texts import tell
from appliance.web.visitor import visitor
from appliance.wire import Need, Verdict

API = "/api/v1"
BULK_MAX = 100  # alerts that one request changes; the page sends several
NOTE_LENGTH_MAX = 1000  # characters, as keep.scenario_store.NOTE_LENGTH_MAX
DELETE_REASON_LENGTH_MAX = 200  # characters, a sentence

Item = TypeVar("Item", bound="ApiModel")


class ApiModel(BaseModel):
    # A validator is built when it is first used: those of pages that nobody opens would take megabytes for years.
    model_config = ConfigDict(frozen=True, from_attributes=True, defer_build=True)

    @classmethod
    def of_row(cls: type[Item], row: object, **more: object) -> Item:
        """Return the item with the values of `row` under the same names, and with `more`."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields if name not in more}, **more)


Flag = Annotated[bool, Field(strict=True)]
"""True or false in a message of a client: 0 or "off" is refused, as the OpenAPI says."""


class RequestModel(BaseModel):
    """A message of a client: a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid")


class IncidentPartItem(ApiModel):
    """Another alert of the same incident."""

    id: str
    camera: str
    page: str


class AlertItem(ApiModel):
    """An alert as lists show it. Times are UTC seconds; `t_end` null while it lasts; links null until ready.

    `best_box`: where the flagged object was in its best view; `still_box`: where it is in the still, which is cut again
    only for a clearly better view; null: not known.
    `delivery` null: the alert was settled on the edge, without an escalation. `standing`: edge (not escalated),
    unverified (escalated, no verdict yet, or none came), and then confirmed, rechecked (a detector found it again),
    withdrawn (rejected firmly), doubted (rejected otherwise) or unsure. `judge`: who gave `verdict`; null: there is
    none. `edge`: the verdict of the appliance's own re-check (null: none), `edge_confidence` how sure it is. A person's
    or a language model's `verdict` counts above it; what a detector found again does not where `edge` is unsure.
    `rules_severity`: what the rules say, where the verdict changed `severity`; null: it did not. `note`: a person's
    words. `deleted_t`: when a person deleted it, which took it out of all lists, because of `deleted_why`; null: nobody
    did. `incident`: the first alert of the incident over several cameras that it belongs to; "": it is alone. `parts`:
    the other alerts of it that the visitor may see (an event of the stream has none).
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
    still_box: Box | None = None
    t_start: float
    t_end: float | None
    end_reason: str
    verdict: Decision | None
    judge: JudgeKind | None = None
    rules_severity: Severity | None = None
    edge: Decision | None = None
    edge_confidence: float | None = None
    delivery: Delivery | None
    standing: Standing
    review: Review | None
    review_t: float | None
    note: str = ""
    deleted_t: float | None = None
    deleted_why: str = ""
    incident: str = ""
    parts: tuple[IncidentPartItem, ...] = ()
    rev: int
    still: str | None
    still_state: EvidenceState | None
    clip: str | None
    page: str
    camera_page: str

    @classmethod
    def of(cls, row: AlertRow) -> AlertItem:
        alert, still, clip = row.alert, row.evidence.still, row.evidence.clip
        page = f"/alerts/{quote(alert.id, safe='')}"
        parts = tuple(
            IncidentPartItem(id=each.id, camera=each.camera, page=f"/alerts/{quote(each.id, safe='')}")
            for each in row.parts
            if visitor().sees(each.camera)
        )
        return cls.of_row(
            alert, **asdict(row.judged), **asdict(row.reviewed), standing=row.judged.standing,
            title=title_of(alert.labels, row.first_event), best_box=alert.best.box if alert.best else None,
            still=f"{API}{page}/evidence/still.jpg" if still == "ready" else None, still_state=still,
            still_box=row.evidence.still_box, clip=f"{API}{page}/evidence/clip.mp4" if clip == "ready" else None,
            page=page, camera_page=f"/cameras/{quote(alert.camera, safe='')}",
            incident=row.incident, parts=parts, rev=row.rev,
        )  # fmt: skip


def title_of(all_labels: Sequence[str], event: FirstEvent | None) -> str:
    """Return what happened first, and to whom, in the language of the request."""
    what = _subject(all_labels)
    if event is None or not event.place:
        return what
    texts: dict[EventKind, str] = {
        "enter": _("{what} entered {place}"), "exit": _("{what} left {place}"),
        "dwell": _("{what} stayed in {place}"), "line": _("{what} crossed {place}"),
    }  # fmt: skip
    return texts[event.kind].format(what=what, place=event.place)


def _subject(all_labels: Sequence[str]) -> str:
    labels = f" {_('and')} ".join(tell(label) for label in all_labels[:2]) or _("Something")
    more = f" {_('and {n} more').format(n=len(all_labels) - 2)}" if len(all_labels) > 2 else ""
    return labels[:1].upper() + labels[1:] + more


class AlertPage(ApiModel):
    """`next` is the query of the page with older alerts; null: there are none."""

    alerts: list[AlertItem]
    next: str | None


class EventItem(ApiModel):
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


class EvidenceItem(ApiModel):
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
        url = f"{API}/alerts/{quote(row.alert, safe='')}/evidence/{name}" if ready else None
        return cls.of_row(row, url=url)


EVIDENCE_NAMES = {"still": "still.jpg", "clip": "clip.mp4", "boxes": "boxes.json"}


class StepItem(ApiModel):
    """One message of the escalation: the evidence it brought ("" while it is made), and what it put on the uplink.

    `need`: the evidence that the cloud then requested, because of `reason`; null: nothing more.
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


class DeliveryItem(ApiModel):
    """How far the escalation got. `bytes` counts payload and headers, retries included, of all `steps`."""

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
        return cls.of_row(
            row, escalation=row.id, bytes=row.bytes_sent, **asdict(row.times),
            steps=tuple(StepItem.of(step) for step in steps if step.escalation == row.id),
        )  # fmt: skip


class SecondLookItem(ApiModel):
    """A re-check by the appliance itself. state: asked (under way), judged, or failed because of `error`.

    `verdict` null: none (yet). superseded: a person or a language model has spoken since.
    """

    state: RecheckState
    why: str
    asked_t: float
    made_t: float | None
    error: str
    verdict: EdgeVerdict | None
    superseded: bool


class DecisionItem(ApiModel):
    """The router's last decision: who answers (`tier`), the appliance's own answer (`edge`) and how sure it is.

    `certainty`: the probability that `edge` is right. error_high: of the alerts that the appliance is sure of no larger
    share is wrong, with 95 % confidence; null: nothing is claimed. flagged: why its own answer stands for now although
    the alert is escalated.
    """

    made_t: float
    when: SendTiming
    tier: Tier | Literal[""]
    edge: EdgeAnswer
    certainty: float
    error_high: float | None
    flagged: str
    reason: str

    @classmethod
    def of(cls, row: DecisionRow) -> DecisionItem:
        return cls.of_row(row, error_high=row.error_high if row.error_high < 1 else None)


class AlertFull(ApiModel):
    """Everything about one alert.

    `verdict`, `delivery`, `second_look`, `decision` null: there is none. `changes`: what people did with it, newest
    first, at most 50.
    """

    alert: AlertItem
    events: list[EventItem]
    evidence: list[EvidenceItem]
    delivery: DeliveryItem | None
    verdict: Verdict | None
    second_look: SecondLookItem | None = None
    decision: DecisionItem | None = None
    changes: tuple[ChangeRow, ...] = ()

    @classmethod
    def of(cls, detail: AlertDetail) -> AlertFull:
        escalation, verdict, recheck = detail.escalation, detail.verdict, detail.recheck
        superseded = verdict is not None and verdict.body.kind in CONFIRMING_KINDS
        return cls(
            alert=AlertItem.of(detail.row),
            events=[EventItem.model_validate(event) for event in detail.events],
            evidence=[EvidenceItem.of(row) for row in detail.evidence],
            delivery=DeliveryItem.of(escalation, detail.steps) if escalation else None,
            verdict=verdict.body if verdict else None,
            second_look=SecondLookItem.of_row(recheck, superseded=superseded) if recheck else None,
            decision=DecisionItem.of(detail.decision) if detail.decision else None,
            changes=detail.changes,
        )


class ReviewChange(RequestModel):
    """A person's review of an alert; null takes it back."""

    review: Review | None


Ids = Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(min_length=1, max_length=BULK_MAX)]


class BulkReview(RequestModel):
    """A person's review of several alerts at once; null takes it back."""

    ids: Ids
    review: Review | None


class NothingMore(RequestModel):
    """Nothing more to say: an empty object."""


class BulkDeletion(RequestModel):
    """Several alerts are to be deleted because of `reason`, in words of a person."""

    ids: Ids
    reason: Annotated[str, Field(max_length=DELETE_REASON_LENGTH_MAX)] = ""


class BulkRestore(RequestModel):
    """Several deletions are to be taken back."""

    ids: Ids


class BulkResult(ApiModel):
    """The alerts as they now are, and the ids of which there is none. refused: what was deleted too long ago."""

    alerts: list[AlertItem]
    missing: list[str]
    refused: list[str] = []


class NoteChange(RequestModel):
    """A person's words about an alert, plain text; "" removes them."""

    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)]


class FrameItem(ApiModel):
    """One examined frame. `looked` false: the detector gave no result, and `objects` means nothing."""

    t: float
    looked: bool
    objects: tuple[TrackedObject, ...]
