"""Pictures and stretches of the recording over HTTP: the right moment, kept, bounded, counted, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import EvidenceError
from appliance.base.local_files import DiskWriteError, failed_clip
from appliance.dashboard import recordings
from appliance.dashboard.recordings import CUT_S_MAX, WAITING_MAX, FrameCache, RecordingCuts, TooBusy
from appliance.media.recorded import ClipFile, FrameImages, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY, DirectReader, RecordingReader, SandboxedReader
from tests.support import numbered_footage
from tests.support.dashboard_site import Site
from tests.support.prometheus_text import samples
from tests.support.waiting import PATIENCE

T0 = 1_700_000_040.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Sixteen seconds of camera `gate` in two files, a key frame each second."""
    made = Site(tmp_path, ManualClock(T0 + 3600))
    for n in range(2):
        made.segments.put(
            numbered_footage.record(made.root, numbered_footage.encoded_footage(80 * n, 80), T0 + 8 * n, camera="gate")
        )
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as made:
        yield made


def number_of(jpeg: bytes) -> int:
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return numbered_footage.number(image)


def numbers_of(mp4: bytes) -> list[int]:
    with av.open(io.BytesIO(mp4)) as opened:
        return [numbered_footage.number(frame.to_ndarray(format="rgb24")) for frame in opened.decode(video=0)]


def stretch(t0: float, t1: float, more: str = "") -> str:
    return f"/api/v1/cameras/gate/recording.mp4?from={T0 + t0}&to={T0 + t1}{more}"


