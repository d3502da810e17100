"""The gate in weather: a person who crosses in rain after an infrared switch, and real footage with seeded rain."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path

import pytest

from appliance import config
from appliance.analysis.decode_session import TUNING
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.replay.footage import ClipReader
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.frame_transform import frame_transform_of
from appliance.replay.replay_result import read_log
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes
from tests.support.clip_replay import replay
from tests.support.render_family import Once, loaded
from tests.support.scripted_sources import FrameByFrame

HEARTBEAT_S = config.DetectConfig().heartbeat_s
SWITCH_S, RAIN_S, END_S = 4, 6, 19
CROSSES = range(12, 18)  # seconds in which more than half of the person can be seen; else the border cuts them off


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> list[FrameBoxes]:
    """What a replay says of fixtures/family/ir_rain.mp4: dusk, at 4 s infrared, at 5.5 s rain, then a person."""
    scenario, log = loaded("ir_rain"), io.BytesIO()
    part = scenario.parts[0]
    replay(part.clip, scenario.config, part.camera, Once(detector_loader.load(DetectorConfig())), log)
    path = tmp_path_factory.mktemp("ir_rain") / "log.jsonl"
    path.write_bytes(log.getvalue())
    return [line for line in read_log(path).lines if isinstance(line, FrameBoxes)]


def test_rain_after_an_infrared_switch_is_examined_in_every_second_of_it(looks: list[FrameBoxes]) -> None:
    taken = Counter(int(examined.t) for examined in looks if examined.looked)
    assert all(taken[second] >= 3 for second in range(SWITCH_S, END_S)), taken
    gaps = [b.t - a.t for a, b in itertools.pairwise(looks)]
    assert max(gaps) <= HEARTBEAT_S * (1 + TUNING.wait_share)


def test_who_crosses_in_it_is_tracked_in_every_second(looks: list[FrameBoxes]) -> None:
    tracks: dict[int, set[int]] = {second: set() for second in CROSSES}
    for examined in looks:
        if int(examined.t) in tracks:
            tracks[int(examined.t)] |= {each.track for each in examined.objects if each.label == "person"}
    assert all(tracks.values()), tracks
    assert len(set.union(*tracks.values())) == 1, "one person, one track"
    assert not any(examined.objects for examined in looks if RAIN_S <= examined.t < 11), "the rain alone is nobody"


class Nobody:
    """A detector that finds nothing: what is looked at is the gate's and the heartbeat's doing alone."""

    name, warning, labels = "scripted:nobody", "", ("person",)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return 64, 48

    def detect(self, images: object) -> list[Detections]:
        return [Detections.empty()]


@pytest.mark.shared
@pytest.mark.parametrize("weather", ["rain:10mm", "ir@10s,rain:25mm@12s", "snow:5cm@5s"])
def test_real_people_in_seeded_conditions_are_examined_as_in_dry(shared_data: Path, weather: str) -> None:
    """PETS09-S2L1, where somebody is to be seen in every frame: weather closes the gate for no second."""
    clip, seen = shared_data / "footage" / "pets09_s2l1_vtest_480x360.mp4", Counter[int]()
    made = FrameByFrame(
        "pets",
        Nobody(),
        Tracker(("person",)),
        config.DetectConfig(),
        frame_filter=frame_transform_of(ConditionSet.parse([weather], seed=3)),
    )
    with ClipReader(str(clip)) as film:
        for frame in film.frames():
            if frame.t >= 30:
                break
            examined = made.select(frame.index, frame.t, frame.av_frame)
            if examined is not None:
                made.result(examined, Detections.empty())
                seen[int(frame.t)] += examined.priority > 0
    assert all(seen[second] >= 4 for second in range(30)), seen
