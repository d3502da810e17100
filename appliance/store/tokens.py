"""Tokens of the judge: what was taken, what a question takes in the mean, and what is still to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.store.database import Database

LAST = 1000

# What was said of each question, requests for more included.
_SAID = """(SELECT escalation AS of, applied_t AS t, body AS said FROM verdict
            UNION ALL SELECT escalation, json_extract(answer, '$.judged_t'), answer
            FROM step WHERE answer IS NOT NULL)"""
_IN, _OUT = "total(json_extract(said, '$.tokens_in'))", "total(json_extract(said, '$.tokens_out'))"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Read and written by the judge."""

    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensTaken:
    """day, month: since these began. mean: of a question, and due: how many are still to be judged, by camera and the
    evidence with which the question began."""

    day: Tokens = Tokens()
    month: Tokens = Tokens()
    mean: Mapping[tuple[str, str], Tokens] = field(default_factory=dict)
    due: Mapping[tuple[str, str], int] = field(default_factory=dict)


def tokens_taken(db: Database, day_t: float, month_t: float) -> TokensTaken:
    """Since the times `day_t` and `month_t`; means of the last LAST verdicts. Raises StoreError."""
    with db.read() as connection:

        def since(t: float) -> Tokens:
            row = connection.execute(f"SELECT {_IN} AS r, {_OUT} AS w FROM {_SAID} WHERE t >= ?", (t,)).fetchone()
            return Tokens(row["r"], row["w"])

        means = connection.execute(
            f"""SELECT camera, evidence, {_IN} / count(DISTINCT of) AS r, {_OUT} / count(DISTINCT of) AS w
                FROM {_SAID} JOIN escalation ON escalation.id = of
                WHERE of IN (SELECT escalation FROM verdict ORDER BY rowid DESC LIMIT ?) GROUP BY 1, 2""",
            (LAST,),
        ).fetchall()
        due = connection.execute(
            """SELECT camera, evidence, count(*) AS n FROM escalation
               WHERE state IN ('waiting', 'ready', 'sent') AND wait = '' GROUP BY 1, 2"""
        ).fetchall()
        return TokensTaken(
            day=since(day_t),
            month=since(min(day_t, month_t)),
            mean={(row["camera"], row["evidence"]): Tokens(row["r"], row["w"]) for row in means},
            due={(row["camera"], row["evidence"]): row["n"] for row in due},
        )
