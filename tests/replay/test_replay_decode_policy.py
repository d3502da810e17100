"""A replay decodes by the same policy as the live box, and leaves the same log however it is played."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.replay.footage import RecordingSource, TimeSpan
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.replay_plan import ReplayInput, ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_runner import play
from appliance.types import Gap, SegmentRow
from tests.support.block_footage import site
from tests.support.clip_replay import replay
from tests.support.walker_footage import FPS, WalkerDetector, place

VISITS = ((12.4, 16.0), (27.3, 31.0))
SECONDS = 44


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place(tmp_path_factory.mktemp("film") / "visits.mp4", SECONDS, VISITS, bframes="0")


def at(latency: str) -> SiteConfig:
    return site(detect={"latency": latency})


def run(clip: Path, latency: str, **how: object) -> tuple[ReplayResult, bytes]:
    log = io.BytesIO()
    return replay(
        clip, at(latency).for_decisions(), "gate", WalkerDetector(), log, clock=ManualClock(), **how
    ), log.getvalue()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def normal_run(clip: Path) -> tuple[ReplayResult, bytes]:
    """Several tests hold something against it."""
    return run(clip, "normal")


def events_of(result: ReplayResult) -> list[tuple[str, float]]:
    return [(event.rule, event.t) for event in result.events]


def test_the_events_are_those_of_a_replay_that_decodes_everything(
    clip: Path, normal_run: tuple[ReplayResult, bytes]
) -> None:
    (lowest, _), (normal, log) = run(clip, "lowest"), normal_run
    assert len(events_of(lowest)) >= 4
    assert [rule for rule, _ in events_of(normal)] == [rule for rule, _ in events_of(lowest)]
    assert [t for _, t in events_of(normal)] == pytest.approx([t for _, t in events_of(lowest)], abs=0.21)
    assert normal.end.frames == lowest.end.frames == SECONDS * FPS
    assert normal.end.skipped > 0.4 * normal.end.frames
    assert lowest.end.skipped == 0
    assert normal.end.t == pytest.approx(lowest.end.t)
    assert b'"skipped":%d' % normal.end.skipped in log.splitlines()[-1]


def test_the_log_is_the_same_however_it_is_played(clip: Path, normal_run: tuple[ReplayResult, bytes]) -> None:
    _, log = normal_run
    for how in ({"workers": 3}, {"speed": 4.0}, {"workers": 2, "speed": 0.5}, {}):
        assert run(clip, "normal", **how)[1] == log


def test_one_source_beside_another_decides_for_itself(
    clip: Path, normal_run: tuple[ReplayResult, bytes], tmp_path: Path
) -> None:
    quiet = place(tmp_path / "quiet.mp4", 30, bframes="0")
    base = at("normal")
    config = base.model_copy(update={"cameras": dict.fromkeys(("gate", "yard"), base.cameras["gate"])})
    inputs = tuple(
        clip_input(path, config.for_decisions(), name, WalkerDetector())
        for path, name in ((clip, "gate"), (quiet, "yard"))
    )
    gate, yard = play(ReplayPlan(inputs, config.for_decisions(), WalkerDetector()), None, ReplayOptions(ManualClock()))
    assert events_of(gate) == events_of(normal_run[0])
    assert (yard.events, yard.end.frames) == ((), 30 * FPS)
    assert yard.end.skipped > 0.6 * yard.end.frames


def test_under_image_conditions_everything_is_decoded(tmp_path: Path) -> None:
    short = place(tmp_path / "short.mp4", 12, bframes="0")
    assert run(short, "normal")[0].end.skipped > 0
    result, _ = run(short, "normal", conditions=ConditionSet.parse(["rain"], 1))
    assert result.end.skipped == 0


def test_a_recording_has_no_gaps_where_nothing_was_decoded(clip: Path, tmp_path: Path) -> None:
    """Ten seconds are missing in the middle; the rest is whole, however little of it was decoded."""
    rows: dict[str, SegmentRow] = {}
    t0 = 1_795_172_400.0

    def note(row: SegmentRow | Gap) -> None:
        if isinstance(row, SegmentRow):
            rows[row.path] = row

    for begin in (t0, t0 + SECONDS + 10):
        clock = ManualClock(begin)
        source = FileSource("gate", f"file:{clip}", clock, threading.Event())
        recorder = SegmentRecorder(RecordTarget(tmp_path, "gate", 6.0, 0), clock, note)
        recorder.begin(source.open(), "run1")
        for packet in source.packets():
            recorder.take(packet)
        recorder.end()
        source.close()
    config, detector = at("normal"), WalkerDetector()
    span = TimeSpan(t0, t0 + 2 * SECONDS + 10)
    film = RecordingSource(tmp_path, "gate", span, sorted(rows.values(), key=lambda row: row.t_start), ())
    entry = ReplayInput(film, clip_input(clip, config.for_decisions(), "gate", detector).replayed)
    (result,) = play(ReplayPlan((entry,), config.for_decisions(), detector), None, ReplayOptions(ManualClock()))
    assert [(gap.t_start, gap.t_end) for gap in result.gaps] == [
        (pytest.approx(SECONDS, abs=0.1), pytest.approx(SECONDS + 10, abs=0.1))
    ]
    assert result.end.frames == 2 * SECONDS * FPS
    assert result.end.skipped > 0.3 * result.end.frames
    lowest = run(clip, "lowest")[0]
    assert len(result.events) == 2 * len(lowest.events)
