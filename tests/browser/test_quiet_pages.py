"""Profiles and pauses in a real browser, on a desk and a phone: chosen, shown with who and until when, ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

from appliance.store.arming import ArmingStore
from tests.browser.conftest import House
from tests.support.screenshots import shot

pytestmark = pytest.mark.browser
SIZES = pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["desk", "phone"])


@SIZES
def test_the_site_is_disarmed_for_an_hour_and_armed_again(
    house: House, visit: Callable[..., Page], width: int, scheme: str
) -> None:
    page = visit("/", width=width, height=900, scheme=scheme)
    quiet = page.locator("#arming")
    expect(quiet.locator(".pill").first).to_have_text("armed")
    quiet.locator("summary").click()
    quiet.get_by_label("Profile").select_option("disarmed")
    quiet.get_by_label("Until").select_option(label="1 h")
    quiet.get_by_label("Why").fill("cleaners")
    shot(page, f"quiet-open-{width}")
    quiet.get_by_role("button", name="Apply").click()
    expect(quiet.locator("summary")).to_contain_text("disarmed")
    expect(quiet.locator("summary")).to_contain_text("cleaners")
    expect(quiet.locator("summary")).to_contain_text("then armed")
    shot(page, f"quiet-disarmed-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    (row,) = ArmingStore(house.site.db).rows
    assert row.until_t is not None
    quiet.locator("summary").click()
    quiet.get_by_role("button", name="As the site file says").click()
    expect(quiet.locator(".pill").first).to_have_text("armed")
    assert ArmingStore(house.site.db).rows == ()


@SIZES
def test_a_rule_is_paused_on_its_camera_s_page_and_the_alerts_page_says_so(
    house: House, visit: Callable[..., Page], width: int, scheme: str
) -> None:
    page = visit("/cameras/gate", width=width, height=900, scheme=scheme)
    page.get_by_text("Pause…").click()
    form = page.locator("details.arming form")
    form.get_by_label("What").select_option("intruder")
    form.get_by_label("For").select_option(label="15 min")
    form.get_by_label("Why").fill("painters")
    form.get_by_role("button", name="Pause", exact=True).click()
    paused = page.locator("[data-swap=arming]")
    expect(paused).to_contain_text("gate, intruder")
    expect(paused).to_contain_text("painters")
    shot(page, f"quiet-camera-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{house.url}/")
    expect(page.locator("#arming summary")).to_contain_text("gate, intruder paused")
    page.goto(f"{house.url}/cameras/gate")
    paused.get_by_role("button", name="End the pause").click()
    expect(paused).not_to_contain_text("painters")
    assert ArmingStore(house.site.db).rows == ()
