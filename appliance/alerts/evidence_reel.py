"""The clip of an alert, and beside it the box path: what was seen while it ran, frozen."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from appliance.alerts.evidence_clip import Clip, cut_clip
from appliance.alerts.evidence_cover import (
    BOXES_WAIT_S,
    ENDED_GRACE_S,
    Outcome,
    Patience,
    Recording,
    disk_may_recover,
)
from appliance.alerts.evidence_files import write_file
from appliance.config import Alerts as Rolls
from appliance.errors import EvidenceError
from appliance.store.boxes import SPAN_ROWS_MAX, Boxes
from appliance.store.evidence import Evidence
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertRow, EvidenceRow
from appliance.types import SCHEMA, TrackedObject

CLIP_WAIT_S = 20.0  # beyond the post-roll

logger = logging.getLogger(__name__)


class Reel:
    """Makes clips with their box paths. Owner: the evidence maker's thread."""

    def __init__(
        self, evidence: Evidence, boxes: Boxes, root: Path, rolls: Rolls, recording: Recording, patience: Patience
    ) -> None:
        self._evidence = evidence
        self._boxes = boxes
        self._root = root
        self._rolls = rolls
        self._recording = recording
        self._patience = patience

    @staticmethod
    def key(alert: AlertRow) -> str:
        """Under which the patience with this alert's clip is kept, from the alert's end on."""
        return f"clip {alert.id}"

    def serve(self, alert: AlertRow) -> Outcome:
        """Cut the clip once the alert has ended and its post-roll is on disk, or will not come. Raises StoreError."""
        if alert.t_end is None or alert.clip != "waiting":
            return "nothing"
        t0, t1 = alert.t_start - self._rolls.pre_roll_s, alert.t_end + self._rolls.post_roll_s
        age_s = self._patience.age_s(self.key(alert))
        due = self._is_due(alert.camera, age_s)
        if not (due or self._is_there(alert.camera, t1, age_s)) or not self._patience.may_try(self.key(alert)):
            return "nothing"
        try:
            self._evidence.put(*self._cut(alert, t0, t1))
            return "made"
        except EvidenceError as error:
            self._patience.failed(self.key(alert))
            if not due or disk_may_recover(error, age_s):
                return "nothing"
            return self._go_without(alert, t0, t1, str(error))

    def _is_due(self, camera: str, age_s: float) -> bool:
        if self._recording.off(camera) or age_s >= self._rolls.post_roll_s + CLIP_WAIT_S:
            return True
        return age_s >= ENDED_GRACE_S and self._recording.over(camera)

    def _is_there(self, camera: str, t1: float, age_s: float) -> bool:
        if self._recording.covered_until(camera) < t1:
            return False
        newest = self._boxes.latest(camera)
        return age_s >= BOXES_WAIT_S or (newest is not None and newest.t >= t1)

    def _cut(self, alert: AlertRow, t0: float, t1: float) -> list[EvidenceRow]:
        hold_t = alert.t_start if alert.best is None else alert.best.t
        path = f"{evidence_folder(alert.id)}/clip.mp4"
        clip = cut_clip(self._recording.of(alert.camera, t0, t1), t0, t1, self._root / path, hold_t=hold_t)
        return [_row(alert, path, clip), self._box_path(alert, clip.t_start, clip.t_end, clip.size)]

    def _go_without(self, alert: AlertRow, t0: float, t1: float, reason: str) -> Outcome:
        """No clip, and why; the box path is worth keeping all the same."""
        if self._recording.off(alert.camera):
            reason = self._recording.lack(alert.camera)
        logger.warning("the clip of alert %s is missing: %s", alert.id, reason)
        try:
            path = self._box_path(alert, t0, t1, (0, 0))
        except EvidenceError as error:
            path = EvidenceRow(alert=alert.id, kind="boxes", state="missing", reason=str(error))
        self._evidence.put(EvidenceRow(alert=alert.id, kind="clip", state="missing", reason=reason), path)
        return "missing"

    def _box_path(self, alert: AlertRow, t0: float, t1: float, size: tuple[int, int]) -> EvidenceRow:
        """Write boxes.json: what was seen in t0..t1, frozen, so that the boxes table may be thinned out."""
        frames = [each for each in self._boxes.span(alert.camera, t0, t1) if each.looked]
        path = f"{evidence_folder(alert.id)}/boxes.json"
        content = {
            "schema": SCHEMA,
            "camera": alert.camera,
            "t_start": t0,
            "t_end": t1,
            "size": size,
            "frames": [{"t": each.t, "objects": [_said(found) for found in each.objects]} for each in frames],
        }
        written = write_file(self._root / path, json.dumps(content, separators=(",", ":")).encode())
        return EvidenceRow(
            alert=alert.id,
            kind="boxes",
            state="ready",
            path=path,
            t_start=t0,
            t_end=t1,
            bytes=written.bytes,
            sha256=written.sha256,
            reason="" if len(frames) < SPAN_ROWS_MAX else f"it stops after {SPAN_ROWS_MAX} frames",
        )


def _row(alert: AlertRow, path: str, clip: Clip) -> EvidenceRow:
    return EvidenceRow(
        alert=alert.id,
        kind="clip",
        state="ready",
        path=path,
        t_start=clip.t_start,
        t_end=clip.t_end,
        bytes=clip.written.bytes,
        sha256=clip.written.sha256,
        width=clip.size[0],
        height=clip.size[1],
        reason=clip.note,
    )


def _said(found: TrackedObject) -> dict[str, object]:
    """What is not known of the object from before is left out."""
    return {key: value for key, value in asdict(found).items() if value is not None}
