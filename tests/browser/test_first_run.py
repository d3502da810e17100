"""The first run of the real program in a real browser: an empty folder, a code, a user, a camera, a zone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from tests.servers.rtsp import FaultyRtspServer
from tests.support.scripted_sources import clip
from tests.support.waiting import ANSWER_S, until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, expect

from tests.support.screenshots import shot

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
CLICKS_MAX = 9  # from the empty folder to the first alert, fields filled by keys
COUNT_CLICKS = """addEventListener("click", event => {
  if (event.isTrusted && event.detail) sessionStorage.clicks = 1 + Number(sessionStorage.clicks ?? 0);
}, true);"""


class FirstRun:
    """`vedette run` in an empty folder, and the code and address that it prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "appliance", "run", "--listen", "127.0.0.1:0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            found = re.search(r"(http://\S+/setup)\s+code (\w{4}-\w{4})", said)
            if found:
                self.setup_url, self.code = found[1], found[2]
                break
        else:
            raise AssertionError(f"it printed no code: {said}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.url = self.setup_url.removesuffix("/setup")
        self._wait()

    def _wait(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{self.url}/healthz", timeout=ANSWER_S)
                return True
            return False

        until(answers, 60, every_s=0.1)

    def site(self) -> dict[str, object]:
        return dict(yaml.safe_load((self.folder / "site.yaml").read_text()))


@pytest.fixture
def first_run(tmp_path: Path) -> Iterator[FirstRun]:
    folder = tmp_path / "box"
    folder.mkdir()
    run = FirstRun(folder)
    yield run
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(60) == 0


def test_from_an_empty_folder_to_a_zone_without_opening_a_file(
    first_run: FirstRun, browser: Browser, tmp_path: Path
) -> None:
    began = time.monotonic()
    for path in ("/api/v1/alerts", "/api/v1/cameras", "/api/v1/settings", "/metrics", "/api/openapi.json"):
        assert httpx.get(first_run.url + path, timeout=ANSWER_S).status_code == 403, "nothing else is served"
    page = browser.new_page(viewport={"width": 390, "height": 844})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(first_run.url)
    page.wait_for_url("**/setup")
    page.wait_for_load_state("networkidle")
    assert said == [], "nothing is asked for that is not served yet"
    shot(page, "setup")
    page.get_by_label("Code").fill("AAAA-AAAA")
    page.get_by_label("Name of the site").fill("depot-7")
    page.get_by_label("Your name").fill("anna")
    page.get_by_label("Password").fill("four words to remember")
    page.get_by_role("button", name="Begin").click()
    page.get_by_text("That is not the code").wait_for()
    page.get_by_label("Code").fill(first_run.code.lower().replace("-", " "))
    page.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/cameras/new")
    assert httpx.get(first_run.url + "/api/v1/alerts", timeout=ANSWER_S).status_code == 401, "from now on one signs in"
    again = {"code": first_run.code, "site": "x", "name": "eve", "password": "four words to remember"}
    assert httpx.post(f"{first_run.url}/setup", json=again, timeout=ANSWER_S).status_code == 409, (
        "the code is good once"
    )
    film = clip(tmp_path / "c.mp4", 300, fps=10, gop=10)
    with FaultyRtspServer.in_thread({"main": film}, user="viewer", password="geheim") as server:
        page.get_by_label("Stream", exact=True).fill(f"rtsp://127.0.0.1:{server.port}/main")
        page.get_by_label("User").fill("viewer")
        page.get_by_label("Password").fill("geheim")
        page.get_by_role("button", name="Try it").click()
        page.get_by_label("Name of the camera").fill("yard", timeout=60_000)
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_url("**/cameras/yard/edit?seen=*")
        page.get_by_role("button", name="Add a zone").click()
        expect(page.locator("#paper .corner")).to_have_count(4)
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Saved and in force").first.wait_for()
        page.get_by_text("More", exact=False).first.click()
        expect(page.get_by_role("link", name="Users")).to_have_count(1)
    site = first_run.site()
    assert site["site"] == {"name": "depot-7"}
    yard = site["cameras"]["yard"]  # type: ignore[index]
    assert len(yard["zones"]) == 1
    assert "geheim" not in (first_run.folder / "site.yaml").read_text()
    print(f"from the empty folder to the zone: {time.monotonic() - began:.0f} s")


class Phone:
    """What a person's phone would show: the messages that a webhook got."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []
        phone = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                phone.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_five_minute_path(
    first_run: FirstRun, browser: Browser, record_property: Callable[[str, object], None]
) -> None:
    """From a bare box to a first true alert of one's own camera, zone drawn, phone told, and no file opened."""
    phone, began, steps = Phone(), time.monotonic(), {}

    def done(step: str) -> None:
        steps[step] = round(time.monotonic() - began - sum(steps.values()), 1)

    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(120_000)
    page.add_init_script(COUNT_CLICKS)
    with FaultyRtspServer.in_thread({"yard": ROOT / "fixtures/clips/yard.mp4"}) as server:
        page.goto(first_run.url)
        page.get_by_label("Code").fill(first_run.code)
        page.get_by_label("Name of the site").fill("depot-7")
        page.get_by_label("Your name").fill("anna")
        page.get_by_label("Password").fill("four words to remember")
        page.get_by_role("button", name="Begin").click()
        page.wait_for_url("**/cameras/new")
        done("first user")
        page.get_by_label("Stream", exact=True).fill(f"rtsp://127.0.0.1:{server.port}/yard")
        page.get_by_role("button", name="Try it").click()
        page.get_by_label("Name of the camera").fill("yard")
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_url("**/cameras/yard/edit?seen=*")
        done("camera added")
        page.get_by_role("button", name="Add a zone").click()
        expect(page.locator("#paper .corner")).to_have_count(4)
        done("zone drawn")
        page.get_by_role("button", name="Add a rule").click()
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Saved and in force").first.wait_for()
        done("rule in force")
        page.get_by_role("link", name="See its alerts").click()
        card = page.locator(".card", has_text="Person").first
        card.wait_for()
        done("first true alert on screen")
        assert "yard" in card.inner_text()
        clicks = int(page.evaluate("sessionStorage.clicks"))
        assert clicks <= CLICKS_MAX
        print(f"first true alert: {clicks} clicks, {time.monotonic() - began:.0f} s")
        page.goto(f"{first_run.url}/notify")
        page.get_by_text("Add a target", exact=True).click()
        form = page.locator("form[data-post='/api/v1/notify/']")
        form.get_by_label("Name").fill("phone")
        form.get_by_label("Kind").select_option("webhook")
        form.get_by_label("Address").fill(phone.url)
        form.get_by_label("the target is on the site", exact=True).check()
        form.get_by_role("button", name="Save").click()
        page.locator("form[data-post='/api/v1/notify/phone/test']").wait_for()
        done("phone named")
        until(lambda: bool(phone.messages), seconds=120)
        done("phone told")
        shot(page, "five-minutes")
    phone.server.shutdown()
    total = sum(steps.values())
    record_property("seconds", {**steps, "together": total})
    print(*(f"{seconds:6.1f} s  {step}" for step, seconds in steps.items()), f"{total:6.1f} s  together", sep="\n")
    assert total < 300
