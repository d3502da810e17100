"""A recording camera, and peers that say anything: the core goes on without a gap, and uses each peer again."""

from __future__ import annotations

import contextlib
import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import av
import pytest

from cloud_worker.archive import S3Archive
from tests.contract.test_archive import archive, case
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.jetstream_faults import FAULTS
from tests.servers.misbehaving_proxy import WAYS, MisbehavingProxy
from tests.servers.mosquitto import Mosquitto, find_mosquitto
from tests.servers.onvif_camera import OnvifCamera
from tests.servers.receiver import Receiver
from tests.servers.red_camera import FPS, one, red_appliance, red_clip, rows
from tests.servers.rtsp import FaultyRtspServer
from tests.servers.s3 import S3Server, s3_server
from tests.servers.scripted_jetstream import ScriptedJetStream
from tests.servers.site import evidence_image
from tests.servers.worker import WorkerThread
from tests.support.waiting import until
from tests.system.test_misbehaving_broker import Agreeing
from tests.system.test_misbehaving_peers import HTTP_HUGE, HTTP_STRANGE, MQTT_HUGE, MQTT_STRANGE

BACK_S_MAX = 30.0
WAYS_OF_S3 = tuple(way for way in WAYS if way not in ("huge", "drip"))  # it reads what it is sent: docs/archive.md
# Segments end where the next begins. A session that was lost, or a process that was started again, costs more than a
# second; on a busy machine the tests' own camera sends a frame or two late.
GAP_S_MAX = 4 / FPS
_PEERS = """
mqtt: {{url: 'mqtt://127.0.0.1:{mqtt}', local: true}}
notify: {{phone: {{kind: webhook, url: 'http://127.0.0.1:{hook}/x', timeout_s: 1}}}}
"""


@dataclass
class Peer:
    """misbehave: begin with a way, '' ends it. well: a number that grows when the peer is used rightly."""

    name: str
    misbehave: Callable[[str], object]
    well: Callable[[], float]
    ways: tuple[str, ...] = WAYS
    poke: Callable[[], object] = lambda: None


def longest_gap(box: ApplianceProcess, since: float, until_t: float) -> float:
    """Seconds between the end of a segment and the begin of the next, of the files themselves."""
    spans = []
    for path, start in rows(box, "SELECT path, t_start FROM segment WHERE complete ORDER BY t_start"):
        with av.open(str(box.folder / "data" / path)) as file:
            times = [packet.pts * packet.time_base for packet in file.demux(video=0) if packet.pts is not None]
        spans.append((start, start + float(max(times) - min(times)) + 1 / FPS))
    covered = [span for span in spans if span[1] > since and span[0] < until_t]
    assert covered, "nothing was recorded"
    assert covered[0][0] <= since, "recording began before"
    return max((b[0] - a[1] for a, b in pairwise(covered)), default=0.0)


