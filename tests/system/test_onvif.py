"""ONVIF against a camera of ours: found, asked, its streams chosen, turned; and what a hostile one may not do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import SourceError, SourceLost, SourceRefused
from appliance.onvif import soap_client
from appliance.onvif.camera_client import CameraClient, choose_streams, clock_advice
from appliance.onvif.camera_client import OnvifCamera as Inspected
from appliance.onvif.discovery import Answers, answered, discover_cameras
from appliance.onvif.soap_client import OnvifAddress, SoapClient, XmlRefused, parse_xml
from tests.servers import netns
from tests.servers.onvif_camera import OnvifCamera, Stream

ROOT = Path(__file__).parents[2]
# The command, and then what the camera with IPv6 says of its second stream.
FIND_AND_ASK = """
import asyncio, sys
from appliance.base.clock import SystemClock
from appliance.onvif.camera_client import inspect_camera
from appliance.onvif.discovery import discover_command
from appliance.onvif.discovery import discover_cameras
from appliance.onvif.soap_client import OnvifAddress
discover_command(as_json=True)
(found,) = [each for each in discover_cameras(SystemClock(), 0.5) if ":" in each.host]
address = OnvifAddress.parse(found.address.replace("://", f"://{sys.argv[1]}@"))
print(inspect_camera(address, SystemClock()).profiles[1].url)
"""
Found = TypeVar("Found")


def address_of(camera: OnvifCamera, user: str = "viewer", password: str = "p@ss<&>") -> OnvifAddress:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    return OnvifAddress.parse(camera.address.replace("://", f"://{login}"))


def with_client(
    address: OnvifAddress, work: Callable[[CameraClient], Coroutine[Any, Any, Found]], call_s: float = 6.0
) -> Found:
    async def run() -> Found:
        async with SoapClient(address, SystemClock(), call_s=call_s) as soap:
            return await work(CameraClient(soap, SystemClock()))

    return asyncio.run(run())


def inspect(camera: OnvifCamera, call_s: float = 6.0, **login: str) -> Inspected:
    return with_client(address_of(camera, **login), lambda client: client.inspect(), call_s)


@pytest.mark.parametrize("media2", [True, False], ids=["media2", "media1"])
@pytest.mark.parametrize("auth", ["wsse", "digest", "none"])
def test_a_camera_tells_make_clock_and_streams(auth: Any, media2: bool) -> None:
    camera = OnvifCamera(auth=auth, media2=media2, ahead_s=-3600, rtsp_port=8554)
    with camera.running():
        found = inspect(camera)
    assert (found.make, found.model, found.firmware, found.ptz) == ("Example <b>", "C-100", "1.2.3", True)
    assert found.ahead_s == pytest.approx(-3600, abs=3)
    assert "60 min behind: set its time by NTP" in clock_advice(found.ahead_s)
    main, sub, _ = found.profiles
    assert (main.codec, main.size, main.fps, main.kbit_s, main.gop) == ("h264", (1920, 1080), 10, 4096, 20)
    assert sub.url == "rtsp://127.0.0.1:8554/sub"
    asked = camera.last_asked["GetStreamUri"]
    assert ("<t:Protocol>RTSP<" in asked) == media2
    assert camera.password not in str(camera.last_asked), "only a digest of it is sent"
    assert found.notes == ()


def test_profiles_that_only_name_their_encoder_are_completed() -> None:
    camera = OnvifCamera(bare_encoders=True)
    with camera.running():
        found = inspect(camera)
    assert [each.size for each in found.profiles] == [(1920, 1080), (640, 360), (320, 180)]


def test_the_smallest_stream_that_fills_the_network_is_detected_on() -> None:
    camera = OnvifCamera(ptz=False)
    with camera.running():
        found = inspect(camera)
    assert not found.ptz
    choice = choose_streams(found.profiles, 416)
    assert (choice.main, choice.sub) == ("p-main", "p-sub")
    assert "640 × 360" in choice.why
    assert choose_streams(found.profiles, 320).sub == "p-tiny"
    none = choose_streams(found.profiles, 700)
    assert (none.main, none.sub) == ("p-main", "")
    assert "raise it in the camera" in none.why


def test_the_other_lens_of_a_camera_is_no_sub_stream() -> None:
    wide = (Stream("a", "main", (1920, 1080)), Stream("b", "other", (640, 360), source="lens-2"))
    camera = OnvifCamera(streams=wide)
    with camera.running():
        choice = choose_streams(inspect(camera).profiles, 416)
    assert (choice.main, choice.sub) == ("a", "")


@pytest.mark.parametrize("auth", ["wsse", "digest"])
def test_a_wrong_or_missing_password_is_said_in_words(auth: Any) -> None:
    camera = OnvifCamera(auth=auth)
    with camera.running():
        with pytest.raises(SourceRefused, match="refused user or password; many cameras have ONVIF users") as wrong:
            inspect(camera, password="geheim")
        with pytest.raises(SourceRefused, match="asks for a user and a password"):
            inspect(camera, user="")
    assert "geheim" not in str(wrong.value)


@pytest.mark.parametrize("media2", [True, False])
def test_a_camera_cannot_send_us_to_another_host(media2: bool) -> None:
    """Its addresses name a host on which nobody may be asked: all requests still reach the camera itself."""
    camera = OnvifCamera(says_host="192.0.2.66", says_stream_host="169.254.169.254", rtsp_port=8554, media2=media2)
    with camera.running():
        found = inspect(camera)
        with_client(address_of(camera), lambda client: client.stop())
    assert {each.url.split("/")[2] for each in found.profiles} == {"127.0.0.1:8554"}
    assert "Stop" in camera.calls
    assert ["192.0.2.66" in note or "169.254.169.254" in note for note in found.notes] == [True, True]
    own = OnvifAddress.parse("http://10.0.0.5:8080")
    for named in ("http://10.0.0.5@evil/x", "http://evil:80/onvif/media", "HTTP://EVIL/onvif?x=1"):
        assert own.pinned(named)[0].startswith("http://10.0.0.5:8080/")
    for named in ("file:///etc/passwd", "gopher://10.0.0.5/", "http://[", "", "http://10.0.0.5:99999/"):
        assert own.pinned(named) == ("", "")
    assert own.pinned("http://10.0.0.5:8899/onvif\r\nX: y")[0] == "http://10.0.0.5:8899/onvifX:%20y"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("redirect", "sent us elsewhere"),
        ("slow", "did not answer within 1 s"),
        ("bomb", "more than a camera has to say"),
        ("entities", "document type or entities"),
        ("deep", "too many elements"),
        ("gzip", "does not answer as an ONVIF camera"),
        ("gzip-401", "refused user or password"),
        ("garbage", "not well-formed"),
        ("empty", "no ONVIF at that address"),
    ],
)
def test_a_hostile_answer_ends_in_words_within_bounds(fault: Any, words: str) -> None:
    camera = OnvifCamera(fault=fault, fault_at="GetDeviceInformation")
    with camera.running():
        tracemalloc.start()
        began = time.monotonic()
        with pytest.raises(SourceError, match=words) as refusal:
            inspect(camera, call_s=1.0 if fault == "slow" else 20.0)
        took_s = time.monotonic() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert str(refusal.value).isprintable()
    assert peak < 30 << 20, "of 63 MB that were sent at most one is read"
    assert took_s < 40


def test_a_camera_that_drips_through_every_call_is_left() -> None:
    camera = OnvifCamera(fault="slow", fault_at="GetStreamUri")
    with camera.running(), pytest.raises(SourceLost, match=r"did not answer within 0\.5 s"):
        inspect(camera, call_s=0.5)


def test_nobody_there_and_no_address() -> None:
    with pytest.raises(SourceLost, match=r"127\.0\.0\.1:1 cannot be reached"):
        with_client(OnvifAddress.parse("127.0.0.1:1"), lambda client: client.inspect())
    for text in ("", "ftp://10.0.0.1", "rtsp://10.0.0.1:554/main", "http://", "http://h:99999", "a b"):
        with pytest.raises(SourceRefused, match="not the address of a camera"):
            OnvifAddress.parse(text)
    assert OnvifAddress.parse("[fd00::1]:8000").url == "http://[fd00::1]:8000/onvif/device_service"


def test_it_is_turned_stopped_and_sent_to_presets() -> None:
    camera = OnvifCamera()
    with camera.running():

        async def story(client: CameraClient) -> list[str]:
            await client.move(-0.5, 0.25, 0, 2)
            assert camera.turning
            await client.stop()
            await client.move(0, 0, 1, 2)
            presets = await client.presets()
            await client.go_to(presets[1].token)
            return [each.name for each in presets]

        assert with_client(address_of(camera), story) == ["Door", "Yard & gate"]
        assert camera.moves == [(-0.5, 0.25, 0.0), (0.0, 0.0, 1.0)]
        assert camera.at_preset == "2"
        assert "PT2.0S" in camera.last_asked["ContinuousMove"]
        assert camera.calls.count("GetProfiles") == 1, "what it learnt stays"
        with_client(address_of(camera), lambda client: client.go_home())
        assert camera.at_preset == "home"
        camera.ptz = False
        with pytest.raises(SourceRefused, match="cannot be turned"):
            with_client(address_of(camera), lambda client: client.stop())


def test_cameras_are_found_by_multicast_on_this_machine() -> None:
    camera, other = OnvifCamera(name="Front door"), OnvifCamera(name="Yard")
    with camera.running("lo"), other.running("lo"):
        found = {each.address: each for each in discover_cameras(SystemClock(), 2.0)}
    assert {camera.address, other.address} <= set(found)
    mine = found[camera.address]
    assert (mine.name, mine.make, mine.elsewhere) == ("Front door", "C-100", "")


def test_looking_for_cameras_ends_with_a_clock_that_stands_still() -> None:
    assert isinstance(discover_cameras(ManualClock(), 0.5), list)


def test_a_camera_with_ipv6_alone_is_asked_in_its_own_words() -> None:
    camera = OnvifCamera(host="::1", rtsp_port=8554)
    with camera.running():
        found = inspect(camera)
        for text in (f"[::1]:{camera.port}", f"http://[0:0::1]:{camera.port}"):
            assert OnvifAddress.parse(text).port == camera.port
    assert [each.url for each in found.profiles][:1] == ["rtsp://[::1]:8554/main"]
    assert found.notes == ()
    link = OnvifAddress.parse("fe80::20%eth0")
    assert (link.host, link.url) == ("fe80::20%eth0", "http://[fe80::20%eth0]/onvif/device_service")
    assert OnvifAddress.parse("http://[fe80::20%25eth0]:8080").label == "[fe80::20%eth0]:8080"
    assert link.pinned("http://[FE80:0::20]:8000/onvif/media") == ("http://[fe80::20%eth0]:8000/onvif/media", "")
    assert link.pinned("http://[fe80::21]/onvif/media")[1] == "fe80::21"


def test_a_camera_that_answers_by_both_is_listed_once() -> None:
    both, alone = OnvifCamera(says_host="10.0.0.7"), OnvifCamera(says_host="fe80::9")
    ids = frozenset({"abc"})
    answers = Answers(ids)
    answers.take(both.match("abc"), "fe80::7%eth0")
    answers.take(alone.match("abc"), "fe80::9%eth0")
    answers.take(OnvifCamera(says_host="10.0.0.8").match("abc"), "fe80::8%eth0")
    answers.take(both.match("abc"), "10.0.0.7")
    found = [(each.host, each.elsewhere) for each in answers.cameras()]
    assert found == [("10.0.0.7", ""), ("fe80::8%eth0", "10.0.0.8"), ("fe80::9%eth0", "")]


def test_an_answer_is_believed_about_its_own_host_only() -> None:
    camera = OnvifCamera(says_host="169.254.169.254")
    ids = frozenset({"abc"})
    (found,) = answered(camera.match("urn:uuid:abc"), "10.0.0.7", ids)
    assert (found.address, found.elsewhere) == ("http://10.0.0.7/onvif/device_service", "169.254.169.254")
    assert answered(camera.match("urn:uuid:other"), "10.0.0.7", ids) == [], "nobody asked"
    for data in (b"", b"\xff", b"<a/>", b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', b"<a>" * 20_000):
        assert answered(data, "10.0.0.7", ids) == []
    loud = OnvifCamera(name="x" * 5000 + "%1b%0a")
    (shown,) = answered(loud.match("urn:uuid:abc"), "127.0.0.1", ids)
    assert len(shown.name) <= 64


def test_documents_are_bounded() -> None:
    for data in (
        b"<a>" * 41 + b"</a>" * 41,
        b"<a>" + b"<b/>" * 20_001 + b"</a>",
        b'<?xml version="1.0" encoding="nope"?><a/>',
    ):
        with pytest.raises(XmlRefused):
            parse_xml(data)
    assert parse_xml(b"<a><b> x\x7f </b><n>1e400</n></a>").text_at("b").isprintable()
    assert parse_xml(b"<n>1e99</n>").number_at() is None
    assert soap_client.ANSWER_BYTES_MAX <= 1 << 20


def test_the_command_finds_cameras_across_a_network_by_ipv4_and_ipv6() -> None:
    reason = netns.why_not()
    if reason:
        pytest.skip(reason)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with netns.cable(ipv6=True) as cable:
        link_local = f"{cable.link_local(cable.hub)}%wire"
        serve = ["-m", "tests.servers.onvif_camera", "--host", cable.address, "--host", link_local]
        camera = subprocess.Popen(
            cable.inside(cable.hub, sys.executable, *serve), stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=environment,
        )  # fmt: skip
        try:
            assert camera.stdout is not None
            by_ipv4, by_ipv6 = json.loads(camera.stdout.readline())["addresses"]
            command = cable.inside(cable.site, sys.executable, "-c", FIND_AND_ASK, f"viewer:{quote('p@ss<&>')}")
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
            assert done.returncode == 0, done.stderr
            printed, _, asked = done.stdout.partition("\n]\n")
            found = {each["address"]: each for each in json.loads(printed + "]")}
            assert set(found) == {by_ipv4, by_ipv6}
            assert (found[by_ipv4]["name"], found[by_ipv4]["elsewhere"]) == ("Front door", "")
            assert (found[by_ipv6]["host"], found[by_ipv6]["elsewhere"]) == (link_local, "")
            assert asked.split() == [f"rtsp://[{link_local}]:554/sub"], "its streams, with our name of the link"
        finally:
            camera.send_signal(signal.SIGKILL)
            camera.wait()
