"""The replay log: the JSON lines that a replay leaves, equal bytes for equal footage."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from appliance.config import Camera
from appliance.errors import SourceError
from appliance.model import Detector
from appliance.types import AlertChange, FrameBoxes, Step, StreamHeader
from appliance.wire import encode_log

_SAMPLE_BYTES = 1024 * 1024


class ReplayLog:
    """Writes whole lines in the order in which things were decided: boxes, its events, the alerts that it ended.

    `sink` None: nothing is written. Raises OSError when the disk is full; the lines before are whole.
    """

    def __init__(self, sink: BinaryIO | None) -> None:
        self._sink = sink

    def header(self, header: StreamHeader) -> None:
        self._write(encode_log(header))

    def boxes(self, boxes: FrameBoxes) -> None:
        self._write(encode_log(boxes))

    def step(self, step: Step) -> None:
        """Events in any case, alerts once they are over."""
        for event in step.events:
            self._write(encode_log(event))
        for change in step.changes:
            self._ended(change)

    def flush(self) -> None:
        if self._sink is not None:
            self._sink.flush()

    def _ended(self, change: AlertChange) -> None:
        if change.kind == "ended":
            self._write(encode_log(change.alert))

    def _write(self, line: bytes) -> None:
        if self._sink is not None:
            self._sink.write(line)


def run_id(clip: Path, camera_name: str, camera: Camera, detector: Detector, model: str) -> str:
    """16 hex digits of all that decides which boxes a replay finds: the clip's bytes, the looks, the model.

    Of the clip its size and its first and last mebibyte count, not its name or place, so that a copy replays under the
    same ids and a film of hours is not read twice. Raises SourceError if it cannot be read.
    """
    digest = hashlib.sha256(f"{camera_name}|{camera.detect!r}|{detector.score_min!r}|{detector.head}|{model}|".encode())
    try:
        with clip.open("rb") as file:
            bytes_ = file.seek(0, os.SEEK_END)
            digest.update(f"{bytes_}|".encode())
            for start in (0, max(0, bytes_ - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise SourceError(f"{clip.name} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16]