@pytest.mark.parametrize(("t", "shown"), [(0.0, 0), (0.95, 0), (3.4, 30), (7.99, 70), (8.0, 80), (17.0, 150)])
def test_a_frame_is_the_last_key_frame_before_its_moment(client: TestClient, t: float, shown: int) -> None:
    answer = client.get(f"/api/v1/cameras/gate/frame?t={T0 + t}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert number_of(answer.content) == shown
    assert float(answer.headers["x-frame-time"]) == pytest.approx(T0 + shown / 10)


def test_a_frame_is_cut_once_and_not_sent_again_to_who_has_it(client: TestClient) -> None:
    url = f"/api/v1/cameras/gate/frame?t={T0 + 3.4}"
    first = client.get(url)
    assert client.get(url + "&size=large").headers["etag"]
    again = client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["cache-control"] == "private, no-cache"
    assert client.get(f"/api/v1/cameras/gate/frame?t={T0 + 5.4}").headers["etag"] != first.headers["etag"]
    counted = samples(client.get("/metrics").text)
    assert ("vedette_recorded_frames_cut_total", frozenset(), 3.0) in counted


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"gate/frame?t={T0 + 60}", 404),
        (f"dock/frame?t={T0}", 404),
        (f"nobody/frame?t={T0}", 404),
        ("gate/frame?t=nan", 422),
        ("gate/frame?t=-1", 422),
        (f"gate/frame?t={T0}&size=huge", 422),
        (f"gate/recording.mp4?from={T0 + 60}&to={T0 + 70}", 404),
        (f"gate/recording.mp4?from={T0}&to={T0}", 422),
        (f"gate/recording.mp4?from={T0 + 9}&to={T0}", 422),
        (f"gate/recording.mp4?from={T0}&to={T0 + 901}", 422),
        (f"gate/recording.mp4?from=inf&to={T0}", 422),
        (f"nobody/recording.mp4?from={T0}&to={T0 + 4}", 404),
        (f"..%2F..%2Fetc/recording.mp4?from={T0}&to={T0 + 4}", 404),
        (f"nobody/recording?from={T0}&to={T0 + 4}", 404),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_refused_in_words(client: TestClient, path: str, status: int) -> None:
    answer = client.get(f"/api/v1/cameras/{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_a_stretch_over_two_files_plays_from_its_key_frame_on(client: TestClient) -> None:
    answer = client.get(stretch(6.5, 10))
    assert answer.headers["content-type"] == "video/mp4"
    assert float(answer.headers["x-recording-start"]) == pytest.approx(T0 + 6)
    assert numbers_of(answer.content) == list(range(60, 101))
    told = client.get(f"/api/v1/cameras/gate/recording?from={T0 + 6.5}&to={T0 + 10}").json()
    assert told | {"url": "", "download": "", "bytes": 0} == {
        "url": "", "download": "", "t_start": pytest.approx(T0 + 6), "t_end": pytest.approx(T0 + 10.1),
        "codec": "h264", "width": 320, "height": 240, "bytes": 0, "converted": False, "note": "", "sound": False,
    }  # fmt: skip
    assert client.get(told["url"]).content == answer.content
    assert "attachment" in client.get(told["download"]).headers["content-disposition"]


def test_a_stretch_is_read_in_ranges_and_cut_once(client: TestClient) -> None:
    whole = client.get(stretch(0, 4))
    part = client.get(stretch(0, 4), headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == whole.content[100:200]
    assert part.headers["content-range"] == f"bytes 100-199/{len(whole.content)}"
    assert client.get(stretch(0, 4), headers={"Range": f"bytes={len(whole.content)}-"}).status_code == 416
    assert client.get(stretch(0, 4), headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    assert client.head(stretch(0, 4)).headers["content-length"] == str(len(whole.content))
    counted = samples(client.get("/metrics").text)
    assert ("vedette_recordings_cut_total", frozenset(), 1.0) in counted
    assert ("vedette_recordings_cut_bytes_total", frozenset(), float(len(whole.content))) in counted


def test_a_download_is_named_by_camera_and_time_and_says_what_is_missing(client: TestClient) -> None:
    answer = client.get(stretch(12, 30, "&download=true"))
    assert answer.headers["content-disposition"] == 'attachment; filename="gate-20231114T221412Z.mp4"'
    assert answer.headers["x-recording-note"] == "it ends 14 s early"


def test_a_row_that_leads_out_of_the_recording_is_not_read(site: Site, client: TestClient) -> None:
    outside = site.root / "other.mp4"
    outside.write_bytes((site.root / f"segments/gate/{T0:.3f}.mp4").read_bytes())
    with site.db.transaction() as connection:
        connection.execute("UPDATE segment SET path = 'segments/../other.mp4' WHERE t_start = ?", (T0,))
    assert client.get(stretch(1, 3)).status_code == 404
    assert client.get(f"/api/v1/cameras/gate/frame?t={T0 + 2}").status_code == 404


def test_what_a_camera_recorded_that_is_gone_from_the_site_file_is_not_shown(site: Site, client: TestClient) -> None:
    site.segments.put(numbered_footage.record(site.root, numbered_footage.encoded_footage(0, 20), T0, camera="old"))
    for path in (f"frame?t={T0}", f"recording?from={T0}&to={T0 + 1}", f"recording.mp4?from={T0}&to={T0 + 1}"):
        answer = client.get(f"/api/v1/cameras/old/{path}")
        assert (answer.status_code, answer.json()["detail"]) == (404, "There is no such camera in the site file.")


def cuts_of(site: Site, **means: object) -> RecordingCuts:
    return RecordingCuts(site.segments, site.root, READ_DIRECTLY, site.clock, **means)  # type: ignore[arg-type]


def files(site: Site) -> list[str]:
    return sorted(each.name for each in (site.root / "cuts").iterdir())


def test_a_cut_that_nobody_plays_is_deleted_and_so_are_those_of_an_earlier_run(site: Site) -> None:
    (site.root / "cuts").mkdir()
    (site.root / "cuts/9.mp4").write_bytes(b"left")
    cuts = cuts_of(site)
    assert not (site.root / "cuts").exists()

    async def play() -> None:
        await cuts.get("gate", T0, T0 + 2)
        site.clock.advance(CUT_S_MAX - 1)
        await cuts.get("gate", T0 + 1, T0 + 3)
        await cuts.get("gate", T0, T0 + 2)  # still played
        site.clock.advance(CUT_S_MAX - 1)
        await cuts.get("gate", T0 + 2, T0 + 4)
        assert files(site) == ["1.mp4", "2.mp4", "3.mp4"]
        site.clock.advance(2)
        await cuts.get("gate", T0 + 3, T0 + 5)
        assert files(site) == ["3.mp4", "4.mp4"]

    asyncio.run(play())


def test_the_last_cut_is_deleted_too_although_nobody_asks_for_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = cuts_of(site)
    due: list[Callable[[], object]] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        await cuts.get("gate", T0, T0 + 2)
        monkeypatch.setattr(loop, "call_later", lambda delay, call: due.append(call))
        await cuts.get("gate", T0 + 1, T0 + 3)
        site.clock.advance(CUT_S_MAX)
        await cuts.get("gate", T0 + 1, T0 + 3)  # still played
        while due and files(site):
            site.clock.advance(1)
            due.pop(0)()
            site.clock.advance(CUT_S_MAX)
        monkeypatch.undo()

    asyncio.run(play())
    assert files(site) == []


def test_cuts_are_bounded_by_number_and_bytes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "CUTS_MAX", 2)
    cuts = cuts_of(site)
    asyncio.run(several(cuts, 3))
    assert files(site) == ["2.mp4", "3.mp4"]
    monkeypatch.setattr(recordings, "CUTS_BYTES_MAX", 1000)
    asyncio.run(several(cuts, 4))
    assert files(site) == ["7.mp4"]  # the one that was asked for stays, however large


async def several(cuts: RecordingCuts, count: int) -> None:
    for n in range(count):
        await cuts.get("gate", T0 + n, T0 + n + 1)


def test_a_cut_never_takes_the_room_that_recording_needs(site: Site) -> None:
    cuts = cuts_of(site, keep_free=1000, free_bytes=lambda root: 1500)
    with pytest.raises(DiskWriteError, match="the disk is too full"):
        asyncio.run(several(cuts, 1))
    assert cuts.cuts == 0


def test_a_cut_that_was_begun_before_something_was_erased_is_not_kept(site: Site) -> None:
    class Erasing(DirectReader):
        def clip(self, *values: Any, **named: Any) -> ClipFile:
            made = super().clip(*values, **named)
            cuts.empty()
            return made

    cuts = RecordingCuts(site.segments, site.root, Erasing(), site.clock)
    with pytest.raises(EvidenceError, match="was erased"):
        asyncio.run(several(cuts, 1))
    assert files(site) == []


class HeldReader(DirectReader):
    """Counts how many read at once, and makes them wait for `go`."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0
        self.go = threading.Event()

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> FrameImages:
        self.now += 1
        self.calls += 1
        self.most = max(self.most, self.now)
        self.go.wait(PATIENCE)
        self.now -= 1
        return super().key_frame(segment, t, side_max)


def test_many_viewers_make_one_picture_and_too_many_are_told_to_wait(site: Site) -> None:
    reader = HeldReader()
    frames = FrameCache(site.segments, site.root, reader)

    async def crowd() -> list[object]:
        moments = [(T0 + n + 0.5, side) for side in (320, 960) for n in range(16)][: WAITING_MAX + 3]
        tasks = [asyncio.create_task(frames.at("gate", t, side)) for t, side in moments]
        while sum(task.done() for task in tasks) < 3:  # who is refused waits for nobody
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        reader.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(frames.at("gate", T0 + 3.2, 640) for _ in range(8)))
        return found

    found = asyncio.run(crowd())
    assert sum(isinstance(each, TooBusy) for each in found) == 3
    assert (reader.most, reader.calls) == (1, WAITING_MAX + 1)


def test_pictures_that_were_not_looked_at_for_longest_make_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = FrameCache(site.segments, site.root, READ_DIRECTLY)

    async def look(*times: float) -> None:
        for t in times:
            await frames.at("gate", T0 + t, 320)

    asyncio.run(look(0.5))
    size = len(asyncio.run(frames.at("gate", T0 + 0.5, 320)).snapshot.jpeg)
    monkeypatch.setattr(recordings, "FRAMES_BYTES_MAX", int(2.9 * size))
    asyncio.run(look(1.5, 0.5, 2.5))
    assert frames.cuts == 3
    asyncio.run(look(0.5, 2.5))
    assert frames.cuts == 3
    asyncio.run(look(1.5))
    assert frames.cuts == 4
    frames.empty()
    asyncio.run(look(1.5))
    assert frames.cuts == 5, "a box short of memory keeps none"


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_key_frame_comes_small_out_of_the_sandbox_as_it_does_directly(tmp_path: Path, codec: str) -> None:
    row = numbered_footage.record(
        tmp_path, numbered_footage.encoded_footage(0, 30, size=(640, 480), codec=codec, b_frames=2), T0
    )
    segment = RecordedSegment(tmp_path / row.path, row.t_start, row.t_end)
    sandboxed = SandboxedReader(tmp_path)
    readers: list[RecordingReader] = [READ_DIRECTLY, sandboxed]
    try:
        found = [reader.key_frame(segment, T0 + 1.85, 320) for reader in readers]
        assert [each.images[0].size for each in found] == [(320, 240)] * 2
        assert [numbered_footage.number(numbered_footage.pixels(each.images[0].data)) for each in found] == [10, 10]
        assert found[0] == found[1]
        (tmp_path / row.path).write_bytes(b"no video")
        with pytest.raises(EvidenceError, match="cannot be read"):
            sandboxed.key_frame(segment, T0 + 1.7, 320)
        path = tmp_path / "cuts" / "1.mp4"
        with pytest.raises(EvidenceError):
            sandboxed.clip([segment], T0, T0 + 1, path)
    finally:
        sandboxed.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENFILE])
def test_a_clip_that_a_passing_lack_of_the_machine_refused_may_be_cut_later(number: int) -> None:
    assert isinstance(failed_clip(OSError(number, "no"), "the clip cannot be cut"), DiskWriteError)
