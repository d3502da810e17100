"""Evidence: the frame that was examined and no other, clips that keep time, and a reason where there is none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from appliance import wire
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import EvidenceError
from appliance.config import SiteConfig
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.evidence.evidence_selection import spread_moments
from appliance.media import clips, segment_reader
from appliance.media.clips import cut_clip
from appliance.media.recorded import RecordedSegment
from appliance.media.recording_reader import DirectReader
from appliance.media.segment_reader import OpenSegment
from appliance.media.stills import crop, cut_still, cut_stills, encode_jpeg
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.segments import SegmentStore
from appliance.types import AlertChange, CameraState, SegmentRow, StreamHeader
from tests.support.numbered_footage import EncodedFootage, encoded_footage, number, record
from tests.support.sample_rows import BOX, T0, alert, best, ended, event, opened, sample_escalation, sample_frame
from tests.support.waiting import until

# Codec, B-frames. 10 fps, a key frame a second, segments of 4 s: frame n is at T0 + n / 10.
KINDS = [("libx264", 0), ("libx264", 2), ("libx265", 0), ("libx265", 3)]


def on_disk(root: Path, row: SegmentRow) -> RecordedSegment:
    return RecordedSegment(root / row.path, row.t_start, row.t_end)


def recorded(root: Path, count: int = 4, codec: str = "libx264", b_frames: int = 0) -> list[RecordedSegment]:
    films = [encoded_footage(40 * n, 40, codec=codec, b_frames=b_frames) for n in range(count)]
    return [on_disk(root, record(root, each, T0 + 4 * n)) for n, each in enumerate(films)]


def shown(path: Path) -> list[tuple[float, int]]:
    """(seconds as a player counts them, frame number) of each picture of a clip."""
    with av.open(str(path)) as clip:
        return [(float(frame.time or 0), number(frame.to_ndarray(format="bgr24"))) for frame in clip.decode(video=0)]


class TestStill:
    @pytest.mark.parametrize(("codec", "b_frames"), KINDS)
    def test_shows_the_frame_of_its_time(self, tmp_path: Path, codec: str, b_frames: int) -> None:
        segments = recorded(tmp_path, 3, codec, b_frames)
        for n in (0, 3, 9, 10, 39, 40, 41, 79, 119):
            still = cut_still(segments, T0 + n / 10)
            assert number(still.image) == n
            assert still.t == pytest.approx(T0 + n / 10, abs=1e-4)

    def test_takes_the_nearer_frame_on_both_sides_of_a_border(self, tmp_path: Path) -> None:
        segments = recorded(tmp_path, 2)
        for off_s, n in ((-0.06, 39), (-0.04, 40), (-0.0005, 40), (0.0005, 40), (0.04, 40), (0.06, 41)):
            assert number(cut_still(segments, T0 + 4 + off_s).image) == n

    @pytest.mark.parametrize(("codec", "b_frames"), KINDS)
    def test_many_at_once_come_in_the_order_requested(self, tmp_path: Path, codec: str, b_frames: int) -> None:
        """Groups of pictures between them are skipped, which no frame may show."""
        wanted = [91, 2, 91, 33, 0, 39, 118]
        stills = cut_stills(recorded(tmp_path, 3, codec, b_frames), [T0 + n / 10 for n in wanted])
        assert [number(still.image) for still in stills] == wanted

    def test_a_slow_camera_has_its_frames_found_all_the_same(self, tmp_path: Path) -> None:
        row = record(tmp_path, encoded_footage(0, 8, fps=1, gop=4), T0)
        assert number(cut_still([on_disk(tmp_path, row)], T0 + 5.4).image) == 5

    def test_a_moment_that_was_not_recorded_is_refused(self, tmp_path: Path) -> None:
        segments = recorded(tmp_path, 2)
        for t in (T0 - 0.3, T0 + 8.3, T0 + 500):
            with pytest.raises(EvidenceError):
                cut_still(segments, t)

    def test_from_a_segment_that_is_being_written_with_a_torn_end(self, tmp_path: Path) -> None:
        row = record(tmp_path, encoded_footage(0, 40), T0)
        whole = (tmp_path / row.path).read_bytes()
        growing = RecordedSegment(tmp_path / row.path, T0, T0 + 2)
        growing.path.write_bytes(whole[: len(whole) * 5 // 8])
        assert number(cut_still([growing], T0 + 1.7).image) == 17
        with pytest.raises(EvidenceError):
            cut_still([growing], T0 + 3.7)

    def test_garbage_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        junk = RecordedSegment(tmp_path / "x.mp4", T0, T0 + 4)
        with pytest.raises(EvidenceError, match=r"x\.mp4 cannot be read"):
            cut_still([junk], T0 + 1)
        junk.path.write_bytes(b"\x00" * 5000)
        with pytest.raises(EvidenceError):
            cut_still([junk], T0 + 1)

    def test_frames_larger_than_the_header_says_are_not_decoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [segment] = recorded(tmp_path, 1)
        data = bytearray(segment.path.read_bytes())
        entry = data.index(b"avc1", data.index(b"stsd"))  # ISO/IEC 14496-12, VisualSampleEntry: its width and height
        assert int.from_bytes(data[entry + 28 : entry + 30], "big") == 320
        data[entry + 28 : entry + 32] = (64).to_bytes(2, "big") + (48).to_bytes(2, "big")
        segment.path.write_bytes(data)
        monkeypatch.setattr(segment_reader, "PIXELS_MAX", 64 * 48)
        with pytest.raises(EvidenceError):
            cut_still([segment], T0 + 1)

    def test_jpeg_is_made_smaller_never_larger(self) -> None:
        image = np.zeros((300, 600, 3), np.uint8)
        for side_max, width in ((200, 200), (600, 600), (5000, 600), (None, 600)):
            small = cv2.imdecode(np.frombuffer(encode_jpeg(image, side_max=side_max), np.uint8), cv2.IMREAD_COLOR)
            assert small.shape[:2] == (width // 2, width)

    def test_crop_holds_the_box_and_stays_in_the_frame(self) -> None:
        image = np.zeros((400, 800, 3), np.uint8)
        image[100:200, 200:400] = 255
        cropped = crop(image, (0.25, 0.25, 0.5, 0.5))
        assert cropped.shape == (150, 300, 3)
        assert cropped[25:125, 50:250].min() == 255
        assert crop(image, (0.99, 0.99, 1.0, 1.0)).shape[0] >= 48


class TestClip:
    @pytest.mark.parametrize(("codec", "b_frames"), KINDS)
    def test_keeps_time_across_segments(self, tmp_path: Path, codec: str, b_frames: int) -> None:
        out = tmp_path / "evidence/a/clip.mp4"
        clip = cut_clip(recorded(tmp_path, 4, codec, b_frames), T0 + 2.35, T0 + 9.0, out)
        pictures = shown(out)
        assert pictures[0] == (0.0, 20)  # the key frame before 2.35 s
        assert clip.t_start == pytest.approx(T0 + 2.0, abs=1e-3)
        assert pictures[-1][1] in range(90, 95)
        for seconds, n in pictures:
            assert clip.t_start + seconds == pytest.approx(T0 + n / 10, abs=1e-3)
        assert clip.note == ""
        assert clip.size == (320, 240)

    def test_is_progressive_and_tagged_as_browsers_want(self, tmp_path: Path) -> None:
        for codec, tag in (("libx264", "avc1"), ("libx265", "hvc1")):
            out = tmp_path / f"{codec}.mp4"
            clip = cut_clip(recorded(tmp_path / codec, 2, codec), T0 + 1, T0 + 6, out)
            data = out.read_bytes()
            assert data.index(b"moov") < data.index(b"mdat")
            assert b"moof" not in data
            with av.open(str(out)) as opened_clip:
                assert opened_clip.streams.video[0].codec_context.codec_tag == tag
            assert (clip.written.bytes, clip.written.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            assert list(out.parent.glob(".*")) == []

    def test_begins_at_the_key_frame_at_or_before_the_moment_requested(self, tmp_path: Path) -> None:
        segments = recorded(tmp_path)
        for t0, t_start in ((4.0, 4.0), (5.0, 5.0), (5.95, 5.0), (3.95, 3.0)):
            clip = cut_clip(segments, T0 + t0, T0 + 8, tmp_path / "c.mp4")
            assert clip.t_start == pytest.approx(T0 + t_start, abs=1e-3)

    def test_a_gap_stays_a_gap(self, tmp_path: Path) -> None:
        segments = recorded(tmp_path, 2)
        late = on_disk(tmp_path, record(tmp_path, encoded_footage(200, 40), T0 + 20))
        clip = cut_clip([*segments, late], T0 + 5, T0 + 22, tmp_path / "c.mp4")
        pictures = shown(tmp_path / "c.mp4")
        assert all(clip.t_start + seconds == pytest.approx(T0 + n / 10, abs=1e-3) for seconds, n in pictures)
        assert {79, 200} <= {n for _, n in pictures}
        assert "longest gap in it lasts 12 s" in clip.note

    @pytest.mark.parametrize(
        ("hold", "frames", "note"), [(2.0, (0, 39), "ends where"), (6.0, (40, 79), "begins where")]
    )
    def test_where_the_frame_changes_size_the_part_with_the_alert_is_kept(
        self, tmp_path: Path, hold: float, frames: tuple[int, int], note: str
    ) -> None:
        small = on_disk(tmp_path, record(tmp_path, encoded_footage(0, 40), T0))
        large = on_disk(tmp_path, record(tmp_path, encoded_footage(40, 40, size=(640, 480)), T0 + 4))
        clip = cut_clip([small, large], T0, T0 + 7.9, tmp_path / "c.mp4", hold_t=T0 + hold)
        pictures = shown(tmp_path / "c.mp4")
        assert (pictures[0][1], pictures[-1][1]) == frames
        assert clip.t_start == pytest.approx(T0 + frames[0] / 10, abs=1e-3)
        assert note in clip.note

    def test_a_broken_segment_does_not_spoil_the_others(self, tmp_path: Path) -> None:
        segments = recorded(tmp_path, 3)
        segments[1].path.write_bytes(b"no video at all")
        clip = cut_clip(segments, T0 + 2, T0 + 11, tmp_path / "c.mp4")
        assert [n for _, n in shown(tmp_path / "c.mp4")] == [*range(20, 40), *range(80, 111)]
        assert "cannot be read" in clip.note

    def test_segments_that_are_deleted_while_it_is_cut_cost_what_they_held_and_no_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retention deletes the file that is just read, and with it the next one, before it is opened."""
        segments = recorded(tmp_path)
        opens = clips.open_segment

        @contextlib.contextmanager
        def open_and_delete(segment: RecordedSegment) -> Iterator[OpenSegment]:
            with opens(segment) as opened:
                if segment == segments[1]:
                    segments[1].path.unlink()
                    segments[2].path.unlink()
                yield opened

        monkeypatch.setattr(clips, "open_segment", open_and_delete)
        made = cut_clip(segments, T0, T0 + 16, tmp_path / "clip.mp4", hold_t=T0)
        numbers = [which for _, which in shown(tmp_path / "clip.mp4")]
        assert numbers == [*range(80), *range(120, 160)], "what was open is read to its end"
        assert "the longest gap in it lasts 4 s" in made.note
        assert sorted(path.name for path in tmp_path.glob("clip*")) == ["clip.mp4"]

    def test_notes_when_it_is_shorter_than_requested(self, tmp_path: Path) -> None:
        clip = cut_clip(recorded(tmp_path, 1), T0 - 5, T0 + 9, tmp_path / "c.mp4")
        assert clip.note == "it begins 5 s late; it ends 5 s early"

    def test_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clips, "CLIP_BYTES_MAX", 8_000)
        clip = cut_clip(recorded(tmp_path), T0, T0 + 15, tmp_path / "c.mp4")
        assert clip.written.bytes < 12_000
        assert "ends early" in clip.note

    def test_nothing_recorded_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with pytest.raises(EvidenceError, match="holds nothing"):
            cut_clip([], T0, T0 + 5, tmp_path / "c.mp4")
        junk = RecordedSegment(tmp_path / "x.mp4", T0, T0 + 4)
        junk.path.write_bytes(b"\x00" * 500)
        with pytest.raises(EvidenceError, match="cannot be read"):
            cut_clip([junk], T0, T0 + 5, tmp_path / "c.mp4")
        assert [file.name for file in tmp_path.iterdir()] == ["x.mp4"]


