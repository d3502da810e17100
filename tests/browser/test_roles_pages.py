"""Nobody is shown a button or a link that answers 403: every page, as each role, everything on it pressed."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from appliance.dashboard.access_rights import RIGHTS
from appliance.dashboard.schemas import API
from appliance.types.accounts import Role
from tests.support.dashboard_site import PASSWORD, furnished
from tests.support.waiting import until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, Page, Request, Response, Route

pytestmark = pytest.mark.browser
USERS: dict[str, tuple[Role, tuple[str, ...] | None]] = {
    "vic": ("viewer", None), "gatevic": ("viewer", ("gate",)), "rita": ("reviewer", None),
    "gatehouse": ("reviewer", ("gate",)), "anna": ("admin", None),
}  # fmt: skip
SLOW = pytest.mark.slow
SEEN_BY_ALL, SEEN_BY_SOME = 11, 8  # pages at least

# Each button pressed twice (some ask once more), each form sent with something in it, each key of the pages.
PRESS_ALL = """
async () => {
  const turn = () => new Promise((done) => setTimeout(done, 0));
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const fields = document.querySelectorAll("input[type=text], input:not([type]), textarea");
  for (const field of fields) field.value ||= "words";
  document.querySelector(".card .open")?.focus();
  for (const key of ["x", "X", "r", "f", "u", "p", "i", "o"]) {
    (document.activeElement || document.body).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await turn();
  }
  for (let round = 0; round < 2; round += 1)
    for (const button of document.querySelectorAll("button:not(#leave)")) {
      button.click();
      await turn();
    }
  for (const form of document.querySelectorAll("form")) {
    form.requestSubmit();
    await turn();
  }
}
"""


class Walker:
    """One user's browser: which answers were 403, and which are still awaited."""

    def __init__(self, browser: Browser, url: str, name: str) -> None:
        self._context = browser.new_context(base_url=url, service_workers="block")
        signed_in = self._context.request.post("/login", data={"name": name, "password": PASSWORD})
        assert signed_in.ok
        self.refused: list[str] = []
        self._awaited: set[Request] = set()

    def press_everything(self, path: str) -> list[str]:
        """Open a page, press all that is on it; returns where its links lead."""
        page: Page = self._context.new_page()
        page.on("dialog", lambda dialog: dialog.accept())
        page.on("request", self._asked)
        page.on("response", self._answered)
        page.on("requestfailed", self._over)
        page.on("requestfinished", self._over)
        page.goto(path)
        page.route("**/*", self._stay)
        page.wait_for_load_state("load")
        links: list[str] = page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.href)")
        page.evaluate(PRESS_ALL)
        until(lambda: page.wait_for_timeout(1) or not self._awaited, what=f"answers on {path}: {self._awaited}")
        page.close()
        return [urlsplit(each).path for each in links if each.startswith("http")]

    def follow(self, path: str) -> None:
        if self._context.request.get(path, headers={"Accept": "text/html"}).status == 403:
            self.refused.append(f"a link to {path}")

    def close(self) -> None:
        self._context.close()

    def _stay(self, route: Route) -> None:
        """What would lead away from the page does not."""
        if route.request.is_navigation_request():
            route.fulfill(status=204)
        else:
            route.continue_()

    def _asked(self, request: Request) -> None:
        if request.method != "GET":  # live video and streams go on for ever, and links are followed one by one
            self._awaited.add(request)

    def _over(self, request: Request) -> None:
        self._awaited.discard(request)

    def _answered(self, response: Response) -> None:
        if response.status == 403:
            self.refused.append(f"{response.request.method} {response.url} on {response.frame.url}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A site with footage, alerts, faults and a user of each kind."""
    with furnished(tmp_path_factory.mktemp("roles"), USERS) as served:
        yield served


def pages() -> list[str]:
    """Every page that somebody opens, with the names of the site's things."""
    found = []
    for (method, path), right in RIGHTS.items():
        if method == "GET" and right.role is not None and not path.startswith((API, "/fragments", "/metrics")):
            states = ("open", "reviewed", "deleted") if "{alert_id}" in path else ("",)
            named = (
                path.replace("{name}", "gate").replace("{trial}", "none").replace("{form}", "storage")
            )  # a trial that is gone has a page, too
            found += [named.replace("{alert_id}", f"{state}-gate") for state in states]
    return found


@pytest.mark.parametrize(
    "name", ["gatehouse", *(pytest.param(each, marks=SLOW) for each in ("vic", "gatevic", "rita"))]
)
def test_no_button_and_no_link_answers_403(browser: Browser, url: str, name: str) -> None:
    admin = Walker(browser, url, "anna")
    assert admin._context.request.post(f"{API}/alerts/reviewed-gate/review", data={"review": "reviewed"}).ok
    assert admin._context.request.post(f"{API}/alerts/delete", data={"ids": ["deleted-gate"]}).ok
    admin.close()
    walker = Walker(browser, url, name)
    links: set[str] = set()
    walked = 0
    for path in pages():
        assert "{" not in path, "give this page's parameter a value in pages()"
        if walker._context.request.get(path, headers={"Accept": "text/html"}).status == 403:
            continue  # it is not for this user, so no link may lead there
        links |= set(walker.press_everything(path))
        walked += 1
    assert walked >= (SEEN_BY_ALL if USERS[name][1] is None else SEEN_BY_SOME)
    for link in sorted(links):
        walker.follow(link)
    walker.close()
    assert not walker.refused, "\n".join(sorted(set(walker.refused)))
