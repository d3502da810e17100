"""Stores escalations: requests to the cloud, or to a model on site, to judge an alert.

An escalation has steps (one message each) and media (the images and clips in the messages). The store keeps the state
of each escalation, gives the one to send next, and applies verdicts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from appliance import wire
from appliance.store.database import Database, bump_rev
from appliance.types import CONFIRMING_KINDS, Decision, EvidenceStep, JudgeKind, Route, Severity

StepEvidence = Literal["facts", "crop", "frame", "clip"]
Delivery = Literal["waiting", "deferred", "ready", "sent", "settled", "expired"]
WITHDRAW_CONFIDENCE_MIN = 0.7
"""If a language model rejects an alert with less confidence than this, people still see the alert. The confidence is
what the model says about itself, not a measured probability: below two in three it hardly means anything."""
VerdictEffect = Literal["settled", "more", "reason", "known"]
"""The effect of a verdict that arrives:

- settled: the escalation is over.
- more: the escalation will be sent again with more evidence.
- reason: the reason of an earlier decision arrived.
- known: the verdict was received before, and changed nothing.
"""

# The states of an escalation that has no final verdict and was not given up.
UNSETTLED: tuple[Delivery, ...] = ("waiting", "deferred", "ready", "sent")


def is_firm(judge: JudgeKind | None, confidence: float | None) -> bool:
    """Return True if a rejection may keep an alert from a person.

    A person's rejection may. A language model's rejection may if the model is sure enough. A detector's or an unknown
    judge's never may.
    """
    if judge == "vlm":
        return confidence is not None and confidence >= WITHDRAW_CONFIDENCE_MIN
    return judge in CONFIRMING_KINDS


@dataclass(frozen=True, slots=True)
class EscalationTimes:
    """Holds when an escalation was created, stored by the broker, and settled: UTC seconds; None: not yet."""

    created_t: float
    sent_t: float | None
    settled_t: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalationRow:
    """Holds one escalation and its progress. `body.media` is empty until the state is `ready`.

    Attributes:
        step: the number of the message that is being made, sent or answered.
        need: the evidence that the cloud requested for this step; "" in the first step.
        attempts: how often this step was sent. Once the broker has stored the escalation, failures before do not count.
        bytes_sent: bytes of all steps, payload and headers.
        evidence: the evidence of the first step, as the router decided; "" in an old row: as the site file says.
        wait: why the router postponed it; "": it did not. When the evidence is made, its state becomes `deferred`.
        until_t: the earliest time for sending it, UTC seconds; None: no such time.
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
    """Holds one message of an escalation.

    evidence: the kind of evidence in it that shows most; "" while the message is being made. answer: the verdict that
    requested more evidence after this message; None: no verdict did, or this was the last message.
    """

    escalation: str
    n: int
    evidence: StepEvidence | Literal[""] = ""
    bytes_sent: int = 0
    answer: wire.Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """Holds the final verdict on an escalation. step: the number of the message that it answered."""

    escalation: str
    alert: str
    decision: Decision
    body: wire.Verdict
    applied_t: float
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRow:
    """Holds one file of an escalation. `path` is relative to the storage folder."""

    escalation: str
    n: int
    path: str
    ref: wire.MediaRef
    chunks_acked: int = 0


def read_escalation(row: sqlite3.Row | Mapping[str, Any]) -> EscalationRow:
    fields = dict(row)
    times = EscalationTimes(*(fields.pop(each) for each in EscalationTimes.__slots__))
    return EscalationRow(**{**fields, "times": times, "body": wire.Escalation.from_stored(row["body"].encode())})


def read_verdict(row: sqlite3.Row) -> VerdictRow:
    return VerdictRow(**{**dict(row), "body": wire.Verdict.from_stored(row["body"].encode())})


def read_step(row: sqlite3.Row) -> StepRow:
    answer = None if row["answer"] is None else wire.Verdict.from_stored(row["answer"].encode())
    return StepRow(**{**dict(row), "answer": answer})


