"""Verdicts on alerts that are made at the site: by people, and by the appliance's own re-check.

A change that a person makes to an alert is a row: review, note, deletion and its undoing. An alert that the cloud has
not answered may be re-checked by the appliance, once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from appliance.store.alert_rows import ALERT_COLUMNS, read_alert
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.escalations import Delivery
from appliance.types import CONFIRMING_KINDS, Alert, Box, EdgeVerdict, Review

CHANGES_SHOWN = 50  # of one alert
DAYS = 30  # reviews that still say something of the scene: seasons and parked cars change
ALERTS_MAX = 500  # of those days, the newest


ChangeKind = Literal["review", "note", "deleted", "escalated"]
ATTEMPTS_MAX = 2  # a crop that killed the detector once may do so again


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A person's change of an alert. `old`, `new`: "" is none; who: "" while all share one token."""

    t: float
    what: ChangeKind
    old: str
    new: str
    who: str


class ReviewStore:
    """Changes of alerts by people, all of a call or none of it. Any thread may call.

    Invariant: what changed is in `alert_change` once for each alert, with the same time for all of one call. An alert
    that has the value already is not changed, and makes no row. Each raises StoreError, and returns the alerts that
    exist.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def review(self, alerts: Sequence[str], review: Review | None, t: float, who: str = "") -> list[str]:
        """Write a review of each (None takes it back)."""

        def write(connection: sqlite3.Connection, alert: sqlite3.Row) -> tuple[str, str]:
            if alert["review"] == review:
                return "", ""
            when = None if review is None else t
            connection.execute("UPDATE alert SET review = ?, review_t = ? WHERE id = ?", (review, when, alert["id"]))
            return alert["review"] or "", review or ""

        return self._change(alerts, "review", t, who, write)

    def whole(self, alerts: Sequence[str]) -> list[str]:
        """Return these alerts and, of each first one of an incident, those of its parts that stand as it does."""
        marks = ", ".join("?" * len(alerts))
        rows = self._db.rows(
            f"""SELECT part.id FROM alert AS first JOIN alert AS part ON part.incident = first.id
                WHERE part.incident <> '' AND first.id IN ({marks}) AND part.id <> first.id
                AND part.review IS first.review AND (part.deleted_t IS NULL) = (first.deleted_t IS NULL)""",
            alerts,
        )
        return [*alerts, *(row["id"] for row in rows)]

    def note(self, alert: str, text: str, t: float, who: str = "") -> bool:
        """Replace the note of an alert ("" removes it)."""

        def write(connection: sqlite3.Connection, row: sqlite3.Row) -> tuple[str, str]:
            connection.execute("UPDATE alert SET note = ? WHERE id = ?", (text, row["id"]))
            return row["note"], text

        return bool(self._change([alert], "note", t, who, write))

    def delete(self, alerts: Sequence[str], why: str, t: float, who: str = "") -> list[str]:
        """Take each out of all lists. An alert that is deleted already keeps its time and its reason."""

        def write(connection: sqlite3.Connection, row: sqlite3.Row) -> tuple[str, str]:
            if row["deleted_t"] is not None:
                return "", ""
            connection.execute("UPDATE alert SET deleted_t = ?, deleted_why = ? WHERE id = ?", (t, why, row["id"]))
            return "", why or "-"

        return self._change(alerts, "deleted", t, who, write)

    def restore(self, alerts: Sequence[str], since: float, t: float, who: str = "") -> tuple[list[str], list[str]]:
        """Take back deletions that are no older than `since`.

        Return the alerts that are not deleted (any more), and those for which it is too late.
        """

        def write(connection: sqlite3.Connection, row: sqlite3.Row) -> tuple[str, str]:
            if row["deleted_t"] is None:
                return "", ""
            if row["deleted_t"] < since:
                refused.append(row["id"])
                return "", ""
            connection.execute("UPDATE alert SET deleted_t = NULL, deleted_why = '' WHERE id = ?", (row["id"],))
            return row["deleted_why"] or "-", ""

        refused: list[str] = []
        found = self._change(alerts, "deleted", t, who, write)
        return [alert for alert in found if alert not in refused], refused

    def escalated(self, alert: str, why: str, t: float, who: str = "") -> None:
        """Record that a person had the alert escalated."""
        self._change([alert], "escalated", t, who, lambda connection, row: ("", why))

    def _change(
        self,
        alerts: Sequence[str],
        what: ChangeKind,
        t: float,
        who: str,
        write: Callable[[sqlite3.Connection, sqlite3.Row], tuple[str, str]],
    ) -> list[str]:
        found = []
        with self._db.transaction() as connection:
            for alert in dict.fromkeys(alerts):
                row = connection.execute("SELECT * FROM alert WHERE id = ?", (alert,)).fetchone()
                if row is None:
                    continue
                found.append(alert)
                old, new = write(connection, row)
                if old == new:
                    continue
                connection.execute(
                    "INSERT INTO alert_change (alert, t, what, old, new, who) VALUES (?, ?, ?, ?, ?, ?)",
                    (alert, t, what, old, new, who),
                )
                bump_rev(self._db, connection, alert)
        return found


def changes_of_alert(connection: sqlite3.Connection, alert: str) -> tuple[ChangeRow, ...]:
    """Return the last changes of an alert by people, newest first."""
    rows = connection.execute(
        "SELECT t, what, old, new, who FROM alert_change WHERE alert = ? ORDER BY id DESC LIMIT ?",
        (alert, CHANGES_SHOWN),
    )
    return tuple(ChangeRow(**dict(row)) for row in rows)


@dataclass(frozen=True, slots=True)
class ReviewedBox:
    """An event of a reviewed alert. is_false: a person called it a false alarm."""

    alert: str
    rule: str
    label: str
    score: float
    box: Box
    is_false: bool


def reviewed_boxes(db: Database, camera: str) -> list[ReviewedBox]:
    """Return boxes of a camera's newest reviewed alerts, at most ALERTS_MAX and DAYS days old, newest first.

    Raise StoreError.
    """
    rows = db.rows(
        """SELECT found.id AS alert, found.review, event.rule, event.label, event.score, event.box
           FROM (SELECT id, review, t_start FROM alert WHERE camera = ? AND t_start > ? AND review IS NOT NULL
                 ORDER BY t_start DESC LIMIT ?) AS found JOIN event ON event.alert = found.id
           ORDER BY found.t_start DESC, event.t""",
        (camera, db.clock.now() - DAYS * 86400, ALERTS_MAX),
    )
    return [
        ReviewedBox(
            row["alert"], row["rule"], row["label"], row["score"], tuple(json.loads(row["box"])),
            row["review"] == "false_alarm",
        )
        for row in rows
    ]  # fmt: skip


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
    """An alert that is not deleted, without a verdict of the cloud, a review, or a re-check.

    created_t: when the alert was written; delivery: how far its newest escalation got; None: there is none.
    escalated_t: when that was made; sent_t: when it went; wait: for what the router keeps it back; refused: why the
    router escalated nothing. attempts: re-checks that were begun and came to nothing.
    """

    alert: Alert
    created_t: float
    delivery: Delivery | None = None
    escalated_t: float | None = None
    sent_t: float | None = None
    wait: str = ""
    refused: str = ""
    attempts: int = 0


_UNANSWERED = "alert.verdict IS NULL AND alert.review IS NULL AND alert.deleted_t IS NULL"


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
                    FROM alert INDEXED BY alert_created LEFT JOIN second_look ON second_look.alert = alert.id
                    WHERE alert.created_t >= ? AND alert.audit = 0 AND {_UNANSWERED}
                      AND (second_look.alert IS NULL OR second_look.state = 'asked' AND second_look.attempts < ?)
                    ORDER BY CASE severity WHEN 'alert' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, created_t, id
                    LIMIT ?""",
                (since_t, ATTEMPTS_MAX, limit),
            ).fetchall()
            return [_unverified(connection, row) for row in rows]

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

    def end_abandoned(self, since_t: float, error: str) -> None:
        """End re-checks that were begun and are not offered again; none is under way. Raise StoreError.

        One of an alert that was answered or deleted meanwhile goes; any other has failed because of `error`.
        """
        rows = self._db.rows(
            f"""SELECT second_look.alert, {_UNANSWERED} AS unanswered
                FROM second_look JOIN alert ON alert.id = second_look.alert WHERE second_look.state = 'asked'
                AND (NOT ({_UNANSWERED}) OR second_look.attempts >= ? OR alert.created_t < ?)""",
            (ATTEMPTS_MAX, since_t),
        )
        for row in rows:
            if row["unanswered"]:
                self.record_failure(row["alert"], "", error)
                continue
            with self._db.transaction() as connection:
                connection.execute("DELETE FROM second_look WHERE alert = ? AND state = 'asked'", (row["alert"],))
                bump_rev(self._db, connection, row["alert"])


