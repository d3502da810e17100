"""The detections of each examined frame, kept as long as the recording."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from appliance.base.errors import StoreError
from appliance.store.alerts import AlertDetail
from appliance.store.database import Database, to_json
from appliance.store.paths import EVIDENCE, inside
from appliance.types import FrameBoxes, StreamHeader, TrackedObject

SPAN_ROWS_MAX = 20_000  # an hour at 5 frames a second
AHEAD_S_MAX = 60.0  # a camera's own clock is believed that far
MINUTE_S = 60  # seconds
NOTED_MAX = 64  # sessions of a camera whose header was stored already
KEPT_BYTES_MAX = 64 * 1024 * 1024  # SPAN_ROWS_MAX frames of 3 kB, some 30 objects each; a larger file is damaged


def objects_json(objects: Sequence[TrackedObject]) -> str:
    """As in a log: fields that are not known are left out."""
    return to_json([{key: value for key, value in asdict(each).items() if value is not None} for each in objects])


def read_boxes(row: sqlite3.Row | Mapping[str, Any]) -> FrameBoxes:
    place = {name: row[name] for name in ("camera", "seq", "frame", "t")}
    return FrameBoxes(**place, looked=bool(row["looked"]), objects=read_objects(json.loads(row["objects"])))


def read_objects(stored: list[dict[str, Any]]) -> tuple[TrackedObject, ...]:
    return tuple(TrackedObject(**{**each, "box": tuple(each["box"])}) for each in stored)


@dataclass(frozen=True, slots=True)
class BoxRow:
    """An examined frame as it is stored. objects: the JSON list of TrackedObject, read when it is needed."""

    camera: str
    t: float
    run: str
    seq: int
    frame: int
    looked: int
    objects: str

    @property
    def is_empty(self) -> bool:
        """Examined, and nothing was there."""
        return self.objects == "[]" and self.looked == 1

    def read(self) -> FrameBoxes:
        return read_boxes(
            {"camera": self.camera, "t": self.t, "seq": self.seq, "frame": self.frame, "looked": self.looked,
             "objects": self.objects}
        )  # fmt: skip


class BoxStore:
    """The boxes table. The core writes about once a second; any thread reads.

    State: the last `NOTED_MAX` frames of each camera that this very object was told of, written or not: live views
    would be a second late with those of the table.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._noted: dict[str, deque[FrameBoxes]] = {}

    def note(self, frame: FrameBoxes) -> None:
        """Remember a frame that is to be written soon."""
        self._noted.setdefault(frame.camera, deque(maxlen=NOTED_MAX)).append(frame)

    def noted(self, camera: str) -> Sequence[FrameBoxes]:
        """Return the frames noted last, oldest first. Any thread may call."""
        return tuple(self._noted.get(camera, ()))

    def append(self, camera: str, run: str, frames: Sequence[FrameBoxes]) -> None:
        """Write a batch of examined frames of one session of a camera; a frame twice is one. Raises StoreError."""
        if not frames:
            return
        rows = [
            (camera, float(each.t), run, each.seq, each.frame, each.looked, objects_json(each.objects))
            for each in frames
        ]
        with self._db.transaction(durable=False) as connection:
            connection.executemany("INSERT OR REPLACE INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            for minute in sorted({int(each.t // MINUTE_S) for each in frames}):
                _count_minute(connection, camera, minute)

    def span(
        self, camera: str, t0: float, t1: float, limit: int = SPAN_ROWS_MAX, *, run: str | None = None
    ) -> list[FrameBoxes]:
        """Return the examined frames with t0 <= t <= t1, oldest first, of one session (`run`) or (None) of all."""
        with self._db.read() as connection:
            return boxes_between(connection, camera, t0, t1, limit, run=run)

    def scan(self, camera: str, t0: float, t1: float) -> Iterator[BoxRow]:
        """Every examined frame with t0 <= t <= t1, oldest first, however many, as they are read."""
        after: tuple[float, str, int] = (t0, "", -1)
        while True:  # in pieces: a read that lasts would hold up the database's log
            rows = self._db.rows(
                """SELECT t, run, seq, frame, looked, objects FROM boxes
                   WHERE camera = ? AND (t, run, seq) > (?, ?, ?) AND t <= ? ORDER BY t, run, seq LIMIT ?""",
                (camera, *after, t1, SPAN_ROWS_MAX),
            )
            for row in rows:
                yield BoxRow(camera, *row)
            if len(rows) < SPAN_ROWS_MAX:
                return
            after = (rows[-1]["t"], rows[-1]["run"], rows[-1]["seq"])

    def header(self, begin: BoxRow, size: tuple[int, int], *, follows: bool) -> StreamHeader:
        """Return the header with which the boxes of a session are judged again, from the frame `begin` on.

        size: of a frame in pixels. follows: those of an earlier session were judged before. Of what is there in a first
        frame that is not its session's first nothing is known. Raises StoreError.
        """
        row = self._db.row("SELECT * FROM stream WHERE camera = ? AND run = ?", (begin.camera, begin.run))
        known_before = follows if row is None else bool(row["known_before"]) and (follows or begin.seq == 0)
        return StreamHeader(
            camera=begin.camera, clip="", model="", size=size, run=begin.run, known_before=known_before,
            calibration=_read_calibration(row),
        )  # fmt: skip

    def latest(self, camera: str) -> FrameBoxes | None:
        """Return the newest examined frame of the camera's present session.

        A clock that was set back leaves frames of other sessions ahead of it.
        """
        row = self._db.row(
            """SELECT * FROM boxes WHERE camera = :camera AND t <= :t
               AND run = coalesce((SELECT nullif(run, '') FROM camera WHERE name = :camera), run)
               ORDER BY t DESC LIMIT 1""",
            {"camera": camera, "t": self._db.clock.now() + AHEAD_S_MAX},
        )
        return None if row is None else read_boxes(row)


def _count_minute(connection: sqlite3.Connection, camera: str, minute: int) -> None:
    """Count a minute anew rather than add to it: a frame that is written twice is one."""
    connection.execute(
        """INSERT OR REPLACE INTO activity
           SELECT :camera, :minute, CAST(total(looked) AS INTEGER), CAST(total(looked AND objects <> '[]') AS INTEGER)
           FROM boxes WHERE camera = :camera AND t >= :begin AND t < :end""",
        {"camera": camera, "minute": minute, "begin": minute * MINUTE_S, "end": (minute + 1) * MINUTE_S},
    )


def stored_calibration(connection: sqlite3.Connection, camera: str, run: str) -> dict[str, tuple[float, float]]:
    """Return the calibration of the scores in a session's boxes (see `StreamHeader`); {}: none is stored."""
    row = connection.execute("SELECT * FROM stream WHERE camera = ? AND run = ?", (camera, run)).fetchone()
    return _read_calibration(row)


def _read_calibration(row: sqlite3.Row | None) -> dict[str, tuple[float, float]]:
    lines = {} if row is None else json.loads(row["calibration"])
    return {label: (float(slope), float(offset)) for label, (slope, offset) in lines.items()}


def boxes_between(
    connection: sqlite3.Connection,
    camera: str,
    t0: float,
    t1: float,
    limit: int = SPAN_ROWS_MAX,
    *,
    run: str | None = None,
) -> list[FrameBoxes]:
    """See `BoxStore.span`; over any connection."""
    only = "" if run is None else "AND run = ?"
    values = (camera, t0, t1, *(() if run is None else (run,)), max(1, min(limit, SPAN_ROWS_MAX)))
    rows = connection.execute(
        f"SELECT * FROM boxes WHERE camera = ? AND t BETWEEN ? AND ? {only} ORDER BY t, seq LIMIT ?", values
    )
    return [read_boxes(row) for row in rows]


def kept_boxes(root: Path, alert: AlertDetail) -> list[FrameBoxes]:
    """Return the examined frames that are kept beside an alert's clip, oldest first; [] where they cannot be read."""
    row = alert.piece("boxes")
    if row is None or row.state != "ready":
        return []
    try:
        path = inside(root, row.path, EVIDENCE)
        if path.stat().st_size > KEPT_BYTES_MAX:
            return []
        return [
            FrameBoxes(
                camera=alert.alert.camera, seq=n, frame=n, t=float(frame["t"]), looked=True,
                objects=read_objects(frame["objects"]),
            )
            for n, frame in enumerate(json.loads(path.read_bytes())["frames"])
        ]  # fmt: skip
    except (OSError, StoreError, ValueError, KeyError, TypeError):
        return []
