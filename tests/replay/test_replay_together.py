"""Several cameras together: one log in the order of time, each camera's share as if it had been replayed alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError
from appliance.config import SiteConfig
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_result import ReplayResult, read_log
from appliance.replay.replay_runner import play
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("films")
    return {
        "gate": block_clip(folder / "gate.mp4", 5, lambda t: 0.1 + 0.25 * min(t, 2.4)),
        "yard": block_clip(folder / "yard.mp4", 3, lambda t: 0.7 - 0.25 * min(t, 2.4)),
    }


@pytest.fixture
def both() -> SiteConfig:
    one = site()
    return one.model_copy(update={"cameras": {"gate": one.cameras["gate"], "yard": one.cameras["gate"]}})


def together(
    clips: dict[str, Path], config: SiteConfig, order: tuple[str, ...] = ("gate", "yard")
) -> tuple[tuple[ReplayResult, ...], bytes]:
    detector, log = BrightBlock(), io.BytesIO()
    inputs = tuple(clip_input(clips[name], config.for_decisions(), name, detector) for name in order)
    return play(ReplayPlan(inputs, config.for_decisions(), detector), log, ReplayOptions(ManualClock())), log.getvalue()


def lines(log: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def test_the_log_runs_by_the_time_of_the_cameras(clips: dict[str, Path], both: SiteConfig) -> None:
    _, log = together(clips, both)
    boxes = [(line["t"], line["camera"]) for line in lines(log) if line["type"] == "boxes"]
    assert boxes == sorted(boxes)
    assert boxes[:4] == [(0.0, "gate"), (0.0, "yard"), (0.2, "gate"), (0.2, "yard")]
    assert [(line["type"], line["camera"]) for line in lines(log) if line["type"] in ("header", "end")] == [
        *(("header", "gate"), ("header", "yard")),
        *(("end", "yard"), ("end", "gate")),
    ]


def test_each_camera_decides_what_it_decides_alone(clips: dict[str, Path], both: SiteConfig) -> None:
    results, log = together(clips, both)
    for result in results:
        alone = io.BytesIO()
        replay(
            clips[result.end.camera], both.for_decisions(), result.end.camera, BrightBlock(), alone, clock=ManualClock()
        )
        ours = [line for line in log.splitlines() if json.loads(line)["camera"] == result.end.camera]
        assert ours[1:] == alone.getvalue().splitlines()[1:]
    assert [(result.end.camera, result.end.frames) for result in results] == [("gate", 50), ("yard", 30)]
    assert [event.rule for event in results[1].events] == ["intruder", "leaver", "out"]


def test_the_same_bytes_every_time_and_one_digest_an_order(clips: dict[str, Path], both: SiteConfig) -> None:
    logs = [together(clips, both)[1] for _ in range(3)]
    assert len(set(logs)) == 1
    other = together(clips, both, ("yard", "gate"))[1]
    assert lines(other)[0]["camera"] == "yard"
    assert lines(other)[0]["digest"] != lines(logs[0])[0]["digest"]


def test_the_log_is_complete_once_every_camera_has_ended(
    clips: dict[str, Path], both: SiteConfig, tmp_path: Path
) -> None:
    results, log = together(clips, both)
    path = tmp_path / "both.jsonl"
    path.write_bytes(log)
    read = read_log(path)
    assert read.complete
    for ours, theirs in zip(read.results(), results, strict=True):
        assert (ours.end.camera, ours.events, ours.alerts, ours.routes) == (
            theirs.end.camera,
            theirs.events,
            theirs.alerts,
            theirs.routes,
        )
        assert (ours.boxes, ours.tracks, ours.sent_bytes) == (theirs.boxes, theirs.tracks, theirs.sent_bytes)
    path.write_bytes(log[: log.rindex(b'{"type":"end"')])
    assert not read_log(path).complete


def test_one_that_is_no_video_stops_all_with_its_name(clips: dict[str, Path], both: SiteConfig, tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("no video")
    with pytest.raises(SourceError, match=r"notes\.mp4"):
        together({**clips, "yard": tmp_path / "notes.mp4"}, both)
