"""The parts of MQTT that need no real broker: the site file's section, topics, who is in which zone, a lost client."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.backoff import Backoff
from appliance.base.clock import SystemClock
from appliance.config import CameraConfig, MqttConfig, SiteConfig
from appliance.mqtt.broker_session import BrokerSession
from appliance.mqtt.discovery import Topics, ZoneLabel, discovery_messages
from appliance.mqtt.site_state import ZoneOccupancy
from appliance.types import Box
from tests.support.sample_rows import sample_frame

INSIDE: Box = (0.3, 0.3, 0.5, 0.5)
OUTSIDE: Box = (0.3, 0.3, 0.5, 0.95)
YARD = CameraConfig.model_validate(
    {
        "url": "file:x.mp4",
        "zones": {"top half": [[0, 0], [1, 0], [1, 0.6], [0, 0.6]], "unused": [[0, 0], [1, 0], [1, 1]]},
        "lines": {"door": [[0, 0], [1, 1]]},
        "rules": [
            {"name": "in", "kind": "enter", "zone": "top half", "labels": ["person", "traffic light"]},
            {"name": "out", "kind": "exit", "zone": "top half"},
            {"name": "through", "kind": "line", "line": "door"},
        ],
    }
)
PERSON = ZoneLabel("top half", "person")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"url": "http://host"}, "must begin with mqtt://"),
        ({"url": "mqtt://me:secret@host"}, "set `user` and `password`"),
        ({"url": "mqtt://host/topic"}, "topics stand in `topic_prefix`"),
        ({"url": "mqtt://host:99999"}, "the port is a number"),
        ({"url": "mqtt://host", "password": "x"}, "password is set without user"),
        ({"url": "mqtt://host", "tls_ca": "ca.pem"}, "write mqtts://"),
        ({"url": "mqtt://8.8.8.8", "local": True}, "not an address of a site's own network"),
        ({"url": "mqtt://host", "topic_prefix": "a/#"}, "without + # $ and spaces"),
        ({"url": "mqtt://host", "topic_prefix": "/a"}, "without + # $ and spaces"),
        ({"url": "mqtt://host", "discovery_prefix": "$SYS"}, "without + # $ and spaces"),
    ],
    ids=str,
)
def test_a_section_that_cannot_be_meant_is_refused_in_words(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("$", r"\$").replace("+", r"\+")):
        MqttConfig.model_validate(keys)


def test_the_password_stands_in_no_text() -> None:
    mqtt = MqttConfig.model_validate({"url": "mqtts://host", "user": "u", "password": "sesame"})
    assert str(mqtt) == "host:8883"
    assert "sesame" not in repr(mqtt)
    site = SiteConfig.model_validate({"cameras": {"yard": {"url": "file:x"}}, "mqtt": {"url": "mqtt://host"}})
    assert site.mqtt is not None
    assert "mqtt" not in site.for_ingest().model_dump()


def test_topics_hold_any_name_and_none_meet() -> None:
    topics = Topics(MqttConfig(url="mqtt://host", topic_prefix="home/cams"), "depot")
    names = ["a b", "a/b", "a+b", "a_b", "#", "Tür", "x" * 200]
    found = [topics.zone("yard", ZoneLabel(name, "person")) for name in names]
    assert len(set(found)) == len(names)
    assert all(topic.startswith("home/cams/camera/yard/zone/") and topic.count("/") == 6 for topic in found)
    assert not {"+", "#", " "} & set("".join(found))


def test_a_zone_is_an_entity_for_each_label_that_its_rules_want() -> None:
    topics = Topics(MqttConfig(url="mqtt://host"), "depot")
    made = list(discovery_messages(topics, "depot", {"yard": YARD}, ["yard"], "https://cams.example/"))
    zones = [each.body["name"] for each in made if each.body.get("device_class") == "occupancy"]
    assert zones == ["top half person", "top half traffic light"]
    pages = {each.body["device"]["configuration_url"] for each in made}
    assert pages == {"https://cams.example/", "https://cams.example/cameras/yard"}
    assert [each.topic for each in made if "/image/" in each.topic] == [
        "homeassistant/image/vedette_depot/yard-last-alert-still/config"
    ]


def test_two_sites_at_one_home_assistant_share_no_id_topic_or_device() -> None:
    def ids(site: str) -> set[str]:
        topics = Topics(MqttConfig(url="mqtt://host"), site)
        made = list(discovery_messages(topics, site, {"yard": YARD}, ["yard"], "", profiles=["armed", "home"]))
        assert len({each.body["unique_id"] for each in made}) == len(made) > 5
        return {
            name for each in made for name in (each.topic, each.body["unique_id"], *each.body["device"]["identifiers"])
        }

    assert not ids("depot") & ids("harbour")


def occupied(*steps: tuple[float, Box | None]) -> list[bool]:
    """Whether the person is told to be there after each examined frame (time, box)."""
    zones, found = ZoneOccupancy(YARD), []
    for seq, (t, box) in enumerate(steps):
        zones.feed([sample_frame(t, seq=seq, box=box)], 16 / 9)
        found.append(PERSON in zones.occupied())
    return found


def test_one_frame_is_not_enough_two_in_a_row_are() -> None:
    assert occupied((0.0, INSIDE), (0.1, OUTSIDE), (0.3, INSIDE), (0.5, INSIDE)) == [False, False, False, True]


def test_who_is_hidden_for_a_moment_is_still_there_and_who_is_lost_is_not() -> None:
    steps = ((0.0, INSIDE), (0.2, INSIDE), (2.0, None), (3.0, None), (3.3, None))
    assert occupied(*steps) == [False, True, True, True, False]


def test_who_leaves_the_zone_is_no_longer_in_it() -> None:
    assert occupied((0.0, INSIDE), (0.2, INSIDE), (0.4, OUTSIDE), (0.6, OUTSIDE)) == [False, True, True, False]


def test_a_frame_that_the_detector_failed_on_says_nothing() -> None:
    zones = ZoneOccupancy(YARD)
    zones.feed([sample_frame(t, seq=n, box=INSIDE) for n, t in enumerate((0.0, 0.2))], 16 / 9)
    failed = sample_frame(9.0, seq=2, box=None)
    zones.feed([failed.__class__(camera="yard", seq=2, frame=2, t=9.0, looked=False, objects=())], 16 / 9)
    assert PERSON in zones.occupied()


def test_a_clock_that_is_set_back_begins_anew() -> None:
    assert occupied((100.0, INSIDE), (100.2, INSIDE), (10.0, None), (10.2, None)) == [False, True, False, False]


_CONNACK = b"\x20\x03\x00\x00\x00"
_TOO_LONG = b"\x30\x80\xa0\x01"  # the head of a message of 20 kB: the client breaks over it


@contextlib.contextmanager
def greeted(server: socket.socket) -> Iterator[socket.socket]:
    connection, _ = server.accept()
    with connection:
        connection.settimeout(20)
        connection.recv(1000)
        connection.sendall(_CONNACK)
        yield connection


def packet_id_of_alert(connection: socket.socket) -> bytes:
    """Return the packet id of the first message on the topic `t`, once all of it is here."""
    got = b""
    while not got.endswith(b"an alert"):
        part = connection.recv(1000)
        assert part, "the connection ended without the alert"
        got += part
    return got.partition(b"\x00\x01t")[2][:2]


def test_an_alert_without_an_acknowledgement_outlives_the_client() -> None:
    """A broker that vanishes or breaks the client gets again what it did not acknowledge, and only that."""
    over, published = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        mqtt = MqttConfig(url=f"mqtt://127.0.0.1:{server.getsockname()[1]}")
        session = BrokerSession(mqtt, "x", None, SystemClock(), lambda message: None, lambda amount: None)
        session._backoff = Backoff(0.01, 0.02)

        def run() -> None:
            while not over.is_set():
                session.run_once(0.01)
                if session.connected and not published.is_set() and session.publish("t", b"an alert", retain=False):
                    published.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            for ending in (b"", _TOO_LONG):
                with greeted(server) as first:
                    packet_id_of_alert(first)
                    first.sendall(ending)
            with greeted(server) as second:
                second.sendall(b"\x40\x02" + packet_id_of_alert(second) + _TOO_LONG)
            with greeted(server) as third:
                third.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    third.recv(1000)
        finally:
            over.set()
            thread.join(20)
            session.close()
