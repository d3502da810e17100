"""`vedette run` on a disk that fills, and on one that is spared: what is flagged is kept, and each gap says why."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.appliance_process import ApplianceProcess
from tests.servers.red_camera import alerts, one, red_appliance, red_clip, rows
from tests.servers.rtsp import FaultyRtspServer
from tests.support import small_disk as mounted
from tests.support.waiting import until

MB = 1_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted.small_disk(tmp_path / "data", "48m") as place:
        yield place


@pytest.fixture
def camera(tmp_path: Path) -> Iterator[str]:
    with FaultyRtspServer.in_thread({"gate": red_clip(tmp_path / "film.mp4")}) as cameras:
        yield cameras.url("gate")


def box_of(folder: Path, url: str, *, camera: dict[str, Any], **storage: Any) -> ApplianceProcess:
    """The red box, edge only, with these keys."""
    box = red_appliance(folder, url, "nats://127.0.0.1:1")
    site = yaml.safe_load(box.config.read_text())
    del site["uplink"]
    site["storage"].update({"segment_s": 1, **storage})
    site["cameras"]["gate"].update(camera)
    box.config.write_text(yaml.safe_dump(site))
    return box


def leave_old(tmp_path: Path, count: int) -> None:
    """Recordings of two hours ago, whose rows a power cut took."""
    for n in range(count):
        began = datetime.fromtimestamp(time.time() - 7200 + 10 * n, tz=timezone.utc)
        folder = tmp_path / f"data/segments/gate/{began:%Y-%m-%d}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "film.mp4", folder / f"{began:%Y%m%dT%H%M%S}.000Z-lost.mp4")


def clips(box: ApplianceProcess) -> int:
    return int(one(box, "SELECT count(*) FROM evidence WHERE kind = 'clip' AND state = 'ready'"))


def gaps(box: ApplianceProcess) -> list[tuple[Any, ...]]:
    return rows(box, "SELECT t_end, reason FROM gap WHERE reason LIKE 'recording is paused%' ORDER BY t_start")


@pytest.mark.slow
def test_a_disk_that_others_fill_pauses_the_recording_and_nothing_that_was_flagged_is_lost(
    tmp_path: Path, camera: str, small_disk: Path
) -> None:
    leave_old(tmp_path, 5)
    with box_of(tmp_path, camera, camera={}, disk_free_min_mb=20) as box:
        assert one(box, "SELECT count(*) FROM segment WHERE path LIKE '%-lost.mp4' AND frames > 50") == 5, "adopted"
        until(lambda: clips(box) >= 2, 60)
        before, kept = alerts(box), clips(box)
        room = os.statvfs(small_disk)
        filler = small_disk / "filler"
        filler.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 12 * MB))
        until(lambda: any(end is None for end, _ in gaps(box)), 30)
        assert "the disk has less than" in gaps(box)[0][1]
        assert any("recording is paused" in each["reason"] for each in box.get("/cameras/gate")["gaps"])
        until(lambda: len(alerts(box)) >= len(before) + 2, 40)
        assert "the database cannot be written" not in box.log, "the reserve is for it"
        assert clips(box) >= kept, "evidence that nobody reviewed is never deleted for room"
        until(lambda: any(each["reason"] == "disk" for each in box.get("/storage")["deleted"]), 40)
        deleted = box.get("/storage")["deleted"]
        assert {each["what"] for each in deleted} == {"continuous"}
        assert one(box, "SELECT count(*) FROM segment WHERE path LIKE '%-lost.mp4'") == 0, "the oldest first"
        filler.unlink()
        until(lambda: all(end is not None for end, _ in gaps(box)), 30)
        until(lambda: clips(box) > kept, 40)
        assert before <= alerts(box)
        assert box.stop() == 0
        assert "Traceback" not in box.log


def test_of_a_pre_roll_camera_only_alerts_reach_the_disk_and_a_kill_costs_only_the_ring(
    tmp_path: Path, camera: str
) -> None:
    memory = tmp_path / "memory"
    with box_of(
        tmp_path, camera, camera={"record": "pre_roll", "quota": {"preroll_mb": 4}}, preroll_dir=str(memory)
    ) as box:
        until(lambda: clips(box) >= 1, 60)
        assert list(memory.glob("*/gate/*.mp4"))
        assert one(box, "SELECT count(*) FROM segment WHERE kind = 'continuous'") == 0
        row = rows(box, "SELECT t_start, t_end, bytes FROM evidence WHERE kind = 'clip' AND state = 'ready'")[0]
        assert row[1] - row[0] >= 2.5, "with its pre-roll and its post-roll"
        until(lambda: one(box, "SELECT count(*) FROM deleted WHERE class = 'alert' AND reason = 'done'") >= 1, 30)
        before, kept = alerts(box), clips(box)
        box.kill()
        for file in memory.glob("*/gate/*.mp4"):
            file.unlink()
        box.start()
        assert before <= alerts(box)
        until(lambda: clips(box) > kept, 60)
        assert {one(box, "SELECT count(*) FROM gap WHERE reason = 'the appliance was not running'")} == {1}
        assert box.stop() == 0
        assert "Traceback" not in box.log
