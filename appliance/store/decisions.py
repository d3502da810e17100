"""Stores the router's decisions, their outcomes, and the spent budget.

A row of `decision` is one answer of the router about one event of an alert. Columns that need a word:

- tier: who answers, `edge` (the appliance alone) or `cloud` (the alert is escalated).
- edge: the appliance's own answer (`EdgeAnswer`); certainty: the probability that it is right.
- flagged: why the cloud is asked although the edge's answer stands meanwhile; '': it is not.
- moment: when it is sent (`Route.when`); 'never': it is not escalated.

The recheck is the appliance's second detection on a flagged alert. Its table is `second_look`, its verdict stands in
`alert.edge` and `alert.edge_confidence`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from appliance.base.json_lines import flat, grouped
from appliance.store.alert_rows import ALERT_COLUMNS, read_alert, read_event
from appliance.store.database import Database, insert, open_read_only, to_json
from appliance.store.escalations import RELEASED, Delivery
from appliance.store.verdict_stats import PAID, TokenUsage, token_usage
from appliance.types import (
    TEACHING_KINDS,
    Alert,
    Decision,
    EdgeAnswer,
    Event,
    Route,
    RouteInputs,
    SendTiming,
    Severity,
    Tier,
)

OUTCOMES_MAX = 5000  # known alerts from which the router learns: older ones say little of now
DECIDED_MAX = 2000  # likewise, of decisions as they come
RECHECKED_WITHIN_S = 3600.0  # what was said before the last hour was taken into account, or came to nothing
ROWS_MAX = 50_000  # 200 bytes each: 10 MB
ESCALATED_MAX = 256  # rows of one reading: beyond it the budget is spent anyway
MEAN_OF_VERDICTS = 200  # the newest: how long the judge takes follows its load and model
_ROUTE_COLUMNS = (
    "alert", "event", "camera", "t", "evidence", "priority", "reason", "wait", "until_t", "value", "bytes", "gpu_s",
    "money", "tier", "edge", "certainty", "flagged",
)  # fmt: skip
_BATCH = 5000  # rows deleted in one transaction, some 10 ms

# The condition that a person or a language model has said whether an alert is right: only they teach. `unsure`, and
# what a detector or an unknown judge says, counts for nothing.
LABELLED = f"""(alert.review IS NOT NULL OR alert.verdict IN ('confirmed', 'rejected')
        AND alert.judge IN ({", ".join(map(repr, TEACHING_KINDS))}))"""

# The last decision of each alert of which it is known whether it was real. A review outranks a verdict. Of a camera and
# label the newest count, so that a site that changed is learnt anew.
_OUTCOMES = f"""SELECT decision.inputs, decision.moment, alert.camera, alert.id,
        CASE alert.review WHEN 'reviewed' THEN 1 WHEN 'false_alarm' THEN 0
             ELSE alert.verdict = 'confirmed' END AS real, alert.review IS NOT NULL AS reviewed
    FROM decision JOIN alert ON alert.id = decision.alert
    WHERE decision.id IN (SELECT max(id) FROM decision GROUP BY alert) AND {LABELLED}
    ORDER BY decision.id DESC LIMIT ?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """The router's last decision about an alert: who answers, the appliance's own answer and how sure it is.

    Attributes:
        chance: probability that the alert is right. error_high: upper bound (95 % confidence) of the share of wrong
            alerts among those that the appliance is sure of; 1: nothing is claimed.
        flagged: why the appliance's own answer stands for now although the cloud is asked.
    """

    made_t: float
    when: SendTiming
    tier: Tier | Literal[""]
    edge: EdgeAnswer
    certainty: float
    flagged: str
    reason: str
    chance: float
    error_high: float


