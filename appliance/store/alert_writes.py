"""How one decision of the alert policy becomes rows. Each function works inside the caller's transaction."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import asdict, replace

from appliance import wire
from appliance.store.database import Database
from appliance.store.rows import best_json, to_json
from appliance.types import Alert, AlertChange, Event, Route


def bump_rev(db: Database, connection: sqlite3.Connection, alert_id: str) -> int:
    """Give the alert the next change number, inside the transaction of `connection`, so that readers see the change."""
    rev = db.next_rev(connection)
    connection.execute("UPDATE alert SET rev = ? WHERE id = ?", (rev, alert_id))
    return rev


def event_id(event: Event, run: str) -> str:
    """The event's id, or one made of its content, so that the same event written twice is one."""
    if event.id:
        return event.id
    said = f"{run}|{event.camera}|{event.rule}|{event.kind}|{event.track}|{event.t!r}"
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def write_alert(connection: sqlite3.Connection, change: AlertChange, now: float) -> bool:
    """Insert or update the alert row; True when that changed anything."""
    known = connection.execute("SELECT * FROM alert WHERE id = ?", (change.alert.id,)).fetchone()
    if known is None:
        _insert_alert(connection, change.alert, now)
        return True
    if known["t_end"] is not None or change.kind == "opened":
        return False
    fields = _mutable(change.alert)
    if all(known[name] == value for name, value in fields.items()):
        return False
    settings = ", ".join(f"{name} = :{name}" for name in fields)
    connection.execute(f"UPDATE alert SET {settings} WHERE id = :id", {**fields, "id": change.alert.id})
    return True


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
    names = ", ".join(fields)
    connection.execute(f"INSERT INTO alert ({names}) VALUES ({', '.join(':' + name for name in fields)})", fields)
    connection.executemany(
        "INSERT INTO evidence (alert, kind, state) VALUES (?, ?, 'waiting')",
        [(alert.id, kind) for kind in ("still", "clip", "boxes")],
    )


def write_event(connection: sqlite3.Connection, event: Event, run: str, alert_id: str | None) -> bool:
    named = replace(event, id=event_id(event, run))
    values = {name: getattr(named, name) for name in ("id", "camera", "rule", "kind", "track", "label", "zone", "line")}
    values |= {"score": float(event.score), "t": float(event.t), "severity": event.severity}
    values |= {"alert": alert_id, "box": to_json(event.box)}
    written = connection.execute(
        """INSERT OR IGNORE INTO event VALUES
           (:id, :alert, :camera, :rule, :kind, :track, :label, :score, :t, :zone, :line, :severity, :box)""",
        values,
    )
    return written.rowcount > 0


def write_escalation(
    connection: sqlite3.Connection, escalation: wire.Escalation, priority: str, route: Route | None = None
) -> bool:
    """Insert the question. One that waits for a better moment is let go when it is asked again and need not wait."""
    wait = route.wait if route is not None and route.when == "later" else ""
    written = connection.execute(
        """INSERT INTO escalation (id, alert, site, camera, priority, state, body, created_t, evidence, wait, until_t)
           VALUES (:id, :alert, :site, :camera, :priority, 'waiting', :body, :created_t, :evidence, :wait, :until_t)
           ON CONFLICT (id) DO UPDATE SET priority = excluded.priority, wait = '', until_t = NULL,
               state = iif(state = 'deferred', 'ready', state) WHERE wait <> '' AND excluded.wait = ''""",
        {
            "id": escalation.id,
            "alert": escalation.alert,
            "site": escalation.site,
            "camera": escalation.camera,
            "priority": priority,
            "body": escalation.to_json().decode(),
            "created_t": escalation.created_t,
            "evidence": "" if route is None else route.evidence,
            "wait": wait,
            "until_t": route.until_t if route is not None and wait else None,
        },
    )
    return written.rowcount > 0


def write_decision(connection: sqlite3.Connection, route: Route, made_t: float) -> None:
    """What the router decided; the same decision about the same event is one row."""
    connection.execute(
        """INSERT OR IGNORE INTO decision (alert, event, camera, t, made_t, moment, evidence, priority, reason, wait,
               until_t, value, bytes, gpu_s, money, inputs)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            route.alert,
            route.event,
            route.camera,
            route.t,
            made_t,
            route.when,
            route.evidence,
            route.priority,
            route.reason,
            route.wait,
            route.until_t,
            route.value,
            route.bytes,
            route.gpu_s,
            route.money,
            to_json(asdict(route.inputs)),
        ),
    )