class TestMoments:
    SEEN = [sample_frame(T0 + n / 5, seq=n, box=(n / 100, 0, 0.5, 1)) for n in range(16)]

    def test_are_spread_over_the_span_with_both_ends(self) -> None:
        moments = spread_moments(event(T0 + 3), self.SEEN, None, 4)
        assert [round(moment.t - T0, 1) for moment in moments] == [0.0, 1.0, 2.0, 3.0]
        assert [moment.box for moment in moments if moment.box] == [(n / 100, 0, 0.5, 1) for n in (0, 5, 10, 15)]
        assert [moment.t for moment in spread_moments(event(T0 + 3), self.SEEN, None, 1)] == [T0 + 3]

    def test_leave_out_frames_in_which_the_track_was_not_seen(self) -> None:
        other = [sample_frame(T0 - 1, seq=0, track=8), sample_frame(T0 - 0.5, seq=1, box=None)]
        moments = spread_moments(event(T0), [*other, sample_frame(T0, seq=2)], None, 4)
        assert [(moment.t, moment.box) for moment in moments] == [(T0, BOX)]

    def test_the_best_view_fills_an_empty_place(self) -> None:
        moments = spread_moments(event(T0), [sample_frame(T0, seq=2)], best(T0 - 8), 4)
        assert [moment.t for moment in moments] == [T0 - 8, T0]
        assert len(spread_moments(event(T0 + 3), self.SEEN, best(T0 - 8), 4)) == 4

    def test_without_boxes_the_event_itself_must_do(self) -> None:
        assert [(moment.t, moment.box) for moment in spread_moments(event(T0), [], None, 4)] == [(T0, BOX)]


