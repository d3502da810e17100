"""The appliance's own verdicts on alerts after a re-check, and which alerts the cloud has not answered."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Literal

from appliance.store.alert_rows import ALERT_COLUMNS, AlertRow, read_alert
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.escalations import Delivery
from appliance.types import CONFIRMING_KINDS, EdgeVerdict

ATTEMPTS_MAX = 2  # a crop that killed the detector once may do so again


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedAlert:
    """An alert without a verdict of the cloud, a review, or a re-check.

    escalated_t: when its escalation was made; sent_t: when that went; wait: for what the router keeps it back;
    refused: why the router escalated nothing. attempts: re-checks that were begun and came to nothing.
    """

    alert: AlertRow
    escalated_t: float | None = None
    sent_t: float | None = None
    wait: str = ""
    refused: str = ""
    attempts: int = 0

    @property
    def delivery(self) -> Delivery | None:
        return self.alert.delivery


class RecheckStore:
    """The second_look table. Owner: the re-check's thread writes, any thread reads.

    Invariants: an alert has at most one edge verdict, and none is written after the cloud's, but for a detector's
    there: that is no better than our own.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def unverified_alerts(self, since_t: float, limit: int) -> list[UnverifiedAlert]:
        """Return the unverified alerts written since `since_t`, most severe first, then oldest. Raise StoreError."""
        with self._db.read() as connection:
            rows = connection.execute(
                f"""SELECT {ALERT_COLUMNS}, coalesce(second_look.attempts, 0) AS attempts_begun
                    FROM alert LEFT JOIN second_look ON second_look.alert = alert.id
                    WHERE alert.created_t >= ? AND alert.audit = 0 AND alert.verdict IS NULL AND alert.review IS NULL
                      AND (second_look.alert IS NULL OR second_look.state = 'asked' AND second_look.attempts < ?)
                    ORDER BY CASE severity WHEN 'alert' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, created_t, id
                    LIMIT ?""",
                (since_t, ATTEMPTS_MAX, limit),
            ).fetchall()
            return [_open(connection, row) for row in rows]

    def begin(self, alert: str, why: str) -> int:
        """Record that a re-check begins; return the number of the alert's attempt. Raise StoreError."""
        with self._db.transaction() as connection:
            row = connection.execute(
                """INSERT INTO second_look (alert, state, why, asked_t, attempts) VALUES (?, 'asked', ?, ?, 1)
                   ON CONFLICT (alert) DO UPDATE SET attempts = attempts + 1, asked_t = excluded.asked_t
                   RETURNING attempts""",
                (alert, why, self._db.clock.now()),
            ).fetchone()
        attempts: int = row["attempts"]
        return attempts

    def record_verdict(self, alert: str, verdict: EdgeVerdict) -> bool:
        """Write the appliance's own verdict; False: there is one, or the cloud was faster. Raises StoreError."""
        body = {name: getattr(verdict, name) for name in EdgeVerdict.__slots__}
        with self._db.transaction() as connection:
            if _has_verdict(connection, alert):
                connection.execute("DELETE FROM second_look WHERE alert = ? AND state = 'asked'", (alert,))
                return False
            done = connection.execute(
                """UPDATE second_look SET state = 'judged', body = ?, made_t = ?, error = ''
                   WHERE alert = ? AND state = 'asked'""",
                (to_json(body), self._db.clock.now(), alert),
            )
            if done.rowcount:
                connection.execute(
                    "UPDATE alert SET edge = ?, edge_confidence = ? WHERE id = ?",
                    (verdict.decision, verdict.confidence, alert),
                )
                bump_rev(self._db, connection, alert)
            return done.rowcount > 0

    def record_failure(self, alert: str, why: str, error: str) -> None:
        """Record that the alert cannot be re-checked because of `error`. Raise StoreError."""
        with self._db.transaction() as connection:
            connection.execute(
                """INSERT INTO second_look (alert, state, why, asked_t, attempts, made_t, error)
                   VALUES (:alert, 'failed', :why, :now, 0, :now, :error)
                   ON CONFLICT (alert) DO UPDATE SET state = 'failed', made_t = :now, error = :error
                   WHERE state = 'asked'""",
                {"alert": alert, "why": why, "now": self._db.clock.now(), "error": error},
            )
            bump_rev(self._db, connection, alert)


def _open(connection: sqlite3.Connection, row: sqlite3.Row) -> UnverifiedAlert:
    fields = {name: row[name] for name in row.keys() if name != "attempts_begun"}  # noqa: SIM118 (a Row is no dict)
    escalation = connection.execute(
        "SELECT created_t, sent_t, wait FROM escalation WHERE alert = ? ORDER BY created_t DESC, id DESC LIMIT 1",
        (row["id"],),
    ).fetchone()
    decided = connection.execute(
        "SELECT reason FROM decision WHERE alert = ? AND moment = 'never' ORDER BY id DESC LIMIT 1", (row["id"],)
    ).fetchone()
    return UnverifiedAlert(
        alert=read_alert(fields),
        escalated_t=escalation["created_t"] if escalation else None,
        sent_t=escalation["sent_t"] if escalation else None,
        wait=escalation["wait"] if escalation else "",
        refused=decided["reason"] if decided and not escalation else "",
        attempts=row["attempts_begun"],
    )


def _has_verdict(connection: sqlite3.Connection, alert: str) -> bool:
    row = connection.execute("SELECT verdict, judge FROM alert WHERE id = ?", (alert,)).fetchone()
    return row is None or (row["verdict"] is not None and row["judge"] in CONFIRMING_KINDS)
