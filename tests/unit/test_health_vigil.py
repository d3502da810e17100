"""What only time shows: a silent camera, one that nobody looks at, a stuck detector, a clock that was set."""

from __future__ import annotations

import pytest

from appliance import config
from appliance.clock import ManualClock
from appliance.health.watchdog import ApplianceWatchdog, CameraActivity, CameraWatchdog, Remedy
from appliance.types import CameraStateName, HealthEvent

BOUND_S = 10.0


class Post:
    """A camera that delivers ten packets a second and is looked at five times, as long as nothing is said otherwise."""

    def __init__(self, **plan: object) -> None:
        self.clock = ManualClock(0.0)
        self.said: list[HealthEvent] = []
        self.vigil = CameraWatchdog(
            "gate", config.HealthConfig.model_validate(plan), (), self.said.append, self.clock, heartbeat_s=2.0
        )
        self.packets = self.decoded = self.examined = self.tries = self.breaks = 0
        self.remedies: list[tuple[float, Remedy]] = []

    def run(
        self, seconds: int, *, packets: int = 10, decoded: int = 10, examined: int = 5, blind: bool = False,
        state: CameraStateName = "live", reason: str = "",
    ) -> None:  # fmt: skip
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.packets += packets
            self.decoded += decoded
            self.examined += examined
            signs = CameraActivity((self.packets,), self.decoded, self.examined, state, reason, self.tries, self.breaks)
            remedy = self.vigil.tick(signs, blind=blind)
            if remedy:
                self.remedies.append((self.clock.now(), remedy))

    def silent(self, seconds: int, state: CameraStateName = "stalled", reason: str = "") -> None:
        self.run(seconds, packets=0, decoded=0, examined=0, state=state, reason=reason)


def test_a_camera_that_works_is_well() -> None:
    post = Post()
    post.run(600)
    assert (post.said, post.remedies) == ([], [])


def test_a_camera_that_falls_silent_is_noticed_and_connected_to_again_and_its_return_too() -> None:
    post = Post()
    post.run(30)
    post.silent(12)
    post.tries = 3
    post.silent(40, "lost", "connection refused")
    post.run(20)
    first, last = post.said[0], post.said[-1]
    assert (first.kind, first.t_start) == ("stalled", 30.0)
    assert first.t - first.t_start <= BOUND_S
    assert last.t_end == pytest.approx(83, abs=1)
    assert (last.recovery, last.attempts) == ("connecting to the camera again", 4)
    assert {event.id for event in post.said} == {first.id}


def test_a_hiccup_is_nothing() -> None:
    post = Post()
    for _ in range(20):
        post.run(10)
        post.silent(4)
    assert post.said == []


def test_a_camera_that_drips_does_not_flap() -> None:
    post = Post()
    post.run(10)
    for _ in range(10):
        post.silent(8)
        post.run(2)
    assert len({event.id for event in post.said}) == 1
    assert post.said[-1].t_end is None


def test_a_hanging_camera_that_gives_each_new_connection_a_few_old_pictures_is_silent() -> None:
    post = Post()
    post.run(20)
    for _ in range(5):
        post.silent(3)
        post.breaks += 2
        post.run(1, decoded=3, examined=0)
    first = post.said[0]
    assert (first.kind, first.t_start) == ("stalled", 20.0)
    assert first.t - first.t_start <= BOUND_S
    assert all(event.t_end is None for event in post.said)


def test_a_camera_of_one_picture_in_five_seconds_is_not_silent() -> None:
    post = Post()
    for _ in range(20):
        post.run(1, packets=1, decoded=1, examined=1)
        post.silent(4, "live")
    assert "stalled" not in {event.kind for event in post.said}


def test_a_clip_at_its_end_is_not_silent() -> None:
    post = Post()
    post.run(10)
    post.silent(60, "ended")
    assert post.said == []


def test_a_gate_that_stays_closed_is_noticed_and_passed_by() -> None:
    post = Post()
    post.run(20)
    post.run(30, examined=0)
    post.run(10)
    first = post.said[0]
    assert (first.kind, first.t_start) == ("unexamined", 20.0)
    assert first.t - first.t_start <= BOUND_S
    assert {remedy for _, remedy in post.remedies} == {"look"}
    assert post.said[-1].t_end is not None
    assert post.said[-1].attempts == len(post.remedies) == 2


def test_packets_of_which_no_picture_can_be_made_are_not_examined_and_lead_to_a_new_connection() -> None:
    post = Post()
    post.run(20)
    post.run(12, decoded=0, examined=0)
    assert post.said[0].kind == "unexamined"
    assert "no picture could be made" in post.said[0].reason
    assert [remedy for _, remedy in post.remedies] == ["connect"]


def test_one_cause_is_one_event() -> None:
    """Nobody looks at a silent camera, nor while the detector is stuck: that is not said of the camera, too."""
    post = Post()
    post.run(10)
    post.silent(30)
    post.run(10)
    assert {event.kind for event in post.said} == {"stalled"}
    post = Post()
    post.run(10)
    post.run(60, examined=0, blind=True)
    assert post.said == []


@pytest.mark.parametrize("kind", ["stalled", "unexamined"])
def test_each_kind_can_be_left_out(kind: str) -> None:
    post = Post(ignore=[kind])
    post.run(5)
    post.silent(20) if kind == "stalled" else post.run(20, examined=0)
    assert post.said == []


def a_box(**plan: object) -> tuple[ApplianceWatchdog, ManualClock, list[HealthEvent]]:
    clock, said = ManualClock(0.0), []
    return ApplianceWatchdog(config.HealthConfig.model_validate(plan), said.append, clock), clock, said


def test_a_detector_that_hangs_is_noticed_and_that_the_process_starts_again() -> None:
    box, clock, said = a_box()
    for second in range(30):
        clock.advance(1.0)
        box.tick(max(0.0, second - 10.0), "")
    box.record_restart()
    assert (said[0].camera, said[0].kind) == ("", "detector")
    assert said[0].t - said[0].t_start <= BOUND_S
    assert said[-1].recovery == "starting the ingest process again"
    assert box.is_detector_stuck


def test_a_detector_that_only_fails_is_noticed_and_its_return_too() -> None:
    box, clock, said = a_box()
    for second in range(60):
        clock.advance(1.0)
        box.tick(0.0, "the detector failed: out of memory" if 10 <= second < 40 else "")
    assert said[0].reason == "the detector failed: out of memory"
    assert said[0].t - said[0].t_start <= BOUND_S
    assert said[-1].t_end == pytest.approx(41, abs=1)
    assert not box.is_detector_stuck


@pytest.mark.parametrize("step_s", [-3600.0, 90.0, 11.0])
def test_a_clock_of_the_box_that_is_set_is_told_at_once(step_s: float) -> None:
    box, clock, said = a_box()
    for second in range(60):
        clock.advance(1.0)
        if second == 30:
            clock.jump(step_s)
        box.tick(0.0, "")
    first = said[0]
    assert (first.kind, first.camera) == ("clock", "")
    assert f"{step_s:+.0f} s" in first.reason
    assert said[-1].t_end is not None


def test_the_box_is_left_alone_where_it_is_told_to() -> None:
    box, clock, said = a_box(ignore=["clock", "detector"])
    for _ in range(60):
        clock.advance(1.0)
        clock.jump(100)
        box.tick(60.0, "")
    assert said == []
