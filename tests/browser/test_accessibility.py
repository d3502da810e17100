"""Every page, narrow and wide, light and dark: axe-core must find nothing, and it loads whole and silently.

The pages are those that the dashboard's routes answer with HTML: a new one fails here until it is in `ADDRESSES`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
pytest.importorskip("axe_playwright_python", reason="axe-core comes with axe-playwright-python (dev extra)")
from playwright.sync_api import Browser, BrowserContext, Page

from appliance.base.clock import SystemClock
from appliance.canary.candidate_comparison import Judgement
from appliance.canary.proof_store import DifferingFrame, ProofReport, ProofStore
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.settings_forms import forms
from appliance.dashboard.trial_store import TriedEvent
from appliance.notify.message import AlertFinding, NotificationMessage, SnoozeLinks
from appliance.rules.arming import Arming
from appliance.settings.settings_service import SettingsService
from appliance.store.arming import ArmingStore
from appliance.store.health_events import HealthEventStore
from appliance.store.push_subscriptions import UsedLinkStore
from appliance.store.users import UserStore
from appliance.types import HealthEvent
from appliance.types.accounts import UserRow
from appliance.web.server import WebServer
from tests.browser.conftest import House, Watched
from tests.browser.test_pages import live
from tests.support.dashboard_site import PASSWORD, Site, config_of, password_hash, running
from tests.support.sample_trial import keep_trial
from tests.support.waiting import until

pytestmark = pytest.mark.browser
TRIAL, CODE = "0" * 16, "ABCD-2345"
VARIANTS = ((1440, "light"), (390, "dark"), (1440, "dark"), (390, "light"))
FOLLOWING = {"/", "/alerts/walker", "/cameras", "/cameras/gate", "/savings"}  # what happens, by a stream of events
EXPECTED = {"/nowhere": "404", "/setup": "403"}  # in the console: what is not there, and the worker of a later page
FORMS = [name for name in forms() if name != "camera"]
ADDRESSES: dict[str, tuple[str, ...]] = {
    "/": ("/", "/?camera=nowhere", "/?review=open"),
    "/access": ("/access",),
    "/account": ("/account",),
    "/agreement": ("/agreement",),
    "/alerts/{alert_id}": ("/alerts/walker", "/alerts/open-dock"),
    "/cameras": ("/cameras",),
    "/cameras/new": ("/cameras/new",),
    "/cameras/{name}": ("/cameras/gate",),
    "/cameras/{name}/edit": ("/cameras/gate/edit",),
    "/cameras/{name}/settings": ("/cameras/gate/settings",),
    "/cameras/{name}/timeline": ("/cameras/gate/timeline",),
    "/cameras/{name}/trials": ("/cameras/gate/trials",),
    "/cameras/{name}/trials/{trial}": (f"/cameras/gate/trials/{TRIAL}",),
    "/cameras/{name}/why": ("/cameras/gate/why",),
    "/live": ("/live",),
    "/login": ("/login",),
    "/models": ("/models",),
    "/notify": ("/notify",),
    "/proofs": ("/proofs",),
    "/savings": ("/savings", "/savings?since=all"),
    "/scenarios": ("/scenarios",),
    "/settings": ("/settings",),
    "/settings/adjoining": ("/settings/adjoining",),
    "/settings/{form}": tuple(f"/settings/{name}" for name in FORMS),
    "/setup": ("/setup",),
    "/shared/{token}": ("/shared/",),
    "/snooze/{token}": ("/snooze/",),
    "/storage": ("/storage",),
    "/system": ("/system", "/system?level=warning"),
    "/timeline": ("/timeline",),
    "/users": ("/users",),
    "the cover sheet": ("/cover.html",),
    "what is not there": ("/nowhere",),
}
"""By route: what is visited. Where a link leads is found when it is made."""


class WholeSite(Site):
    """A site with something behind each page, and an admin who is signed in."""

    def probes(self) -> CoreProbes:
        self.links = SnoozeLinks(self.root, "https://cams.example", UsedLinkStore(self.db))
        arming = Arming(self.config.arming, self.config.cameras, ArmingStore(self.db), self.clock, lambda t: (0, 0))
        return replace(super().probes(), snooze_links=self.links, arming=arming)

    def furnish(self) -> None:
        t0 = self.clock.now() - 20
        for camera in ("gate", "dock"):
            self.live(camera, t0)
            self.record(camera, t0)
            self.cut(self.raise_alert(f"open-{camera}", t0 + 2, camera=camera))
        alert = self.raise_alert("walker", t0 + 3, seconds=2.0)
        self.cut(alert)
        self.answer(alert)
        fault = HealthEvent(
            id="fault", camera="gate", kind="moved", t_start=t0, t_end=None, t=t0, reason="", recovery="", attempts=0,
            times=1,
        )  # fmt: skip
        HealthEventStore(self.db).put(fault)
        self.spend("gate", 420_000_000, 150_000)
        self._try(t0)

    def _try(self, t0: float) -> None:
        """Keep a trial that lost the alert, and a network that was tried."""
        event = TriedEvent(change="missing", rule="intruder", label="person", track=1, t=t0 + 3, moved_s=0)
        keep_trial(
            self.root, TRIAL, t0, "--- before\n+++ after\n-a: 1\n+a: 2",
            models=("a", "b"), events=[event], unread=["a segment could not be read"],
        )  # fmt: skip
        judged = Judgement("worse", ("it loses 9 of 9 objects",))
        differing = (DifferingFrame("gate", t0 + 3, "person", "old"),)
        ProofStore(self.root).put(ProofReport("yolox-s", t0, judged, ("a", "b"), 9, 60.0, 6.0, differing))


@dataclass
class Visit:
    """Pages opened by one who is signed in, or by a stranger, who has `links`: addresses by path."""

    url: str
    signed_in: BrowserContext
    stranger: BrowserContext
    links: dict[str, str]
    watched: list[Watched] = field(default_factory=list)

    def open(self, path: str, variant: tuple[int, str]) -> Page:
        context = self.stranger if path in self.links else self.signed_in
        page = context.pages[0] if context.pages else self._watch(context)
        show_as(page, variant)  # before it is drawn for the first time
        page.goto(self.links.get(path, self.url + path))
        page.wait_for_load_state("load")
        if path in FOLLOWING:
            live(page)
        return page

    def _watch(self, context: BrowserContext) -> Page:
        """A window, one for each person: another is another process."""
        watched = Watched(context.new_page())
        watched.listen()
        self.watched.append(watched)
        return watched.page

    def heard(self) -> list[str]:
        """What the pages said or did since the last call that must not happen."""
        said = [fault for each in self.watched for fault in each.faults]
        for each in self.watched:
            each.faults.clear()
        return said


@pytest.fixture
def whole(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    file = tmp_path / "site.yaml"
    config = config_of(public_url="https://cams.example").model_dump(exclude_none=True)
    config["notify"] = {"phone": {"kind": "webhook", "url": "http://127.0.0.1:9/x"}}
    site = WholeSite(tmp_path / "data", SystemClock(), SiteConfig.model_validate(config))
    site.furnish()
    UserStore(site.db).add(UserRow(name="anna", role="admin", cameras=None, password=password_hash()))
    file.write_text("site: {name: depot-7}\ncameras: {gate: {url: 'rtsp://a/b'}, dock: {url: 'rtsp://a/c'}}\n")
    settings = SettingsService(file, site.root, site.clock, lambda config: ())
    new = Site(tmp_path / "new", SystemClock())
    fresh = create_app(new.stored, new.config.for_dashboard(), settings=settings, setup_code=CODE)
    with running(site.serve(settings=settings)) as url, running(WebServer(fresh, "127.0.0.1", 0)) as setup:
        contexts = browser.new_context(), browser.new_context()
        login = {"name": "anna", "password": PASSWORD}
        assert contexts[0].request.post(f"{url}/login", data=login, headers={"Origin": url}).ok
        links = {"/login": f"{url}/login", "/setup": f"{setup}/setup", **links_of(site, contexts[0], url, tmp_path)}
        yield Visit(url, *contexts, links)
        for each in contexts:
            each.close()
    site.close()
    new.close()


def links_of(site: WholeSite, owner: BrowserContext, url: str, folder: Path) -> dict[str, str]:
    """Return where three pages are: of an export's link, of its cover sheet, of the link of a message."""
    headers = {"Origin": url}
    made = owner.request.post(f"{url}/api/v1/alerts/walker/export", data={"why": "insurer"}, headers=headers).json()
    item = f"{url}/api/v1/exports/{made['id']}"
    until(lambda: owner.request.get(item).json()["state"] == "ready", seconds=120)
    link = owner.request.post(f"{item}/link", data={}, headers=headers).json()["url"]
    (folder / "export.zip").write_bytes(owner.request.get(f"{item}/export.zip").body())
    with zipfile.ZipFile(folder / "export.zip") as packed:
        packed.extract("cover.html", folder)
    finding = AlertFinding("edge", ("intruder",), ("person",), 0.9)
    message = NotificationMessage(
        id="n1", alert="walker", site="depot-7", camera="gate", severity="alert", finding=finding, t=site.clock.now()
    )
    snooze = site.links.link("phone", message)
    return {
        "/shared/": link.replace("https://cams.example", url),
        "/snooze/": snooze.replace("https://cams.example", url),
        "/cover.html": (folder / "cover.html").as_uri(),
    }


