"""H.264 copies for browsers that cannot play H.265: the same moments, smaller, one at a time, bounded, counted."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import av
import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import EvidenceError, StoreUnavailable
from appliance.base.local_files import DiskWriteError, WrittenFile, temporary_path
from appliance.dashboard.recordings import CUT_S_MAX, RecordingCuts, TooBusy
from appliance.dashboard.renditions import ASKED_S_MAX, WAITING_MAX, Rendition, Renditions
from appliance.media import rendition
from appliance.media.recorded import even_size, progress_path
from appliance.media.recording_reader import READ_DIRECTLY, DirectReader, RecordingReader, SandboxedReader
from appliance.media.rendition import make_rendition
from tests.support import numbered_footage
from tests.support.dashboard_site import Site
from tests.support.prometheus_text import samples
from tests.support.waiting import until, until_async

T0 = 1_700_000_040.0
PATIENCE = 60.0
Source = Callable[[], Awaitable[Path]]
ASKED = f"/api/v1/cameras/gate/recording?from={T0 + 1.5}&to={T0 + 4}&codec=h264"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Six seconds of H.265 of camera `gate`, with B-frames, a key frame each second."""
    made = Site(tmp_path, ManualClock(T0 + 3600))
    film = numbered_footage.encoded_footage(0, 60, size=(1280, 960), codec="libx265", b_frames=2)
    made.segments.put(numbered_footage.record(made.root, film, T0, camera="gate"))
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as made:
        yield made


def until_made(client: TestClient, url: str) -> dict[str, object]:
    def made() -> dict[str, object] | None:
        answer = client.get(url)
        if answer.status_code == 202:
            assert 0 <= answer.json()["progress"] <= 1
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()

    return until(made)


def shown(mp4: bytes) -> list[tuple[int, float]]:
    with av.open(io.BytesIO(mp4)) as opened:
        return [
            (numbered_footage.number(frame.to_ndarray(format="rgb24")), float(frame.pts * frame.time_base))
            for frame in opened.decode(video=0)
        ]


def test_a_stretch_is_converted_with_the_same_frames_at_the_same_times(client: TestClient) -> None:
    told = until_made(client, ASKED)
    assert (told["codec"], told["converted"], told["width"], told["height"]) == ("h264", True, 960, 720)
    made = client.get(str(told["url"]))
    assert made.headers["content-type"] == "video/mp4"
    assert len(made.content) == told["bytes"]
    original = client.get(ASKED.replace("recording?", "recording.mp4?").replace("&codec=h264", ""))
    expected = shown(original.content)
    assert {*range(10, 41)} <= {number for number, _ in expected}
    assert shown(made.content) == [(number, pytest.approx(t, abs=0.001)) for number, t in expected]
    with av.open(io.BytesIO(made.content)) as opened:
        stream = opened.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 960, 720)
    part = client.get(str(told["url"]), headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, made.content[:10])
    assert client.get(str(told["url"]), headers={"If-None-Match": made.headers["etag"]}).status_code == 304
    until_made(client, ASKED)
    counted = {name: value for name, _, value in samples(client.get("/metrics").text)}
    assert counted["vedette_renditions_total"] == 1
    assert counted["vedette_renditions_bytes_total"] == told["bytes"]
    assert counted["vedette_renditions_seconds_total"] >= 0


def test_what_is_h264_is_not_converted(site: Site, client: TestClient) -> None:
    site.record("dock", T0)
    told = client.get(f"/api/v1/cameras/dock/recording?from={T0}&to={T0 + 4}&codec=h264")
    assert told.status_code == 200
    assert (told.json()["converted"], "codec=h264" in told.json()["url"]) == (False, False)


def test_where_the_codec_changes_it_is_what_the_cut_holds_that_counts(site: Site, client: TestClient) -> None:
    site.record("gate", T0 - 8)  # H.264, up to where H.265 begins
    asked = f"/api/v1/cameras/gate/recording?from={T0}&to={T0 + 2}&codec=h264"
    assert until_made(client, asked)["converted"] is True


def test_what_was_not_asked_for_is_not_there_and_too_much_is_refused(client: TestClient) -> None:
    assert client.get(ASKED.replace("recording?", "recording.mp4?")).status_code == 404
    assert client.get(ASKED.replace(f"to={T0 + 4}", f"to={T0 + 124}")).status_code == 422
    assert client.get(ASKED.replace("h264", "vp9")).status_code == 422


