"""The questions of a box that were answered, with their answers, as somebody reads them who is not the appliance."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.store.database import peek
from appliance.store.paths import DATABASE
from appliance.store.rows import (
    EscalationRow,
    StepRow,
    VerdictRow,
    read_escalation,
    read_step,
    read_verdict,
)

_PAGE = 200


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """A question, its last word, and its steps."""

    asked: EscalationRow
    verdict: VerdictRow
    steps: tuple[StepRow, ...]


def answered(root: Path, t0: float, t1: float) -> Iterator[AnsweredRow]:
    """What was asked from t0 to t1 (UTC seconds) and has a verdict, oldest first; holds a page. Raises StoreError.

    Each page is a read of its own: the appliance may run meanwhile, and is never held up.
    """
    after: tuple[float, str] = (t0, "")
    while True:
        with peek(root / DATABASE) as connection:
            rows = connection.execute(
                """SELECT escalation.* FROM escalation JOIN verdict ON verdict.escalation = escalation.id
                   WHERE (created_t, id) > (?, ?) AND created_t <= ? ORDER BY created_t, id LIMIT ?""",
                (*after, t1, _PAGE),
            ).fetchall()
            page = [_whole(connection, row) for row in rows]
        yield from page
        if len(page) < _PAGE:
            return
        after = (page[-1].asked.created_t, page[-1].asked.id)


def _whole(connection: sqlite3.Connection, row: sqlite3.Row) -> AnsweredRow:
    asked = read_escalation(row)
    verdict = connection.execute("SELECT * FROM verdict WHERE escalation = ?", (asked.id,)).fetchone()
    steps = connection.execute("SELECT * FROM step WHERE escalation = ? ORDER BY n", (asked.id,)).fetchall()
    return AnsweredRow(asked, read_verdict(verdict), tuple(map(read_step, steps)))
