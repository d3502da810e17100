"""What only time shows: a silent camera, one that nobody examines, a stuck detector, a clock that was set."""

from __future__ import annotations

import pytest

from appliance import config
from appliance.base.clock import ManualClock
from appliance.health.camera_health import (
    ApplianceWatchdog,
    CameraActivity,
    CameraWatchdog,
    DetectorActivity,
    InferenceRates,
    Remedy,
    overload_reason,
)
from appliance.types import CameraStateName, HealthEvent

BOUND_S = 10.0


class DrivenCamera:
    """A camera that delivers ten packets a second and has five frames examined, unless a test says otherwise."""

    def __init__(self, **settings: object) -> None:
        self.clock = ManualClock(0.0)
        self.events: list[HealthEvent] = []
        self.watchdog = CameraWatchdog(
            "gate", config.HealthConfig.model_validate(settings), (), self.events.append, self.clock,
            heartbeat_s=2.0, fps=5.0,
        )  # fmt: skip
        self.packets = self.decoded = self.examined = self.tries = self.breaks = self.crowded_out = 0
        self.remedies: list[tuple[float, Remedy]] = []

    def run(
        self, seconds: int, *, packets: int = 10, decoded: int = 10, examined: int = 5, crowded_out: int = 0,
        blind: bool = False, lagging: bool = False, state: CameraStateName = "live", reason: str = "",
        apart_s: float | None = None, waiting: bool = False, decoder_fault: str = "",
    ) -> None:  # fmt: skip
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.packets += packets
            self.decoded += decoded
            self.examined += examined
            self.crowded_out += crowded_out
            activity = CameraActivity(
                (self.packets,), self.decoded, self.examined, state, reason, self.tries, self.breaks, self.crowded_out,
                lagging, apart_s, waiting, decoder_fault,
            )  # fmt: skip
            remedy = self.watchdog.tick(activity, DetectorActivity(load=0.97, stuck=blind))
            if remedy:
                self.remedies.append((self.clock.now(), remedy))

    def silent(self, seconds: int, state: CameraStateName = "stalled", reason: str = "") -> None:
        self.run(seconds, packets=0, decoded=0, examined=0, state=state, reason=reason)


def test_a_working_camera_has_no_fault() -> None:
    camera = DrivenCamera()
    camera.run(600)
    assert (camera.events, camera.remedies) == ([], [])


def test_a_camera_that_falls_silent_is_noticed_and_connected_to_again_and_its_return_too() -> None:
    camera = DrivenCamera()
    camera.run(30)
    camera.silent(12)
    camera.tries = 3
    camera.silent(40, "lost", "connection refused")
    camera.run(20)
    first, last = camera.events[0], camera.events[-1]
    assert (first.kind, first.t_start) == ("stalled", 30.0)
    assert first.t - first.t_start <= BOUND_S
    assert last.t_end == pytest.approx(83, abs=1)
    assert (last.recovery, last.attempts) == ("connecting to the camera again", 4)
    assert {event.id for event in camera.events} == {first.id}


def test_a_hiccup_is_nothing() -> None:
    camera = DrivenCamera()
    for _ in range(20):
        camera.run(10)
        camera.silent(4)
    assert camera.events == []


def test_a_camera_that_drips_does_not_flap() -> None:
    camera = DrivenCamera()
    camera.run(10)
    for _ in range(10):
        camera.silent(8)
        camera.run(2)
    assert len({event.id for event in camera.events}) == 1
    assert camera.events[-1].t_end is None


def test_a_hanging_camera_that_gives_each_new_connection_a_few_old_frames_is_silent() -> None:
    camera = DrivenCamera()
    camera.run(20)
    for _ in range(5):
        camera.silent(3)
        camera.breaks += 2
        camera.run(1, decoded=3, examined=0)
    first = camera.events[0]
    assert (first.kind, first.t_start) == ("stalled", 20.0)
    assert first.t - first.t_start <= BOUND_S
    assert all(event.t_end is None for event in camera.events)