def _unverified(connection: sqlite3.Connection, row: sqlite3.Row) -> UnverifiedAlert:
    fields = {name: row[name] for name in row.keys() if name != "attempts_begun"}  # noqa: SIM118 (a Row is no dict)
    found = read_alert(fields)
    escalation = connection.execute(
        "SELECT created_t, sent_t, wait FROM escalation WHERE alert = ? ORDER BY created_t DESC, id DESC LIMIT 1",
        (row["id"],),
    ).fetchone()
    decided = connection.execute(
        "SELECT reason FROM decision WHERE alert = ? AND moment = 'never' ORDER BY id DESC LIMIT 1", (row["id"],)
    ).fetchone()
    return UnverifiedAlert(
        alert=found.alert,
        created_t=found.created_t,
        delivery=found.judged.delivery,
        escalated_t=escalation["created_t"] if escalation else None,
        sent_t=escalation["sent_t"] if escalation else None,
        wait=escalation["wait"] if escalation else "",
        refused=decided["reason"] if decided and not escalation else "",
        attempts=row["attempts_begun"],
    )


def _has_verdict(connection: sqlite3.Connection, alert: str) -> bool:
    row = connection.execute("SELECT verdict, judge FROM alert WHERE id = ?", (alert,)).fetchone()
    return row is None or (row["verdict"] is not None and row["judge"] in CONFIRMING_KINDS)
