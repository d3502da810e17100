"""Timeline of a camera in a span of time: recording, interruptions, alerts, faults, inferences a minute."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.store.alert_rows import FIRST_EVENT, FirstEvent, read_event
from appliance.store.boxes import MINUTE_S
from appliance.store.cameras import read_gap
from appliance.store.database import Database
from appliance.store.deletions import DeletionReason
from appliance.store.health_events import HealthEventRow
from appliance.store.segments import SEGMENT_S_MAX
from appliance.types import Decision, Event, Gap, Review, Severity

ALERTS_MAX = 1000  # of a camera and span; more are counted
GAPS_MAX = 500  # marks on a strip 1000 px wide
HEALTH_MAX = 200  # likewise
SPANS_MAX = 1000  # likewise
EVENTS_MAX = 2000  # likewise, two for each pixel
JOIN_S = 2.0  # files that follow each other closer than this are one stretch of recording
ALERT_S_MAX = 6 * 3600.0  # an alert that began longer before the span is not looked for


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A stretch without a hole of more than the timeline's `join_s`."""

    t_start: float
    t_end: float


@dataclass(frozen=True, slots=True)
class AlertMark:
    """An alert, as much of it as a mark on a strip needs. has_still: its picture can be shown."""

    id: str
    severity: Severity
    labels: tuple[str, ...]
    t_start: float
    t_end: float | None
    verdict: Decision | None
    review: Review | None
    has_still: bool
    first_event: FirstEvent | None


@dataclass(frozen=True, slots=True)
class MinuteActivity:
    """Examined frames of a minute that begins at `t`, and those of them with any object."""

    t: float
    looks: int
    seen: int


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, its alert (None: a cooldown held it back), and the router's decision about the alert.

    The decision is when the cloud is asked (now, later, never; "": nothing was decided), and why.
    """

    event: Event
    alert: str | None
    moment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraTimeline:
    """All of a camera that touches t_start..t_end, each list oldest first.

    join_s: holes up to this long are not told apart; it grows until the recording has at most `SPANS_MAX` spans.
    alerts_left_out: older ones of the span beyond `ALERTS_MAX`. oldest_t, newest_t: what the recording holds at all;
    None: nothing. deleted_until_t: the newest moment of the continuous recording that was deleted, and why.
    """

    t_start: float
    t_end: float
    recorded: tuple[RecordedSpan, ...]
    join_s: float
    gaps: tuple[Gap, ...]
    alerts: tuple[AlertMark, ...]
    alerts_left_out: int
    health: tuple[HealthEventRow, ...]
    activity: tuple[MinuteActivity, ...]
    codec: str
    oldest_t: float | None
    newest_t: float | None
    deleted_until_t: float | None
    deleted_why: DeletionReason | None


class TimelineStore:
    """Reads timelines; any thread. It writes nothing."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def gaps(self, camera: str, t0: float, t1: float) -> tuple[Gap, ...]:
        """Return the interruptions that touch t0..t1, oldest first, at most GAPS_MAX."""
        with self._db.read() as connection:
            return _gaps(connection, camera, t0, t1)

    def events(self, camera: str, t0: float, t1: float) -> list[StoredEvent]:
        """Events with t0 <= t <= t1, oldest first, at most EVENTS_MAX: reported ones, and what a cooldown held back."""
        with self._db.read() as connection:
            rows = connection.execute(
                """SELECT * FROM event WHERE alert IS NULL AND t BETWEEN :t0 AND :t1 AND camera = :camera
                   UNION ALL
                   SELECT event.* FROM alert JOIN event ON event.alert = alert.id
                   WHERE alert.camera = :camera AND alert.t_start BETWEEN :begin AND :t1 AND event.t BETWEEN :t0 AND :t1
                   ORDER BY t DESC LIMIT :most""",
                {"camera": camera, "t0": t0, "t1": t1, "begin": t0 - ALERT_S_MAX, "most": EVENTS_MAX},
            ).fetchall()
            routes = {
                alert: connection.execute(
                    "SELECT moment, reason FROM decision WHERE alert = ? ORDER BY id DESC LIMIT 1", (alert,)
                ).fetchone()
                for alert in {row["alert"] for row in rows if row["alert"] is not None}
            }
        found = []
        for row in reversed(rows):
            route = routes.get(row["alert"])
            found.append(StoredEvent(read_event(row), row["alert"], *(route or ("", ""))))
        return found

    def read(self, camera: str, t0: float, t1: float) -> CameraTimeline:
        """All that touches t0..t1, of one state of the store. Raises StoreError."""
        with self._db.read() as connection:
            recorded, join_s = _recorded(connection, camera, t0, t1)
            alerts, left_out = _alerts(connection, camera, t0, t1)
            oldest = connection.execute(
                "SELECT min(t_start) AS t FROM segment INDEXED BY segment_camera WHERE camera = ?", (camera,)
            ).fetchone()
            newest = connection.execute(
                "SELECT t_end, codec FROM segment WHERE camera = ? AND frames > 0 ORDER BY rowid DESC LIMIT 1",
                (camera,),
            ).fetchone()
            deleted = connection.execute(
                """SELECT until_t AS t, reason FROM deleted WHERE camera = ? AND class = 'continuous'
                   ORDER BY until_t DESC LIMIT 1""",
                (camera,),
            ).fetchone()
            return CameraTimeline(
                t_start=t0,
                t_end=t1,
                recorded=recorded,
                join_s=join_s,
                gaps=_gaps(connection, camera, t0, t1),
                alerts=alerts,
                alerts_left_out=left_out,
                health=_health(connection, camera, t0, t1),
                activity=_activity(connection, camera, t0, t1),
                codec=newest["codec"] if newest else "",
                oldest_t=oldest["t"],
                newest_t=newest["t_end"] if newest else None,
                deleted_until_t=deleted["t"] if deleted else None,
                deleted_why=deleted["reason"] if deleted else None,
            )