def test_a_camera_of_one_frame_in_five_seconds_is_not_silent() -> None:
    camera = DrivenCamera()
    for _ in range(20):
        camera.run(1, packets=1, decoded=1, examined=1)
        camera.silent(4, "live")
    assert "stalled" not in {event.kind for event in camera.events}


def test_a_clip_at_its_end_is_not_silent() -> None:
    camera = DrivenCamera()
    camera.run(10)
    camera.silent(60, "ended")
    assert camera.events == []


def test_a_gate_that_stays_closed_is_noticed_and_passed_by() -> None:
    camera = DrivenCamera()
    camera.run(20)
    camera.run(30, examined=0)
    camera.run(10)
    first = camera.events[0]
    assert (first.kind, first.t_start) == ("unexamined", 20.0)
    assert first.t - first.t_start <= BOUND_S
    assert {remedy for _, remedy in camera.remedies} == {"examine"}
    assert camera.events[-1].t_end is not None
    assert camera.events[-1].attempts == len(camera.remedies) == 2


def test_packets_that_cannot_be_decoded_count_as_unexamined_and_lead_to_a_reconnection() -> None:
    camera = DrivenCamera()
    camera.run(20)
    camera.run(12, decoded=0, examined=0)
    assert camera.events[0].kind == "unexamined"
    assert "no picture could be made" in camera.events[0].reason
    assert [remedy for _, remedy in camera.remedies] == ["connect"]


def test_a_camera_that_never_gave_a_picture_is_one_event_for_as_long_as_that() -> None:
    """Each reconnection that is to mend it is a short silence, which passed for a recovery: a new event every 15 s."""
    camera = DrivenCamera()
    tried = 0
    for _ in range(300):
        camera.run(1, decoded=0, examined=0)
        if len(camera.remedies) > tried:
            tried = len(camera.remedies)
            camera.breaks += 1
            camera.run(1, packets=0, decoded=0, examined=0, state="connecting")
            camera.run(6, decoded=0, examined=0)
    assert {event.kind for event in camera.events} == {"unexamined"}
    assert len({event.id for event in camera.events}) == 1
    assert all(event.t_end is None for event in camera.events)
    assert tried > 5
    camera.run(10)
    assert camera.events[-1].t_end is not None


def test_one_cause_is_one_event() -> None:
    """Nobody looks at a silent camera, nor while the detector is stuck: that is not events of the camera, too."""
    camera = DrivenCamera()
    camera.run(10)
    camera.silent(30)
    camera.run(10)
    assert {event.kind for event in camera.events} == {"stalled"}
    camera = DrivenCamera()
    camera.run(10)
    camera.run(60, examined=0, blind=True)
    assert camera.events == []


def test_a_machine_that_is_too_busy_to_read_makes_no_camera_stalled() -> None:
    camera = DrivenCamera()
    camera.run(30)
    camera.run(20, packets=0, decoded=0, examined=0, waiting=True)
    assert not [event for event in camera.events if event.kind == "stalled"]
    camera.silent(12)
    assert [event.kind for event in camera.events if event.kind == "stalled"], "and a camera that is silent still is"


def test_two_streams_of_different_clocks_are_told_and_which_is_ahead() -> None:
    camera = DrivenCamera()
    camera.run(30, apart_s=0.4)
    camera.run(5, apart_s=-3.2)
    camera.run(5, apart_s=0.1)
    assert camera.events == [], "a stream that was just opened is steered to its sender's clock"
    camera.run(12, apart_s=3.2)
    camera.run(12, apart_s=0.0)
    first, last = camera.events
    assert (first.kind, first.t - first.t_start <= BOUND_S, last.t_end is not None) == ("offset", True, True)
    assert "its second stream is 3.2 s ahead of its main stream" in first.reason
    camera.run(30, apart_s=None)
    camera.run(12, apart_s=-3.2, lagging=True)
    assert len(camera.events) == 2, "while it is read late, nobody can tell"
    ignoring = DrivenCamera(ignore=["offset"])
    ignoring.run(30, apart_s=5.0)
    assert ignoring.events == []