def read_media(row: sqlite3.Row) -> MediaRow:
    fields = {name: row[name] for name in ("escalation", "n", "path", "chunks_acked")}
    return MediaRow(**fields, ref=wire.MediaRef.from_stored(row["ref"].encode()))


def in_states(states: Sequence[Delivery]) -> str:
    """Return the SQL condition that an escalation is in one of `states`."""
    return f"state IN ({', '.join(repr(state) for state in states)})"


# The partial index `escalation_open` holds these states. SQLite uses it only for a query that repeats this condition
# word for word. A query for fewer states therefore has both conditions.
INDEXED = in_states(("waiting", "ready", "sent"))
# Open, and not postponed by the router.
RELEASED = f"{INDEXED} AND wait = ''"
POSTPONED = f"wait <> '' AND {in_states(('waiting', 'deferred'))}"
# All that are not settled, by the two partial indexes: the table grows for ever, by more than a kilobyte a row.
OPEN = f"rowid IN (SELECT rowid FROM escalation WHERE {INDEXED} UNION SELECT rowid FROM escalation WHERE wait <> '')"
BY_PRIORITY = "CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END"

_REASON_CHARS_MAX = 400  # as cloud_worker.judge
_NEED_TEXTS = {"crop": "a cut-out of the object", "frame": "the whole picture", "clip": "the clip"}


SeverityAfter = Callable[[str, str, Severity, Decision], Severity]
"""Returns an alert's severity after a verdict, from camera, rule, severity by the rules, and the decision."""


def unchanged_severity(camera: str, rule: str, severity: Severity, decision: Decision) -> Severity:
    """Return the severity as it is: a verdict changes nothing."""
    return severity


