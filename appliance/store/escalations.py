"""The steps of an escalation: what a verdict does to it, and how it ends.

Each function works inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from typing import Literal

from appliance import wire
from appliance.store.alert_writes import bump_rev
from appliance.store.database import Database
from appliance.store.rows import EscalationRow

VerdictEffect = Literal["settled", "more", "known"]
"""The question is over; it will be asked again with more; the verdict was seen before and changed nothing."""

_REASON_CHARS_MAX = 400
_NEED_TEXTS = {"crop": "a cut-out of the object", "frame": "the whole picture", "clip": "the clip"}


def settle(db: Database, connection: sqlite3.Connection, verdict: wire.Verdict, step: int, t: float) -> bool:
    """The last word on a question; False when it has had one."""
    applied = connection.execute(
        "INSERT OR IGNORE INTO verdict (escalation, alert, decision, body, applied_t, step) VALUES (?, ?, ?, ?, ?, ?)",
        (verdict.escalation, verdict.alert, verdict.decision, verdict.to_json().decode(), t, step),
    )
    if applied.rowcount == 0:
        return False
    connection.execute("UPDATE alert SET verdict = ? WHERE id = ?", (verdict.decision, verdict.alert))
    connection.execute(
        "UPDATE escalation SET state = 'settled', settled_t = ?, error = '' WHERE id = ?", (t, verdict.escalation)
    )
    bump_rev(db, connection, verdict.alert)
    return True


def request_more(db: Database, connection: sqlite3.Connection, verdict: wire.Verdict, t: float) -> VerdictEffect:
    """A worker wants to see more: the question waits for that evidence, or is over because there is none.

    A request that was answered before, or that is about another step than the one that was sent, changes nothing.
    """
    asked = connection.execute("SELECT state, step FROM escalation WHERE id = ?", (verdict.escalation,)).fetchone()
    step = asked["step"]
    if verdict.step != step or asked["state"] in {"waiting", "settled"}:
        return "known"
    why = ""
    if asked["state"] == "expired":
        why = "it asked too late"
    elif step + 1 >= wire.STEPS_MAX:
        why = f"it has been asked {wire.STEPS_MAX} times"
    if why:
        return "settled" if settle(db, connection, as_unsure(verdict, why), step, t) else "known"
    connection.execute(
        """INSERT INTO step (escalation, n, answer) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET answer = excluded.answer""",
        (verdict.escalation, step, verdict.to_json().decode()),
    )
    connection.execute("INSERT OR IGNORE INTO step (escalation, n) VALUES (?, ?)", (verdict.escalation, step + 1))
    connection.execute(
        """UPDATE escalation SET state = 'waiting', step = step + 1, need = ?, attempts = 0, error = ''
           WHERE id = ?""",
        (verdict.need, verdict.escalation),
    )
    bump_rev(db, connection, verdict.alert)
    return "more"


def close_unsure(db: Database, connection: sqlite3.Connection, asked: EscalationRow, why: str, t: float) -> bool:
    """What the cloud asked to see cannot be sent: its `unsure` stands, with the reason. False when it is settled."""
    row = connection.execute(
        """SELECT answer FROM step WHERE escalation = ? AND n = ?
           AND EXISTS (SELECT 1 FROM escalation WHERE id = ?1 AND step = ?2 + 1 AND state != 'settled')""",
        (asked.id, asked.step - 1),
    ).fetchone()
    if row is None or row["answer"] is None:
        return False
    verdict: wire.Verdict = wire.Verdict.from_json(row["answer"].encode())
    return settle(db, connection, as_unsure(verdict, why), asked.step - 1, t)


def as_unsure(verdict: wire.Verdict, why: str) -> wire.Verdict:
    """A request for more evidence as the last word."""
    wanted = _NEED_TEXTS.get(verdict.need or "", "more")
    tail = f" It asked for {wanted}, but {why}."
    reason = verdict.reason if len(verdict.reason) + len(tail) <= _REASON_CHARS_MAX else verdict.reason[:200] + "…"
    return verdict.model_copy(
        update={"decision": "unsure", "need": None, "reason": (reason + tail)[:_REASON_CHARS_MAX]}
    )
