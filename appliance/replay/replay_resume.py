"""Detections that are used again: by the replay that resumes a killed one, and by replays with other settings.

A resumed replay checks the log that was left line by line, appends to it, and reuses its detections. Replays of the
same footage with other settings call the detector once for each picture.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from appliance.base.errors import SourceError, UsageError
from appliance.base.json_lines import AppendOnlyFile, whole_bytes
from appliance.base.local_files import check_output
from appliance.detect.detector import DetectorProxy, ObjectDetector, VariableInput, calibration_of, prefer_labels
from appliance.replay.replay_diff import setting_changes
from appliance.replay.replay_log_writer import LogHeader
from appliance.replay.replay_result import RecordedLog, ReplayResult, read_log
from appliance.types import Detections

logger = logging.getLogger(__name__)

DETECTIONS_SUFFIX = ".looks"
_LOG_START = re.compile(rb'\{"type": ?"header"')
CACHED_DETECTIONS_MAX = 100_000  # some 100 MB at 30 objects a frame; five and a half hours at 5 fps


@pydantic_dataclass(frozen=True)
class _DetectionRow:
    """The detections of one frame.

    found: base64 of float32 boxes (N, 4), float32 scores (N,), int32 class ids (N,), little-endian; None: the detector
    failed.
    """

    camera: str
    frame: int
    found: str | None


_row: TypeAdapter[_DetectionRow] = TypeAdapter(_DetectionRow)


class DetectionJournal:
    """The detections that a killed replay left beside its log, then those of this one.

    State: those left and not read yet, the open file. Owner: one replay, which examines the same frames in the same
    order each time. Detections come back bit for bit, so everything that follows from them is as it was. `remembered`
    counts the frames whose detections were taken from the file.
    """

    def __init__(self, path: Path, digest: str, *, resume: bool) -> None:
        """Open, or start a new file when not resuming or when it is of another replay. Raises OSError."""
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
        self._file = AppendOnlyFile(path, kept)
        if not kept:
            self._file.write(head)

    @property
    def has_next(self) -> bool:
        """True if the next frame's detections are in the file."""
        return self._next is not None

    def read_next(self, camera: str, frame: int) -> Detections | None:
        """Return the next detections of the file; None: the detector had failed.

        Raises UsageError when they are of another frame: the footage is not what it was.
        """
        row = self._next
        assert row is not None, "check has_next first"
        if (row.camera, row.frame) != (camera, frame):
            raise UsageError(
                f"{self.path} remembers a look at frame {row.frame} of {row.camera} where the footage has frame "
                f"{frame} of {camera}: the footage has changed; leave --resume away to begin anew"
            )
        self.remembered += 1
        self._next = next(self._rows, None)
        try:
            return None if row.found is None else _unpack(row.found)
        except ValueError:  # of base64, or of numbers that are cut off
            raise self._damaged() from None

    def append(self, camera: str, frame: int, found: Detections | None) -> None:
        """Write the detections of one more frame."""
        packed = None if found is None else _pack(found)
        self._file.write(_row.dump_json(_DetectionRow(camera, frame, packed)) + b"\n")

    def close(self) -> None:
        if self._old is not None:
            self._old.close()
        self._file.close()

    def delete(self) -> None:
        """Remove the file: the log is complete."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read(self, kept: int) -> Iterator[_DetectionRow]:
        while self._old is not None and self._old.tell() < kept:
            line = self._old.readline()
            try:
                yield _row.validate_json(line)
            except ValidationError:
                raise self._damaged() from None

    def _damaged(self) -> UsageError:
        return UsageError(f"{self.path} is damaged; remove it, or leave --resume away to begin anew")


def _pack(found: Detections) -> str:
    parts = (found.boxes.astype("<f4"), found.scores.astype("<f4"), found.class_ids.astype("<i4"))
    return base64.b64encode(b"".join(part.tobytes() for part in parts)).decode()


def _unpack(text: str) -> Detections:
    data = base64.b64decode(text)
    count, rest = divmod(len(data), 24)
    if rest:
        raise ValueError("detections are cut off")
    return Detections(
        np.frombuffer(data, "<f4", 4 * count).reshape(count, 4).astype(np.float32),
        np.frombuffer(data, "<f4", count, 16 * count).astype(np.float32),
        np.frombuffer(data, "<i4", count, 20 * count).astype(np.int32),
    )


class ResumableLog:
    """The file of a replay log.

    When resuming, every line that is written is first compared with the one that stands there, so that what follows
    can be trusted; once all whole lines of the file were met, new ones are appended. `compared`: lines so far.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open the log. Raise OSError."""
        self._path = path
        self.compared = 0
        kept = whole_bytes(path) if resume else 0
        self._unmatched_bytes = kept
        self._old = path.open("rb") if kept else None
        self._file = AppendOnlyFile(path, kept)

    def write(self, line: bytes) -> int:
        """Write or check a line. Raise UsageError when the file holds another here, OSError when the disk is full."""
        if self._old is None:
            return self._file.write(line)
        if self._old.readline() != line:
            raise UsageError(
                f"{self._path}: line {self.compared + 1} is not what this replay finds: it was made with other "
                "footage, settings or another machine; leave --resume away to begin anew"
            )
        self.compared += 1
        self._unmatched_bytes -= len(line)
        if self._unmatched_bytes <= 0:
            self._old.close()
            self._old = None
        return len(line)

    def close(self) -> None:
        if self._old is not None:
            self._old.close()
        self._file.close()


@dataclass(frozen=True, slots=True)
class OpenLog:
    """An open log and the journal beside it."""

    sink: ResumableLog | None
    detections: DetectionJournal | None  # None where the log is no ordinary file (a pipe), which cannot be resumed
    finished: tuple[ReplayResult, ...] | None = None  # what it holds, when it was complete already

    def complete(self) -> None:
        """End the replay: the journal is not needed any more."""
        if self.detections is not None:
            self.detections.delete()


@contextlib.contextmanager
def open_log(path: Path, opening: LogHeader, *, resume: bool) -> Iterator[OpenLog]:
    """Start `path` anew, or resume it. Raises UsageError when it is the log of another replay, OSError.

    Of footage that cannot be read at all no file is left.
    """
    check_output(path, "a replay log", _LOG_START)
    plain = path.is_file() or not path.exists()
    if resume and not plain:
        raise UsageError(f"{path} is not a file: it cannot be gone on with")
    left = _read_left_log(path, opening) if resume and whole_bytes(path) else None
    looks = path.with_name(path.name + DETECTIONS_SUFFIX)
    if left is not None and left.complete:
        looks.unlink(missing_ok=True)  # of a kill between the last line and its removal
        yield OpenLog(None, None, left.results())
        return
    with contextlib.ExitStack() as stack:
        journal = DetectionJournal(looks, opening.digest, resume=resume) if plain else None
        if journal is not None:
            stack.callback(journal.close)
        sink = ResumableLog(path, resume=left is not None)
        stack.callback(sink.close)
        try:
            yield OpenLog(sink, journal)
        except SourceError:
            if journal is not None and not path.stat().st_size:  # no picture of the footage could be read
                journal.delete()
                path.unlink()
            raise


def _read_left_log(path: Path, opening: LogHeader) -> RecordedLog:
    left = read_log(path)
    if left.header.digest == opening.digest:
        return left
    changed = "; ".join(setting_changes(left.header, opening)) or "the footage is another one"
    raise UsageError(f"{path} is the log of another replay ({changed}); leave --resume away to begin anew")


class MemoizedDetector(DetectorProxy):
    """Caches the detector's detections by the contents of the frame; failures are not cached.

    State: the cache, oldest first, for the labels that rules want now. Owner: one thread.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        super().__init__(detector)
        self.shape_step = detector.shape_step if isinstance(detector, VariableInput) else 0
        self.calibration = calibration_of(detector)
        self._wanted: frozenset[str] = frozenset()
        self._cache: dict[bytes, Detections] = {}

    def prefer(self, wanted: Iterable[str]) -> None:
        """Pass on which labels rules want; with others the answers differ."""
        labels = frozenset(wanted)
        if labels != self._wanted:
            self.forget()
            self._wanted = labels
            prefer_labels(self._detector, sorted(labels))

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Return the remembered detections, or detect. Raise DetectorError."""
        return [self._detect_one(frame) for frame in frames]

    def forget(self) -> None:
        """Empty the cache before other footage, whose frames differ."""
        self._cache.clear()

    def _detect_one(self, frame: NDArray[np.uint8]) -> Detections:
        shape = b"%d,%d" % frame.shape[:2]
        key = hashlib.blake2b(np.ascontiguousarray(frame).data, digest_size=16, salt=shape).digest()
        if (known := self._cache.get(key)) is None:
            known = self._cache[key] = self._detector.detect([frame])[0]
            if len(self._cache) > CACHED_DETECTIONS_MAX:
                del self._cache[next(iter(self._cache))]
        return known
