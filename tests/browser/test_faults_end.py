"""Real faults of a real appliance: the button of each on the first page leads to where a person ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, Locator, Page, expect

from appliance.core.site_faults import HOLD_S
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.mosquitto import Mosquitto, find_mosquitto
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.receiver import Receiver
from tests.servers.rtsp import FaultyRtspServer
from tests.support.ports import quiet_port
from tests.support.scripted_sources import clip
from tests.support.sensor_files import heat, memory
from tests.support.tampered_footage import films_of
from tests.support.tiny_networks import Thing, slow, yolo
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1500)]
_SITE = """
cameras:
  gate: {{url: 'rtsp://viewer:old@127.0.0.1:{camera}/main'}}
mqtt: {{url: 'mqtt://127.0.0.1:{nowhere}'}}
uplink: {{url: 'nats://127.0.0.1:{nowhere}'}}
notify:
  phone: {{kind: webhook, url: 'http://127.0.0.1:{nowhere}/hook', local: true}}
"""
_MACHINE = """
detector: {{model: '{model}', backend: onnx, device: cuda, precision: fp32, fallback: cpu}}
decode: {{hardware: vaapi, fallback: true}}
sensors: {{root: '{host}'}}
load_shedding: {{memory_available_min_mb: 5000}}
cameras:
  gate: {{url: 'file:{film}', detect: {{fps: 30}}}}
"""
BEGIN_S, END_S = 90.0, 45.0  # what others answer is a fault after a minute; a refused camera is tried each 30 s
RESTART_S = 120.0  # of the process that detects, until it has lived for half a minute
THING = Thing((40, 20, 70, 110), 0.9, 0)


@dataclass
class House:
    """An appliance of which nothing is right. cures: by kind of fault, what a person does where the button leads."""

    box: ApplianceProcess
    cures: dict[str, Callable[[Page], None]]
    lasting: bool = False
    """Each goes on until it is cured, whatever else is."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    program, found = find_mosquitto(), find_nats_servers()
    if program is None or not found:
        pytest.skip("it takes mosquitto and nats-server")
    film = clip(tmp_path / "film.mp4", 100, fps=10, gop=10)
    mqtt, nats = Mosquitto(tmp_path / "mqtt").start(), NatsServer(found[0], tmp_path / "nats").start()
    try:
        with (
            Receiver() as phone,
            FaultyRtspServer.in_thread({"main": film}, user="viewer", password="new") as camera,
        ):
            box = ApplianceProcess(tmp_path, _SITE.format(camera=camera.port, nowhere=quiet_port()))
            box.config.write_text(box.config.read_text().replace("storage: {", "storage: {disk_free_min_mb: 1.0e+9, "))
            addresses = {"notify": phone.url, "mqtt": mqtt.url, "uplink": nats.url}
            cures = {kind: partial(enter, url) for kind, url in addresses.items()}
            with box:
                yield House(box, {"stalled": enter_password, "disk": partial(enter, "1"), **cures}, lasting=True)
    finally:
        mqtt.kill()
        nats.stop()


def enter(text: str, page: Page) -> None:
    field = page.locator(":focus")
    field.fill(text)
    field.locator("xpath=ancestor::form").get_by_role("button", name="Save").click()


def enter_password(page: Page) -> None:
    page.locator(":focus").fill("new")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#found")).to_be_visible()
    page.locator("#save-address").click()
    expect(page.locator("#kept-address")).not_to_be_empty()


def enter_address(url: str, page: Page) -> None:
    page.locator(":focus").fill(url)
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#found")).to_be_visible()
    page.locator("#save-address").click()
    expect(page.locator("#kept-address")).not_to_be_empty()


def line(page: Page, kind: str) -> Locator:
    return page.locator(f"#troubles li[data-kind={kind}]")


def choose(value: str, page: Page) -> None:
    field = page.locator(":focus")
    field.select_option(value)
    field.locator("xpath=ancestor::form").get_by_role("button", name="Save").click()


