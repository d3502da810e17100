"""Stores notices: which targets are notified of each alert, and the state of each message.

A notice is written in the transaction of its alert, so that a kill loses none.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from appliance.store.alert_rows import AlertVerdict, Standing
from appliance.store.audit import AuditRow, AuditStore
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.escalations import Delivery
from appliance.store.outbox import CLOCK_STEP_SEEN_S
from appliance.types import Severity

NoticeState = Literal["waiting", "told", "changed", "withdrawn", "quiet", "forbidden", "given_up"]
OPEN_MAX = 500  # notices read at once; targets send some a second
ONE_INCIDENT = "Told already: one incident with an alert of "  # and the camera
_CHANGES_MAX = 200  # alerts whose change is looked at in one turn
_OPEN = "('waiting', 'changed')"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotice:
    """A target is to be notified of an alert. forbidden: why it is not, '' when it is."""

    id: str
    alert: str
    target: str
    camera: str
    created_t: float
    due_t: float
    expire_t: float
    forbidden: str = ""


@dataclass(frozen=True, slots=True)
class SendWindow:
    """When a message may be sent, UTC seconds: not before `due_t`, and no longer after `expire_t`."""

    due_t: float
    expire_t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """A row of the table; `standing`, `severity` and `rules` are those of the last message that arrived."""

    id: str
    alert: str
    target: str
    camera: str
    state: NoticeState
    created_t: float
    window: SendWindow
    attempts: int
    doubtful: bool
    messages: int
    told_t: float | None
    last_t: float | None
    standing: Standing | Literal[""]
    severity: Severity | Literal[""]
    rules: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OpenNotice:
    """A notice that is to be sent, or was and may need an update, and what is known of its alert now."""

    row: NoticeRow
    severity: Severity
    rules: tuple[str, ...]
    delivery: Delivery | None
    standing: Standing
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that arrived.

    audit: the data that left the site with it; audit_image: its image; None: nothing left.
    """

    standing: Standing
    severity: Severity
    rules: tuple[str, ...]
    t: float
    audit: AuditRow | None
    audit_image: AuditRow | None = None


