"""Notifications in a real browser, desk and phone: targets, this browser, a snooze, the app and its offline page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from appliance import config
from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.settings_api import SettingsPart
from appliance.notify.message import AlertFinding, NotificationMessage, PushMeans, SnoozeLinks, VapidKey
from appliance.settings.settings_service import SettingsService
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.store.arming import ArmingStore
from appliance.store.push_subscriptions import PushPreference, PushSubscriptionStore, UsedLinkStore
from tests.servers.push_service import PushedBrowser, base64url
from tests.servers.receiver import Receiver
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot
from tests.support.waiting import until

pytestmark = pytest.mark.browser
SIZES = pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["desk", "phone"])
SITE = """\
site: {name: depot-7}
cameras:
  gate: {url: "rtsp://192.168.1.20/main"}
notify:
  browsers: {kind: push}
"""


class NotifyingHouse:
    """A dashboard whose targets can be changed, at `url`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "site.yaml"
        self.path.write_text(SITE)
        first = config.load(self.path)
        self.site = Site(folder / "data", SystemClock(), first)
        self.site.live("gate", self.site.clock.now())
        root = self.site.root
        self.push = PushMeans(
            VapidKey(root), PushSubscriptionStore(self.site.db), lambda user, camera: True, "mailto:a@b.org"
        )
        self.links = SnoozeLinks(root, "http://box.example", UsedLinkStore(self.site.db))
        service = SettingsService(self.path, folder, self.site.clock, self._take)
        self.probes = CoreProbes(push=self.push, snooze_links=self.links)
        self.app = self.site.app(service)
        self.app.state.configure(first.for_dashboard(), self.probes)
        self.url = ""

    def _take(self, changed: SiteConfig) -> tuple[str, ...]:
        self.app.state.configure(changed.for_dashboard(), self.probes)
        return ()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[NotifyingHouse]:
    from appliance.web.server import WebServer

    (tmp_path / "data").mkdir()
    made = NotifyingHouse(tmp_path)
    with running(WebServer(made.app, "127.0.0.1", 0)) as made.url:
        yield made
    made.site.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Page]]:
    made: list[BrowserContext] = []

    def open_tab(width: int, scheme: str, **more: str) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        made.append(context)
        return context.new_page()

    yield open_tab
    for each in made:
        each.close()


