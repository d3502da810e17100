"""The pictures of an alert's moments: cut from the recording, else from its clip, else its still."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.alerts.evidence_packets import Recorded
from appliance.alerts.evidence_still import Still, cut_stills, jpeg
from appliance.errors import EvidenceError, StoreError
from appliance.store.archive import Archive
from appliance.store.paths import EVIDENCE, SEGMENTS, inside
from appliance.store.rows import AlertDetail

QUALITY = 92  # what a network learns from should not be artefacts of ours


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG of a moment."""

    data: bytes
    width: int
    height: int


def cut(archive: Archive, detail: AlertDetail, times: Sequence[float]) -> Mapping[float, Picture]:
    """The pictures of as many of `times` as can be had. Raises StoreError."""
    found: dict[float, Picture] = {}
    for source in (_segments, _own_clip):
        missing = [t for t in times if t not in found]
        if missing:
            found |= _from(source(archive, detail), missing)
    return found


def still(archive: Archive, detail: AlertDetail) -> tuple[float, Picture] | None:
    """The alert's still and its moment, if it is there."""
    row = detail.piece("still")
    if row is None or row.state != "ready" or not row.width:
        return None
    try:
        data = inside(archive.root, row.path, EVIDENCE).read_bytes()
    except (OSError, StoreError):
        return None
    return row.t_start, Picture(data, row.width, row.height)


def _segments(archive: Archive, detail: AlertDetail) -> list[Recorded]:
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    found = []
    for row in archive.segments(alert.camera, alert.t_start - 1, end + 1):
        with contextlib.suppress(StoreError):
            found.append(Recorded(inside(archive.root, row.path, SEGMENTS), row.t_start, row.t_end))
    return [each for each in found if each.path.is_file()]


def _own_clip(archive: Archive, detail: AlertDetail) -> list[Recorded]:
    row = detail.piece("clip")
    if row is None or row.state != "ready":
        return []
    path: Path = inside(archive.root, row.path, EVIDENCE)
    return [Recorded(path, row.t_start, row.t_end)] if path.is_file() else []


def _from(source: Sequence[Recorded], times: Sequence[float]) -> dict[float, Picture]:
    if not source:
        return {}
    with contextlib.suppress(EvidenceError):
        return dict(zip(times, map(_picture, cut_stills(source, times)), strict=True))
    found = {}
    for t in times:  # one bad frame spoils the batch: take them one by one
        with contextlib.suppress(EvidenceError):
            found[t] = _picture(cut_stills(source, [t])[0])
    return found


def _picture(cut: Still) -> Picture:
    return Picture(jpeg(cut.image, quality=QUALITY), *cut.size)