class NoticeStore:
    """The notice table. Owner: the notifier, but rows are born in the transaction of their alert (`write_notices`).

    Invariants: one row an alert and target; each change of it gives the alert a new change number; a message that
    left the site has its audit row in the transaction that notes it.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.audit = AuditStore(db)
        """For a message that belongs to no alert."""

    def open(self, target: str) -> list[OpenNotice]:
        """Return the notices to send to a target: the least tried first, then the most severe, then the oldest."""
        rows = self._db.rows(
            f"""{_WITH_ALERT} WHERE target = ? AND notice.state IN {_OPEN}
                ORDER BY attempts, CASE alert.severity WHEN 'alert' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,
                         created_t, id LIMIT ?""",
            (target, OPEN_MAX),
        )
        return [_open_notice(row) for row in rows]

    def changed(self) -> tuple[list[OpenNotice], int]:
        """Return the next delivered notices whose alert changed since `mark_changed`, and up to which change."""
        with self._db.read() as connection:
            since = connection.execute("SELECT value FROM counter WHERE name = 'notice'").fetchone()[0]
            numbers = connection.execute(
                "SELECT rev FROM alert WHERE rev > ? ORDER BY rev LIMIT ?", (since, _CHANGES_MAX)
            ).fetchall()
            if not numbers:
                return [], since
            upto = numbers[-1]["rev"]
            rows = connection.execute(
                f"{_WITH_ALERT} WHERE alert.rev > ? AND alert.rev <= ? AND notice.state = 'told'", (since, upto)
            )
            return [_open_notice(row) for row in rows], upto

    def mark_changed(self, waiting: Sequence[tuple[NoticeRow, float]], upto: int) -> None:
        """Mark notices that need an update, each within so many seconds; examine changes up to `upto`.

        Raise StoreError.
        """
        with self._db.transaction(durable=bool(waiting)) as connection:
            for row, expire_s in waiting:
                connection.execute(
                    """UPDATE notice SET state = 'changed', attempts = 0, expire_t = ?
                       WHERE id = ? AND state = 'told'""",
                    (self._db.clock.now() + expire_s, row.id),
                )
            connection.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'notice'", (upto,))

    def begin_attempt(self, row: NoticeRow) -> None:
        """Record that a message is about to go: if the process dies now, it may have arrived."""
        self._db.execute(
            "UPDATE notice SET attempts = attempts + 1, doubtful = 1 WHERE id = ?", (row.id,), durable=False
        )

    def record_delivery(self, row: NoticeRow, sent: SentMessage) -> None:
        """Record that a message arrived. Raise StoreError."""
        with self._db.transaction() as connection:
            connection.execute(
                f"""UPDATE notice SET state = 'told', attempts = 0, doubtful = 0, messages = messages + 1,
                        told_t = coalesce(told_t, :t), last_t = :t, standing = :standing, severity = :severity,
                        rules = :rules, reason = '' WHERE id = :id AND state IN {_OPEN}""",
                {
                    "t": sent.t, "standing": sent.standing, "severity": sent.severity,
                    "rules": to_json(sent.rules), "id": row.id,
                },
            )  # fmt: skip
            if sent.standing == "withdrawn":  # what was silent because of this message is looked at again
                connection.execute(
                    f"""UPDATE notice SET state = 'waiting', attempts = 0, reason = '', created_t = :t, due_t = :t,
                            expire_t = :t + (expire_t - created_t)
                        WHERE target = :target AND state = 'quiet' AND reason LIKE '{ONE_INCIDENT}%' AND alert IN
                            (SELECT id FROM alert WHERE incident <> '' AND incident =
                                (SELECT incident FROM alert WHERE id = :alert))""",
                    {"t": sent.t, "target": row.target, "alert": row.alert},
                )
            if row.told_t is None:
                self._db.latencies.observe("told", sent.t - row.created_t)
            for left in (sent.audit, sent.audit_image):
                if left is not None:
                    self.audit.write(left, connection)
            bump_rev(self._db, connection, row.alert)

    def record_failure(self, row: NoticeRow, reason: str, *, doubtful: bool) -> None:
        """Record that a message did not arrive or, if doubtful, may not have arrived. Raise StoreError."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                "UPDATE notice SET reason = ?, doubtful = ? WHERE id = ?", (reason, doubtful or row.doubtful, row.id)
            )
            if reason != row.reason:
                bump_rev(self._db, connection, row.alert)

    def end(self, row: NoticeRow, state: NoticeState, reason: str, *, untold: bool = False) -> None:
        """Nothing (more) will be sent, and why; the row keeps the last message that arrived. Raises StoreError.

        untold: count a first message as one that took all the time that it had.
        """
        with self._db.transaction() as connection:
            connection.execute(
                f"""UPDATE notice SET state = ?, attempts = 0, reason = ?
                    WHERE id = ? AND state IN {_OPEN}""",
                (state, reason, row.id),
            )
            bump_rev(self._db, connection, row.alert)
        if untold and row.told_t is None:
            self._db.latencies.observe("told", row.window.expire_t - row.created_t)

    def of(self, alert: str) -> list[NoticeRow]:
        """Return the notices of an alert, by the name of the target."""
        return _notices(self._db, "SELECT * FROM notice WHERE alert = ? ORDER BY target", alert)

    def delivered_since(self, target: str, camera: str, since_t: float) -> list[NoticeRow]:
        """Notices that arrived since then, withdrawn ones left out.

        One with a time in the future arrived before the clock was set back, nobody knows how long ago: left out, too.
        """
        return _notices(
            self._db,
            """SELECT * FROM notice WHERE target = ? AND camera = ? AND told_t > ? AND told_t <= ?
               AND standing <> 'withdrawn' ORDER BY told_t DESC LIMIT ?""",
            target, camera, since_t, self._db.clock.now(), OPEN_MAX,
        )  # fmt: skip

    def delivered_of_incident(self, target: str, incident: str, alert: str) -> list[NoticeRow]:
        """Notices of the other alerts of an incident that arrived, withdrawn ones left out."""
        return _notices(
            self._db,
            """SELECT notice.* FROM alert CROSS JOIN notice ON notice.alert = alert.id
               WHERE alert.incident <> '' AND alert.incident = ? AND alert.id <> ?
               AND target = ? AND told_t IS NOT NULL AND standing <> 'withdrawn' LIMIT ?""",
            incident, alert, target, OPEN_MAX,
        )  # fmt: skip

    def overflow(self, most: int = OPEN_MAX) -> list[NoticeRow]:
        """Return the notices to drop of targets for which more than `most` wait: the least severe, then the oldest."""
        return _notices(
            self._db,
            f"""SELECT * FROM (SELECT notice.*, row_number() OVER (PARTITION BY target ORDER BY
                    CASE alert.severity WHEN 'alert' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,
                    notice.created_t DESC) AS place
                FROM notice JOIN alert ON alert.id = notice.alert WHERE notice.state IN {_OPEN})
                WHERE place > ? LIMIT ?""",
            most, OPEN_MAX,
        )  # fmt: skip

    def undeliverable(self, t: float, known: Sequence[str]) -> list[NoticeRow]:
        """Return the open notices that could not be sent by `t`, or whose target the site file no longer has."""
        marks = ", ".join("?" * len(known))
        return _notices(
            self._db,
            f"SELECT * FROM notice WHERE state IN {_OPEN} AND (expire_t <= ? OR target NOT IN ({marks})) LIMIT ?",
            t,
            *known,
            OPEN_MAX,
        )

    def waiting(self) -> dict[str, int]:
        """How many messages each target is still to get."""
        rows = self._db.rows(f"SELECT target, count(*) AS n FROM notice WHERE state IN {_OPEN} GROUP BY target")
        return {row["target"]: row["n"] for row in rows}

    def clock_stepped(self, step_s: float) -> None:
        """Move what waits with the wall clock: it is no older than before it was set. Raises StoreError.

        Notices with the time of this moment were made by the clock as it is now, and stay.
        """
        now = self._db.clock.now()
        self._db.execute(
            f"""UPDATE notice SET created_t = created_t + :step, due_t = due_t + :step, expire_t = expire_t + :step
                WHERE state IN {_OPEN} AND created_t <= :before AND created_t NOT BETWEEN :since AND :now""",
            {"step": step_s, "before": now - step_s, "since": now - CLOCK_STEP_SEEN_S, "now": now},
        )


