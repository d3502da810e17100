"""The timeline in a real browser: scrubbed, played over files, jumped, cut, shared; with keys, and at 390 pixels."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import av
import pytest
from conftest import House

from appliance.base.clock import SystemClock
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import MediaReaders
from appliance.media.clips import cut_clip
from appliance.media.recorded import RecordedSegment
from appliance.media.recording_reader import SandboxedReader
from appliance.types import Gap, SegmentRow
from appliance.web.server import WebServer
from tests.support import numbered_footage
from tests.support.dashboard_site import Site, running
from tests.support.numbered_footage import beeping
from tests.support.screenshots import shot
from tests.support.waiting import PATIENCE, until

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

Visit = Callable[..., Page]
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844, "scheme": "dark"}


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def page(request: pytest.FixtureRequest, visit: Visit, house: House) -> Page:
    """The timeline of `gate`, at the moment of its alert; an interruption before the recording, a second file after."""
    house.site.record("gate", house.t0 + 8)
    house.site.raise_alert("second", house.t0 + 9, seconds=1.0)
    house.site.cameras.write_gap(
        Gap(camera="gate", t_start=house.t0 - 600, t_end=house.t0, reason="the camera does not answer")
    )
    opened = visit(f"/cameras/gate/timeline?t={house.t0 + 3:.1f}", **request.param)
    opened.locator("#timeline[data-loaded]").wait_for()
    return opened


def picture_is_of(page: Page, t: float) -> None:
    """Wait until the picture shows the key frame of `t`; there is one each second."""
    page.wait_for_function(
        "t => Math.abs(Number(document.querySelector('.stage canvas').dataset.t) - t) < 1.05",
        arg=t - 0.5,
        timeout=60_000,
    )
    assert page.locator(".stage").get_attribute("data-shows") == "picture"


def moment(page: Page) -> float:
    return float(page.url.rpartition("t=")[2])


def test_a_moment_is_shown_and_dragged_away_from(page: Page, house: House) -> None:
    picture_is_of(page, house.t0 + 3)
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]  # type: ignore[index]
    for _ in range(4):
        page.get_by_role("button", name="Show less time").click()  # down to two minutes
    expect(page.locator("#width")).to_have_text("2 min")
    strip = page.get_by_role("slider", name="gate: time of the day")
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (0.5 + 7.2 / 120), y, steps=5)
    page.mouse.up()
    picture_is_of(page, house.t0 + 10.2)
    shot(page, "timeline")
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".stage .note")).to_have_text("Not recorded: the camera does not answer")


def test_it_plays_over_the_end_of_a_file_and_stops_at_the_end(page: Page, house: House) -> None:
    page.locator("#speed").select_option("2")
    page.get_by_role("button", name="Play").click()
    page.locator(".stage:not([data-shows=picture])").wait_for()
    rates = page.evaluate("[...document.querySelectorAll('video')].filter(v => !v.paused).map(v => v.playbackRate)")
    assert rates == [2]
    expect(page.locator(".stage .note")).to_have_text("This is all that is recorded so far.", timeout=60_000)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    picture_is_of(page, house.t0 + 15.9)


def test_keys_do_all_of_it_and_a_link_opens_at_the_moment(page: Page, house: House, visit: Visit) -> None:
    strip = page.get_by_role("slider", name="gate: time of the day")
    page.keyboard.press("k")
    picture_is_of(page, house.t0 + 9)
    page.keyboard.press("k")
    expect(page.locator(".stage .note")).to_have_text("No later alert on this day.")
    page.keyboard.press("j")
    picture_is_of(page, house.t0 + 3)
    strip.press("ArrowRight")
    picture_is_of(page, house.t0 + 13)
    page.keyboard.press("Shift+ArrowLeft")
    expect(page.locator(".stage .note")).to_have_text("Not recorded: the camera does not answer")
    page.keyboard.press("Home")
    picture_is_of(page, house.t0)
    strip.press("Space")
    page.locator(".stage:not([data-shows=picture])").wait_for()
    strip.press("Space")
    expect(page.locator(".stage")).to_have_attribute("data-shows", "picture")
    page.keyboard.press("Home")
    picture_is_of(page, house.t0)
    page.keyboard.press("k")
    picture_is_of(page, house.t0 + 3)
    page.get_by_role("button", name="Link to this moment").click()
    link = page.locator("#link input").input_value()
    assert link == f"{house.url}/cameras/gate/timeline?t={house.t0 + 3:.1f}"
    other = visit(link.removeprefix(house.url))
    picture_is_of(other, house.t0 + 3)


def test_a_span_is_cut_and_downloaded(page: Page, house: House, tmp_path: Path) -> None:
    cut = page.get_by_role("button", name="Download MP4")
    expect(cut).to_be_disabled()
    page.get_by_role("button", name="Begin here").click()
    page.keyboard.press("k")
    page.get_by_role("button", name="End here").click()
    expect(page.locator("#cut-words")).to_have_text(re.compile(r", 6 s$"))
    with page.expect_download() as waiting:
        cut.click()
    assert re.fullmatch(r"gate-\d{8}T\d{6}Z\.mp4", waiting.value.suggested_filename)
    waiting.value.save_as(tmp_path / "cut.mp4")
    with av.open(str(tmp_path / "cut.mp4")) as opened:
        assert 60 <= sum(1 for _ in opened.decode(video=0)) <= 72


def test_the_day_is_told_in_words_too(page: Page, house: House) -> None:
    rows = page.locator("#happened li")
    told = rows.all_inner_texts()
    assert any("the camera does not answer" in each for each in told)
    rows.filter(has_text="Person").last.get_by_role("button").click()
    picture_is_of(page, house.t0 + 9)
    assert rows.filter(has_text="Person").first.get_by_role("link").get_attribute("href") == "/alerts/walker"
    page.get_by_role("button", name="The day before").click()
    page.wait_for_function("() => document.getElementById('happened').innerText.includes('nothing was recorded yet')")
    expect(page.get_by_role("button", name="The day after")).to_be_enabled()


def test_the_site_has_a_strip_for_every_camera_which_is_fetched_alone(visit: Visit, house: House) -> None:
    house.site.raise_alert("early", house.t0 + 1, seconds=1.0)
    page = visit("/timeline")
    page.locator("#timeline[data-loaded]").wait_for()
    page.locator("#pulse[data-state=live]").wait_for()
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url) if "/timeline?from=" in each.url else None)
    with page.expect_response(lambda each: "/cameras/gate/timeline?from=" in each.url):
        house.site.raise_alert("third", house.t0 + 6, seconds=1.0)
    page.wait_for_timeout(100)
    assert [url for url in asked if "/cameras/gate/" not in url] == []
    expect(page.locator("#who")).to_have_text("dock")
    page.keyboard.press("j")
    expect(page.locator("#who")).to_have_text("gate")
    picture_is_of(page, house.t0 + 1)
    together = page.get_by_role("checkbox", name="Watch dock together with others")
    together.press("Space")
    expect(together).to_be_checked()
    page.locator("#export summary").press("Space")
    expect(page.locator("#export")).to_have_attribute("open", "")
    here = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Timeline")
    assert here.get_attribute("aria-current") == "page"
    page.get_by_role("link", name="dock").click()
    page.wait_for_url("**/cameras/dock/timeline")


def test_other_pages_lead_to_the_moment(visit: Visit, house: House) -> None:
    page = visit("/alerts/walker")
    page.get_by_role("link", name="Timeline").last.click()
    page.wait_for_url("**/cameras/gate/timeline?t=*")
    picture_is_of(page, house.t0 + 3)


def test_h265_is_converted_where_the_browser_cannot_play_it(visit: Visit, house: House) -> None:
    film = numbered_footage.encoded_footage(0, 40, size=(992, 744), codec="libx265")  # higher than 720 lines
    house.site.segments.put(numbered_footage.record(house.site.root, film, house.t0 + 8, camera="gate"))
    page = visit(f"/cameras/gate/timeline?t={house.t0 + 8.5:.1f}")
    assert page.evaluate("document.createElement('video').canPlayType('video/mp4; codecs=\"hvc1.1.6.L120.90\"')") == ""
    picture_is_of(page, house.t0 + 8)
    page.get_by_role("button", name="Play").click()
    expect(page.locator(".stage .converted")).to_be_visible()
    expect(page.locator(".stage .converted")).to_have_text("Converted for this browser")
    shown = page.evaluate("[...document.querySelectorAll('video')].find(v => v.videoWidth).videoHeight")
    assert shown == 720
    expect(page.locator(".stage .note")).to_have_text("This is all that is recorded so far.")


FIRST_PICTURE = """() => new Promise(done => {
    const began = performance.now(), play = document.getElementById("play");
    const look = () => document.querySelector(".stage").dataset.shows === "picture"
        ? requestAnimationFrame(look) : done((performance.now() - began) / 1000);
    play.click();
    look();
})"""


def test_the_first_picture_of_h265_comes_soon(
    browser: Browser, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read in children as the appliance reads, none of which runs before the page is opened."""
    site = Site(tmp_path, SystemClock())
    t0 = site.clock.now() - 40
    site.live("gate", t0)
    film = numbered_footage.encoded_footage(0, 90, fps=15, gop=30, size=(1920, 1080), codec="libx265")
    site.segments.put(numbered_footage.record(site.root, film, t0, camera="gate"))
    readers = [SandboxedReader(site.root) for _ in range(3)]
    cutter, converter = readers[1]._sandbox, readers[2]._sandbox
    app = create_app(site.stored, site.config.for_dashboard(), probes=site.probes(), media=MediaReaders(*readers))
    with contextlib.ExitStack() as last, running(WebServer(app, "127.0.0.1", 0)) as url:
        for each in readers:
            last.callback(each.close)
        page = browser.new_page()
        page.goto(f"{url}/cameras/gate/timeline?t={t0 + 2.5:.1f}")
        picture_is_of(page, t0 + 2.5)
        until(lambda: cutter.starts == converter.starts == 1, what="the children start with the page")
        first_s = page.evaluate(FIRST_PICTURE)
        expect(page.locator(".stage .converted")).to_be_visible()
        length_s = page.evaluate("[...document.querySelectorAll('video')].find(v => v.videoWidth).duration")
        assert cutter.starts == converter.starts == 1
        page.close()
    site.close()
    assert length_s < 1.0 + 2.0 + 0.2, "a second, from the key frame before"
    with capfd.disabled():
        print(f"\nH.265 of 1080p on the timeline: first picture {first_s:.1f} s after Play")
    assert first_s < 6 * PATIENCE