class EscalationStore:
    """Owns the tables of escalations, steps, media and verdicts.

    Core and uplink write, any thread reads. Invariants: every change of a state is one transaction, and a call inside
    another transaction joins it. A step is answered once. A settled escalation stays settled. Every method raises
    StoreError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.severity_after: SeverityAfter = unchanged_severity

    # Called by the core

    def add(self, escalation: wire.Escalation, priority: str, route: Route | None = None) -> bool:
        """Insert an escalation; return True if this changed anything.

        If the escalation is there, was postponed, and `route` no longer postpones it, it is released.
        """
        wait = route.wait if route is not None and route.when == "later" else ""
        with self._db.transaction() as connection:
            written = connection.execute(
                """INSERT INTO escalation
                       (id, alert, site, camera, priority, state, body, created_t, evidence, wait, until_t)
                   VALUES (:id, :alert, :site, :camera, :priority, 'waiting', :body, :created_t, :evidence, :wait,
                       :until_t)
                   ON CONFLICT (id) DO UPDATE SET priority = excluded.priority, wait = '', until_t = NULL,
                       state = iif(state = 'deferred', 'ready', state) WHERE wait <> '' AND excluded.wait = ''
                   RETURNING state""",
                {
                    "id": escalation.id, "alert": escalation.alert, "site": escalation.site,
                    "camera": escalation.camera, "priority": priority, "body": escalation.to_json().decode(),
                    "created_t": escalation.created_t, "evidence": "" if route is None else route.evidence,
                    "wait": wait, "until_t": route.until_t if route is not None and wait else None,
                },
            ).fetchone()  # fmt: skip
            _begin_sending(self._db, written, escalation.id)
            return written is not None

    # Called by the router

    def postponed(self, limit: int) -> list[EscalationRow]:
        """Return the postponed escalations, the most urgent and oldest first."""
        return escalation_rows(self._db, f"WHERE {POSTPONED} ORDER BY {BY_PRIORITY}, created_t, id LIMIT ?", (limit,))

    def release(self, row: EscalationRow) -> None:
        """End the postponement of an escalation: it is sent as soon as its evidence is made."""
        with self._db.transaction() as connection:
            released = connection.execute(
                """UPDATE escalation SET wait = '', until_t = NULL, state = iif(state = 'deferred', 'ready', state)
                   WHERE id = ? AND wait <> '' RETURNING state""",
                (row.id,),
            ).fetchone()
            _begin_sending(self._db, released, row.id)
            bump_rev(self._db, connection, row.alert)

    def postpone(self, row: EscalationRow, wait: str, until_t: float | None) -> None:
        """Record another reason or time for which a postponed escalation waits."""
        self._db.execute(
            "UPDATE escalation SET wait = ?, until_t = ? WHERE id = ? AND wait <> ''",
            (wait, until_t, row.id),
            durable=False,
        )

    def expire_postponed(self, row: EscalationRow, error: str) -> bool:
        """Give up a postponed escalation whose wait was too long; `error` says so to people.

        False: it waits no more, and nothing is changed.
        """
        with self._db.transaction() as connection:
            changed = connection.execute(
                f"UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ? AND {POSTPONED}",
                (error, row.id),
            )
            if changed.rowcount:
                bump_rev(self._db, connection, row.alert)
        return changed.rowcount > 0

    def queue_age_s(self, now: float) -> float:
        """Return for how many seconds the oldest escalation that may be sent has waited; 0: none waits."""
        oldest_t = self._db.row(
            f"SELECT min(created_t) FROM escalation WHERE {RELEASED} AND {in_states(('waiting', 'ready'))}"
        )[0]
        return 0.0 if oldest_t is None else max(0.0, now - oldest_t)

    # Called by the evidence maker

    def waiting_for_evidence(self, limit: int) -> list[EscalationRow]:
        """Return the escalations that wait for evidence, the most urgent first."""
        return escalation_rows(
            self._db, f"WHERE {INDEXED} AND state = 'waiting' ORDER BY {BY_PRIORITY}, created_t, id LIMIT ?", (limit,)
        )

    def make_ready(self, escalation: wire.Escalation, media: Sequence[MediaRow], evidence: StepEvidence) -> bool:
        """Store the final body and the new media of a step, so that it can be sent; False: it was no longer waiting.

        The state becomes `ready`, or `deferred` if the router postponed the escalation. evidence: see `StepRow`.
        """
        with self._db.transaction() as connection:
            changed = connection.execute(
                """UPDATE escalation SET state = iif(wait = '', 'ready', 'deferred'), body = ?
                   WHERE id = ? AND state = 'waiting' AND step = ? RETURNING state""",
                (escalation.to_json().decode(), escalation.id, escalation.step),
            ).fetchone()
            if changed is None:
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
            if not escalation.step:
                self._db.latencies.observe("evidence", self._db.clock.now() - escalation.created_t)
            _begin_sending(self._db, changed, escalation.id)
            return True

    # For display

    def media(self, escalation: str) -> list[MediaRow]:
        """Return the files of an escalation, in order."""
        rows = self._db.rows("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation,))
        return [read_media(row) for row in rows]

    def count_unsettled(self) -> dict[Delivery, int]:
        """Return the number of escalations in each unsettled state. The many settled ones are not read."""
        rows = self._db.rows(
            f"SELECT state, count(*) AS n FROM escalation WHERE {OPEN} AND {in_states(UNSETTLED)} GROUP BY state"
        )
        return {**dict.fromkeys(UNSETTLED, 0), **{row["state"]: row["n"] for row in rows}}

    # Verdicts

    def settle(self, verdict: wire.Verdict, step: int, t: float) -> bool:
        """Record the final verdict on an escalation, at `step`; return False if it already had one."""
        with self._db.transaction() as connection:
            applied = connection.execute(
                """INSERT OR IGNORE INTO verdict (escalation, alert, decision, body, applied_t, step)
                   VALUES (?, ?, ?, ?, ?, ?)""",
                (verdict.escalation, verdict.alert, verdict.decision, verdict.to_json().decode(), t, step),
            )
            if applied.rowcount == 0:
                return False
            self._db.latencies.end("verdict", verdict.escalation)
            _settle_alert(connection, verdict, self.severity_after)
            connection.execute(
                "UPDATE escalation SET state = 'settled', settled_t = ?, wait = '', error = '' WHERE id = ?",
                (t, verdict.escalation),
            )
            bump_rev(self._db, connection, verdict.alert)
            return True

    def complete(self, verdict: wire.Verdict) -> bool:
        """Complete a decision that arrived before its reason; return False if no decision waits for its reason.

        The decision stays. A whole verdict with another decision comes from a second worker that judged after the
        first was lost: its decision and reason are ignored.
        """
        with self._db.transaction() as connection:
            row = connection.execute(
                "SELECT body FROM verdict WHERE escalation = ? AND json_extract(body, '$.provisional')",
                (verdict.escalation,),
            ).fetchone()
            if row is None or verdict.provisional:
                return False
            first: wire.Verdict = wire.Verdict.from_stored(row["body"].encode())
            if (verdict.alert, verdict.site) != (first.alert, first.site):
                return False
            if verdict.decision != first.decision:
                verdict = first.model_copy(update={"provisional": False, "reason": wire.NO_REASON})
            whole = verdict.model_copy(update={"confidence": first.confidence})
            connection.execute(
                "UPDATE verdict SET body = ? WHERE escalation = ?", (whole.to_json().decode(), verdict.escalation)
            )
            bump_rev(self._db, connection, first.alert)
            return True

    def request_more(self, verdict: wire.Verdict, t: float) -> VerdictEffect:
        """Apply a worker's request for more evidence: the escalation waits for this evidence, or ends without it.

        A request that was applied before, or that is about another step than the one that was sent, changes nothing.
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
        """Settle an escalation as `unsure`, because the requested evidence cannot be sent. False: it is settled."""
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


