"""Live video, a clip and the timeline in Firefox, by its distribution's package: the second engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from appliance import config
from appliance.base.clock import SystemClock
from tests.servers.rtsp import FaultyRtspServer
from tests.support.camera_rig import CameraRig
from tests.support.dashboard_site import Site, config_of, furnished, running
from tests.support.firefox import Firefox, firefox_program
from tests.support.live_stream import KeptBySite
from tests.support.scripted_sources import clip

pytestmark = pytest.mark.browser
H264 = """MediaSource.isTypeSupported('video/mp4; codecs="avc1.42E01E"')"""
ADVANCES = """(async video => {
  const from = video.currentTime;
  for (let n = 0; n < 200 && video.currentTime < from + 0.5; n++) await new Promise(done => setTimeout(done, 50));
  return video.currentTime - from;
})"""


@dataclass
class TwoEngines:
    """A site whose camera `gate` comes over RTSP and whose camera `dock` has an alert, and a Firefox to look with."""

    url: str
    t0: float  # when the recording of `dock` begins
    firefox: Firefox

    @property
    def plays(self) -> bool:
        """Whether this Firefox has H.264, which it takes from a library of the system."""
        return bool(self.firefox.evaluate(H264))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoEngines]:
    program = firefox_program()
    root = tmp_path_factory.mktemp("site")
    site = Site(root, SystemClock(), config=config_of())
    t0 = site.clock.now() - 60
    site.live("dock", t0)
    for n in range(2):
        site.record("dock", t0 + 8 * n)
    site.cut(site.raise_alert("walker", t0 + 3, camera="dock", seconds=2.0))
    film = clip(root / "film.mp4", 400, fps=20, gop=20, size=(320, 180))
    with FaultyRtspServer.in_thread({"main": film}) as camera:
        gate = config.CameraConfig.model_validate({"url": camera.url("main")})
        with CameraRig(root, {"gate": gate}, tick_s=1.0, heard=KeptBySite(site)), running(site.serve()) as url:
            firefox = Firefox(program, root / "profile")
            yield TwoEngines(url, t0, firefox)
            firefox.close()
    site.close()


@pytest.fixture(autouse=True)
def nothing_is_amiss(engine: TwoEngines) -> Iterator[None]:
    engine.firefox.faults.clear()
    yield
    assert not engine.firefox.faults


def test_live_video_plays_or_stills_say_why(engine: TwoEngines) -> None:
    page = engine.firefox
    page.open(f"{engine.url}/cameras/gate")
    if not engine.plays:
        page.until("document.querySelector('.mode').textContent === 'Stills: this browser cannot play H.264'")
        shown = page.evaluate("document.getElementById('frame-time').textContent")
        page.until(f"document.getElementById('frame-time').textContent !== {shown!r}")
        return
    page.until("document.querySelector('.stage.playing .mode')?.textContent === 'Live'")
    assert page.evaluate(f"{ADVANCES}(document.querySelector('.stage video'))") >= 0.5
    page.until("Date.now() / 1000 - document.querySelector('.stage video').currentTime < 2")


def test_a_clip_plays_and_is_sought(engine: TwoEngines) -> None:
    page = engine.firefox
    page.open(f"{engine.url}/alerts/walker")
    if not engine.plays:
        page.until(
            "document.querySelector('#stage .note')?.textContent.startsWith('This browser cannot play the clip')"
        )
        return
    page.until("document.getElementById('clip').readyState >= 2")
    assert page.evaluate("document.getElementById('clip').play().then(() => true)")
    assert page.evaluate(f"{ADVANCES}(document.getElementById('clip'))") >= 0.5
    page.evaluate("document.getElementById('clip').pause()")
    page.evaluate("document.querySelector('button[data-t]').click()")  # the event, two seconds after the beginning
    page.until("!document.getElementById('clip').seeking")
    moment = "Number(document.getElementById('clip').dataset.start) + document.getElementById('clip').currentTime"
    assert abs(page.evaluate(moment) - (engine.t0 + 3)) < 0.01


def test_the_timeline_plays_over_the_end_of_a_file(engine: TwoEngines) -> None:
    page = engine.firefox
    page.open(f"{engine.url}/cameras/dock/timeline?t={engine.t0 + 5:.1f}")
    page.until("document.querySelector('#timeline[data-loaded]') && document.querySelector('.stage canvas').dataset.t")
    page.evaluate("document.getElementById('play').click()")
    if not engine.plays:
        page.until("document.querySelector('.stage .note').textContent.startsWith('This browser cannot play this')")
        return
    page.until("[...document.querySelectorAll('.stage video')].some(video => !video.paused && video.currentTime > 0.3)")


PAGES = (
    "/", "/live", "/timeline", "/cameras", "/cameras/new", "/cameras/gate", "/cameras/gate/edit",
    "/cameras/gate/settings", "/cameras/gate/timeline", "/cameras/gate/trials", "/cameras/dock/why",
    "/alerts/open-gate", "/savings", "/scenarios", "/proofs", "/agreement", "/storage", "/models", "/notify",
    "/settings", "/settings/storage", "/users", "/access", "/account", "/system",
)  # fmt: skip


@pytest.fixture(scope="module")
def furnished_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with furnished(tmp_path_factory.mktemp("furnished"), {}) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_without_a_word_in_the_console(engine: TwoEngines, furnished_url: str, path: str) -> None:
    page = engine.firefox
    page.open("about:blank")  # Firefox reports what the page before still waited for
    page.faults.clear()
    page.open(furnished_url + path)
    page.until("document.readyState === 'complete' && document.querySelector('h1')?.offsetHeight > 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