def test_a_hardware_decoder_that_fails_is_an_event_until_it_decodes_again() -> None:
    camera = DrivenCamera()
    camera.run(3, decoder_fault="cuda does not decode this stream; decoded in software meanwhile")
    camera.run(8)
    assert [(each.kind, each.t_end is None) for each in camera.events] == [("decoder", True), ("decoder", False)]
    assert camera.events[0].reason.endswith("decoded in software meanwhile")
    ignoring = DrivenCamera(ignore=["decoder"])
    ignoring.run(3, decoder_fault="cuda does not decode this stream")
    assert ignoring.events == []


@pytest.mark.parametrize("kind", ["stalled", "unexamined", "overloaded"])
def test_each_kind_can_be_left_out(kind: str) -> None:
    camera = DrivenCamera(ignore=[kind])
    camera.run(25)
    if kind == "stalled":
        camera.silent(20)
    else:
        camera.run(20, examined=0 if kind == "unexamined" else 1, crowded_out=4 if kind == "overloaded" else 0)
    assert camera.events == []


def test_a_camera_that_gets_less_than_was_promised_for_ten_seconds_is_overloaded_and_its_end_is_noticed() -> None:
    camera = DrivenCamera()
    camera.run(30)
    camera.run(20, examined=1, crowded_out=4)
    (event,) = camera.events
    assert event.kind == "overloaded"
    assert event.t - 30 <= 13  # five seconds of rate, of which one bad one is enough, and ten of patience
    assert "of 5.0 inferences a second" in event.reason
    assert "the detector is at work 97% of the time" in event.reason
    assert "lower detect.fps" in event.reason
    camera.run(30)
    assert camera.events[-1].id == event.id
    assert camera.events[-1].t_end is not None


def test_an_overload_that_comes_and_goes_is_one_event() -> None:
    camera = DrivenCamera()
    camera.run(30)
    for _ in range(10):
        camera.run(15, examined=2, crowded_out=3)
        camera.run(6)
    assert len({event.id for event in camera.events}) == 1
    assert camera.events[-1].t_end is None


def test_a_little_less_than_was_promised_neither_begins_an_overload_nor_ends_one() -> None:
    camera = DrivenCamera()
    for _ in range(20):
        camera.run(5)
        camera.run(5, examined=4, crowded_out=1)  # 80 % and 100 %
    assert camera.events == []
    camera.run(20, examined=1, crowded_out=4)
    for _ in range(10):
        camera.run(4, examined=4, crowded_out=1)
        camera.run(1, examined=5, crowded_out=0)  # 84 %
    assert camera.events[-1].t_end is None


def test_a_detector_that_was_held_up_for_six_seconds_is_no_overload() -> None:
    camera = DrivenCamera()
    for _ in range(10):
        camera.run(20)
        camera.run(6, examined=0, crowded_out=5)
    assert camera.events == []


def test_an_overload_in_bursts_is_one_all_the_same() -> None:
    """People pass for five seconds at a time: in between hardly anything is due, which proves nothing."""
    camera = DrivenCamera()
    camera.run(30)
    for _ in range(3):
        camera.run(5, examined=1, crowded_out=4)
        camera.run(14, examined=0)
        camera.run(1, examined=1)
    assert [event.kind for event in camera.events] == ["overloaded"]
    for _ in range(80):
        camera.run(1, examined=1)
        camera.run(2, examined=0)
    assert camera.events[-1].t_end is not None, "nothing was asked for for a minute"


def test_who_is_not_to_be_examined_often_is_promised_little() -> None:
    """Nothing moves: a heartbeat each two seconds is all that was due, and one of them may be missed."""
    camera = DrivenCamera()
    for number in range(300):
        camera.run(1, examined=number % 2, crowded_out=int(number % 10 == 0))
    assert camera.events == []


def test_more_frames_than_configured_were_never_promised() -> None:
    """After a cue eleven late frames wait at once; that not all are taken is no overload."""
    camera = DrivenCamera()
    for _ in range(60):
        camera.run(1, examined=5, crowded_out=8)
    assert camera.events == []


