"""A real browser against a real server: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from appliance.base.clock import SystemClock
from appliance.store.meter import Metric, MetricName
from appliance.types import Alert
from tests.support.dashboard_site import Site, running
from tests.support.waiting import PATIENCE

try:
    from playwright import sync_api as playwright
except ImportError:
    playwright = None  # type: ignore[assignment]

# What Playwright switches off (the last list is the one that counts), and, behind it, the pages that Chromium itself
# draws in each new window: with those a window costs three times the CPU time. And the process that it starts for a
# page that may come next.
_WITHOUT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "PreconnectToSearch",
    "PreloadTopChromeWebUI", "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup",
    "SpareRendererForSitePerProcess",
)  # fmt: skip
_PATIENCE_MS = 30_000 * PATIENCE  # of a page's load, an act, an expectation
_LOOK_EACH_MS = 100  # while a function is waited for; Playwright's own way has the page draw sixty frames a second
_ARGUMENTS = (
    "--headless",
    # One process draws all pages of a context. Without the last two each new window begins in one of its own, which is
    # left for that of the site: a tenth of the browser's work.
    "--process-per-site",
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=" + ",".join(_WITHOUT),
    "--autoplay-policy=no-user-gesture-required",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The usual run has of a page in both sizes and schemes a bright desk and a dark phone, and of what a person does
    on it one of the two, in turn from test to test; `make test-slow` has them all."""
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here) and isinstance(item, pytest.Function):
            tests.setdefault((item.path, item.originalname), []).append(item)
    turns: dict[Path, int] = {}
    for (path, _), variants in tests.items():
        names = [item.callspec.id for item in variants if hasattr(item, "callspec")]
        kept = ["desk-light", "phone-dark"]
        if [name.split("-")[0] for name in sorted(names)] == ["desk", "phone"]:
            turns[path] = turns.get(path, -1) + 1
            kept = [sorted(names)[turns[path] % 2]]
        elif not {"desk-dark", "phone-light"} <= set(names):
            continue
        for item in variants:
            if item.callspec.id not in kept:
                item.add_marker("slow")


