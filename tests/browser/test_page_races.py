"""What a page's scripts do when answers come late, in another order, or while somebody acts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from appliance.store.reviews import ReviewStore
from appliance.types import CameraState
from tests.browser.conftest import House

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser.test_pages import live, until

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]


class Held:
    """The first request to `url` by a script: answered as things were when it came, but not before `release`."""

    def __init__(self, page: Page, url: str | Callable[[str], bool]) -> None:
        self._page = page
        self._came = False
        self._held: list[tuple[Route, APIResponse]] = []
        page.route(url, self._take)

    def _take(self, route: Route) -> None:
        if self._came or route.request.resource_type != "fetch":
            route.fallback()
        else:
            self._came = True  # the second one may come while the first is being fetched
            self._held.append((route, route.fetch()))

    def wait(self) -> None:
        """Until it came."""
        while not self._held:
            self._page.wait_for_timeout(20)

    def release(self) -> None:
        route, answer = self._held[0]
        route.fulfill(response=answer)


def test_the_answer_that_was_asked_for_last_stands_and_keeps_focus_and_place(visit: Visit) -> None:
    page = visit("/alerts/walker")
    shown = page.evaluate("""async () => {
        const { reload, swap } = await import("/static/page.js");
        const [first, second] = [await reload(), await reload()];
        first.querySelector("#about h2").textContent = "old";
        second.querySelector("#about h2").textContent = "new";
        swap(second, "#about");
        swap(first, "#about");
        return document.querySelector("#about h2").textContent;
    }""")
    assert shown == "new"
    found = page.evaluate("""async () => {
        const { reload, swap } = await import("/static/page.js");
        const part = document.getElementById("verdict");
        Object.assign(part.style, { maxHeight: "60px", overflow: "auto" });
        part.scrollTop = 20;
        document.querySelector("#verdict button").focus({ preventScroll: true });
        const fresh = await reload();
        const [other] = fresh.querySelectorAll("#verdict");
        Object.assign(other.style, { maxHeight: "60px", overflow: "auto" });
        other.querySelector(".reason").textContent = "another one";
        swap(fresh, "#verdict");
        const now = document.getElementById("verdict");
        return [now !== part, now.contains(document.activeElement), now.scrollTop];
    }""")
    assert found == [True, True, 20]


def test_who_asks_while_it_runs_hears_of_a_run_that_began_later(visit: Visit) -> None:
    told = visit("/storage").evaluate("""async () => {
        const { coalesced } = await import("/static/page.js");
        const told = [];
        let runs = 0;
        const run = coalesced(async () => {
            const n = ++runs;
            await new Promise(done => setTimeout(done, 20));
            told.push(`run ${n}`);
        }, 10);
        const first = run().then(() => told.push("first heard"));
        const [second, third] = [run(), run()].map((asked, n) => asked.then(() => told.push(`${n + 2} heard`)));
        await Promise.all([first, second, third]);
        return told;
    }""")
    assert told == ["run 1", "first heard", "run 2", "2 heard", "3 heard"]


def test_a_review_during_a_refresh_ends_with_the_focus_on_what_takes_it_back(visit: Visit, house: House) -> None:
    page = visit("/alerts/walker")
    live(page)
    held = Held(page, "**/alerts/walker")
    ReviewStore(house.site.db).note("walker", "the postman", house.t0)
    held.wait()
    page.get_by_role("button", name="Mark reviewed").click()
    expect(page.locator("#notice")).to_have_text("Marked reviewed")
    held.release()
    expect(page.locator("#review button", has_text="Undo")).to_be_focused()


def test_who_went_on_while_a_review_was_saved_keeps_the_focus(visit: Visit) -> None:
    page = visit("/alerts/walker")
    held = Held(page, "**/alerts/walker")
    page.get_by_role("button", name="Mark reviewed").click()
    held.wait()
    page.locator("#menu summary").focus()
    held.release()
    expect(page.locator("#review strong")).to_have_text("Reviewed")
    page.wait_for_timeout(1000)  # a refresh that was asked for meanwhile runs 0.3 s later
    expect(page.locator("#menu summary")).to_be_focused()


def test_what_is_written_on_while_a_note_is_saved_stays(visit: Visit) -> None:
    page = visit("/alerts/walker")
    held = Held(page, "**/api/v1/alerts/walker/note")
    page.locator("#note-text").fill("the postman")
    page.locator("#note-form button").click()
    held.wait()
    page.locator("#note-text").fill("the postman, again")
    held.release()
    expect(page.locator("#notice")).to_have_text("Note saved")
    expect(page.locator("#note-text")).to_have_value("the postman, again")
    expect(page.locator("#note-form button")).to_be_visible()


def test_another_day_is_shown_at_once_while_one_is_being_read(visit: Visit) -> None:
    page = visit("/cameras/gate/timeline")
    page.locator("#timeline[data-loaded]").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/timeline?from=" in request.url else None)
    held = Held(page, lambda url: "/timeline?from=" in url)
    page.get_by_role("button", name="The day before").click()
    held.wait()
    page.get_by_role("button", name="The day before").click()
    held.release()
    page.locator("#timeline[data-loaded]").wait_for()
    assert len(asked) == 2, "it says that it has loaded a day of which it has not asked"
    assert page.locator("#timeline").get_attribute("data-loaded") in asked[1]


def test_a_day_that_did_not_come_is_asked_for_again(visit: Visit) -> None:
    page = visit("/cameras/gate/timeline")
    page.clock.install()
    page.reload()
    page.locator("#timeline[data-loaded]").wait_for()
    page.route(lambda url: "/timeline?from=" in url, lambda route: route.fulfill(body="what is no answer"))
    page.get_by_role("button", name="The day before").click()
    expect(page.locator("#pulse")).to_have_attribute("data-state", "lost")
    page.unroute_all()
    page.clock.fast_forward(20_000)
    page.locator("#timeline[data-loaded]").wait_for()


def test_the_address_names_the_moment_that_was_chosen_last(visit: Visit, house: House) -> None:
    page = visit(f"/cameras/gate/timeline?t={house.t0 + 3:.1f}")
    page.locator("#timeline[data-loaded]").wait_for()
    for _ in range(3):
        page.locator(".strip canvas").press("ArrowLeft")
    page.wait_for_url(f"**/timeline?t={house.t0 - 27:.1f}", timeout=5_000)
    assert (page.locator("#why").get_attribute("href") or "").endswith(f"t={house.t0 - 27:.1f}")


def test_one_refresh_that_fails_is_not_told_for_ever(visit: Visit, house: House) -> None:
    page = visit("/")
    live(page)
    page.evaluate("[window.kept, window.fetch] = [fetch, () => Promise.reject(new Error('no answer'))]")
    house.site.cameras.write_state(CameraState(camera="gate", state="lost", t=house.t0))
    expect(page.locator("#pulse")).to_have_attribute("data-state", "lost")
    page.evaluate("void (window.fetch = window.kept)")
    house.site.cameras.write_state(CameraState(camera="gate", state="live", t=house.t0 + 1))
    live(page)


def test_what_came_of_a_cut_is_not_taken_away_by_the_next_redraw(visit: Visit, house: House) -> None:
    page = visit(f"/cameras/gate/timeline?t={house.t0 + 3:.1f}")
    page.locator("#timeline[data-loaded]").wait_for()
    page.route(lambda url: "/recording?" in url, lambda route: route.fulfill(body="what is no answer"))
    page.get_by_role("button", name="Begin here").click()
    page.locator(".strip canvas").press("ArrowRight")
    page.get_by_role("button", name="End here").click()
    page.get_by_role("button", name="Download MP4").click()
    expect(page.locator("#cut-words")).to_contain_text("JSON")
    page.evaluate(
        "new Promise(done => (dispatchEvent(new Event('resize')), requestAnimationFrame(() => setTimeout(done))))"
    )
    assert "JSON" in page.locator("#cut-words").inner_text()


def test_counts_of_before_are_asked_for_once_more(visit: Visit, house: House) -> None:
    page = visit("/")
    live(page)
    made: list[str] = []

    def behind(route: Route) -> None:
        if route.request.resource_type != "fetch" or len(made) > 1:
            route.fallback()
            return
        answer = route.fetch()
        made.append(answer.text().replace('id="to-review">', 'id="to-review" data-soon>old '))
        route.fulfill(response=answer, body=made[-1])

    page.route(f"{house.url}/", behind)
    house.site.cameras.write_state(CameraState(camera="gate", state="lost", t=house.t0))
    until(page, "'soon' in document.getElementById('to-review').dataset")
    expect(page.locator("#to-review")).not_to_contain_text("old")
