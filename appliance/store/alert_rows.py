"""The rows of an alert, its events and its evidence: how each is read, and written in the caller's transaction.

`EvidenceStore` notes an alert's still, crops, clip, boxes and the frames that an escalation carries.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from appliance import wire
from appliance.store.database import Database, bump_rev, insert, to_json
from appliance.store.escalations import Delivery, EscalationStore, MediaRow, StepEvidence, is_firm
from appliance.types import (
    SEVERITIES,
    Alert,
    AlertChange,
    BestView,
    Box,
    Decision,
    Event,
    EventKind,
    JudgeKind,
    Review,
    Route,
    Severity,
)

EvidenceKind = Literal["still", "crop", "clip", "boxes", "frame"]
EvidenceState = Literal["waiting", "ready", "missing"]
Standing = Literal["edge", "unverified", "confirmed", "rechecked", "doubted", "withdrawn", "unsure"]
"""The standing of an alert: not escalated; escalated and without a verdict; and then the verdict. rechecked: a detector
found the object again. withdrawn: rejected firmly (see `is_firm`); doubted: rejected otherwise."""
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
class AlertVerdict:
    """The verdict on an alert, and how far its escalation got.

    Attributes:
        delivery: how far the newest escalation got; None: there is none.
        verdict, judge, verdict_confidence: the verdict that counts, who gave it, and how sure that says to be.
        edge, edge_confidence: of the appliance's own re-check; None: there is none. A person's or a language model's
            `verdict` counts above it, a detector's does not.
        rules_severity: what the rules say, where the verdict changed the alert's severity.
    """

    delivery: Delivery | None = None
    verdict: Decision | None = None
    judge: JudgeKind | None = None
    verdict_confidence: float | None = None
    edge: Decision | None = None
    edge_confidence: float | None = None
    rules_severity: Severity | None = None

    @property
    def standing(self) -> Standing:
        """The re-check's `unsure` leaves an alert unsure that a detector found once more (`rechecked`)."""
        if self.verdict is None:
            return "edge" if self.delivery is None else "unverified"
        if self.verdict == "rejected":
            return "withdrawn" if is_firm(self.judge, self.verdict_confidence) else "doubted"
        return "unsure" if self.verdict == "rechecked" and self.edge == "unsure" else self.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReview:
    """The review of an alert by people, with their note and its deletion.

    Attributes:
        note: a person's words.
        deleted_t: when a person deleted it, because of `deleted_why`: no list shows it, and retention takes its
            evidence once that can no longer be taken back.
    """

    review: Review | None = None
    review_t: float | None = None
    note: str = ""
    deleted_t: float | None = None
    deleted_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvidence:
    """The evidence of an alert that lists show.

    Attributes:
        still, clip: the state of that evidence; None: not planned.
        still_box: where the flagged object is in the still, which may show an earlier view than the alert's best; None:
            unknown.
    """

    still: EvidenceState | None = None
    still_box: Box | None = None
    clip: EvidenceState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """An alert as lists show it.

    Attributes:
        alert: as the alert policy made it, with the severity that its verdict left it.
        model: the network that the camera was examined by.
        audit: it is no alert: nothing was reported, and a frame was sent to learn whether something was missed.
        first_event: None: it has none.
        incident: the first alert of an incident over several cameras; "": this one is alone.
        parts: the other alerts of that incident, oldest first.
        rev: grows with every change of the alert, its evidence, delivery, verdicts or review.
    """

    alert: Alert
    judged: AlertVerdict = AlertVerdict()
    reviewed: AlertReview = AlertReview()
    evidence: AlertEvidence = AlertEvidence()
    created_t: float
    rev: int
    model: str = ""
    audit: bool = False
    first_event: FirstEvent | None = None
    incident: str = ""
    parts: tuple[IncidentPart, ...] = ()


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


_Group = TypeVar("_Group", AlertVerdict, AlertReview, AlertEvidence, Alert)


