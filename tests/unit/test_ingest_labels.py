"""What the ingest process tells its detector (the labels that rules want), and what the detector makes it report."""

from __future__ import annotations

import os
from pathlib import Path

from appliance import config
from appliance.base.clock import ManualClock
from appliance.ingest.camera_detectors import NetworkTable
from appliance.ingest.core_channel import IngestChannel
from appliance.ingest.process import IngestProcess
from appliance.track.tracker import Tracker
from appliance.types import HealthEvent, IngestHealth
from tests.support.camera_rig import NumberReader


class Told(NumberReader):
    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[frozenset[str]] = []

    def prefer(self, wanted: frozenset[str]) -> None:
        self.wanted.append(frozenset(wanted))


def section(*labels: str) -> dict[str, object]:
    rule = {"name": "any", "kind": "enter", "zone": "all", "labels": list(labels)}
    return {
        "url": "file:x",
        "enabled": False,
        "zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]},
        "rules": [rule],
    }


def test_its_detector_hears_what_rules_want(tmp_path: Path) -> None:
    detector = Told()
    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    cameras = {"gate": config.CameraConfig.model_validate(section("person"))}
    with open(os.devnull, "wb") as nowhere:
        channel = IngestChannel(nowhere.fileno())
        made = IngestProcess(
            config.IngestConfig(cameras=cameras, storage=storage),
            NetworkTable({"": detector}, {}),
            Tracker,
            channel,
            ManualClock(),
        )
        assert detector.wanted == [frozenset({"person"})]
        made.configure({"gate": section("car", "dog")})
        made._tick()
    assert detector.wanted[-1] == {"car", "dog"}


def test_a_network_that_comes_later_hears_what_rules_want_by_then(tmp_path: Path) -> None:
    later = Told()
    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    there = {"enabled": True, "url": "rtsp://127.0.0.1:9/x", "record": False}
    cameras = {"gate": config.CameraConfig.model_validate(section("person") | there)}
    heard: list[object] = []
    with open(os.devnull, "wb") as nowhere:
        channel = IngestChannel(nowhere.fileno())
        channel.put = heard.append  # type: ignore[method-assign,assignment]
        made = IngestProcess(
            config.IngestConfig(cameras=cameras, storage=storage),
            NetworkTable({"": Told()}, {}),
            Tracker,
            channel,
            ManualClock(),
        )
        made.configure({"gate": section("unicorn") | there})
        made._tick()
        made._networks._ready = "n1", NetworkTable({"": later}, {})
        made._tick()
    assert later.wanted == [frozenset({"unicorn"})]
    warnings = [each.warning for each in heard if isinstance(each, IngestHealth)]
    assert all("`unicorn`" in each for each in warnings), "and people hear of what it does not know"


def test_a_detector_that_stands_in_is_a_health_event_and_a_warning(tmp_path: Path) -> None:
    class StandsIn(NumberReader):
        stands_in = "detector.backend auto on cuda did not come up, so the CPU stands in: no driver"
        warning = stands_in

    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    with (tmp_path / "channel").open("wb") as out:
        channel = IngestChannel(out.fileno())
        process = IngestProcess(
            config.IngestConfig(cameras={}, storage=storage),
            NetworkTable({"": StandsIn()}, {}),
            Tracker,
            channel,
            ManualClock(),
        )
        heard: list[object] = []
        channel.put = heard.append  # type: ignore[method-assign,assignment]
        process._tick()
    (event,) = [each for each in heard if isinstance(each, HealthEvent)]
    assert (event.kind, event.camera, event.reason) == ("fallback", "", StandsIn.stands_in)
    assert [each.warning for each in heard if isinstance(each, IngestHealth)] == [StandsIn.stands_in]


def test_what_was_wrong_with_a_camera_ends_as_it_is_configured_anew(tmp_path: Path) -> None:
    """Who would have told its end is gone with the old settings: a wrong password would stand there for ever."""
    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    cameras = {
        name: config.CameraConfig.model_validate({"url": "rtsp://127.0.0.1:9/x", "record": False})
        for name in ("gate", "dock")
    }
    heard: list[object] = []
    with open(os.devnull, "wb") as nowhere:
        channel = IngestChannel(nowhere.fileno())
        channel.put = heard.append  # type: ignore[method-assign,assignment]
        process = IngestProcess(
            config.IngestConfig(cameras=cameras, storage=storage),
            NetworkTable({"": NumberReader()}, {}),
            Tracker,
            channel,
            ManualClock(100.0),
        )
        for name in cameras:
            process._emit(
                HealthEvent(camera=name, id=f"f-{name}", kind="stalled", t=50.0, t_start=50.0, reason="refused (401)")
            )
        same = {"url": "rtsp://127.0.0.1:9/x", "record": False}
        process.configure({"gate": {**same, "enabled": False}, "dock": same})
        process._apply_wanted()
    ended = [each for each in heard if isinstance(each, HealthEvent) and each.t_end is not None]
    assert [(each.id, each.t_end) for each in ended] == [("f-gate", 100.0)]


def test_what_the_core_alone_reads_leaves_a_camera_s_connection(tmp_path: Path) -> None:
    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    there = {
        "url": "rtsp://127.0.0.1:9/x", "record": False,
        "zones": {"tree": [[0, 0], [1, 0], [1, 1]], "yard": [[0, 0], [1, 0], [1, 1]]},
    }  # fmt: skip
    with open(os.devnull, "wb") as nowhere:
        process = IngestProcess(
            config.IngestConfig(cameras={"gate": config.CameraConfig.model_validate(there)}, storage=storage),
            NetworkTable({"": NumberReader()}, {}),
            Tracker,
            IngestChannel(nowhere.fileno()),
            ManualClock(),
        )
        before = process._cameras["gate"].runner
        core_s = {
            "ignore": ["tree"], "onvif": "http://127.0.0.1:9",
            "quota": {"continuous_hours": 9, "continuous_gb": 3, "evidence_gb": 1, "zone_days": {"yard": 4}},
        }  # fmt: skip
        process.configure({"gate": there | core_s})
        process._apply_wanted()
        assert process._cameras["gate"].runner is before
        process.configure({"gate": there | {"quota": {"preroll_mb": 20}}})
        process._apply_wanted()
        assert process._cameras["gate"].runner is not before, "the recorder makes its ring of it"
        process._cameras["gate"].runner.stop()
        assert process._cameras["gate"].runner.join(5.0)