def as_unsure(verdict: wire.Verdict, why: str) -> wire.Verdict:
    """Return a request for more evidence as the final verdict."""
    wanted = _NEED_TEXTS.get(verdict.need or "", "more")
    tail = f" It asked for {wanted}, but {why}."
    reason = verdict.reason if len(verdict.reason) + len(tail) <= _REASON_CHARS_MAX else verdict.reason[:200] + "…"
    return verdict.model_copy(
        update={"decision": "unsure", "need": None, "reason": (reason + tail)[:_REASON_CHARS_MAX]}
    )


def _begin_sending(db: Database, changed: sqlite3.Row | None, escalation: str) -> None:
    # For what the router postponed, its wait is no time of the broker's.
    if changed is not None and changed["state"] == "ready":
        db.latencies.begin("broker", escalation)


def escalation_rows(db: Database, tail: str, values: Sequence[object]) -> list[EscalationRow]:
    """Return the escalations that a SELECT with this `tail` finds."""
    return [read_escalation(row) for row in db.rows(f"SELECT * FROM escalation {tail}", values)]


def stored_body(connection: sqlite3.Connection, escalation: str) -> wire.Escalation:
    """Return the escalation as it was stored."""
    row = connection.execute("SELECT body FROM escalation WHERE id = ?", (escalation,)).fetchone()
    body: wire.Escalation = wire.Escalation.from_stored(row["body"].encode())
    return body


def _settle_alert(connection: sqlite3.Connection, verdict: wire.Verdict, severity_after: SeverityAfter) -> None:
    """Store the verdict with its alert, unless it is a detector's and the alert has one of a better judge."""
    row = connection.execute(
        """SELECT alert.camera, severity, rules_severity, alert.judge, json_extract(body, '$.rule') AS rule
           FROM alert JOIN escalation ON escalation.id = ? WHERE alert.id = ?""",
        (verdict.escalation, verdict.alert),
    ).fetchone()
    if row["judge"] in CONFIRMING_KINDS and verdict.kind not in CONFIRMING_KINDS:
        return
    by_rules: Severity = row["rules_severity"] or row["severity"]
    stands = verdict.decision == "rejected" and not is_firm(verdict.kind, verdict.confidence)
    severity = by_rules if stands else severity_after(row["camera"], row["rule"], by_rules, verdict.decision)
    connection.execute(
        """UPDATE alert SET verdict = ?, judge = ?, verdict_confidence = ?, severity = ?, rules_severity = ?
           WHERE id = ?""",
        (
            verdict.decision,
            verdict.kind,
            verdict.confidence,
            severity,
            None if severity == by_rules else by_rules,
            verdict.alert,
        ),
    )
