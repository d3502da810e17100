"""What asking took, as verdicts and bytes tell it: per day and camera."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.store.database import Database

ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One day (of this box) of one camera. verdicts: last words; judge_s: seconds of the judge, those of earlier steps
    included; bytes: payload and headers of the questions that were settled that day, retries included."""

    day: str
    camera: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int


def asked_since(db: Database, t: float) -> list[Asked]:
    """The newest day first, at most ROWS_MAX. Raises StoreError."""
    with db.read() as connection:
        rows = connection.execute(
            """SELECT date(t, 'unixepoch', 'localtime') AS day, escalation.camera AS camera, sum(last) AS verdicts,
                      total(json_extract(said, '$.seconds')) AS judge_s,
                      CAST(total(json_extract(said, '$.tokens_in')) AS INTEGER) AS tokens_in,
                      CAST(total(json_extract(said, '$.tokens_out')) AS INTEGER) AS tokens_out,
                      CAST(total(iif(last, escalation.bytes_sent, 0)) AS INTEGER) AS bytes
               FROM (SELECT escalation AS of, applied_t AS t, body AS said, 1 AS last FROM verdict
                     UNION ALL
                     SELECT escalation, json_extract(answer, '$.judged_t'), answer, 0
                     FROM step WHERE answer IS NOT NULL)
               JOIN escalation ON escalation.id = of
               WHERE t >= ? GROUP BY 1, 2 ORDER BY 1 DESC, 2 LIMIT ?""",
            (t, ROWS_MAX),
        )
        return [Asked(**dict(row)) for row in rows]
