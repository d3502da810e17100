"""One incident over several cameras: walkers through the real alert path, from tracked boxes to notices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError
from appliance.config import SiteConfig, loads
from appliance.store.alert_rows import AlertRow
from appliance.types import FrameBoxes, IngestHealth, StreamHeader, TrackedObject
from tests.support.core_harness import CoreHarness
from tests.support.sample_rows import T0

CAMERAS = ("gate", "yard", "door")  # from left to right: who leaves one at its right edge comes in at the next's left
EDGE = 0.3  # share of the picture: width of the zones where people come and go
LEFT, RIGHT = [[0, 0.3], [EDGE, 0.3], [EDGE, 1], [0, 1]], [[1 - EDGE, 0.3], [1, 0.3], [1, 1], [1 - EDGE, 1]]


def row_of_cameras(**alerts: object) -> SiteConfig:
    rule = {"name": "walker", "kind": "enter", "zone": "all", "score_min": 0.3, "at_start": "report"}
    camera = {
        "url": "rtsp://127.0.0.1/x",
        "zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]], "left": LEFT, "right": RIGHT},
        "rules": [rule],
    }
    pairs = [{"zones": [f"{a}/right", f"{b}/left"]} for a, b in itertools.pairwise(CAMERAS)]
    return SiteConfig.model_validate(
        {
            "cameras": dict.fromkeys(CAMERAS, camera),
            "alerts": {"merge_s": 4, "adjoining": pairs, **alerts},
            "notify": {"phone": {"kind": "ntfy", "url": "https://ntfy.example", "topic": "x"}},
        }
    )


@dataclass(frozen=True)
class Walk:
    """Somebody who crosses the row of cameras. across_s: on one camera; gap_s: seen by none; -1: from the right."""

    begin_s: float
    across_s: float
    gap_s: float
    way: int = 1

    def seen(self, t: float) -> tuple[int, float] | None:
        """Return on which camera (its place in the row) and how far from its left edge; None: nowhere."""
        leg, into = divmod(t - self.begin_s, self.across_s + self.gap_s)
        if not 0 <= leg < len(CAMERAS) or into >= self.across_s:
            return None
        share = into / self.across_s
        return (int(leg), share) if self.way > 0 else (len(CAMERAS) - 1 - int(leg), 1 - share)


class Row(CoreHarness):
    """The row of cameras, its core, its notices; what each walker is called by on each camera is a new track."""

    def __init__(self, folder: Path, config: SiteConfig | None = None) -> None:
        config = config or row_of_cameras()
        super().__init__(folder, config, ManualClock(T0))
        self.db.execute("DELETE FROM camera")
        self.stores.cameras.ensure(dict.fromkeys(CAMERAS, "rtsp://127.0.0.1/x"))
        for name in CAMERAS:
            self.core.take(StreamHeader(camera=name, clip="", model="m", size=(640, 480), run="r1"))

    def play(self, *walks: Walk, seconds: float, luck: random.Random | None = None, missed: float = 0.0) -> None:
        """Show the walkers to all cameras, five times a second. missed: the share of detections that fail."""
        for step in range(int(seconds * 5)):
            self.clock.advance(0.2)
            where = [walk.seen(step / 5) for walk in walks]
            for number, name in enumerate(CAMERAS):
                objects = [
                    self._person(100 * n + number + 1, at[1])
                    for n, at in enumerate(where)
                    if at is not None and at[0] == number and not (luck and luck.random() < missed)
                ]
                self.look(name, *objects)
            if step % 5 == 4:
                self.core.take(IngestHealth(t=self.clock.now(), detector_ms=1.0, queue=0, rss_bytes=1))

    @staticmethod
    def _person(track: int, x: float) -> TrackedObject:
        box = (max(0.0, x - 0.04), 0.4, min(1.0, x + 0.04), 0.8)
        return TrackedObject(track=track, label="person", score=0.8, box=box)

    def look(self, name: str, *objects: TrackedObject) -> None:
        self._seq += 1
        t = self.clock.now()
        self.core.take(FrameBoxes(camera=name, seq=self._seq, frame=self._seq, t=t, looked=True, objects=objects))

    def incidents(self) -> list[tuple[str, ...]]:
        """Return the cameras of each incident, oldest first."""
        found: dict[str, list[str]] = {}
        for row in reversed(self.alerts.page(limit=100)):
            found.setdefault(row.incident or row.alert.id, []).append(row.alert.camera)
        return [tuple(cameras) for cameras in found.values()]


@pytest.fixture
def row(tmp_path: Path) -> Iterator[Row]:
    made = Row(tmp_path)
    yield made
    made.db.close()


def test_a_walker_across_three_cameras_is_one_incident(row: Row) -> None:
    row.play(Walk(2, 6, 1.5), seconds=40)
    assert row.incidents() == [CAMERAS]
    first = row.alerts.page(limit=10)[-1]
    assert (first.alert.camera, first.incident) == ("gate", first.alert.id)


def test_a_walker_back_is_one_incident_and_views_may_overlap(row: Row) -> None:
    row.play(Walk(2, 6, -0.8, way=-1), seconds=40)
    assert row.incidents() == [("door", "yard", "gate")]


SEEDS = [seed if seed < 8 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_in_opposite_directions_are_never_one(tmp_path: Path, seed: int) -> None:
    """They meet anywhere: on a camera, or where none of them sees."""
    luck = random.Random(seed)
    row = Row(tmp_path)
    across, gap = luck.uniform(4, 10), luck.uniform(-1, 3)
    other = Walk(luck.uniform(1, 12), luck.uniform(4, 10), luck.uniform(-1, 3), way=-1)
    row.play(Walk(2, across, gap), other, seconds=60, luck=luck, missed=0.05)
    assert not mixed(row), row.incidents()
    row.db.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_two_who_walk_20_s_apart_are_never_one(tmp_path: Path, seed: int) -> None:
    luck = random.Random(100 + seed)
    row = Row(tmp_path)
    across, gap = luck.uniform(4, 9), luck.uniform(-1, 3)
    row.play(Walk(2, across, gap), Walk(22, across, gap), seconds=75, luck=luck, missed=0.05)
    assert row.incidents() == [CAMERAS, CAMERAS]
    assert not mixed(row)
    row.db.close()


def mixed(row: Row) -> list[AlertRow]:
    """Return the alerts that were joined to an incident of another person (tracks of walker n are 100 n + …)."""
    alerts = {each.alert.id: each for each in row.alerts.page(limit=100)}

    def opened_by(opened: AlertRow) -> int:
        return opened.alert.tracks[0] // 100

    joined = [each for each in alerts.values() if each.incident]
    return [each for each in joined if opened_by(each) != opened_by(alerts[each.incident])]


def test_strangers_doubt_and_other_clocks_leave_two(tmp_path: Path) -> None:
    """Two leave and one arrives elsewhere; somebody appears while another only nears the edge; a frame is late."""
    row = Row(tmp_path)
    row.play(Walk(2, 6, 1.0), seconds=7.5)  # on the gate's right edge, not gone
    row._track += 1
    for n in range(10):  # somebody else walks out of the middle of the next picture
        row.clock.advance(0.2)
        row.look("yard", row._person(900, 0.5 + n * 0.02))
    assert row.incidents() == [("gate",), ("yard",)]
    row.db.close()


def test_a_zone_that_adjoins_is_there_and_small() -> None:
    text = "cameras: {{}}\nalerts: {{adjoining: [{{zones: [{0}, {1}]}}]}}\n"
    with pytest.raises(ConfigError, match="no zone `way` on a camera `gate`"):
        loads(text.format("gate/way", "door/steps"), "site.yaml")
    with pytest.raises(ConfigError, match="is not a camera and a zone"):
        loads(text.format("gate", "door/steps"), "site.yaml")
    with pytest.raises(ConfigError, match="are of one camera"):
        loads(text.format("gate/a", "gate/b"), "site.yaml")
    wide = row_of_cameras().model_dump(mode="json")
    wide["alerts"]["adjoining"] = [{"zones": ["gate/all", "yard/left"]}]
    with pytest.raises(ValueError, match="covers more than half"):
        SiteConfig.model_validate(wide)
