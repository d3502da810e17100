"""The recording of a box as somebody reads it who is not the appliance: a replay, a report."""

from __future__ import annotations

from pathlib import Path

from appliance.store.database import peek
from appliance.store.paths import DATABASE
from appliance.store.segments import covering
from appliance.types import Gap, SegmentRow

_WINDOW_S = 600.0  # `covering` compares all rows of a window with each other


class Archive:
    """Read-only sight of a storage folder. Holds no connection, takes no lock; the appliance may run meanwhile."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / DATABASE

    def segments(self, camera: str, t0: float, t1: float) -> list[SegmentRow]:
        """The segments that hold any frame of t0..t1, oldest first. Raises StoreError."""
        found: dict[str, SegmentRow] = {}
        with peek(self._path) as connection:
            begin = t0
            while begin < t1:
                rows = covering(connection, camera, begin, min(begin + _WINDOW_S, t1))
                found.update((row.path, row) for row in rows)
                begin += _WINDOW_S
        return sorted(found.values(), key=lambda row: (row.t_start, row.path))

    def gaps(self, camera: str, t0: float, t1: float) -> list[Gap]:
        """The gaps that touch t0..t1, oldest first. Raises StoreError."""
        with peek(self._path) as connection:
            rows = connection.execute(
                """SELECT * FROM gap WHERE camera = ? AND t_start <= ? AND (t_end IS NULL OR t_end >= ?)
                   ORDER BY t_start, id""",
                (camera, t1, t0),
            ).fetchall()
        return [
            Gap(camera=row["camera"], t_start=row["t_start"], t_end=row["t_end"], reason=row["reason"]) for row in rows
        ]

    def span(self, camera: str) -> tuple[float, float] | None:
        """From when to when anything is recorded of the camera; None: nothing is. Raises StoreError."""
        with peek(self._path) as connection:
            row = connection.execute(
                "SELECT min(t_start) AS begin, max(t_end) AS end FROM segment WHERE camera = ? AND frames > 0",
                (camera,),
            ).fetchone()
        return None if row["begin"] is None else (row["begin"], row["end"])
