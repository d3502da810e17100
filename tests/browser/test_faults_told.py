"""Kinds of faults on a first page that is open: each is told in words, with a button to a page that is there.

The usual run has one of each kind of place that a button leads to; `make test-slow` has all twenty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, Page, expect

from appliance.dashboard.app import create_app
from appliance.dashboard.health_api import LEARNABLE
from appliance.notify.delivery import TargetStatus
from appliance.settings.settings_service import SettingsService
from appliance.types import HEALTH_TITLES, HealthEvent
from appliance.types.literals import OF_NEIGHBOURS, HealthKind
from appliance.web.server import WebServer
from tests.support.dashboard_site import Site, running, site_of_file
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.browser
TOLD_S = 10.0
OF_THE_SITE = OF_NEIGHBOURS | {"clock", "detector", "database", "fallback", "hot", "memory", "service", "disk", "model"}
FAULTS: tuple[HealthKind, ...] = (
    "stalled", "frozen", "black", "covered", "moved", "clock", "detector", "decoder", "overloaded", "database",
    "hot", "memory", "service", "disk", "unrecorded", "uplink", "mqtt", "notify", "certificate", "model",
)  # fmt: skip
# A page of a camera, an act, a number, a box to tick, a choice, an address, and a part of a page that has no field.
USUAL: tuple[HealthKind, ...] = ("stalled", "moved", "disk", "hot", "decoder", "uplink", "notify")


def fault(kind: HealthKind, t: float, t_end: float | None = None) -> HealthEvent:
    return HealthEvent(
        id=f"f-{kind}", camera="" if kind in OF_THE_SITE else "gate", kind=kind, t_start=t, t_end=t_end, t=t,
        reason="it does not answer", recovery="", attempts=0, times=1,
    )  # fmt: skip


FILE = """\
site: {name: depot-7}
cameras:
  gate: {url: "rtsp://viewer:hunter2@192.168.1.20/main"}
  dock: {url: "rtsp://192.168.1.21/main"}
mqtt: {url: "mqtt://192.168.1.9"}
notify: {phone: {kind: webhook, url: "http://192.168.1.7/hook", local: true}}
uplink: {url: "nats://192.168.1.8:4222"}
load_shedding: {enabled: false}
"""
# What an owner enters in the field that the button leads to.
ENTERED = {
    "storage.disk_free_min_mb": "7", "detector.model": "vedette-nano", "cameras.gate.detect.fps": "2",
    "load_shedding.enabled": True, "decode.hardware": "auto", "uplink.url": "nats://192.168.1.10:4222", "mqtt.url": "mqtt://192.168.1.11",
    "dashboard.public_url": "https://cams.example",
}  # fmt: skip

FOCUSED = """() => {
    const name = location.hash.slice(1);
    return document.activeElement.closest(`[id='${name}'], [aria-labelledby='${name}']`) !== null;
}"""


@dataclass
class Owner:
    url: str
    path: Path
    site: Site
    orders: FakeOrders

    def has(self, key: str) -> object:
        value = yaml.safe_load(self.path.read_text())
        for each in key.split("."):
            value = value.get(each) if isinstance(value, dict) else None
        return value


class FakeOrders:
    """Notes whose view is right."""

    def __init__(self) -> None:
        self.right: list[tuple[str, str]] = []

    def rebaseline(self, camera: str, kind: str) -> None:
        self.right.append((camera, kind))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    path, site = site_of_file(tmp_path, FILE)
    orders = FakeOrders()
    service = SettingsService(path, tmp_path / "data", site.clock, lambda _: ())
    silent = TargetStatus(
        name="phone", kind="webhook", host="192.168.1.7", failing_since=site.clock.now() - 90, error="no answer"
    )
    probes = replace(site.probes(), orders=orders, targets=lambda: (silent,))
    app = create_app(site.stored, site.config.for_dashboard(), probes=probes, settings=service)
    with running(WebServer(app, "127.0.0.1", 0)) as url:
        yield Owner(url, path, site, orders)
    site.close()


def enter(page: Page, key: str) -> None:
    """Do in the field that has the focus what an owner would, and save."""
    field = page.locator(":focus")
    value = ENTERED[key]
    if isinstance(value, bool):
        field.click()
    elif field.evaluate("each => each.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(str(value))
    form = page.locator("form.settings", has=page.locator(f"[id='{key}']"))
    form.get_by_role("button", name="Save").click()
    expect(form.locator("[data-saved]")).to_have_text("Saved and in force.")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", [USUAL, pytest.param(FAULTS, marks=pytest.mark.slow)], ids=["usual", "all"])
def test_faults_are_told_with_what_helps(window: BrowserContext, owner: Owner, faults: tuple[HealthKind, ...]) -> None:
    page = window.new_page()
    slowest, helped = 0.0, []
    for kind in faults:
        page.goto(owner.url)
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        began = time.monotonic()
        owner.site.faults.put(fault(kind, owner.site.clock.now()))
        line = page.locator(f"#troubles li[data-kind={kind}]")
        expect(line).to_be_visible()
        slowest = max(slowest, time.monotonic() - began)
        expect(line).to_contain_text(HEALTH_TITLES[kind])
        expect(line).to_contain_text("It does not answer.")
        if kind in LEARNABLE:
            line.get_by_role("button", name="This view is right").click()
            expect(line).to_have_count(0)
            assert owner.orders.right[-1] == ("gate", kind)
            helped.append(kind)
        else:
            button = line.locator("a.button")
            _, _, key = str(button.get_attribute("href")).partition("#")
            button.click()
            expect(page.locator("h1")).to_be_visible()
            page.wait_for_function(FOCUSED, timeout=15_000 * PATIENCE)
            helped.append(kind)
            if key in ENTERED and str(owner.has(key)) != str(ENTERED[key]):
                enter(page, key)
                assert str(owner.has(key)) == str(ENTERED[key])
        owner.site.faults.put(fault(kind, owner.site.clock.now(), owner.site.clock.now()))
    assert slowest < TOLD_S * PATIENCE
    print(
        f"{len(faults)} of {len(faults)} faults told within {slowest:.1f} s; {len(helped)} buttons do the act or "
        "lead to the field that is then saved, or to the part of a page that helps"
    )
