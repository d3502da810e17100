"""The detector's answers of a replay, kept beside its log so that a killed one need not ask for them again."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from appliance.errors import UsageError
from appliance.replay.whole_lines import WholeLines, whole_bytes
from appliance.types import Detections

SUFFIX = ".looks"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Row:
    """One answer. found: base64 of float32 boxes (N, 4), float32 scores (N,), int32 class ids (N,), little-endian;
    None: the detector did not answer."""

    camera: str
    frame: int
    found: str | None


_row: TypeAdapter[_Row] = TypeAdapter(_Row)


class Looks:
    """Answers remembered, then answers to remember.

    State: the remembered ones not yet asked for, the open file. Owner: one replay, which looks in the same order each
    time. Detections come back bit for bit, so gate, tracker, rules and policy go exactly the way they went.
    `remembered` counts the answers that were taken from the file.
    """

    def __init__(self, path: Path, digest: str, *, resume: bool) -> None:
        """Open, or begin anew when not resuming or when the file is of another replay. Raises OSError."""
        self.path = path
        self.remembered = 0
        head = json.dumps({"looks": 1, "digest": digest}).encode() + b"\n"
        self._old: BinaryIO | None = None
        kept = whole_bytes(path) if resume else 0
        if kept:
            self._old = path.open("rb")
            if self._old.readline() != head:
                self._old.close()
                self._old, kept = None, 0
        self._rows = self._read(kept)
        self._next = next(self._rows, None)
        self._file = WholeLines(path, kept)
        if not kept:
            self._file.write(head)

    @property
    def has_next(self) -> bool:
        """Whether the next answer is remembered."""
        return self._next is not None

    def recall(self, camera: str, frame: int) -> Detections | None:
        """The next remembered answer; None: the detector did not answer then. Raises UsageError when it is of another
        frame: the footage is not what it was."""
        row = self._next
        assert row is not None, "ask has_next first"
        if (row.camera, row.frame) != (camera, frame):
            raise UsageError(
                f"{self.path} remembers a look at frame {row.frame} of {row.camera} where the footage has frame "
                f"{frame} of {camera}: the footage has changed; leave --resume away to begin anew"
            )
        self.remembered += 1
        self._next = next(self._rows, None)
        return None if row.found is None else _unpack(row.found)

    def keep(self, camera: str, frame: int, found: Detections | None) -> None:
        """Remember an answer."""
        packed = None if found is None else _pack(found)
        self._file.write(_row.dump_json(_Row(camera, frame, packed)) + b"\n")

    def close(self) -> None:
        if self._old is not None:
            self._old.close()
        self._file.close()

    def forget(self) -> None:
        """The log is complete: nobody will ask again."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read(self, kept: int) -> Iterator[_Row]:
        while self._old is not None and self._old.tell() < kept:
            line = self._old.readline()
            try:
                yield _row.validate_json(line)
            except ValidationError:
                raise UsageError(f"{self.path} is damaged; remove it, or leave --resume away to begin anew") from None


def _pack(found: Detections) -> str:
    parts = (found.boxes.astype("<f4"), found.scores.astype("<f4"), found.class_ids.astype("<i4"))
    return base64.b64encode(b"".join(part.tobytes() for part in parts)).decode()


def _unpack(text: str) -> Detections:
    data = base64.b64decode(text)
    count = len(data) // 24
    return Detections(
        np.frombuffer(data, "<f4", 4 * count).reshape(count, 4).astype(np.float32),
        np.frombuffer(data, "<f4", count, 16 * count).astype(np.float32),
        np.frombuffer(data, "<i4", count, 20 * count).astype(np.int32),
    )