def test_nothing_is_promised_while_the_process_starts() -> None:
    camera = DrivenCamera()
    camera.run(18, examined=1, crowded_out=4)
    camera.run(20)
    assert camera.events == []


def test_packets_that_are_read_too_late_to_be_considered_are_an_overload() -> None:
    """Nothing is dropped at the detector then: most frames never get there."""
    camera = DrivenCamera()
    camera.run(25)
    camera.run(15, examined=1, lagging=True)
    assert [event.kind for event in camera.events] == ["overloaded"]


def test_an_overload_is_not_called_unexamined_as_well() -> None:
    camera = DrivenCamera()
    camera.run(30)
    camera.run(60, examined=0, crowded_out=5)
    assert {event.kind for event in camera.events} == {"overloaded"}


def test_a_stuck_detector_is_no_overload_of_its_cameras() -> None:
    camera = DrivenCamera()
    camera.run(30)
    camera.run(60, examined=0, crowded_out=5, blind=True)
    assert camera.events == []


def test_a_processor_that_is_too_busy_is_not_put_to_the_detector() -> None:
    rates = InferenceRates(promised=5.0, examined=0.7)
    assert "0.7 of 5.0 inferences a second" in overload_reason(rates, 0.4)
    assert "the processor is too busy" in overload_reason(rates, 0.4)


def appliance_watchdog(**settings: object) -> tuple[ApplianceWatchdog, ManualClock, list[HealthEvent]]:
    clock, events = ManualClock(0.0), []
    return ApplianceWatchdog(config.HealthConfig.model_validate(settings), events.append, clock), clock, events


def test_a_detector_that_hangs_is_noticed_and_that_the_process_starts_again() -> None:
    watchdog, clock, events = appliance_watchdog()
    for second in range(30):
        clock.advance(1.0)
        watchdog.tick(max(0.0, second - 10.0), "")
    watchdog.record_restart()
    assert (events[0].camera, events[0].kind) == ("", "detector")
    assert events[0].t - events[0].t_start <= BOUND_S
    assert events[-1].recovery == "starting the ingest process again"
    assert watchdog.is_detector_stuck


def test_a_detector_that_stands_in_is_a_fault_as_long_as_it_does() -> None:
    watchdog, clock, events = appliance_watchdog()
    watchdog.tick(0.0, "", "cuda did not come up")
    assert [(each.camera, each.kind, each.reason, each.t_end) for each in events] == [
        ("", "fallback", "cuda did not come up", None)
    ]
    for _ in range(10):
        clock.advance(1.0)
        watchdog.tick(0.0, "", "cuda did not come up")
    assert len(events) == 1
    silent, _, unheard = appliance_watchdog(ignore=["fallback"])
    silent.tick(0.0, "", "cuda did not come up")
    assert not unheard


def test_a_detector_that_only_fails_is_noticed_and_its_return_too() -> None:
    watchdog, clock, events = appliance_watchdog()
    for second in range(60):
        clock.advance(1.0)
        watchdog.tick(0.0, "the detector failed: out of memory" if 10 <= second < 40 else "")
    assert events[0].reason == "the detector failed: out of memory"
    assert events[0].t - events[0].t_start <= BOUND_S
    assert events[-1].t_end == pytest.approx(41, abs=1)
    assert not watchdog.is_detector_stuck


@pytest.mark.parametrize("step_s", [-3600.0, 90.0, 11.0])
def test_a_system_clock_that_is_set_is_reported_at_once(step_s: float) -> None:
    watchdog, clock, events = appliance_watchdog()
    for second in range(60):
        clock.advance(1.0)
        if second == 30:
            clock.jump(step_s)
        watchdog.tick(0.0, "")
    first = events[0]
    assert (first.kind, first.camera) == ("clock", "")
    assert f"{step_s:+.0f} s" in first.reason
    assert events[-1].t_end is not None


def test_disabled_kinds_of_the_appliance_are_not_reported() -> None:
    watchdog, clock, events = appliance_watchdog(ignore=["clock", "detector"])
    for _ in range(60):
        clock.advance(1.0)
        clock.jump(100)
        watchdog.tick(60.0, "")
    assert events == []
