"""A replay reports what was wrong with the camera, in its log and its result, and nothing where nothing was."""

from __future__ import annotations

import io
from pathlib import Path

from appliance.base.json_lines import decode_log
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.replay_result import read_log
from appliance.types import HealthEvent
from tests.support.block_footage import BrightBlock, site
from tests.support.clip_replay import replay

YARD = Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4"


def run(conditions: str, **camera: object) -> tuple[bytes, tuple[HealthEvent, ...]]:
    log = io.BytesIO()
    made = ConditionSet.parse([conditions] if conditions else [])
    result = replay(YARD, site(**camera).for_decisions(), "gate", BrightBlock(), log, conditions=made)
    return log.getvalue(), result.health


def health_lines(log: bytes) -> list[HealthEvent]:
    return [line for line in map(decode_log, log.splitlines()) if isinstance(line, HealthEvent)]


def test_frozen_footage_is_reported_in_its_place_and_the_same_each_time(tmp_path: Path) -> None:
    log, health = run("freeze:20s@20s")
    assert log == run("freeze:20s@20s")[0]
    began, ended = health_lines(log)
    assert (began.kind, began.t_end) == ("frozen", None)
    assert began.t_start == ended.t_start
    assert abs(began.t_start - 20) < 0.5
    assert began.t - 20 <= 10
    assert ended.t_end is not None
    assert abs(ended.t_end - 40) < 0.5
    assert health == (ended,)
    times = [line.t for line in map(decode_log, log.splitlines()[1:]) if hasattr(line, "t")]
    assert times.index(began.t) > 0
    path = tmp_path / "log.jsonl"
    path.write_bytes(log)
    (result,) = read_log(path).results()
    assert result.health == health


def test_ordinary_footage_has_no_such_line_and_one_kind_can_be_left_out() -> None:
    assert health_lines(run("")[0]) == []
    assert health_lines(run("black:20s@20s")[0])[0].kind == "black"
    assert health_lines(run("black:20s@20s", health_ignore=["black"])[0]) == []
