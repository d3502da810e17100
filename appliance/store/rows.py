"""Rows of the store: one frozen dataclass for each table, and how each is read from SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from appliance import wire
from appliance.types import (
    CONFIRMING_KINDS,
    Alert,
    BestView,
    Box,
    Decision,
    EdgeAnswer,
    EdgeVerdict,
    Event,
    EventKind,
    EvidenceStep,
    FrameBoxes,
    Gap,
    JudgeKind,
    Review,
    SegmentRow,
    SendTiming,
    Severity,
    Tier,
    TrackedObject,
)

RecheckState = Literal["asked", "judged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckRow:
    """A re-check of an alert.

    verdict: set when `state` is judged; error: the reason of a failure when it is failed. why: what kept the cloud from
    answering; attempts: re-checks that were begun.
    """

    alert: str
    state: RecheckState
    why: str
    asked_t: float
    attempts: int
    verdict: EdgeVerdict | None
    made_t: float | None
    error: str


def read_recheck(row: sqlite3.Row) -> RecheckRow:
    fields = dict(row)
    body = fields.pop("body")
    return RecheckRow(**fields, verdict=None if body is None else EdgeVerdict(**json.loads(body)))


EvidenceKind = Literal["still", "crop", "clip", "boxes", "frame"]
ChangeKind = Literal["review", "note", "deleted", "escalated"]
EvidenceState = Literal["waiting", "ready", "missing"]
StepEvidence = Literal["facts", "crop", "frame", "clip"]
Delivery = Literal["waiting", "deferred", "ready", "sent", "settled", "expired"]
Standing = Literal["edge", "unverified", "confirmed", "rechecked", "doubted", "withdrawn", "unsure"]
"""The standing of an alert: not escalated; escalated and without a verdict; and then the verdict. rechecked: a detector
found the object again. withdrawn: rejected firmly (see `is_firm`); doubted: rejected otherwise."""
WITHDRAW_CONFIDENCE_MIN = 0.7
"""A language model that rejects an alert less surely than this withdraws it from nobody. Its figures are its own words,
not measured chances: below two in three it has little reason of its own."""


def is_firm(judge: JudgeKind | None, confidence: float | None) -> bool:
    """Return True if a rejection may keep an alert from a person.

    A person's rejection may, a language model's when it is sure enough; a detector's or an unknown judge's never may.
    """
    if judge == "vlm":
        return confidence is not None and confidence >= WITHDRAW_CONFIDENCE_MIN
    return judge in CONFIRMING_KINDS


def standing_of(
    verdict: Decision | None,
    delivery: Delivery | None,
    *,
    judge: JudgeKind | None,
    confidence: float | None,
    edge: Decision | None = None,
) -> Standing:
    """Return the standing of an alert with this verdict and this state of its escalation.

    edge: the appliance's own re-check; its `unsure` leaves an alert unsure that a detector found once more
    (`rechecked`).
    """
    if verdict is None:
        return "edge" if delivery is None else "unverified"
    if verdict == "rejected":
        return "withdrawn" if is_firm(judge, confidence) else "doubted"
    return "unsure" if verdict == "rechecked" and edge == "unsure" else verdict


@dataclass(frozen=True, slots=True)
class FirstEvent:
    """The first event of an alert, and its zone or line."""

    kind: EventKind
    place: str


@dataclass(frozen=True, slots=True)
class IncidentPart:
    """Another alert of the same incident."""

    id: str
    camera: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """An alert as lists show it. Times are UTC seconds; `t_end` None while it lasts.

    Attributes:
        delivery: how far the newest escalation got; None: there is none.
        still, clip: the state of that evidence; None: not planned.
        still_box: where the flagged object is in the still, which may show an earlier view than `best`; None: unknown.
        verdict, judge, verdict_confidence: the verdict that counts, who gave it, and how sure that says to be.
        edge, edge_confidence: of the appliance's own re-check; None: there is none. A person's or a language model's
            `verdict` counts above it, a detector's does not.
        rules_severity: what the rules say, where the verdict changed `severity`.
        audit: it is no alert: nothing was reported, and a frame was sent to learn whether something was missed.
        note: a person's words.
        deleted_t: when a person deleted it, because of `deleted_why`: no list shows it, and retention takes its
            evidence once that can no longer be taken back.
        first_event: None: it has none.
        incident: the first alert of an incident over several cameras; "": this one is alone.
        parts: the other alerts of that incident, oldest first.
        rev: grows with every change of the alert, its evidence, delivery, verdicts or review.
    """

    id: str
    camera: str
    run: str
    severity: Severity
    rules: tuple[str, ...]
    labels: tuple[str, ...]
    tracks: tuple[int, ...]
    score: float
    t_start: float
    t_end: float | None
    end_reason: str
    best: BestView | None
    verdict: Decision | None
    review: Review | None
    review_t: float | None
    created_t: float
    rev: int
    delivery: Delivery | None = None
    still: EvidenceState | None = None
    still_box: Box | None = None
    clip: EvidenceState | None = None
    edge: Decision | None = None
    edge_confidence: float | None = None
    audit: bool = False
    judge: JudgeKind | None = None
    verdict_confidence: float | None = None
    rules_severity: Severity | None = None
    note: str = ""
    deleted_t: float | None = None
    deleted_why: str = ""
    first_event: FirstEvent | None = None
    incident: str = ""
    parts: tuple[IncidentPart, ...] = ()
    model: str = ""

    @property
    def standing(self) -> Standing:
        return standing_of(
            self.verdict, self.delivery, judge=self.judge, confidence=self.verdict_confidence, edge=self.edge
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """One piece of evidence. `path` is relative to the storage folder and "" unless `state` is ready.

    Attributes:
        t_start: the camera's time of the still, or of the clip's first frame: a clip's frame at `currentTime` shows
            camera time `t_start + currentTime`.
        box: the flagged object in this image; None: not known.
        reason: why it is missing, or what is lacking in a ready one.
    """

    alert: str
    kind: EvidenceKind
    n: int = 0
    state: EvidenceState = "waiting"
    path: str = ""
    t_start: float = 0.0
    t_end: float = 0.0
    bytes: int = 0
    sha256: str = ""
    width: int = 0
    height: int = 0
    box: Box | None = None
    score: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EscalationTimes:
    """When an escalation was written, stored by the broker and settled, UTC seconds; None: not yet."""

    created_t: float
    sent_t: float | None
    settled_t: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationRow:
    """One escalation and how far it got. `body.media` is empty until the state is ready.

    Attributes:
        step: which of its messages is being made, sent or answered.
        need: the evidence that the cloud requested for this step; "" in the first.
        attempts: of this step; those that failed before the broker first stored the escalation do not count after it.
        bytes_sent: of all steps, payload and headers.
        evidence: the evidence of the first step, as the router decided; "" in an old row: as the site file says.
        wait: what it waits for if the router postponed it; once its evidence is there its state is `deferred`.
        until_t: not before this time, UTC seconds.
    """

    id: str
    alert: str
    site: str
    camera: str
    priority: str
    state: Delivery
    body: wire.Escalation
    times: EscalationTimes
    attempts: int
    bytes_sent: int
    error: str
    step: int = 0
    need: wire.Need | Literal[""] = ""
    evidence: EvidenceStep | Literal[""] = ""
    wait: str = ""
    until_t: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One message of an escalation. evidence: the most telling kind in it ("" while it is being made).

    answer: the verdict that requested more after it; None: none did, or it was the last.
    """

    escalation: str
    n: int
    evidence: StepEvidence | Literal[""] = ""
    bytes_sent: int = 0
    answer: wire.Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The cloud's final verdict, as it was applied. step: which of the messages settled it."""

    escalation: str
    alert: str
    decision: Decision
    body: wire.Verdict
    applied_t: float
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRow:
    """One file that an escalation carries. `path` is relative to the storage folder."""

    escalation: str
    n: int
    path: str
    ref: wire.MediaRef
    chunks_acked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """The router's last decision about an alert: who answers, the appliance's own answer and how sure it is.

    Attributes:
        chance: probability that the alert is right. error_high: upper bound (95 % confidence) of the share of wrong
            alerts among those that the appliance is sure of; 1: nothing is claimed.
        flagged: why the appliance's own answer stands for now although the cloud is asked.
    """

    made_t: float
    when: SendTiming
    tier: Tier | Literal[""]
    edge: EdgeAnswer
    certainty: float
    flagged: str
    reason: str
    chance: float
    error_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A person's change of an alert. `old`, `new`: "" is none; who: "" while all share one token."""

    t: float
    what: ChangeKind
    old: str
    new: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDetail:
    """One alert with all that belongs to it: events, evidence, escalations, verdicts and steps, oldest first."""

    alert: AlertRow
    events: tuple[Event, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    escalations: tuple[EscalationRow, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    recheck: RecheckRow | None = None
    decision: DecisionRow | None = None
    changes: tuple[ChangeRow, ...] = ()

    @property
    def escalation(self) -> EscalationRow | None:
        """The newest one."""
        return self.escalations[-1] if self.escalations else None

    @property
    def verdict(self) -> VerdictRow | None:
        """The one that counts: the last applied, but a detector's never above a person's or a language model's."""
        confirming = [each for each in self.verdicts if each.body.kind in CONFIRMING_KINDS]
        return (confirming or self.verdicts)[-1] if self.verdicts else None

    def piece(self, kind: EvidenceKind, n: int = 0) -> EvidenceRow | None:
        """Return the evidence of this kind and number."""
        return next((row for row in self.evidence if row.kind == kind and row.n == n), None)


FIRST_EVENT = (
    "(SELECT json_array(kind, zone || line) FROM event WHERE alert = alert.id ORDER BY t, id LIMIT 1) AS first_event"
)
# ALERT_COLUMNS is selected FROM alert, without an alias.
ALERT_COLUMNS = f"""alert.*,
    (SELECT state FROM escalation WHERE alert = alert.id ORDER BY created_t DESC, id DESC LIMIT 1) AS delivery,
    (SELECT state FROM evidence WHERE alert = alert.id AND kind = 'still' AND n = 0) AS still,
    (SELECT box FROM evidence WHERE alert = alert.id AND kind = 'still' AND n = 0) AS still_box,
    (SELECT state FROM evidence WHERE alert = alert.id AND kind = 'clip' AND n = 0) AS clip,
    {FIRST_EVENT},
    (SELECT json_group_array(json_array(id, camera)) FROM (SELECT part.id, part.camera FROM alert AS part
        WHERE part.incident <> '' AND part.incident = alert.incident AND part.id <> alert.id
        AND part.deleted_t IS NULL ORDER BY part.t_start, part.id)) AS parts"""


def to_json(value: Any) -> str:
    """Compact JSON, refusing what JSON cannot hold."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, object], how: str = "INSERT") -> bool:
    """Insert a row of named columns, inside the transaction of `connection`; True when it was written."""
    marks = ", ".join(f":{name}" for name in values)
    return connection.execute(f"{how} INTO {table} ({', '.join(values)}) VALUES ({marks})", values).rowcount > 0


def best_json(best: BestView | None) -> str | None:
    return None if best is None else to_json(asdict(best))


def objects_json(objects: Sequence[TrackedObject]) -> str:
    """As in a log: fields that are not known are left out."""
    return to_json([{key: value for key, value in asdict(each).items() if value is not None} for each in objects])


def read_alert(row: sqlite3.Row | Mapping[str, Any]) -> AlertRow:
    """Return an AlertRow of a row selected with ALERT_COLUMNS."""
    fields = dict(row)
    for name in ("rules", "labels", "tracks"):
        fields[name] = tuple(json.loads(fields[name]))
    fields["audit"] = bool(fields["audit"])
    if fields["best"] is not None:
        best = json.loads(fields["best"])
        fields["best"] = BestView(**{**best, "box": tuple(best["box"])})
    if fields.get("still_box") is not None:
        fields["still_box"] = tuple(json.loads(fields["still_box"]))
    if fields.get("first_event") is not None:
        fields["first_event"] = FirstEvent(*json.loads(fields["first_event"]))
    fields["parts"] = tuple(IncidentPart(*each) for each in json.loads(fields.get("parts") or "[]"))
    return AlertRow(**fields)


def alert_of(row: AlertRow) -> Alert:
    """Return the alert as the alert policy made it."""
    return Alert(**{name: getattr(row, name) for name in Alert.__slots__ if name not in ("type", "verdict")})


def read_event(row: sqlite3.Row) -> Event:
    fields = dict(row)
    del fields["alert"]
    return Event(**{**fields, "box": tuple(json.loads(fields["box"]))})


def read_evidence(row: sqlite3.Row) -> EvidenceRow:
    fields = dict(row)
    if fields["box"] is not None:
        fields["box"] = tuple(json.loads(fields["box"]))
    return EvidenceRow(**fields)


def read_escalation(row: sqlite3.Row | Mapping[str, Any]) -> EscalationRow:
    fields = dict(row)
    times = EscalationTimes(*(fields.pop(each) for each in EscalationTimes.__slots__))
    return EscalationRow(**{**fields, "times": times, "body": wire.Escalation.from_stored(row["body"].encode())})


def read_verdict(row: sqlite3.Row) -> VerdictRow:
    return VerdictRow(**{**dict(row), "body": wire.Verdict.from_stored(row["body"].encode())})


def read_decision(row: sqlite3.Row) -> DecisionRow:
    inputs = json.loads(row["inputs"])
    fields = {name: row[name] for name in ("made_t", "tier", "edge", "certainty", "flagged", "reason")}
    chance, error_high = inputs.get("chance", 0.0), inputs.get("error_high", 1.0)
    return DecisionRow(**fields, when=row["moment"], chance=chance, error_high=error_high)


def read_step(row: sqlite3.Row) -> StepRow:
    answer = None if row["answer"] is None else wire.Verdict.from_stored(row["answer"].encode())
    return StepRow(**{**dict(row), "answer": answer})


def read_media(row: sqlite3.Row) -> MediaRow:
    fields = {name: row[name] for name in ("escalation", "n", "path", "chunks_acked")}
    return MediaRow(**fields, ref=wire.MediaRef.from_stored(row["ref"].encode()))


def read_gap(row: sqlite3.Row) -> Gap:
    return Gap(camera=row["camera"], t_start=row["t_start"], t_end=row["t_end"], reason=row["reason"])


def read_segment(row: sqlite3.Row) -> SegmentRow:
    fields = dict(row)
    fields["size"] = (fields.pop("width"), fields.pop("height"))
    return SegmentRow(**{**fields, "complete": bool(fields["complete"])})


def read_boxes(row: sqlite3.Row | Mapping[str, Any]) -> FrameBoxes:
    place = {name: row[name] for name in ("camera", "seq", "frame", "t")}
    return FrameBoxes(**place, looked=bool(row["looked"]), objects=read_objects(json.loads(row["objects"])))


def read_objects(stored: list[dict[str, Any]]) -> tuple[TrackedObject, ...]:
    return tuple(TrackedObject(**{**each, "box": tuple(each["box"])}) for each in stored)
