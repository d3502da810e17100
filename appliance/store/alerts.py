"""Alerts, their events, verdicts and reviews: what a person reads, written so that nothing flagged is lost."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from appliance import wire
from appliance.store.alert_rows import (
    ALERT_COLUMNS,
    AlertRow,
    EvidenceKind,
    EvidenceRow,
    has_grown,
    read_alert,
    read_event,
    read_evidence,
    write_alert,
    write_event,
    write_incident,
)
from appliance.store.alert_search import EVERY_ALERT, SET_ASIDE, AlertQuery, of_cameras, select_alerts
from appliance.store.database import Database, bump_rev
from appliance.store.decisions import DecisionRow, read_decision, write_decision
from appliance.store.escalations import (
    OPEN,
    UNSETTLED,
    EscalationRow,
    EscalationStore,
    StepRow,
    VerdictEffect,
    VerdictRow,
    in_states,
    read_escalation,
    read_step,
    read_verdict,
)
from appliance.store.notices import NewNotice, write_notices
from appliance.store.reviews import ChangeRow, RecheckRow, changes_of_alert, read_recheck
from appliance.types import CONFIRMING_KINDS, TEACHING_KINDS, Alert, AlertChange, Event, Route

logger = logging.getLogger(__name__)

PAGE_MAX = 500  # rows of one read, so that writers are not held up


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDetail:
    """One alert with all that belongs to it: events, evidence, escalations, verdicts and steps, oldest first."""

    row: AlertRow
    events: tuple[Event, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    escalations: tuple[EscalationRow, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    recheck: RecheckRow | None = None
    decision: DecisionRow | None = None
    changes: tuple[ChangeRow, ...] = ()

    @property
    def alert(self) -> Alert:
        return self.row.alert

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


@dataclass(frozen=True, slots=True)
class AlertCursor:
    """Where a page ended: the next page holds what is older."""

    t_start: float
    id: str

    @classmethod
    def after(cls, alert: Alert) -> AlertCursor:
        return cls(alert.t_start, alert.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCounts:
    """Numbers of alerts.

    to_review: without a review and not rejected, an incident counted once; set_aside: rejected, without a review;
    undelivered: escalations that are not settled.
    """

    total: int
    open: int
    to_review: int
    set_aside: int
    confirmed: int
    rechecked: int
    rejected: int
    unsure: int
    undelivered: int


class AlertStore:
    """The alert, event, verdict tables, and the birth of evidence and escalation rows.

    Owner: the core; any thread may call. Invariant: an alert and its escalation appear together or not at all, and
    each escalation has at most one verdict. `orphans` counts verdicts on escalations that are not of this appliance.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.escalations = EscalationStore(db)
        self.orphans = 0

    def apply(
        self,
        change: AlertChange,
        *,
        escalation: wire.Escalation | None,
        priority: str,
        suppressed: Sequence[Event] = (),
        route: Route | None = None,
        notices: Sequence[NewNotice] = (),
        incident: str = "",
    ) -> AlertRow:
        """Write one decision of the alert policy, all of it or nothing; return the alert as it now stands.

        route: what the router decided about it, and so whether the escalation waits; None: there is no router.
        notices: the targets that are to be notified. incident: the first alert of the incident that it belongs to.
        Applying the same change again (a restart) changes nothing. An ended alert stays ended. Raises StoreError.
        """
        alert = change.alert
        with self._db.transaction() as connection:
            grown = bool(notices) and has_grown(connection, alert)
            changed = write_alert(connection, change, self._db.clock.now())
            if change.event is not None:
                changed |= write_event(connection, change.event, alert.run, alert.id)
            for event in suppressed:
                write_event(connection, event, alert.run, None)
            if escalation is not None:
                changed |= self.escalations.add(escalation, priority, route)
            if route is not None:
                write_decision(connection, route, self._db.clock.now())
            changed |= write_notices(connection, notices, grown=grown)
            changed |= write_incident(connection, alert.id, incident)
            if changed:
                bump_rev(self._db, connection, alert.id)
                if incident not in ("", alert.id):
                    bump_rev(self._db, connection, incident)
            if changed and change.kind == "opened" and change.event is not None:
                self._db.latencies.observe("alert", self._db.clock.now() - change.event.t)
            query = f"SELECT {ALERT_COLUMNS} FROM alert WHERE id = ?"
            return read_alert(connection.execute(query, (alert.id,)).fetchone())

    def add_suppressed(self, events: Sequence[Event], run: str) -> None:
        """Keep events that a cooldown suppressed: they belong to no alert, but explain why there is none."""
        if not events:
            return
        with self._db.transaction(durable=False) as connection:
            for event in events:
                write_event(connection, event, run, None)

    def apply_verdict(self, verdict: wire.Verdict, t: float) -> bool:
        """Apply a verdict once; False when it was applied before or its escalation is unknown. Raises StoreError.

        A late verdict on an expired escalation still counts: it was paid for.
        """
        with self._db.transaction() as connection:
            step = self._step(connection, verdict)
            if step is None:
                return False
            return self.escalations.settle(verdict, step if verdict.step is None else verdict.step, t)

    def take_verdict(self, verdict: wire.Verdict, t: float) -> VerdictEffect:
        """Apply what a worker sent: a final verdict, once, or a request for more, once a step. Raises StoreError."""
        if verdict.need is None:
            if self.apply_verdict(verdict, t):
                return "settled"
            return "reason" if self.escalations.complete(verdict) else "known"
        with self._db.transaction() as connection:
            if self._step(connection, verdict) is None:
                return "known"
            return self.escalations.request_more(verdict, t)

    def _step(self, connection: sqlite3.Connection, verdict: wire.Verdict) -> int | None:
        """Return the present step of the verdict's escalation; None when this appliance has no such escalation."""
        row = connection.execute(
            "SELECT alert, site, step FROM escalation WHERE id = ?", (verdict.escalation,)
        ).fetchone()
        if row is None or row["alert"] != verdict.alert or row["site"] != verdict.site:
            self.orphans += 1
            if self.orphans & (self.orphans - 1) == 0:  # the 1st, 2nd, 4th …: a worker may send as many as it likes
                text = "refused a verdict on escalation %s: it was not asked here (%d by now)"
                logger.warning(text, verdict.escalation, self.orphans)
            return None
        step: int = row["step"]
        return step

    def page(
        self, before: AlertCursor | None = None, limit: int = 50, wanted: AlertQuery = EVERY_ALERT
    ) -> list[AlertRow]:
        """Alerts, newest first, older than `before`; at most `limit` (bounded by PAGE_MAX)."""
        with self._db.read() as connection:
            found = select_alerts(connection, wanted)
            if before is not None:
                found.wheres.append("(t_start, id) < (?, ?)")
                found.values += [before.t_start, before.id]
            rows = connection.execute(
                f"""SELECT {ALERT_COLUMNS} FROM alert WHERE id IN (
                        SELECT id FROM {found.source} WHERE {" AND ".join(found.wheres)}
                        ORDER BY t_start DESC, id DESC LIMIT ?)
                    ORDER BY t_start DESC, id DESC""",
                (*found.values, _bounded(limit)),
            )
            return [read_alert(row) for row in rows]

    def is_wanted(self, alert_id: str, wanted: AlertQuery) -> bool:
        """Return True if the query selects this alert."""
        with self._db.read() as connection:
            found = select_alerts(connection, wanted)
            row = connection.execute(
                f"SELECT 1 FROM {found.source} WHERE {' AND '.join(found.wheres)} AND alert.id = ?",
                (*found.values, alert_id),
            ).fetchone()
        return row is not None

    def newer_id(self, alert: Alert, cameras: Collection[str] | None = None) -> str | None:
        """Return the next newer alert of these cameras (None: of all); None when this is the newest."""
        found = self._db.row(
            f"""SELECT id FROM alert WHERE audit = 0 AND deleted_t IS NULL AND (t_start, id) > (?, ?)
                AND {"TRUE" if cameras is None else of_cameras(cameras)} ORDER BY t_start, id LIMIT 1""",
            (alert.t_start, alert.id, *(cameras or ())),
        )
        return None if found is None else found["id"]

    def events_of(self, alert_id: str) -> list[Event]:
        """Return the events that were merged into an alert, oldest first. Raise StoreError."""
        rows = self._db.rows("SELECT * FROM event WHERE alert = ? ORDER BY t, id", (alert_id,))
        return [read_event(row) for row in rows]

    def get(self, alert_id: str) -> AlertDetail | None:
        """One alert with all that belongs to it; None: there is no such alert."""
        with self._db.read() as connection:
            return alert_detail(connection, alert_id)

    def camera_of(self, alert_id: str) -> str | None:
        """Return the camera of an alert; None when there is no such alert."""
        row = self._db.row("SELECT camera FROM alert WHERE id = ?", (alert_id,))
        return None if row is None else row["camera"]

    def changed_since(self, rev: int, limit: int = 100) -> list[AlertRow]:
        """Alerts changed after `rev`, oldest change first: go on from the last row's `rev`."""
        query = f"SELECT {ALERT_COLUMNS} FROM alert WHERE rev > ? AND audit = 0 ORDER BY rev LIMIT ?"
        return [read_alert(row) for row in self._db.rows(query, (rev, _bounded(limit)))]

    def end_interrupted(self) -> int:
        """End what a dead core left open, at the last examined frame of its camera; for the start. Returns how many."""
        ended = 0
        with self._db.transaction() as connection:
            for alert_id, t_end in _last_seen(connection):
                connection.execute("UPDATE alert SET t_end = ?, end_reason = 'restart' WHERE id = ?", (t_end, alert_id))
                bump_rev(self._db, connection, alert_id)
                ended += 1
        return ended

    def counts(self, cameras: Collection[str] | None = None) -> AlertCounts:
        """Numbers for the dashboard's front page and /metrics, of these cameras (None: of all)."""
        of = "TRUE" if cameras is None else of_cameras(cameras)
        row = self._db.row(
            f"""SELECT count(*) AS total, total(t_end IS NULL) AS open,
               total(review IS NULL AND verdict IS NOT 'rejected' AND NOT (incident NOT IN ('', id) AND EXISTS (
                   SELECT 1 FROM alert AS first WHERE first.id = alert.incident AND first.review IS NULL
                   AND first.verdict IS NOT 'rejected' AND first.deleted_t IS NULL))) AS to_review,
               total({SET_ASIDE}) AS set_aside, total(verdict IS 'confirmed') AS confirmed,
               total(verdict IS 'rechecked') AS rechecked, total(verdict IS 'rejected') AS rejected,
               total(verdict IS 'unsure') AS unsure,
               (SELECT count(*) FROM escalation WHERE {OPEN} AND {in_states(UNSETTLED)}) AS undelivered FROM alert
               WHERE audit = 0 AND deleted_t IS NULL AND {of}""",
            tuple(cameras or ()),
        )
        return AlertCounts(**{name: int(row[name]) for name in row.keys()})  # noqa: SIM118 (a Row is no dict)


