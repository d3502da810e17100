"""A box that is hot, throttled or short of memory does less, step by step, says so, and does all of it again later."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_frame_selector import Blind, moving
from test_router import SETTINGS, bytes_a_day, case, told

from appliance import config
from appliance.analysis.frame_selector import WorkShare
from appliance.base.clock import ManualClock
from appliance.base.json_lines import decode_command, encode_command
from appliance.base.machine import Temperature
from appliance.config import LoadSheddingConfig, SiteConfig
from appliance.core.appliance_monitor import ApplianceMonitor
from appliance.health.load_shedding import LoadShedder, LoadShedding
from appliance.ingest.camera_detectors import NetworkTable
from appliance.ingest.core_channel import IngestChannel
from appliance.ingest.process import IngestProcess, _stop_cameras
from appliance.recheck.recheck_policy import ApplianceStatus, find_blocker
from appliance.router.decide import decide
from appliance.router.router_maintenance import SystemLoadMonitor
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import MemoryReading, SensorReading
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.meter import Meter
from appliance.track.tracker import Tracker
from appliance.types import ShedLoadCommand
from tests.support import sensor_files
from tests.support.camera_rig import NumberReader
from tests.support.core_harness import CoreHarness, site
from tests.support.scripted_sources import CountingTracker, FrameByFrame

MB = 1_000_000
HOT = {"temperature_max_c": 80, "temperature_clear_c": 74, "hold_s": 10, "step_s": 60, "clear_s": 120}
MUCH = MemoryReading(2000 * MB, 4000 * MB, 0.0)


class Box:
    """A box whose sensors say what they are told to; five seconds pass between two looks."""

    def __init__(self, **settings: object) -> None:
        self.shedder = LoadShedder(LoadSheddingConfig.model_validate({**HOT, **settings}))
        self.at = 0.0

    def look(
        self, celsius: float | None = None, throttling: tuple[str, ...] | None = None, memory: MemoryReading = MUCH
    ) -> LoadShedding:
        self.at += 5
        heat = () if celsius is None else (Temperature("cpu", celsius),)
        return self.shedder.update(self.at, SensorStatus(SensorReading(heat, throttling), memory, None))

    def for_s(self, seconds: float, celsius: float) -> LoadShedding:
        return [self.look(celsius) for _ in range(round(seconds / 5))][-1]


def test_heat_takes_the_steps_in_order_and_each_is_said() -> None:
    box = Box(offload=True)
    assert box.for_s(60, 79) == LoadShedding()
    assert box.for_s(10, 81) == LoadShedding(), "not for a moment"
    rate = box.look(82)
    assert (rate.heat.step, rate.fps_share, rate.input_share, rate.offload) == (1, 0.5, 1.0, False)
    assert rate.faults == {"hot": "the appliance is hot or throttled (82 °C at cpu): fewer detections a second"}
    assert box.for_s(55, 83) == rate, "what a step brings is seen after a while"
    resolution = box.look(83)
    assert (resolution.heat.step, resolution.fps_share, resolution.input_share) == (2, 0.5, 0.75)
    assert "at a lower resolution" in resolution.faults["hot"]
    offload = box.for_s(60, 83)
    assert (offload.heat.step, offload.offload) == (3, True)
    assert box.for_s(600, 90) == offload, "there is no further step"


def test_it_goes_back_step_by_step_and_only_well_below_the_limit() -> None:
    box = Box()
    assert box.for_s(300, 85).heat.step == 2, "without offload there are two"
    assert box.for_s(600, 76).heat.step == 2, "neither hot nor cool"
    assert box.for_s(120, 73).heat.step == 2
    assert box.look(73).heat.step == 1
    box.for_s(60, 73)
    box.look(78)
    assert box.for_s(120, 73).heat.step == 1, "the wait begins anew"
    assert box.look(73) == LoadShedding()


def test_throttling_counts_as_heat_and_a_sensor_that_says_nothing_as_neither() -> None:
    box = Box()
    for _ in range(3):
        slowed = box.look(throttling=("the processor is throttled",))
    assert slowed.faults["hot"].startswith("the appliance is hot or throttled (the processor is throttled)")
    for _ in range(100):
        assert box.look().heat.step == 1, "nothing is known: not that it is over"
    for _ in range(25):
        well = box.look(throttling=())
    assert well == LoadShedding()
    assert Box().for_s(5, 70) == LoadShedding()
    cold = Box()
    assert all(cold.look() == LoadShedding() for _ in range(50)), "a box without sensors sheds nothing"
    off = Box(enabled=False)
    assert off.for_s(600, 99) == LoadShedding()


@pytest.mark.parametrize(
    ("celsius", "throttled", "step"),
    [
        ((83, 83, 79.5), (False,), 2),
        ((80.5, 79.5), (False,), 2),
        ((83, 70), (False,), 2),
        ((79.5,), (True, False), 2),
        ((60,), (True, True, True, False), 2),
        ((83, 70, 70, 70), (False,), 0),
        ((79.9,), (False,), 0),
    ],
    ids=["two of three", "hovers", "every other", "a flag in every other", "a counter in bursts", "rarely", "warm"],
)
def test_sensors_that_flicker_are_hot_if_half_of_what_they_say_is(
    celsius: tuple[float, ...], throttled: tuple[bool, ...], step: int
) -> None:
    box = Box()
    for n in range(20 * 60 // 5):
        slowed = ("slowed down",) if throttled[n % len(throttled)] else ()
        shed = box.look(celsius[n % len(celsius)], slowed)
    assert shed.heat.step == step


def test_throttling_that_was_read_once_is_over_when_it_is_not_read_any_more() -> None:
    box = Box()
    assert box.look(60, ("slowed down",)).heat.step == 0
    assert all(box.look(60, ()).heat.step == 0 for _ in range(60))


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (MemoryReading(150 * MB, 4000 * MB, 0.0), "150 MB are left"),
        (replace(MUCH, stalled=0.25), "tasks wait for it 25% of the time"),
        (replace(MUCH, group_bytes=470 * MB, group_max_bytes=500 * MB), "94% of its control group's limit are used"),
    ],
)
def test_lack_of_memory_is_answered_at_once_and_said(memory: MemoryReading, why: str) -> None:
    box = Box()
    assert box.look(memory=MUCH) == LoadShedding()
    first = box.look(memory=memory)
    assert (first.memory.step, first.preroll_share, first.fps_share) == (1, 0.5, 1.0)
    assert first.faults["memory"].startswith(f"the appliance is short of memory ({why})")
    box.look(memory=memory)
    assert box.look(memory=memory).preroll_share == 0.25
    between = replace(MUCH, available_bytes=220 * MB)
    assert [box.look(memory=between).memory.step for _ in range(30)][-1] == 2, "hardly more than the least"
    assert [box.look(memory=MUCH).memory.step for _ in range(26)][-1] == 0
    assert Box().look(memory=MemoryReading()) == LoadShedding()


def test_limits_that_would_go_back_and_forth_and_a_cloud_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature_clear_c must be below temperature_max_c"):
        LoadSheddingConfig(temperature_max_c=80, temperature_clear_c=80)
    with pytest.raises(ValueError, match=r"load_shedding\.offload needs `uplink`"):
        SiteConfig.model_validate({"cameras": {}, "load_shedding": {"offload": True}})


class Ingest:
    """The ingest process as the monitor sees it."""

    def __init__(self) -> None:
        self.starts = 1
        self.runs = True
        self.told: list[ShedLoadCommand] = []

    def send(self, command: ShedLoadCommand) -> bool:
        if self.runs:
            self.told.append(decode_command(encode_command(command)))  # type: ignore[arg-type]
        return self.runs


def test_the_monitor_tells_ingest_and_tells_a_new_one_again(tmp_path: Path) -> None:
    clock, ingest, shed = ManualClock(), Ingest(), []
    db = Database(tmp_path / "vedette.db", clock)
    sensor_files.memory(tmp_path, available_mb=2000)
    monitor = ApplianceMonitor(tmp_path, Meter(db, "core"), clock, lambda: 1, ingest)
    settings = LoadSheddingConfig(hold_s=0)
    monitor.configure(settings, ("memory",), shed.append)

    def look() -> None:
        monitor.run_once()
        clock.advance(5)

    look()
    assert ingest.told == [], "there is nothing to say"
    sensor_files.write_files(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "85000", "proc/x": ""})
    monitor = ApplianceMonitor(tmp_path, Meter(db, "core"), clock, lambda: 1, ingest)
    monitor.configure(settings, ("memory",), shed.append)
    ingest.runs = False
    look()
    ingest.runs = True
    look()
    look()
    assert ingest.told == [ShedLoadCommand(fps_share=0.5)], "once, as soon as there is somebody to hear it"
    ingest.starts += 1
    look()
    assert ingest.told == [ShedLoadCommand(fps_share=0.5)] * 2
    sensor_files.memory(tmp_path, available_mb=100)
    monitor.configure(settings, ("memory",), shed.append)
    look()
    assert ingest.told[-1] == ShedLoadCommand(fps_share=0.5, memory_step=1)
    assert [each.memory.step for each in shed] == [1]
    assert set(monitor.faults()) == {"hot"}, "what the site file ignores is not reported"
    db.close()


def test_while_it_is_hot_half_as_many_frames_are_examined_and_the_heartbeat_stays() -> None:
    times = [n / 10 for n in range(200)]
    for share, expected in ((1.0, 100), (0.5, 50), (0.1, 10)):
        each = FrameByFrame("gate", Blind(), CountingTracker(("number",)), config.DetectConfig(fps=5, heartbeat_s=2))
        each.analysis.set_work(WorkShare(fps=share))
        assert sum(bool(each.select(n, t, moving(n))) for n, t in enumerate(times)) == pytest.approx(expected, abs=2)


class AnySize(Blind):
    """A network that takes any multiple of 32."""

    shape_step = 32

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return 416, 312


@pytest.mark.parametrize(("detector", "size"), [(AnySize(), (312, 234)), (Blind(), None)])
def test_while_it_is_hot_the_detector_is_shown_smaller_pictures_where_it_takes_them(
    detector: Blind, size: tuple[int, int] | None
) -> None:
    each = FrameByFrame("gate", detector, CountingTracker(("number",)), config.DetectConfig())
    each.analysis.set_work(WorkShare(input_=0.75))
    request = each.select(0, 0.0, moving(0))
    assert request is not None
    wanted = size or detector.preferred_size(320, 240)
    each.analysis.set_work(WorkShare())  # cooler meanwhile: a request is drawn as it was made
    assert (request.drawn_size, each.analysis.detector_input(request).shape[1::-1]) == (wanted, wanted)
    assert request.area == pytest.approx(0.5625 if size else 1.0, abs=0.01)


def test_ingest_does_what_it_is_told_also_for_cameras_that_come_later(tmp_path: Path) -> None:
    storage = config.StorageConfig.model_validate({"dir": str(tmp_path)})
    camera = {"url": "file:x", "detect_url": "file:y"}
    with open(os.devnull, "wb") as nowhere:
        made = IngestProcess(
            config.IngestConfig(cameras={"gate": config.CameraConfig.model_validate(camera)}, storage=storage),
            NetworkTable({"": NumberReader()}, {}),
            Tracker, IngestChannel(nowhere.fileno()), ManualClock(),
        )  # fmt: skip
        made.handle_command(ShedLoadCommand(fps_share=0.5, input_share=0.75, memory_step=2))
        made._tick()
        made.configure({"gate": camera, "yard": camera})
        made._tick()
        assert [each.analysis._work for each in made._cameras.values()] == [WorkShare(0.5, 0.75)] * 2
        assert [each.rings[0]._is_paused for each in made._cameras.values() if each.rings[0]] == [True, True]
        assert any("takes one size alone" in each for each in made._warnings())
        made.handle_command(ShedLoadCommand())
        made._tick()
        assert {each.analysis._work for each in made._cameras.values()} == {WorkShare()}
        _stop_cameras(made._cameras.values(), made._clock)


def test_a_fault_of_the_box_is_one_event_that_tells_each_step_and_ends(tmp_path: Path) -> None:
    faults: dict[str, str] = {}
    harness = CoreHarness(tmp_path, site(), ManualClock())
    harness.core._settings = replace(harness.core._settings, appliance_faults=lambda: faults)  # type: ignore[arg-type]
    for reason in ("hot: fewer", "hot: smaller"):
        faults["hot"] = reason
        harness.second()
        harness.second()
    [event] = harness.health.open()
    assert (event.kind, event.camera, event.reason) == ("hot", "", "hot: smaller")
    harness.core.lost("it died")
    harness.second()
    [again] = harness.health.open()
    assert again.id == event.id, "it has nothing to do with the ingest process, so nobody is told again"
    faults.clear()
    harness.second()
    assert harness.health.open() == []
    harness.db.close()


def test_what_a_hot_box_is_not_sure_of_goes_to_the_cloud_at_once_within_the_budget() -> None:
    hot = told({"temperature_max_c": 70, "audit_share": 0, "error_max": 0.05})
    waits = decide(case(temperature_c=85.0), hot)
    assert (waits.when, waits.evidence) == ("later", "crops"), "without offload it waits until the box is cooler"
    offloaded = decide(case(temperature_c=85.0, offload=True), hot)
    assert (offloaded.when, offloaded.evidence, offloaded.wait) == ("now", "frames", None)
    doubtful = {"chance": 0.01, "chance_min": 0.02, "temperature_c": 85.0}
    assert decide(case(**doubtful), hot).when == "never"
    assert decide(case(**doubtful, offload=True), hot).when == "now"
    sure = decide(case(chance=0.99, chance_max=0.9, offload=True), hot)
    assert (sure.when, sure.edge) == ("never", "sure"), "what it is sure of stays"
    assert decide(case(privacy="image_free", offload=True), hot).evidence == "facts"
    assert decide(case(privacy="never", offload=True), hot).when == "never"
    spent = decide(case(offload=True, limits=bytes_a_day(1e7, spent=1e7)), SETTINGS)
    assert (spent.when, spent.wait and spent.wait.why) == ("later", "budget")


def test_the_router_and_the_second_look_are_told_that_it_is_hot(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock())
    load = SystemLoadMonitor(None, EscalationStore(db), ManualClock(), offload=lambda: True).read()
    assert load.offload
    db.close()
    idle = ApplianceStatus(starts=1, load=0.1)
    second_look, router = config.RecheckConfig(), config.RouterConfig()
    assert find_blocker(idle, 0, second_look, router) == ""
    assert find_blocker(replace(idle, hot=True), 0, second_look, router) == "box"