def test_the_clip_of_an_alert_is_converted_too(site: Site, client: TestClient) -> None:
    alert = site.raise_alert("walker", T0 + 2, seconds=1.0)
    assert client.get("/api/v1/alerts/walker/rendition").status_code == 404
    row = numbered_footage.record(
        site.root, numbered_footage.encoded_footage(0, 60, codec="libx265"), T0, camera="gate", name="again"
    )
    site.recorded.append(row)
    site.cut(alert)
    assert client.get("/api/v1/alerts/walker/rendition.mp4").status_code == 404
    told = until_made(client, "/api/v1/alerts/walker/rendition")
    clip = client.get("/api/v1/alerts/walker/evidence/clip.mp4").content
    assert shown(client.get(str(told["url"])).content) == shown(clip)
    assert client.get("/api/v1/alerts/nobody/rendition").status_code == 404


def test_what_cannot_be_decoded_is_said_once_and_tried_again(site: Site, client: TestClient) -> None:
    alert = site.raise_alert("walker", T0 + 2, seconds=1.0)
    site.record("gate", T0)
    site.cut(alert)
    (site.root / "evidence/walker/clip.mp4").write_bytes(b"no video")
    ends = time.monotonic() + PATIENCE
    for _ in range(2):
        while (answer := client.get("/api/v1/alerts/walker/rendition")).status_code == 202:
            assert time.monotonic() < ends
        assert answer.status_code == 404
        assert "cannot be converted" in answer.json()["detail"]
    counted = {name: value for name, _, value in samples(client.get("/metrics").text)}
    assert counted["vedette_renditions_failed_total"] == 2
    assert sorted(each.name for each in (site.root / "cuts").glob("h264*")) == []