@SIZES
def test_a_target_is_added_tried_changed_and_removed(
    house: NotifyingHouse, tab: Callable[..., Page], width: int, scheme: str
) -> None:
    page = tab(width, scheme)
    with Receiver() as hook:
        page.goto(f"{house.url}/notify")
        page.get_by_text("Add a target").click()
        adding = page.locator(".adding")
        adding.get_by_label("Name").fill("hook")
        adding.get_by_label("Kind").select_option("webhook")
        adding.get_by_label("Address").fill(f"{hook.url}/sesame")
        adding.get_by_label("Secret that signs").fill("a-long-secret")
        adding.get_by_label("Quiet hours").fill("22:00-06:00")
        shot(page, f"notify-adding-{width}")
        adding.get_by_role("button", name="Save").click()
        item = page.locator("[data-swap=targets] li").filter(has_text="hook")
        expect(item).to_contain_text("quiet 22:00-06:00")
        assert "sesame" not in page.content()
        item.get_by_role("button", name="Send a test").click()
        expect(item.locator("output")).to_contain_text("took it")
        assert hook.taken[0].path == "/sesame"
        assert "v1," in hook.taken[0].headers["webhook-signature"]
        item.locator("summary").click()
        item.get_by_label("with a picture").check()
        shot(page, f"notify-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        item.get_by_role("button", name="Save").click()
        expect(item.locator("[name=picture][checked]")).to_have_count(1)
        assert config.load(house.path).notify["hook"].picture
        item.locator("summary").click()
        item.get_by_role("button", name="Remove").click()
        item.get_by_role("button", name="Really remove?").click()
        expect(item).to_have_count(0)
    assert list(config.load(house.path).notify) == ["browsers"]


def test_what_is_typed_for_one_target_stays_while_another_is_saved(
    house: NotifyingHouse, tab: Callable[..., Page]
) -> None:
    page = tab(1440, "light")
    for name in ("one", "two"):
        base = page.request.get(f"{house.url}/api/v1/settings").json()["digest"]
        hook = {"base": base, "kind": "webhook", "url": f"https://a.example/{name}", "severity": "warning"}
        assert page.request.post(f"{house.url}/api/v1/notify/{name}", data=hook).ok
    page.goto(f"{house.url}/notify")
    page.get_by_text("Add a target").click()
    page.locator(".adding").get_by_label("Kind").select_option("webhook")
    page.locator(".adding").get_by_label("Secret that signs").fill("typed, too")
    one, two = (page.locator("[data-swap=targets] li").filter(has_text=name) for name in ("one", "two"))
    for each in (one, two):
        each.locator("summary").click()
    two.get_by_label("Quiet hours").fill("22:00-06:00")
    two.get_by_label("Lowest severity").select_option("alert")
    two.get_by_label("with a picture").check()
    one.get_by_label("Quiet hours").fill("23:00-05:00")
    one.get_by_role("button", name="Save").click()
    expect(one).to_contain_text("quiet 23:00-05:00")
    expect(one.locator("details")).not_to_have_attribute("open", "")
    expect(two.get_by_label("Quiet hours")).to_have_value("22:00-06:00")
    expect(page.locator(".adding").get_by_label("Secret that signs")).to_have_value("typed, too")
    two.get_by_role("button", name="Save").click()
    expect(two).to_contain_text("quiet 22:00-06:00")
    saved = config.load(house.path).notify["two"]
    assert (saved.picture, saved.severities) == (True, ("alert",))


def test_a_browser_subscribes_with_the_box_s_key_and_is_taken_off(
    house: NotifyingHouse, tab: Callable[..., Page]
) -> None:
    """The maker's push service is out of reach here: what the browser would get of it is put in its place."""
    page, keys = tab(390, "light"), PushedBrowser()
    page.context.grant_permissions(["notifications"])
    page.add_init_script(
        f"""Notification.requestPermission = async () => "granted";
        PushManager.prototype.subscribe = async (options) => {{
          window.asked = options;
          return {{ toJSON: () => ({{ endpoint: "https://fcm.googleapis.com/fcm/send/abc",
            keys: {{ p256dh: "{base64url(keys.p256dh)}", auth: "{base64url(keys.auth)}" }} }}) }};
        }};"""
    )
    tried: list[str] = []

    def take_test(route: Route) -> None:
        tried.append(route.request.url)
        route.fulfill(json={"ok": True, "status": 201, "seconds": 0.1, "message": "took it"})

    page.route("**/api/v1/push/*/test", take_test)
    page.goto(f"{house.url}/notify")
    page.get_by_role("button", name="Notify this device").click()
    expect(page.locator("#device-done")).to_contain_text("A test message is on its way")
    assert len(tried) == 1
    mine = page.locator("[data-swap=browsers] li")
    expect(mine).to_have_count(1)
    assert page.evaluate("window.asked.applicationServerKey") == house.push.key.public
    assert page.evaluate("window.asked.userVisibleOnly") is True
    (row,) = house.push.subscriptions.all("browsers")
    assert (row.p256dh, row.auth, row.endpoint) == (keys.p256dh, keys.auth, "https://fcm.googleapis.com/fcm/send/abc")
    preferences = page.locator("[data-swap=preferences]")
    preferences.get_by_label("Lowest severity").select_option("alert")
    preferences.get_by_label("Quiet hours").fill("22:00-06:00")
    preferences.get_by_role("button", name="Save").click()
    until(
        lambda: (
            house.push.subscriptions.preferences() == {"": PushPreference(severity="alert", quiet_hours="22:00-06:00")}
        )
    )
    shot(page, "notify-browser-390")
    mine.get_by_role("button", name="Remove this browser").click()
    expect(mine).to_have_count(0)
    assert house.push.subscriptions.all() == []


@SIZES
def test_a_link_of_a_message_snoozes_its_target(
    house: NotifyingHouse, tab: Callable[..., Page], width: int, scheme: str
) -> None:
    message = NotificationMessage(
        id="n1", alert="a1", site="depot-7", camera="gate", severity="alert",
        finding=AlertFinding("edge", (), ("person",), 0.9),
        t=house.site.clock.now(),
    )  # fmt: skip
    page = tab(width, scheme)
    page.goto(house.links.link("browsers", message).replace("http://box.example", house.url))
    shot(page, f"snooze-{width}")
    page.get_by_role("button", name="60 min").click()
    expect(page.locator("main")).to_contain_text("This link was used")
    (row,) = ArmingStore(house.site.db).rows
    assert (row.target, row.camera) == ("browsers", "gate")


def test_one_button_on_the_first_page_makes_the_target_subscribes_and_tries_it(
    house: NotifyingHouse, tab: Callable[..., Page]
) -> None:
    service = house.app.state.parts[SettingsPart].service
    service.change([SiteChange(("notify", "browsers"), REMOVED)], service.running.digest, "", "no targets")
    page, keys = tab(1280, "light"), PushedBrowser()
    page.context.grant_permissions(["notifications"])
    page.add_init_script(
        f"""if (Notification.permission === "denied")  // always, in a Chromium without windows
          Object.defineProperty(Notification, "permission", {{ value: "granted" }});
        Notification.requestPermission = async () => "granted";
        PushManager.prototype.subscribe = async () => ({{ toJSON: () => ({{
          endpoint: "https://fcm.googleapis.com/fcm/send/abc",
          keys: {{ p256dh: "{base64url(keys.p256dh)}", auth: "{base64url(keys.auth)}" }} }}) }});"""
    )
    page.route("**/api/v1/push/*/test", lambda route: route.fulfill(json={"ok": True, "message": "", "seconds": 0.1}))
    page.goto(house.url)
    page.get_by_role("button", name="Notify this device").click()
    expect(page.locator("#device-done")).to_contain_text("This device is notified")
    made = config.load(house.path).notify["browsers"]
    assert (made.kind, "disk" in made.health) == ("push", True)
    assert [row.endpoint for row in house.push.subscriptions.all("browsers")] == [
        "https://fcm.googleapis.com/fcm/send/abc"
    ]


def test_a_form_asks_only_for_what_its_kind_of_target_needs(house: NotifyingHouse, tab: Callable[..., Page]) -> None:
    page = tab(1280, "light")
    page.goto(f"{house.url}/notify")
    page.get_by_text("Add a target").click()
    form = page.locator("#adding-form")
    for kind, shown, hidden in (
        ("ntfy", ("Address", "Topic"), ("Secret that signs",)),
        ("webhook", ("Address", "Secret that signs"), ("Topic", "Token")),
        ("apprise", ("Address",), ("Topic", "Token", "Secret that signs")),
        ("push", (), ("Address", "Topic", "Token", "Secret that signs")),
    ):
        form.get_by_label("Kind").select_option(kind)
        for label in shown:
            expect(form.get_by_label(label)).to_be_visible()
        for label in hidden:
            expect(form.get_by_label(label)).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    form.get_by_label("Kind").select_option("webhook")
    widths = [box["width"] for tick in form.locator("[type=checkbox]").all() if (box := tick.bounding_box())]
    assert len(set(widths)) == 1, "a long text beside it does not squeeze a box to tick"
    form.get_by_label("Name").fill("My phone")
    assert not form.evaluate("form => form.checkValidity()")
    expect(form.get_by_label("Name")).to_have_attribute(
        "title", "Small letters, digits, _ and -"
    )  # the browser tells it


def test_out_of_reach_is_said_in_the_language_of_the_page(house: NotifyingHouse, tab: Callable[..., Page]) -> None:
    page = tab(390, "light")
    page.goto(house.url)
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")  # so that the next page is controlled by it
    page.locator("#language").select_option("de")
    expect(page.locator("html")).to_have_attribute("lang", "de")
    # Not by a promise: Playwright takes the first that it gets, whatever its value is, and waits no more. Each page
    # asks for its language's worker; on a busy machine the browser may drop the request of a page that it leaves.
    for _ in range(5):
        with contextlib.suppress(PlaywrightTimeout):
            page.wait_for_function(
                "() => navigator.serviceWorker.controller?.scriptURL.endsWith('?de')", timeout=20_000
            )
            break
        with contextlib.suppress(PlaywrightError):  # it can hang while one worker hands over to the next
            page.reload(timeout=15_000)
    assert page.evaluate("navigator.serviceWorker.controller?.scriptURL").endswith("?de")
    page.context.set_offline(True)
    page.reload()
    expect(page.get_by_role("heading")).to_have_text("Nicht erreichbar")


def test_the_dashboard_can_be_installed_and_says_so_when_the_box_is_out_of_reach(
    house: NotifyingHouse, tab: Callable[..., Page]
) -> None:
    page = tab(390, "dark")
    page.goto(f"{house.url}/notify")
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    session = page.context.new_cdp_session(page)
    assert session.send("Page.getAppManifest")["errors"] == []
    faults = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [each for each in faults if each["errorId"] != "in-incognito"] == []
    kept = page.evaluate("""caches.keys()""")
    assert kept == [], "nothing of the site is kept"
    page.reload()
    assert page.evaluate("navigator.serviceWorker.ready.then(each => each.navigationPreload.getState())")["enabled"]
    page.context.set_offline(True)
    page.goto(f"{house.url}/cameras")
    expect(page.get_by_role("heading")).to_have_text("Out of reach")
    shot(page, "offline-390")
    asked: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(route)

    page.route("**/healthz", hold)
    page.wait_for_timeout(7_000)
    assert len(asked) == 1, "it asks again while it waits for an answer"
    page.unroute_all()
    page.context.set_offline(False)  # and nobody does anything
    expect(page.get_by_role("heading", name="Cameras")).to_be_visible()
