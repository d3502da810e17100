"""Live video from the file that is being written: who joins, who lags, who may no longer look, and when it stops."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.base.child_processes import LIVE_FUNCTIONS
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import EvidenceError
from appliance.dashboard import live_api, live_feed, renditions
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.live_feed import LiveChoice, Movement
from appliance.dashboard.stream_api import StreamViewer, TooManyViewers
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.sandbox.sandbox import Sandbox, SandboxLimits
from appliance.types import FrameBoxes, Gap, SegmentRow, TrackedObject
from appliance.web.texts import set_language
from appliance.web.visitor import OWNER, Visitor
from tests.support.dashboard_site import Site
from tests.support.live_stream import LiveMessage, LiveParser, numbered_frames
from tests.support.scripted_sources import clip
from tests.support.waiting import until


class Recording:
    """A camera's recording that grows when it is told to. gop: 10 frames of 0.1 s."""

    def __init__(self, site: Site, count: int, camera: str = "gate", **how: object) -> None:
        self._site = site
        path = clip(site.root / f"{camera}.source.mp4", count, **how)  # type: ignore[arg-type]
        clock = ManualClock(time.time())
        source = FileSource(camera, str(path), clock)
        self._recorder = SegmentRecorder(RecordTarget(site.root, camera, 2.0, 0), clock, self._emit)
        self._recorder.begin(source.open(), "run1")
        self._packets = source.packets()

    def _emit(self, message: SegmentRow | Gap) -> None:
        assert isinstance(message, SegmentRow)
        self._site.segments.put(message)

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._recorder.take(next(self._packets))

    def end(self) -> None:
        self._recorder.end()


class Watching:
    """A viewer who reads when told to."""

    def __init__(self, viewer: StreamViewer) -> None:
        self._viewer, self._chunks, self._parser = viewer, viewer.__aiter__(), LiveParser()
        self.got: list[LiveMessage] = []
        self._numbers: dict[tuple[int, int], list[int]] = {}  # by camera and bytes, for it is asked after each chunk

    async def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end
            self.got += self._parser.feed(await asyncio.wait_for(self._chunks.__anext__(), 60))

    def video(self, index: int = 0) -> bytes:
        return b"".join(each.content for each in self.got if each.kind == "v" and each.index == index)

    def numbers(self, index: int = 0) -> list[int]:
        video = self.video(index)
        if video and (index, len(video)) not in self._numbers:
            self._numbers[index, len(video)] = [n for _, n in numbered_frames(video)]
        return self._numbers.get((index, len(video)), [])

    def last(self, index: int = 0) -> int:
        return (self.numbers(index) or [-1])[-1]

    def notes(self, index: int = 0) -> list[dict[str, object]]:
        return [json.loads(each.content) for each in self.got if each.kind == "n" and each.index == index]

    def leave(self) -> None:
        self._viewer.leave()


@pytest.fixture
def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path, SystemClock())
    yield made
    made.close()


def run(site: Site, story: Callable[[LiveHub], Awaitable[None]]) -> None:
    async def whole() -> None:
        hub = LiveHub(site.segments, site.boxes, site.root, site.clock)
        try:
            await story(hub)
        finally:
            await hub.finish()

    asyncio.run(whole())


def test_a_viewer_gets_the_newest_group_of_pictures_and_then_what_is_written(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 70)
        recording.grow(17)
        one = Watching(hub.join(["gate"], lambda: OWNER))
        await one.until(lambda: len(one.numbers()) >= 5)
        assert one.numbers() == list(range(10, 15)), "from the key frame on, as far as it was flushed"
        for n in range(1, 6):  # over three files
            recording.grow(10)
            await one.until(lambda n=n: len(one.numbers()) >= 5 + 10 * n)
        assert one.numbers() == list(range(10, 65))
        times = [t for t, _ in numbered_frames(one.video())]
        assert times == pytest.approx([times[0] + n / 10 for n in range(55)], abs=1e-3)
        assert next(each.content for each in one.got if each.kind == "c").startswith(b'video/mp4; codecs="avc1.')
        two = Watching(hub.join(["gate"], lambda: OWNER))
        await two.until(lambda: bool(two.video()))
        assert two.numbers() == list(range(60, 65)), "the second viewer begins where the camera is now"

    run(site, story)