def show_as(page: Page, variant: tuple[int, str]) -> None:
    width, scheme = variant
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]


def loaded_wrong(page: Page, variant: tuple[int, str]) -> list[str]:
    width, scheme = variant
    wrong = []
    if not page.locator("h1").first.is_visible():
        wrong.append("it has no heading")
    if page.evaluate("document.documentElement.scrollWidth") > width:
        wrong.append(f"it scrolls sideways at {width}")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    *parts, alpha = [*map(float, re.findall(r"[\d.]+", ground)), 1.0][:4]
    brightness = sum(parts) / 3 if alpha else 255  # the browser's own is white
    if brightness >= 60 if scheme == "dark" else brightness <= 200:
        wrong.append(f"its ground is {ground} where all is {scheme}")
    if page.locator("time").count() and "UTC" in page.inner_text("main"):
        wrong.append("a time is that of another place")
    return wrong


def found_by_axe(page: Page, variants: Sequence[tuple[int, str]] = VARIANTS[:1]) -> list[str]:
    """Each fault in any of these widths and schemes, with the first elements that have it."""
    found: dict[str, None] = {}
    axe = (files("axe_playwright_python") / "axe.min.js").read_text()
    for width, scheme in variants:
        show_as(page, (width, scheme))
        page.evaluate(axe)
        outcome: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations'], selectors: false})")
        for each in outcome["violations"]:
            where = [node["html"][:120] for node in each["nodes"][:3]]
            found[f"{each['id']} ({each['impact']}): {each['help']}: {where} at {width} {scheme}"] = None
    return list(found)


