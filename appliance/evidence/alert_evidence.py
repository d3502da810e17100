"""Makes the still of an alert (its best view, replaced by a better one), its clip, and the box path beside the clip."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

from appliance.alerts.pipeline import quality
from appliance.base.errors import EvidenceError
from appliance.base.local_files import WrittenFile, write_file
from appliance.config import AlertsConfig as Rolls
from appliance.evidence.recording_index import (
    BOXES_WAIT_S,
    ENDED_GRACE_S,
    FRAMES_WAIT_S,
    Outcome,
    RecordingIndex,
    RetryTracker,
    disk_may_recover,
)
from appliance.media.recorded import ClipFile, FrameImage, FrameImages, ImageOrder
from appliance.store.alert_rows import AlertRow, EvidenceKind, EvidenceRow, EvidenceStore
from appliance.store.boxes import SPAN_ROWS_MAX, BoxStore
from appliance.store.paths import evidence_folder
from appliance.types import SCHEMA, Alert, BestView, TrackedObject

logger = logging.getLogger(__name__)

STILL_QUALITY = 90  # JPEG; evidence is looked at closely, more than JPEG_QUALITY
CROP_SIDE_MAX = 480  # pixels of a crop for people
# Each better still costs the decoding of half a group of pictures (90 ms at 720p).
BETTER_EVERY_S = 15.0  # while an alert lasts; most are over before
BETTER_MIN = 1.1  # times the quality of the view that is shown: 5 % of a side more cannot be seen
STAND_IN_S_MAX = 20.0  # from the best view to the still that stands in for it; cameras have GOPs of 10 s
STAND_IN_TRIES_MAX = 3  # each decodes a group of pictures; the nearest three lie in different ones


class AlertStillMaker:
    """Makes the stills of alerts. Owner: the evidence maker's thread. State: `made_with_others`, a count.

    A recording begins at a key frame. If a camera returns in the middle of a GOP, or its clock jumped, frames may be
    examined before they are recorded. If the best view will never be recorded, the nearest recorded frame replaces it,
    with its own box, and the row says how far away it is.
    """

    def __init__(
        self,
        evidence: EvidenceStore,
        boxes: BoxStore,
        root: Path,
        recording: RecordingIndex,
        retries: RetryTracker,
    ) -> None:
        self._evidence = evidence
        self._boxes = boxes
        self._root = root
        self._recording = recording
        self._retries = retries
        self.made_with_others = 0  # stills from the decode that an escalation needed anyway

    @staticmethod
    def key(alert: Alert) -> str:
        """Under which the retries of this alert's still are tracked."""
        return f"still {alert.id}"

    def make(self, row: AlertRow) -> Outcome:
        """Cut the still, or cut it again when the alert has a better view than the still shows. Raises StoreError."""
        alert = row.alert
        known, view = self._outdated(alert), alert.best
        if known is None:
            return "nothing"
        age_s = self._retries.age_s(self.key(alert))
        if not self._retries.may_try(self.key(alert)):
            return "nothing"
        t = alert.t_start if view is None else view.t
        coverage = self._recording.coverage(alert.camera, t)
        problem = EvidenceError(self._recording.missing_reason(alert.camera))
        if coverage == "never" and self._make_stand_in(alert, known, t):
            return "made"
        if coverage == "ready":
            try:
                self._evidence.put(*self._write_images(alert, view, self._cut(alert.camera, t, view)))
                return "made"
            except EvidenceError as error:
                self._retries.failed(self.key(alert))
                problem = error
        final = coverage == "never" and (alert.t_end is not None or self._recording.is_disabled(alert.camera))
        due = final or age_s >= FRAMES_WAIT_S
        if known.state != "waiting" or not due or disk_may_recover(problem, age_s):
            return "nothing"
        logger.warning("the still of alert %s is missing: %s", alert.id, problem)
        self._evidence.put(EvidenceRow(alert=alert.id, kind="still", state="missing", reason=str(problem)))
        return "missing"

    def order(self, alert: Alert) -> tuple[float, list[ImageOrder]] | None:
        """Return the time and the images of a still that can be made now; None: none is due.

        A caller that decodes other frames of the alert makes these images with them (`write`).
        """
        t = alert.t_start if alert.best is None else alert.best.t
        if self._outdated(alert) is None or self._recording.coverage(alert.camera, t) != "ready":
            return None
        return t, _orders(alert.best)

    def write(self, alert: Alert, still: FrameImages) -> None:
        """Write the images of `order`. Raise EvidenceError, StoreError."""
        self._evidence.put(*self._write_images(alert, alert.best, _sound(still)))
        self.made_with_others += 1

    def _outdated(self, alert: Alert) -> EvidenceRow | None:
        """Return the row of a still that waits, or shows a worse view than the alert has; None: it is up to date.

        While the alert lasts, nearly each frame is a better view: the still is replaced every BETTER_EVERY_S.
        """
        known = next((row for row in self._evidence.of(alert.id) if row.kind == "still"), None)
        if known is None or known.state != "ready":
            return known
        view = alert.best
        if view is None or view.box == known.box:
            return None
        if known.reason or known.box is None:  # of another moment, or of no object
            return known
        is_better = quality(view.score, view.box) >= BETTER_MIN * quality(known.score, known.box)
        is_due = alert.t_end is not None or view.t >= known.t_start + BETTER_EVERY_S
        return known if is_better and is_due else None

    def _make_stand_in(self, alert: Alert, known: EvidenceRow, t: float) -> bool:
        """Cut the nearest recorded frame instead; False: there is none, or it is cut already."""
        if known.state != "waiting":
            return False
        for each in self._stand_ins(alert, t)[:STAND_IN_TRIES_MAX]:
            try:
                still = self._cut(alert.camera, each.t, each)
            except EvidenceError:
                continue
            off_s = each.t - t
            reason = f"{abs(off_s):.1f} s {'after' if off_s > 0 else 'before'} the best view, which is not recorded"
            self._evidence.put(*self._write_images(alert, each, still, reason))
            return True
        return False

    def _stand_ins(self, alert: Alert, t: float) -> list[BestView]:
        """Return recorded views of the alert's tracks, the nearest first."""
        seen = self._boxes.span(alert.camera, t - STAND_IN_S_MAX, t + STAND_IN_S_MAX, run=alert.run or None)
        views = [
            BestView(track=found.track, label=found.label, t=frame.t, score=found.score, box=found.box)
            for frame in seen
            for found in frame.objects
            if frame.looked and found.track in alert.tracks
        ]
        recorded = [view for view in views if self._recording.coverage(alert.camera, view.t) == "ready"]
        return sorted(recorded, key=lambda view: abs(view.t - t))

    def _cut(self, camera: str, t: float, view: BestView | None) -> FrameImages:
        """Cut the frame of `t`, and the crop of `view`; raise EvidenceError."""
        segments = self._recording.segments(camera, t - 1, t + 1)
        return _sound(self._recording.reader.images(segments, [(t, _orders(view))])[0])

    def _write_images(
        self, alert: Alert, view: BestView | None, still: FrameImages, reason: str = ""
    ) -> list[EvidenceRow]:
        whole, *crops = still.images
        rows = [self._write(alert, "still", still.t, whole, view, reason)]
        return rows + [self._write(alert, "crop", still.t, each, None) for each in crops]

    def _write(
        self, alert: Alert, kind: EvidenceKind, t: float, image: FrameImage, view: BestView | None, reason: str = ""
    ) -> EvidenceRow:
        path = f"{evidence_folder(alert.id)}/{kind}.jpg"
        written = write_file(self._root / path, image.data)
        row = replace(ready_row(alert.id, kind, path, written, (t, t), image.size), reason=reason)
        return row if view is None else replace(row, box=view.box, score=view.score)