def read_decision(row: sqlite3.Row) -> DecisionRow:
    inputs = json.loads(row["inputs"])
    fields = {name: row[name] for name in ("made_t", "tier", "edge", "certainty", "flagged", "reason")}
    chance, error_high = inputs.get("chance", 0.0), inputs.get("error_high", 1.0)
    return DecisionRow(**fields, when=row["moment"], chance=chance, error_high=error_high)


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """An alert of which it is known whether it was real, and what the router knew when it decided about it."""

    alert: str
    camera: str
    inputs: RouteInputs
    real: bool
    reviewed: bool


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A decision about an alert of which nobody need have said whether it was real."""

    camera: str
    inputs: RouteInputs


@dataclass(frozen=True, slots=True)
class RecheckedDecision:
    """An alert that stays at the edge, and was rechecked after the router had decided so.

    id: of the decision; event: the one it was about; rechecked, confidence: the verdict of the recheck.
    """

    id: int
    alert: Alert
    event: Event
    inputs: RouteInputs
    rechecked: Decision
    confidence: float


@dataclass(frozen=True, slots=True)
class AskableAlert:
    """An alert that a person may have escalated.

    delivery: how far its newest escalation got; None: there is none. event: its first; inputs: what the router knew of
    it.
    """

    alert: Alert
    delivery: Delivery | None
    event: Event
    inputs: RouteInputs


@dataclass(frozen=True, slots=True)
class EscalatedTrackRow:
    """An escalated track of a session (`run`). t: of the event; size: of the frame, (0, 0) if that is not known."""

    rule: str
    severity: Severity
    track: int
    run: str
    t: float
    size: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """Numbers of alerts by the tier that answered, by the last decision about each.

    kept: at the edge; sure, doubtful: those of them with this estimate. asked: escalated; audited: those of them that
    a sample took; flagged: those of them during which the edge's answer stood. labels: answers that teach, by who gave
    them.
    """

    kept: int = 0
    sure: int = 0
    doubtful: int = 0
    asked: int = 0
    audited: int = 0
    flagged: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpend:
    """Cost of escalating since the day and the month began, including escalations that are still to be sent."""

    bytes_day: float = 0.0
    bytes_month: float = 0.0
    gpu_s_day: float = 0.0
    gpu_s_month: float = 0.0


class DecisionStore:
    """The decision table. Owner: the core; any thread may read."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def outcomes(self) -> list[OutcomeRow]:
        """Return the alerts known to be right or wrong, the newest first, at most OUTCOMES_MAX. Raise StoreError."""
        with self._db.read() as connection:
            return _read_outcomes(connection)

    def decided(self, limit: int = DECIDED_MAX) -> list[DecidedRow]:
        """Return the last decision about each of the newest alerts, whatever became of it. Raise StoreError."""
        with self._db.read() as connection:
            return _read_decided(connection, limit)

    def tiers(self, since_t: float) -> TierCounts:
        """Count the alerts that were last decided about since `since_t`; count labels of all time. Raise StoreError."""
        with self._db.read() as connection:
            row = connection.execute(
                """SELECT total(tier = 'edge') AS kept, total(tier = 'edge' AND edge = 'sure') AS sure,
                          total(tier = 'edge' AND edge = 'doubtful') AS doubtful, total(tier = 'cloud') AS asked,
                          total(tier = 'cloud' AND reason LIKE 'audit sample%') AS audited,
                          total(tier = 'cloud' AND flagged <> '') AS flagged
                   FROM decision WHERE made_t >= ? AND id IN (SELECT max(id) FROM decision GROUP BY alert)""",
                (since_t,),
            ).fetchone()
            labels = connection.execute(
                f"""SELECT iif(review IS NULL, judge, 'person') AS by, count(*) AS n FROM alert
                    WHERE audit = 0 AND {LABELLED} GROUP BY 1"""
            ).fetchall()
        counts = {name: int(row[name]) for name in row.keys()}  # noqa: SIM118 (a Row is no dict)
        return TierCounts(**counts, labels={each["by"]: each["n"] for each in labels})

    def rechecked(self, limit: int) -> list[RecheckedDecision]:
        """Return alerts whose recheck the router has not taken into account yet, oldest first. Raise StoreError."""
        with self._db.read() as connection:
            found = connection.execute(
                """SELECT decision.id, decision.alert, decision.event, decision.inputs, alert.edge,
                          alert.edge_confidence
                   FROM second_look CROSS JOIN alert ON alert.id = second_look.alert JOIN decision ON decision.id =
                       (SELECT max(id) FROM decision WHERE alert = second_look.alert)
                   WHERE second_look.made_t >= ? AND second_look.state = 'judged' AND alert.edge IS NOT NULL
                     AND alert.verdict IS NULL AND alert.review IS NULL AND decision.moment = 'never'
                     AND json_extract(decision.inputs, '$.rechecked') IS NULL
                   ORDER BY decision.id LIMIT ?""",
                (self._db.clock.now() - RECHECKED_WITHIN_S, limit),
            ).fetchall()
            return [each for row in found if (each := _rechecked(connection, row)) is not None]

    def last(self, alert: str) -> AskableAlert | None:
        """Return an alert with its first event and the inputs of the last decision about it. Raise StoreError.

        None: there is no such alert, or its events are no longer stored.
        """
        with self._db.read() as connection:
            row = connection.execute(
                f"SELECT {ALERT_COLUMNS} FROM alert WHERE id = ? AND audit = 0", (alert,)
            ).fetchone()
            event = connection.execute(
                "SELECT * FROM event WHERE alert = ? ORDER BY t, id LIMIT 1", (alert,)
            ).fetchone()
            known = connection.execute(
                "SELECT inputs FROM decision WHERE alert = ? ORDER BY id DESC LIMIT 1", (alert,)
            ).fetchone()
        if row is None or event is None:
            return None
        first = read_event(event)
        seen = {"label": first.label, "severity": row["severity"], "score": first.score}
        inputs = _inputs(seen if known is None else json.loads(known["inputs"]))
        found = read_alert(row)
        return AskableAlert(found.alert, found.judged.delivery, first, inputs)

    def note_recheck(self, decision: int, inputs: RouteInputs) -> None:
        """Record that the recheck changed nothing. Raise StoreError."""
        self._db.execute(
            "UPDATE decision SET inputs = ? WHERE id = ?", (to_json(asdict(flat(inputs))), decision), durable=False
        )

    def spent(self, day: str, day_t: float, month_t: float) -> CloudSpend:
        """Return the use of the uplink and the judge since the times `day_t` and `month_t`; `day` names the former.

        Bytes are those on the uplink as the meter has them; an escalation that is still to be sent counts as it was
        expected to, or with its images, where no alert is behind it. GPU seconds are the judge's own. Raise StoreError.
        """
        with self._db.read() as connection:
            sent = connection.execute(
                """SELECT total(iif(day = ?, amount, 0)) AS day, total(amount) AS month
                   FROM meter WHERE kind = 'uplink_bytes' AND day LIKE ?""",
                (day, day[:8] + "%"),
            ).fetchone()
            judged = connection.execute(
                f"""SELECT total(iif(applied_t >= ?, seconds, 0)) AS day, total(seconds) AS month
                   FROM (SELECT applied_t, json_extract(body, '$.seconds') AS seconds FROM verdict
                         WHERE {PAID.format("body")}
                         UNION ALL SELECT json_extract(answer, '$.judged_t'), json_extract(answer, '$.seconds')
                         FROM step WHERE answer IS NOT NULL AND {PAID.format("answer")})
                   WHERE applied_t >= ?""",
                (day_t, min(day_t, month_t)),
            ).fetchone()
            due = connection.execute(
                f"""SELECT total(iif(escalation.state = 'sent', 0, max(0, coalesce(decision.bytes, (SELECT
                              sum(json_extract(ref, '$.bytes')) FROM media WHERE media.escalation = escalation.id),
                              0) - bytes_sent))) AS bytes, total(decision.gpu_s) AS gpu_s
                   FROM (SELECT * FROM escalation WHERE {RELEASED}) AS escalation LEFT JOIN decision ON decision.id =
                       (SELECT max(id) FROM decision WHERE alert = escalation.alert AND moment <> 'never')"""
            ).fetchone()
        return CloudSpend(
            bytes_day=sent["day"] + due["bytes"],
            bytes_month=sent["month"] + due["bytes"],
            gpu_s_day=judged["day"] + due["gpu_s"],
            gpu_s_month=judged["month"] + due["gpu_s"],
        )

    def gpu_s_mean(self) -> float | None:
        """Return the mean seconds of the judge for a verdict, of the newest; None: there is none. Raise StoreError."""
        mean: float | None = self._db.row(
            f"""SELECT avg(seconds) AS mean FROM (SELECT json_extract(body, '$.seconds') AS seconds FROM verdict
                WHERE {PAID.format("body")} ORDER BY rowid DESC LIMIT ?)""",
            (MEAN_OF_VERDICTS,),
        )["mean"]
        return mean

    def tokens(self, day_t: float, month_t: float) -> TokenUsage:
        """Return the tokens that the judge used; see `token_usage`. Raise StoreError."""
        return token_usage(self._db, day_t, month_t)

    def escalated(self, camera: str, since_t: float) -> list[EscalatedTrackRow]:
        """Return the tracks of a camera that were to be escalated since `since_t`, oldest first. Raise StoreError."""
        rows = self._db.rows(
            """SELECT event.rule, alert.severity, event.track, alert.run, event.t, camera.width, camera.height
               FROM decision JOIN alert ON alert.id = decision.alert JOIN event ON event.id = decision.event
               LEFT JOIN camera ON camera.name = decision.camera
               WHERE decision.made_t >= ? AND decision.camera = ? AND decision.moment <> 'never'
               ORDER BY decision.id DESC LIMIT ?""",
            (since_t, camera, ESCALATED_MAX),
        )
        return [
            EscalatedTrackRow(row[0], row[1], row[2], row[3], row[4], (row[5] or 0, row[6] or 0))
            for row in reversed(rows)
        ]


