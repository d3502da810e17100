"""Pages in a real browser: each stays live, is silent, and does what its buttons say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.broker.nats_connection import LinkState
from appliance.config import SiteConfig
from appliance.types import CameraState
from tests.browser.conftest import House
from tests.support.dashboard_site import Site, config_of, furnished, running
from tests.support.waiting import tasks_a_core

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
_PAINTED = """() => {
  const canvas = document.getElementById('overlay');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let [left, right] = [canvas.width, -1];
  for (let i = 3; i < data.length; i += 4) if (data[i]) {
    const x = ((i - 3) / 4) % canvas.width;
    left = Math.min(left, x); right = Math.max(right, x);
  }
  return right < 0 ? null : [left / canvas.width, right / canvas.width];
}"""


def until(page: Page, condition: str, deadline_s: float = 120.0) -> None:
    """Wait until a JavaScript expression holds. (Playwright's own way needs `unsafe-eval`; no page here allows it.)"""
    end, pause_ms = time.monotonic() + deadline_s, 20
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never came true: {condition}"
        page.wait_for_timeout(pause_ms)
        pause_ms = min(2 * pause_ms, 160)


def live(page: Page) -> None:
    """Wait until the event stream is connected."""
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")


@pytest.mark.parametrize("median_s", [10.0, pytest.param(0.5, marks=pytest.mark.slow)], ids=["busy", "quiet machine"])
def test_a_new_alert_slides_in_within_half_a_second_and_cards_make_room_as_one_likes(
    visit: Visit, house: House, median_s: float
) -> None:
    page = visit("/")
    live(page)
    took = []
    for n in range(5):
        began = time.monotonic()
        house.site.raise_alert(f"new{n}", house.t0 + 10 + n, seconds=None)
        page.wait_for_selector(f"#a-new{n}")
        took.append(time.monotonic() - began)
    assert statistics.median(took) < max(median_s, 0.5 * tasks_a_core()), took
    assert page.locator(".card").first.get_attribute("data-id") == "new4"
    assert "New alert" in page.inner_text("#notice")
    for reduced, moving in (("no-preference", True), ("reduce", False)):  # cards make room gently, or not at all
        page.emulate_media(reduced_motion=reduced)
        page.evaluate("document.getAnimations().forEach((each) => each.finish())")
        page.evaluate("""() => {
          window.moved = false;
          const animate = Element.prototype.animate;
          Element.prototype.animate = function (...how) { window.moved = true; return animate.apply(this, how); };
        }""")
        house.site.raise_alert(f"new-{reduced}", house.t0 + 20, seconds=None)
        page.wait_for_selector(f"#a-new-{reduced}")
        assert page.evaluate("window.moved") is moving


def test_a_card_changes_when_its_verdict_lands_and_a_rejected_one_is_behind_its_link(
    visit: Visit, house: House
) -> None:
    asked, other = (house.site.raise_alert(name, house.t0 + 10, seconds=1.0) for name in ("asked", "other"))
    page = visit("/")
    live(page)
    expect(page.locator("#a-asked")).to_contain_text("Unverified")
    house.site.answer(asked, "unsure")
    expect(page.locator("#a-asked")).to_contain_text("Unsure")
    assert page.locator("#a-asked").count() == 1
    expect(page.locator("#to-review")).to_have_text("3 to review")
    house.site.answer(other, "rejected")
    expect(page.locator("#a-other")).to_have_count(0)
    expect(page.locator("#to-review")).to_have_text("2 to review · 1 rejected")
    page.reload()
    expect(page.locator("#a-walker")).to_be_visible()
    expect(page.locator("#a-other")).to_have_count(0)
    page.locator("#to-review a", has_text="1 rejected").click()
    expect(page.locator("#a-other")).to_contain_text("Rejected")
    expect(page.locator("#a-walker")).to_have_count(0)


def test_the_first_page_has_the_savings_and_what_a_detector_found_again_is_not_green(
    visit: Visit, house: House
) -> None:
    house.site.answer(house.site.raise_alert("dog", house.t0 + 10, seconds=1.0), "confirmed", engine="redetect")
    page = visit("/")
    expect(page.locator("#headline")).to_contain_text("99.96 %")
    expect(page.locator("#a-walker .chip.good")).to_have_text("Confirmed")
    expect(page.locator("#a-dog .chip")).to_have_text("Rechecked")
    expect(page.locator("#a-dog .chip.good")).to_have_count(0)
    page.goto(f"{house.url}/alerts/dog")
    expect(page.locator("#verdict")).to_contain_text("a second detection, not a language model")
    expect(page.locator("#verdict")).to_contain_text("it cannot confirm")
    expect(page.locator("#verdict .chip.good")).to_have_count(0)
    page.goto(f"{house.url}/savings")
    expect(page.locator("main")).to_contain_text("150 kB")


def test_older_alerts_come_as_one_scrolls_and_news_do_not_move_what_is_being_read(visit: Visit, house: House) -> None:
    for n in range(120):
        house.site.raise_alert(f"old{n}", house.t0 - 1000 + n)
    page = visit("/")
    live(page)
    expect(page.locator(".card")).to_have_count(50)
    for count in (100, 121):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(page.locator(".card")).to_have_count(count)
    expect(page.locator("#older")).to_have_count(0)
    page.evaluate("scrollTo(0, 900)")
    house.site.raise_alert("new", house.t0 + 10, seconds=None)
    fresh = page.locator("#fresh")
    expect(fresh).to_have_text("1 new alert")
    assert page.evaluate("scrollY") == 900
    assert page.locator("#a-new").count() == 0
    taken_back = house.site.raise_alert("rejected", house.t0 + 11)
    expect(fresh).to_have_text("2 new alerts")
    house.site.answer(taken_back, "rejected")
    expect(fresh).to_have_text("1 new alert")
    fresh.click()
    expect(page.locator(".card").first).to_have_attribute("data-id", "new")
    page.set_viewport_size({"width": 360, "height": 30_000})  # it shows the end of the list, which fills by itself
    page.reload()
    expect(page.locator(".card")).to_have_count(122)
    expect(page.locator("#older")).to_have_count(0)


def test_what_a_long_list_lets_go_is_behind_older_alerts_again(visit: Visit, house: House) -> None:
    house.site.raise_alert("before", house.t0 - 1000)
    page = visit("/")
    live(page)
    page.evaluate("""() => {
      const last = document.querySelector("#cards > #a-before");
      for (let n = 0; n < 399; n++) {
        const card = last.cloneNode(true);
        Object.assign(card.dataset, { id: `old${n}`, t: Number(last.dataset.t) + 500 - n });
        card.id = `a-old${n}`;
        last.before(card);
      }
    }""")
    house.site.raise_alert("new", house.t0 + 10, seconds=None)
    expect(page.locator("#a-new")).to_be_visible()
    expect(page.locator("#a-before")).to_have_count(0)
    query = f"?before={house.t0 - 1000 + 500 - 397}~old397".replace("~", "%7E")
    assert (page.locator("#older").get_attribute("href") or "").endswith(query)
    page.locator("#older").scroll_into_view_if_needed()
    expect(page.locator("#a-before")).to_have_count(1)


def test_a_long_name_stands_below_the_words_and_a_wide_screen_has_two_columns(visit: Visit, house: House) -> None:
    house.site.raise_alert("second", house.t0 + 9)
    page = visit("/", width=390, height=844)
    lines = """() => {
      const [what, where] = ["strong", ".where"].map((each) => document.querySelector(`.card ${each}`));
      where.textContent = "loading-dock-north-ramp";
      const words = document.createRange();
      words.selectNodeContents(what);
      return words.getClientRects().length;
    }"""
    assert page.evaluate(lines) == 1, "broken inside a word"
    page.set_viewport_size({"width": 2560, "height": 1440})
    tops = page.evaluate("[...document.querySelectorAll('.card')].map((each) => each.getBoundingClientRect().top)")
    assert tops[0] == tops[1]


def test_a_long_name_makes_no_page_and_no_table_wider(browser: Browser, tmp_path: Path) -> None:
    config = config_of().model_dump(exclude_none=True)
    config["cameras"]["dock"] |= {
        "title": "Loading dock, north side, the entrance by the ramp", "zones": config["cameras"]["gate"]["zones"]
    }  # fmt: skip
    with furnished(tmp_path, {}, config=SiteConfig.model_validate(config)) as url:
        page = browser.new_page(locale="de")
        for path in ("/cameras/gate/settings", "/settings/adjoining", "/storage", "/agreement"):
            page.goto(url + path)
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
                tables = "[...document.querySelectorAll('.wide')].map(each => each.scrollWidth - each.clientWidth)"
                assert not any(page.evaluate(tables)), (path, width)
        page.close()


def test_reviewing_from_the_keyboard_while_the_tab_counts_what_is_to_review(visit: Visit, house: House) -> None:
    page = visit("/")
    live(page)
    expect(page).to_have_title("(1) Alerts · depot-7")
    house.site.raise_alert("second", house.t0 + 10, seconds=1.0)
    expect(page).to_have_title("(2) Alerts · depot-7")
    expect(page.locator("#a-second")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("f")
    expect(page.locator("#a-walker")).to_contain_text("False alarm")
    page.keyboard.press("u")
    expect(page.locator("#a-walker .review")).to_have_text("")
    expect(page).to_have_title("(2) Alerts · depot-7")
    page.keyboard.press("k")
    page.keyboard.press("r")
    expect(page.locator("#a-second")).to_contain_text("Reviewed")
    expect(page).to_have_title("(1) Alerts · depot-7")
    page.keyboard.press("Enter")
    page.wait_for_url("**/alerts/second")


def test_with_the_uplink_down_alerts_come_are_reviewed_by_keys_and_their_clip_plays(visit: Visit, house: House) -> None:
    house.site.link = LinkState(up=False, since=0.0, error="nothing answers there")
    page = visit("/")
    live(page)
    expect(page.locator("#link")).to_contain_text("nothing is lost")
    house.site.raise_alert("second", house.t0 + 9)
    expect(page.locator("#a-second")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.locator("#a-second")).to_have_attribute("data-review", "reviewed")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/alerts/walker")
    assert page.evaluate("document.getElementById('clip').play().then(() => true)")


def test_an_alerts_page_says_who_judged_and_takes_a_review_and_its_undoing(visit: Visit, house: House) -> None:
    page = visit("/alerts/walker")
    live(page)
    panel = page.locator("#verdict")
    expect(panel).to_contain_text("A person walks through the yard.")
    expect(panel).to_contain_text("a vision-language model")
    expect(panel.locator(".support li")).to_have_count(3)
    page.get_by_role("button", name="False alarm").click()
    expect(page.locator("#review strong")).to_have_text("False alarm")
    detail = house.site.alerts.get("walker")
    assert detail is not None
    assert detail.row.reviewed.review == "false_alarm"
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Mark reviewed")).to_be_visible()


def test_boxes_are_those_of_the_best_frame_and_of_the_clip_as_it_is_sought_and_played(
    visit: Visit, house: House
) -> None:
    page = visit("/alerts/walker")
    until(page, "document.getElementById('clip').readyState >= 2")
    start, still = (float(page.locator("#clip").get_attribute(name) or "nan") for name in ("data-start", "data-still"))
    stage = page.locator("#stage").bounding_box()
    assert stage is not None
    wide = stage["height"] * 4 / 3 / stage["width"]  # a 4:3 picture in a 16:9 stage

    def box_begins(t: float, within: float) -> str:
        left = (1 - wide) / 2 + (0.05 + 0.1 * (t - house.t0)) * wide
        return f"(() => {{ const p = ({_PAINTED})(); return p && Math.abs(p[0] - {left}) < {within} }})()"

    on_still = box_begins(still, 0.02)
    until(page, on_still)
    page.evaluate("document.getElementById('clip').currentTime = 0.1")
    until(page, f"!{on_still}")
    page.get_by_role("button", name="Best picture").click()
    until(page, on_still)

    page.locator(".events button").first.click()  # which leaves the picture
    at = page.evaluate("document.getElementById('clip').currentTime")
    assert at == pytest.approx(house.alert.t_start - start, abs=0.01)
    places = []
    for seconds in (1.05, 2.15, 3.35):  # the frames of 2.1 and 3.3 lie between two looks
        page.evaluate("t => { document.getElementById('clip').currentTime = t }", seconds)
        until(page, "!document.getElementById('clip').seeking")
        until(page, box_begins(start + int(seconds * 10) / 10, 0.005))  # the film has ten frames a second
        places.append(page.evaluate(_PAINTED)[0])
    assert places == sorted(places)

    page.evaluate("document.getElementById('clip').play()")
    until(page, "document.getElementById('clip').currentTime > 4.35")
    assert page.evaluate(_PAINTED) is not None
    page.evaluate("document.getElementById('clip').pause()")
    page.get_by_label("Boxes").uncheck()
    assert page.evaluate(_PAINTED) is None


def test_a_clip_whose_boxes_do_not_come_is_played_all_the_same(window: BrowserContext, house: House) -> None:
    page = window.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.route("**/boxes.json", lambda route: route.abort())
    page.goto(f"{house.url}/alerts/walker")
    expect(page.locator("#stage .note")).to_have_text("The appliance does not answer.")
    expect(page.get_by_role("button", name="Full screen")).to_be_visible()
    needle = "document.querySelector('.needle').getAttribute('x1')"
    before = page.evaluate(needle)
    page.evaluate("document.getElementById('clip').currentTime = 2")
    until(page, f"{needle} !== '{before}'")
    assert faults == []


def test_a_wall_connects_where_the_browser_keeps_nothing(window: BrowserContext, house: House) -> None:
    page = window.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('', 'SecurityError') }})"
    )
    page.goto(f"{house.url}/live")
    page.get_by_label("Columns").select_option("2")
    assert len(page.evaluate("getComputedStyle(document.getElementById('wall')).gridTemplateColumns").split()) == 2
    stage = page.locator(".stage[data-name=gate]")
    stage.click()
    expect(stage).to_have_attribute("aria-expanded", "true")
    live(page)
    assert faults == []


