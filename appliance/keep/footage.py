"""The footage of an alert as one clip: packets copied from the recording, or from the alert's own clip."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from appliance.alerts.evidence_clip import Clip, cut_clip
from appliance.alerts.evidence_files import DiskRefused
from appliance.alerts.evidence_packets import EDGE_S, Recorded, reading
from appliance.config import Alerts, Camera
from appliance.errors import EvidenceError, StoreError
from appliance.keep.watching import lead_s
from appliance.store.archive import Archive
from appliance.store.paths import EVIDENCE, SEGMENTS, inside
from appliance.store.rows import AlertDetail

HOLE_S_MAX = 30.0  # a clip with a longer one is played as if it had none, and all times after it would be wrong

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """The camera's time that is wanted (t0..t1), and the part of it without which the clip proves nothing."""

    t0: float
    t1: float
    first_t: float
    last_t: float


def window_of(detail: AlertDetail, camera: Camera, rolls: Alerts) -> Window:
    """From the pre-roll before the first event could begin (somebody who stayed 20 s came 20 s before) to the post-roll
    after the alert."""
    alert = detail.alert
    first = min((event.t - lead_s(camera, event) for event in detail.events), default=alert.t_start)
    last = max((event.t for event in detail.events), default=alert.t_start)
    end = alert.t_start if alert.t_end is None else alert.t_end
    return Window(min(first, alert.t_start) - rolls.pre_roll_s, max(end, last) + rolls.post_roll_s, first, last)


def cut(archive: Archive, detail: AlertDetail, window: Window, path: Path) -> Clip:
    """Cut the window to `path`. Raises DiskRefused, and EvidenceError when what is left does not show the alert."""
    reasons = []
    for source in (_segments(archive, detail.alert.camera, window), _own_clip(archive, detail)):
        if not source:
            continue
        try:
            clip = _cut_unbroken(source, window, path)
        except DiskRefused:
            raise
        except EvidenceError as error:
            reasons.append(str(error))
            continue
        if clip.t_start <= window.first_t + EDGE_S and clip.t_end >= window.last_t:
            return clip
        path.unlink()
        reasons.append("what is left of it does not reach from before the first event to the last")
    why = (
        "; ".join(dict.fromkeys(reasons)) or "neither the recording (storage.keep_hours) nor the alert's clip is there"
    )
    raise EvidenceError(f"the footage of this alert cannot be kept any more: {why}")


def _segments(archive: Archive, camera: str, window: Window) -> list[Recorded]:
    found = []
    for row in archive.segments(camera, window.t0, window.t1):
        try:
            found.append(Recorded(inside(archive.root, row.path, SEGMENTS), row.t_start, row.t_end))
        except StoreError as error:
            logger.warning("passed over a segment: %s", error)
    return [each for each in found if each.path.is_file()]


def _own_clip(archive: Archive, detail: AlertDetail) -> list[Recorded]:
    row = detail.piece("clip")
    if row is None or row.state != "ready":
        return []
    path = inside(archive.root, row.path, EVIDENCE)
    return [Recorded(path, row.t_start, row.t_end)] if path.is_file() else []


def _cut_unbroken(source: Sequence[Recorded], window: Window, path: Path) -> Clip:
    whole = _unbroken(source, window)
    clip = cut_clip(source, whole.t0, whole.t1, path, hold_t=whole.first_t)
    hole_s = max(_steps(Recorded(path, clip.t_start, clip.t_end)), default=0.0)
    if hole_s < HOLE_S_MAX:
        return clip
    path.unlink()
    raise EvidenceError(f"the recording has a hole of {hole_s:.0f} s in it")


def _unbroken(source: Sequence[Recorded], window: Window) -> Window:
    """The window without what lies before or after a long hole."""
    for before, after in pairwise(source):
        if after.t_start - before.t_end < HOLE_S_MAX:
            continue
        if after.t_start <= window.first_t:
            window = replace(window, t0=max(window.t0, after.t_start))
        elif before.t_end >= window.last_t:
            window = replace(window, t1=min(window.t1, before.t_end))
    return window


def _steps(clip: Recorded) -> Iterator[float]:
    """Seconds from each picture to the next."""
    last: float | None = None
    with reading(clip) as opened:
        for timed in opened.packets():
            if last is not None:
                yield timed.order_t - last
            last = timed.order_t
