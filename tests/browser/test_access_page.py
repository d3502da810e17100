"""A clip is handed over by link, who looked is read, and a span is erased, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.dashboard_site import PASSWORD, furnished


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with furnished(tmp_path / "a", {"anna": ("admin", None)}) as served:
        yield served


def signed_in(browser: Browser, url: str, width: int) -> Page:
    page = browser.new_context(viewport={"width": width, "height": 844}).new_page()
    page.goto(f"{url}/login")
    page.locator("input[name=name]").fill("anna")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("button[type=submit]").click()
    page.wait_for_url(f"{url}/")
    return page


@pytest.mark.parametrize("width", [1440, 390])
def test_an_alert_is_handed_over_and_its_span_erased(browser: Browser, url: str, width: int) -> None:
    page = signed_in(browser, url, width)
    page.goto(f"{url}/alerts/open-gate")
    page.locator("#export summary").click()
    page.locator("#export-form [name=why]").fill("The neighbour's lawyer")
    page.locator("#export-form button").click()
    expect(page.get_by_role("link", name="Download the export")).to_be_visible()
    page.locator("#link-form button").click()
    expect(page.locator("#made-link")).to_be_visible()
    stranger = browser.new_context().new_page()
    stranger.goto(page.locator("#made-link input").input_value())
    expect(stranger.locator("video")).to_be_visible()
    stranger.wait_for_function("document.querySelector('video').readyState > 0")
    page.goto(f"{url}/access")
    expect(page.locator(".log")).to_contain_text("whoever has the link opened a link gate")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.get_by_role("button", name="End the link").click()
    expect(page.get_by_role("button", name="End the link")).to_have_count(0)
    assert stranger.reload().status == 404  # type: ignore[union-attr]
    page.locator(".adding summary").click()
    form = page.locator("#erase-form")
    form.locator("[name=camera]").select_option("gate")
    form.locator("[name=begin]").fill("2020-01-01T00:00:00")
    form.locator("[name=end]").fill("2100-01-01T00:00:00")
    form.locator("[name=typed]").fill("gat")
    form.locator("button").click()
    expect(form.locator(".wrong")).to_contain_text("Type the camera's name")
    form.locator("[name=typed]").fill("gate")
    form.locator("button").click()
    expect(page.locator("#erasures details[open]")).to_contain_text("Erased: 1 files of the recording")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