def ask_camera(box: ApplianceProcess, address: str) -> bool:
    """Whether the dashboard reaches an ONVIF camera. It answers in any case."""
    body = json.dumps({"address": address, "user": "viewer", "password": "p@ss<&>"}).encode()
    request = urllib.request.Request(f"{box.url}/api/v1/setup/onvif", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        return False


@dataclass
class Servers:
    nats: ScriptedJetStream
    phone: Receiver
    hook: MisbehavingProxy
    mqtt: MisbehavingProxy
    camera: OnvifCamera
    onvif: MisbehavingProxy
    store: S3Server
    s3: MisbehavingProxy


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        nats, phone, store = enter(ScriptedJetStream()), enter(Receiver()), enter(s3_server())
        home = Mosquitto(tmp_path / "home").start()
        stack.callback(home.kill)
        camera = OnvifCamera(auth="digest")
        enter(camera.running())
        http = {"strange": HTTP_STRANGE, "huge": HTTP_HUGE}
        yield Servers(
            nats, phone, enter(MisbehavingProxy(phone.port, **http)),
            enter(MisbehavingProxy(home.port, strange=MQTT_STRANGE, huge=MQTT_HUGE)), camera,
            enter(MisbehavingProxy(camera.port, **http)), store,
            enter(MisbehavingProxy(int(store.url.rsplit(":", 1)[1]), **http)),
        )  # fmt: skip


def peers_of(box: ApplianceProcess, servers: Servers, kept: S3Archive) -> list[Peer]:
    chance, reached = random.Random(7), servers.nats.reached
    asked = Counter[str]()

    def broker(way: str) -> None:
        servers.nats.always = lambda state: (chance, way) if way and chance.random() < 0.3 else None
        servers.nats.cut()

    def set_way(proxy: MisbehavingProxy) -> Callable[[str], None]:
        return lambda way: setattr(proxy, "way", way)

    def keep() -> None:
        asked["kept"] += 1
        if asked["kept"] % 5 == 0:
            kept.put(*case(evidence_image(asked["kept"])))

    def camera() -> None:
        asked["ok"] += ask_camera(box, f"http://127.0.0.1:{servers.onvif.port}/onvif/device_service")

    return [
        Peer("NATS broker", broker, lambda: reached["site: NEXT verdict"] * bool(link_up(box)), tuple(FAULTS)),
        Peer("MQTT broker", set_way(servers.mqtt), lambda: float("vedette_mqtt_up 1.0" in box.page("/metrics"))),
        Peer("webhook", set_way(servers.hook), lambda: len(servers.phone.ok)),
        Peer("ONVIF camera", set_way(servers.onvif), lambda: asked["ok"], poke=camera),
        Peer("S3 store", set_way(servers.s3), lambda: len(servers.store.keys()), WAYS_OF_S3, keep),
    ]


def link_up(box: ApplianceProcess) -> bool:
    return "vedette_link_up 1.0" in box.page("/metrics")


def trouble(box: ApplianceProcess, peer: Peer, seconds: float) -> tuple[float, float, float]:
    """All its ways, for so long in all; returns since when, until when, and how long it took to be used again."""
    began = time.time()
    if peer.name == "webhook":  # it is told of alerts, which come every 8 s
        seconds = max(seconds, 12.0)
    for way in peer.ways:
        peer.misbehave(way)
        ends = time.monotonic() + seconds / len(peer.ways)
        until(lambda ends=ends: peer.poke() or time.monotonic() > ends, seconds, every_s=0.1)
        assert box.running, box.log[-3000:]
    peer.misbehave("")
    behaves, before = time.monotonic(), peer.well() if peer.name != "MQTT broker" else 0.0
    until(lambda: peer.poke() or peer.well() > before, BACK_S_MAX, lambda: box.log[-3000:], every_s=0.2)
    return began, time.time(), time.monotonic() - behaves


@pytest.mark.timeout(900)
@pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto here: deploy/get-mosquitto.sh brings it")
@pytest.mark.parametrize("seconds", [6.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_recording_has_no_gap_whatever_its_peers_do(tmp_path: Path, servers: Servers, seconds: float) -> None:
    counted: Counter[str] = Counter()
    kept = archive(f"http://127.0.0.1:{servers.s3.port}", counted, timeout_s=1.0, tries=1)
    worker = WorkerThread(servers.nats.url, Agreeing(), archive=kept).start()
    film = red_clip(tmp_path / "film.mp4")
    found: dict[str, tuple[float, float, float]] = {}
    try:
        with FaultyRtspServer.in_thread({"gate": film}) as cameras:
            made = red_appliance(tmp_path, cameras.url("gate"), servers.nats.url)
            made.config.write_text(
                made.config.read_text() + _PEERS.format(mqtt=servers.mqtt.port, hook=servers.hook.port)
            )
            with made as box:
                pid = box.pid
                until(lambda: servers.phone.ok and one(box, "SELECT count(*) FROM alert WHERE verdict <> ''"), 60)
                until(lambda: servers.store.keys() and rows(box, "SELECT 1 FROM segment WHERE complete"), 60)
                for peer in peers_of(box, servers, kept):
                    found[peer.name] = trouble(box, peer, seconds)
                now = time.time()
                until(lambda: rows(box, f"SELECT 1 FROM segment WHERE complete AND t_end > {now}"), 60)
                assert (box.running, box.pid, worker.alive) == (True, pid, True)
                gaps = {name: longest_gap(box, *window[:2]) for name, window in found.items()}
            assert box.stop() == 0
    finally:
        worker.stop()
    print("\npeer           longest recording gap   used again after")
    for name, (_, _, back_s) in found.items():
        print(f"{name:14} {max(0.0, gaps[name]):8.2f} s {back_s:21.1f} s")
    assert max(gaps.values()) <= GAP_S_MAX, gaps
    assert "by a bug" not in made.log
