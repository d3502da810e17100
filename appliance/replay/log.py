"""The replay log: the JSON lines that a replay leaves, equal bytes for equal footage."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from appliance.config import Camera
from appliance.errors import SourceError
from appliance.model import Detector
from appliance.replay.header import LogHeader, encode_header
from appliance.types import AlertChange, FrameBoxes, Gap, HealthEvent, LogEnd, LogVerdict, Route, Step, StreamHeader
from appliance.wire import encode_log

_SAMPLE_BYTES = 1024 * 1024


class Sink(Protocol):
    """Where the lines go: a binary file, a buffer."""

    def write(self, line: bytes, /) -> int: ...

    def flush(self) -> None: ...


class ReplayLog:
    """Writes whole lines in the order in which things were decided: boxes, their events, what the router said, the
    alerts that ended with them.

    The first header carries `opening`: format, settings, what was replayed. `sink` None: nothing is written. Raises
    OSError when the disk is full; the lines before are whole.
    """

    def __init__(self, sink: Sink | None, opening: LogHeader) -> None:
        self._sink = sink
        self._opening: LogHeader | None = opening

    def header(self, header: StreamHeader) -> None:
        if self._opening is None:
            self._write(encode_log(header))
            return
        first, self._opening = self._opening, None
        self._write(encode_header(first.begun_by(header)))

    def boxes(self, boxes: FrameBoxes) -> None:
        self._write(encode_log(boxes))

    def gap(self, gap: Gap) -> None:
        self._write(encode_log(gap))

    def health(self, event: HealthEvent) -> None:
        """At the look at which it was noticed, changed or was over."""
        self._write(encode_log(event))

    def step(self, step: Step, routes: Iterable[Route] = ()) -> None:
        """Events in any case, alerts once they are over."""
        for event in step.events:
            self._write(encode_log(event))
        for route in routes:
            self._write(encode_log(route))
        for change in step.changes:
            self._ended(change)

    def verdict(self, verdict: LogVerdict) -> None:
        """Before the boxes of the first look at which it has come."""
        self._write(encode_log(verdict))

    def end(self, end: LogEnd) -> None:
        self._write(encode_log(end))

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
    return run_id_of([(clip, None)], camera_name, camera, detector, model)


def run_id_of(
    files: Iterable[tuple[Path, int | None]], camera_name: str, camera: Camera, detector: Detector, model: str
) -> str:
    """The same of several files in a row; of each only so many bytes count (None: all)."""
    digest = hashlib.sha256(f"{camera_name}|{camera.detect!r}|{detector.score_min!r}|{detector.head}|{model}|".encode())
    for path, limit in files:
        try:
            _sample(path, limit, digest)
        except OSError as error:
            raise SourceError(f"{path.name} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16]


def _sample(path: Path, limit: int | None, digest: hashlib._Hash) -> None:
    with path.open("rb") as file:
        bytes_ = file.seek(0, os.SEEK_END)
        bytes_ = bytes_ if limit is None else min(limit, bytes_)
        digest.update(f"{bytes_}|".encode())
        for start in (0, max(0, bytes_ - _SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(min(_SAMPLE_BYTES, bytes_ - start)))
