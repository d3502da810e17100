"""The index of the recording, which file holds which seconds of which camera, and its repair at the start.

The repair compares the index with the disk folder by folder, so that a million segments take the memory of one day of
one camera.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from appliance.base.errors import NotMeasured
from appliance.store.database import Database
from appliance.store.paths import PREROLL, SEGMENTS
from appliance.store.quotas import recount_usage
from appliance.types import MeasuredSegment, SegmentRow

SEGMENT_S_MAX = 600.0  # segment_s is at most 60, and a segment ends at the first key frame after that
ORPHAN_AGE_S = 3600.0  # a file without a row may be one that is being written, for a minute
ADOPTED_MAX = 20_000  # are read, some milliseconds each, before anything is watched; of more the names count
UNREAD_S, UNREAD_S_MAX = 4.0, 65.0  # s of a file that is not read: as segment_s by default, and at most


def read_segment(row: sqlite3.Row) -> SegmentRow:
    fields = dict(row)
    fields["size"] = (fields.pop("width"), fields.pop("height"))
    return SegmentRow(**{**fields, "complete": bool(fields["complete"])})


class SegmentStore:
    """The segment table. Written as ingest reports, read by evidence, live view and retention."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, segment: SegmentRow) -> None:
        """Insert or update by path: a segment is reported when it begins, grows and ends. Raises StoreError.

        One that ended with no frame came to nothing, and its row goes.
        """
        values = (
            segment.path,
            segment.camera,
            float(segment.t_start),
            float(segment.t_end),
            segment.bytes,
            segment.frames,
            segment.codec,
            *segment.size,
            segment.complete,
            segment.kind,
        )
        with self._db.transaction(durable=False) as connection:
            if segment.complete and not segment.frames:
                connection.execute("DELETE FROM segment WHERE path = ?", (segment.path,))
                return
            connection.execute("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def covering(self, camera: str, t0: float, t1: float) -> list[SegmentRow]:
        """Return the segments that hold any frame of t0..t1, oldest first, the one being written included.

        After the clock was set back two recordings claim the same hour: the one reported last counts.
        """
        with self._db.read() as connection:
            return covering(connection, camera, t0, t1)

    def covered_until(self, camera: str) -> float | None:
        """Return the camera's time up to which packets are readable on disk; None if nothing is recorded."""
        newest = self.latest(camera)
        return None if newest is None else newest.t_end

    def latest(self, camera: str) -> SegmentRow | None:
        """Return the segment reported last.

        This need not be the one with the latest time: a clock that was set back leaves that one in the future.
        """
        row = self._db.row(  # INSERT OR REPLACE gives each report a new, higher rowid
            "SELECT * FROM segment WHERE camera = ? ORDER BY rowid DESC LIMIT 1", (camera,)
        )
        return None if row is None else read_segment(row)

    def newest_t(self) -> float | None:
        """Return the latest moment of any recording; None: there is none."""
        row = self._db.row("SELECT max(t_end) AS t FROM segment")
        return None if row is None else row["t"]

    def recorded_since(self, camera: str, t: float) -> float | None:
        """Return when recording of a camera began, `t` where that was before it; None: it never did.

        Segments that were deleted since count as well.
        """
        row = self._db.row(
            """SELECT (SELECT min(t_start) FROM segment WHERE camera = :camera AND frames > 0) AS begin,
                      (SELECT max(until_t) FROM deleted WHERE camera = :camera AND class = 'continuous') AS deleted""",
            {"camera": camera},
        )
        if row is None or row["begin"] is None:
            return None
        return t if row["begin"] <= t or (row["deleted"] or 0.0) >= t else float(row["begin"])

    def reconcile(
        self, root: Path, *, measure: MeasureSegment | None = None, orphan_age_s: float = ORPHAN_AGE_S
    ) -> ReconcileReport:
        """Make index and disk agree, and the running sums with them, for the start (before ingest runs).

        Rows without a file are dropped. Segments that were left open, or whose file is shorter than its row says, are
        measured and closed. Files without a row are adopted if they are the recorder's and can be read; the others are
        counted, and removed once they are `orphan_age_s` old. Without `measure` nothing is read: sizes count. Raises
        StoreError.
        """
        found = ReconcileReport()
        with self._db.read() as connection:
            folders = sorted({*_row_folders(connection), *_disk_folders(root)})
        for folder in folders:
            _Folder(self._db, root, folder, found, measure, orphan_age_s).compare()
        with self._db.transaction() as connection:
            recount_usage(connection)
        if found != ReconcileReport():
            changes = ", ".join(f"{name} {value:g}" for name, value in asdict(found).items() if value)
            logger.info("compared the recording with its index: %s", changes)
        return found


def covering(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> list[SegmentRow]:
    """See `SegmentStore.covering`; over any connection."""
    rows = connection.execute(
        """SELECT * FROM segment WHERE camera = ? AND t_start <= ? AND t_start > ? AND t_end >= ? AND frames > 0
           ORDER BY rowid DESC""",
        (camera, t1, t0 - SEGMENT_S_MAX, t0),
    )
    counts: list[SegmentRow] = []
    for row in map(read_segment, rows):
        if sum(_overlap_s(row, later) for later in counts) <= (row.t_end - row.t_start) / 2:
            counts.append(row)
    return sorted(counts, key=lambda row: (row.t_start, row.path))


def _overlap_s(a: SegmentRow, b: SegmentRow) -> float:
    return max(0.0, min(a.t_end, b.t_end) - max(a.t_start, b.t_start))


logger = logging.getLogger(__name__)

_NAME = re.compile(r"^(\d{8}T\d{6}\.\d{3})Z-\w+\.(mp4|mkv)$")  # see ingest/recorder.py


MeasureSegment = Callable[[Path], MeasuredSegment | None]
"""Read a file's packets; None: there is no frame in it. Raises NotMeasured."""


@dataclass(slots=True)
class ReconcileReport:
    """Result of comparing index and disk.

    rows_dropped: their file was gone or held nothing; rows_closed: left open, or shorter than their row, and measured;
    adopted: files without a row that got one; adopted_s: how many seconds of video that is.
    """

    rows_dropped: int = 0
    rows_closed: int = 0
    adopted: int = 0
    adopted_s: float = 0.0
    orphans_kept: int = 0
    orphans_removed: int = 0
    orphan_bytes_removed: int = 0


def sweep_orphans(db: Database, root: Path, orphan_age_s: float = ORPHAN_AGE_S) -> ReconcileReport:
    """Remove files that no row names once they are older than `orphan_age_s`, while recording goes on."""
    found = ReconcileReport()
    for folder in _disk_folders(root):
        _Folder(db, root, folder, found, None, orphan_age_s).sweep()
    return found


class _Folder:
    """One folder with segments. Holds its listing and its rows only while it is compared."""

    def __init__(
        self,
        db: Database,
        root: Path,
        folder: str,
        found: ReconcileReport,
        measure: MeasureSegment | None,
        orphan_age_s: float,
    ) -> None:
        self._db = db
        self._root = root
        self._folder = folder
        self._found = found
        self._measure = measure
        self._orphan_age_s = orphan_age_s
        ours = folder.split("/", 1)[0] in (SEGMENTS, PREROLL) and ".." not in folder.split("/")
        self._files = _listing(root / folder) if ours else {}

    def compare(self) -> None:
        rows = self._rows()
        with self._db.transaction() as connection:
            for row in rows:
                size = self._files.pop(row["path"].rpartition("/")[2], (None, 0.0))[0]
                if size is None:
                    self._drop(connection, row)
                elif not row["complete"] or size != row["bytes"]:
                    self._close(connection, row, size)
            names = sorted(self._files)
            for name, following in zip(names, [*names[1:], ""], strict=False):
                if not self._adopt(connection, name, following):
                    self._orphan(name)

    def sweep(self) -> None:
        known = {row["path"].rpartition("/")[2] for row in self._rows()}
        for name in sorted(self._files.keys() - known):
            self._orphan(name)

    def _rows(self) -> list[sqlite3.Row]:
        begin = f"{self._folder}/" if self._folder else ""
        end = f"{self._folder}0" if self._folder else "/"  # the character after "/"
        rows = self._db.rows(
            "SELECT path, complete, bytes, t_start FROM segment WHERE path >= ? AND path < ?", (begin, end)
        )
        return [row for row in rows if "/" not in row["path"][len(begin) :]]

    def _drop(self, connection: sqlite3.Connection, row: sqlite3.Row) -> None:
        connection.execute("DELETE FROM segment WHERE path = ?", (row["path"],))
        self._found.rows_dropped += 1

    def _close(self, connection: sqlite3.Connection, row: sqlite3.Row, size: int) -> None:
        """Close a segment that was being written, or whose end is missing, at the end of its readable part."""
        values: dict[str, object] = {"path": row["path"], "bytes": size}
        change = ""
        with contextlib.suppress(NotMeasured):  # then what was told of it last counts
            measured = self._measure(self._root / row["path"]) if self._measure is not None else None
            if measured is not None:
                change = ", t_end = :t_end, frames = :frames"
                values |= {"t_end": row["t_start"] + measured.seconds, "frames": measured.frames}
                values["bytes"] = size if measured.bytes is None else measured.bytes
            elif self._measure is not None:
                self._drop(connection, row)
                self._remove(row["path"].rpartition("/")[2], size)
                return
        connection.execute(f"UPDATE segment SET complete = 1, bytes = :bytes{change} WHERE path = :path", values)
        self._found.rows_closed += 1

    def _adopt(self, connection: sqlite3.Connection, name: str, following: str) -> bool:
        """Give a file without a row one. following: the name of the next one; '': none.

        A power cut takes the newest rows, which are flushed seldom, but not the files, which are flushed each.
        """
        began, parts = _begin_of(name), self._folder.split("/")
        if self._measure is None or began is None or len(parts) < 2:
            return False
        unread = partial(self._unread, connection, parts[1], (_begin_of(following) or began) - began)
        try:
            path = self._root / self._folder / name
            measured = self._measure(path) if self._found.adopted < ADOPTED_MAX else unread()
        except NotMeasured:  # a busy machine, as at a start: without a row it would be deleted within the hour
            measured = unread()
        if measured is None:
            return False
        kind = "pre_roll" if parts[0] == PREROLL else "continuous"
        length = self._files[name][0] if measured.bytes is None else measured.bytes
        connection.execute(
            "INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
            (f"{self._folder}/{name}", parts[1], began, began + measured.seconds, length,
             measured.frames, measured.codec, *measured.size, kind),
        )  # fmt: skip
        self._found.adopted += 1
        self._found.adopted_s += measured.seconds
        return True

    def _unread(self, connection: sqlite3.Connection, camera: str, seconds: float) -> MeasuredSegment:
        """Return what is likely of a file that is not read; seconds: until the next one begins."""
        if not 0 < seconds <= UNREAD_S_MAX:
            seconds = UNREAD_S
        last = connection.execute(
            "SELECT codec, width, height FROM segment WHERE camera = ? ORDER BY rowid DESC LIMIT 1", (camera,)
        ).fetchone()
        codec, *size = last or ("", 0, 0)
        return MeasuredSegment(seconds, 1, codec, (size[0], size[1]))

    def _orphan(self, name: str) -> None:
        size, changed_t = self._files[name]
        if self._db.clock.now() - changed_t < self._orphan_age_s:
            self._found.orphans_kept += 1
        else:
            self._remove(name, size)

    def _remove(self, name: str, size: int) -> None:
        try:
            (self._root / self._folder / name).unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("a file without a row cannot be removed: %s", error)
            return
        self._found.orphans_removed += 1
        self._found.orphan_bytes_removed += size


def _begin_of(name: str) -> float | None:
    """Return when a file of the recorder begins, UTC seconds, by its name; None: it is none."""
    stamp = _NAME.match(name)
    if stamp is None:
        return None
    return datetime.strptime(stamp[1], "%Y%m%dT%H%M%S.%f").replace(tzinfo=timezone.utc).timestamp()


def _row_folders(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the folders that rows name, by hopping along the index of paths."""
    last, following = "", "SELECT min(path) FROM segment WHERE path > ?"
    while (found := connection.execute(following, (last,)).fetchone()[0]) is not None:
        folder = found.rpartition("/")[0]
        yield folder
        last = f"{folder}0" if folder else found  # "0" is the character after "/"


def _disk_folders(root: Path) -> Iterator[str]:
    for top in (SEGMENTS, PREROLL):
        for folder, _, files in os.walk(root / top):
            if files:
                yield Path(folder).relative_to(root).as_posix()


def _listing(folder: Path) -> dict[str, tuple[int, float]]:
    """Size and time of change of each plain file."""
    try:
        with os.scandir(folder) as entries:
            plain = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in plain]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {name: (stat.st_size, stat.st_mtime) for name, stat in stats}
