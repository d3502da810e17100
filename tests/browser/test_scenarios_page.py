"""Keeping an alert from its page, and the page of what was kept, in a real browser, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.store.reviews import ReviewStore
from tests.browser.conftest import House
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SIZES = {"phone": (360, 780), "desk": (1280, 800)}


def fits(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "scrolls sideways"
    tops = "[...document.querySelectorAll('.top nav a')].map((each) => each.getBoundingClientRect().height)"
    assert max(page.evaluate(tops)) < 45, "a word of the navigation is broken over two lines"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SIZES)
def test_an_alert_is_reviewed_kept_listed_and_deleted(visit: Visit, house: House, device: str, scheme: str) -> None:
    width, height = SIZES[device]
    house.site.record("gate", house.t0 + 8)
    page = visit("/alerts/walker", width=width, height=height, scheme=scheme)
    panel = page.locator("#keep")
    expect(panel).to_contain_text("Review it first")
    expect(panel.locator("form")).to_have_count(0)
    shot(page, f"alert-open-{device}-{scheme}")

    page.get_by_role("button", name="Mark reviewed").click()
    expect(panel).to_contain_text("You reviewed it as right: its event must come again")
    panel.locator("summary").click()
    expect(panel).to_contain_text("personal data")
    panel.get_by_label("Name").fill("The Postman, à midi")
    panel.get_by_label("Note").fill("walks by on the left")
    fits(page, width)
    shot(page, f"alert-form-{device}-{scheme}")
    panel.get_by_role("button", name="Keep as scenario").click()
    expect(panel).to_contain_text("Kept as the-postman-a-midi")
    expect(panel).to_contain_text(str(house.site.root / "scenarios" / "the-postman-a-midi"))
    expect(page.locator("#notice")).to_have_text("Kept as the-postman-a-midi")
    fits(page, width)
    shot(page, f"alert-kept-{device}-{scheme}")

    page.locator("#menu summary").click()
    page.get_by_role("link", name="Scenarios").click()
    page.wait_for_url("**/scenarios")  # and until its script has run, which listens to the clicks
    card = page.locator("[data-name=the-postman-a-midi]")
    expect(card).to_contain_text("walks by on the left")
    expect(card.locator(".chip")).to_have_text("Rightly reported")
    expect(page.locator("main")).to_contain_text("personal data")
    fits(page, width)
    shot(page, f"scenarios-{device}-{scheme}")
    card.get_by_role("button", name="Delete").click()
    expect(card.get_by_role("button")).to_have_text("Delete for good")
    assert (house.site.root / "scenarios" / "the-postman-a-midi").is_dir(), "one click deletes nothing"
    page.locator("h1").click()
    expect(card.get_by_role("button")).to_have_text("Delete")
    card.get_by_role("button").click()
    card.get_by_role("button").click()
    expect(page.locator("main")).to_contain_text("No scenario is kept yet")
    assert not (house.site.root / "scenarios" / "the-postman-a-midi").exists()
    shot(page, f"scenarios-empty-{device}-{scheme}")


def test_what_cannot_be_kept_says_why_beside_the_button(browser: object, visit: Visit, house: House) -> None:
    ReviewStore(house.site.db).review(["walker"], "false_alarm", house.t0)
    for name in ("segments", "evidence"):
        (house.site.root / name).rename(house.site.root / f"{name}-elsewhere")
    page = house_page(browser, house)
    panel = page.locator("#keep")
    expect(panel).to_contain_text("You called it a false alarm: its event must never come again")
    panel.locator("summary").click()
    panel.get_by_role("button").click()
    expect(panel.get_by_role("alert")).to_contain_text("neither the recording (storage.keep_hours) nor")
    expect(panel.get_by_role("button")).to_be_enabled()
    page.context.close()


def house_page(browser: object, house: House) -> Page:
    """Without the watch on errors: here some are meant to come."""
    page: Page = browser.new_context().new_page()  # type: ignore[attr-defined]
    page.goto(house.url + "/alerts/walker")
    return page


def test_a_form_that_is_being_filled_in_is_not_taken_away(visit: Visit, house: House) -> None:
    ReviewStore(house.site.db).review(["walker"], "reviewed", house.t0)
    page = visit("/alerts/walker")
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.locator("#keep summary").click()
    page.locator("#keep-form").get_by_label("Note").fill("half a sent")
    house.site.answer(house.site.raise_alert("other", house.t0 + 9))
    with house.site.db.transaction() as connection:  # the alert changes in another respect
        rev = house.site.db.next_rev(connection)
        connection.execute("UPDATE alert SET score = 0.99, rev = ? WHERE id = 'walker'", (rev,))
    expect(page.locator("#about")).to_contain_text("99 %")
    expect(page.locator("#keep-form").get_by_label("Note")).to_have_value("half a sent")
