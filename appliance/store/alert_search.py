"""Builds the SQL for a filtered list of alerts, quick with 100 000 of them.

Camera, severity, verdict and review have an index each that ends in the time, so a page of them is read in order.
Zones, labels, rules and words are tables of their own. If few alerts match these filters, they are selected first and
then sorted; if many do, reading along the time fills a page after a few steps.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from appliance.types import Severity

ReviewFilter = Literal["open", "reviewed", "false_alarm", "deleted"]
"""open: to be reviewed, which is what nobody has reviewed and, unless such are asked for, no verdict has rejected.
deleted: what a person deleted, which nothing else shows."""
VerdictFilter = Literal["none", "confirmed", "rechecked", "rejected", "unsure"]

SET_ASIDE = "(review IS NULL AND verdict IS 'rejected')"
FEW = 2000  # alerts that are sorted rather than come upon
COUNTED_MAX = 20_000  # beyond it a page says "more than": counting on would hold the answer up
WORDS_MAX = 8  # of a search; each is a lookup in the index


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertQuery:
    """Which alerts are wanted; None: any.

    Attributes:
        from_t, to_t: they began then, UTC seconds: `from_t` <= t_start < `to_t`.
        zone: of an event, or the line that it crossed. label, rule: of an event.
        cameras: it is of one of these.
        text: words, each the beginning of one in the note or in the reason of a verdict.
        set_aside: with those that a verdict rejected and nobody has reviewed.
        folded: without those that belong to the incident of another one that is wanted.
    """

    camera: str | None = None
    severity: Severity | None = None
    review: ReviewFilter | None = None
    verdict: VerdictFilter | None = None
    from_t: float | None = None
    to_t: float | None = None
    zone: str | None = None
    label: str | None = None
    rule: str | None = None
    text: str | None = None
    set_aside: bool = True
    folded: bool = False
    cameras: Collection[str] | None = None


EVERY_ALERT = AlertQuery()


@dataclass(slots=True)
class AlertConditions:
    """`source`: what stands after FROM; `wheres` and `values`: its conditions and all values in order."""

    source: str
    wheres: list[str]
    values: list[object]


@dataclass(frozen=True, slots=True)
class _Side:
    """A condition on a table beside: `ids` selects the alerts that meet it, `check` tells whether one does."""

    ids: str
    check: str
    values: tuple[str, ...]


def select_alerts(connection: sqlite3.Connection, wanted: AlertQuery) -> AlertConditions:
    """Return the conditions that select the wanted alerts. Raise sqlite3.Error."""
    found = AlertConditions("alert", ["audit = 0"], [])
    sides = sorted(_sides(wanted), key=lambda side: _size(connection, side))  # the rarest is asked first
    few = _few(connection, sides)
    if few is not None:
        found.source = "(SELECT value AS found FROM json_each(?)) CROSS JOIN alert ON alert.id = found"
        found.values.append(json.dumps(few))
    found.wheres.append("deleted_t IS NOT NULL" if wanted.review == "deleted" else "deleted_t IS NULL")
    for column, value in (("camera = ?", wanted.camera), ("severity = ?", wanted.severity),
                          ("t_start >= ?", wanted.from_t), ("t_start < ?", wanted.to_t)):  # fmt: skip
        if value is not None:
            found.wheres.append(column)
            found.values.append(value)
    if wanted.cameras is not None:
        found.wheres.append(of_cameras(wanted.cameras))
        found.values += wanted.cameras
    if wanted.review is not None and wanted.review != "deleted":
        found.wheres.append("review IS ?")
        found.values.append(None if wanted.review == "open" else wanted.review)
    if (wanted.review == "open" and wanted.verdict != "rejected") or not wanted.set_aside:
        found.wheres.append(f"NOT {SET_ASIDE}")
    if wanted.verdict is not None:
        found.wheres.append("verdict IS ?")
        found.values.append(None if wanted.verdict == "none" else wanted.verdict)
    for side in sides if few is None else ():
        found.wheres.append(side.check.format(id="alert.id"))
        found.values += side.values
    if wanted.folded:
        first = select_alerts(connection, replace(wanted, folded=False))
        found.wheres.append(
            f"""alert.id NOT IN (SELECT part.id FROM alert AS part
                WHERE part.incident <> '' AND part.id <> part.incident AND EXISTS (SELECT 1 FROM {first.source}
                            WHERE {" AND ".join(first.wheres)} AND alert.id = part.incident))"""
        )
        found.values += first.values
    return found


def of_cameras(cameras: Collection[str]) -> str:
    """Return a condition whose values are the names."""
    return f"camera IN ({', '.join('?' * len(cameras))})"


def _sides(wanted: AlertQuery) -> list[_Side]:
    sides = [
        _Side(
            "SELECT alert FROM alert_facet WHERE kind = ? AND value = ?",
            "EXISTS (SELECT 1 FROM alert_facet WHERE kind = ? AND value = ? AND alert = {id})",
            (kind, value),
        )
        for kind, value in (("zone", wanted.zone), ("label", wanted.label), ("rule", wanted.rule))
        if value is not None
    ]
    words = _words(wanted.text or "")
    if words:
        sides.append(
            _Side(
                "SELECT alert FROM alert_words JOIN alert_text ON n = alert_words.rowid WHERE alert_words MATCH ?",
                "(SELECT n FROM alert_text WHERE alert_text.alert = {id}) IN "
                "(SELECT rowid FROM alert_words WHERE alert_words MATCH ?)",
                (words,),
            )
        )
    return sides


def _words(text: str) -> str:
    """Return the text that a person typed as an expression of FTS5; "" when it has no word."""
    words = [word.replace('"', "") for word in text.replace("\0", " ").split()]
    return " ".join(f'"{word}"*' for word in words[:WORDS_MAX] if any(each.isalnum() for each in word))


def _few(connection: sqlite3.Connection, sides: list[_Side]) -> list[str] | None:
    """Return the alerts that meet all conditions when they are few; None when they are many or nothing is asked for."""
    if not sides:
        return None
    checks = " AND ".join(["TRUE", *(side.check.format(id="found") for side in sides[1:])])
    rows = connection.execute(
        f"SELECT found FROM (SELECT alert AS found FROM ({sides[0].ids})) WHERE {checks} LIMIT {FEW + 1}",
        [value for side in sides for value in side.values],
    ).fetchall()
    return [row["found"] for row in rows] if len(rows) <= FEW else None


def _size(connection: sqlite3.Connection, side: _Side) -> int:
    """How many alerts meet it, counted no further than COUNTED_MAX."""
    counted = f"SELECT count(*) FROM ({side.ids} LIMIT {COUNTED_MAX})"
    return int(connection.execute(counted, side.values).fetchone()[0])
