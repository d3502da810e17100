"""A clip through the whole pipeline: what is counted, what is logged, and what happens to clips that are not well."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from appliance.analysis.decode_policy import DecodePolicy
from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError
from appliance.base.json_lines import decode_log
from appliance.media.decoder import DecodedFrame
from appliance.replay import replay_report
from appliance.replay.footage import ClipSource, SourceItem
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_runner import play
from appliance.types import Alert, Event, FrameBoxes, StreamHeader
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay


def there_and_back(t: float) -> float | None:
    """In at 2 s, over the middle, standing still until 8 s, and back out over it; gone from 11 s."""
    if t < 1 or t > 11:
        return None
    return 0.1 + 0.25 * min(max(t - 1, 0), 2.4) if t < 8 else 0.7 - 0.25 * min(t - 8, 2.4)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "visit.mp4", 14, there_and_back)


def run(clip: Path, detector: BrightBlock | None = None) -> tuple[ReplayResult, bytes]:
    log = io.BytesIO()
    return replay(clip, site().for_decisions(), "gate", detector or BrightBlock(), log), log.getvalue()


def test_a_visit_is_replayed_event_by_event(clip: Path) -> None:
    result, _ = run(clip)
    assert [(event.rule, event.t) for event in result.events] == [
        ("intruder", 2.8),
        ("in", 2.8),
        ("loiterer", 4.8),
        ("leaver", 9.4),
        ("out", 9.4),
    ]
    (alert,) = result.alerts
    assert (alert.t_start, alert.t_end, alert.severity, alert.end_reason) == (2.8, 11.0, "alert", "end of clip")
    assert (result.end.frames, result.end.examined, result.tracks, result.size) == (140, 65, 1, (320, 240))
    assert result.end.t == 13.9
    assert result.end.error is None


def test_the_log_holds_the_whole_story_in_order(clip: Path) -> None:
    result, log = run(clip)
    lines = [decode_log(line) for line in log.splitlines()]
    header, boxes = lines[0], [line for line in lines if isinstance(line, FrameBoxes)]
    assert isinstance(header, StreamHeader)
    assert (header.clip, header.camera, header.model) == ("visit.mp4", "gate", "scripted:bright-block")
    assert (header.size, header.run) == ((320, 240), result.end.run)
    assert [line.seq for line in boxes] == list(range(result.end.examined))
    assert all(line.t == round(line.frame / 10, 3) for line in boxes)
    assert tuple(line for line in lines if isinstance(line, Event)) == result.events
    assert tuple(line for line in lines if isinstance(line, Alert)) == result.alerts
    for event in result.events:
        before = lines[: lines.index(event)]
        assert next(line for line in reversed(before) if isinstance(line, FrameBoxes)).t == event.t


def test_the_log_names_no_place_and_no_time_of_this_machine(clip: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / clip.name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(clip.read_bytes())
    clock = ManualClock(now=5.0)
    log = io.BytesIO()
    result = replay(elsewhere, site().for_decisions(), "gate", BrightBlock(), log, clock=clock)
    assert log.getvalue() == run(clip)[1]
    assert str(tmp_path).encode() not in log.getvalue()
    assert result.cost.wall_s == 0.0


def test_ids_differ_between_clips_and_agree_between_runs(clip: Path, tmp_path: Path) -> None:
    other = block_clip(tmp_path / "visit.mp4", 13, there_and_back)
    first, again, different = (run(each)[0] for each in (clip, clip, other))
    assert first.end.run == again.end.run != different.end.run
    assert [event.id for event in first.events] == [event.id for event in again.events]
    assert not {event.id for event in first.events} & {event.id for event in different.events}


def test_a_detector_that_fails_is_counted_and_is_not_an_empty_yard(clip: Path) -> None:
    result, log = run(clip, BrightBlock(fails=1000))
    assert result.end.unlooked == result.end.examined > 0
    assert result.events == ()
    assert b'"looked":false' in log
    assert b'"looked":true' not in log


def test_progress_is_reported_in_seconds_of_footage(clip: Path) -> None:
    reported: list[tuple[float, float | None]] = []
    replay(
        clip, site().for_decisions(), "gate", BrightBlock(), progress=lambda done, total: reported.append((done, total))
    )
    assert [done for done, _ in reported] == [index / 10 for index in range(140)]
    assert {total for _, total in reported} == {14.0}


class SetToAnotherSize(ClipSource):
    """A camera that sends smaller frames from 7 s on."""

    def play(self, decode_policy: DecodePolicy | None = None) -> Iterator[SourceItem]:
        for item in super().play():
            assert isinstance(item, DecodedFrame)
            yield item if item.t < 7 else replace(item, av_frame=item.av_frame.reformat(160, 120))


def test_frames_of_another_size_begin_a_session_as_live(clip: Path) -> None:
    config, log = site().for_decisions(), io.BytesIO()
    footage = replace(clip_input(clip, config, "gate", BrightBlock()), source=SetToAnotherSize(clip, "gate"))
    play(ReplayPlan((footage,), config, BrightBlock()), log, ReplayOptions(ManualClock()))
    headers = [line for line in map(decode_log, log.getvalue().splitlines()) if isinstance(line, StreamHeader)]
    assert [header.size for header in headers] == [(320, 240), (160, 120)]
    assert headers[0].run != headers[1].run


def test_a_damaged_stretch_is_skipped_and_counted(clip: Path, tmp_path: Path) -> None:
    whole, damaged = clip.read_bytes(), tmp_path / "damaged.mp4"
    start, end = whole.index(b"mdat") + 4, whole.index(b"moov") - 4
    middle = (start + end) // 2
    damaged.write_bytes(whole[:middle] + bytes(end - middle) + whole[end:])
    result, log = run(damaged)
    assert result.end.decode_errors > 50
    assert result.end.frames + result.end.decode_errors == 140
    decided = len(result.events) + len(result.routes) + len(result.alerts)
    assert len(log.splitlines()) == 1 + result.end.examined + decided + 1


def test_a_clip_that_was_cut_off_gives_what_was_found_until_then_and_an_error(tmp_path: Path) -> None:
    cut = block_clip(tmp_path / "cut.mkv", 14, there_and_back)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    result, log = run(cut)
    assert result.end.error == f"cut.mkv breaks off after {result.end.t:.1f} s of the 14.0 s that it announces"
    assert [event.rule for event in result.events] == ["intruder", "in", "loiterer"]
    assert [alert.end_reason for alert in result.alerts] == ["clip broke off"]
    assert [json.loads(line)["type"] for line in log.splitlines()[-2:]] == ["alert", "end"]
    assert b"cut.mkv breaks off after" in log.splitlines()[-1]


def test_what_is_not_a_video_is_one_sentence(tmp_path: Path) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("not a video")
    with pytest.raises(SourceError, match=r"notes\.mp4"):
        run(text)
    with pytest.raises(SourceError, match=r"absent\.mp4"):
        run(tmp_path / "absent.mp4")


def test_a_full_disk_leaves_whole_lines(clip: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            if self.tell() > 4000:
                raise OSError(28, "No space left on device")
            return super().write(data)  # type: ignore[arg-type]

    full = Full()
    with pytest.raises(OSError, match="No space left"):
        replay(clip, site().for_decisions(), "gate", BrightBlock(), full)
    assert all(decode_log(line) for line in full.getvalue().splitlines())
    assert full.getvalue().endswith(b"\n")


def test_the_report_speaks_to_people_and_to_machines(clip: Path) -> None:
    result, _ = run(clip)
    page = io.StringIO()
    replay_report.print_text(result, Console(file=page, width=160, highlight=False))
    text = page.getvalue()
    assert "140 frames" in text
    assert "Alerts (1)" in text
    assert "intruder" in text
    reported = json.loads(json.dumps(replay_report.as_json(result)))
    assert reported["frames"] == 140
    assert reported["events"][0]["type"] == "event"
    assert reported["alerts"][0]["rules"] == list(result.alerts[0].rules)
    assert "/" not in reported["clip"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00.0"), (75.34, "1:15.3"), (59.96, "1:00.0"), (3661.5, "1:01:01.5")]
)
def test_times_are_written_as_a_player_shows_them(seconds: float, text: str) -> None:
    assert replay_report.format_time(seconds) == text


class Told(BrightBlock):
    """A detector of a network whose scores are another's, and that can be told what rules want."""

    calibration = {"person": (2.0, 0.4)}

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[frozenset[str]] = []

    def prefer(self, wanted: frozenset[str]) -> None:
        self.wanted.append(frozenset(wanted))


def test_the_detector_is_told_what_rules_want_and_the_log_how_its_scores_are_meant(clip: Path) -> None:
    detector = Told()
    _, log = run(clip, detector)
    assert detector.wanted == [frozenset({"person"})]
    assert json.loads(log.split(b"\n", 1)[0])["calibration"] == {"person": [2.0, 0.4]}
