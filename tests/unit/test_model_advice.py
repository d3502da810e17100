"""`vedette check` says how busy the detector will be, and which network would find more on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.errors import DetectorError
from appliance.bundle.manifest import ModelEntry
from appliance.cli.detector_check import measure_load
from appliance.config import CameraConfig
from appliance.detect.model_advice import LOAD_KEEP, LOAD_MAX, DetectorLoad, ap50_by_class, better_models
from appliance.detect.model_files import model_bundles
from appliance.types import Detections


def camera(*labels: str, fps: float = 5.0, enabled: bool = True) -> CameraConfig:
    zone = {"yard": [[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]]}
    rules = [{"name": "r", "kind": "enter", "zone": "yard", "labels": list(labels)}] if labels else []
    settings = {"url": "rtsp://127.0.0.1/x", "zones": zone, "rules": rules, "detect": {"fps": fps}, "enabled": enabled}
    return CameraConfig.model_validate(settings)


def bundle(cost: float, **unseen: float) -> ModelEntry:
    known = {"file": "x.onnx", "sha256": "0" * 64, "licence": "Apache-2.0", "labels": "coco-80", "input": (416, 416)}
    return ModelEntry.model_validate({**known, "cost": cost, "unseen": unseen})


BUNDLES = {
    "vedette-nano": bundle(1.0, stills_person=0.3, night_person=0.1, pets_dog=0.0),
    "large": bundle(4.0, stills_person=0.7, night_person=0.3, pets_dog=0.8),
    "middle": bundle(2.0, stills_person=0.6, night_person=0.2, pets_dog=0.5),
    "dogs": bundle(1.0, stills_person=0.1, night_person=0.0, pets_dog=0.9),
    "unmeasured": bundle(0.0),
    "half": bundle(1.0, stills_person=0.9),
}


def names(load: float, *labels: str, suggested: str = "") -> list[str]:
    found = better_models("auto", BUNDLES, {"gate": camera(*labels)}, DetectorLoad(load / 5, 5), suggested)
    return [each.name for each in found]


def test_the_best_that_fits_on_the_machine_comes_first() -> None:
    assert names(0.1, "person") == ["large", "middle"]
    assert names(LOAD_MAX / 3, "person") == ["middle"]
    assert names(LOAD_MAX / 1.5, "person") == []


def test_a_load_near_the_limit_does_not_change_what_was_suggested() -> None:
    assert names(LOAD_MAX / 3.9, "person", suggested="large") == ["large", "middle"]
    assert names(LOAD_MAX / 3.9, "person", suggested="middle") == ["middle"]
    assert names(LOAD_KEEP / 3.9, "person", suggested="large") == ["middle"]
    assert names(LOAD_MAX / 4.1, "person", suggested="middle") == ["large", "middle"]


def test_what_the_rules_want_decides() -> None:
    assert names(0.1, "dog") == ["dogs", "large", "middle"]
    assert names(0.1) == names(0.1, "person")


def test_the_advice_says_what_it_rests_on() -> None:
    (best, *_) = better_models("vedette-nano", BUNDLES, {"gate": camera("person")}, DetectorLoad(0.02, 5))
    assert (best.ap50, best.ap50_now, best.cost) == (pytest.approx(0.5), pytest.approx(0.2), 4.0)
    assert best.load == pytest.approx(0.4)


def test_nothing_is_advised_against_a_network_that_was_never_measured() -> None:
    assert better_models("unmeasured", BUNDLES, {"gate": camera("person")}, DetectorLoad(0.01, 5)) == []
    assert better_models("mine.onnx", BUNDLES, {"gate": camera("person")}, DetectorLoad(0.01, 5)) == []


class Slow:
    """A detector that works for a while, or fails."""

    labels = ("person",)
    name, warning = "slow", ""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.frames: list[tuple[int, ...]] = []

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width // 2, height // 2

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        if self.error:
            raise DetectorError(self.error)
        self.frames += [frame.shape for frame in frames]
        sum(range(300_000))
        return [Detections.empty()]


def test_the_load_is_measured_on_a_whole_frame_for_the_cameras_that_are_on() -> None:
    slow = Slow()
    load = measure_load(slow, {"a": camera(fps=5), "b": camera(fps=2), "off": camera(fps=9, enabled=False)})
    assert load is not None
    assert load.wanted == 7
    assert load.inference_s > 0
    assert set(slow.frames) == {(360, 640, 3)}


def test_a_detector_that_fails_has_no_load() -> None:
    assert measure_load(Slow("out of memory"), {"a": camera()}) is None


def test_where_fixed_cameras_were_measured_only_they_count() -> None:
    figures = {"now": (1.0, 0.78, 0.2), "stills": (2.0, 0.78, 0.9), "cameras": (2.0, 0.9, 0.2)}
    bundles = {
        name: bundle(cost, cameras_person=cameras, stills_person=stills, traffic_vehicle=stills)
        for name, (cost, cameras, stills) in figures.items()
    }
    load = DetectorLoad(0.01, 5)
    assert [each.name for each in better_models("now", bundles, {"gate": camera("person")}, load)] == ["cameras"]
    assert [each.name for each in better_models("now", bundles, {"gate": camera("car")}, load)] == ["stills"]
    assert ap50_by_class(bundles["stills"]) == {"person": 0.78, "vehicle": 0.9}


def test_the_catalogue_s_figures_speak_of_the_same_views() -> None:
    measured = {name: each for name, each in model_bundles().items() if each.unseen}
    assert "vedette-nano" in measured
    assert len({frozenset(each.unseen) for each in measured.values()}) == 1
    assert all(each.cost > 0 for each in measured.values())