class Site:
    """A store, a storage folder and an evidence maker; the recording is put in by the test."""

    def __init__(self, root: Path, escalation: dict[str, object] | None = None, **camera: object) -> None:
        self.root = root
        self.clock = ManualClock(T0 + 3)
        self.db = Database(root / "vedette.db", self.clock)
        self.config = SiteConfig.model_validate(
            {
                "cameras": {"yard": {"url": "file:clip.mp4", **camera}},
                "alerts": {"pre_roll_s": 2, "post_roll_s": 2},
                "escalation": {"frames": 3, "frame_side_max": 160, "span_s": 2, **(escalation or {"first": "frames"})},
            }
        )
        CameraStore(self.db).ensure({"yard": "file:clip.mp4"})
        self.maker = EvidenceMaker(self.db, root, self.config.for_decisions(), self.clock)

    def put(self, made: EncodedFootage, t: float, until: float | None = None) -> None:
        """Record a film; `until`: it is still being written, and that far it is on disk."""
        row = record(self.root, made, t)
        SegmentStore(self.db).put(row if until is None else replace(row, t_end=until, complete=False))

    def record(self, seconds: int = 16) -> None:
        for n in range(0, seconds, 4):
            self.put(encoded_footage(10 * n, 40), T0 + n)

    def see(self, seconds: Sequence[float]) -> None:
        BoxStore(self.db).append("yard", "r1", [sample_frame(T0 + t, seq=round(t * 10)) for t in seconds])

    def apply(self, change: AlertChange, asked: wire.Escalation | None = None) -> None:
        AlertStore(self.db).apply(change, escalation=asked, priority="normal")

    def detail(self) -> AlertDetail:
        found = AlertStore(self.db).get("a1")
        assert found is not None
        return found

    def state(self, kind: str) -> tuple[str, str]:
        [row] = [row for row in self.detail().evidence if row.kind == kind]
        return row.state, row.reason

    def pass_time(self, seconds: float) -> None:
        """Let the maker work while time passes."""
        for _ in range(round(seconds * 4)):
            self.maker.run_once()
            self.clock.advance(0.25)
        self.maker.run_once()


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(**camera: object) -> Site:
        sites.append(Site(tmp_path, **camera))
        return sites[-1]

    yield make
    for site in sites:
        site.db.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


