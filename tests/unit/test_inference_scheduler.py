"""One scheduler for all cameras: who is looked at, who waits, and that nobody is forgotten. A simulation in which only
the detector takes time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.base.clock import ManualClock
from appliance.detect import detector_loader
from appliance.inference.camera_queue import TUNING, CameraQueue, priority_of
from appliance.inference.scheduler import BatchPlan, InferenceScheduler, measure_batching
from appliance.types import DROP_REASONS, Detections

LATE_MAX = 11


@dataclass
class SimulatedCamera:
    """A camera: its pictures that are due, every so often; heartbeats for a quiet one, `fps` for a busy one."""

    name: str
    every_s: float
    urgency: float = 0.0
    fps: float = 5.0
    heartbeat_s: float = 2.0
    area: float = 1.0
    phase_s: float = 0.0
    offered: int = 0
    seen: list[tuple[float, float]] = field(default_factory=list)  # (when it was offered, when the look was over)

    def __post_init__(self) -> None:
        self.lane: CameraQueue[float] = CameraQueue(fps=self.fps, heartbeat_s=self.heartbeat_s, late_max=LATE_MAX)

    def pauses(self) -> list[float]:
        """Between the pictures that were looked at."""
        return [b - a for (a, _), (b, _) in itertools.pairwise(self.seen)]

    def ages(self) -> list[float]:
        return [done - at for at, done in self.seen]


class Simulation:
    """Runs cameras and a detector that needs `cost_s` for a whole picture, event by event."""

    def __init__(
        self, *cameras: SimulatedCamera, cost_s: float, batching: BatchPlan | None = None, jitter: float = 0.0
    ) -> None:
        self.cameras = cameras
        self.now = 1000.0
        self.calls: list[list[str]] = []
        self.idle_s = 0.0
        self._batching = batching or BatchPlan()
        self.scheduler = InferenceScheduler([camera.lane for camera in cameras], self._batching)
        self._cost_s = cost_s
        self._random = random.Random(7)
        self._jitter = jitter
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        for camera in cameras:
            self._at(self.now + camera.phase_s, self._show(camera))

    def run(self, seconds: float) -> Simulation:
        end = self.now + seconds
        while self.now < end:
            self._catch_up()
            selected = self.scheduler.next(self.now)
            if not selected:
                waited = max(0.0, min(self._events[0][0], end) - self.now)
                self.idle_s += waited
                self.now += waited
                continue
            alone = [self._cost_s * max(0.1, selection.frame.area) for selection in selected]
            took = self._batching.seconds(alone) * (1 + self._jitter * self._random.uniform(-1, 1))
            self.now += took
            self._catch_up()
            self.scheduler.done(selected, took, self.now)
            self.calls.append([self.cameras[selection.queue].name for selection in selected])
            for selection in selected:
                self.cameras[selection.queue].seen.append((selection.frame.item, self.now))
        return self

    def _show(self, camera: SimulatedCamera) -> Callable[[], None]:
        def show() -> None:
            at = self._events_now
            camera.offered += 1
            camera.lane.offer(at, at, priority=camera.urgency, area=camera.area, size=(int(320 * camera.area), 320))
            self._at(at + camera.every_s * (1 + self._jitter * self._random.uniform(-0.2, 0.2)), show)

        return show

    def _catch_up(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            self._events_now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._count), event))


def quiet(count: int, heartbeat_s: float = 2.0) -> list[SimulatedCamera]:
    return [
        SimulatedCamera(f"quiet{n}", heartbeat_s, heartbeat_s=heartbeat_s, phase_s=heartbeat_s * n / count)
        for n in range(count)
    ]


def busy(count: int, urgency: float = 0.6, fps: float = 5.0, **more: float) -> list[SimulatedCamera]:
    return [SimulatedCamera(f"busy{n}", 1 / fps, urgency, fps, phase_s=n / fps / count, **more) for n in range(count)]


def assert_all_accounted_for(simulation: Simulation) -> None:
    """Whatever was due was looked at, waits, or was counted with its reason."""
    for camera in simulation.cameras:
        shed = camera.lane.dropped()
        assert set(shed) <= set(DROP_REASONS)
        assert camera.offered == len(camera.seen) + len(camera.lane) + sum(shed.values()), camera.name


def assert_promise_kept(simulation: Simulation, slack_s: float = 0.0) -> None:
    for camera in simulation.cameras:
        assert max(camera.pauses()) <= camera.heartbeat_s * 1.1 + slack_s, (camera.name, max(camera.pauses()))
        assert simulation.now - camera.seen[-1][0] <= 2 * camera.heartbeat_s + slack_s, camera.name


def test_where_there_is_time_for_all_everything_is_looked_at_soon() -> None:
    simulation = Simulation(*quiet(8), *busy(8), cost_s=0.02).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation)
    for camera in simulation.cameras:
        assert not camera.lane.dropped()
    ages = sorted(age for camera in simulation.cameras for age in camera.ages())
    assert ages[int(0.95 * len(ages))] < 0.3
    assert simulation.scheduler.load(simulation.now) == pytest.approx((8 * 5 + 8 / 2) * 0.02, rel=0.25)


def test_three_times_too_much_work_for_sixteen_cameras_and_every_heartbeat_is_kept() -> None:
    """12 busy cameras want 60 looks a second, the detector does 20."""
    simulation = Simulation(*quiet(4), *busy(12), cost_s=0.05, jitter=0.2).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)
    looks = [len(camera.seen) for camera in simulation.cameras if camera.name.startswith("busy")]
    assert min(looks) > 0.8 * max(looks), "the same worth, the same part"
    assert simulation.idle_s < 1
    assert (
        sum(camera.lane.dropped().get("newer", 0) for camera in simulation.cameras)
        > 30 * simulation.scheduler.load(simulation.now) * 40
    )


def test_a_hostile_camera_gets_its_part_and_no_more() -> None:
    """A tree in the wind, or somebody who wants to keep the detector busy: 30 looks a second of the highest worth."""
    hostile = SimulatedCamera("hostile", 1 / 30, priority_of(1.0, active=True), 30.0)
    simulation = Simulation(hostile, *quiet(7), *busy(8, 0.4), cost_s=0.05).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)
    share = len(hostile.seen) / sum(len(camera.seen) for camera in simulation.cameras)
    assert 1 / 16 <= share <= 0.35, share
    assert hostile.lane.dropped()["capped"] > 0
    assert set(simulation.cameras[-1].lane.dropped()) == {"newer"}


def test_overload_sheds_what_is_worth_least() -> None:
    """Somebody is followed on two cameras; on ten others leaves move."""
    followed, leaves = priority_of(0.02, active=True), priority_of(0.02, active=False)
    people = [SimulatedCamera(f"people{n}", 0.2, followed) for n in range(2)]
    trees = [SimulatedCamera(f"tree{n}", 0.2, leaves, phase_s=0.02 * n) for n in range(10)]
    simulation = Simulation(*people, *trees, cost_s=0.05).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)
    most = max(len(camera.seen) for camera in trees)
    assert all(len(camera.seen) > 1.8 * most for camera in people), ([len(camera.seen) for camera in people], most)
    assert min(len(camera.seen) for camera in trees) > 0.7 * most


def test_what_is_followed_is_looked_at_before_heartbeats_that_have_time() -> None:
    heartbeats = [SimulatedCamera(f"quiet{n}", 2.0) for n in range(10)]  # all of them at the same moment
    person = SimulatedCamera("person", 0.2, 0.6, phase_s=0.01)
    simulation = Simulation(*heartbeats, person, cost_s=0.05).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation)
    ages = sorted(person.ages())
    assert ages[int(0.9 * len(ages))] <= 0.11, "its own look, and the one it found under way"
    assert sum(person.lane.dropped().values()) <= 2, "at the start, when all want to be seen for the first time"


def test_a_detector_that_can_just_do_one_look_a_heartbeat_keeps_its_promise() -> None:
    """16 cameras, 2 s, 0.11 s a look: 88 % of its time is promised, and busy ones get what is left."""
    simulation = Simulation(*quiet(12), *busy(4), cost_s=0.11).run(100)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.25)


def test_a_detector_that_is_too_slow_for_the_promise_goes_round() -> None:
    simulation = Simulation(*quiet(8), *busy(8), cost_s=0.5).run(200)
    assert_all_accounted_for(simulation)
    counts = [len(camera.seen) for camera in simulation.cameras]
    assert min(counts) > 0.6 * max(counts)
    assert max(max(camera.pauses()) for camera in simulation.cameras) < 2.2 * 16 * 0.5


def test_small_regions_are_served_more_often_than_whole_pictures() -> None:
    small = [SimulatedCamera(f"small{n}", 0.2, priority_of(0.05, active=True, area=0.25), area=0.25) for n in range(4)]
    whole = [SimulatedCamera(f"whole{n}", 0.2, priority_of(0.05, active=True), phase_s=0.02) for n in range(8)]
    simulation = Simulation(*small, *whole, cost_s=0.05).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)
    assert min(len(camera.seen) for camera in small) > 1.3 * max(len(camera.seen) for camera in whole)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_cameras_do_promises_are_kept_and_everything_is_counted(seed: int) -> None:
    """Any mixture of cameras whose promised looks take up to 70 % of the detector."""
    dice = random.Random(seed)
    cameras = []
    for n in range(dice.randint(2, 20)):
        heartbeat_s, fps = dice.choice([1.0, 2.0, 4.0, 5.0]), dice.choice([2.0, 5.0, 10.0, 30.0])
        every_s = dice.choice([heartbeat_s, 1 / fps])
        urgency = 0.0 if every_s == heartbeat_s else dice.random() * 2
        area = 1.0 if every_s == heartbeat_s else dice.uniform(0.1, 1.0)
        cameras.append(
            SimulatedCamera(f"eye{n}", every_s, urgency, fps, heartbeat_s, area, dice.random() * heartbeat_s)
        )
    cost_s = 0.7 / sum(1 / camera.heartbeat_s for camera in cameras) * dice.uniform(0.2, 1.0)
    simulation = Simulation(*cameras, cost_s=min(cost_s, 0.3), jitter=0.2).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=3 * cost_s)


def test_a_batch_is_taken_where_it_pays_and_nobody_waits_for_it() -> None:
    pays = BatchPlan((1.0, 1.1, 1.2, 1.3))
    simulation = Simulation(*quiet(4), *busy(12), cost_s=0.05, batching=pays).run(40)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)
    assert max(len(call) for call in simulation.calls) == 4
    assert all(len(set(call)) == len(call) for call in simulation.calls), "one look of a camera, not two"
    alone = Simulation(*quiet(4), *busy(12), cost_s=0.05).run(40)
    assert sum(len(camera.seen) for camera in simulation.cameras) > 2 * sum(
        len(camera.seen) for camera in alone.cameras
    )


def lane(**more: float) -> CameraQueue[str]:
    return CameraQueue(**{"fps": 5.0, "heartbeat_s": 2.0, "late_max": 3, **more})  # type: ignore[arg-type]


def taken(lane: CameraQueue[str]) -> Iterator[str]:
    while (taken_frame := lane.take()) is not None:
        yield taken_frame.item


def test_the_newest_wins_and_what_it_replaced_is_counted() -> None:
    one = lane()
    for at, item in enumerate("abc"):
        one.offer(item, float(at))
    pending_frame = one.pending(3.0)
    assert pending_frame is not None
    assert pending_frame.since == 0.0, "a replacement keeps its predecessor's place"
    assert list(taken(one)) == ["c"]
    assert one.dropped() == {"newer": 2}
    assert one.pending(3.0) is None


def test_late_pictures_come_first_in_order_of_time_and_give_way_to_no_newer_ones() -> None:
    one = lane(late_max=4)
    one.offer("key", 0.0)
    for item in ("a", "b"):
        one.offer(item, 0.1, late=True)
    one.offer("new", 0.2)
    assert one.take_newer() is None
    assert list(taken(one)) == ["key", "a", "b", "new"]
    assert not one.dropped()


def test_late_pictures_are_bounded_in_number_and_in_time() -> None:
    one = lane()
    for n in range(5):
        one.offer(f"late{n}", 0.0, late=True)
    one.offer("new", 1.0)
    assert one.dropped() == {"late": 2}
    assert one.pending(TUNING.late_s_max + 0.1) is not None
    assert list(taken(one)) == ["new"]
    assert one.dropped() == {"late": 5}


class WakingCamera(SimulatedCamera):
    """Ten seconds of motion, of which the first is worth little; then it is quiet until its heartbeat."""

    def __getattribute__(self, name: str) -> Any:
        n = super().__getattribute__("offered") % 50 if name in ("every_s", "urgency") else 0
        if name == "every_s":
            return self.heartbeat_s if n == 0 else 0.2
        if name == "urgency":
            return 0.04 if 0 < n < 6 else 1.2
        return super().__getattribute__(name)


def test_motion_that_begins_with_a_heartbeat_does_not_put_the_heartbeat_off() -> None:
    """Newer frames take the place of its frame, which may wait for half a heartbeat."""
    waking = WakingCamera("waking", 2.0)
    simulation = Simulation(waking, *busy(12, 1.2), cost_s=0.05).run(60)
    assert_all_accounted_for(simulation)
    assert_promise_kept(simulation, slack_s=0.1)


def test_what_is_thrown_away_is_counted_with_its_reason() -> None:
    one = lane()
    one.offer("a", 0.0, late=True)
    one.offer("b", 0.0)
    one.clear("run")
    one.clear("run")
    one.drop_reason = "stuck"
    one.offer("c", 1.0)
    one.offer("d", 1.1)
    one.take()
    one.count_dropped("failed")
    assert one.dropped() == {"run": 2, "stuck": 1, "failed": 1}
    assert one.drop_reason == "newer"


def test_a_fuller_batch_is_waited_for_only_when_the_detector_is_busy_and_no_deadline_suffers() -> None:
    queues = [lane() for _ in range(4)]
    scheduler = InferenceScheduler(queues, BatchPlan((1.0, 1.1, 1.2, 1.3)))
    queues[0].offer("a", 100.0, size=(320, 320))
    assert scheduler.wait_s(100.0) == 0.0
    selected = scheduler.next(100.0)
    for n in range(40):
        scheduler.done(selected, 0.1, 100.1 + n / 10)
    queues[1].offer("b", 104.0, size=(320, 320))
    assert 0 < scheduler.wait_s(104.0) <= 0.05
    assert scheduler.wait_s(104.06) == 0.0, "not for ever"
    for one in queues:
        one.offer("c", 104.01, size=(320, 320))
    assert scheduler.wait_s(104.01) == 0.0, "it is full"
    assert len(scheduler.next(104.1)) == 4


def test_with_time_for_all_a_batch_is_full_and_one_by_one_the_best_is_first() -> None:
    """Where every deadline is far, their order is not looked at; what is taken stays the same."""
    for batching, wanted in ((BatchPlan((1.0, 1.1, 1.2, 1.3)), [2, 0, 1, 3]), (BatchPlan(), [2])):
        queues = [lane(heartbeat_s=60.0) for _ in range(4)]
        for number, queue in enumerate(queues):
            queue.offer("a", 100.0, size=(320, 320), priority=float(number == 2))
        assert [each.queue for each in InferenceScheduler(queues, batching).next(100.0)] == wanted


class Accelerator:
    """A detector that takes up to `batch_max` frames in one call, which takes `call_s[n - 1]` for n of them."""

    name, warning, labels = "engine@00000000", "", ("person",)
    batch_max = 8

    def __init__(self, clock: ManualClock, call_s: Sequence[float]) -> None:
        self.calls: list[int] = []
        self._clock = clock
        self._call_s = call_s

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return 416, height * 416 // width

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        return 416, 416

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.calls.append(len(pictures))
        self._clock.advance(self._call_s[len(pictures) - 1])
        return [Detections.empty() for _ in pictures]


def test_a_batch_is_as_large_as_measuring_says_that_it_pays() -> None:
    """An accelerator says what it can take; what it gains is seen by trying (here: nothing from four to eight)."""
    clock = ManualClock()
    plan = measure_batching(Accelerator(clock, [0.010, 0.012, 0.014, 0.016, 0.022, 0.026, 0.030, 0.034]), clock)
    assert plan.size_max == 4
    assert plan.seconds([0.010] * 4) == pytest.approx(0.016)
    assert plan.fits([(416, 234)] * 4)
    assert not plan.fits([(416, 234), (192, 128)]), "frames of one size"
    assert not plan.fits([(416, 234)] * 5)


def test_a_batch_that_is_measured_to_bring_nothing_is_not_taken() -> None:
    clock = ManualClock()
    serial = Accelerator(clock, [0.010 * n for n in range(1, 9)])
    assert measure_batching(serial, clock) == BatchPlan()
    assert max(serial.calls) == 2, "found out cheaply"


@pytest.mark.parametrize("model", ["vedette-nano", "builtin:hog"])
def test_a_network_on_the_cpu_is_asked_for_one_frame_at_a_time(model: str) -> None:
    loaded = detector_loader.load(config.DetectorConfig(model=model))
    assert measure_batching(loaded, ManualClock()) == BatchPlan()