def read_alert(row: sqlite3.Row | Mapping[str, Any]) -> AlertRow:
    """Return an AlertRow of a row selected with ALERT_COLUMNS."""
    columns = dict(row)
    for name in ("rules", "labels", "tracks"):
        columns[name] = tuple(json.loads(columns[name]))
    if columns["best"] is not None:
        best = json.loads(columns["best"])
        columns["best"] = BestView(**{**best, "box": tuple(best["box"])})
    if columns["still_box"] is not None:
        columns["still_box"] = tuple(json.loads(columns["still_box"]))
    if columns["first_event"] is not None:
        columns["first_event"] = FirstEvent(*json.loads(columns["first_event"]))
    columns["parts"] = tuple(IncidentPart(*each) for each in json.loads(columns["parts"]))
    columns["audit"] = bool(columns["audit"])
    judged = _take(AlertVerdict, columns)  # before the alert, whose own verdict is that of a replay
    reviewed, evidence, alert = _take(AlertReview, columns), _take(AlertEvidence, columns), _take(Alert, columns)
    return AlertRow(alert=alert, judged=judged, reviewed=reviewed, evidence=evidence, **columns)


def _take(group: type[_Group], columns: dict[str, Any]) -> _Group:
    """Make a group of the columns that are called as its fields, and take these out."""
    return group(**{name: columns.pop(name) for name in group.__slots__ if name in columns})


def read_event(row: sqlite3.Row) -> Event:
    fields = dict(row)
    del fields["alert"]
    return Event(**{**fields, "box": tuple(json.loads(fields["box"]))})


def read_evidence(row: sqlite3.Row) -> EvidenceRow:
    fields = dict(row)
    if fields["box"] is not None:
        fields["box"] = tuple(json.loads(fields["box"]))
    return EvidenceRow(**fields)


def event_id(event: Event, run: str) -> str:
    """Return the event's id, or one made of its content, so that the same event written twice is one."""
    if event.id:
        return event.id
    content = f"{run}|{event.camera}|{event.rule}|{event.kind}|{event.track}|{event.t!r}"
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def write_alert(connection: sqlite3.Connection, change: AlertChange, now: float) -> bool:
    """Insert or update the alert row; True when that changed anything."""
    known = connection.execute("SELECT * FROM alert WHERE id = ?", (change.alert.id,)).fetchone()
    if known is None:
        _insert_alert(connection, change.alert, now)
        return True
    if known["t_end"] is not None or change.kind == "opened":
        return False
    fields = _mutable(change.alert)
    if known["rules_severity"] == change.alert.severity:  # the rules say what they said when a verdict changed it
        fields["severity"] = known["severity"]
    else:
        fields["rules_severity"] = None
    if all(known[name] == value for name, value in fields.items()):
        return False
    settings = ", ".join(f"{name} = :{name}" for name in fields)
    connection.execute(f"UPDATE alert SET {settings} WHERE id = :id", {**fields, "id": change.alert.id})
    return True


def has_grown(connection: sqlite3.Connection, alert: Alert) -> bool:
    """Return True if the stored alert, which lasts, is less severe or lacks one of the rules."""
    known = connection.execute(
        "SELECT coalesce(rules_severity, severity) AS severity, rules FROM alert WHERE id = ? AND t_end IS NULL",
        (alert.id,),
    ).fetchone()
    if known is None:
        return False
    graver = SEVERITIES.index(alert.severity) > SEVERITIES.index(known["severity"])
    return graver or not set(alert.rules) <= set(json.loads(known["rules"]))


def _mutable(alert: Alert) -> dict[str, object]:
    return {
        "severity": alert.severity,
        "rules": to_json(alert.rules),
        "labels": to_json(alert.labels),
        "tracks": to_json(alert.tracks),
        "score": float(alert.score),
        "t_start": float(alert.t_start),
        "t_end": alert.t_end,
        "end_reason": alert.end_reason,
        "best": None if alert.best is None else to_json(asdict(alert.best)),
    }


def _insert_alert(connection: sqlite3.Connection, alert: Alert, now: float) -> None:
    fields = _mutable(alert) | {"id": alert.id, "camera": alert.camera, "run": alert.run, "created_t": now, "rev": 0}
    insert(connection, "alert", fields)
    connection.execute(
        "UPDATE alert SET model = coalesce((SELECT model FROM camera WHERE name = alert.camera), '') WHERE id = ?",
        (alert.id,),
    )
    connection.executemany(
        "INSERT INTO evidence (alert, kind, state) VALUES (?, ?, 'waiting')",
        [(alert.id, kind) for kind in ("still", "clip", "boxes")],
    )


def write_incident(connection: sqlite3.Connection, alert_id: str, incident: str) -> bool:
    """Note the incident of an alert, also in its first alert; True when that is new. incident: '': it is its own."""
    if incident in ("", alert_id):
        return False
    changed = connection.execute(
        "UPDATE alert SET incident = :incident WHERE id IN (:alert, :incident) AND incident <> :incident",
        {"incident": incident, "alert": alert_id},
    )
    return changed.rowcount > 0