def picture(root: Path, path: str) -> np.ndarray:
    return cv2.imread(str(root / path))


class TestMaker:
    def test_the_story_of_one_alert(self, site: Site) -> None:
        site.see([n / 5 for n in range(60)])
        site.apply(opened(t=T0 + 3.0, view=best(T0 + 3.0)), sample_escalation(t=T0 + 3.0))
        assert site.maker.run_once() == 0  # nothing is on disk yet
        site.put(encoded_footage(0, 40), T0, until=T0 + 3.5)
        assert site.maker.run_once() == 2  # the cloud's frames and the still

        detail = site.detail()
        assert detail.row.judged.delivery == "ready"
        frames = [row for row in detail.evidence if row.kind == "frame"]
        assert [number(picture(site.root, row.path)) for row in frames] == [10, 20, 30]
        assert all(row.box == BOX and (row.width, row.height) == (160, 120) for row in frames)
        still = detail.piece("still")
        assert still is not None
        assert number(picture(site.root, still.path)) == 30
        assert (still.box, still.width, still.height) == (BOX, 320, 240)
        assert detail.row.evidence.clip == "waiting"

        site.apply(ended(t=T0 + 3.0, t_end=T0 + 6.0, view=best(T0 + 3.0)))
        site.put(encoded_footage(0, 40), T0)
        site.put(encoded_footage(40, 40), T0 + 4, until=T0 + 7.9)
        assert site.maker.run_once() == 0  # the post-roll is not there
        site.put(encoded_footage(40, 40), T0 + 4)
        site.put(encoded_footage(80, 40), T0 + 8, until=T0 + 9)
        assert site.maker.run_once() == 1

        clip, path = site.detail().piece("clip"), site.detail().piece("boxes")
        assert clip is not None
        assert path is not None
        assert clip.t_start == pytest.approx(T0 + 1.0, abs=1e-3)  # two seconds before, at a key frame
        assert [n for _, n in shown(site.root / clip.path)] == list(range(10, 81))
        content = json.loads((site.root / path.path).read_text())
        assert (content["t_start"], content["size"], content["camera"]) == (clip.t_start, [320, 240], "yard")
        assert {round(frame["t"] - T0, 1) for frame in content["frames"]} == {n / 5 for n in range(5, 41)}
        assert content["frames"][0]["objects"][0]["box"] == list(BOX)
        assert site.maker.run_once() == 0
        assert (site.maker.made, site.maker.missing) == (3, 0)

    def test_media_rows_describe_the_files(self, site: Site) -> None:
        site.record()
        site.see([n / 5 for n in range(60)])
        site.apply(opened(t=T0 + 3), sample_escalation(t=T0 + 3))
        site.maker.run_once()
        media = EscalationStore(site.db).media("q1")
        asked = site.detail().escalation
        assert asked is not None
        assert asked.body.media == tuple(row.ref for row in media)
        assert len(media) == 3
        for row in media:
            data = (site.root / row.path).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            assert (row.ref.bytes, row.ref.sha256, row.ref.id) == (len(data), digest, digest[:32])
            assert (row.ref.chunks, row.chunks_acked, row.ref.kind, row.ref.box) == (1, 0, "frame", BOX)

    def test_with_two_streams_evidence_has_the_size_of_the_recorded_one(self, site: Site) -> None:
        """Boxes come from the small detect stream, as shares of the frame; the large stream is what is recorded."""
        header = StreamHeader(camera="yard", clip="", model="m", size=(320, 240), run="r1")
        CameraStore(site.db).write_header(header)
        site.put(encoded_footage(0, 60, size=(640, 480)), T0)
        site.see([n / 5 for n in range(30)])
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
        site.apply(ended(t=T0 + 3, t_end=T0 + 3.5, view=best(T0 + 3)))
        site.maker.run_once()
        found = {row.kind: row for row in site.detail().evidence}
        still, clip = found["still"], found["clip"]
        assert (still.width, still.height, still.box) == (640, 480, BOX)
        image = picture(site.root, still.path)
        assert (image.shape, number(image)) == ((480, 640, 3), 30)
        expected = crop(image, BOX).shape
        assert (found["crop"].height, found["crop"].width) == expected[:2], "the box fits the large frame"
        assert (clip.width, clip.height) == (640, 480)
        assert json.loads((site.root / found["boxes"].path).read_text())["size"] == [640, 480]
        assert {(row.width, row.height, row.box) for row in site.detail().evidence if row.kind == "frame"} == {
            (160, 120, BOX)
        }

    def test_a_better_view_replaces_the_still(self, site: Site) -> None:
        site.record(20)
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)))
        site.maker.run_once()
        rev = site.detail().row.rev
        better = best(T0 + 18.5, score=0.95, box=(0.1, 0.1, 0.9, 0.9))
        site.apply(AlertChange("extended", alert(t=T0 + 3, view=better)))
        site.maker.run_once()
        still = site.detail().piece("still")
        assert still is not None
        assert (number(picture(site.root, still.path)), still.box, still.score) == (185, better.box, 0.95)
        assert site.detail().row.rev > rev
        assert site.maker.run_once() == 0

    def test_a_still_follows_a_better_view_now_and_then_and_at_the_end(self, site: Site) -> None:
        site.record()
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)))
        site.maker.run_once()
        better = best(T0 + 5, score=0.95, box=(0.1, 0.1, 0.9, 0.9))
        site.apply(AlertChange("extended", alert(t=T0 + 3, view=better)))
        assert site.maker.run_once() == 0, "each view of one who comes nearer is a better one"
        site.apply(ended(t=T0 + 3, t_end=T0 + 6, view=better))
        site.maker.run_once()
        still = site.detail().piece("still")
        assert still is not None
        assert (number(picture(site.root, still.path)), still.box) == (50, better.box)

    def test_a_view_that_is_hardly_better_is_not_worth_another_still(self, site: Site) -> None:
        site.record()
        first = best(T0 + 3, score=0.8, box=(0.2, 0.2, 0.6, 0.6))
        site.apply(opened(t=T0 + 3, view=first))
        site.maker.run_once()
        hardly = best(T0 + 5, score=0.82, box=(0.2, 0.2, 0.61, 0.61))
        site.apply(ended(t=T0 + 3, t_end=T0 + 6, view=hardly))
        site.maker.run_once()
        still = site.detail().piece("still")
        assert still is not None
        assert (number(picture(site.root, still.path)), still.box) == (30, first.box)
        row = site.detail().row
        assert row.alert.best == hardly
        assert row.evidence.still_box == first.box

    def test_the_still_is_decoded_with_the_frames_for_the_cloud(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.record()
        site.see([n / 5 for n in range(60)])
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
        asked: list[int] = []

        def count(reader: DirectReader, segments: Sequence[RecordedSegment], wanted: Sequence[Any]) -> Any:
            asked.append(len(wanted))
            return images(reader, segments, wanted)

        images = DirectReader.images
        monkeypatch.setattr(DirectReader, "images", count)
        assert site.maker.run_once() == 2
        assert asked == [4]
        assert {row.kind: row.state for row in site.detail().evidence} == {
            "frame": "ready", "still": "ready", "crop": "ready", "clip": "waiting", "boxes": "waiting",
        }  # fmt: skip

    def test_a_camera_that_came_back_in_the_moment_of_an_alert_has_a_still(self, site: Site) -> None:
        """It was watched from 3 s on, and its recording goes on at the next key frame, at 4 s."""
        site.put(encoded_footage(0, 20), T0)
        for n in (4, 8, 12):
            site.put(encoded_footage(10 * n, 40), T0 + n)
        later = (0.2, 0.2, 0.4, 0.8)
        frames = [sample_frame(T0 + t, seq=round(t * 10), box=BOX if t < 4 else later) for t in (3.0, 3.4, 4.2, 4.4)]
        BoxStore(site.db).append("yard", "r1", frames)
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)))
        site.maker.run_once()
        [still] = [row for row in site.detail().evidence if row.kind == "still"]
        assert (still.state, still.t_start) == ("ready", pytest.approx(T0 + 4.2))
        assert (number(picture(site.root, still.path)), still.box, still.score) == (42, later, 0.8)
        assert still.reason == "1.2 s after the best view, which is not recorded"
        site.pass_time(3)
        assert site.maker.made == 1, "it is not cut again and again"
        better = best(T0 + 5, score=0.95, box=(0.1, 0.1, 0.9, 0.9))
        site.apply(AlertChange("extended", alert(t=T0 + 3, view=better)))
        site.maker.run_once()
        [still] = [row for row in site.detail().evidence if row.kind == "still"]
        assert (still.box, still.reason) == (better.box, ""), "a better view that is recorded takes its place"

    def test_only_the_alert_s_own_tracks_stand_in_for_its_best_view(self, site: Site) -> None:
        site.put(encoded_footage(0, 20), T0)
        for n in (4, 8, 12):
            site.put(encoded_footage(10 * n, 40), T0 + n)
        somebody = [sample_frame(T0 + t, seq=round(t * 10), track=99) for t in (4.2, 4.4)]
        BoxStore(site.db).append("yard", "r1", somebody)
        site.apply(ended(t=T0 + 3, t_end=T0 + 3.4, view=best(T0 + 3)))
        site.maker.run_once()
        assert site.state("still") == ("missing", "the recording does not hold this moment")

    def test_the_cloud_is_not_kept_waiting_for_boxes_that_do_not_come(self, site: Site) -> None:
        site.record()
        site.apply(opened(t=T0 + 3), sample_escalation(t=T0 + 3))
        site.pass_time(1)
        assert site.detail().row.judged.delivery == "waiting"
        site.pass_time(2)
        [row] = EscalationStore(site.db).media("q1")
        assert (number(picture(site.root, row.path)), row.ref.box) == (30, BOX)

    def test_with_recording_off_the_facts_go_alone_and_the_reason_is_recorded(
        self, make_site: Callable[..., Site]
    ) -> None:
        site = make_site(record=False)
        site.see([2.8, 3.0, 3.2])
        site.apply(opened(t=T0 + 3), sample_escalation(t=T0 + 3))
        site.maker.run_once()
        assert site.detail().row.judged.delivery == "ready"
        assert EscalationStore(site.db).media("q1") == []
        assert site.state("still") == ("missing", "recording is off for this camera")
        site.apply(ended(t=T0 + 3, t_end=T0 + 5))
        site.maker.run_once()
        assert site.state("clip") == ("missing", "recording is off for this camera")
        assert site.state("boxes") == ("ready", "")

    def test_a_lost_camera_leaves_reasons_not_silence(self, site: Site) -> None:
        site.apply(ended(t=T0 + 3, t_end=T0 + 5), sample_escalation(t=T0 + 3))
        site.pass_time(19)
        assert site.detail().row.judged.delivery == "waiting"
        site.pass_time(10)
        assert site.detail().row.judged.delivery == "ready"
        for kind in ("still", "clip"):
            state, reason = site.state(kind)
            assert state == "missing"
            assert reason

    def test_a_clip_whose_post_roll_never_came_is_shorter_and_notes_it(self, site: Site) -> None:
        site.put(encoded_footage(0, 40), T0)
        site.apply(ended(t=T0 + 1, t_end=T0 + 3.5))
        site.pass_time(10)
        assert site.state("clip") == ("waiting", "")
        site.pass_time(15)
        state, _ = site.state("clip")
        assert state == "ready"

    def test_a_source_that_ended_is_not_waited_for(self, site: Site) -> None:
        site.put(encoded_footage(0, 40), T0)
        site.apply(ended(t=T0 + 1, t_end=T0 + 3.5))
        CameraStore(site.db).write_state(CameraState(camera="yard", state="ended", t=T0 + 4))
        site.pass_time(3)
        assert site.state("clip")[0] == "ready"

    def test_a_broken_segment_stops_only_its_own_alert(self, site: Site) -> None:
        site.record()
        (site.root / f"segments/yard/{T0:.3f}.mp4").write_bytes(b"broken")
        site.apply(opened("a1", t=T0 + 2))
        site.apply(opened("a2", t=T0 + 9))
        site.maker.run_once()
        other = AlertStore(site.db).get("a2")
        assert other is not None
        assert other.row.evidence.still == "ready"
        assert site.detail().row.evidence.still == "waiting"
        site.pass_time(26)
        state, reason = site.state("still")
        assert state == "missing"
        assert "cannot be read" in reason

    def test_a_full_disk_is_waited_out(self, site: Site) -> None:
        site.record()
        blocked = site.root / "evidence"
        blocked.write_text("a file where a folder should be, as a disk that refuses")
        site.apply(ended(t=T0 + 3, t_end=T0 + 5), sample_escalation(t=T0 + 3))
        site.pass_time(60)
        assert site.detail().row.judged.delivery == "waiting"
        assert {site.state(kind)[0] for kind in ("still", "clip", "boxes")} == {"waiting"}
        blocked.unlink()
        site.pass_time(6)
        assert site.detail().row.judged.delivery == "ready"
        assert {site.state(kind)[0] for kind in ("still", "clip", "boxes")} == {"ready"}

    def test_a_restart_goes_on_where_it_was(self, site: Site) -> None:
        site.record()
        site.see([n / 5 for n in range(60)])
        site.apply(ended(t=T0 + 3, t_end=T0 + 5), sample_escalation(t=T0 + 3))
        site.maker.run_once()
        shutil.copytree(site.root / "evidence", site.root / "before")
        again = EvidenceMaker(site.db, site.root, site.config.for_decisions(), site.clock)
        assert again.run_once() == 0
        assert site.detail().row.evidence.clip == "ready"
        assert list((site.root / "evidence").rglob(".*")) == []

    def test_works_in_a_thread_of_its_own_until_stopped(self, site: Site) -> None:
        site.record()
        site.see([n / 5 for n in range(60)])
        maker = EvidenceMaker(site.db, site.root, site.config.for_decisions(), SystemClock())
        thread = threading.Thread(target=maker.run, name="evidence")
        thread.start()
        site.apply(ended(t=T0 + 3, t_end=T0 + 5), sample_escalation(t=T0 + 3))
        try:
            until(lambda: site.detail().row.evidence.clip == "ready")
        finally:
            maker.stop()
            thread.join(60)
        assert not thread.is_alive()
        assert (site.detail().row.judged.delivery, site.detail().row.evidence.clip) == ("ready", "ready")
