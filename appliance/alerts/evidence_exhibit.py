"""Writes what a question shows to disk, each piece under the name by which the alert and the cloud know it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance import wire
from appliance.alerts.evidence_clip import Clip, cut_clip
from appliance.alerts.evidence_cover import Recording
from appliance.alerts.evidence_files import DiskRefused, write_file
from appliance.alerts.evidence_moments import Moment
from appliance.alerts.evidence_picture import Picture, picture_of
from appliance.alerts.evidence_plan import Cut
from appliance.alerts.evidence_still import Still, load_still
from appliance.alerts.evidence_veil import WITHIN_S, Veil, company
from appliance.config import Escalation
from appliance.errors import EvidenceError
from appliance.store.boxes import Boxes
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertDetail, EvidenceKind, EvidenceRow, MediaRow

CLIP_SHORT_S = 0.5  # on each side of the event, when the clip of the whole span is too large

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One file that travels, as the alert's evidence and as the question's media."""

    row: EvidenceRow
    ref: wire.MediaRef

    def media(self, escalation: str, n: int) -> MediaRow:
        return MediaRow(escalation=escalation, n=n, path=self.row.path, ref=self.ref)


class Exhibits:
    """Makes them. Owner: the evidence maker's thread. Files are whole and on disk when a function returns."""

    def __init__(
        self,
        root: Path,
        settings: Escalation,
        recording: Recording,
        veil_of: Callable[[str], Veil],
        boxes: Boxes,
    ) -> None:
        """veil_of: what hides, in a camera's pictures, what may not leave."""
        self._root = root
        self._settings = settings
        self._recording = recording
        self._veil_of = veil_of
        self._boxes = boxes

    def pictures(self, detail: AlertDetail, cut: Cut, shots: Sequence[tuple[Moment, Still]]) -> list[Exhibit]:
        """One picture a shot, each different one once; one that does not fit is left out. Raises DiskRefused."""
        made: dict[str, Exhibit] = {}
        for moment, still in shots:
            try:
                picture = picture_of(cut, self._settings, still.t, moment, self._veiled(detail, moment, still))
            except EvidenceError as error:
                logger.warning("a picture of alert %s is left out: %s", detail.alert.id, error)
                continue
            if picture.ref.id not in made:
                made[picture.ref.id] = self._write(detail, picture, list(made.values()))
        return list(made.values())

    def still_as_frame(self, detail: AlertDetail) -> list[Exhibit]:
        """The alert's still instead of a frame that the recording no longer holds; none if there is no still."""
        still = detail.piece("still")
        if still is None or still.state != "ready":
            return []
        try:
            shown = load_still(self._root / still.path, still.t_start)
        except EvidenceError as error:
            logger.warning("the still of alert %s: %s", detail.alert.id, error)
            return []
        return self.pictures(detail, "frame", [(Moment(still.t_start, still.box), shown)])

    def clip(self, detail: AlertDetail, t0: float, t: float, t1: float) -> list[Exhibit]:
        """t0..t1 of the recording, or less around `t`, within the bound on bytes. Raises EvidenceError."""
        camera, folder = detail.alert.camera, evidence_folder(detail.alert.id)
        n = _next(detail, "clip", [])
        path = f"{folder}/clip-{n}.mp4"
        size = 0
        for begin, end in ((t0, t1), (t - CLIP_SHORT_S, t + CLIP_SHORT_S)):
            clip = cut_clip(self._recording.of(camera, begin, end), begin, end, self._root / path, hold_t=t)
            if clip.written.bytes <= self._settings.clip_bytes_max:
                return [_of_clip(detail.alert.id, n, path, clip)]
            size = clip.written.bytes
        with contextlib.suppress(OSError):
            (self._root / path).unlink()
        raise EvidenceError(f"the clip of {size} bytes is over the limit of {self._settings.clip_bytes_max}")

    def _veiled(self, detail: AlertDetail, moment: Moment, still: Still) -> NDArray[np.uint8]:
        alert, veil = detail.alert, self._veil_of(detail.alert.camera)
        if not veil.mark:
            return still.image
        seen = self._boxes.span(alert.camera, still.t - WITHIN_S, still.t + WITHIN_S, run=alert.run or None)
        return veil.over(still.image, company(still.t, seen, alert.tracks, moment.box))

    def _write(self, detail: AlertDetail, picture: Picture, before: Sequence[Exhibit]) -> Exhibit:
        ref = picture.ref
        n = _next(detail, ref.kind, before)
        mark = self._veil_of(detail.alert.camera).mark
        name = f"{ref.kind}-{n}.{mark}.{picture.suffix}" if mark else f"{ref.kind}-{n}.{picture.suffix}"
        path = f"{evidence_folder(detail.alert.id)}/{name}"
        written = write_file(self._root / path, picture.data)
        if written.sha256 != ref.sha256:
            raise DiskRefused(f"{path} is not on disk as it was written")
        row = EvidenceRow(
            alert=detail.alert.id,
            kind=ref.kind,
            n=n,
            state="ready",
            path=path,
            t_start=ref.t,
            t_end=ref.t,
            bytes=ref.bytes,
            sha256=ref.sha256,
            width=ref.width,
            height=ref.height,
            box=ref.box,
        )
        return Exhibit(row, ref)


def _next(detail: AlertDetail, kind: EvidenceKind, before: Sequence[Exhibit]) -> int:
    """A free number; 0 is the alert's own crop and clip, made for people."""
    own = 0 if kind == "frame" else 1
    taken = [row.n + 1 for row in (*detail.evidence, *(each.row for each in before)) if row.kind == kind]
    return max([own, *taken])


def _of_clip(alert: str, n: int, path: str, clip: Clip) -> Exhibit:
    written = clip.written
    row = EvidenceRow(
        alert=alert,
        kind="clip",
        n=n,
        state="ready",
        path=path,
        t_start=clip.t_start,
        t_end=clip.t_end,
        bytes=written.bytes,
        sha256=written.sha256,
        width=clip.size[0],
        height=clip.size[1],
        reason=clip.note,
    )
    ref = wire.MediaRef(
        id=written.sha256[:32],
        kind="clip",
        mime="video/mp4",
        bytes=written.bytes,
        sha256=written.sha256,
        chunks=-(-written.bytes // wire.CHUNK_BYTES),
        t=clip.t_start,
        width=max(1, clip.size[0]),
        height=max(1, clip.size[1]),
    )
    return Exhibit(row, ref)