def _chromium() -> str:
    # The first is Chromium's engine without its windows, which are half of the work of a page. The second is Debian's
    # own, without the extensions and flags of the script around it, which cost a tenth.
    engine, debians = "/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium"
    given = os.environ.get("VEDETTE_CHROMIUM", "")
    for name in (given, engine, debians, "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name) if name else None
        if found:
            return found
    pytest.skip("no Chromium here: `apt-get install chromium-headless-shell`, or set VEDETTE_CHROMIUM to one")


def _be_patient(opened: playwright.Browser) -> None:
    """Playwright knows no limit for all contexts of a browser, and gives each 30 seconds."""
    make_context, make_page = opened.new_context, opened.new_page

    def new_context(**options: Any) -> playwright.BrowserContext:
        made = make_context(**options)
        made.set_default_timeout(_PATIENCE_MS)
        return made

    def new_page(**options: Any) -> playwright.Page:
        made = make_page(**options)
        made.set_default_timeout(_PATIENCE_MS)
        return made

    opened.new_context, opened.new_page = new_context, new_page  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def browser() -> Iterator[playwright.Browser]:
    if playwright is None:
        pytest.skip("the browser tests need the playwright package (it is in the dev extra)")
    program = _chromium()
    waits = functools.partialmethod(playwright.Page.wait_for_function, polling=_LOOK_EACH_MS)
    with pytest.MonkeyPatch.context() as patched, playwright.sync_playwright() as driver:
        patched.setattr(playwright.Page, "wait_for_function", waits)
        playwright.expect.set_options(timeout=_PATIENCE_MS)
        opened = driver.chromium.launch(executable_path=program, args=_ARGUMENTS, timeout=_PATIENCE_MS)
        _be_patient(opened)
        yield opened
        opened.close()


@dataclass
class House:
    """A site whose dashboard is being served at `url`."""

    site: Site
    url: str
    t0: float  # when the recording of camera `gate` begins
    alert: Alert  # `walker`: with still, clip, boxes and a verdict


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    clock = SystemClock()
    site = Site(tmp_path, clock)
    t0 = clock.now() - 20
    for camera in ("gate", "dock"):
        site.live(camera, t0)
        site.record(camera, t0)
    site.spend("gate", 420_000_000, 150_000)
    site.meter.add("gate", Metric(MetricName.EXAMINED), 5 * 7200)  # two hours of video
    alert = site.raise_alert("walker", t0 + 3, seconds=2.0)
    site.cut(alert)
    site.answer(alert)
    with running(site.serve()) as url:
        yield House(site, url, t0, alert)
    site.close()


# Reading pixels back, and contexts without service workers.
_OUR_DOING = ("Canvas2D: Multiple readback", "Service Worker registration blocked by Playwright")


@dataclass
class Watched:
    """A page, and everything about it that must not happen."""

    page: playwright.Page
    faults: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Hear of what the console has: also of what could not be loaded."""
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def watch(self) -> None:
        """Look at each request, too, which costs a tenth of a page."""
        self.listen()
        self.page.on("response", lambda got: got.status >= 400 and self.faults.append(f"{got.status} {got.url}"))
        self.page.on("request", self._request)

    def _said(self, message: playwright.ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_OUR_DOING):
            self.faults.append(message.text)

    def _request(self, request: playwright.Request) -> None:
        if urlsplit(request.url).hostname not in {"127.0.0.1", None}:
            self.faults.append(f"left the machine: {request.url}")


@pytest.fixture(autouse=True)
def nothing_stays_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a test leaves open: a page whose server has ended asks for it again and again, and costs CPU time as
    long as the browser lives."""
    opened = request.getfixturevalue("browser") if "browser" in request.fixturenames else None
    yield
    for context in [] if opened is None else opened.contexts:
        if context not in _shared:
            context.close()


_shared: list[playwright.BrowserContext] = []  # by many tests


def _share(browser: playwright.Browser, *, has_touch: bool) -> playwright.BrowserContext:
    """A context for the pages of many tests, each of which has a port and so an origin of its own. For each context
    Chromium starts a process, which is a third of a page's cost; one page stays, and with it the site's process. No
    site installs its service worker there, which is a tenth of it: tests of that have contexts of their own."""
    context = browser.new_context(has_touch=has_touch, service_workers="block")
    _shared.append(context)
    kept = context.new_page()
    kept.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    kept.goto("http://127.0.0.1:9/")
    return context


@pytest.fixture(scope="session")
def shared_context(browser: playwright.Browser) -> playwright.BrowserContext:
    return _share(browser, has_touch=False)


@pytest.fixture(scope="session")
def shared_touch_context(browser: playwright.Browser) -> playwright.BrowserContext:
    return _share(browser, has_touch=True)


def _lent(context: playwright.BrowserContext) -> Iterator[playwright.BrowserContext]:
    yield context
    for page in context.pages[1:]:
        page.close()
    context.clear_cookies()


@pytest.fixture
def window(shared_context: playwright.BrowserContext) -> Iterator[playwright.BrowserContext]:
    """For pages of a test that stores nothing but cookies beyond its origin, which are gone after it, and that leaves
    the clock alone: one that is set stays so for all pages that follow."""
    yield from _lent(shared_context)


@pytest.fixture
def touched(shared_touch_context: playwright.BrowserContext) -> Iterator[playwright.BrowserContext]:
    """The same on a screen that is touched."""
    yield from _lent(shared_touch_context)


@pytest.fixture
def visit(window: playwright.BrowserContext, house: House) -> Iterator[Callable[..., playwright.Page]]:
    """Open a page of the house: `visit("/cameras", width=390, height=844, scheme="dark")`."""
    opened: list[Watched] = []

    def open_page(path: str, *, width: int = 1280, height: int = 800, scheme: str = "light") -> playwright.Page:
        watched = Watched(window.new_page())
        watched.page.set_viewport_size({"width": width, "height": height})
        watched.page.emulate_media(color_scheme=scheme)
        watched.watch()
        opened.append(watched)
        watched.page.goto(house.url + path)
        return watched.page

    yield open_page
    faults = [fault for watched in opened for fault in watched.faults]
    assert not faults, faults
