"""Comparison of what the store and the broker hold after the chaos with what was raised."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nats
import nats.js.errors

from appliance import wire

MEDIA_CHECKED_MAX = 5000


@dataclass(slots=True)
class ChaosResult:
    """Counts of a run.

    - lost: raised and committed, but without its alert, its escalation or a verdict.
    - twice: verdicts that the store took twice, or alerts whose verdict changed more than once.
    - wrong_media: settled questions whose images the broker does not hold whole and with the right hash.
    - unsaid: settled, but the core never reported that it was raised (it was killed between the two: allowed).
    - judged_again: verdicts beyond one a question that the broker holds (allowed: they are applied once).
    """

    raised: int = 0
    settled: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrong_media: list[str] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)
    unsaid: int = 0
    judged_again: int = 0
    media: int = 0

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.wrong_media)


def verify(database: Path, url: str, raised: set[int]) -> ChaosResult:
    """Read both. The core must have ended."""
    found = ChaosResult(raised=len(raised))
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            """SELECT alert.id, alert.verdict, escalation.id, escalation.body, verdict.decision FROM alert
               LEFT JOIN escalation ON escalation.alert = alert.id
               LEFT JOIN verdict ON verdict.escalation = escalation.id
               ORDER BY alert.id"""
        ).fetchall()
        applied = dict(connection.execute("SELECT escalation, count(*) FROM chaos_applied GROUP BY escalation"))
        changed = dict(connection.execute("SELECT alert, count(*) FROM chaos_alert GROUP BY alert"))
    there = {int(row[0].removeprefix("alert-")): row for row in rows}
    found.lost = [f"alert-{n}" for n in sorted(raised - there.keys())]
    found.lost += [row[0] for row in there.values() if row[2] is None or row[4] is None or row[1] != row[4]]
    found.twice = [each for each, n in {**applied, **changed}.items() if n > 1]
    found.settled = sum(row[4] is not None for row in there.values())
    found.unsaid = len(there.keys() - raised)
    for row in there.values():
        if row[4] is not None:
            found.decisions[row[4]] = found.decisions.get(row[4], 0) + 1
    bodies = [wire.Escalation.from_json(row[3].encode()) for row in there.values() if row[3] and row[4] is not None]
    found.wrong_media, found.media, verdicts = asyncio.run(_at_the_broker(url, bodies))
    found.judged_again = verdicts - found.settled
    return found


async def _at_the_broker(url: str, bodies: list[wire.Escalation]) -> tuple[list[str], int, int]:
    """Images that are not whole there, how many were checked, and how many verdicts there are."""
    client = await nats.connect(url, connect_timeout=10)
    try:
        stream = client.jetstream()
        wrong, checked = [], 0
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
                    wrong.append(ref.id)
        info = await stream.stream_info(wire.STREAM_VERDICT)
        return wrong, checked, info.state.messages
    finally:
        await client.close()


def as_json(found: ChaosResult) -> dict[str, object]:
    return {**asdict(found), "good": found.good}
