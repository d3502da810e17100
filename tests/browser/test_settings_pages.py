"""Settings in a real browser: forms that save at the first keystroke, errors at the field, sessions that come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.settings.settings_service import SettingsService
from appliance.store.users import UserStore
from appliance.types.accounts import UserRow
from tests.support.dashboard_site import PASSWORD, Site, password_hash, running, site_of_file
from tests.support.screenshots import shot

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import BrowserContext, Page, Route, expect

pytestmark = pytest.mark.browser

FILE = """\
site: {name: depot-7}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {yard: [[0.01, 0.3], [0.99, 0.3], [0.99, 0.98], [0.01, 0.98]], way: [[0.8, 0.4], [1, 0.4], [1, 1]]}
    rules: [{name: intruder, kind: enter, zone: yard, severity: alert}]
  dock: {url: rtsp://192.168.1.21/main, zones: {steps: [[0, 0.4], [0.2, 0.4], [0.2, 1]]}}
"""


@dataclass
class Owner:
    url: str
    path: Path
    site: Site

    @property
    def written(self) -> Any:
        return yaml.safe_load(self.path.read_text())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    path, site = site_of_file(tmp_path, FILE)
    site.record("gate", site.clock.now() - 20)
    users = UserStore(site.db)
    users.add(UserRow(name="Anna Müller", role="admin", cameras=None, password=password_hash()))
    users.add(UserRow(name="Max", role="viewer", cameras=("gate",), password=password_hash()))
    service = SettingsService(path, tmp_path / "data", site.clock, lambda _: ())
    with running(site.serve(settings=service)) as url:
        yield Owner(url, path, site)
    site.close()


@pytest.fixture(params=[(1440, 900), (390, 844)], ids=["desk", "phone"])
def page(request: pytest.FixtureRequest, window: BrowserContext, owner: Owner) -> Iterator[Page]:
    """A window of the admin, who has signed in, with no page in it yet."""
    width, height = request.param
    login = {"name": "Anna Müller", "password": PASSWORD}
    assert window.request.post(f"{owner.url}/login", data=login, headers={"Origin": owner.url}).ok
    opened = window.new_page()
    opened.set_viewport_size({"width": width, "height": height})
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    assert faults == []


def sign_in(page: Page, name: str = "Anna Müller") -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_a_form_saves_from_the_first_keystroke_and_names_what_is_wrong_at_its_field(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/login?next=/settings")
    sign_in(page)
    page.wait_for_url(f"{owner.url}/settings")
    shot(page, "settings")
    page.get_by_role("link", name="Storage and retention").click()
    hours = page.get_by_label("Keep the continuous recording for")
    save = page.get_by_role("button", name="Save", exact=True)
    expect(save).to_be_disabled()
    hours.press_sequentially("1")
    expect(save).to_be_enabled()
    hours.fill("-1")
    save.click()
    wrong = page.locator("[data-key='storage.keep_hours'] .wrong")
    expect(wrong).to_contain_text("greater than 0")
    expect(wrong).not_to_contain_text("storage")
    expect(hours).to_be_focused()
    shot(page, "settings-storage")
    hours.fill("72")
    save.click()
    expect(page.get_by_text("Saved and in force.").last).to_be_visible()
    assert owner.written["storage"] == {"keep_hours": 72}


def test_what_is_typed_before_the_page_s_script_runs_can_be_saved(page: Page, owner: Owner) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/settings_form.js*", hold)
    page.goto(f"{owner.url}/settings/storage", wait_until="commit")
    page.get_by_label("Keep the continuous recording for").fill("71")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_enabled()
    page.unroute("**/settings_form.js*")


def test_who_may_not_see_a_page_is_led_to_the_alerts(page: Page, owner: Owner) -> None:
    page.context.clear_cookies()
    page.goto(f"{owner.url}/login?next=/savings")
    sign_in(page, "Max")
    page.wait_for_url(f"{owner.url}/")


def test_shares_bytes_and_secrets_are_written_as_the_file_has_them(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/settings/mqtt")
    page.get_by_label("Address of the broker").fill("mqtt://192.168.1.10:1883")
    page.get_by_label("User", exact=True).fill("box")
    page.get_by_label("Password").fill("quiet words")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Do without it")).to_be_visible()
    assert owner.written["mqtt"] == {
        "url": "mqtt://192.168.1.10:1883", "user": "box", "password": "${MQTT_PASSWORD}",
    }  # fmt: skip
    page.goto(f"{owner.url}/settings/detection")
    page.get_by_label("Drop detections below").fill("25")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved and in force.").last).to_be_visible()
    assert owner.written["detector"] == {"score_min": 0.25}


def test_zones_that_adjoin_are_declared_and_taken_back(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/settings")
    page.get_by_role("link", name="Where zones adjoin").click()
    page.locator("select[name=a]").select_option("gate/way")
    page.locator("select[name=b]").select_option("dock/steps")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("unseen for at most 6 s")).to_be_visible()
    assert owner.written["alerts"]["adjoining"] == [{"zones": ["gate/way", "dock/steps"], "seconds": 6}]
    shot(page, "settings-adjoining")
    page.locator("select[name=a]").select_option("gate/yard")
    page.locator("select[name=b]").select_option("dock/steps")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert").filter(has_text="covers more than half")).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("None yet")).to_be_visible()
    assert owner.written["alerts"]["adjoining"] == []


def test_a_form_says_what_it_costs_before_it_is_saved_and_versions_are_compared(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/settings")
    zones = page.locator("[data-form=zones]")
    zones.get_by_label("way").fill("0.0001")  # 9 s: what was recorded 20 s ago is too old
    expect(zones.locator("[data-cost]")).to_contain_text("of recording is then too old and is deleted at once")
    shot(page, "camera-zones")
    zones.get_by_label("way").fill("3")
    expect(zones.locator("[data-cost]")).to_be_hidden()
    zones.get_by_role("button", name="Save").click()
    expect(zones.get_by_text("Saved and in force.")).to_be_visible()
    assert owner.written["cameras"]["gate"]["quota"] == {"zone_days": {"way": 3}}
    zones.get_by_label("way").fill("")
    zones.get_by_role("button", name="Save").click()
    expect(zones.get_by_text("Saved and in force.")).to_be_visible()
    assert not owner.written["cameras"]["gate"]["quota"]["zone_days"]
    page.goto(f"{owner.url}/settings")
    newest = page.locator("details[data-version]").first
    newest.locator("summary").click()
    expect(newest.locator("pre")).to_contain_text("This is the current text.")
    newest.get_by_label("Compared with").select_option("2")
    expect(newest.locator("pre")).to_contain_text("way: 3")
    shot(page, "settings-versions")


def test_two_tabs_meet(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/settings/alerts")
    page.get_by_label("An alert is closed after").fill("90")
    other = page.context.new_page()
    other.goto(f"{owner.url}/settings/storage")
    other.get_by_label("Keep the continuous recording for").fill("48")
    other.get_by_role("button", name="Save", exact=True).click()
    expect(other.get_by_text("Saved and in force.").last).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Save mine").click()
    expect(page.get_by_text("Saved and in force.").last).to_be_visible()
    assert owner.written["alerts"] == {"length_max_s": 90}
    assert owner.written["storage"] == {"keep_hours": 48}


def test_what_is_typed_into_one_form_stays_while_another_one_is_saved(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/settings")
    zones = page.locator("form[data-form=zones]")
    zones.get_by_label("yard").fill("5")
    other = page.locator("form.settings:not([data-form=zones])")
    for _ in range(2):
        other.locator("input[type=checkbox]").first.click()
        other.get_by_role("button", name="Save", exact=True).click()
        expect(other.locator("[data-saved]")).to_have_text("Saved and in force.")
        expect(zones.get_by_label("yard")).to_have_value("5")
    saved: list[str] = []
    page.on("request", lambda each: saved.append(each.url) if each.url.endswith("/api/v1/settings") else None)
    zones.get_by_role("button", name="Save", exact=True).click()
    expect(zones.locator("[data-saved]")).to_have_text("Saved and in force.")
    assert len(saved) == 1
    assert owner.written["cameras"]["gate"]["quota"] == {"zone_days": {"yard": 5}}


def test_an_expired_session_asks_for_the_password_in_place_and_keeps_what_was_drawn(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/edit")
    page.get_by_role("button", name="Add a zone").click()
    page.context.clear_cookies()
    page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("what you changed here stays")
    shot(page, "signed-out")
    dialog.get_by_label("Name").fill("Anna Müller")
    dialog.get_by_label("Password").fill("wrong")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog).to_contain_text("do not fit")
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.locator("#outcome")).to_contain_text("Saved and in force")
    assert set(owner.written["cameras"]["gate"]["zones"]) == {"yard", "way", "zone"}


def test_a_refresh_after_the_session_ended_asks_for_the_password_once_and_the_page_stays(
    page: Page, owner: Owner
) -> None:
    def change(times: int) -> None:
        owner.site.live("gate", owner.site.clock.now() + times)

    page.goto(owner.url)
    title = page.title()
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    change(1)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Your session is over")
    assert page.title() == title
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.locator("#pulse")).to_have_attribute("title", "Sign in first.")
    with page.expect_response("**/login?next=*"):
        change(2)
    expect(dialog).to_have_count(0)
    page.reload()
    sign_in(page)
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    change(3)
    dialog.get_by_label("Name").fill("Anna Müller")
    dialog.get_by_label("Password").fill(PASSWORD)
    with page.expect_response(lambda each: each.url == f"{owner.url}/" and each.ok):
        dialog.get_by_role("button", name="Sign in").click()
    expect(dialog).to_have_count(0)
    assert page.title() == title


def test_two_people_draw_on_one_camera(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/edit")
    page.get_by_role("button", name="Add a line").click()
    digest = page.request.get(f"{owner.url}/api/v1/settings").json()["digest"]
    change = {"path": ["cameras", "gate", "zones", "door"], "value": [[0, 0], [1, 0], [1, 1]]}
    page.request.post(f"{owner.url}/api/v1/settings", data={"base": digest, "changes": [change]})
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Show theirs").click()
    expect(page.get_by_label("Name of the zone door")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("Saved and in force")
    assert list(owner.written["cameras"]["gate"]["lines"]) == ["line"]


def test_a_camera_is_renamed_and_gets_another_password(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/settings")
    shot(page, "camera-settings")
    page.get_by_label("Name of the camera").fill("Café Straßenecke")
    page.locator("#keep").get_by_role("button", name="Save").click()
    expect(page.locator("#kept")).to_have_text("Saved and in force.")
    assert owner.written["cameras"]["gate"]["title"] == "Café Straßenecke"
    page.get_by_label("Stream", exact=True).fill("http://nonsense")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#wrong")).to_contain_text("is like rtsp://")
    page.get_by_label("Stream", exact=True).fill("rtsp://192.168.1.20/main")
    page.get_by_label("Password", exact=True).fill("new word")
    page.locator("#save-address").click()
    expect(page.locator("#kept-address")).to_have_text("Saved and in force.")
    assert owner.written["cameras"]["gate"]["url"].startswith("rtsp://${CAMERA_GATE_USER}:")
    page.get_by_label("stays until it is too old").check()
    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("button", name="Really remove?").click()
    page.wait_for_url("**/cameras")
    assert list(owner.written["cameras"]) == ["dock"]


def test_a_rule_is_called_what_its_owner_calls_it(page: Page, owner: Owner) -> None:
    page.goto(f"{owner.url}/cameras/gate/edit")
    first = page.locator("#rules fieldset").first
    first.get_by_label("Name").fill("intruder am Tor")
    page.get_by_role("button", name="Save", exact=True).click()  # one click, though the field has the focus
    expect(page.locator("#outcome")).to_contain_text("it watches now")
    rule = owner.written["cameras"]["gate"]["rules"][0]
    assert (rule["name"], rule["title"]) == ("intruder", "intruder am Tor"), "the history stays with the id"
