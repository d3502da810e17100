"""A store, a webhook, a home automation's broker and an ONVIF camera that misbehave are survived, and used again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import SourceError
from appliance.config import MqttConfig, WebhookTarget
from appliance.mqtt import broker_session
from appliance.mqtt.broker_session import BrokerSession
from appliance.notify.http_sender import HttpSender
from appliance.notify.message import MessageBuilder
from appliance.onvif.camera_client import CameraClient
from appliance.onvif.soap_client import OnvifAddress, SoapClient
from tests.servers.misbehaving_proxy import WAYS, MisbehavingProxy
from tests.servers.mosquitto import Mosquitto, find_mosquitto
from tests.servers.onvif_camera import OnvifCamera
from tests.servers.receiver import Receiver
from tests.servers.site import evidence_image
from tests.support.waiting import until

HTTP_STRANGE = tuple(
    head + body
    for head in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 99999999999 ?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: \xff\xfe\r\nDate: never\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: Digest x\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 9e999\r\nContent-Length: 12\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nLast-Modified: x\r\nContent-Length: 12\r\n\r\n",
    )
    for body in (b"[1, 2, \"x\"] ", b"<a><b></a>..", b"\x00" * 12)
)  # fmt: skip
HTTP_HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
# CONNACKs and what may follow them: a reason that there is none of, properties cut short, a PUBLISH of 256 MB.
MQTT_STRANGE = (
    b"\x20\x03\x00\x00\x00" + b"\x30\x05\x00\x09abc", b"\x20\x02\x00\x05", b"\x20\x03\x00\xee\x00",
    b"\x20\x08\x00\x00\x05\x27\x00\x00\x00\x00",
    b"\x20\x06\x00\x00\x03\xff\xff\xff", b"\x90\x04\x00\x01\x00\x80", b"\xe0\x02\x8e\x00",
    b"\xf0\x02\x00\x00", b"\x20\xff\xff\xff\xff\x7f",
)  # fmt: skip
MQTT_HUGE = b"\x20\x03\x00\x00\x00" + b"\x30\xff\xff\xff\x7f\x00\x01a"
CALL_S = 1.0
BACK_S_MAX = 30.0


def test_a_store_that_misbehaves_ends_no_thread_of_the_archive() -> None:
    pytest.importorskip("boto3")
    from tests.contract.test_archive import archive, case
    from tests.servers.s3 import s3_server

    counted: Counter[str] = Counter()
    with s3_server() as store, MisbehavingProxy(int(store.url.rsplit(":", 1)[1]), strange=HTTP_STRANGE) as proxy:
        kept = archive(f"http://127.0.0.1:{proxy.port}", counted, timeout_s=CALL_S, tries=1, threads=1)
        for n, way in enumerate((*WAYS, *("strange", "changed") * 12)):
            if way in ("huge", "drip"):
                continue  # see the limits in docs/archive.md
            done = counted.total()
            proxy.way = way
            kept.put(*case(evidence_image(n)))
            until(lambda done=done: counted.total() >= done + 2, 20, lambda way=way: way)
        proxy.way = ""
        before = counted["stored"]
        kept.put(*case(evidence_image(1000)))
        until(lambda: counted["stored"] > before, BACK_S_MAX)
        kept.close(5)


def test_a_webhook_that_misbehaves_is_one_sentence() -> None:
    with Receiver() as phone, MisbehavingProxy(phone.port, strange=HTTP_STRANGE, huge=HTTP_HUGE) as proxy:
        target = WebhookTarget(kind="webhook", url=f"http://127.0.0.1:{proxy.port}/x", timeout_s=CALL_S)

        async def main() -> None:
            sender = HttpSender(target, SystemClock())
            message = MessageBuilder("site", "", lambda event: False).test("phone", 0.0)
            for way in (*WAYS, *("strange", "changed") * 15):
                proxy.way = way
                result = await sender.send(message)
                assert result.ok or result.error, way
            proxy.way = ""
            assert (await sender.send(message)).ok
            await sender.close()

        asyncio.run(main())


def test_a_camera_that_misbehaves_over_onvif_is_refused_or_lost() -> None:
    camera = OnvifCamera(auth="digest")
    with camera.running(), MisbehavingProxy(camera.port, strange=HTTP_STRANGE, huge=HTTP_HUGE) as proxy:
        address = OnvifAddress.parse(f"http://viewer:p%40ss%3C%26%3E@127.0.0.1:{proxy.port}/onvif/device_service")

        async def ask() -> None:
            async with SoapClient(address, SystemClock(), call_s=CALL_S) as soap:
                await CameraClient(soap, SystemClock()).inspect()

        for way in (*WAYS, *("strange", "changed") * 15):
            proxy.way = way
            with contextlib.suppress(SourceError):
                asyncio.run(ask())
        proxy.way = ""
        asyncio.run(ask())


@pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto here: deploy/get-mosquitto.sh brings it")
def test_a_home_automations_broker_that_misbehaves_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_session, "ANSWER_S_MAX", CALL_S)
    monkeypatch.setattr(broker_session, "BACKOFF_LAST_S", 1.0)
    monkeypatch.setattr(broker_session, "BACKOFF_FIRST_S", 0.05)
    real = Mosquitto(tmp_path / "broker").start()
    with MisbehavingProxy(real.port, strange=MQTT_STRANGE, huge=MQTT_HUGE) as proxy:
        config = MqttConfig(url=f"mqtt://127.0.0.1:{proxy.port}", local=True)
        session = BrokerSession(config, "t", "t/status", SystemClock(), lambda message: None, lambda amount: None)

        def pump(over: Callable[[], object], seconds: float) -> bool:
            until_t = time.monotonic() + seconds
            while not over() and time.monotonic() < until_t:
                if not session.run_once(0.05):
                    threading.Event().wait(0.02)
                session.publish("t/x", b"x", retain=False)
            return bool(over())

        for way in (*WAYS, *("strange", "changed") * 10):
            proxy.way, met = way, proxy.met
            assert pump(lambda met=met: proxy.met > met, 10.0), way
            pump(lambda: False, CALL_S / 2)
        assert proxy.taken < 16 * 1024 * 1024, "what it announces is not gathered"
        proxy.way = ""
        assert pump(lambda: session.connected, BACK_S_MAX)
        session.close()
    real.kill()