def write_decision(connection: sqlite3.Connection, route: Route, made_t: float) -> None:
    """Insert what the router decided, in the caller's transaction; a decision about an event is one row."""
    record = flat(route)
    values = {name: getattr(record, name) for name in _ROUTE_COLUMNS}
    values |= {"made_t": made_t, "moment": route.when, "inputs": to_json(asdict(record.inputs))}
    insert(connection, "decision", values, "INSERT OR IGNORE")


def outcomes_in(path: Path) -> tuple[list[OutcomeRow], list[DecidedRow]]:
    """Return the outcomes and all decisions of a database that a running appliance may own. Raise StoreError."""
    with open_read_only(path) as connection:
        return _read_outcomes(connection), _read_decided(connection, DECIDED_MAX)


def prune_decisions(db: Database, older_s: float) -> None:
    """Delete decisions without an outcome that are older than `older_s`, and the oldest beyond ROWS_MAX.

    Bounded to one batch a run. Raises StoreError.
    """
    with db.transaction(durable=False) as connection:
        connection.execute(
            """DELETE FROM decision WHERE id IN (SELECT decision.id FROM decision JOIN alert ON alert.id = alert
               WHERE made_t < ? AND alert.review IS NULL AND alert.verdict IS NULL LIMIT ?)""",
            (db.clock.now() - older_s, _BATCH),
        )
        connection.execute(
            """DELETE FROM decision WHERE id IN (SELECT id FROM decision ORDER BY id LIMIT
               min(?, max(0, (SELECT count(*) FROM decision) - ?)))""",
            (_BATCH, ROWS_MAX),
        )