def test_every_page_of_the_dashboard_is_looked_at(tmp_path: Path) -> None:
    site = Site(tmp_path, SystemClock())
    routes = [route for route in site.app().routes if isinstance(route, APIRoute)]
    site.close()
    pages = {
        route.path for route in routes
        if route.response_class is HTMLResponse
        and "GET" in route.methods and not route.path.startswith("/fragments/")
    }  # fmt: skip
    assert len(pages) > 30
    assert pages == {route for route in ADDRESSES if route.startswith("/")}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("each_has", [1, pytest.param(len(VARIANTS), marks=pytest.mark.slow)], ids=("in-turn", "all"))
def test_axe_finds_nothing_and_a_page_loads_whole(whole: Visit, each_has: int) -> None:
    """The usual run looks at one page of each template, in one variant, and the next in the next; the slow one at all
    in all. Pages of one variant follow each other, so that few are drawn in two sizes."""
    faults = {}
    most = 1 if each_has == 1 else None
    visited = [path for paths in ADDRESSES.values() for path in paths[:most]]
    for first in range(len(VARIANTS)):
        variants = [VARIANTS[(first + more) % len(VARIANTS)] for more in range(each_has)]
        for path in visited[first :: len(VARIANTS)]:
            page = whole.open(path, variants[0])
            found = loaded_wrong(page, variants[0]) + found_by_axe(page, variants)
            if path == "/":  # which people open on a phone, too
                show_as(page, VARIANTS[1])
                found += loaded_wrong(page, VARIANTS[1])
            said = whole.heard()
            if found := found + [each for each in said if EXPECTED.get(path, "nothing") not in each]:
                faults[path] = found
    assert not faults, "\n".join(f"{path}\n  " + "\n  ".join(found) for path, found in faults.items())


def test_axe_finds_what_is_wrong(house: House, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{house.url}/cameras")
    page.evaluate("document.querySelector('h1').innerHTML = '<img src=\"/static/vedette.svg\">'")
    assert any(fault.startswith("image-alt") for fault in found_by_axe(page))
    page.close()
