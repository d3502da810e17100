"""The history of a run: what happened to each escalation, read from the site's database, the broker and the engine.

As Jepsen's histories are: a list of events, each with a time, that a checker reads when the run is over (`checker.py`).
Nothing in it is a counter of the product. The site's part is written by SQLite triggers, in the transaction of the
change itself; the broker's part is the stream of verdicts; the engine's part is written by the stand-in that is asked.
One event a line in a file (JSON).

    {"t": 1732.1, "what": "raised", "escalation": "…", "alert": "alert-3", "priority": "high"}

| what | who writes it | when |
|---|---|---|
| flagged | whoever raised the alert | after the call returned; `alert` alone |
| raised | the site | alert and escalation are committed |
| state | the site | the escalation turned `value` (ready, sent, settled, expired); people are told of expired |
| applied | the site | a verdict was stored, decision `value` |
| completed | the site | its reason came, decision `value` |
| changed | the site | the alert's verdict turned `value`; `alert` alone |
| stored | the broker | a verdict is in the stream, decision `value`; part: "", "decision" (provisional) or "need" |
| asked, answered, failed | the engine | a call that costs money began, ended; where: the worker |
| acked | the worker | it acknowledges the escalation |
| link | the harness | the site's link is in `region` from here on; "": it is down |
| refused | the harness | the site's disk refused a verdict |
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from nats.aio.client import Client

from appliance import wire

What = Literal[
    "flagged", "raised", "state", "applied", "completed", "changed", "stored", "asked", "answered", "failed", "acked",
    "link", "refused",
]  # fmt: skip
READ_S_MAX = 5.0  # for the next verdict of a stream that is known to hold one
_NOW = "(julianday('now') - 2440587.5) * 86400.0"  # UTC seconds by this machine's clock: the site's may be set
# Beside the product's own guards. `new.rowid` of the history is the order of the site's commits.
_TRIGGERS = (
    """CREATE TABLE IF NOT EXISTS chaos_history (
        t REAL NOT NULL, what TEXT NOT NULL, escalation TEXT NOT NULL, alert TEXT NOT NULL DEFAULT '',
        priority TEXT NOT NULL DEFAULT '', step INTEGER NOT NULL DEFAULT 0, value TEXT NOT NULL DEFAULT '') STRICT""",
    f"""CREATE TRIGGER IF NOT EXISTS chaos_raised AFTER INSERT ON escalation BEGIN
        INSERT INTO chaos_history VALUES ({_NOW}, 'raised', NEW.id, NEW.alert, NEW.priority, 0, ''); END""",
    f"""CREATE TRIGGER IF NOT EXISTS chaos_state AFTER UPDATE OF state ON escalation
        WHEN NEW.state IS NOT OLD.state BEGIN
        INSERT INTO chaos_history VALUES
            ({_NOW}, 'state', NEW.id, NEW.alert, NEW.priority, NEW.step, NEW.state); END""",
    f"""CREATE TRIGGER IF NOT EXISTS chaos_applied AFTER INSERT ON verdict BEGIN
        INSERT INTO chaos_history VALUES
            ({_NOW}, 'applied', NEW.escalation, NEW.alert, '', coalesce(NEW.step, 0), NEW.decision); END""",
    f"""CREATE TRIGGER IF NOT EXISTS chaos_completed AFTER UPDATE OF body ON verdict BEGIN
        INSERT INTO chaos_history VALUES ({_NOW}, 'completed', NEW.escalation, NEW.alert, '', coalesce(NEW.step, 0),
            json_extract(NEW.body, '$.decision')); END""",
    f"""CREATE TRIGGER IF NOT EXISTS chaos_changed AFTER UPDATE OF verdict ON alert
        WHEN NEW.verdict IS NOT OLD.verdict BEGIN
        INSERT INTO chaos_history VALUES ({_NOW}, 'changed', '', NEW.id, '', 0, coalesce(NEW.verdict, '')); END""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One event. t: UTC seconds, by the clock of the one machine on which all ran. where: the worker."""

    t: float
    what: What
    escalation: str = ""
    alert: str = ""
    priority: str = ""
    step: int = 0
    value: str = ""
    part: str = ""
    where: str = ""
    region: str = ""


def write_history(path: Path, events: Iterable[HistoryEvent]) -> None:
    """Write one event a line; a field at its default is left out."""
    defaults = {each.name: each.default for each in fields(HistoryEvent)}
    with path.open("w", encoding="utf-8") as file:
        for event in events:
            row = {name: value for name, value in asdict(event).items() if value != defaults[name]}
            file.write(json.dumps(row) + "\n")


def read_history(path: Path) -> Iterator[HistoryEvent]:
    """Read what `write_history` wrote. Raise ValueError for a line that is no event."""
    for line in path.read_text(encoding="utf-8").splitlines():
        event = HistoryEvent(**json.loads(line))
        if event.what not in get_args(What):
            raise ValueError(f"{path}: {event.what} is no event of a history")
        yield event


def watch_site(connection: sqlite3.Connection) -> None:
    """Have the site's database write its part of the history from now on."""
    for statement in _TRIGGERS:
        connection.execute(statement)


def site_events(connection: sqlite3.Connection) -> list[HistoryEvent]:
    """Return the site's part, in the order of its commits."""
    rows = connection.execute(
        "SELECT t, what, escalation, alert, priority, step, value FROM chaos_history ORDER BY rowid"
    )
    names = ("t", "what", "escalation", "alert", "priority", "step", "value")
    return [HistoryEvent(**dict(zip(names, row, strict=True))) for row in rows]


async def broker_events(client: Client, site: str, region: str = "") -> list[HistoryEvent]:
    """Return every verdict on this site that the broker holds, in the stream's order."""
    jetstream = client.jetstream()
    subject, found = wire.verdict_subject(site), []
    info = await jetstream.stream_info(wire.STREAM_VERDICT, subjects_filter=subject)
    count = (info.state.subjects or {}).get(subject, 0)
    subscription = await jetstream.subscribe(subject, stream=wire.STREAM_VERDICT, ordered_consumer=True)
    for _ in range(count):
        message = await subscription.next_msg(READ_S_MAX)
        verdict: wire.Verdict = wire.Verdict.from_json(message.data)
        part = "need" if verdict.need is not None else "decision" if verdict.provisional else ""
        stored = HistoryEvent(
            t=message.metadata.timestamp.timestamp(), what="stored", escalation=verdict.escalation, alert=verdict.alert,
            step=verdict.step or 0, value=verdict.decision, part=part, region=region,
        )  # fmt: skip
        found.append(stored)
    await subscription.unsubscribe()
    return found