def _read_outcomes(connection: sqlite3.Connection) -> list[OutcomeRow]:
    return [
        OutcomeRow(
            row["id"], row["camera"], _inputs(json.loads(row["inputs"])), bool(row["real"]), bool(row["reviewed"])
        )
        for row in connection.execute(_OUTCOMES, (OUTCOMES_MAX,))
    ]


def _read_decided(connection: sqlite3.Connection, limit: int) -> list[DecidedRow]:
    rows = connection.execute(
        """SELECT camera, inputs FROM decision WHERE id IN (SELECT max(id) FROM decision GROUP BY alert)
           ORDER BY id DESC LIMIT ?""",
        (limit,),
    )
    return [DecidedRow(row["camera"], _inputs(json.loads(row["inputs"]))) for row in rows]


def _rechecked(connection: sqlite3.Connection, row: sqlite3.Row) -> RecheckedDecision | None:
    """None: the event is not stored (any more)."""
    event = connection.execute("SELECT * FROM event WHERE id = ?", (row["event"],)).fetchone()
    alert = connection.execute(f"SELECT {ALERT_COLUMNS} FROM alert WHERE id = ?", (row["alert"],)).fetchone()
    if event is None:
        return None
    return RecheckedDecision(
        id=row["id"],
        alert=read_alert(alert).alert,
        event=read_event(event),
        inputs=_inputs(json.loads(row["inputs"])),
        rechecked=row["edge"],
        confidence=row["edge_confidence"] or 0.0,
    )


def _inputs(stored: Mapping[str, Any]) -> RouteInputs:
    """Return the inputs of a row that an older or newer Vedette wrote: a field that it lacks keeps its default."""
    return grouped(RouteInputs, stored)
