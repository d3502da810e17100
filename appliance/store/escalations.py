"""Escalations, their steps and media in the store: how far each got, which is next, what a verdict does to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from appliance import wire
from appliance.store.alert_writes import bump_rev
from appliance.store.database import Database
from appliance.store.rows import (
    Delivery,
    EscalationRow,
    MediaRow,
    StepEvidence,
    is_firm,
    read_escalation,
    read_media,
)
from appliance.types import CONFIRMING_KINDS, Decision, Route, Severity

VerdictEffect = Literal["settled", "more", "known"]
"""The escalation is over; it will be sent again with more evidence; the verdict was seen before and changed nothing."""

# The states of an escalation that mean something together.
UNSETTLED: tuple[Delivery, ...] = ("waiting", "deferred", "ready", "sent")
UNSENT: tuple[Delivery, ...] = ("waiting", "deferred", "ready")
DROPPABLE: tuple[Delivery, ...] = ("deferred", "ready")  # with their evidence made, and not sent
PUBLISHED: tuple[Delivery, ...] = ("ready", "sent")  # a publisher may be at work on it


def in_states(states: Sequence[Delivery]) -> str:
    """The SQL condition that an escalation is in one of `states`."""
    return f"state IN ({', '.join(repr(state) for state in states)})"


# The partial index `escalation_open` holds these states. SQLite uses it only for a query that repeats this condition
# word for word, so a query for fewer states says both.
INDEXED = in_states(("waiting", "ready", "sent"))
# Under way and not kept back by the router (`wait` says for what it waits).
RELEASED = f"{INDEXED} AND wait = ''"
POSTPONED = f"wait <> '' AND {in_states(('waiting', 'deferred'))}"
BY_PRIORITY = "CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END"

_MEDIA_BYTES = "(SELECT sum(json_extract(ref, '$.bytes')) FROM media WHERE media.escalation = escalation.id)"
_ROWID_MAX = 2**63 - 1
_CLOCK_STEP_SEEN_S = 30.0  # what was written this short a time ago was written by the clock as it is now
_REASON_CHARS_MAX = 400
_NEED_TEXTS = {"crop": "a cut-out of the object", "frame": "the whole picture", "clip": "the clip"}


SeverityAfter = Callable[[str, str, Severity, Decision], Severity]
"""From the camera and rule of an escalation, the severity by the rules, and the verdict, to the severity that holds."""


def unchanged_severity(camera: str, rule: str, severity: Severity, decision: Decision) -> Severity:
    """A verdict changes nothing."""
    return severity


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An escalation that is ready, as the order of sending sees it. attempts: of its present step, without success."""

    id: str
    created_t: float
    attempts: int


