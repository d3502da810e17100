"""A one-stream camera over RTSP: idle while nothing happens, and nobody is missed for it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest
from places import FPS, Lookout, place
from streams import Heard
from waiting import PATIENCE, until

from appliance import config
from appliance.clock import SystemClock
from appliance.decode_policy.keyframe_policy import LATE_SHARE
from appliance.demo.rtsp_server import RtspServer, RtspServerThread
from appliance.inference.inference_worker import InferenceWorker
from appliance.ingest.camera_runner import CameraRunner
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.socket_meter import SocketFinder
from appliance.track.tracker import Tracker
from appliance.types import CameraMeter, FrameBoxes

HEARTBEAT_S = 2.0
JITTER_S = 0.15
VISIT = (13.4, 16.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RtspServerThread]:
    folder = tmp_path_factory.mktemp("film")
    mounts = {
        "visit": place(folder / "visit.mp4", 20, [VISIT], bframes="0"),
        "quiet": place(folder / "quiet.mp4", 20, gop=15, bframes="0"),
    }
    with RtspServer.in_thread(mounts) as running:
        yield running


class Site:
    """A camera and the detector's thread; `tick` once in a while, as the process does."""

    def __init__(self, url: str) -> None:
        self.heard = Heard()
        clock, detector = SystemClock(), Lookout()
        plan = config.CameraConfig(url=url, record=False, detect=config.DetectConfig(heartbeat_s=HEARTBEAT_S))
        self.watch = DetectStream("gate", detector, Tracker, plan.detect, clock, self.heard)
        self.camera = CameraRunner("gate", plan, None, self.watch, SocketFinder(), clock, self.heard)
        self.looks = InferenceWorker(detector, [self.watch], clock)
        self.thread = threading.Thread(target=self.looks.run, daemon=True)

    def __enter__(self) -> Site:
        self.thread.start()
        self.camera.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.camera.stop()
        self.camera.join(5)
        self.looks.stop()
        self.thread.join(5)

    def boxes(self) -> list[FrameBoxes]:
        return self.heard.of(FrameBoxes)

    def visits(self) -> list[list[FrameBoxes]]:
        """Looks with somebody in them, visit by visit."""
        seen = [each for each in self.boxes() if each.objects]
        visits: list[list[FrameBoxes]] = []
        for each in seen:
            if not visits or each.t - visits[-1][-1].t > 5:
                visits.append([])
            visits[-1].append(each)
        return visits


def test_a_visitor_is_examined_from_the_first_moments_though_the_camera_was_idle(server: RtspServerThread) -> None:
    with Site(server.url("visit")) as site:
        until(lambda: site.watch.counts().decoding == "idle", 25)
        until(site.visits, 25)
        visitors = site.visits()
        until(lambda: site.boxes()[-1].t > visitors[0][0].t + 6, 20)
        (first, *_) = site.visits()
        counts = site.watch.counts()
        assert counts.skipped > 3 * FPS
        # A busy machine may leave out a live picture for a newer one, or one that was held and waited for seconds.
        assert set(counts.dropped) <= {"newer", "late"}
        # 2.6 s at five looks a second; a track is told from its second look on.
        assert len(first) >= (VISIT[1] - VISIT[0]) * 5 - 3 - counts.unexamined
        times = [each.t for each in site.boxes()]
        assert times == sorted(times)


def test_a_quiet_camera_is_idle_says_so_and_keeps_its_heartbeat(server: RtspServerThread) -> None:
    with Site(server.url("quiet")) as site:
        until(lambda: site.watch.counts().decoding == "idle", 25)
        before = site.watch.counts()
        began = len(site.boxes())
        until(lambda: len(site.boxes()) >= began + 4, 25)
        site.camera.tick()
        after = site.watch.counts()
        looks = [each.t for each in site.boxes()[began:]]
        # The quickest of them as promised; on a busy machine another may be later. Unit tests hold all of them to it.
        pauses = [b - a for a, b in itertools.pairwise(looks)]
        assert min(pauses) <= HEARTBEAT_S * (1 + LATE_SHARE) + JITTER_S
        assert max(pauses) <= PATIENCE * HEARTBEAT_S
        assert after.skipped - before.skipped > 5 * (after.decoded - before.decoded)
        (meter,) = site.heard.of(CameraMeter)
        assert (meter.decoding, meter.decoding_reason) == ("idle", "")
        assert meter.packets >= meter.decoded + meter.skipped - 1
        assert meter.skipped > 0
