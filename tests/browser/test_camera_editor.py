"""Zones and rules in a real browser: drawn with mouse and keys, tried on what was recorded, saved, in force."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.config import SiteConfig
from appliance.dashboard.trial_store import TrialHead, TrialStore
from appliance.settings.settings_service import SettingsService
from appliance.store.reviews import ReviewStore
from appliance.types import Event
from tests.browser.test_page_races import Held
from tests.servers.rtsp import FaultyRtspServer
from tests.support import waiting
from tests.support.dashboard_site import Site, filmed_site, running
from tests.support.sample_trial import keep_trial
from tests.support.screenshots import shot
from tests.support.scripted_sources import clip

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Locator, Page, Route, expect

pytestmark = pytest.mark.browser

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
TRIAL = "0" * 16
JOB_MS = 200_000  # the job has the lowest priority

FILE = """\
# the depot
site: {name: depot-7}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {yard: [[0.1, 0.45], [0.95, 0.45], [0.95, 0.98], [0.1, 0.98]]}
    rules:
      - {name: intruder, kind: enter, zone: yard, severity: alert}  # the one that counts
"""


@dataclass
class Editing:
    url: str
    path: Path
    site: Site
    in_force: list[SiteConfig] = field(default_factory=list)

    @property
    def gate(self) -> dict[str, object]:
        return dict(yaml.safe_load(self.path.read_text())["cameras"]["gate"])


@pytest.fixture
def editing(tmp_path: Path) -> Iterator[Editing]:
    path, site, _ = filmed_site(tmp_path, FILE)
    in_force: list[SiteConfig] = []

    def take(config: SiteConfig) -> tuple[str, ...]:
        in_force.append(config)
        return ()

    service = SettingsService(path, tmp_path / "data", site.clock, take)
    with running(site.serve(settings=service)) as url:
        yield Editing(url, path, site, in_force)
    site.close()


# Of a test that sets the clock, which nothing sets right again for the pages that follow in a window.
OWN_CLOCK = [(1440, 900, "own"), (390, 844, "own")]


@pytest.fixture(params=[(1440, 900), (390, 844)], ids=["desk", "phone"])
def page(request: pytest.FixtureRequest, editing: Editing) -> Iterator[Page]:
    """A window with no page in it yet; it is closed before the appliance."""
    width, height, *own = request.param
    if own:
        opened = request.getfixturevalue("browser").new_page(has_touch=width < 500)
    else:
        opened = request.getfixturevalue("touched" if width < 500 else "window").new_page()
    opened.set_viewport_size({"width": width, "height": height})
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    refused = "the server responded with a status of 4"  # the tests' own doing
    opened.on(
        "console", lambda line: faults.append(line.text) if line.type == "error" and refused not in line.text else None
    )
    yield opened
    if own:
        opened.context.close()
    assert faults == []


@pytest.fixture
def editor(page: Page, editing: Editing) -> None:
    """The page is the editor of `gate`."""
    page.goto(f"{editing.url}/cameras/gate/edit")
    page.locator("#shapes li").first.wait_for()


def corners(page: Page) -> Locator:
    return page.locator("#paper .corner")


@pytest.mark.usefixtures("editor")
def test_nothing_can_be_added_before_the_settings_are_there(page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/v1/settings", hold)
    with page.expect_request("**/api/v1/settings"):
        page.reload()
    expect(page.get_by_role("button", name="Add a zone")).to_be_disabled()
    expect(page.get_by_role("button", name="Try on the last day")).to_be_disabled()
    held[0].continue_()
    expect(page.get_by_role("button", name="Add a zone")).to_be_enabled()
    expect(page.get_by_role("button", name="Save")).to_be_disabled()


@pytest.mark.usefixtures("editor")
def test_nothing_is_drawn_while_a_change_is_being_saved(page: Page) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.get_by_role("button", name="Add a zone").click()
    page.route("**/api/v1/settings", hold)
    with page.expect_request("**/api/v1/settings"):
        page.get_by_role("button", name="Save").click()
    assert page.evaluate("document.getElementById('editor').inert"), "what is drawn now would be lost"
    held[0].continue_()
    expect(page.locator("#outcome")).to_contain_text("Saved")
    assert not page.evaluate("document.getElementById('editor').inert")


@pytest.mark.parametrize("page", OWN_CLOCK, indirect=True, ids=["desk", "phone"])
def test_a_version_that_is_read_is_not_closed_by_a_refresh_that_was_on_its_way(page: Page, editing: Editing) -> None:
    page.clock.install()
    page.goto(f"{editing.url}/settings")
    digest = page.request.get(f"{editing.url}/api/v1/settings").json()["digest"]
    change = {"path": ["cameras", "gate", "zones", "door"], "value": [[0, 0], [1, 0], [1, 1]]}
    page.request.post(f"{editing.url}/api/v1/settings", data={"base": digest, "changes": [change]})
    held = Held(page, "**/settings")
    page.clock.fast_forward(11_000)
    held.wait()
    page.locator("details[data-version] summary").click()
    with page.expect_response("**/settings") as answered:
        held.release()
    answered.value.finished()
    assert page.locator("details[data-version]").get_attribute("open") is not None
    page.locator("details[data-version] summary").click()
    page.clock.fast_forward(11_000)
    expect(page.locator("details[data-version]")).to_have_count(2)


@pytest.mark.usefixtures("editor")
def test_a_zone_is_drawn_a_rule_told_tried_and_saved(page: Page, editing: Editing) -> None:
    page.get_by_role("button", name="Add a zone").click()
    assert corners(page).count() == 4
    box = page.locator("#paper").bounding_box()
    held = corners(page).first.bounding_box()
    assert box is not None
    assert held is not None
    page.mouse.move(held["x"] + held["width"] / 2, held["y"] + held["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.2 * box["height"], steps=4)
    page.mouse.up()
    middle = page.locator("#paper .middle").nth(1).bounding_box()
    assert middle is not None
    page.mouse.move(middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.6 * box["height"], steps=4)
    page.mouse.up()
    page.get_by_label("Name of the zone zone").fill("drive")
    page.get_by_label("Name of the zone zone").press("Enter")
    page.get_by_role("button", name="Add a rule").click()
    rule = page.locator("#rules fieldset").nth(1)
    rule.get_by_label("car").check()
    rule = page.locator("#rules fieldset").nth(1)
    rule.get_by_label("when it").select_option("dwell")
    page.locator("#rules fieldset").nth(1).get_by_label("for seconds").fill("1")
    page.locator("#rules fieldset").nth(1).get_by_label("for seconds").press("Enter")
    page.locator("#rules fieldset").nth(1).get_by_label("the zone").select_option("drive")
    page.get_by_role("button", name="Try on the last day").click()
    page.get_by_text("These rules would have alerted once").wait_for()
    assert editing.in_force == []
    shot(page, "editor")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved and in force").first.wait_for()
    zones = editing.gate["zones"]
    assert isinstance(zones, dict)
    assert set(zones) == {"yard", "drive"}
    drive = zones["drive"]
    assert len(drive) == 5
    assert drive[0] == pytest.approx([0.1, 0.2], abs=0.01)
    assert drive[2] == pytest.approx([0.9, 0.6], abs=0.01)
    assert editing.gate["rules"][1] == {  # type: ignore[index]
        "name": "person-in-drive", "title": "Person in drive", "kind": "dwell", "zone": "drive", "seconds": 1,
        "labels": ["person", "car"],
        "severity": "warning",
    }  # fmt: skip
    assert set(editing.in_force[0].cameras["gate"].zones) == {"yard", "drive"}
    assert "# the one that counts" in editing.path.read_text()
    assert "hunter2" in editing.path.read_text(), "what was not shown was not touched"


def try_on_the_recording(page: Page, t0: float) -> None:
    """Ask for nothing, and then for a rule that reports only what is all but sure."""
    page.get_by_role("button", name="Try on the recording").click()
    page.locator("#wrong", has_text="Nothing is changed yet").wait_for()
    page.locator("#rules fieldset").first.get_by_label("score at least").fill("0.99")
    page.locator("#rules fieldset").first.get_by_label("score at least").press("Enter")
    page.evaluate(
        "t => (document.getElementById('since').valueAsNumber = t * 1000 - new Date().getTimezoneOffset() * 6e4)", t0
    )
    page.get_by_role("button", name="Try on the recording").click()


def see_and_delete_trial(page: Page) -> None:
    """Follow the link to the trial until it is done: it lost the alert."""
    width = page.viewport_size["width"]  # type: ignore[index]
    with page.expect_popup() as opened:
        page.get_by_role("link", name="See how far it is").click()
    trial = opened.value
    assert page.viewport_size is not None
    trial.set_viewport_size(page.viewport_size)
    expect(trial.locator("#trial")).to_have_attribute("data-state", "done", timeout=JOB_MS)
    expect(trial.locator("#sentence")).to_contain_text("The settings in force: one alert. The changed ones: 0 alerts.")
    lost = trial.locator("[data-change=missing]")
    expect(lost).to_contain_text("only with the settings in force")
    trial.wait_for_function("() => document.querySelector('[data-change=missing] img').naturalWidth > 0")
    shot(trial, f"trial-{width}")
    assert trial.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the page"
    trial.get_by_role("link", name="All trials").click()
    trial.wait_for_url("**/trials")  # and until its script has run, which listens to the clicks
    shot(trial, f"trials-{width}")
    trial.get_by_role("button", name="Delete").click()
    trial.get_by_role("button", name="Delete for good").click()
    expect(trial.locator("main")).to_contain_text("Nothing was tried yet")
    trial.close()


@pytest.mark.usefixtures("editor")
def test_a_changed_rule_is_tried_on_the_recording(page: Page, editing: Editing) -> None:
    t0 = editing.site.clock.now() - 14
    editing.site.record_clip("gate", CLIP, t0, 9)  # a person comes in by the gate in the sixth second
    try_on_the_recording(page, t0)
    see_and_delete_trial(page)
    assert editing.in_force == [], "nothing was saved"


@pytest.mark.usefixtures("editor")
def test_a_trial_is_asked_for_as_its_api_takes_it_seen_and_deleted(page: Page, editing: Editing) -> None:
    """The trial itself was made before."""
    t0 = editing.site.recorded[0].t_start
    keep_trial(editing.site.root, TRIAL, t0, "-a\n+b")
    asked: list[dict[str, Any]] = []

    def take(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json={"page": f"/cameras/gate/trials/{TRIAL}"})

    page.route("**/api/v1/cameras/gate/trials", take)
    try_on_the_recording(page, t0)
    see_and_delete_trial(page)
    (body,) = asked
    assert body["base"] == page.request.get(f"{editing.url}/api/v1/settings").json()["digest"]
    ((path, rules),) = ((each["path"], each["value"]) for each in body["changes"])
    assert path == ["cameras", "gate", "rules"]
    assert rules[0]["score_min"] == 0.99
    assert body["spans"][0]["t_start"] == pytest.approx(t0, abs=60)
    assert editing.in_force == [], "nothing was saved"


@pytest.mark.parametrize("page", OWN_CLOCK[:1], indirect=True, ids=["desk"])
def test_a_click_before_the_script_is_there_does_nothing_and_a_question_outlasts_a_refresh(
    page: Page, editing: Editing
) -> None:
    t0 = editing.site.clock.now()
    head = TrialHead(id=TRIAL, camera="gate", began_t=t0, who="anna", why="", spans=[(t0 - 9, t0)], diff="")
    TrialStore(editing.site.root).put(head.model_copy(update={"state": "done"}))
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.clock.install()
    page.route("**/forms.js", hold)
    with page.expect_request("**/forms.js"):
        page.goto(f"{editing.url}/cameras/gate/trials", wait_until="commit")
    delete = page.get_by_role("button", name="Delete")
    delete.click()
    assert page.url.endswith("/trials"), "no field of a form is in the address"
    held.pop().continue_()
    page.wait_for_load_state()
    page.route("**/cameras/gate/trials", hold)
    with page.expect_request("**/cameras/gate/trials"):
        page.clock.fast_forward(6000)
    delete.click()
    held.pop().continue_()
    with page.expect_request("**/cameras/gate/trials"):  # once the one before was read
        page.clock.fast_forward(6000)
    expect(page.get_by_role("button", name="Delete for good")).to_have_count(1)
    held.pop().continue_()


@pytest.mark.usefixtures("editor")
def test_keys_alone_move_and_remove_corners_and_undo(page: Page, editing: Editing) -> None:
    page.get_by_label("Name of the zone yard").focus()
    corners(page).nth(2).focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    page.keyboard.press("Delete")
    assert corners(page).count() == 3
    page.keyboard.press("Delete")
    assert corners(page).count() == 3, "a zone keeps three corners"
    page.get_by_role("button", name="Undo").click()
    assert corners(page).count() == 4
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved and in force").first.wait_for()
    assert editing.gate["zones"]["yard"][2] == pytest.approx([0.9, 0.975], abs=0.001)  # type: ignore[index]


@pytest.mark.usefixtures("editor")
def test_keys_alone_add_corners(page: Page, editing: Editing) -> None:
    expect(page.locator("main")).to_contain_text("Insert or + adds one halfway to the next")
    page.get_by_label("Name of the zone yard").focus()
    corners(page).nth(1).focus()
    page.keyboard.press("Insert")
    expect(corners(page)).to_have_count(5)
    assert page.evaluate("document.activeElement.dataset.corner") == "2", "it can be moved at once"
    page.keyboard.press("Shift+ArrowLeft")
    corners(page).nth(4).focus()
    page.keyboard.press("+")
    expect(corners(page)).to_have_count(6)
    assert page.evaluate("document.activeElement.dataset.corner") == "5"
    page.get_by_role("button", name="Add a line").click()
    corners(page).first.focus()
    page.keyboard.press("Insert")
    expect(corners(page)).to_have_count(2)
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved and in force").first.wait_for()
    yard = editing.gate["zones"]["yard"]  # type: ignore[index]
    assert yard[2] == pytest.approx([0.9, 0.715], abs=0.001)
    assert yard[5] == pytest.approx([0.1, 0.715], abs=0.001)


@pytest.mark.usefixtures("editor")
def test_a_click_or_tab_that_ends_the_typing_still_arrives(page: Page) -> None:
    rule = page.locator("#rules fieldset").first
    rule.get_by_label("score at least").fill("0.6")
    rule.get_by_label("car", exact=True).click()
    expect(rule.get_by_label("car", exact=True)).to_be_checked()
    rule.get_by_label("score at least").fill("0.65")
    choice = rule.get_by_label("raise").element_handle()
    rule.get_by_label("raise").click()
    page.evaluate("() => new Promise(done => setTimeout(done, 50))")
    assert choice.evaluate("field => field.isConnected"), "its list of choices is open"
    page.keyboard.press("Escape")
    rule.get_by_label("score at least").fill("0.7")
    rule.get_by_label("only at").click()
    page.keyboard.type("22:00-06:00")
    rule.get_by_text("More", exact=True).click()
    rule.get_by_label("Sun", exact=True).click()
    expect(rule.get_by_label("only at")).to_have_value("22:00-06:00")
    expect(rule.get_by_label("Sun", exact=True)).not_to_be_checked()
    expect(rule.get_by_label("Sun", exact=True)).to_be_visible()
    rule.get_by_label("height at least").focus()
    page.keyboard.type("0.1")
    page.keyboard.press("Tab")
    page.keyboard.type("0.9")
    page.keyboard.press("Tab")
    expect(rule.get_by_label("only at")).to_be_focused()
    expect(rule.get_by_label("height at most")).to_have_value("0.9")
    page.get_by_label("Name of the zone yard").fill("drive")
    page.get_by_label("ignore").click()
    expect(page.get_by_label("ignore")).to_be_checked()
    expect(rule.get_by_label("the zone")).to_have_value("drive")


@pytest.mark.usefixtures("editor")
def test_what_is_typed_while_the_list_is_built_anew_is_kept_and_told(page: Page) -> None:
    """As on a slow computer: the list is built for the field before while the next one is typed in."""
    rule = page.locator("#rules fieldset").first
    rule.get_by_text("More", exact=True).click()
    rule.get_by_label("only at").focus()
    page.keyboard.type("22:00")
    rule.get_by_label("score at least").evaluate(
        """field => {
            field.value = "0.8";
            field.dispatchEvent(new Event("change"));
            setTimeout(() => document.execCommand("insertText", false, "-06:00"));
        }"""
    )
    page.evaluate("() => new Promise(done => setTimeout(done, 50))")
    expect(rule.get_by_label("only at")).to_be_focused()
    expect(rule.get_by_label("only at")).to_have_value("22:00-06:00")
    page.keyboard.press("Tab")
    rule.get_by_label("Sun", exact=True).click()
    expect(rule.get_by_label("Sun", exact=True)).not_to_be_checked()
    expect(rule.get_by_label("only at")).to_have_value("22:00-06:00")


@pytest.mark.usefixtures("editor")
def test_an_emptied_field_of_a_rule_takes_only_its_own_value_away(page: Page, editing: Editing) -> None:
    rule = page.locator("#rules fieldset").first
    rule.get_by_text("More", exact=True).click()
    rule.get_by_label("Sun", exact=True).click()
    rule.get_by_label("only at").fill("22:00-06:00")
    rule.get_by_label("score at least").fill("0.7")
    rule.get_by_label("only at").fill("")
    rule.get_by_label("score at least").fill("")
    rule.get_by_label("score at least").press("Enter")
    expect(rule.get_by_label("score at least")).to_have_value("0.5")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved and in force").first.wait_for()
    (saved,) = editing.gate["rules"]  # type: ignore[misc]
    assert saved["schedule"] == {"days": ["mon", "tue", "wed", "thu", "fri", "sat"]}
    assert "score_min" not in saved


@pytest.mark.usefixtures("editor")
def test_what_is_wrong_is_said_and_nothing_is_saved(page: Page, editing: Editing) -> None:
    text = editing.path.read_text()
    page.get_by_role("button", name="Remove yard").click()
    page.get_by_text("The rule intruder uses yard").wait_for()
    page.locator("#rules fieldset").first.get_by_label("only at").fill("25:00-26:00")
    page.locator("#rules fieldset").first.get_by_label("only at").press("Enter")
    page.get_by_role("button", name="Save").click()
    page.locator("#wrong", has_text="cameras.gate.rules.0.schedule.hours").wait_for()
    assert editing.path.read_text() == text
    editing.path.write_text(text + "alerts: {merge_s: 3}\n")
    page.get_by_role("button", name="Save").click()
    page.locator("#wrong", has_text="was changed by hand").wait_for()


def test_without_scripts_and_on_a_camera_page_there_is_a_way_in(page: Page, editing: Editing) -> None:
    page.goto(f"{editing.url}/cameras/gate")
    page.get_by_role("link", name="Edit zones and rules").click()
    page.wait_for_url("**/cameras/gate/edit")


def test_a_camera_is_added_by_its_address(page: Page, editing: Editing, tmp_path: Path) -> None:
    film = clip(tmp_path / "c.mp4", 300, fps=10, gop=10)
    with FaultyRtspServer.in_thread({"main": film}, user="viewer", password="geheim") as server:
        page.goto(f"{editing.url}/cameras")
        page.get_by_role("link", name="Add a camera").click()
        page.wait_for_url("**/cameras/new")
        page.get_by_label("Make").select_option("Reolink")
        page.get_by_label("Address in the network").fill(f"127.0.0.1:{server.port}")
        expect(page.get_by_label("Stream", exact=True)).to_have_value(re.compile("/h264Preview_01_main$"))
        page.get_by_label("Stream", exact=True).fill(f"rtsp://127.0.0.1:{server.port}/main")
        page.get_by_label("Second, smaller stream").fill("")
        page.get_by_role("button", name="Try it").click()
        page.get_by_text("asks for a user and a password").wait_for()
        page.get_by_label("User").fill("viewer")
        page.get_by_label("Password").fill("geheim")
        page.get_by_role("button", name="Try it").click()
        page.get_by_text("10 pictures a second").wait_for()
        shot(page, "add")
        page.get_by_label("Stream", exact=True).fill(f"rtsp://127.0.0.1:{server.port}/gone")
        page.get_by_role("button", name="Try it").click()
        page.get_by_text("does not exist (404)").wait_for()
        expect(page.get_by_role("button", name="Add this camera")).to_be_hidden()
        page.get_by_label("Stream", exact=True).fill(f"rtsp://127.0.0.1:{server.port}/main")
        page.get_by_role("button", name="Try it").click()
        page.get_by_label("Name of the camera").fill("yard")
        page.get_by_role("button", name="Add this camera").click()
        page.wait_for_url("**/cameras/yard/edit?seen=*")
    assert "geheim" not in editing.path.read_text()
    assert set(editing.in_force[-1].cameras) == {"gate", "yard"}


def test_an_edit_by_hand_is_offered_and_a_version_brought_back(page: Page, editing: Editing) -> None:
    text = editing.path.read_text()
    editing.path.write_text(text + "alerts: {merge_s: 3}\n")
    page.goto(f"{editing.url}/settings")
    expect(page.locator(".edited .diff")).to_contain_text("+alerts: {merge_s: 3}")
    shot(page, "settings")
    page.get_by_role("button", name="Take the change").click()
    expect(page.locator(".edited")).to_have_count(0)
    assert editing.in_force[-1].alerts.merge_s == 3
    page.locator("summary", has_text="as the appliance was started").click()
    expect(page.locator("details[open] .diff")).to_contain_text("-alerts: {merge_s: 3}")
    page.get_by_role("button", name="Go back to version 1").click()
    expect(page.locator(".versions li")).to_have_count(3)
    assert editing.path.read_text() == text


def test_what_false_alarms_propose_is_opened_prefilled_and_only_saved_by_a_person(page: Page, editing: Editing) -> None:
    for n in range(3):
        t = editing.site.clock.now() - 15 + n
        box = (0.7, 0.5, 0.76, 0.7)
        event = Event(
            camera="gate", rule="intruder", kind="enter", track=n, label="person", t=t, score=0.6, box=box, zone="yard"
        )
        editing.site.raise_alert(f"bush{n}", t, events=[event])
        ReviewStore(editing.site.db).review([f"bush{n}"], "false_alarm", t)
    page.goto(f"{editing.url}/alerts/bush1")
    expect(page.locator("#learnt")).to_contain_text("3 false alarms of person")
    page.locator("#learnt a").click()
    expect(page.locator("#proposals")).to_contain_text("With score_min 0.61")
    expect(page.get_by_label("score at least")).to_have_value("0.61")
    expect(page.locator("#paper .place")).to_have_count(1)
    assert editing.in_force == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]
    shot(page, "proposal")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Saved and in force").first.wait_for()
    assert editing.gate["rules"][0]["score_min"] == 0.61  # type: ignore[index]


@pytest.mark.usefixtures("editor")
def test_limits_are_shown_as_boxes_and_places_ignored_by_a_click(page: Page, editing: Editing) -> None:
    page.get_by_label("height at least").fill("0.3")
    page.get_by_label("height at least").blur()
    expect(page.locator(".limit")).to_have_count(1)
    high = float(page.locator(".limit").get_attribute("height") or 0)
    assert high == pytest.approx(0.3 * 240), "of a picture of 240 lines"
    page.get_by_role("button", name="Add a zone").click()
    page.locator("#shapes li").nth(1).get_by_label("ignore").check()
    expect(page.locator(".zones.ignored")).to_have_count(1)
    page.get_by_label("Name of the zone zone").fill("flag")
    page.get_by_label("Name of the zone zone").blur()
    shot(page, "editor-limits")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#outcome")).to_contain_text("Saved and in force")
    assert editing.gate["ignore"] == ["flag"]
    assert editing.gate["rules"][0]["height_min"] == 0.3  # type: ignore[index]
    page.get_by_role("button", name="Remove flag").click()
    page.get_by_label("height at least").fill("")
    page.get_by_label("height at least").blur()
    expect(page.locator(".limit")).to_have_count(0)
    page.get_by_role("button", name="Save").click()
    waiting.until(lambda: "ignore" not in editing.gate, what="it is saved")
    assert "height_min" not in editing.gate["rules"][0]  # type: ignore[index]


def test_a_proposal_to_ignore_a_place_is_made_in_the_editor_and_undone(page: Page, editing: Editing) -> None:
    page.goto(f"{editing.url}/cameras/gate/edit?rule=intruder&place=0.7,0.4,0.76,0.6&ignore=1")
    expect(page.locator(".zones.ignored")).to_have_count(1)
    expect(page.get_by_role("button", name="Save")).to_be_enabled()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".zones.ignored")).to_have_count(0)
    assert editing.in_force == []
