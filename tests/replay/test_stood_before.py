"""What a replay is told of what stood there before: from a log, from an appliance's own file, from a folder of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import UsageError
from appliance.config import SiteConfig
from appliance.replay.replay_plan import (
    ReplayOptions,
    ReplayPlan,
    clip_input,
    digest_of,
    read_stood_before,
    with_stood_before,
)
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_runner import play
from appliance.track.stationary_objects import ParkedVehiclesStore, StationaryObject
from tests.support.render_family import FAMILY, Truth

WHOLE = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
CLIP = FAMILY / "parked.mp4"
CARS = 5


@pytest.fixture(scope="module")
def eye() -> Truth:
    return Truth("parked")


def site(at_start: str) -> SiteConfig:
    rule = {"name": "vehicle", "kind": "enter", "zone": "all", "labels": ["car", "truck"], "at_start": at_start}
    camera = {"url": "file:x", "zones": {"all": WHOLE}, "rules": [rule], "detect": {"fps": 2}}
    return SiteConfig.model_validate({"site": {"name": "test"}, "cameras": {"gate": camera}})


def replayed(eye: Truth, at_start: str, log: Path, before: Path | None = None) -> ReplayResult:
    settings = site(at_start)
    plan = ReplayPlan((clip_input(CLIP, settings.for_decisions(), "gate", eye),), settings.for_decisions(), eye)
    if before is not None:
        plan = with_stood_before(plan, read_stood_before(before, ["gate"]))
    lines = io.BytesIO()
    (result,) = play(plan, lines, ReplayOptions(SystemClock()))
    log.write_bytes(lines.getvalue())
    return result


@pytest.fixture(scope="module")
def first(eye: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a first replay, in which every car is reported."""
    log = tmp_path_factory.mktemp("first") / "first.jsonl"
    assert len(replayed(eye, "report", log).events) == CARS
    return log


def test_cars_that_an_earlier_log_shows_standing_do_not_enter_again(eye: Truth, first: Path, tmp_path: Path) -> None:
    assert replayed(eye, "report", tmp_path / "second.jsonl", first).events == ()
    assert b'"stood_s":' in (tmp_path / "second.jsonl").read_bytes()


def test_one_that_the_earlier_log_does_not_show_has_come_meanwhile(eye: Truth, first: Path, tmp_path: Path) -> None:
    assert replayed(eye, "moving", tmp_path / "alone.jsonl").events == ()
    known = read_stood_before(first, ["gate"])
    (less,) = known.values()
    settings = site("moving")
    plan = ReplayPlan((clip_input(CLIP, settings.for_decisions(), "gate", eye),), settings.for_decisions(), eye)
    (result,) = play(with_stood_before(plan, {"gate": less[1:]}), None, ReplayOptions(SystemClock()))
    assert len(less) == CARS
    assert [event.kind for event in result.events] == ["enter"]


def test_the_first_line_tells_that_something_was_known(eye: Truth, first: Path, tmp_path: Path) -> None:
    replayed(eye, "report", tmp_path / "second.jsonl", first)
    one, other = (path.read_bytes().split(b"\n", 1)[0] for path in (first, tmp_path / "second.jsonl"))
    assert b"known_before" not in one
    assert b"stood_before" not in one
    assert b'"known_before":true' in other
    assert digest_of(read_stood_before(first, ["gate"])).encode() in other


def test_an_appliances_own_memory_is_read_from_its_folder_or_its_file(tmp_path: Path) -> None:
    store = ParkedVehiclesStore(tmp_path, "gate", ManualClock())
    store.objects.park(StationaryObject("vehicle", (0.1, 0.2, 0.3, 0.4), 1e9, 1e9 + 900, 900.0))
    store.close()
    for path in (tmp_path, tmp_path / "parked", tmp_path / "parked" / "gate.json"):
        ((place,),) = read_stood_before(path, ["gate"]).values()
        assert (place.box, place.stood_s, place.t_first, place.t_last) == ((0.1, 0.2, 0.3, 0.4), 900.0, -900.0, 0.0)


def test_what_is_no_memory_is_refused_in_plain_words(first: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no gate\.json"):
        read_stood_before(tmp_path, ["gate"])
    (tmp_path / "gate.json").write_text("{}")
    with pytest.raises(UsageError, match="is no memory of parked vehicles: 1 faults"):
        read_stood_before(tmp_path / "gate.json", ["gate"])
    with pytest.raises(UsageError, match="is of one camera; for several give the folder"):
        read_stood_before(tmp_path / "gate.json", ["gate", "yard"])
    with pytest.raises(UsageError, match="is of gate, none of them replayed"):
        read_stood_before(first, ["yard"])