def _orders(view: BestView | None) -> list[ImageOrder]:
    """Order the whole frame for people, and the crop of the view if there is one."""
    whole = ImageOrder(quality=STILL_QUALITY)
    return [whole] if view is None else [whole, ImageOrder("crop", view.box, CROP_SIDE_MAX)]


def _sound(found: FrameImages) -> FrameImages:
    """Return the images. Raise EvidenceError if one of them could not be made."""
    if problem := next((each.problem for each in found.images if each.problem), ""):
        raise EvidenceError(problem)
    return found


CLIP_WAIT_S = 20.0  # beyond the post-roll


class AlertClipMaker:
    """Makes the clips of alerts with their box paths. Owner: the evidence maker's thread. Holds no state."""

    def __init__(
        self,
        evidence: EvidenceStore,
        boxes: BoxStore,
        root: Path,
        settings: Rolls,
        recording: RecordingIndex,
        retries: RetryTracker,
    ) -> None:
        self._evidence = evidence
        self._boxes = boxes
        self._root = root
        self._settings = settings
        self._recording = recording
        self._retries = retries

    @staticmethod
    def key(alert: Alert) -> str:
        """Under which the retries of this alert's clip are tracked, from the alert's end on."""
        return f"clip {alert.id}"

    def make(self, row: AlertRow) -> Outcome:
        """Cut the clip once the alert has ended and its post-roll is on disk or will never be. Raise StoreError."""
        alert = row.alert
        if alert.t_end is None or row.evidence.clip != "waiting":
            return "nothing"
        t0, t1 = alert.t_start - self._settings.pre_roll_s, alert.t_end + self._settings.post_roll_s
        age_s = self._retries.age_s(self.key(alert))
        due = self._is_due(alert.camera, age_s)
        if not (due or self._is_there(alert.camera, t1, age_s)) or not self._retries.may_try(self.key(alert)):
            return "nothing"
        try:
            self._evidence.put(*self._cut(alert, t0, t1))
            return "made"
        except EvidenceError as error:
            self._retries.failed(self.key(alert))
            if not due or disk_may_recover(error, age_s):
                return "nothing"
            return self._go_without(alert, t0, t1, str(error))

    def _is_due(self, camera: str, age_s: float) -> bool:
        if self._recording.is_disabled(camera) or age_s >= self._settings.post_roll_s + CLIP_WAIT_S:
            return True
        return age_s >= ENDED_GRACE_S and self._recording.has_ended(camera)

    def _is_there(self, camera: str, t1: float, age_s: float) -> bool:
        if self._recording.covered_until(camera) < t1:
            return False
        newest = self._boxes.latest(camera)
        return age_s >= BOXES_WAIT_S or (newest is not None and newest.t >= t1)

    def _cut(self, alert: Alert, t0: float, t1: float) -> list[EvidenceRow]:
        hold_t = alert.t_start if alert.best is None else alert.best.t
        path = f"{evidence_folder(alert.id)}/clip.mp4"
        segments = self._recording.segments(alert.camera, t0, t1)
        clip = self._recording.reader.clip(segments, t0, t1, self._root / path, hold_t=hold_t, sound=True)
        return [clip_row(alert.id, path, clip), self._box_path(alert, clip.t_start, clip.t_end, clip.size)]

    def _go_without(self, alert: Alert, t0: float, t1: float, reason: str) -> Outcome:
        """Record why there is no clip; the box path is kept all the same."""
        if self._recording.is_disabled(alert.camera):
            reason = self._recording.missing_reason(alert.camera)
        logger.warning("the clip of alert %s is missing: %s", alert.id, reason)
        try:
            path = self._box_path(alert, t0, t1, (0, 0))
        except EvidenceError as error:
            path = EvidenceRow(alert=alert.id, kind="boxes", state="missing", reason=str(error))
        self._evidence.put(EvidenceRow(alert=alert.id, kind="clip", state="missing", reason=reason), path)
        return "missing"

    def _box_path(self, alert: Alert, t0: float, t1: float, size: tuple[int, int]) -> EvidenceRow:
        """Write boxes.json: the examined frames of t0..t1, so that the boxes table may be thinned out."""
        frames = [each for each in self._boxes.span(alert.camera, t0, t1) if each.looked]
        path = f"{evidence_folder(alert.id)}/boxes.json"
        content = {
            "schema": SCHEMA,
            "camera": alert.camera,
            "t_start": t0,
            "t_end": t1,
            "size": size,
            "frames": [{"t": each.t, "objects": [_known_fields(found) for found in each.objects]} for each in frames],
        }
        written = write_file(self._root / path, json.dumps(content, separators=(",", ":")).encode())
        reason = "" if len(frames) < SPAN_ROWS_MAX else f"it stops after {SPAN_ROWS_MAX} frames"
        return replace(ready_row(alert.id, "boxes", path, written, (t0, t1)), reason=reason)


def clip_row(alert: str, path: str, clip: ClipFile, n: int = 0) -> EvidenceRow:
    """Return the row of a clip that is on disk; n: 0 is the alert's own clip."""
    row = ready_row(alert, "clip", path, clip.written, (clip.t_start, clip.t_end), clip.size)
    return replace(row, n=n, reason=clip.note)


def ready_row(
    alert: str,
    kind: EvidenceKind,
    path: str,
    written: WrittenFile,
    span: tuple[float, float],
    size: tuple[int, int] = (0, 0),
) -> EvidenceRow:
    """Return the row of a file that is on disk. span: camera time of its begin and end; size: (width, height)."""
    return EvidenceRow(
        alert=alert, kind=kind, state="ready", path=path, t_start=span[0], t_end=span[1], bytes=written.bytes,
        sha256=written.sha256, width=size[0], height=size[1],
    )  # fmt: skip


def _known_fields(found: TrackedObject) -> dict[str, object]:
    """Return the fields of an object, without those that are None."""
    return {key: value for key, value in asdict(found).items() if value is not None}
