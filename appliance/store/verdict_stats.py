"""Statistics of verdicts: tokens and judge time per day and camera, and whether alerts turned out right.

Counts decisions by the versions of appliance and judge, and reads alerts with their reviews and verdicts, from which
drift and agreement are computed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from appliance.base.clock import day_bounds, local_day
from appliance.store.database import Database
from appliance.store.escalations import RELEASED
from appliance.types import TEACHING_KINDS
from appliance.wire import BY_APPLIANCE

MEAN_OVER_VERDICTS = 1000  # the newest: prices and models change
HOUR_S, MINUTE_S = 3600.0, 60.0  # seconds
WORK_ROWS_MAX = 10_000  # verdicts of a day; a busy pool's site has some hundreds
GROUPS_MAX = 200  # versions change rarely; names from the wire may not

# The verdicts on each escalation, requests for more included. last: 1 for the final one.
_ANSWERS = """(SELECT escalation AS of, applied_t AS t, body AS verdict, 1 AS last FROM verdict
            UNION ALL SELECT escalation, json_extract(answer, '$.judged_t'), answer, 0
            FROM step WHERE answer IS NOT NULL)"""
# Not of the appliance's own model: its seconds and tokens are nobody's bill.
PAID = f"coalesce(json_extract({{}}, '$.answered_by'), '') <> '{BY_APPLIANCE}'"
_PAID = PAID.format("verdict")
_TOKENS_IN, _TOKENS_OUT, _JUDGE_S = (
    f"total(iif({_PAID}, json_extract(verdict, '$.{name}'), 0))" for name in ("tokens_in", "tokens_out", "seconds")
)
ALERTS_MAX = 20_000  # of one reading, the newest: some 6 MB, and more than a busy site has in a quarter
DAY_S = 86400.0  # seconds
_ANSWERED_ALERTS = f"""SELECT id, camera, coalesce(json_extract(labels, '$[0]'), '') AS label, t_start AS t,
        CAST(strftime('%H', t_start, 'unixepoch', 'localtime') AS INTEGER) AS hour, model, score,
        (SELECT json_extract(inputs, '$.chance') FROM decision WHERE decision.alert = alert.id ORDER BY id DESC LIMIT 1)
            AS chance,
        CASE review WHEN 'reviewed' THEN 1 WHEN 'false_alarm' THEN 0 END AS person,
        CASE WHEN judge IN ({", ".join(map(repr, TEACHING_KINDS))})
            THEN CASE verdict WHEN 'confirmed' THEN 1 WHEN 'rejected' THEN 0 END END AS judge
    FROM alert WHERE audit = 0 AND t_start >= ? ORDER BY t_start DESC, id DESC LIMIT ?"""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Read and written by the judge."""

    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens that the judge used.

    day, month: since these began. mean: of one escalation; due: how many escalations are still to be judged; both by
    camera and the evidence of the first step.
    """

    day: TokenCount = TokenCount()
    month: TokenCount = TokenCount()
    mean: Mapping[tuple[str, str], TokenCount] = field(default_factory=dict)
    due: Mapping[tuple[str, str], int] = field(default_factory=dict)


def token_usage(db: Database, day_t: float, month_t: float) -> TokenUsage:
    """Since the times `day_t` and `month_t`; means of the last MEAN_OVER_VERDICTS verdicts. Raises StoreError."""
    with db.read() as connection:

        def since(t: float) -> TokenCount:
            row = connection.execute(
                f"SELECT {_TOKENS_IN} AS r, {_TOKENS_OUT} AS w FROM {_ANSWERS} WHERE t >= ?", (t,)
            ).fetchone()
            return TokenCount(row["r"], row["w"])

        means = connection.execute(
            f"""SELECT camera, evidence, {_TOKENS_IN} / count(DISTINCT of) AS r, {_TOKENS_OUT} / count(DISTINCT of) AS w
                FROM {_ANSWERS} JOIN escalation ON escalation.id = of
                WHERE {_PAID} AND of IN (SELECT escalation FROM verdict ORDER BY rowid DESC LIMIT ?) GROUP BY 1, 2""",
            (MEAN_OVER_VERDICTS,),
        ).fetchall()
        due = connection.execute(
            f"SELECT camera, evidence, count(*) AS n FROM escalation WHERE {RELEASED} GROUP BY 1, 2"
        ).fetchall()
        return TokenUsage(
            day=since(day_t),
            month=since(min(day_t, month_t)),
            mean={(row["camera"], row["evidence"]): TokenCount(row["r"], row["w"]) for row in means},
            due={(row["camera"], row["evidence"]): row["n"] for row in due},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyJudgeWork:
    """Judge's work for one camera on one day (of the appliance's calendar).

    verdicts: final ones; judge_s: seconds of judges that are paid for, earlier steps included; bytes: payload and
    headers of the escalations that were settled that day, retries included.
    """

    day: str
    camera: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int


def judge_work_since(db: Database, t: float, until_t: float = inf) -> list[DailyJudgeWork]:
    """Return the judges' work, the newest day first, at most WORK_ROWS_MAX rows. Raise StoreError."""
    rows = db.rows(
        f"""SELECT date(t, 'unixepoch', 'localtime') AS day, escalation.camera AS camera, sum(last) AS verdicts,
                  {_JUDGE_S} AS judge_s, CAST({_TOKENS_IN} AS INTEGER) AS tokens_in,
                  CAST({_TOKENS_OUT} AS INTEGER) AS tokens_out,
                  CAST(total(iif(last, escalation.bytes_sent, 0)) AS INTEGER) AS bytes
           FROM {_ANSWERS} JOIN escalation ON escalation.id = of
           WHERE t >= ? AND t < ? GROUP BY 1, 2 ORDER BY 1 DESC, 2 LIMIT ?""",
        (t, until_t, WORK_ROWS_MAX),
    )
    return [DailyJudgeWork(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """The work of one engine and model over some days; the fields are those of DailyJudgeWork.

    The appliance's own model is the engine `BY_APPLIANCE`, whose seconds and tokens are 0: they cost nothing.
    """

    engine: str
    model: str
    verdicts: int
    judge_s: float
    tokens_in: int
    tokens_out: int
    bytes: int


def engine_work_since(db: Database, t: float) -> list[EngineWork]:
    """Return who judged since `t`, the busiest first, at most GROUPS_MAX. Raise StoreError."""
    rows = db.rows(
        f"""SELECT iif({_PAID}, coalesce(json_extract(verdict, '$.engine'), ''), '{BY_APPLIANCE}') AS engine,
                   coalesce(json_extract(verdict, '$.model'), '') AS model, sum(last) AS verdicts,
                   {_JUDGE_S} AS judge_s, CAST({_TOKENS_IN} AS INTEGER) AS tokens_in,
                   CAST({_TOKENS_OUT} AS INTEGER) AS tokens_out,
                   CAST(total(iif(last, escalation.bytes_sent, 0)) AS INTEGER) AS bytes
            FROM {_ANSWERS} JOIN escalation ON escalation.id = of
            WHERE t >= ? GROUP BY 1, 2 ORDER BY 4 DESC LIMIT ?""",
        (t, GROUPS_MAX),
    )
    return [EngineWork(**dict(row)) for row in rows]


class JudgeWorkCache:
    """Judges' work of a span of days. Any thread may call.

    Today's sum is renewed when an alert has changed and each minute; that of the days before, which hardly changes any
    more, each hour: with 100,000 alerts it takes a second.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._held: tuple[tuple[int, int], list[DailyJudgeWork]] | None = None
        self._closed: tuple[tuple[int, float], list[DailyJudgeWork]] | None = None
        self._engines: tuple[tuple[int, int], list[EngineWork]] | None = None

    def engines(self, t: float) -> list[EngineWork]:
        """Return `engine_work_since`, at most a minute old. Raise StoreError."""
        key = (int(self._db.clock.now() // MINUTE_S), int(t // HOUR_S))
        held = self._engines
        if held is None or held[0] != key:
            held = self._engines = (key, engine_work_since(self._db, t))
        return held[1]

    def since(self, t: float) -> list[DailyJudgeWork]:
        """As `judge_work_since`. Raises StoreError."""
        key = (self._db.rev(), int(t // 60))
        held = self._held
        if held is None or held[0] != key:
            today_t, _ = day_bounds(local_day(self._db.clock.now()))
            today = judge_work_since(self._db, max(t, today_t))
            held = self._held = (key, [*today, *self._before(t, today_t)][:WORK_ROWS_MAX])
        return held[1]

    def _before(self, t: float, today_t: float) -> list[DailyJudgeWork]:
        key = (int(t // HOUR_S), today_t)
        closed = self._closed
        if closed is None or closed[0] != key:
            closed = self._closed = (key, judge_work_since(self._db, t, today_t))
        return closed[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGroup:
    """Number of verdicts with this decision.

    They are grouped by the version of the appliance and the detector that raised the alert, and by the judge's engine,
    its model and the version of its prompt.
    """

    box_version: str
    detector: str
    engine: str
    model: str
    prompt: str
    decision: str
    count: int


def verdict_groups(db: Database) -> list[VerdictGroup]:
    """Return the largest groups first, at most GROUPS_MAX. Raise StoreError."""
    rows = db.rows(
        """SELECT coalesce(json_extract(escalation.body, '$.box_version'), '') AS box_version,
                  coalesce(json_extract(escalation.body, '$.model'), '') AS detector,
                  coalesce(json_extract(verdict.body, '$.engine'), '') AS engine,
                  coalesce(json_extract(verdict.body, '$.model'), '') AS model,
                  coalesce(json_extract(verdict.body, '$.prompt_version'), '') AS prompt,
                  decision, count(*) AS count
           FROM verdict JOIN escalation ON escalation.id = verdict.escalation
           GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY count DESC LIMIT ?""",
        (GROUPS_MAX,),
    )
    return [VerdictGroup(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredAlert:
    """An alert and whether it was right as a person and as a language model say; None: they said nothing (yet).

    label: of its first object; t: UTC seconds of its begin; hour: of the day on the site; model: the network that
    raised it, '' if not known; chance: of being right as the router took it when it decided, None: there was no router.
    """

    id: str
    camera: str
    label: str
    t: float
    hour: int
    model: str
    score: float
    chance: float | None = None
    person: bool | None = None
    judge: bool | None = None

    @property
    def real(self) -> bool | None:
        """Return whether it was right; a person outranks the judge."""
        return self.judge if self.person is None else self.person


def answered_alerts(db: Database, since_t: float) -> list[AnsweredAlert]:
    """Return the newest alerts that began at `since_t` or later, judged or not, the oldest first. Raise StoreError."""
    return [_alert(dict(row)) for row in reversed(db.rows(_ANSWERED_ALERTS, (since_t, ALERTS_MAX)))]


def _alert(row: dict[str, Any]) -> AnsweredAlert:
    """Return the alert. All of them share their few names, which would be a third of what is held for months."""
    names = {name: sys.intern(row[name]) for name in ("camera", "label", "model")}
    return AnsweredAlert(**{**row, **names, "person": _answer(row["person"]), "judge": _answer(row["judge"])})


def _answer(stored: int | None) -> bool | None:
    return None if stored is None else bool(stored)
