"""Finding and reviewing many alerts in a real browser, by mouse and by keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.store.reviews import ReviewStore
from appliance.types import Event
from tests.browser.conftest import House

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

from tests.browser.test_pages import live, until

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]


@pytest.fixture
def five(house: House) -> House:
    for n in range(4):
        house.site.raise_alert(f"a{n}", house.t0 + 10 + n, seconds=1.0)  # the list: a3 a2 a1 a0 walker
    return house


def reviews(house: House) -> dict[str, str | None]:
    return {row.alert.id: row.reviewed.review for row in house.site.alerts.page()}


def test_several_are_chosen_by_mouse_reviewed_at_once_deleted_and_taken_back_everywhere(
    visit: Visit, five: House
) -> None:
    page, other = visit("/"), visit("/")
    live(page)
    live(other)
    expect(page.locator("#bulk")).to_be_hidden()
    page.locator("#a-a3 .pick input").click()
    page.locator("#a-a1 .pick input").click(modifiers=["Shift"])
    expect(page.locator("#bulk-count")).to_have_text("3 chosen")
    page.locator("#bulk button", has_text="False alarm").click()
    for each in (page, other):
        for name in ("a3", "a2", "a1"):
            expect(each.locator(f"#a-{name} .review")).to_have_text("False alarm")
    expect(page.locator("#bulk")).to_be_hidden()
    assert reviews(five) == {"a3": "false_alarm", "a2": "false_alarm", "a1": "false_alarm", "a0": None, "walker": None}
    page.locator("#a-a3 .pick input").check()
    page.locator("#a-a1 .pick input").check()
    page.locator("#bulk summary").click()
    page.locator("#bulk input[name=reason]").fill("leaves")
    page.keyboard.press("Enter")
    for each in (page, other):
        expect(each.locator("#a-a3")).to_have_count(0)
        expect(each.locator("#a-a1")).to_have_count(0)
        expect(each.locator("#a-a2")).to_be_visible()
    assert five.site.alerts.get("a1").row.reviewed.deleted_why == "leaves"  # type: ignore[union-attr]
    expect(page.locator("#undo")).to_contain_text("2 deleted")
    page.locator("#undo button").click()
    for each in (page, other):
        expect(each.locator("#a-a3")).to_be_visible()
        expect(each.locator("#a-a1")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_by_keys_alone(visit: Visit, five: House, width: int) -> None:
    page = visit("/", width=width)
    live(page)
    for key in ("j", "x", "j", "j", "X", "x"):  # a3 chosen, up to a1, and a1 left out again
        page.keyboard.press(key)
    expect(page.locator("#bulk-count")).to_have_text("2 chosen")
    page.keyboard.press("r")
    expect(page.locator("#a-a2 .review")).to_have_text("Reviewed")
    until(page, "document.getElementById('bulk').hidden")
    assert reviews(five) == {"a3": "reviewed", "a2": "reviewed", "a1": None, "a0": None, "walker": None}
    page.keyboard.press("x")
    page.keyboard.press("Escape")
    expect(page.locator("#bulk")).to_be_hidden()
    page.keyboard.press("f")  # of the card that has the focus
    expect(page.locator("#a-a1 .review")).to_have_text("False alarm")
    page.locator("#a-a0 .pick input").check()
    ReviewStore(five.site.db).review(["a0"], "reviewed", five.t0)
    expect(page.locator("#a-a0 .review")).to_have_text("Reviewed")
    expect(page.locator("#a-a0 .pick input")).to_be_checked()  # the choice outlasts a change of the card


def test_what_is_searched_for_is_a_link_and_stays_live(visit: Visit, five: House) -> None:
    page = visit("/")
    live(page)
    page.keyboard.press("/")
    page.keyboard.type("courier")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?text=courier")
    expect(page.locator("#empty")).to_contain_text("No alert fits")
    live(page)
    five.site.answer(five.site.raise_alert("late", five.t0 + 15, seconds=1.0), reason="A courier at the door.")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator("#a-late")).to_be_visible()


def test_a_day_is_chosen_and_kept_in_the_link(visit: Visit, five: House) -> None:
    page = visit("/")
    page.locator("summary", has_text="More filters").click()
    page.locator("input[name=from]").fill("2999-01-01")
    page.wait_for_url("**/?from=2999-01-01")
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator("input[name=from]")).to_have_value("2999-01-01")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_filter_is_kept_under_a_name_and_forgotten(visit: Visit, five: House) -> None:
    page = visit("/?text=courier")
    page.locator("summary", has_text="Saved filters").click()
    page.locator("#saved-form [name=name]").fill("Couriers")
    page.locator("#saved-form button").click()
    page.goto(five.url)
    page.locator("summary", has_text="Saved filters").click()
    page.get_by_role("link", name="Couriers").click()
    page.wait_for_url("**/?text=courier")
    page.locator("summary", has_text="Saved filters").click()
    expect(page.get_by_role("link", name="Couriers")).to_have_attribute("aria-current", "page")
    page.locator("#saved-list button").click()
    expect(page.get_by_role("link", name="Couriers")).to_have_count(0)
    expect(page.locator("#saved-none")).to_be_visible()


def test_a_note_is_written_and_is_on_the_card(visit: Visit, five: House) -> None:
    page, other = visit("/alerts/walker"), visit("/")
    live(page)
    live(other)
    expect(page.locator("#note-form button")).to_be_hidden()
    page.locator("#note-text").fill("the postman")
    page.locator("#note-form button").click()
    expect(page.locator("#note-form button")).to_be_hidden()
    expect(other.locator("#a-walker .noted")).to_have_text("the postman")
    page.locator("#note-text").fill("the postman, agai")
    ReviewStore(five.site.db).review(["walker"], "reviewed", five.t0)  # the page is refreshed
    expect(page.locator("#review strong")).to_have_text("Reviewed")
    expect(page.locator("#note-text")).to_have_value("the postman, agai")
    with page.expect_event("dialog") as asked:
        page.evaluate("setTimeout(() => document.querySelector('#newer[href], #older[href]').click())")
    assert asked.value.type == "beforeunload", "what is written is not lost without a question"
    asked.value.dismiss()
    expect(page.locator("#note-text")).to_have_value("the postman, agai")
    page.locator("#note-text").fill("the postman")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_alert_of_a_page_is_deleted_and_taken_back(visit: Visit, five: House, width: int) -> None:
    page = visit("/alerts/walker", width=width)
    live(page)
    page.locator("#remove summary").click()
    page.locator("#remove input").fill("nobody there")
    page.locator("#remove button").click()
    expect(page.locator("#gone")).to_contain_text("nobody there")
    page.locator("#restore").click()
    expect(page.locator("#gone")).to_be_hidden()
    expect(page.locator("#remove summary")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_folded_event_seeks_the_clip(visit: Visit, five: House) -> None:
    alert = five.site.raise_alert(
        "crowd", five.t0 + 3, seconds=3.0, tracks=tuple(range(1, 21)),
        events=[
            Event(camera="gate", rule="intruder", kind="enter", track=n, label="person", t=five.t0 + 3 + n / 10,
                  score=0.8, box=(0.3, 0.4, 0.4, 0.8), zone="yard") for n in range(1, 21)
        ],
    )  # fmt: skip
    five.site.cut(alert)
    page = visit("/alerts/crowd")
    live(page)
    expect(page.locator(".events button").first).to_be_hidden()
    page.locator("summary", has_text="20 × person entered yard").click()
    page.locator(".events button", has_text="person 20").click()
    until(page, "document.getElementById('clip').currentTime > 1")
    expect(page.locator("#more-tracks")).to_be_hidden()


def test_the_clip_plays_while_a_mouse_rests_on_its_card_unless_one_wants_little_motion(
    visit: Visit, five: House
) -> None:
    page = visit("/")
    live(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#a-walker .words").hover()
    until(page, "(document.querySelector('#a-walker .shot video')?.currentTime ?? 0) > 0.2")
    assert sum("clip.mp4" in url for url in asked) > 0
    page.locator("#a-a0 .words").hover()
    expect(page.locator("video")).to_have_count(0)
    page.locator("#a-walker .open").focus()
    page.keyboard.press("p")
    expect(page.locator("#a-walker video")).to_have_count(1)
    page.keyboard.press("p")
    expect(page.locator("video")).to_have_count(0)
    page.emulate_media(reduced_motion="reduce")
    page.locator("#a-a0 .words").hover()
    page.locator("#a-walker .words").hover()
    page.wait_for_timeout(800)
    expect(page.locator("video")).to_have_count(0)
