"""Many windows of one browser: all follow live video and changes over the few connections that they share."""

from __future__ import annotations

import pytest

from tests.browser.test_live_page import LiveHouse, live, playing  # noqa: F401 (the fixture)
from tests.support.waiting import PATIENCE, until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.browser

CONNECTIONS_MAX = 3  # a browser has six to one host, and pages want pictures as well


@pytest.mark.parametrize("windows", [3, 7, pytest.param(12, marks=pytest.mark.slow)])  # 7: more than connections
def test_windows_play_and_hear_of_changes_over_three_connections(
    live: LiveHouse,  # noqa: F811
    browser: Browser,
    windows: int,
) -> None:
    context = browser.new_context(viewport={"width": 500, "height": 400})
    pages = []
    for _ in range(windows):
        page = context.new_page()
        page.goto(f"{live.url}/cameras/gate", wait_until="domcontentloaded", timeout=60_000 * PATIENCE)
        pages.append(page)
    for page in (pages[0], pages[len(pages) // 2], pages[-1]):
        playing(page)
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    hub, feeds = live.streams
    assert (hub.viewers, feeds.viewers) == (1, 1), "all of them share one stream of events and one of video"
    pages[-1].goto(f"{live.url}/live")
    playing(pages[-1], '.stage[data-name="gate"]')
    assert hub.viewers + feeds.viewers <= CONNECTIONS_MAX
    live.site.raise_alert("news", live.site.clock.now() - 1)
    for page in (pages[0], pages[-2]):
        expect(page.locator("#a-news")).to_be_visible()
    for page in pages[1:]:
        page.close()
    playing(pages[0])
    pages[0].close()
    until(lambda: hub.viewers + feeds.viewers == 0, 60)


def test_without_a_shared_worker_each_window_has_connections_of_its_own(
    live: LiveHouse,  # noqa: F811
    browser: Browser,
) -> None:
    context = browser.new_context(viewport={"width": 500, "height": 400})
    context.add_init_script("delete globalThis.SharedWorker")
    for _ in range(2):
        page = context.new_page()
        page.goto(f"{live.url}/cameras/gate")
        playing(page)
    hub, feeds = live.streams
    assert (hub.viewers, feeds.viewers) == (2, 2)