def test_what_turns_out_not_to_play_is_converted(visit: Visit, house: House) -> None:
    """The browser says it could, and then cannot."""
    film = numbered_footage.encoded_footage(0, 40, codec="libx265")
    house.site.segments.put(numbered_footage.record(house.site.root, film, house.t0 + 8, camera="gate"))
    page = visit(f"/cameras/gate/timeline?t={house.t0 + 9:.1f}")
    page.evaluate("HTMLMediaElement.prototype.canPlayType = () => 'probably'")
    picture_is_of(page, house.t0 + 9)
    page.get_by_role("button", name="Play").click()
    expect(page.locator(".stage .converted")).to_be_visible()


def test_sound_is_muted_until_it_is_asked_for(visit: Visit, house: House) -> None:
    film = beeping(house.site.root / "film.mp4", seconds=6)
    row = SegmentRow(
        camera="dock", path="segments/dock/beeping.mp4", t_start=house.t0 + 20, t_end=house.t0 + 26,
        bytes=film.stat().st_size, frames=60, codec="h264", size=(320, 240), complete=True,
    )  # fmt: skip
    film.rename(house.site.root / row.path)
    house.site.segments.put(row)
    page = visit(f"/cameras/dock/timeline?t={row.t_start + 0.5:.1f}")
    picture_is_of(page, row.t_start + 0.5)
    sound = page.get_by_role("button", name="Sound")
    expect(sound).to_be_hidden()
    page.get_by_role("button", name="Play").click()
    expect(sound).to_have_attribute("aria-pressed", "false")
    muted = "() => [...document.querySelectorAll('video')].filter(v => v.src).map(v => v.muted)"
    assert set(page.evaluate(muted)) == {True}
    sound.click()
    page.wait_for_function("() => [...document.querySelectorAll('video')].some(v => !v.muted && !v.paused)")
    page.keyboard.press("m")
    expect(sound).to_have_attribute("aria-pressed", "false")