def test_evidence_appears_when_it_is_cut(visit: Visit, house: House) -> None:
    alert = house.site.raise_alert("late", house.t0 + 4, seconds=1.0)
    page = visit("/alerts/late")
    live(page)
    expect(page.locator("#stage")).to_contain_text("The clip is cut as soon as")
    house.site.cut(alert)
    page.wait_for_selector("#clip")


def test_a_lost_camera_shows_at_once(visit: Visit, house: House) -> None:
    page = visit("/cameras")
    live(page)
    expect(page.locator("[data-camera=gate] .pill")).to_have_text("live")
    house.site.cameras.write_state(CameraState(camera="gate", state="lost", t=house.t0 + 9, reason="connection closed"))
    expect(page.locator("[data-camera=gate] .pill")).to_have_text("lost")
    expect(page.locator("[data-camera=gate]")).to_contain_text("connection closed")
    expect(page.locator("main .head")).to_contain_text("1 of 2 live")


def test_a_camera_without_a_frame_waits_quietly(visit: Visit, house: House) -> None:
    with house.site.db.transaction() as connection:
        connection.execute("DELETE FROM segment WHERE camera = 'dock'")
    page = visit("/cameras/dock")  # `visit` fails on any error in the console
    expect(page.locator(".stage .note")).to_have_text("Waiting for the first picture")


