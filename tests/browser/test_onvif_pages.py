"""ONVIF in a real browser: a camera is found, its streams chosen, added with its second stream, and turned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.settings.settings_service import SettingsService
from tests.servers.onvif_camera import OnvifCamera, Stream
from tests.servers.rtsp import FaultyRtspServer
from tests.support.dashboard_site import Site, running
from tests.support.screenshots import shot
from tests.support.scripted_sources import clip
from tests.support.waiting import until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


@dataclass
class Adding:
    url: str
    path: Path
    in_force: list[SiteConfig] = field(default_factory=list)


@pytest.fixture
def camera(tmp_path: Path) -> Iterator[OnvifCamera]:
    main = clip(tmp_path / "main.mp4", 300, fps=10, gop=10, size=(640, 360))
    sub = clip(tmp_path / "sub.mp4", 300, fps=10, gop=10, size=(480, 270))
    streams = (Stream("m", "main", (1280, 720)), Stream("s", "sub", (480, 270)), Stream("t", "tiny", (160, 90)))
    with FaultyRtspServer.in_thread({"main": main, "sub": sub}, user="viewer", password="geheim") as server:
        made = OnvifCamera(
            name="Back yard", user="viewer", password="geheim", ahead_s=240, rtsp_port=server.port, streams=streams
        )
        with made.running("lo"):
            yield made


@pytest.fixture
def adding(tmp_path: Path, camera: OnvifCamera) -> Iterator[Adding]:
    onvif = camera.address.replace("://", "://viewer:geheim@")
    text = f"site: {{name: depot-7}}\ncameras:\n  gate: {{url: 'rtsp://192.168.1.20/main', onvif: '{onvif}'}}\n"
    path = tmp_path / "site.yaml"
    path.write_text(text)
    (tmp_path / "data").mkdir()
    site = Site(tmp_path / "data", SystemClock(), SiteConfig.model_validate(yaml.safe_load(text)))
    t0 = site.clock.now() - 20
    site.live("gate", t0)
    site.record("gate", t0)
    made = Adding("", path)

    def take(config: SiteConfig) -> tuple[str, ...]:
        made.in_force.append(config)
        return ()

    service = SettingsService(path, tmp_path / "data", site.clock, take)
    with running(site.serve(settings=service)) as made.url:
        yield made
    site.close()


@pytest.fixture(params=[(1440, 900, "dark"), (390, 844, "light")], ids=["desk", "phone"])
def page(request: pytest.FixtureRequest, adding: Adding) -> Iterator[Page]:
    width, height, scheme = request.param
    opened: Page = request.getfixturevalue("touched" if width < 500 else "window").new_page()
    opened.set_viewport_size({"width": width, "height": height})
    opened.emulate_media(color_scheme=scheme)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    refused = "the server responded with a status of 4"  # the tests' own doing
    opened.on(
        "console", lambda line: faults.append(line.text) if line.type == "error" and refused not in line.text else None
    )
    yield opened
    assert faults == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_a_camera_turns_while_a_button_or_key_is_held(page: Page, adding: Adding, camera: OnvifCamera) -> None:
    page.goto(f"{adding.url}/cameras/gate")
    pad = page.get_by_role("group", name="Turn the camera")
    expect(pad.locator("option")).to_have_count(4)  # asked for once the script is there
    left = pad.get_by_role("button", name="Left").bounding_box()
    assert left is not None
    page.mouse.move(left["x"] + left["width"] / 2, left["y"] + left["height"] / 2)
    page.mouse.down()
    until(lambda: len(camera.moves) >= 3, 30, "it is asked further while it is held")
    assert set(camera.moves) == {(-0.5, 0.0, 0.0)}
    page.mouse.up()
    until(lambda: not camera.turning, 30)
    shot(page, "ptz")
    pad.get_by_role("button", name="Up").focus()
    page.keyboard.down("ArrowRight")
    until(lambda: camera.moves[-1] == (0.5, 0.0, 0.0), 30)
    page.keyboard.up("ArrowRight")
    until(lambda: not camera.turning, 30)
    page.keyboard.down("+")
    until(lambda: camera.moves[-1] == (0.0, 0.0, 0.5), 30)
    page.goto(f"{adding.url}/savings")  # gone while the key is held
    until(lambda: not camera.turning, 30)
    page.goto(f"{adding.url}/cameras/gate")
    pad.get_by_label("Go to").select_option("Yard & gate")
    until(lambda: camera.at_preset == "2", 30)
    camera.fault, camera.fault_at = "redirect", "GotoHomePosition"
    pad.get_by_label("Go to").select_option("Home position")
    expect(pad.get_by_role("alert")).to_contain_text("sent us elsewhere")


def test_a_camera_is_found_asked_seen_and_added_with_its_second_stream(
    page: Page, adding: Adding, camera: OnvifCamera
) -> None:
    page.goto(f"{adding.url}/cameras/new")
    page.get_by_role("button", name="Find cameras in the network").click()
    mine = page.locator(f"#cameras li:has([data-onvif='{camera.address}'])")
    expect(mine).to_contain_text("is here as gate")
    mine.get_by_role("button", name="Back yard").click()
    expect(page.get_by_label("User")).to_be_focused()
    ask = page.get_by_role("button", name="Ask the camera for its streams")
    ask.click()
    expect(page.locator("#wrong")).to_contain_text("asks for a user and a password")
    page.get_by_label("User").fill("viewer")
    page.get_by_label("Password").fill("geheim")
    ask.click()
    expect(page.get_by_label("Recorded")).to_have_value(re.compile("/main$"))
    expect(page.get_by_label("Detected on")).to_have_value(re.compile("/sub$"))
    expect(page.locator("#streams")).to_contain_text("480 × 270 for detection")
    expect(page.get_by_label("Second, smaller stream")).to_have_value(re.compile("/sub$"))
    expect(page.locator("#seen")).to_contain_text("For detection: h264 480 × 270")  # tried by itself
    expect(page.locator("#seen")).to_contain_text("4 min ahead: set its time by NTP")
    expect(page.get_by_label("Turn it from here")).to_be_checked()
    shot(page, "found")
    page.get_by_label("Detected on").select_option("the same stream")
    expect(page.get_by_label("Second, smaller stream")).to_have_value("")
    page.get_by_label("Detected on").select_option(index=2)
    expect(page.get_by_label("Name of the camera")).to_have_value("Back yard")
    page.get_by_role("button", name="Add this camera").click()
    page.wait_for_url("**/cameras/back-yard/edit?seen=*")
    camera_now = adding.in_force[-1].cameras["back-yard"]
    assert camera_now.url.endswith(f"@127.0.0.1:{camera.rtsp_port}/main")
    assert camera_now.detect_url is not None
    assert camera_now.detect_url.endswith("/sub")
    assert camera_now.onvif is not None, "it can be turned from here"
    assert adding.path.read_text().count("geheim") == 1, "of gate, as it was written by hand"


def test_where_there_is_no_camera_yet_they_are_looked_for_at_once(
    page: Page, camera: OnvifCamera, tmp_path: Path
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "site.yaml").write_text("cameras: {}\n")
    site = Site(folder, SystemClock(), SiteConfig.model_validate({"cameras": {}, "dashboard": {"port": 0}}))
    service = SettingsService(folder / "site.yaml", folder, site.clock, lambda _: ())
    with running(site.serve(settings=service)) as url:
        page.goto(f"{url}/cameras/new")
        mine = page.locator(f"#cameras li:has([data-onvif='{camera.address}'])")
        expect(mine).to_contain_text("C-100")
        expect(mine).not_to_contain_text("is here as")
    site.close()