class EscalationStore:
    """The escalation, step and media tables.

    Owner: the core and the uplink write, any thread reads. Invariants: every change of a state is one transaction, and
    a call inside another transaction joins it; a step is answered once; a settled escalation stays settled.
    Every method raises StoreError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.severity_after: SeverityAfter = unchanged_severity

    # Called by the core

    def add(self, escalation: wire.Escalation, priority: str, route: Route | None = None) -> bool:
        """Insert it; True when that changed anything.

        One that the router had postponed is released when it is decided again and need not wait.
        """
        wait = route.wait if route is not None and route.when == "later" else ""
        with self._db.transaction() as connection:
            written = connection.execute(
                """INSERT INTO escalation
                       (id, alert, site, camera, priority, state, body, created_t, evidence, wait, until_t)
                   VALUES (:id, :alert, :site, :camera, :priority, 'waiting', :body, :created_t, :evidence, :wait,
                       :until_t)
                   ON CONFLICT (id) DO UPDATE SET priority = excluded.priority, wait = '', until_t = NULL,
                       state = iif(state = 'deferred', 'ready', state) WHERE wait <> '' AND excluded.wait = ''""",
                {
                    "id": escalation.id, "alert": escalation.alert, "site": escalation.site,
                    "camera": escalation.camera, "priority": priority, "body": escalation.to_json().decode(),
                    "created_t": escalation.created_t, "evidence": "" if route is None else route.evidence,
                    "wait": wait, "until_t": route.until_t if route is not None and wait else None,
                },
            )  # fmt: skip
            return written.rowcount > 0

    # Called by the router

    def postponed(self, limit: int) -> list[EscalationRow]:
        """Those that wait for a better moment, the most urgent and oldest first."""
        return _rows(self._db, f"WHERE {POSTPONED} ORDER BY {BY_PRIORITY}, created_t, id LIMIT ?", (limit,))

    def release(self, row: EscalationRow) -> None:
        """Its moment has come: it goes as soon as its evidence is there."""
        with self._db.transaction() as connection:
            connection.execute(
                """UPDATE escalation SET wait = '', until_t = NULL, state = iif(state = 'deferred', 'ready', state)
                   WHERE id = ? AND wait <> ''""",
                (row.id,),
            )
            bump_rev(self._db, connection, row.alert)

    def postpone(self, row: EscalationRow, wait: str, until_t: float | None) -> None:
        """What it waits for has changed."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                "UPDATE escalation SET wait = ?, until_t = ? WHERE id = ? AND wait <> ''", (wait, until_t, row.id)
            )

    def expire_postponed(self, row: EscalationRow, error: str) -> None:
        """Its moment did not come in time: given up, visibly."""
        with self._db.transaction() as connection:
            connection.execute(
                f"UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ? AND {POSTPONED}",
                (error, row.id),
            )
            bump_rev(self._db, connection, row.alert)

    def queue_age_s(self, now: float) -> float:
        """For how long the oldest that may be sent has waited; 0 when none does."""
        oldest_t = _scalar(
            self._db, f"SELECT min(created_t) FROM escalation WHERE {in_states(('waiting', 'ready'))} AND wait = ''"
        )
        return 0.0 if oldest_t is None else max(0.0, now - oldest_t)

    # Called by the evidence maker

    def waiting_for_evidence(self, limit: int) -> list[EscalationRow]:
        """The most urgent first."""
        return _rows(self._db, f"WHERE state = 'waiting' ORDER BY {BY_PRIORITY}, created_t, id LIMIT ?", (limit,))

    def make_ready(self, escalation: wire.Escalation, media: Sequence[MediaRow], evidence: StepEvidence) -> bool:
        """Let a step go with its final body and the media that are new in it; False when it was no longer waiting.

        evidence: the most telling kind in the step. Its state turns `ready`, or `deferred` if the router postponed it.
        """
        with self._db.transaction() as connection:
            changed = connection.execute(
                """UPDATE escalation SET state = iif(wait = '', 'ready', 'deferred'), body = ?
                   WHERE id = ? AND state = 'waiting' AND step = ?""",
                (escalation.to_json().decode(), escalation.id, escalation.step),
            )
            if changed.rowcount == 0:
                return False
            connection.execute(
                """INSERT INTO step (escalation, n, evidence) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET evidence = excluded.evidence""",
                (escalation.id, escalation.step, evidence),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO media (escalation, n, id, path, ref, chunks) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (escalation.id, each.n, each.ref.id, each.path, each.ref.to_json().decode(), each.ref.chunks)
                    for each in media
                ],
            )
            bump_rev(self._db, connection, escalation.alert)
            return True

    # For display

    def media(self, escalation: str) -> list[MediaRow]:
        """What an escalation carries, in order."""
        with self._db.read() as connection:
            rows = connection.execute("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation,))
            return [read_media(row) for row in rows]

    def count_by_state(self) -> dict[Delivery, int]:
        """How many there are in each state that occurs."""
        with self._db.read() as connection:
            rows = connection.execute("SELECT state, count(*) AS n FROM escalation GROUP BY state")
            return {row["state"]: row["n"] for row in rows}

    def count_unsettled(self) -> dict[Delivery, int]:
        """How many there are in each unsettled state. Settled ones, of which there may be many, are not read."""
        with self._db.read() as connection:
            rows = connection.execute(
                f"SELECT state, count(*) AS n FROM escalation WHERE {in_states(UNSETTLED)} GROUP BY state"
            )
            return {**dict.fromkeys(UNSETTLED, 0), **{row["state"]: row["n"] for row in rows}}

    # What a verdict does

    def settle(self, verdict: wire.Verdict, step: int, t: float) -> bool:
        """The final verdict on an escalation, at `step`; False when it has had one."""
        with self._db.transaction() as connection:
            applied = connection.execute(
                """INSERT OR IGNORE INTO verdict (escalation, alert, decision, body, applied_t, step)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                (verdict.escalation, verdict.alert, verdict.decision, verdict.to_json().decode(), t, step),
            )
            if applied.rowcount == 0:
                return False
            self._settle_alert(connection, verdict)
            connection.execute(
                "UPDATE escalation SET state = 'settled', settled_t = ?, error = '' WHERE id = ?",
                (t, verdict.escalation),
            )
            bump_rev(self._db, connection, verdict.alert)
            return True

    def _settle_alert(self, connection: sqlite3.Connection, verdict: wire.Verdict) -> None:
        """The alert takes the verdict over, unless that is a detector's and it has a better one."""
        row = connection.execute(
            """SELECT alert.camera, severity, rules_severity, alert.judge, json_extract(body, '$.rule') AS rule
               FROM alert JOIN escalation ON escalation.id = ? WHERE alert.id = ?""",
            (verdict.escalation, verdict.alert),
        ).fetchone()
        if row["judge"] in CONFIRMING_KINDS and verdict.kind not in CONFIRMING_KINDS:
            return
        said: Severity = row["rules_severity"] or row["severity"]
        stands = verdict.decision == "rejected" and not is_firm(verdict.kind, verdict.confidence)
        severity = said if stands else self.severity_after(row["camera"], row["rule"], said, verdict.decision)
        connection.execute(
            """UPDATE alert SET verdict = ?, judge = ?, verdict_confidence = ?, severity = ?, rules_severity = ?
               WHERE id = ?""",
            (
                verdict.decision,
                verdict.kind,
                verdict.confidence,
                severity,
                None if severity == said else said,
                verdict.alert,
            ),
        )

    def request_more(self, verdict: wire.Verdict, t: float) -> VerdictEffect:
        """A worker needs more evidence: the escalation waits for it, or is over because there is none.

        A request that was answered before, or that is about another step than the one that was sent, changes nothing.
        """
        with self._db.transaction() as connection:
            row = connection.execute(
                "SELECT state, step FROM escalation WHERE id = ?", (verdict.escalation,)
            ).fetchone()
            step = row["step"]
            if verdict.step != step or row["state"] in {"waiting", "settled"}:
                return "known"
            why = ""
            if row["state"] == "expired":
                why = "it asked too late"
            elif step + 1 >= wire.STEPS_MAX:
                why = f"it has been asked {wire.STEPS_MAX} times"
            if why:
                return "settled" if self.settle(as_unsure(verdict, why), step, t) else "known"
            connection.execute(
                """INSERT INTO step (escalation, n, answer) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET answer = excluded.answer""",
                (verdict.escalation, step, verdict.to_json().decode()),
            )
            connection.execute(
                "INSERT OR IGNORE INTO step (escalation, n) VALUES (?, ?)", (verdict.escalation, step + 1)
            )
            connection.execute(
                """UPDATE escalation SET state = 'waiting', step = step + 1, need = ?, attempts = 0, error = ''
                   WHERE id = ?""",
                (verdict.need, verdict.escalation),
            )
            bump_rev(self._db, connection, verdict.alert)
        return "more"

    def close_unsure(self, row: EscalationRow, why: str) -> bool:
        """The requested evidence cannot be sent: the `unsure` verdict stands, with the reason. False: it is settled."""
        with self._db.transaction() as connection:
            found = connection.execute(
                """SELECT answer FROM step WHERE escalation = ?1 AND n = ?2
                   AND EXISTS (SELECT 1 FROM escalation WHERE id = ?1 AND step = ?2 + 1 AND state != 'settled')""",
                (row.id, row.step - 1),
            ).fetchone()
            if found is None or found["answer"] is None:
                return False
            verdict: wire.Verdict = wire.Verdict.from_stored(found["answer"].encode())
            return self.settle(as_unsure(verdict, why), row.step - 1, self._db.clock.now())


class OutboxStore:
    """The same tables as the uplink works on them: which escalation is next, and how far each got.

    Owner: the uplink writes. Invariants: as of EscalationStore. Every method raises StoreError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)

    # Which is next

    def queue_heads(
        self, priority: str, *, after_t: float = -1e18, until_t: float = 1e18, untried: bool = False, limit: int
    ) -> list[QueueEntry]:
        """The oldest of those that are ready and were made in after_t < t <= until_t. untried: that never failed.

        By the index on state, priority and age: costs the same with ten escalations and with a hundred thousand.
        """
        with self._db.read() as connection:
            rows = connection.execute(
                f"""SELECT id, created_t, attempts FROM escalation
                    WHERE {INDEXED} AND state = 'ready' AND priority = ? AND created_t > ? AND created_t <= ?
                    {"AND attempts = 0" if untried else ""} ORDER BY created_t LIMIT ?""",
                (priority, after_t, until_t, limit),
            )
            return [QueueEntry(row["id"], row["created_t"], row["attempts"]) for row in rows]

    def ready(self, escalation: str) -> EscalationRow | None:
        """The escalation, if it still is to be sent."""
        return next(iter(_rows(self._db, "WHERE id = ? AND state = 'ready'", (escalation,))), None)

    def due_for_resend(self, t: float, *, first_s: float, last_s: float, limit: int) -> list[EscalationRow]:
        """What was sent long ago and has no verdict: `first_s` ago, then twice as long each time, up to `last_s`."""
        return _rows(
            self._db,
            """WHERE state = 'sent' AND sent_t <= ?
               AND sent_t + min(? * (1 << min(max(attempts, 1) - 1, 8)), ?) <= ? ORDER BY sent_t, id LIMIT ?""",
            (t - first_s, first_s, last_s, t, limit),
        )

    def made_before(self, priority: str, before_t: float, limit: int) -> list[EscalationRow]:
        """Those of a priority that are under way and older than `before_t`.

        What was written after one that is younger is no older than that, whatever the clock said: it may have been set
        back and forth again between two looks at it, so that nobody saw a step.
        """
        old = f"{INDEXED} AND priority = ? AND created_t < ?"
        if not _rows(self._db, f"WHERE {old} LIMIT 1", (priority, before_t)):
            return []  # what comes next reads the whole table
        with self._db.read() as connection:
            (first_young,) = connection.execute(
                "SELECT min(rowid) FROM escalation WHERE created_t BETWEEN ? AND ?", (before_t, self._db.clock.now())
            ).fetchone()
        until = first_young if first_young is not None else _ROWID_MAX
        return _rows(self._db, f"WHERE {old} AND rowid < ? LIMIT ?", (priority, before_t, until, limit))

    def least_urgent(self, limit: int) -> list[tuple[EscalationRow, int]]:
        """What is given up first when there is no room, each with its bytes: the least urgent, of these the oldest."""
        with self._db.read() as connection:
            rows = connection.execute(
                f"""SELECT escalation.*, length(body) + coalesce({_MEDIA_BYTES}, 0) AS held_bytes FROM escalation
                    WHERE {in_states(DROPPABLE)} ORDER BY {BY_PRIORITY} DESC, created_t, id LIMIT ?""",
                (limit,),
            ).fetchall()
        return [
            (read_escalation({name: row[name] for name in row.keys() if name != "held_bytes"}), row["held_bytes"])  # noqa: SIM118
            for row in rows
        ]

    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent: the bodies of what is not sent, and their files."""
        found: int = _scalar(
            self._db,
            f"""SELECT coalesce(sum(length(body)), 0) + coalesce(sum({_MEDIA_BYTES}), 0) FROM escalation
                WHERE {in_states(UNSENT)}""",
        )
        return found

    def first_sent_t(self) -> float | None:
        """When the one that waits longest for its verdict was sent; None: none waits."""
        found: float | None = _scalar(
            self._db, f"SELECT min(sent_t) FROM escalation WHERE {INDEXED} AND state = 'sent'"
        )
        return found

    def oldest_unsent_t(self) -> float | None:
        """When the oldest that may go and is not sent was made; None: all are sent."""
        found: float | None = _scalar(
            self._db, f"SELECT min(created_t) FROM escalation WHERE {in_states(('waiting', 'ready'))}"
        )
        return found

    # How far it got

    def mark_sent(self, row: EscalationRow, t: float) -> bool:
        """The broker has stored the step that `row` was read at; False when that is no news of it (any more)."""
        with self._db.transaction() as connection:
            changed = connection.execute(
                f"""UPDATE escalation SET state = 'sent', sent_t = ?, attempts = attempts + 1, error = ''
                    WHERE id = ? AND step = ? AND {in_states(PUBLISHED)}""",
                (t, row.id, row.step),
            )
            news = changed.rowcount > 0 and row.state != "sent"
            if news:
                bump_rev(self._db, connection, row.alert)
            return news

    def mark_failed(self, row: EscalationRow, error: str) -> None:
        """An attempt to send failed."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                f"""UPDATE escalation SET attempts = attempts + 1, error = iif({in_states(PUBLISHED)}, ?, error)
                    WHERE id = ? AND step = ?""",
                (error, row.id, row.step),
            )

    def add_bytes(self, row: EscalationRow, bytes_sent: int) -> None:
        """Bytes that left the site for the step that `row` was read at."""
        with self._db.transaction(durable=False) as connection:
            connection.execute("UPDATE escalation SET bytes_sent = bytes_sent + ? WHERE id = ?", (bytes_sent, row.id))
            connection.execute(
                """INSERT INTO step (escalation, n, bytes_sent) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET bytes_sent = bytes_sent + excluded.bytes_sent""",
                (row.id, row.step, bytes_sent),
            )

    def set_chunks_acked(self, media: MediaRow, chunks_acked: int) -> None:
        """The broker has stored so many chunks of a file now."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                "UPDATE media SET chunks_acked = ? WHERE escalation = ? AND n = ?",
                (chunks_acked, media.escalation, media.n),
            )

    def reopen(self, row: EscalationRow, lost: Sequence[MediaRow]) -> None:
        """A sent one of whose media the broker no longer has `lost`: these and then it are sent again."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE escalation SET state = 'ready' WHERE id = ? AND step = ? AND state = 'sent'", (row.id, row.step)
            )
            for media in lost:
                self.set_chunks_acked(media, 0)

    def drop_medium(self, row: EscalationRow, media: MediaRow, error: str) -> None:
        """A file cannot be read any more: the escalation goes without it; `error` says why."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM media WHERE escalation = ? AND n = ?", (row.id, media.n))
            body = _body(connection, row.id)
            rest = tuple(ref for ref in body.media if ref.id != media.ref.id)
            body = body.model_copy(update={"media": rest})
            connection.execute(
                "UPDATE escalation SET body = ?, error = ? WHERE id = ?", (body.to_json().decode(), error, row.id)
            )

    def drop_all_media(self, row: EscalationRow) -> None:
        """This camera sends no images (any more): the escalation goes, or stands, without those it was given."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            body = _body(connection, row.id).model_copy(update={"media": (), "can": (), "image_free": True})
            connection.execute("UPDATE escalation SET body = ? WHERE id = ?", (body.to_json().decode(), row.id))

    def shift_clock(self, step_s: float) -> None:
        """Move what is under way with the wall clock, which was stepped: it is no older than before.

        What has the time of this moment was made, or sent, by the clock as it is now, and stays.
        """
        now = self._db.clock.now()
        with self._db.transaction() as connection:
            connection.execute(
                f"""UPDATE escalation SET
                        created_t = iif(created_t > :before OR created_t BETWEEN :since AND :now,
                                        created_t, created_t + :step),
                        sent_t = iif(sent_t > :before OR sent_t BETWEEN :since AND :now, sent_t, sent_t + :step)
                    WHERE {INDEXED}""",
                {"step": step_s, "before": now - step_s, "since": now - _CLOCK_STEP_SEEN_S, "now": now},
            )

    # How it ends without a verdict

    def expire(self, row: EscalationRow, error: str) -> bool:
        """Give it up, visibly; False when its state is another by now."""
        with self._db.transaction() as connection:
            changed = connection.execute(
                "UPDATE escalation SET state = 'expired', error = ? WHERE id = ? AND state = ?",
                (error, row.id, row.state),
            )
            if changed.rowcount:
                bump_rev(self._db, connection, row.alert)
            return changed.rowcount > 0

    def drop(self, row: EscalationRow, why: str) -> list[str]:
        """Give it up for want of room, visibly, and forget its media: their evidence is missing from now on.

        Returns the paths of the files that only it needed. A verdict on an earlier step stands.
        """
        with self._db.transaction() as connection:
            if not (row.step > 0 and self._escalations.close_unsure(row, why)):
                connection.execute(
                    "UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ?",
                    (f"given up: {why}", row.id),
                )
            paths = [
                each["path"]
                for each in connection.execute("SELECT path FROM media WHERE escalation = ? ORDER BY n", (row.id,))
            ]
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            own = [path for path in paths if not _is_shared(connection, row.alert, path)]
            connection.executemany(
                "UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ? WHERE alert = ? AND path = ?",
                [(why, row.alert, path) for path in own],
            )
            bump_rev(self._db, connection, row.alert)
        return own


def as_unsure(verdict: wire.Verdict, why: str) -> wire.Verdict:
    """A request for more evidence as the final verdict."""
    wanted = _NEED_TEXTS.get(verdict.need or "", "more")
    tail = f" It asked for {wanted}, but {why}."
    reason = verdict.reason if len(verdict.reason) + len(tail) <= _REASON_CHARS_MAX else verdict.reason[:200] + "…"
    return verdict.model_copy(
        update={"decision": "unsure", "need": None, "reason": (reason + tail)[:_REASON_CHARS_MAX]}
    )


def _rows(db: Database, tail: str, values: Sequence[object]) -> list[EscalationRow]:
    with db.read() as connection:
        return [read_escalation(row) for row in connection.execute(f"SELECT * FROM escalation {tail}", values)]


def _scalar(db: Database, statement: str) -> Any:
    with db.read() as connection:
        return connection.execute(statement).fetchone()[0]


def _body(connection: sqlite3.Connection, escalation: str) -> wire.Escalation:
    row = connection.execute("SELECT body FROM escalation WHERE id = ?", (escalation,)).fetchone()
    body: wire.Escalation = wire.Escalation.from_stored(row["body"].encode())
    return body


def _is_shared(connection: sqlite3.Connection, alert: str, path: str) -> bool:
    """Whether another escalation or the alert's own page shows this file."""
    row = connection.execute(
        """SELECT EXISTS (SELECT 1 FROM media WHERE path = ?1) OR EXISTS (
               SELECT 1 FROM evidence WHERE alert = ?2 AND path = ?1
               AND (kind IN ('still', 'boxes') OR kind = 'clip' AND n = 0)) AS shown""",
        (path, alert),
    ).fetchone()
    return bool(row["shown"])