def test_who_reads_too_slowly_goes_on_at_the_newest_key_frame(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 140)
        recording.grow(10)
        slow, quick = Watching(hub.join(["gate"], lambda: OWNER)), Watching(hub.join(["gate"], lambda: OWNER))
        await slow.until(lambda: len(slow.numbers()) >= 5)
        for n in range(25, 140, 10):
            recording.grow(10)
            await quick.until(lambda n=n: quick.last() >= n - 15)
        assert quick.numbers() == list(range(quick.numbers()[-1] + 1)), "nobody waits for the slow one"
        assert hub.skipped == 0
        before = slow.numbers()
        await slow.until(lambda: slow.last() >= quick.last())
        left_out = slow.numbers()[len(before) :]
        assert left_out[0] % 10 == 0, "a key frame"
        assert left_out[0] > 100
        assert left_out == list(range(left_out[0], left_out[-1] + 1))
        assert hub.skipped > 15

    run(site, story)


def test_a_viewer_who_lost_the_right_is_sent_nothing_more(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        recordings = [Recording(site, 100, camera) for camera in ("gate", "dock")]
        who: list[Visitor | None] = [OWNER]
        watching = Watching(hub.join(["gate", "dock"], lambda: who[0]))
        for recording in recordings:
            recording.grow(11)
        await watching.until(lambda: bool(watching.video(0)) and bool(watching.video(1)))
        who[0] = Visitor("ann", "viewer", frozenset({"dock"}))
        seen = len(watching.video(0))
        for recording in recordings:
            recording.grow(8)
        await watching.until(lambda: watching.last(1) >= 14)
        assert len(watching.video(0)) == seen, "of the camera that was taken away"
        who[0] = None
        recordings[1].grow(10)
        with pytest.raises(StopAsyncIteration):
            await watching.until(lambda: False)

    run(site, story)


def test_a_wall_gets_video_of_what_moves_only(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        recordings = {camera: Recording(site, 100, camera) for camera in ("gate", "dock")}
        wall = Watching(hub.join(["gate", "dock"], lambda: OWNER, only_active=True))
        for recording in recordings.values():
            recording.grow(11)
        now = site.clock.now()
        walker = TrackedObject(track=1, label="person", score=0.9, box=(0.1, 0.1, 0.2, 0.4))
        parked = TrackedObject(track=2, label="car", score=0.9, box=(0.5, 0.5, 0.8, 0.8), stood_s=900.0)
        for camera, found in (("gate", walker), ("dock", parked)):
            frame = FrameBoxes(camera=camera, seq=0, frame=0, t=now, looked=True, objects=(found,))
            site.boxes.append(camera, "run-1", [frame])
        await wall.until(lambda: bool(wall.video(0)) and any(each.kind == "b" and each.index == 1 for each in wall.got))
        recordings["gate"].grow(20)
        # What came before the key frame that the video begins with may have been left out with it.
        again = FrameBoxes(camera="gate", seq=1, frame=1, t=now + 0.2, looked=True, objects=(walker,))
        site.boxes.append("gate", "run-1", [again])

        def looks() -> list[dict[str, Any]]:
            told = [json.loads(each.content) for each in wall.got if each.kind == "b" and each.index == 0]
            return [look for each in told for look in each]

        await wall.until(lambda: len(wall.numbers(0)) >= 25 and bool(looks()) and looks()[-1]["t"] > now + 0.1)
        assert wall.notes(0)[-1] == {"active": True, "problem": ""}
        assert wall.video(1) == b""
        assert wall.notes(1) == [{"active": False, "problem": ""}]
        assert looks()[-1]["t"] == pytest.approx(now + 0.2, abs=1e-3)
        assert looks()[-1]["objects"][0]["label"] == "person"

    run(site, story)


def test_boxes_that_are_not_in_the_store_yet_come_once_and_in_order(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        now = site.clock.now()
        frames = [FrameBoxes(camera="gate", seq=n, frame=n, t=now + n / 5, looked=True) for n in range(4)]
        hub.newest_boxes = site.boxes.noted
        site.boxes.append("gate", "run-1", frames[:2])
        for frame in frames[1:3]:
            site.boxes.note(frame)
        watching = Watching(hub.join(["gate"], lambda: OWNER))

        def times() -> list[float]:
            return [look["t"] for each in watching.got if each.kind == "b" for look in json.loads(each.content)]

        await watching.until(lambda: len(times()) >= 3)
        site.boxes.note(frames[3])
        await watching.until(lambda: len(times()) >= 4)
        assert times() == [frame.t for frame in frames]
        for n in range(200):
            site.boxes.note(FrameBoxes(camera="gate", seq=n, frame=n, t=now + n, looked=True))
        assert len(site.boxes.noted("gate")) == 64

    run(site, story)


def test_the_first_pictures_come_with_their_boxes_however_old(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        t0 = site.clock.now() - 16
        site.record("gate", t0)  # eight seconds, so that the newest key frame is older than BOXES_BACK_S
        watching = Watching(hub.join(["gate"], lambda: OWNER))

        def times() -> list[float]:
            return [look["t"] for each in watching.got if each.kind == "b" for look in json.loads(each.content)]

        await watching.until(lambda: bool(watching.video()) and bool(times()))
        first = t0 + watching.numbers()[0] / 10
        assert times()[0] <= first
        assert times()[-1] == pytest.approx(t0 + 7.8)

    run(site, story)


def test_a_camera_that_is_not_recorded_says_so_until_it_is(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        watching = Watching(hub.join(["gate"], lambda: OWNER))
        await watching.until(lambda: len(watching.notes()) > 0 and bool(watching.notes()[-1]["problem"]))
        assert watching.notes()[-1]["problem"] == "nothing is being recorded of this camera now"
        set_language("de")  # as the guard does for each request
        german = Watching(hub.join(["gate"], lambda: OWNER))
        await german.until(lambda: len(german.notes()) > 0 and bool(german.notes()[-1]["problem"]))
        assert german.notes()[-1]["problem"] == "von dieser Kamera wird gerade nichts aufgezeichnet"
        Recording(site, 20).grow(15)
        await watching.until(lambda: bool(watching.video()))
        assert watching.notes()[-1]["problem"] == ""

    run(site, story)


def test_a_store_that_was_late_leaves_no_problem_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(hub: LiveHub) -> None:
        Recording(site, 20).grow(15)
        watching = Watching(hub.join(["gate"], lambda: OWNER))
        await watching.until(lambda: bool(watching.video()))
        with monkeypatch.context() as late:
            late.setattr(live_feed.LiveFiles, "newest", lambda _: None)
            await watching.until(lambda: bool(watching.notes()) and watching.notes()[-1]["problem"] != "")
        await asyncio.wait_for(watching.until(lambda: watching.notes()[-1]["problem"] == ""), 10)

    run(site, story)


def test_a_damaged_file_costs_that_file_only(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 100)
        recording.grow(11)
        row = site.segments.latest("gate")
        assert row is not None
        (site.root / row.path).write_bytes(b"\xff" * 4096)
        watching = Watching(hub.join(["gate"], lambda: OWNER))
        await watching.until(
            lambda: any("no box of a fragmented MP4" in str(each["problem"]) for each in watching.notes())
        )
        recording.grow(15)  # into the next file
        await watching.until(lambda: bool(watching.video()))
        assert watching.numbers()[0] == 20

    run(site, story)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # another thread has closed it meanwhile
        return ""


def test_places_are_bounded_and_given_back_and_the_file_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_api, "VIEWERS_MAX", 2)

    def open_files() -> int:
        return sum(str(site.root / "segments") in _target(fd) for fd in os.listdir("/proc/self/fd"))

    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 30)
        recording.grow(11)
        files = open_files()  # the recorder's own
        viewers = [Watching(hub.join(["gate"], lambda: OWNER)) for _ in range(2)]
        for viewer in viewers:
            await viewer.until(lambda viewer=viewer: bool(viewer.video()))
        assert open_files() == files + 1, "one for all viewers"
        with pytest.raises(TooManyViewers):
            hub.join(["gate"], lambda: OWNER)
        for viewer in viewers:
            viewer.leave()
            viewer.leave()
        assert hub.viewers == 0
        await asyncio.to_thread(until, lambda: open_files() == files)
        hub.join(["gate"], lambda: OWNER).leave()

    run(site, story)


H264 = LiveChoice(h264=True)


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded stays live for as long as a busy machine takes to start the child that converts it."""
    monkeypatch.setattr(live_feed, "STALE_S", 600.0)


@pytest.mark.usefixtures("slow_machine")
def test_h265_is_converted_once_for_all_and_ends_after_the_last_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed, "LINGER_S", 0.5)

    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 100, fps=20, gop=20, codec="libx265", b_frames=2, size=(640, 480))
        recording.grow(40)
        one, two = (Watching(hub.join(["gate"], lambda: OWNER, choice=H264)) for _ in range(2))
        for n in range(2):  # over three files
            recording.grow(30)
            await one.until(lambda n=n: one.last() >= 40 + 30 * n)
        await two.until(lambda: two.last() >= one.last())
        kinds = [each.content for each in one.got if each.kind == "c"]
        assert len(kinds) == 1, "files of one kind go on without a new beginning"
        assert kinds[0].startswith(b'video/mp4; codecs="avc1.')
        numbers, times = one.numbers(), [t for t, _ in numbered_frames(one.video())]
        assert numbers[0] % 20 == 0
        assert numbers == list(range(numbers[0], numbers[-1] + 1, 2)), "ten of twenty a second, and none is lost"
        assert times == pytest.approx([times[0] + n / 10 for n in range(len(times))], abs=0.002)
        assert one.notes()[-1]["instead"] == "converted"
        assert len(hub.conversions.running) == 1
        assert hub.conversions.cpu_s > 0
        one.leave()
        two.leave()
        await asyncio.to_thread(until, lambda: not hub.conversions.running)

    run(site, story)


@pytest.mark.usefixtures("slow_machine")
def test_a_page_that_needs_a_conversion_finds_its_child_started(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sandbox] = []

    def noted() -> Sandbox:
        made.append(Sandbox(LIVE_FUNCTIONS, SandboxLimits(wall_s=60.0), raises=(EvidenceError,)))
        return made[-1]

    monkeypatch.setattr(renditions, "_new_sandbox", noted)

    async def story(hub: LiveHub) -> None:
        Recording(site, 30, "dock").grow(20)
        await asyncio.to_thread(hub.expect, "dock")
        assert not made, "H.264 needs none"
        Recording(site, 30, codec="libx265").grow(20)
        await asyncio.to_thread(hub.expect, "gate")
        begun = made[0].pid
        assert begun > 0
        one = Watching(hub.join(["gate"], lambda: OWNER, choice=H264))
        await one.until(lambda: bool(one.video()))
        assert (len(made), made[0].pid, made[0].starts) == (1, begun, 1)
        await asyncio.to_thread(hub.expect, "gate")

    run(site, story)
    assert all(each.pid == 0 for each in made), "none is left"


@pytest.mark.usefixtures("slow_machine")
def test_of_more_cameras_than_it_may_convert_the_others_say_so(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        hub.conversions.most = 1
        for camera in ("gate", "dock"):
            Recording(site, 30, camera, codec="libx265").grow(20)
        one = Watching(hub.join(["gate"], lambda: OWNER, choice=H264))
        await one.until(lambda: bool(one.video()))
        two = Watching(hub.join(["dock", "gate"], lambda: OWNER, choice=H264))
        await two.until(lambda: bool(two.video(1)) and "as many" in str(two.notes()[-1]["problem"]))
        assert two.video(0) == b""
        as_sent = Watching(hub.join(["dock"], lambda: OWNER))
        await as_sent.until(lambda: bool(as_sent.video()))
        assert next(each.content for each in as_sent.got if each.kind == "c").startswith(b'video/mp4; codecs="hvc1')

    run(site, story)


def test_one_camera_may_be_wanted_in_h264_and_the_others_as_they_are_recorded(site: Site) -> None:
    async def story(hub: LiveHub) -> None:
        for camera in ("gate", "dock"):
            Recording(site, 30, camera, codec="libx265").grow(20)
        one = Watching(hub.join(["gate", "dock"], lambda: OWNER, h264=["dock"]))
        await one.until(lambda: bool(one.video(0) and one.video(1)))
        types = {each.index: each.content for each in one.got if each.kind == "c"}
        assert types[0].startswith(b'video/mp4; codecs="hvc1')
        assert types[1].startswith(b'video/mp4; codecs="avc1')

    run(site, story)


@pytest.mark.usefixtures("slow_machine")
def test_one_that_costs_too_much_is_shown_by_its_key_frames(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renditions, "SHARE_MAX", 0.0)
    monkeypatch.setattr(renditions, "COUNTED_S_MIN", 0.001)

    async def story(hub: LiveHub) -> None:
        recording = Recording(site, 100, codec="libx265")
        recording.grow(15)
        one = Watching(hub.join(["gate"], lambda: OWNER, choice=H264))
        await one.until(lambda: bool(one.video()))

        def spares() -> bool:
            return bool(one.notes()) and one.notes()[-1].get("keys_only") is True

        for n in range(8):
            recording.grow(10)
            await one.until(lambda n=n: one.last() >= 10 * n + (0 if spares() else 15))
        assert spares()
        assert [n for n in one.numbers() if n >= 50] == list(range(50, one.last() + 1, 10))

    run(site, story)


def test_movement_is_a_new_or_moved_object_not_a_parked_one() -> None:
    movement = Movement()

    def see(t: float, x: float, track: int = 1, stood_s: float | None = None) -> float:
        found = TrackedObject(track=track, label="car", score=0.9, box=(x, 0.1, x + 0.2, 0.3), stood_s=stood_s)
        movement.note(FrameBoxes(camera="gate", seq=0, frame=0, t=t, looked=True, objects=(found,)))
        return movement.moved_t

    assert see(10, 0.5, stood_s=60.0) == float("-inf")
    assert see(11, 0.505, stood_s=60.0) == float("-inf"), "it trembles"
    assert see(12, 0.53, stood_s=60.0) == 12
    assert see(13, 0.535) == 12
    assert see(14, 0.1, track=2) == 14, "somebody new"
    for n in range(3, 1200):
        see(15, 0.1, track=n)
    assert len(movement._places) <= live_feed.TRACKS_MAX
