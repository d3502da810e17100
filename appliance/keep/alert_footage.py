"""The footage of an alert as one clip, and the camera's section with the rules that were armed then.

The clip's packets are copied from the recording or from the alert's own clip.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from appliance.base.clock import local_weekday_minute
from appliance.base.errors import EvidenceError, PreconditionError, StoreError
from appliance.config import AlertsConfig, CameraConfig, DwellRule, Rule
from appliance.media.atomic_file import DiskWriteError
from appliance.media.recorded import ROUNDING_S, ClipFile, RecordedSegment
from appliance.media.recording_reader import RecordingReader
from appliance.rules.reportable import rule_place
from appliance.rules.schedule import ArmedHours
from appliance.rules.zones_and_lines import TUNING
from appliance.store.archive import StorageArchive
from appliance.store.paths import EVIDENCE, SEGMENTS, inside
from appliance.store.rows import AlertDetail
from appliance.types import Event

logger = logging.getLogger(__name__)


def camera_as_armed(name: str, camera: CameraConfig, events: Iterable[Event], t: float) -> CameraConfig:
    """Return the camera without the rules that were not armed at `t`: in a scenario every rule is always armed.

    Raise PreconditionError if one of the events could not be reported by the rules as they stand today.
    """
    wanted = {event.rule for event in events}
    for event in events:
        _must_be_reportable(name, camera, event)
    armed = tuple(rule for rule in camera.rules if rule.name in wanted or _armed(rule, t))
    return camera.model_copy(update={"rules": armed})


def lead_s(camera: CameraConfig, event: Event) -> float:
    """How long before an event its rule must have watched to report it."""
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    return rule.seconds if isinstance(rule, DwellRule) else TUNING.settle_s


def _armed(rule: Rule, t: float) -> bool:
    return rule.schedule is None or ArmedHours(rule.schedule).armed(*local_weekday_minute(t))


def _must_be_reportable(name: str, camera: CameraConfig, event: Event) -> None:
    rule = next((each for each in camera.rules if each.name == event.rule), None)
    if rule is None:
        there = ", ".join(each.name for each in camera.rules) or "none"
        raise PreconditionError(
            f"camera {name} has no rule `{event.rule}` any more (there is: {there}), so no scenario could ask for it: "
            "put the rule back, or keep the alert with the site file of that time"
        )
    if (event.zone, event.line) != rule_place(rule) or event.label not in rule.labels:
        raise PreconditionError(
            f"the rule `{event.rule}` of camera {name} watches something else today than when it reported a "
            f"{event.label} {f'at line {event.line}' if event.line else f'in zone {event.zone}'}: "
            "keep the alert with the site file of that time"
        )


HOLE_S_MAX = 30.0  # a clip with a longer one is played as if it had none, and all times after it would be wrong


@dataclass(frozen=True, slots=True)
class ClipWindow:
    """The camera's time that is wanted (t0..t1), and the part of it without which the clip proves nothing."""

    t0: float
    t1: float
    first_t: float
    last_t: float


def clip_window(detail: AlertDetail, camera: CameraConfig, rolls: AlertsConfig) -> ClipWindow:
    """Return the window from the pre-roll before the first event could begin to the post-roll after the alert.

    A dwell of 20 s began 20 s before its event.
    """
    alert = detail.alert
    first = min((event.t - lead_s(camera, event) for event in detail.events), default=alert.t_start)
    last = max((event.t for event in detail.events), default=alert.t_start)
    end = alert.t_start if alert.t_end is None else alert.t_end
    return ClipWindow(min(first, alert.t_start) - rolls.pre_roll_s, max(end, last) + rolls.post_roll_s, first, last)


def cut_alert_clip(
    archive: StorageArchive, reader: RecordingReader, detail: AlertDetail, window: ClipWindow, path: Path
) -> ClipFile:
    """Cut the window to `path`. Raises DiskWriteError, and EvidenceError when what is left does not show the alert."""
    reasons = []
    for source in (_segments(archive, detail.alert.camera, window), _own_clip(archive, detail)):
        if not source:
            continue
        try:
            clip = _cut_unbroken(reader, source, window, path)
        except DiskWriteError:
            raise
        except EvidenceError as error:
            reasons.append(str(error))
            continue
        if clip.t_start <= window.first_t + ROUNDING_S and clip.t_end >= window.last_t:
            return clip
        path.unlink()
        reasons.append("what is left of it does not reach from before the first event to the last")
    why = (
        "; ".join(dict.fromkeys(reasons)) or "neither the recording (storage.keep_hours) nor the alert's clip is there"
    )
    raise EvidenceError(f"the footage of this alert cannot be kept any more: {why}")


def _segments(archive: StorageArchive, camera: str, window: ClipWindow) -> list[RecordedSegment]:
    found = []
    for row in archive.segments(camera, window.t0, window.t1):
        try:
            found.append(RecordedSegment(inside(archive.root, row.path, SEGMENTS), row.t_start, row.t_end))
        except StoreError as error:
            logger.warning("passed over a segment: %s", error)
    return [each for each in found if each.path.is_file()]


def _own_clip(archive: StorageArchive, detail: AlertDetail) -> list[RecordedSegment]:
    row = detail.piece("clip")
    if row is None or row.state != "ready":
        return []
    path = inside(archive.root, row.path, EVIDENCE)
    return [RecordedSegment(path, row.t_start, row.t_end)] if path.is_file() else []


def _cut_unbroken(
    reader: RecordingReader, source: Sequence[RecordedSegment], window: ClipWindow, path: Path
) -> ClipFile:
    whole = _unbroken(source, window)
    clip = reader.clip(source, whole.t0, whole.t1, path, hold_t=whole.first_t)
    hole_s = reader.longest_step_s(RecordedSegment(path, clip.t_start, clip.t_end))
    if hole_s < HOLE_S_MAX:
        return clip
    path.unlink()
    raise EvidenceError(f"the recording has a hole of {hole_s:.0f} s in it")


def _unbroken(source: Sequence[RecordedSegment], window: ClipWindow) -> ClipWindow:
    """Return the window without what lies before or after a long hole."""
    for before, after in pairwise(source):
        if after.t_start - before.t_end < HOLE_S_MAX:
            continue
        if after.t_start <= window.first_t:
            window = replace(window, t0=max(window.t0, after.t_start))
        elif before.t_end >= window.last_t:
            window = replace(window, t1=min(window.t1, before.t_end))
    return window
