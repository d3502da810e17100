"""A kept clip begins in the middle of a camera's session: its replay knows what stood there, as that session did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from appliance.base.errors import ConfigError
from appliance.config import AlertsConfig, SiteConfig
from appliance.demo.demo_config import BUNDLED
from appliance.detect.detector import ObjectDetector
from appliance.scenario.scenario_exporter import KeepOptions, ScenarioExporter, what_stood
from appliance.scenario.scenario_file import ReviewedAs, StoodThere
from appliance.scenario.scenario_loader import load_scenario
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache, run_scenario
from appliance.types import Alert, FrameBoxes, TrackedObject
from tests.support.block_footage import HEIGHT, WIDTH, block_clip, site
from tests.support.recorded_site import Life, site_of
from tests.support.render_family import Once, our_eye

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
COMES_T, STANDS_AT, ANOTHER_AT = 12.0, 0.6, 0.85


class TwoBlocks:
    """A detector: what is bright in the left three quarters is one person, what is bright in the rest another."""

    name, warning = "scripted:two-blocks", ""
    labels: tuple[str, ...] = ("person",)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Any]:
        return [self._look(picture[:, :, 1] > 150) for picture in pictures]

    def _look(self, bright: NDArray[np.bool_]) -> Any:
        from appliance.types import Detections

        height, width = bright.shape
        parts = (bright & (np.arange(width) < 0.75 * width), bright & (np.arange(width) >= 0.75 * width))
        found = [np.nonzero(part) for part in parts if part.any()]
        boxes = [
            [xs.min() / width, ys.min() / height, (xs.max() + 1) / width, (ys.max() + 1) / height] for ys, xs in found
        ]
        count = len(boxes)
        return Detections(
            np.array(boxes, np.float32).reshape(-1, 4), np.full(count, 0.9, np.float32), np.zeros(count, np.int32)
        )


def comes_and_stands(t: float) -> float | None:
    """Nobody at first; then somebody steps out of a door in the zone, and stays before it."""
    return STANDS_AT if COMES_T <= t < COMES_T + 8 else None


def lived(root: Path, config: SiteConfig, eye: ObjectDetector, footage: Path, camera: str = "gate") -> Life:
    life = Life(config, eye)
    life.live_through(footage, camera=camera)
    life.clock.advance(200)
    return life


def in_the_yard(root: Path, at_start: str = "moving", **alerts: float) -> SiteConfig:
    watched = site().cameras["gate"].model_dump(mode="json", include={"zones"})
    rule = {"name": "intruder", "kind": "enter", "zone": "yard", "at_start": at_start, "cooldown_s": 2}
    config = site_of(root, {**watched, "rules": [rule]})
    return config.model_copy(update={"alerts": AlertsConfig.model_validate({"merge_s": 4, "post_roll_s": 2, **alerts})})


def kept_file(life: Life, alert: Alert, truth: ReviewedAs, name: str = "kept", *, complete: bool = False) -> Path:
    keeper = ScenarioExporter(life.root, life.config.for_decisions(), life.config.storage.disk_free_min_mb, life.clock)
    kept = keeper.keep(alert.id, KeepOptions(name=name, truth=truth, complete=complete))
    return kept.folder / f"{name}.scenario.yaml"


def proved(
    file: Path, eye: ObjectDetector, change: Callable[[dict[str, Any]], None] = lambda data: None
) -> ScenarioResult:
    data = yaml.safe_load(file.read_text())
    change(data)
    changed = file.with_name("changed.scenario.yaml")
    changed.write_text(yaml.safe_dump(data))
    result = run_scenario(load_scenario(changed), DetectorCache(load=lambda _: eye))
    changed.unlink()
    return result


def forget_what_stood(data: dict[str, Any]) -> None:
    del data["stood_before"]


@pytest.mark.parametrize("pre_roll_s", [0.0, 2.0])
def test_who_comes_into_an_empty_picture_comes_again_however_short_the_pre_roll(
    tmp_path: Path, pre_roll_s: float
) -> None:
    eye = TwoBlocks()
    footage = block_clip(tmp_path / "comes.mp4", 24, comes_and_stands)
    life = lived(tmp_path / "data", in_the_yard(tmp_path / "data", pre_roll_s=pre_roll_s), eye, footage)
    (alert,) = life.all()
    file = kept_file(life, alert, "right", complete=True)
    assert yaml.safe_load(file.read_text())["stood_before"] == {"gate": []}
    result = proved(file, eye)
    assert (result.status, result.text) == ("passed", "")
    (fault,) = proved(file, eye, forget_what_stood).failures
    assert fault.culprit == "at_start"
    life.db.close()


def test_the_culprit_is_sought_with_what_stood_there(tmp_path: Path) -> None:
    eye = TwoBlocks()
    footage = block_clip(tmp_path / "comes.mp4", 24, comes_and_stands)
    life = lived(tmp_path / "data", in_the_yard(tmp_path / "data", pre_roll_s=0.0), eye, footage)
    (alert,) = life.all()

    def ask_for_more(data: dict[str, Any]) -> None:
        data["cameras"]["gate"]["rules"][0]["score_min"] = 0.999

    (fault,) = proved(kept_file(life, alert, "right"), eye, ask_for_more).failures
    assert fault.culprit == "score"
    life.db.close()


def test_who_stood_there_before_is_not_reported_again_and_a_false_alarm_stays_one(tmp_path: Path) -> None:
    """One stands in the zone all the time; another comes, and that alert is kept."""
    eye, root = TwoBlocks(), tmp_path / "data"
    footage = two_in_the_yard(tmp_path / "two.mp4")
    life = lived(root, in_the_yard(root, "report", pre_roll_s=3.0, length_max_s=10), eye, footage)
    first, second = life.all()
    life.review(first, "reviewed")
    file = kept_file(life, second, "right", complete=True)
    ((stood,),) = yaml.safe_load(file.read_text())["stood_before"].values()
    assert stood["label"] == "person"
    assert stood["box"][0] == pytest.approx(STANDS_AT, abs=0.02)
    assert 5 < stood["seconds"] < COMES_T
    result = proved(file, eye)
    assert (result.status, result.text, result.events and result.events.alerts) == ("passed", "", 1)

    def not_even_perhaps(data: dict[str, Any]) -> None:
        data["expect"] = [each for each in data["expect"] if "count" not in each]

    assert proved(file, eye, not_even_perhaps).status == "passed"

    def forget_who_stood(data: dict[str, Any]) -> None:
        not_even_perhaps(data)
        data["stood_before"] = {"gate": []}

    assert {fault.kind for fault in proved(file, eye, forget_who_stood).failures} == {"false alarm"}
    never = proved(kept_file(life, second, "false", "false"), eye)
    assert {fault.kind for fault in never.failures} == {"false alarm"}
    life.db.close()


def two_in_the_yard(path: Path) -> Path:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"qscale": "2"}
        for index in range(220):
            picture = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
            lefts = [STANDS_AT, *([ANOTHER_AT] if COMES_T <= index / 10 < COMES_T + 5 else [])]
            for left in lefts:
                x = round(left * WIDTH)
                picture[100:160, x : x + 24] = 230
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "bgr24")))
        container.mux(stream.encode(None))
    return path


def test_a_clip_that_begins_with_its_session_knows_no_more_than_that(tmp_path: Path) -> None:
    eye, root = TwoBlocks(), tmp_path / "data"
    life = lived(
        root, in_the_yard(root, "report", pre_roll_s=3.0, length_max_s=10), eye, two_in_the_yard(tmp_path / "two.mp4")
    )
    file = kept_file(life, life.all()[0], "right")
    assert "stood_before" not in file.read_text()
    assert proved(file, eye).status == "passed"
    life.db.close()


def looks(*places: dict[int, float]) -> list[FrameBoxes]:
    """Frames one second apart: where (x) each track was."""
    return [
        FrameBoxes(
            camera="gate", seq=n, frame=n, t=float(n), looked=True,
            objects=tuple(
                TrackedObject(track=track, label="person", score=0.9, box=(x, 0.2, x + 0.1, 0.5))
                for track, x in place.items()
            ),
        )
        for n, place in enumerate(places)
    ]  # fmt: skip


def test_only_what_does_not_walk_has_stood_and_for_as_long_as_it_did_not() -> None:
    frames = looks({1: 0.1, 2: 0.1, 3: 0.7}, {1: 0.5, 2: 0.4, 3: 0.7}, {1: 0.5, 3: 0.7}, {1: 0.5, 2: 0.8, 3: 0.7})
    assert what_stood(frames, 3.0, {3}) == (StoodThere("person", (0.5, 0.2, 0.6, 0.5), 2.0),)
    assert [each.seconds for each in what_stood(frames, 3.0, set()) or ()] == [2.0, 3.0]
    assert what_stood(frames[3:], 3.0, set()) is None


def test_a_wrong_line_of_what_stood_there_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "x.scenario.yaml"
    file.write_text(
        "clip: x.mp4\nif_absent: skip\ncameras: {gate: {zones: {yard: [[0, 0], [1, 0], [1, 1]]}, rules: []}}\n"
        "stood_before: {gat: []}\n"
    )
    with pytest.raises(ConfigError, match=r"line 4: stood_before\.gat: there is no camera `gat`"):
        load_scenario(file)
    file.write_text(file.read_text().replace("{gat: []}", "{gate: [{label: person, box: [0, 0, 2, 1], seconds: 1}]}"))
    with pytest.raises(ConfigError, match="box"):
        load_scenario(file)


@pytest.fixture(scope="module")
def eye() -> Once:
    """The network as the demo runs it on most CPUs.

    As float32 it gives person 1 of the yard a second number in one recording and not in its replay, by a box's edge.
    """
    return our_eye("int8")


@pytest.mark.parametrize("camera", sorted(BUNDLED))
def test_every_alert_of_the_demo_passes_under_the_settings_it_was_kept_with(
    tmp_path: Path, eye: Once, camera: str
) -> None:
    """Its rules, pre-roll and merging, over both of its clips."""
    config = site_of(tmp_path, {"detect": {"fps": 3}, **BUNDLED[camera]}, name=camera)
    config = config.model_copy(update={"alerts": AlertsConfig(merge_s=6, pre_roll_s=3, post_roll_s=3)})
    life = lived(tmp_path, config, eye, CLIPS / f"{camera}.mp4", camera)
    alerts = life.all()
    assert alerts
    for number, alert in enumerate(alerts):
        result = proved(kept_file(life, alert, "right", f"right{number}"), eye)
        assert (result.status, result.text) == ("passed", "")
        assert len(result.judgement.hits) >= 2
    false = proved(kept_file(life, alerts[0], "false", "false"), eye)
    assert {fault.kind for fault in false.failures} == {"false alarm"}
    life.db.close()