def test_the_clip_of_an_alert_is_converted_too(visit: Visit, house: House) -> None:
    row = numbered_footage.record(
        house.site.root, numbered_footage.encoded_footage(0, 80, codec="libx265"), house.t0, camera="gate", name="hevc"
    )
    segment = RecordedSegment(house.site.root / row.path, row.t_start, row.t_end)
    cut_clip([segment], house.t0 + 1, house.t0 + 7, house.site.root / "evidence/walker/clip.mp4")
    page = visit("/alerts/walker")
    page.wait_for_function("() => document.getElementById('clip').videoWidth > 0")
    assert "/api/v1/alerts/walker/rendition.mp4" in page.evaluate("document.getElementById('clip').src")
    page.evaluate("document.getElementById('clip').play()")
    page.wait_for_function("() => document.getElementById('clip').currentTime > 1")


# Camera times of what the panes show now; null: a picture or nothing.
SHOWN_S = """async () => {
    const shown = [...document.querySelectorAll('.stage')].map(stage =>
        stage.dataset.shows === 'picture' ? null : stage.querySelectorAll('video')['ab'.indexOf(stage.dataset.shows)]);
    window.starts ??= {};
    for (const video of shown) if (video?.src && !(video.src in starts))
        starts[video.src] = Number((await fetch(video.src, {method: 'HEAD'})).headers.get('X-Recording-Start'));
    return shown.map(video =>
        video && !video.paused && video.src in starts ? starts[video.src] + video.currentTime : null);
}"""
OFF_S_MAX = 0.25


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_cameras_play_in_step_past_a_gap_of_one_and_one_is_watched_alone_again(
    visit: Visit, house: House, size: dict[str, object]
) -> None:
    house.site.record("gate", house.t0 + 8)
    house.site.record("gate", house.t0 + 16, seconds=4.0)
    house.site.record("dock", house.t0 + 14, seconds=6.0)  # it has a gap of six seconds and goes on
    page = visit("/timeline", **size)
    page.locator("#timeline[data-loaded]").wait_for()
    for name in ("dock", "gate"):
        page.get_by_role("checkbox", name=f"Watch {name} together with others").check()
    expect(page.locator(".stage")).to_have_count(2)
    assert "with=dock,gate" in page.url
    page = visit(f"/timeline?with=dock,gate&t={house.t0 + 3:.1f}", **size)
    page.locator("#timeline[data-loaded]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]  # type: ignore[index]
    boxes = [each.bounding_box() for each in page.locator(".stage").all()]
    stacked = boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]  # type: ignore[index]
    assert stacked == (size is PHONE)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => [...document.querySelectorAll('video')].filter(v => !v.paused).length === 2")
    page.evaluate("""() => {  // one is put out of step, as by a stall of its own
        const video = [...document.querySelectorAll('.stage')].at(-1).querySelector('video');
        video.currentTime = Math.max(0, video.currentTime + 0.8);
    }""")
    drifts, alone = [], 0
    while not alone:
        shown = page.evaluate(SHOWN_S)
        if None not in shown:
            drifts.append(abs(shown[0] - shown[1]))
        elif drifts and shown[1] is not None:
            alone += 1
            expect(page.locator(".stage").nth(0).locator(".note")).to_contain_text("Not recorded")
        assert page.locator("#play").inner_text() == "Pause", "it ended before the gap was seen"
        page.wait_for_timeout(100)
    shot(page, "in-step")
    assert len(drifts) >= 8
    assert max(drifts[len(drifts) // 2 :]) < OFF_S_MAX, drifts
    page.get_by_role("button", name="Alert before").click()
    expect(page.locator(".stage.chosen")).to_have_attribute("data-camera", "gate")
    page.get_by_role("checkbox", name="Watch dock together with others").uncheck()
    expect(page.locator(".stage")).to_have_count(1)
    expect(page.locator("#who")).to_have_text("gate")
