"""The page System in a real browser, on a desk and on a phone, in both schemes; it keeps itself fresh."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.telemetry import LogRing
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.web.server import WebServer
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, expect

pytestmark = pytest.mark.browser

SIZES = {"phone": (390, 844), "desk": (1440, 900)}


class Box:
    """A site whose log is kept, served at `url`."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, SystemClock())
        self.site.live("gate", self.site.clock.now())
        self.site.spend("gate", 420_000_000, 150_000)
        self.site.health = SystemHealth(
            ingest_running=True, ingest_starts=2, ingest_pid=os.getppid(), detector_ms=18.4, load=0.31, age_p95_ms=140
        )
        self.ring = LogRing(self.site.clock)
        for n in range(30):
            self.log(logging.INFO, f"site depot-7, {n} cameras; the dashboard is at http://127.0.0.1:8080/")
        self.log(logging.WARNING, "camera dock: no packets for 6 s from rtsp://viewer:hunter2@192.168.1.21/main")
        self.log(logging.ERROR, "the ingest process ended (signal 9); starting it again")
        probes = CoreProbes(link=lambda: self.site.link, health=lambda: self.site.health, log=self.ring.tail)
        self.server = WebServer(
            create_app(replace(self.site.stored, root=folder), self.site.config.for_dashboard(), probes=probes),
            "127.0.0.1", 0,
        )  # fmt: skip

    def log(self, level: int, text: str) -> None:
        self.ring.emit(logging.LogRecord("appliance.core.core_loop", level, "", 0, text, (), None))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[tuple[Box, str]]:
    made = Box(tmp_path)
    with running(made.server) as url:
        yield made, url
    made.site.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_the_page_fits_and_keeps_itself_fresh(
    window: BrowserContext, box: tuple[Box, str], device: str, scheme: str
) -> None:
    made, url = box
    width, height = SIZES[device]
    page = window.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{url}/system")
    expect(page.get_by_role("region", name="Processes")).to_contain_text("core")
    expect(page.get_by_role("region", name="Detector")).to_contain_text("vedette-nano")
    expect(page.locator("main")).to_contain_text("a newer picture took its place")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    shot(page, f"system-{device}-{scheme}")
    page.get_by_role("link", name="error").click()
    log = page.get_by_label("Log, newest first")
    expect(log).to_contain_text("signal 9")
    expect(log).not_to_contain_text("no packets")
    made.log(logging.ERROR, "something new went wrong")
    expect(log).to_contain_text("something new went wrong")
    assert not faults