def enter_below(key: str, value: str, page: Page) -> None:
    """Change a field of the form that the button leads to, beside the one that it puts the focus on."""
    form = page.locator("form.settings", has=page.locator(":focus"))
    field = form.locator(f"[id='{key}']").locator("input, select").first
    if field.evaluate("each => each.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)
    form.get_by_role("button", name="Save").click()


def end_each(browser: Browser, house: House, end_s: float) -> dict[str, float]:
    """Press the button of each fault on the first page and do what helps; return after how many seconds it ended."""
    page, ended = browser.new_page(), {}
    for kind, cure in house.cures.items():
        page.goto(house.box.url)
        expect(line(page, kind)).to_be_visible(timeout=1000 * BEGIN_S * PATIENCE)
        told = [each for each in house.cures if each not in {kind, *ended} and line(page, each).count()]
        line(page, kind).locator("a.button").click()
        page.wait_for_function("() => location.hash && document.activeElement.matches('input, select')")
        cure(page)
        began = time.monotonic()
        other = browser.new_page()
        other.goto(house.box.url)
        expect(line(other, kind)).to_have_count(0, timeout=1000 * end_s * PATIENCE)
        ended[kind] = time.monotonic() - began
        for later in told if house.lasting else ():
            expect(line(other, later)).to_have_count(1)  # what was saved is not about these: they go on
        other.close()
    page.close()
    return ended


def say(ended: dict[str, float]) -> None:
    print(f"{len(ended)} real faults ended: " + ", ".join(f"{kind} {after:.0f} s" for kind, after in ended.items()))


def test_a_person_ends_what_is_wrong_where_the_button_leads(browser: Browser, house: House) -> None:
    ended = end_each(browser, house, END_S)
    page = browser.new_page()
    page.goto(house.box.url)
    page.wait_for_timeout(1000 * (HOLD_S + 15.0))
    for kind in ended:
        expect(line(page, kind)).to_have_count(0)  # nor does it come back: saving lets such a fault begin anew
    page.close()
    say(ended)


def test_a_person_ends_what_is_wrong_with_the_machine(browser: Browser, tmp_path: Path) -> None:
    host, film = tmp_path / "host", clip(tmp_path / "film.mp4", 300, fps=30, gop=30)
    heat(host, 90)
    memory(host, available_mb=4000, total_mb=8000)
    model = slow(tmp_path / "slow.onnx", [THING], ["person"])
    box = ApplianceProcess(tmp_path, _MACHINE.format(model=model, host=host, film=film))
    box.config.write_text(box.config.read_text().replace("storage: {", "storage: {disk_free_min_mb: 1.0e+9, "))
    cures = {
        "hot": partial(enter_below, "load_shedding.temperature_max_c", "95"),
        "memory": partial(enter_below, "load_shedding.memory_available_min_mb", "100"),
        "unrecorded": partial(enter, "1"),
        "decoder": partial(choose, "off"),
        "fallback": partial(enter_below, "detector.device", "cpu"),
        "overloaded": partial(enter, "1"),
    }
    with box:
        ended = end_each(browser, House(box, cures), RESTART_S)
        with out_of_memory(box, model):
            ended |= end_each(browser, House(box, {"model": partial(choose, "vedette-nano")}), RESTART_S)
    say(ended)


@contextlib.contextmanager
def out_of_memory(box: ApplianceProcess, model: Path) -> Iterator[None]:
    """Kill the process that detects whenever it has this network, as the kernel does where the memory is too small."""
    stopped = threading.Event()

    def kill() -> None:
        while not stopped.wait(0.2):
            children = Path(f"/proc/{box.pid}/task").glob("*/children")
            for pid in " ".join(each.read_text() for each in children).split():
                with contextlib.suppress(OSError):
                    ingest = b"\0--fd\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
                    if ingest and str(model) in box.config.read_text():
                        os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stopped.set()
        killer.join()


def test_a_person_ends_what_is_wrong_with_a_picture(browser: Browser, tmp_path: Path) -> None:
    films, model = films_of(tmp_path), yolo(tmp_path / "none.onnx", [THING], ["person"])
    kinds = {"moved": "turned", "covered": "covered", "black": "black"}
    mounts = dict.fromkeys(("spare", *kinds), films["healthy"]) | {"frozen": films["frozen"]}
    with FaultyRtspServer.in_thread(mounts) as server:
        cameras = "".join(f"\n  {name}: {{url: '{server.url(name)}'}}" for name in (*kinds, "frozen"))
        with ApplianceProcess(tmp_path, f"detector: {{model: '{model}'}}\ncameras:{cameras}\n") as box:
            ended = end_each(browser, House(box, {"frozen": partial(enter_address, server.url("spare"))}), END_S)
            page = browser.new_page()
            for kind, film in kinds.items():  # which have learnt meanwhile where they look
                server.change(kind, films[film])
                page.goto(box.url)
                expect(line(page, kind)).to_be_visible(timeout=1000 * BEGIN_S * PATIENCE)
                line(page, kind).get_by_role("button", name="This view is right").click()
                began = time.monotonic()
                expect(line(page, kind)).to_have_count(0)
                found = f"/health/events?kind={kind}"
                until(lambda found=found: box.get(found)["events"][0]["t_end"] is not None, END_S, kind)
                ended[kind] = time.monotonic() - began
            page.close()
    say(ended)
