"""The still of an alert as a notification may carry it: as it is on the site, redacted or not at all beyond it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np

from appliance.config import CameraConfig
from appliance.evidence.redaction import PEOPLE_WITHIN_S, Redactor, people_in_frame
from appliance.media.stills import encode_jpeg
from appliance.store.boxes import BoxStore
from appliance.store.rows import AlertDetail
from appliance.types import Event

STILL_BYTES_MAX = 2 * 1024 * 1024
NOTICE_QUALITY = 80


class ShareableStills:
    """Reads stills for notifications. Holds no state; any thread."""

    def __init__(
        self, root: Path, boxes: BoxStore, cameras: Mapping[str, CameraConfig], may_leave: Callable[[Event], bool]
    ) -> None:
        """root: the storage folder. may_leave: whether an image of an event may leave the site at all."""
        self._root = root
        self._boxes = boxes
        self._redactors = {name: Redactor(camera) for name, camera in cameras.items()}
        self._may_leave = may_leave

    def read(self, detail: AlertDetail, local: bool) -> bytes | None:
        """A JPEG; empty: there is none, or it may not leave; None: it is not cut yet. local: it stays on the site."""
        alert, piece = detail.alert, detail.piece("still")
        redactor = self._redactors.get(alert.camera)
        if redactor is None or (not local and not all(self._may_leave(event) for event in detail.events)):
            return b""
        if piece is None or piece.state == "waiting":
            return None
        if piece.state != "ready" or not piece.path:
            return b""
        try:
            data = (self._root / piece.path).read_bytes()
        except OSError:  # retention was faster
            return b""
        if len(data) > STILL_BYTES_MAX:
            return b""
        if local or not redactor.digest:
            return data
        return self._redacted(redactor, data, detail, piece.t_start)

    def _redacted(self, redactor: Redactor, data: bytes, detail: AlertDetail, t: float | None) -> bytes:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            return b""
        alert = detail.alert
        at = alert.t_start if t is None else t
        seen = self._boxes.span(alert.camera, at - PEOPLE_WITHIN_S, at + PEOPLE_WITHIN_S)
        found = people_in_frame(at, seen, alert.tracks, alert.best.box if alert.best else None)
        return encode_jpeg(redactor.redact(np.asarray(image, dtype=np.uint8), found), quality=NOTICE_QUALITY)
