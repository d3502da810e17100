"""Which alerts go into an export, and into which part of it: never one incident into both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from appliance.export.sample import Split
from appliance.store.archive import Archive
from appliance.store.rows import AlertRow

PAGE = 500
# An incident that outlasts `length_max_s`, or during which the camera came back, is told in several alerts.
INCIDENT_GAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An alert and the incident it belongs to, named after its first alert."""

    alert: AlertRow
    incident: str


def every_alert(archive: Archive) -> Iterator[AlertRow]:
    """All alerts in order of camera and time, page by page. Raises StoreError."""
    after: tuple[str, float, str] | None = None
    while rows := archive.alerts(after, PAGE):
        yield from rows
        last = rows[-1]
        after = (last.camera, last.t_start, last.id)


def incidents(rows: Iterable[AlertRow]) -> Iterator[Chosen]:
    """Each alert with its incident: alerts of one camera that follow on each other within INCIDENT_GAP_S are one.

    rows: all alerts in order of camera and time, so that the incident does not depend on what is asked for.
    """
    camera, until, incident = "", float("-inf"), ""
    for row in rows:
        if row.camera != camera or row.t_start - until > INCIDENT_GAP_S:
            camera, until, incident = row.camera, float("-inf"), row.id
        until = max(until, row.t_start if row.t_end is None else row.t_end)
        yield Chosen(alert=row, incident=incident)


def split_of(incident: str, share: float) -> Split:
    """`train` for about `share` of all incidents. Depends on nothing else: what comes later moves nothing."""
    number = int.from_bytes(hashlib.sha256(f"split|{incident}".encode()).digest()[:8], "big")
    return "train" if number < share * 2**64 else "val"
