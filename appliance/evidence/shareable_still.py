"""The still of an alert as a notification may carry it: as it is on the site, redacted or not at all beyond it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from appliance.base.errors import EvidenceError
from appliance.config import CameraConfig
from appliance.evidence.redaction import PEOPLE_WITHIN_S, Redactor, people_in_frame
from appliance.media.recorded import ImageOrder
from appliance.media.recording_reader import RecordingReader
from appliance.sandbox.sandbox import SandboxError
from appliance.store.boxes import BoxStore
from appliance.store.rows import AlertDetail
from appliance.types import Event

logger = logging.getLogger(__name__)

STILL_BYTES_MAX = 2 * 1024 * 1024  # messaging services refuse large attachments; a 1080p still has under 1 MB
NOTICE_QUALITY = 80  # JPEG of a message: seen on a phone, and paid by its uplink


class ShareableStills:
    """Reads stills for notifications. Holds no state; any thread."""

    def __init__(
        self,
        root: Path,
        reader: RecordingReader,
        boxes: BoxStore,
        cameras: Mapping[str, CameraConfig],
        may_leave: Callable[[Event], bool],
    ) -> None:
        """Keep a redactor for each camera.

        root: the storage folder. reader: redacts. may_leave: true if an image of an event may leave the site at all.
        """
        self._root = root
        self._reader = reader
        self._boxes = boxes
        self._redactors = {name: Redactor(camera) for name, camera in cameras.items()}
        self._may_leave = may_leave

    def read(self, detail: AlertDetail, local: bool) -> bytes | None:
        """Return the still as a JPEG: empty if there is none or it may not leave, None if it is not cut yet.

        local: it stays on the site.
        """
        alert, piece = detail.alert, detail.piece("still")
        redactor = self._redactors.get(alert.camera)
        if redactor is None or (not local and not all(self._may_leave(event) for event in detail.events)):
            return b""
        if piece is None or piece.state == "waiting":
            return None
        if piece.state != "ready" or not piece.path:
            return b""
        path = self._root / piece.path
        try:
            data = path.read_bytes()
        except OSError:  # retention was faster
            return b""
        if len(data) > STILL_BYTES_MAX:
            return b""
        if local or not redactor.digest:
            return data
        return self._redacted(redactor, path, detail, piece.t_start)

    def _redacted(self, redactor: Redactor, path: Path, detail: AlertDetail, t: float | None) -> bytes:
        alert = detail.alert
        at = alert.t_start if t is None else t
        seen = self._boxes.span(alert.camera, at - PEOPLE_WITHIN_S, at + PEOPLE_WITHIN_S)
        found = people_in_frame(at, seen, alert.tracks, alert.best.box if alert.best else None)
        order = ImageOrder(quality=NOTICE_QUALITY, redaction=redactor.redaction(found))
        try:
            return self._reader.file_images(path, at, [order]).images[0].data
        except (EvidenceError, SandboxError) as error:
            logger.warning("the still of alert %s goes to nobody: %s", alert.id, error)
            return b""
