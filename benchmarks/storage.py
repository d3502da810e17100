"""Retention, start and forecast with a million segment rows: `python -m benchmarks.storage [--rows 1000000]`.

The rows are of 16 cameras, as many days as it takes; the files of the oldest thousand exist, so that deleting them is
real. CPU time and wall time of one call each; the machine is shared, so the CPU time is the figure.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.store.database import Database
from appliance.store.quotas import StorageLimits
from appliance.store.retention import Retention
from appliance.store.segments import SegmentStore
from appliance.store.storage_report import read_storage
from appliance.types import SegmentRow

CAMERAS = 16
SEGMENT_S = 4.0
BYTES = 500_000
NOW = 1_700_000_000.0
FILES = 1000


def fill(db: Database, root: Path, rows: int) -> None:
    """Index rows as the core writes them, and empty files for the oldest."""
    each = rows // CAMERAS
    with db.transaction(durable=False) as connection:
        for n in range(each):
            t = NOW - (each - n) * SEGMENT_S
            connection.executemany(
                "INSERT INTO segment VALUES (?, ?, ?, ?, ?, 60, 'h264', 1280, 720, 1, 'continuous')",
                [(path_of(c, t), f"cam{c:02}", t, t + SEGMENT_S, BYTES) for c in range(CAMERAS)],
            )
            for c in range(CAMERAS if n < FILES // CAMERAS else 0):
                file = root / path_of(c, t)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()


def path_of(camera: int, t: float) -> str:
    return f"segments/cam{camera:02}/day{int(t // 86400)}/{t:.3f}.mp4"


def _put_often(segments: SegmentStore, row: SegmentRow, times: int) -> None:
    for _ in range(times):
        segments.put(row)


def timed(what: str, job: Callable[[], object], table: dict[str, dict[str, float]]) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    job()
    table[what] = {
        "cpu_ms": round(1000 * (time.process_time() - cpu), 1),
        "wall_ms": round(1000 * (time.perf_counter() - wall), 1),
    }


def measure(rows: int) -> dict[str, dict[str, float]]:
    """CPU and wall milliseconds by what was done."""
    table: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        db = Database(root / "vedette.db", ManualClock(NOW))
        timed(f"writing {rows} rows", lambda: fill(db, root, rows), table)
        quiet = {"keep_hours": 24 * 365, "size_max_gb": 1e6, "disk_free_min_mb": 0}
        cameras = {f"cam{c:02}": {"url": "rtsp://h/1"} for c in range(CAMERAS)}
        site = SiteConfig.model_validate({"storage": quiet, "cameras": cameras})
        keeper = Retention(db, root, site.storage, site.cameras)
        timed("retention, nothing to do", keeper.run_once, table)
        limit = rows // CAMERAS * CAMERAS * BYTES / 1e9 - FILES // 2 * BYTES / 1e9
        full = site.storage.model_copy(update={"size_max_gb": limit})
        keeper = Retention(db, root, full, site.cameras)
        timed(f"retention, {FILES // 2} files over size_max_gb", keeper.run_once, table)
        row = SegmentRow(
            camera="cam00", path="segments/cam00/now.mp4", t_start=NOW, t_end=NOW + 1, bytes=1, frames=1, codec="h264",
            size=(1, 1), complete=False,
        )  # fmt: skip
        segments = SegmentStore(db)
        timed("1000 updates of a growing segment", lambda: _put_often(segments, row, 1000), table)
        limits = StorageLimits.of(site.storage, site.cameras)
        timed("forecast and sums for the page", lambda: read_storage(db, root, limits), table)
        timed("start: index against disk (all but the oldest files are gone)", lambda: segments.reconcile(root), table)
        db.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = measure(arguments.rows)
    if arguments.json:
        print(json.dumps(table))
        return
    for what, figures in table.items():
        print(f"{what:66} {figures['cpu_ms']:10.1f} ms CPU {figures['wall_ms']:10.1f} ms")


if __name__ == "__main__":
    main()