class HeldReader(DirectReader):
    """Counts how many convert at once, and makes them wait for `go`; the third of four parts of each is done."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.sources: list[str] = []
        self.go, self.began = threading.Event(), threading.Event()

    def rendition(self, source: Path, path: Path) -> WrittenFile:
        self.now += 1
        self.most = max(self.most, self.now)
        self.sources.append(source.name)
        path.parent.mkdir(exist_ok=True)
        progress_path(path).write_bytes(b"." * 75)
        self.began.set()
        self.go.wait(PATIENCE)
        path.write_bytes(source.read_bytes())
        progress_path(path).unlink()
        self.now -= 1
        return WrittenFile(path.stat().st_size, "0" * 64)


def renditions_of(site: Site, reader: RecordingReader, **means: object) -> Renditions:
    cuts = RecordingCuts(site.segments, site.root, READ_DIRECTLY, site.clock, **means)  # type: ignore[arg-type]
    return Renditions(cuts, site.root, reader, site.clock)


def clips(site: Site, count: int) -> list[Path]:
    made = [site.root / f"{n}.mp4" for n in range(count)]
    for each in made:
        each.write_bytes(b"0123456789")
    return made


async def ask(made: Renditions, path: Path, source: Source | None = None) -> Rendition | float:
    async def there() -> Path:
        return path

    return await made.ask(path.name, source or there)


async def finished(made: Renditions, path: Path, source: Source | None = None) -> Rendition:
    async def done() -> Rendition | None:
        found = await ask(made, path, source)
        return None if isinstance(found, float) else found

    return await until_async(done)


def test_one_is_made_at_a_time_and_too_many_are_told_to_wait(site: Site) -> None:
    reader = HeldReader()
    made = renditions_of(site, reader)
    paths = clips(site, WAITING_MAX + 2)

    async def crowd() -> None:
        for path in paths[:-1]:
            assert await ask(made, path) == 0.0
        with pytest.raises(TooBusy):
            await ask(made, paths[-1])
        await asyncio.to_thread(reader.began.wait, PATIENCE)
        assert await ask(made, paths[0]) == 0.75
        assert await ask(made, paths[1]) == 0.0
        reader.go.set()
        for path in paths[:-1]:
            await finished(made, path)

    asyncio.run(crowd())
    assert reader.most == 1
    assert reader.sources == [path.name for path in paths[:-1]]


def test_what_nobody_asks_about_any_more_is_not_begun(site: Site) -> None:
    reader = HeldReader()
    made = renditions_of(site, reader)
    first, left, wanted = clips(site, 3)
    assert isinstance(site.clock, ManualClock)
    clock = site.clock

    async def crowd() -> None:
        for path in (first, left, wanted):
            await ask(made, path)
        await asyncio.to_thread(reader.began.wait, PATIENCE)
        clock.advance(ASKED_S_MAX + 1)
        await ask(made, wanted)
        reader.go.set()
        await finished(made, wanted)

    asyncio.run(crowd())
    assert reader.sources == ["0.mp4", "2.mp4"]


def test_failures_that_nobody_came_back_for_take_no_place(site: Site) -> None:
    """They fail within a moment of each other, and the page is left: nothing is at work that would forget them."""
    made = renditions_of(site, READ_DIRECTLY)
    paths = clips(site, WAITING_MAX + 2)
    assert isinstance(site.clock, ManualClock)
    clock = site.clock

    async def crowd() -> None:
        for path in paths[:-1]:
            await ask(made, path)
        await until_async(lambda: made.failed == len(paths) - 1)
        with pytest.raises(TooBusy):
            await ask(made, paths[-1])
        clock.advance(ASKED_S_MAX + 1)
        assert await ask(made, paths[-1]) == 0.0

    asyncio.run(crowd())


def test_copies_are_kept_while_they_are_used_and_then_deleted(site: Site) -> None:
    reader = HeldReader()
    reader.go.set()
    made = renditions_of(site, reader)
    first, second, third = clips(site, 3)
    assert isinstance(site.clock, ManualClock)
    clock = site.clock

    async def life() -> None:
        kept = await finished(made, first)
        clock.advance(CUT_S_MAX - 1)
        assert made.kept("0.mp4") == kept
        clock.advance(CUT_S_MAX - 1)
        await finished(made, second)
        assert kept.path.is_file()
        clock.advance(2)
        await finished(made, third)
        assert not kept.path.exists()

    asyncio.run(life())
    assert made.made == 3


def test_a_copy_that_was_begun_before_something_was_erased_is_not_kept(site: Site) -> None:
    class Erasing(DirectReader):
        def rendition(self, source: Path, path: Path) -> WrittenFile:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(source.read_bytes())
            made.empty()
            return WrittenFile(path.stat().st_size, "0" * 64)

    made = renditions_of(site, Erasing())
    with pytest.raises(EvidenceError, match="was erased"):
        asyncio.run(finished(made, clips(site, 1)[0]))
    assert list((site.root / "cuts").iterdir()) == []


def test_a_copy_never_takes_the_room_that_recording_needs(site: Site) -> None:
    made = renditions_of(site, HeldReader(), keep_free=1000, free_bytes=lambda root: 1005)
    with pytest.raises(DiskWriteError, match="the disk is too full"):
        asyncio.run(finished(made, clips(site, 1)[0]))


def test_a_store_that_waits_is_said_and_stops_no_conversion_after_it(site: Site) -> None:
    reader = HeldReader()
    reader.go.set()
    made = renditions_of(site, reader)
    [path] = clips(site, 1)

    async def busy() -> Path:
        raise StoreUnavailable("another program holds the file")

    async def life() -> None:
        with pytest.raises(StoreUnavailable):
            await finished(made, path, busy)
        await finished(made, path)

    asyncio.run(life())
    assert (made.failed, made.made) == (1, 1)


@pytest.mark.parametrize(
    ("size", "fits"),
    [((3840, 2160), (1280, 720)), ((640, 481), (640, 480)), ((720, 1280), (404, 720)), ((1, 1), (2, 2))],
)
def test_a_copy_is_even_and_no_higher_than_it_may_be(size: tuple[int, int], fits: tuple[int, int]) -> None:
    assert even_size(*size) == fits


def test_the_sandbox_converts_as_it_is_done_directly(site: Site) -> None:
    reader = SandboxedReader(site.root)
    segment = site.root / f"segments/gate/{T0:.3f}.mp4"
    try:
        written = reader.rendition(segment, site.root / "cuts/1.mp4")
        made = (site.root / "cuts/1.mp4").read_bytes()
        assert len(made) == written.bytes
        assert [number for number, _ in shown(made)] == list(range(60))
        assert not progress_path(site.root / "cuts/1.mp4").exists()
        segment.write_bytes(b"no video")
        with pytest.raises(EvidenceError, match="cannot be converted"):
            reader.rendition(segment, site.root / "cuts/2.mp4")
    finally:
        reader.close()


def test_a_disk_that_is_full_is_not_taken_for_a_clip_that_cannot_be_decoded(tmp_path: Path) -> None:
    """FFmpeg meets the full disk, within a conversion that is fine."""
    source = numbered_footage.record(tmp_path, numbered_footage.encoded_footage(0, 20), T0, camera="gate").path
    path = tmp_path / "copy.mp4"
    temporary_path(path).symlink_to("/dev/full")
    with pytest.raises(DiskWriteError, match="No space left"):
        make_rendition(tmp_path / source, path)


def test_without_an_encoder_it_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendition, "_ENCODERS", {"libnothing": {}})
    with pytest.raises(EvidenceError, match=r"no H\.264 encoder"):
        make_rendition(site.root / f"segments/gate/{T0:.3f}.mp4", site.root / "cuts/1.mp4")
