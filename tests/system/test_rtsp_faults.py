"""Nine cameras go wrong in nine ways at once, one has a wrong password, and one beside them has nothing."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import av
import pytest

from appliance import config
from appliance.base.clock import SystemClock
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.types import CameraState, FrameBoxes, Gap, SegmentRow, StreamHeader
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.camera_rig import CameraRig
from tests.support.numbered_footage import number
from tests.support.scripted_sources import Heard, clip
from tests.support.waiting import PATIENCE, until

PASSWORD = "s3cr:t/w@rd"
WELL, LOCKED = "well", "locked"
LASTING = ("stall", "hang", "drip")
AT_ONCE = ("cut", "reset", "garbage", "noise", "size", "back")
FPS, COUNT = 15, 90
BACK_S, HOLE_S = 11.0, 0.5


class House(CameraRig):
    """Cameras as `vedette run` has them, all in one process, each with a recording."""

    def __init__(self, root: Path, urls: dict[str, str]) -> None:
        cameras = {
            name: config.CameraConfig(url=url, stall_timeout_s=4.0, connect_timeout_s=4.0) for name, url in urls.items()
        }
        super().__init__(root, cameras, tick_s=0.3)

    def states(self, camera: str) -> list[str]:
        return [each.state for each in self.of(camera, CameraState)]

    def seen(self, camera: str) -> int:
        return sum(boxes.looked for boxes in self.of(camera, FrameBoxes))

    def recorded(self, camera: str) -> list[tuple[float, int]]:
        """(camera time, number) of each picture that is on disk, in the order of recording."""
        found = []
        for row in self.of(camera, SegmentRow):
            if row.complete and row.frames:
                with av.open(str(self.root / row.path)) as segment:
                    for frame in segment.decode(video=0):
                        assert (frame.width, frame.height) == row.size
                        found.append((row.t_start + float(frame.time), number(frame.to_ndarray(format="rgb24"))))
        return found


@dataclass
class Story:
    """What the house told; at: UTC when all faults had begun. recorded: see `House.recorded`."""

    house: House
    at: float
    back: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def gaps(self, camera: str) -> list[Gap]:
        return [gap for gap in self.house.of(camera, Gap) if gap.t_end is not None]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("faults")
    film = clip(folder / "film.mp4", COUNT, fps=FPS, gop=FPS)
    wider = clip(folder / "wider.mp4", COUNT, fps=FPS, gop=FPS, size=(480, 320))
    names = [*LASTING, *AT_ONCE, WELL, LOCKED]
    with FaultyRtspServer.in_thread(dict.fromkeys(names, film), user="viewer", password=PASSWORD) as server:
        urls = {name: server.url(name) for name in names}
        urls[LOCKED] = f"rtsp://viewer:hunter2@127.0.0.1:{server.port}/{LOCKED}"
        with House(folder, urls) as house:
            fine = [name for name in names if name != LOCKED]
            until(lambda: all(house.seen(name) > 2 for name in fine))
            begin(server, wider)
            told = Story(house, SystemClock().now())
            seen = house.seen(WELL)
            until(lambda: all(house.states(name)[-1] != "live" and house.of(name, Gap) for name in LASTING))
            until(lambda: house.seen(WELL) > seen + 2, what="the one beside them is looked at while they are ill")
            server.resume()
            told.back = {name: house.seen(name) for name in fine}
            until(lambda: all(house.states(name)[-1] == "live" for name in fine))
            until(lambda: all(house.seen(name) > told.back[name] + 2 for name in fine))
    told.recorded = {name: house.recorded(name) for name in fine}
    return told


def begin(server: RtspServerThread, wider: Path) -> None:
    server.stall("stall")
    server.hang("hang")
    server.drip("drip", bytes_per_s=300)
    server.cut("cut")
    server.cut("reset", reset=True)
    server.garbage("garbage", size=20_000)
    server.garbage("noise", size=20_000, framed=True)
    server.change("size", wider)
    server.jump_back("back", BACK_S)


def holes(recorded: list[tuple[float, int]]) -> list[float]:
    return [b[0] - a[0] for a, b in itertools.pairwise(recorded) if b[0] - a[0] > HOLE_S]


@pytest.mark.parametrize("camera", LASTING)
def test_a_fault_that_lasts_is_told_and_leaves_a_gap_where_there_are_no_pictures(story: Story, camera: str) -> None:
    states = story.house.states(camera)
    assert states[:2] == ["connecting", "live"]
    assert {"stalled", "lost"} & set(states)
    assert states[-1] == "live"
    dark = [(a[0], b[0]) for a, b in itertools.pairwise(story.recorded[camera]) if b[0] - a[0] > HOLE_S]
    gaps = story.gaps(camera)
    assert gaps
    for begun, ended in dark:
        if ended - begun > 3:
            middle = (begun + ended) / 2
            assert any(gap.t_start <= middle <= (gap.t_end or 0) for gap in gaps), (begun, ended, gaps)


@pytest.mark.parametrize("camera", [*LASTING, *AT_ONCE])
def test_it_is_looked_at_and_recorded_again_by_itself(story: Story, camera: str) -> None:
    boxes = story.house.of(camera, FrameBoxes)
    assert sum(each.looked for each in boxes) > story.back[camera] + 2
    times = [each.t for each in boxes]
    assert times == sorted(times)
    assert story.recorded[camera][-1][0] > story.at
    assert not any(each.warning for each in story.house.cameras.values())


@pytest.mark.parametrize("camera", ["cut", "reset"])
def test_a_connection_that_breaks_is_told_as_a_gap(story: Story, camera: str) -> None:
    assert story.house.states(camera)[:4] == ["connecting", "live", "lost", "live"]
    assert len({header.run for header in story.house.of(camera, StreamHeader)}) == 2
    assert any(gap.t_end is not None for gap in story.house.of(camera, Gap))


def test_a_size_that_changes_in_mid_stream_begins_a_new_run_and_a_new_segment(story: Story) -> None:
    headers = story.house.of("size", StreamHeader)
    assert [header.size for header in headers] == [(320, 240), (480, 320)]
    assert not story.gaps("size")
    assert not holes(story.recorded["size"])
    assert {row.size for row in story.house.of("size", SegmentRow)} == {(320, 240), (480, 320)}


def test_stamps_that_jump_back_11_s_cost_not_one_picture(story: Story) -> None:
    shown = story.recorded["back"]
    assert [b[1] for b in shown[1:]] == [(a[1] + 1) % COUNT for a in shown[:-1]]
    # Time is anchored anew to when the picture came, which may be late on a busy machine.
    assert all(hole < 2 * PATIENCE for hole in holes(shown))
    assert not story.gaps("back")
    assert story.house.states("back") == ["connecting", "live"]


def test_what_is_no_video_is_outlived(story: Story) -> None:
    """Bytes between frames may cost the connection, a frame of noise a picture; both come back within the time-outs."""
    for camera in ("garbage", "noise"):
        assert all(hole < 5 * PATIENCE for hole in holes(story.recorded[camera]))


def test_a_wrong_password_is_said_and_not_hammered(story: Story) -> None:
    told = story.house.of(LOCKED, CameraState)
    assert [each.state for each in told] == ["connecting", "lost"]
    assert "refused the password (401)" in told[-1].reason
    everything = str(story.house.heard.messages)
    assert "hunter2" not in everything
    assert PASSWORD not in everything


def test_the_camera_beside_them_lost_not_one_picture(story: Story) -> None:
    shown = story.recorded[WELL]
    assert story.house.states(WELL) == ["connecting", "live"]
    assert not story.house.of(WELL, Gap)
    assert [b[1] for b in shown[1:]] == [(a[1] + 1) % COUNT for a in shown[:-1]]
    assert not holes(shown)


# -- a recording alone, as of a camera with a second stream for detection


@contextlib.contextmanager
def recording(server: RtspServerThread, root: Path) -> Iterator[tuple[RtspSource, SegmentRecorder, Heard]]:
    heard, clock = Heard(), SystemClock()
    source = RtspSource("gate", server.url("main"), clock, SocketFinder(), connect_s=2.0, stall_s=2.0)
    recorder = SegmentRecorder(RecordTarget(root, "gate", 1.0, 0), clock, heard)
    yield source, recorder, heard
    recorder.end()
    source.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": clip(tmp_path / "film.mp4", COUNT, fps=FPS, gop=5)}) as running:
        yield running


def test_a_camera_that_was_silent_while_it_was_opened_is_recorded_all_the_same(
    server: RtspServerThread, tmp_path: Path
) -> None:
    """FFmpeg then knows no size, and no muxer takes a stream without one: the first key frame tells."""
    server.stall()
    with recording(server, tmp_path) as (source, recorder, heard):
        info = source.open()
        assert info.size == (0, 0)
        recorder.begin(info, "run")
        server.resume()
        for packet in itertools.islice(source.packets(), 20):
            recorder.take(packet)
    rows = [row for row in heard.of(SegmentRow) if row.complete]
    assert (sum(row.frames for row in rows), recorder.lost, recorder.warning) == (20, 0, "")
    assert {row.size for row in rows} == {(320, 240)}
    assert not heard.of(Gap)


def test_a_recording_that_nobody_looks_at_notices_a_new_size_by_itself(
    server: RtspServerThread, tmp_path: Path
) -> None:
    wider = clip(tmp_path / "wider.mp4", COUNT, fps=FPS, gop=5, size=(480, 320))
    with recording(server, tmp_path) as (source, recorder, heard):
        recorder.begin(source.open(), "run")
        for n, packet in enumerate(source.packets()):
            if n == 8:
                server.change("main", wider)
            recorder.take(packet)
            if any(row.size == (480, 320) and row.frames > 5 for row in heard.of(SegmentRow)):
                break
            assert n < 100, heard.of(SegmentRow)
    for row in heard.of(SegmentRow):
        if row.complete and row.frames:
            with av.open(str(tmp_path / row.path)) as segment:
                told = segment.streams.video[0].codec_context
                assert (told.width, told.height) == row.size
                assert {(frame.width, frame.height) for frame in segment.decode(video=0)} == {row.size}
