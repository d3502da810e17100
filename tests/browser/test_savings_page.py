"""The charts of the page Savings on a desk and on a phone, in both schemes, and prices edited in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

from appliance.base.clock import SystemClock, local_day
from appliance.config import SiteConfig, load
from appliance.settings.settings_service import SettingsService
from appliance.web.server import WebServer
from tests.browser.conftest import House
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SIZES = {"phone": (390, 844), "desk": (1440, 900)}


def a_month(site: Site) -> None:
    """What 30 days with two cameras leave in the counters; nights are quieter."""
    now = site.clock.now()
    with site.db.transaction() as connection:
        for n in range(30 * 24):
            t = now - n * 3600
            wave = 1.4 + math.sin(n / 24 * 6.28)
            rows = {
                ("gate", "camera_bytes"): 900_000_000, ("dock", "camera_bytes"): 600_000_000,
                ("gate", "uplink_bytes"): 900_000 * wave, ("dock", "uplink_bytes"): 200_000 * wave,
                ("gate", "examined"): 9000 * wave, ("", "uptime_s"): 3600,
            }  # fmt: skip
            for (camera, kind), amount in rows.items():
                connection.execute(
                    "INSERT INTO meter_hour VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (t // 3600, camera, kind, int(amount)),
                )
                connection.execute(
                    """INSERT INTO meter VALUES (?, 'before', ?, ?, ?)
                       ON CONFLICT DO UPDATE SET amount = amount + excluded.amount""",
                    (local_day(t), camera, kind, int(amount)),
                )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_the_charts_fit_and_have_a_table_behind_them(visit: Visit, house: House, device: str, scheme: str) -> None:
    width, height = SIZES[device]
    a_month(house.site)
    page = visit("/savings?since=all", width=width, height=height, scheme=scheme)
    chart = page.get_by_role("img", name="Bytes from the cameras and sent up, each day, the site")
    expect(chart).to_be_visible()
    assert chart.bounding_box()["width"] > 0.7 * min(width, 1160)  # type: ignore[index]
    page.get_by_role("link", name="Hours", exact=True).click()
    page.get_by_role("navigation", name="Which camera").get_by_role("link", name="dock").click()
    expect(page.get_by_role("img", name="Bytes sent up, each hour, dock")).to_be_visible()
    page.get_by_text("As a table", exact=True).click()
    expect(page.get_by_role("cell", name="600 MB").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    size = page.locator("svg.chart .axis").first.evaluate("(each) => each.getBoundingClientRect().height")
    assert size >= 12, "the words in the charts keep their size"
    page.get_by_text("As a table", exact=True).click()
    shot(page, f"savings-{device}-{scheme}")
    with page.expect_download() as got:
        page.get_by_role("link", name="cameras, days").click()
    assert "gate" in Path(got.value.path()).read_text()


def test_a_price_is_edited_on_the_page_and_counts_at_once(window: BrowserContext, tmp_path: Path) -> None:
    path, clock = tmp_path / "site.yaml", SystemClock()
    path.write_text("cameras: {gate: {url: 'rtsp://h/1'}, dock: {url: 'rtsp://h/2'}}\n")
    (tmp_path / "data").mkdir()
    site = Site(tmp_path / "data", clock, load(path))
    a_month(site)
    apps: list[FastAPI] = []

    def take(config: SiteConfig) -> tuple[str, ...]:
        apps[0].state.configure(config.for_dashboard(), site.probes())
        return ()

    apps.append(site.app(SettingsService(path, site.root, clock, take)))
    with running(WebServer(apps[0], "127.0.0.1", 0)) as url:
        page = window.new_page()
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{url}/savings")
        page.get_by_text("The prices behind it").click()
        field = page.get_by_label("The appliance, bought")
        expect(field).to_have_attribute("placeholder", "150")
        field.fill("1500")
        page.get_by_label("Currency", exact=True).fill("EUR")
        shot(page, "savings-prices-phone")
        page.get_by_role("button", name="Save prices").click()
        expect(page.locator("[data-swap=money]")).to_contain_text("EUR for")
        expect(page.locator("[data-swap=money]")).to_contain_text("13 of 14 prices are defaults")
        assert load(path).costs.edge.device_price == 1500
        page.get_by_label("The appliance, bought").fill("")
        page.get_by_role("button", name="Save prices").click()
        expect(page.locator("[data-swap=money]")).to_contain_text("14 of 14 prices are defaults")
        assert load(path).costs.edge.device_price == 150
        page.close()
    site.close()