def _notices(db: Database, query: str, *values: object) -> list[NoticeRow]:
    return [_read(row) for row in db.rows(query, values)]


def write_notices(connection: sqlite3.Connection, notices: Sequence[NewNotice], *, grown: bool = False) -> bool:
    """Write inside the transaction of their alert.

    grown: the alert became more severe, or concerns a further rule, so a target that was not told of it is looked at
    again. True: one is new, or waits again.
    """
    count = 0
    for each in notices:
        written = connection.execute(
            """INSERT INTO notice (id, alert, target, camera, state, created_t, due_t, expire_t, reason)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
               ON CONFLICT (id) DO UPDATE SET state = excluded.state, created_t = excluded.created_t,
                   due_t = excluded.due_t, expire_t = excluded.expire_t, reason = ''
               WHERE (state = 'forbidden' OR (? AND state IN ('quiet', 'given_up') AND messages = 0))
                   AND excluded.state = 'waiting'""",
            (
                each.id, each.alert, each.target, each.camera, "forbidden" if each.forbidden else "waiting",
                each.created_t, each.due_t, each.expire_t, each.forbidden, grown,
            ),
        )  # fmt: skip
        count += written.rowcount
    return count > 0


# An escalation that the router postponed counts as deferred, whether its evidence is there or not.
_WITH_ALERT = """SELECT notice.*, alert.severity AS now_severity, alert.verdict AS now_verdict,
    alert.rules AS now_rules, alert.judge AS now_judge, alert.verdict_confidence AS now_confidence,
    alert.edge AS now_edge, alert.incident AS now_incident,
    (SELECT CASE WHEN wait <> '' THEN 'deferred' ELSE state END FROM escalation
     WHERE alert = notice.alert ORDER BY created_t DESC, id DESC LIMIT 1) AS now_delivery
    FROM notice JOIN alert ON alert.id = notice.alert"""


def _open_notice(row: sqlite3.Row) -> OpenNotice:
    rules = tuple(cast(list[str], json.loads(row["now_rules"])))
    judged = AlertVerdict(
        delivery=row["now_delivery"],
        verdict=row["now_verdict"],
        judge=row["now_judge"],
        verdict_confidence=row["now_confidence"],
        edge=row["now_edge"],
    )
    return OpenNotice(_read(row), row["now_severity"], rules, judged.delivery, judged.standing, row["now_incident"])


def _read(row: sqlite3.Row) -> NoticeRow:
    fields = {name: row[name] for name in NoticeRow.__slots__ if name != "window"}
    fields |= {"doubtful": bool(row["doubtful"]), "rules": tuple(cast(list[str], json.loads(row["rules"])))}
    return NoticeRow(window=SendWindow(row["due_t"], row["expire_t"]), **fields)
