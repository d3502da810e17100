"""What the true boxes of a scenario make the rules expect, and what of it is neither demanded nor forbidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.json_lines import encode_log
from appliance.replay.replay_result import ReplayResult
from appliance.scenario import scenario_loader
from appliance.scenario.expectations import Expectation, derived_expectations
from appliance.scenario.ground_truth import BoxesSpool, read_truth
from appliance.types import FrameBoxes, LogEnd

SCENARIO = """\
clip: clip.mp4
cameras:
  gate:
    zones: {yard: [[0.3, 0], [1, 0], [1, 1], [0.3, 1]]}
    rules: [{name: comes, kind: enter, zone: yard}]
truth:
  mot: gt.txt
  size: [100, 100]
  visible_min: 0.3
  events: {before_s: 1, after_s: 3}
"""


def nothing_reported() -> ReplayResult:
    end = LogEnd(
        camera="gate", run="r", t=2.0, reason="", frames=0, examined=0, unlooked=0, decode_errors=0, time_jumps=0,
        footage_bytes=0,
    )  # fmt: skip
    return ReplayResult(clip="clip.mp4", model="m", size=(100, 100), end=end)


def expected(folder: Path, visible: float) -> list[Expectation]:
    """Somebody walks into the yard, seen to such a part from the fifth frame on; five frames a second."""
    (folder / "clip.mp4").touch()
    file = folder / "it.scenario.yaml"
    file.write_text(SCENARIO)
    rows = [(n, 10 + 5 * n, 1.0 if n < 4 else visible) for n in range(10)]
    (folder / "gt.txt").write_text("".join(f"{n + 1},7,{x},50,4,20,1,1,{seen}\n" for n, x, seen in rows))
    plan = scenario_loader.load_scenario(file)
    assert plan.truth is not None
    assert plan.scenario.truth is not None
    assert plan.scenario.truth.events is not None
    result = nothing_reported()
    with BoxesSpool() as spool:
        for n in range(10):
            spool.write(encode_log(FrameBoxes(camera="gate", seq=n, frame=n, t=n / 5, looked=True, objects=())))
        frames = read_truth(plan.truth, plan.scenario.truth, (100, 100))
        return derived_expectations(plan, result, spool, frames, plan.scenario.truth.events)


def test_who_is_seen_must_be_reported(tmp_path: Path) -> None:
    (one,) = expected(tmp_path, visible=0.9)
    assert (one.pattern.rule, one.min, one.max, one.judged) == ("comes", 1, 1, True)
    assert one.at == pytest.approx(1.2, abs=0.2)


def test_who_is_nearly_hidden_may_be_reported_and_need_not(tmp_path: Path) -> None:
    (one,) = expected(tmp_path, visible=0.2)
    assert (one.pattern.rule, one.min, one.max, one.judged) == ("comes", 0, 1, False)