def existing_alerts(db: Database, alert_ids: Collection[str]) -> set[str]:
    """Return those of these alerts that there are."""
    query = f"SELECT id FROM alert WHERE id IN ({', '.join('?' * len(alert_ids))})"
    return {row["id"] for row in db.rows(query, tuple(alert_ids))}


def teaching_alerts(db: Database, camera: str) -> int:
    """Return how many closed alerts and audited frames of a camera a person or a judge that may teach has answered."""
    kinds = ", ".join("?" * len(TEACHING_KINDS))
    row = db.row(
        f"""SELECT count(*) AS n FROM alert WHERE camera = ? AND audit < 2 AND deleted_t IS NULL AND t_end IS NOT NULL
        AND (review IS NOT NULL OR verdict IN ('confirmed', 'rejected') AND judge IN ({kinds}))""",
        (camera, *TEACHING_KINDS),
    )
    return 0 if row is None else int(row["n"])


def alert_detail(connection: sqlite3.Connection, alert_id: str) -> AlertDetail | None:
    """Read one alert with all that belongs to it; None: there is no such alert."""
    row = connection.execute(f"SELECT {ALERT_COLUMNS} FROM alert WHERE id = ?", (alert_id,)).fetchone()
    if row is None:
        return None
    one = (alert_id,)
    events = connection.execute("SELECT * FROM event WHERE alert = ? ORDER BY t, id", one)
    evidence = connection.execute("SELECT * FROM evidence WHERE alert = ? ORDER BY kind, n", one)
    escalations = connection.execute("SELECT * FROM escalation WHERE alert = ? ORDER BY created_t, id", one)
    verdicts = connection.execute("SELECT * FROM verdict WHERE alert = ? ORDER BY applied_t, escalation", one)
    steps = connection.execute(
        """SELECT step.* FROM step JOIN escalation ON escalation.id = step.escalation WHERE alert = ?
           ORDER BY created_t, escalation, n""",
        one,
    )
    recheck = connection.execute("SELECT * FROM second_look WHERE alert = ?", one).fetchone()
    decision = connection.execute("SELECT * FROM decision WHERE alert = ? ORDER BY id DESC LIMIT 1", one).fetchone()
    return AlertDetail(
        row=read_alert(row),
        events=tuple(map(read_event, events)),
        evidence=tuple(map(read_evidence, evidence)),
        escalations=tuple(map(read_escalation, escalations)),
        verdicts=tuple(map(read_verdict, verdicts)),
        steps=tuple(map(read_step, steps)),
        recheck=None if recheck is None else read_recheck(recheck),
        decision=None if decision is None else read_decision(decision),
        changes=changes_of_alert(connection, alert_id),
    )


def _bounded(limit: int) -> int:
    return max(1, min(limit, PAGE_MAX))


def _last_seen(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """Return the open alerts, each with the time of the last examined frame of its session."""
    rows = connection.execute(
        """SELECT id, max(t_start,
                coalesce((SELECT max(t) FROM boxes WHERE camera = alert.camera AND run = alert.run), 0),
                coalesce((SELECT max(t) FROM event WHERE alert = alert.id), 0)) AS t_end
           FROM alert WHERE t_end IS NULL"""
    )
    return [(row["id"], row["t_end"]) for row in rows.fetchall()]