def test_the_live_frame_has_boxes_zones_and_lines_and_an_old_one_does_not_pass_for_live(
    visit: Visit, house: House
) -> None:
    page = visit("/static/vedette.svg")
    page.add_init_script("MediaSource = ManagedMediaSource = undefined")  # stills: video may begin or end at any moment
    page.goto(f"{house.url}/cameras/gate")
    page.wait_for_selector(".stage[data-objects='1']")
    colours = """() => {
      const c = document.querySelector('.stage canvas');
      const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    with_all = page.evaluate(colours)
    page.get_by_label("Zones and lines").uncheck()
    with_boxes = page.evaluate(colours)
    page.get_by_label("Boxes").uncheck()
    assert page.evaluate(colours) < with_boxes < with_all

    later = [60.0]  # seconds after the picture's own time; changed, as a route under way cannot be taken back

    def answer(route: Route) -> None:
        date = formatdate(house.t0 + 8 + later[0], usegmt=True)
        got = route.fetch()
        route.fulfill(response=got, headers={**got.headers, "date": date})

    page.route("**/picture", answer)  # the same picture, asked for a minute later
    expect(page.locator(".stage .note")).to_be_visible()
    expect(page.locator(".stage .note")).to_contain_text("Last picture")
    later[0] = 2.0
    expect(page.locator(".stage .note")).to_be_hidden()


def test_hostile_strings_stay_strings(visit: Visit, house: House) -> None:
    page = visit("/")
    live(page)
    alert = house.site.raise_alert("evil", house.t0 + 4, rules=(SCRIPT,), labels=(SCRIPT,), seconds=1.0)
    house.site.cut(alert)
    house.site.answer(alert, reason=SCRIPT)
    expect(page.locator("#a-evil")).to_contain_text("document.title=")
    for path in ("", "/alerts/evil", "/cameras/gate"):
        if path:
            page.goto(house.url + path)
            live(page)
        expect(page.locator("main")).to_contain_text("document.title=")
        assert page.title() != "owned"
        assert page.locator("main script, main img[src=x]").count() == 0


def test_signing_in_and_out(browser: Browser, tmp_path: Path) -> None:
    site = Site(tmp_path, SystemClock(), config=config_of(token="open sesame, please"))
    with running(site.serve()) as url, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}/savings?since=all")
        page.get_by_label("Token").fill("guess")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#wrong")).to_contain_text("not the token")
        page.get_by_label("Token").fill("open sesame, please")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/savings?since=all")
        live(page)
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/login")
    site.close()
