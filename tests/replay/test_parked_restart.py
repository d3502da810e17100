"""Parked cars, and a box that is started anew: one alert for what was there before, a new one for what was not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import ManualClock
from appliance.config import AlertsConfig, CameraConfig
from appliance.replay.footage import ClipReader
from appliance.track.stationary_objects import ParkedVehiclesStore, StationaryObjects
from appliance.track.tracker import Tracker
from appliance.types import Alert, Detections, StreamHeader
from tests.support.render_family import FAMILY, Truth
from tests.support.scripted_sources import FrameByFrame

SECONDS = 10
WHOLE = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
CAMERA = CameraConfig.model_validate(
    {
        "url": "file:parked.mp4",
        "zones": {"all": WHOLE},
        "rules": [
            {"name": "vehicle", "kind": "enter", "zone": "all", "labels": ["car", "truck"], "at_start": "report"},
            {"name": "parks", "kind": "dwell", "zone": "all", "seconds": 5, "labels": ["car", "truck"]},
        ],
    }
)


@pytest.fixture(scope="module")
def eye() -> Truth:
    return Truth("parked")


class Without:
    """The same eye, to which one of the cars is not there yet."""

    name, warning, labels = Truth.name, "", Truth.labels

    def __init__(self, eye: Truth) -> None:
        self._eye = eye
        self.preferred_size = eye.preferred_size

    def detect(self, pictures: list[object]) -> list[Detections]:
        (found,) = self._eye.detect(pictures)  # type: ignore[arg-type]
        cars = [index for index in range(len(found)) if found.class_ids[index] == 2]
        keep = [index for index in range(len(found)) if index != max(cars, key=lambda i: found.boxes[i, 2])]
        return [Detections(found.boxes[keep], found.scores[keep], found.class_ids[keep])]


def life(eye: object, places: StationaryObjects | None, run: str, t0: float) -> list[Alert]:
    """One life of the box before the car park: the alerts it opened."""
    tracker = Tracker(Truth.labels, places)
    examiner = FrameByFrame("gate", eye, tracker, CAMERA.detect)  # type: ignore[arg-type]
    pipeline = Pipeline("gate", CAMERA, AlertsConfig())
    known = places is not None and len(places) > 0
    pipeline.feed(
        StreamHeader(camera="gate", clip="parked.mp4", model="truth", size=(640, 360), run=run, known_before=known)
    )
    changes = []
    with ClipReader(str(FAMILY / "parked.mp4")) as film:
        for frame in itertools.islice(film.frames(), SECONDS * 10):
            boxes = examiner.examine(frame.index, t0 + frame.index / 10, frame.av_frame)
            if boxes is not None:
                changes += pipeline.feed(boxes).changes
    changes += pipeline.close(t0 + SECONDS, "stopped").changes
    return [change.alert for change in changes if change.kind == "ended"]


def test_cars_that_stood_there_before_the_restart_alert_once(tmp_path: Path, eye: Truth) -> None:
    clock, alerts = ManualClock(), list[Alert]()
    for run, t0 in (("one", 1e9), ("two", 1e9 + 60), ("three", 1e9 + 7200)):
        parking = ParkedVehiclesStore(tmp_path, "gate", clock)
        alerts += life(eye, parking.objects, run, t0)
        parking.close()
    assert [(alert.run, set(alert.rules)) for alert in alerts] == [("one", {"vehicle", "parks"})]
    assert len(alerts[0].tracks) == 5


def test_without_memory_they_alert_in_each_life(eye: Truth) -> None:
    alerts = life(eye, StationaryObjects(), "one", 1e9) + life(eye, StationaryObjects(), "two", 1e9 + 60)
    assert [alert.run for alert in alerts] == ["one", "two"]


def test_a_car_that_came_meanwhile_alerts_alone(tmp_path: Path, eye: Truth) -> None:
    clock = ManualClock()
    parking = ParkedVehiclesStore(tmp_path, "gate", clock)
    (first,) = life(Without(eye), parking.objects, "one", 1e9)
    parking.close()
    (second,) = life(eye, ParkedVehiclesStore(tmp_path, "gate", clock).objects, "two", 1e9 + 600)
    assert len(first.tracks) == 4
    assert len(second.tracks) == 1


def test_a_replay_remembers_nothing_of_another(eye: Truth) -> None:
    assert [alert.tracks for alert in life(eye, None, "one", 1e9)] == [
        alert.tracks for alert in life(eye, None, "one", 1e9)
    ]
