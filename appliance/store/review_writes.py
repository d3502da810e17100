"""Writes the changes that people make to alerts: review, note, deletion and its undoing.

Each change is a row.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from appliance.store.database import Database, bump_rev
from appliance.types import Box, Review

CHANGES_SHOWN = 50  # of one alert
DAYS = 30  # reviews that still say something of the scene: seasons and parked cars change
ALERTS_MAX = 500  # of those days, the newest


ChangeKind = Literal["review", "note", "deleted", "escalated"]


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
