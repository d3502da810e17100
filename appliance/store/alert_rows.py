"""Writes the rows of an alert: itself, its events, its evidence. Each function joins the caller's transaction."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict, replace

from appliance.store.rows import EvidenceRow, best_json, insert, to_json
from appliance.types import SEVERITIES, Alert, AlertChange, Event


def event_id(event: Event, run: str) -> str:
    """Return the event's id, or one made of its content, so that the same event written twice is one."""
    if event.id:
        return event.id
    content = f"{run}|{event.camera}|{event.rule}|{event.kind}|{event.track}|{event.t!r}"
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def write_alert(connection: sqlite3.Connection, change: AlertChange, now: float) -> bool:
    """Insert or update the alert row; True when that changed anything."""
    known = connection.execute("SELECT * FROM alert WHERE id = ?", (change.alert.id,)).fetchone()
    if known is None:
        _insert_alert(connection, change.alert, now)
        return True
    if known["t_end"] is not None or change.kind == "opened":
        return False
    fields = _mutable(change.alert)
    if known["rules_severity"] == change.alert.severity:  # the rules say what they said when a verdict changed it
        fields["severity"] = known["severity"]
    else:
        fields["rules_severity"] = None
    if all(known[name] == value for name, value in fields.items()):
        return False
    settings = ", ".join(f"{name} = :{name}" for name in fields)
    connection.execute(f"UPDATE alert SET {settings} WHERE id = :id", {**fields, "id": change.alert.id})
    return True


def has_grown(connection: sqlite3.Connection, alert: Alert) -> bool:
    """Return True if the stored alert, which lasts, is less severe or lacks one of the rules."""
    known = connection.execute(
        "SELECT coalesce(rules_severity, severity) AS severity, rules FROM alert WHERE id = ? AND t_end IS NULL",
        (alert.id,),
    ).fetchone()
    if known is None:
        return False
    graver = SEVERITIES.index(alert.severity) > SEVERITIES.index(known["severity"])
    return graver or not set(alert.rules) <= set(json.loads(known["rules"]))


def _mutable(alert: Alert) -> dict[str, object]:
    return {
        "severity": alert.severity,
        "rules": to_json(alert.rules),
        "labels": to_json(alert.labels),
        "tracks": to_json(alert.tracks),
        "score": float(alert.score),
        "t_start": float(alert.t_start),
        "t_end": alert.t_end,
        "end_reason": alert.end_reason,
        "best": best_json(alert.best),
    }


def _insert_alert(connection: sqlite3.Connection, alert: Alert, now: float) -> None:
    fields = _mutable(alert) | {"id": alert.id, "camera": alert.camera, "run": alert.run, "created_t": now, "rev": 0}
    insert(connection, "alert", fields)
    connection.execute(
        "UPDATE alert SET model = coalesce((SELECT model FROM camera WHERE name = alert.camera), '') WHERE id = ?",
        (alert.id,),
    )
    connection.executemany(
        "INSERT INTO evidence (alert, kind, state) VALUES (?, ?, 'waiting')",
        [(alert.id, kind) for kind in ("still", "clip", "boxes")],
    )


def write_incident(connection: sqlite3.Connection, alert_id: str, incident: str) -> bool:
    """Note the incident of an alert, also in its first alert; True when that is new. incident: '': it is its own."""
    if incident in ("", alert_id):
        return False
    changed = connection.execute(
        "UPDATE alert SET incident = :incident WHERE id IN (:alert, :incident) AND incident <> :incident",
        {"incident": incident, "alert": alert_id},
    )
    return changed.rowcount > 0


def write_event(connection: sqlite3.Connection, event: Event, run: str, alert_id: str | None) -> bool:
    """Insert the event unless it is known; True when it is new. alert_id None: a cooldown suppressed it."""
    named = replace(event, id=event_id(event, run))
    values = {name: getattr(named, name) for name in ("id", "camera", "rule", "kind", "track", "label", "zone", "line")}
    values |= {"score": float(event.score), "t": float(event.t), "severity": event.severity}
    values |= {"alert": alert_id, "box": to_json(event.box)}
    return insert(connection, "event", values, "INSERT OR IGNORE")


def write_evidence(connection: sqlite3.Connection, row: EvidenceRow) -> None:
    """Insert or replace one piece of evidence; its file is on disk."""
    times = {"t_start": float(row.t_start), "t_end": float(row.t_end), "score": float(row.score)}
    values = {**asdict(row), **times, "box": None if row.box is None else to_json(row.box)}
    insert(connection, "evidence", values, "INSERT OR REPLACE")