def write_event(connection: sqlite3.Connection, event: Event, run: str, alert_id: str | None) -> bool:
    """Insert the event unless it is known; True when it is new. alert_id None: a cooldown suppressed it."""
    named = replace(event, id=event_id(event, run))
    values = {name: getattr(named, name) for name in ("id", "camera", "rule", "kind", "track", "label", "zone", "line")}
    values |= {"score": float(event.score), "t": float(event.t), "severity": event.severity}
    values |= {"alert": alert_id, "box": to_json(event.box)}
    return insert(connection, "event", values, "INSERT OR IGNORE")


def write_evidence(connection: sqlite3.Connection, row: EvidenceRow) -> None:
    """Insert or replace one piece of evidence; its file is on disk."""
    times = {"t_start": float(row.t_start), "t_end": float(row.t_end), "score": float(row.score)}
    values = {**asdict(row), **times, "box": None if row.box is None else to_json(row.box)}
    insert(connection, "evidence", values, "INSERT OR REPLACE")


class EvidenceStore:
    """The evidence table. Owner: the evidence maker writes, any thread reads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)

    def waiting(self, limit: int) -> list[AlertRow]:
        """Alerts that some evidence is still waiting for, oldest first."""
        rows = self._db.rows(
            f"""SELECT {ALERT_COLUMNS} FROM alert WHERE id IN (SELECT alert FROM evidence WHERE state = 'waiting')
                ORDER BY created_t, id LIMIT ?""",
            (limit,),
        )
        return [read_alert(row) for row in rows]

    def of(self, alert_id: str) -> list[EvidenceRow]:
        """All evidence of an alert."""
        rows = self._db.rows("SELECT * FROM evidence WHERE alert = ? ORDER BY kind, n", (alert_id,))
        return [read_evidence(row) for row in rows]

    def put(self, *rows: EvidenceRow) -> None:
        """Write pieces of one alert's evidence in one transaction; their files are on disk. Raises StoreError."""
        with self._db.transaction() as connection:
            for row in rows:
                write_evidence(connection, row)
            bump_rev(self._db, connection, rows[0].alert)

    def make_ready(
        self,
        escalation: wire.Escalation,
        media: Sequence[MediaRow],
        frames: Sequence[EvidenceRow] = (),
        evidence: StepEvidence | None = None,
    ) -> bool:
        """Let a step of an escalation go with the media that are new in it; False when it was no longer waiting.

        The frames become evidence of the alert in the same transaction. evidence: what the step is called; as its media
        are, if not given. Raises StoreError.
        """
        body = escalation.model_copy(update={"media": (*escalation.media, *(each.ref for each in media))})
        with self._db.transaction() as connection:
            if not self._escalations.make_ready(body, media, evidence or (media[-1].ref.kind if media else "facts")):
                return False
            for row in frames:
                write_evidence(connection, row)
            return True

    def add_asked(self, escalation: wire.Escalation, images: Sequence[tuple[wire.MediaRef, str]], route: Route) -> None:
        """Write an escalation that came through the API with its own images, whose files are on disk. Raise StoreError.

        Its alert has `audit` 2, which no list shows. It goes through the outbox and ends as any alert's does.
        """
        with self._db.transaction() as connection:
            connection.execute(
                """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, t_end,
                       end_reason, created_t, rev, audit)
                   VALUES (?, ?, '', 'info', ?, ?, '[]', ?, ?, ?, 'api', ?, 0, 2)""",
                (
                    escalation.alert, escalation.camera, to_json([escalation.rule]),
                    to_json([escalation.label] if escalation.label else []), escalation.score, escalation.t,
                    escalation.t, self._db.clock.now(),
                ),
            )  # fmt: skip
            self._escalations.add(escalation, route.priority, route)
            media = [
                MediaRow(escalation=escalation.id, n=n, path=path, ref=ref) for n, (ref, path) in enumerate(images)
            ]
            rows = [_api_row(escalation.alert, n, ref, path) for n, (ref, path) in enumerate(images)]
            self.make_ready(escalation, media, rows, "frame")


def _api_row(alert: str, n: int, ref: wire.MediaRef, path: str) -> EvidenceRow:
    return EvidenceRow(
        alert=alert, kind="frame", n=n, state="ready", path=path, t_start=ref.t, t_end=ref.t, bytes=ref.bytes,
        sha256=ref.sha256, width=ref.width, height=ref.height,
    )  # fmt: skip
