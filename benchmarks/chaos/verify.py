"""Gathers the history of a chaos run, has it checked, and looks whether the broker holds the images."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nats
import nats.js.errors
from nats.aio.client import Client

from appliance import wire
from benchmarks.chaos.checker import Finding, check
from benchmarks.chaos.history import HistoryEvent, broker_events, site_events

MEDIA_CHECKED_MAX = 5000


@dataclass(slots=True)
class ChaosResult:
    """Counts of a run, and what was found wrong in its history.

    - unsaid: settled, but the core never reported that it was raised (it was killed between the two: allowed).
    - asked_again: calls of the model beyond one a question (allowed where a worker died before its verdict was stored).
    - media: images that the broker was asked for; one that is not whole there is a finding, too.
    """

    raised: int = 0
    settled: int = 0
    findings: list[Finding] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)
    unsaid: int = 0
    asked_again: int = 0
    media: int = 0
    history: list[HistoryEvent] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.findings

    def never_raised(self, questions: int) -> list[Finding]:
        """Return a finding if fewer than `questions` alerts were committed: then little, or nothing, was checked."""
        committed = self.raised + self.unsaid
        text = f"{committed} of {questions} alerts were raised before the time was over"
        return [Finding("lost", "alerts", text)] if committed < questions else []

    def as_json(self) -> dict[str, object]:
        rest = {name: value for name, value in asdict(self).items() if name not in ("history", "findings")}
        return {**rest, "findings": [str(each) for each in self.findings], "good": self.good}


def verify(
    database: Path, url: str, site: str, raised: set[int], asked: Iterable[tuple[str, float]] = ()
) -> ChaosResult:
    """Read all. The core must have ended. asked: the alert and time of every call of the model."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        events = site_events(connection)
        rows = connection.execute("SELECT body FROM escalation WHERE state = 'settled' ORDER BY id")
        bodies = [wire.Escalation.from_json(row[0].encode()) for row in rows]
    names = {event.alert: event.escalation for event in events if event.what == "raised"}
    calls = [HistoryEvent(t=t, what="asked", escalation=names.get(alert, alert), alert=alert) for alert, t in asked]
    flagged = [HistoryEvent(t=0.0, what="flagged", alert=f"alert-{n}") for n in sorted(raised)]
    stored, lost_media, media = asyncio.run(_at_the_broker(url, site, bodies))
    history = [*flagged, *events, *stored, *calls]
    applied = [event for event in events if event.what == "applied"]
    return ChaosResult(
        raised=len(raised), settled=len(applied), findings=[*check(history), *lost_media],
        decisions=dict(Counter(event.value for event in applied)), unsaid=len(names) - len(raised & _numbers(names)),
        asked_again=max(0, len(calls) - len(applied)), media=media, history=history,
    )  # fmt: skip


def _numbers(alerts: Iterable[str]) -> set[int]:
    return {int(name.removeprefix("alert-")) for name in alerts}


async def _at_the_broker(
    url: str, site: str, bodies: Sequence[wire.Escalation]
) -> tuple[list[HistoryEvent], list[Finding], int]:
    """Return the broker's part of the history, the images that are not whole there, and how many were checked."""
    client = await nats.connect(url, connect_timeout=10)
    try:
        stored = await broker_events(client, site)
        return stored, *await _lost_media(client, bodies)
    finally:
        await client.close()


async def _lost_media(client: Client, bodies: Sequence[wire.Escalation]) -> tuple[list[Finding], int]:
    stream, found, checked = client.jetstream(), [], 0
    for body in bodies:
        for ref in body.media[: MEDIA_CHECKED_MAX - checked]:
            checked += 1
            digest = hashlib.sha256()
            with contextlib.suppress(nats.js.errors.NotFoundError):  # then it has the wrong hash, too
                for chunk in range(ref.chunks):
                    subject = wire.media_subject(body.site, ref.id, chunk)
                    message = await stream.get_last_msg(wire.STREAM_MEDIA, subject, direct=False)
                    digest.update(message.data or b"")
            if digest.hexdigest() != ref.sha256:
                found.append(Finding("lost", body.id, f"the broker does not hold its image {ref.id} whole"))
    return found, checked
