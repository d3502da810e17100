"""Faults of a camera or of the appliance, and whether a person has seen them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from appliance.base.errors import redact
from appliance.store.database import Database
from appliance.types import HealthEvent, HealthKind

ROWS_MAX = 5000  # years of a healthy site, days of a broken camera
PAGE_MAX = 200  # rows of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEventRow:
    """A `HealthEvent` as it stands.

    told_t: when it was noticed; ended_by: what ended it, "" if it passed by itself; seen_t: when a person marked it as
    seen, None: not yet.
    """

    id: str
    camera: str
    kind: HealthKind
    t_start: float
    t_end: float | None
    told_t: float
    reason: str
    recovery: str
    attempts: int
    times: int
    ended_by: str
    seen_t: float | None
    rev: int


class HealthEventStore:
    """The health_event table. Invariants: one open event a camera and kind; the newest `ROWS_MAX` are kept.

    State: the events that last as they were noted, so that they are told also while the disk takes no row; `notes`
    counts each change of them. Any thread may read; one thread notes.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._noted: dict[str, HealthEvent] = {}
        self.notes = 0

    def note(self, event: HealthEvent) -> None:
        """Take note of a report, whether or not it can be stored."""
        if event.t_end is None:
            self._noted[event.id] = event
        elif self._noted.pop(event.id, None) is None:
            return
        self.notes += 1

    def forget(self, but: Collection[str] = ()) -> None:
        """Forget what was noted: who reported it is gone. but: ids of events that somebody else reported."""
        for event in self._noted.keys() - set(but):
            del self._noted[event]
        self.notes += 1

    def put(self, event: HealthEvent) -> bool:
        """Write a report; True when it is news that something is wrong."""
        with self._db.transaction() as connection:
            known = connection.execute("SELECT t_end FROM health_event WHERE id = ?", (event.id,)).fetchone()
            rev = self._db.next_rev(connection)
            if known is None:
                self._supersede(connection, event)
                _trim(connection)
            _write(connection, event, rev)
            was_open = known is not None and known["t_end"] is None
            return event.t_end is None and not was_open

    def end_open(self, t: float, why: str, but: Collection[str] = ()) -> int:
        """End what lasts, as the process that reported it is gone, and return how many.

        but: ids of events that somebody else reported.
        """
        with self._db.transaction() as connection:
            every = connection.execute("SELECT id FROM health_event WHERE t_end IS NULL").fetchall()
            found = [row for row in every if row["id"] not in but]
            for row in found:
                connection.execute(
                    "UPDATE health_event SET t_end = max(t_start, ?), ended_by = ?, rev = ? WHERE id = ?",
                    (t, redact(why), self._db.next_rev(connection), row["id"]),
                )
            return len(found)

    def mark_seen(self, event: str, t: float) -> HealthEventRow | None:
        """Record that a person has seen an event. None: there is no such event."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE health_event SET seen_t = ?, rev = ? WHERE id = ? AND seen_t IS NULL",
                (t, self._db.next_rev(connection), event),
            )
            row = connection.execute("SELECT * FROM health_event WHERE id = ?", (event,)).fetchone()
        return None if row is None else HealthEventRow(**dict(row))

    def get(self, event: str) -> HealthEventRow | None:
        row = self._db.row("SELECT * FROM health_event WHERE id = ?", (event,))
        noted = self._noted.get(event)
        return HealthEventRow(**dict(row)) if row is not None else _unstored(noted) if noted is not None else None

    def open(self) -> list[HealthEventRow]:
        """Return the events that last now, oldest first."""
        rows = self._db.rows("SELECT * FROM health_event WHERE t_end IS NULL ORDER BY t_start, id")
        stored = [HealthEventRow(**dict(row)) for row in rows]
        known = {(row.camera, row.kind) for row in stored}
        noted = [_unstored(each) for each in tuple(self._noted.values()) if (each.camera, each.kind) not in known]
        return [*stored, *noted]

    def page(
        self,
        *,
        camera: str | None = None,
        kind: HealthKind | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 50,
        cameras: Collection[str] | None = None,
    ) -> list[HealthEventRow]:
        """Events, newest first. camera: with those of the appliance; before: (t_start, id) of the last one seen.

        cameras: only of these and of the appliance; None: of all.
        """
        last_t, last_id = before if before is not None else (9e15, "")
        rows = self._db.rows(
            """SELECT * FROM health_event WHERE (:camera IS NULL OR camera IN (:camera, ''))
               AND (:kind IS NULL OR kind = :kind)
               AND (:cameras IS NULL OR camera = '' OR camera IN (SELECT value FROM json_each(:cameras)))
               AND (t_start < :last_t OR (t_start = :last_t AND id < :last_id))
               ORDER BY t_start DESC, id DESC LIMIT :limit""",
            {
                "camera": camera, "kind": kind,
                "cameras": None if cameras is None else json.dumps(sorted(cameras)),
                "last_t": last_t, "last_id": last_id, "limit": max(1, min(limit, PAGE_MAX)),
            },
        )  # fmt: skip
        return [HealthEventRow(**dict(row)) for row in rows]

    def changed_since(self, rev: int, limit: int) -> list[HealthEventRow]:
        """Events that changed after `rev`, in the order of their changes."""
        rows = self._db.rows("SELECT * FROM health_event WHERE rev > ? ORDER BY rev LIMIT ?", (rev, limit))
        return [HealthEventRow(**dict(row)) for row in rows]

    def _supersede(self, connection: sqlite3.Connection, event: HealthEvent) -> None:
        """End an older event of the same kind whose end was not reported (a lost message) where this one begins."""
        connection.execute(
            """UPDATE health_event SET t_end = max(t_start, ?), ended_by = 'told anew', rev = ?
               WHERE camera = ? AND kind = ? AND t_end IS NULL""",
            (event.t_start, self._db.next_rev(connection), event.camera, event.kind),
        )


def _unstored(event: HealthEvent) -> HealthEventRow:
    """Return an event that is noted and not in the table yet; rev 0: it changes with no change number."""
    return HealthEventRow(
        id=event.id, camera=event.camera, kind=event.kind, t_start=event.t_start, t_end=event.t_end, told_t=event.t,
        reason=redact(event.reason), recovery=event.recovery, attempts=event.attempts, times=event.times, ended_by="",
        seen_t=None, rev=0,
    )  # fmt: skip


def _write(connection: sqlite3.Connection, event: HealthEvent, rev: int) -> None:
    """Write an event; one that came back after a person saw it is unseen."""
    connection.execute(
        """INSERT INTO health_event
           (id, camera, kind, t_start, t_end, told_t, reason, recovery, attempts, times, rev)
           VALUES (:id, :camera, :kind, :t_start, :t_end, :t, :reason, :recovery, :attempts, :times, :rev)
           ON CONFLICT (id) DO UPDATE SET t_end = excluded.t_end, reason = excluded.reason,
               recovery = excluded.recovery, attempts = excluded.attempts, ended_by = '',
               seen_t = iif(excluded.times > times, NULL, seen_t), times = excluded.times, rev = excluded.rev""",
        {
            "id": event.id, "camera": event.camera, "kind": event.kind, "t_start": float(event.t_start),
            "t_end": None if event.t_end is None else float(event.t_end), "t": float(event.t),
            "reason": redact(event.reason), "recovery": event.recovery, "attempts": event.attempts,
            "times": event.times, "rev": rev,
        },
    )  # fmt: skip


def _trim(connection: sqlite3.Connection) -> None:
    connection.execute(
        """DELETE FROM health_event WHERE t_end IS NOT NULL AND id IN
           (SELECT id FROM health_event ORDER BY t_start DESC, id DESC LIMIT -1 OFFSET ?)""",
        (ROWS_MAX,),
    )
