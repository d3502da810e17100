"""By keyboard alone a camera is added, with a zone and a rule, and an alert is reviewed.

Tab, Enter, Space and arrows are all that is pressed, beside what is typed into fields. Wherever the focus stops it is
seen: its element is on the screen, and wears a ring.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from fastapi import FastAPI

from appliance.config import SiteConfig
from appliance.settings.settings_service import SettingsService
from appliance.web.server import WebServer
from tests.servers.rtsp import FaultyRtspServer
from tests.support.dashboard_site import filmed_site, running
from tests.support.scripted_sources import clip
from tests.support.waiting import until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, Error, Page

pytestmark = pytest.mark.browser
STOPS_MAX = 60  # of the focus from one thing to the next on a page: more is no path that a person walks
STOP = """(() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const where = at.getBoundingClientRect();
  const wears = ({ outlineStyle, outlineWidth }) => outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  const ring = [at, at.closest(".card") ?? at].some(each => wears(getComputedStyle(each)));
  const isCorner = at.matches("video") // whose controls wear a ring of the browser's, which no script sees
    || (at.matches(".corner") && getComputedStyle(at).stroke === "rgb(255, 255, 255)");
  const isHere = where.bottom > 0 && where.top < innerHeight && where.right > 0 && where.left < innerWidth;
  return { html: at.outerHTML.slice(0, 120), ring: ring || isCorner, isHere, seen: (ring || isCorner) && isHere };
})()"""
FILE = """\
site: {name: depot-7}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {yard: [[0.1, 0.45], [0.95, 0.45], [0.95, 0.98], [0.1, 0.98]]}
    rules: [{name: intruder, kind: enter, zone: yard, severity: alert}]
"""


class Engine(Protocol):
    """A browser with one page."""

    def open(self, url: str) -> None: ...
    def press(self, key: str) -> None: ...
    def evaluate(self, expression: str) -> Any: ...


class Chromium:
    def __init__(self, page: Page) -> None:
        self._page = page

    def open(self, url: str) -> None:
        self._page.goto(url)

    def press(self, key: str) -> None:
        self._page.keyboard.press(key)

    def evaluate(self, expression: str) -> Any:
        return self._page.evaluate(expression)


@dataclass
class Keyboard:
    """Who walks over pages by keys."""

    engine: Engine
    url: str

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, on this page or on the one that is being loaded."""

        def is_so() -> bool:
            try:
                return bool(self.engine.evaluate(condition))
            except (AssertionError, Error):  # the page is being left
                return False

        until(is_so, 20, condition, every_s=0.1)

    def walk_to(self, selector: str, key: str = "Tab") -> None:
        """Press Tab until this has the focus; each stop on the way is seen."""
        look = f"[{STOP}, document.activeElement.matches({json.dumps(selector)})]"

        def seen() -> tuple[bool] | None:
            stop, here = self.engine.evaluate(look)
            return (here,) if stop is None or stop["seen"] else None

        for _ in range(STOPS_MAX):
            self.engine.press(key)
            (here,) = until(seen, 1, lambda: self.engine.evaluate(STOP))
            if here:
                return
        raise AssertionError(f"{selector} was not reached by {STOPS_MAX} times {key}")

    def type(self, text: str) -> None:
        for letter in text:
            self.engine.press(letter)


@pytest.fixture
def keyboard(window: BrowserContext, tmp_path: Path) -> Iterator[Keyboard]:
    path, site, t0 = filmed_site(tmp_path, FILE)
    site.cut(site.raise_alert("walker", t0 + 3, seconds=2.0))
    apps: list[FastAPI] = []

    def take(config: SiteConfig) -> tuple[str, ...]:
        site.cameras.ensure({name: camera.url for name, camera in config.cameras.items()})
        apps[0].state.configure(config.for_dashboard(), site.probes())
        return ()

    apps.append(site.app(SettingsService(path, tmp_path / "data", site.clock, take)))
    with running(WebServer(apps[0], "127.0.0.1", 0)) as url:
        page = window.new_page()
        page.set_viewport_size({"width": 1440, "height": 900})
        yield Keyboard(Chromium(page), url)
        page.close()
    site.close()


def test_a_camera_is_added_with_a_zone_and_a_rule(keyboard: Keyboard, tmp_path: Path) -> None:
    film = clip(tmp_path / "c.mp4", 300, fps=10, gop=10)
    press = keyboard.engine.press
    with FaultyRtspServer.in_thread({"main": film}) as server:
        keyboard.engine.open(f"{keyboard.url}/cameras")
        keyboard.walk_to("a[href='/cameras/new']")
        press("Enter")
        keyboard.wait("location.pathname === '/cameras/new' && document.readyState === 'complete'")
        keyboard.walk_to("#url")
        keyboard.type(f"rtsp://127.0.0.1:{server.port}/main")
        keyboard.walk_to("#address button.main")
        press("Enter")
        keyboard.wait("!document.getElementById('found').hidden")
        keyboard.walk_to("#title")
        keyboard.type("Yard")
        keyboard.walk_to("#record")
        press("ArrowDown")
        keyboard.walk_to("#add button.main")
        press("Enter")
        keyboard.wait("location.pathname.endsWith('/edit') && document.readyState === 'complete'")
    keyboard.wait("document.getElementById('add-zone')?.disabled === false")
    keyboard.walk_to("#add-zone")
    press(" ")
    keyboard.wait("document.querySelectorAll('#paper .corner').length === 4")
    where = "[...document.querySelectorAll('#paper .corner')].map(each => each.getBoundingClientRect().x)"
    xs = keyboard.engine.evaluate(where)
    keyboard.walk_to("#paper .corner", "Shift+Tab")
    press("ArrowRight")
    assert sum(keyboard.engine.evaluate(where)) > sum(xs)
    keyboard.walk_to("#add-rule")
    press("Enter")
    keyboard.wait("document.querySelectorAll('#rules fieldset').length === 1")
    keyboard.walk_to("#save")
    press("Enter")
    keyboard.wait("document.querySelector('main').innerText.includes('Saved and in force')")
    cameras = yaml.safe_load((tmp_path / "site.yaml").read_text())["cameras"]
    (camera,) = (each for name, each in cameras.items() if name != "gate")
    assert len(camera["zones"]) == len(camera["rules"]) == 1


def test_an_alert_is_opened_reviewed_and_taken_back(keyboard: Keyboard) -> None:
    press, state = keyboard.engine.press, "(document.querySelector('#review strong')?.textContent ?? '')"
    keyboard.engine.open(keyboard.url)
    keyboard.walk_to(".card .open")
    press("Enter")
    keyboard.wait("location.pathname === '/alerts/walker' && document.readyState === 'complete'")
    keyboard.walk_to("#review button[data-review=false_alarm]")
    press("Enter")
    keyboard.wait(f"{state} === 'False alarm'")
    keyboard.walk_to("#review button[data-review='']")
    press(" ")
    keyboard.wait(f"{state} === ''")
    press("r")
    keyboard.wait(f"{state} === 'Reviewed'")
    keyboard.walk_to("#menu summary", "Shift+Tab")
    press("Enter")
    keyboard.walk_to("#menu a[href='/agreement']")
    press("Escape")
    keyboard.wait("!document.getElementById('menu').open && document.activeElement.matches('#menu summary')")