def _recorded(
    connection: sqlite3.Connection, camera: str, t0: float, t1: float
) -> tuple[tuple[RecordedSpan, ...], float]:
    rows = connection.execute(
        """SELECT t_start, t_end FROM segment INDEXED BY segment_camera
           WHERE camera = ? AND t_start <= ? AND t_start > ? AND t_end >= ? AND frames > 0 ORDER BY t_start""",
        (camera, t1, t0 - SEGMENT_S_MAX, t0),
    )  # read as they come: 20,000 rows at once would set off a collection of all that the core has in memory
    join_s = JOIN_S
    spans = join_spans(((row[0], row[1]) for row in rows), join_s)
    while len(spans) > SPANS_MAX:
        join_s *= 2
        spans = join_spans(((each.t_start, each.t_end) for each in spans), join_s)
    return tuple(spans), join_s


def join_spans(pieces: Iterable[tuple[float, float]], join_s: float) -> list[RecordedSpan]:
    """Pieces in the order of their beginnings as spans between which nothing is for longer than `join_s`."""
    found: list[RecordedSpan] = []
    begin = end = float("-inf")
    for t_start, t_end in pieces:
        if t_start - end > join_s:
            if end > float("-inf"):
                found.append(RecordedSpan(begin, end))
            begin, end = t_start, t_end
        else:
            end = max(end, t_end)
    if end > float("-inf"):
        found.append(RecordedSpan(begin, end))
    return found


def _gaps(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> tuple[Gap, ...]:
    rows = connection.execute(
        """SELECT * FROM gap WHERE camera = ? AND t_start <= ? AND (t_end IS NULL OR t_end >= ?)
           ORDER BY t_start DESC LIMIT ?""",
        (camera, t1, t0, GAPS_MAX),
    ).fetchall()
    return tuple(read_gap(row) for row in reversed(rows))


def _alerts(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> tuple[tuple[AlertMark, ...], int]:
    where = """FROM alert INDEXED BY alert_camera WHERE camera = ? AND t_start BETWEEN ? AND ?
        AND audit = 0 AND deleted_t IS NULL AND (t_end IS NULL OR t_end >= ?)"""
    values = (camera, t0 - ALERT_S_MAX, t1, t0)
    rows = connection.execute(
        f"""SELECT id, severity, labels, t_start, t_end, verdict, review, EXISTS (SELECT 1 FROM evidence
            WHERE alert = alert.id AND kind = 'still' AND n = 0 AND state = 'ready') AS has_still, {FIRST_EVENT}
            {where} ORDER BY t_start DESC LIMIT {ALERTS_MAX + 1}""",
        values,
    ).fetchall()
    left_out = 0
    if len(rows) > ALERTS_MAX:
        left_out = connection.execute(f"SELECT count(*) {where}", values).fetchone()[0] - ALERTS_MAX
    return tuple(_mark(row) for row in reversed(rows[:ALERTS_MAX])), left_out


def _mark(row: sqlite3.Row) -> AlertMark:
    return AlertMark(
        id=row["id"],
        severity=row["severity"],
        labels=tuple(json.loads(row["labels"])),
        t_start=row["t_start"],
        t_end=row["t_end"],
        verdict=row["verdict"],
        review=row["review"],
        has_still=bool(row["has_still"]),
        first_event=FirstEvent(*json.loads(row["first_event"])) if row["first_event"] else None,
    )


def _health(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> tuple[HealthEventRow, ...]:
    """Those of the camera and of the appliance."""
    rows: Sequence[sqlite3.Row] = connection.execute(
        """SELECT * FROM health_event WHERE camera IN (?, '') AND t_start <= ? AND (t_end IS NULL OR t_end >= ?)
           ORDER BY t_start DESC, id DESC LIMIT ?""",
        (camera, t1, t0, HEALTH_MAX),
    ).fetchall()
    return tuple(HealthEventRow(**dict(row)) for row in reversed(rows))


def _activity(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> tuple[MinuteActivity, ...]:
    rows = connection.execute(
        "SELECT minute, looks, seen FROM activity WHERE camera = ? AND minute BETWEEN ? AND ? ORDER BY minute",
        (camera, int(t0 // MINUTE_S), int(t1 // MINUTE_S)),
    )
    return tuple(MinuteActivity(float(row[0] * MINUTE_S), row[1], row[2]) for row in rows)
