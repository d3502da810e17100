"""The still of an alert: the frame of its best view, whole and as a crop, replaced when a better view is told."""

from __future__ import annotations

import logging
from pathlib import Path

from appliance.alerts.evidence_cover import FRAMES_WAIT_S, Outcome, Patience, Recording, disk_may_recover
from appliance.alerts.evidence_files import write_file
from appliance.alerts.evidence_still import CROP_SIDE_MAX, Still, crop, cut_still, jpeg
from appliance.errors import EvidenceError
from appliance.store.evidence import Evidence
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertRow, EvidenceKind, EvidenceRow
from appliance.types import BestView

STILL_QUALITY = 90

logger = logging.getLogger(__name__)


class Portrait:
    """Makes stills. Owner: the evidence maker's thread."""

    def __init__(self, evidence: Evidence, root: Path, recording: Recording, patience: Patience) -> None:
        self._evidence = evidence
        self._root = root
        self._recording = recording
        self._patience = patience

    @staticmethod
    def key(alert: AlertRow) -> str:
        """Under which the patience with this alert's still is kept."""
        return f"still {alert.id}"

    def serve(self, alert: AlertRow) -> Outcome:
        """Cut the still, or cut it again when the alert has a better view than the still shows. Raises StoreError."""
        known = next((row for row in self._evidence.of(alert.id) if row.kind == "still"), None)
        view = alert.best
        if known is None or (known.state == "ready" and (view is None or view.box == known.box)):
            return "nothing"
        age_s = self._patience.age_s(self.key(alert))
        if not self._patience.may_try(self.key(alert)):
            return "nothing"
        t = alert.t_start if view is None else view.t
        coverage = self._recording.coverage(alert.camera, t)
        problem = EvidenceError(self._recording.lack(alert.camera))
        if coverage == "ready":
            try:
                still = cut_still(self._recording.of(alert.camera, t - 1, t + 1), t)
                self._evidence.put(*self._pictures(alert, view, still))
                return "made"
            except EvidenceError as error:
                self._patience.failed(self.key(alert))
                problem = error
        final = coverage == "never" and (alert.t_end is not None or self._recording.off(alert.camera))
        due = final or age_s >= FRAMES_WAIT_S
        if known.state != "waiting" or not due or disk_may_recover(problem, age_s):
            return "nothing"
        logger.warning("the still of alert %s is missing: %s", alert.id, problem)
        self._evidence.put(EvidenceRow(alert=alert.id, kind="still", state="missing", reason=str(problem)))
        return "missing"

    def _pictures(self, alert: AlertRow, view: BestView | None, still: Still) -> list[EvidenceRow]:
        data = jpeg(still.image, quality=STILL_QUALITY)
        rows = [self._write(alert, "still", still, view, data)]
        if view is not None:
            cropped = Still(still.t, crop(still.image, view.box))
            rows.append(self._write(alert, "crop", cropped, None, jpeg(cropped.image, side_max=CROP_SIDE_MAX)))
        return rows

    def _write(
        self, alert: AlertRow, kind: EvidenceKind, still: Still, view: BestView | None, data: bytes
    ) -> EvidenceRow:
        path = f"{evidence_folder(alert.id)}/{kind}.jpg"
        written = write_file(self._root / path, data)
        return EvidenceRow(
            alert=alert.id,
            kind=kind,
            state="ready",
            path=path,
            t_start=still.t,
            t_end=still.t,
            bytes=written.bytes,
            sha256=written.sha256,
            width=still.size[0],
            height=still.size[1],
            box=None if view is None else view.box,
            score=0.0 if view is None else view.score,
        )
