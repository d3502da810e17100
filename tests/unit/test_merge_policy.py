"""From events to alerts: one per incident, calm, nothing lost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.alerts.pipeline import TRACKS_MAX, AlertPolicy, quality
from appliance.config import AlertsConfig
from appliance.types import Alert, AlertChange, BestView, Event, FrameBoxes, PipelineStep, Severity
from tests.support.sample_tracks import camera, header, look, person

ENTER = {"name": "enter", "kind": "enter", "zone": "yard", "cooldown_s": 30}
EXIT = {"name": "exit", "kind": "exit", "zone": "yard", "cooldown_s": 0}
IN = (0.6, 0.6)


def event(t: float, rule: str = "enter", track: int = 1, severity: Severity = "warning") -> Event:
    found = person(IN, track)
    return Event(
        camera="gate",
        rule=rule,
        kind="enter",
        track=track,
        label="person",
        t=t,
        score=0.8,
        box=found.box,
        severity=severity,
        id=f"{rule}-{track}-{t}",
    )


@dataclass
class Desk:
    """A policy and everything it has said."""

    policy: AlertPolicy
    changes: list[AlertChange] = field(default_factory=list)
    suppressed: list[Event] = field(default_factory=list)

    def take(self, step: PipelineStep) -> tuple[AlertChange, ...]:
        self.changes += step.changes
        self.suppressed += step.suppressed
        return step.changes

    def feed(self, frame: FrameBoxes, *events: Event) -> tuple[AlertChange, ...]:
        return self.take(self.policy.feed(frame, events))

    def see(self, t: float, *tracks: int, events: tuple[Event, ...] = ()) -> tuple[AlertChange, ...]:
        return self.feed(look(t, *[person(IN, track) for track in tracks]), *events)

    @property
    def said(self) -> list[str]:
        return [change.kind for change in self.changes]

    @property
    def ended(self) -> list[Alert]:
        return [change.alert for change in self.changes if change.kind == "ended"]


def desk(**alerts: float) -> Desk:
    made = Desk(AlertPolicy(AlertsConfig.model_validate(alerts), camera(ENTER, EXIT).rules))
    made.take(made.policy.begin(header()))
    return made


def test_an_event_opens_an_alert_that_ends_when_its_people_are_gone() -> None:
    made = desk(merge_s=8)
    made.see(10.0, 1, events=(event(10.0),))
    for step in range(1, 20):
        made.see(10.0 + step, 1)
    for step in range(20, 30):
        made.see(10.0 + step)
    assert made.said == ["opened", "ended"]
    (alert,) = made.ended
    assert (alert.t_start, alert.t_end, alert.end_reason) == (10.0, 29.0, "quiet")
    assert (alert.rules, alert.tracks, alert.labels, alert.run) == (("enter",), (1,), ("person",), "run-1")


def test_everything_that_happens_meanwhile_belongs_to_the_same_alert() -> None:
    made = desk()
    made.see(10.0, 1, events=(event(10.0),))
    made.see(11.0, 1, 2, events=(event(11.0, track=2),))
    made.see(12.0, 1, 2, events=(event(12.0, "exit", severity="alert"),))
    made.take(made.policy.close(13.0, "end of clip"))
    assert made.said == ["opened", "extended", "extended", "ended"]
    (alert,) = made.ended
    assert (alert.rules, alert.tracks, alert.severity) == (("enter", "exit"), (1, 2), "alert")
    assert alert.end_reason == "end of clip"


def test_severity_never_sinks() -> None:
    made = desk()
    made.see(10.0, 1, events=(event(10.0, severity="alert"), event(10.0, "exit", severity="info")))
    assert [change.alert.severity for change in made.changes] == ["alert", "alert"]


def test_merge_s_of_quiet_is_still_the_same_incident_and_more_is_not() -> None:
    made = desk(merge_s=8)
    made.see(0.0, 1, events=(event(0.0, "exit"),))
    made.see(8.0, 2, events=(event(8.0, "exit", track=2),))
    assert made.said == ["opened", "extended"]
    made.see(16.5, 3, events=(event(16.5, "exit", track=3),))
    assert made.said == ["opened", "extended", "ended", "opened"]
    assert made.ended[0].t_end == 8.0


def test_a_detector_that_does_not_answer_is_not_quiet() -> None:
    made = desk(merge_s=8)
    made.see(0.0, 1, events=(event(0.0),))
    for t in range(1, 60):
        made.feed(look(float(t), looked=False))
    assert made.said == ["opened"]
    made.see(60.0, 1)
    assert made.said == ["opened"]


def test_a_person_who_stays_for_ever_does_not_make_an_alert_for_ever() -> None:
    made = desk(length_max_s=120)
    made.see(0.0, 1, events=(event(0.0),))
    for t in range(1, 300):
        made.see(float(t), 1)
    (alert,) = made.ended
    assert (alert.t_end, alert.end_reason) == (119.0, "length")


def test_a_frame_a_little_late_does_not_make_two_alerts_overlap() -> None:
    made = desk(length_max_s=10)
    made.see(0.0, 1, events=(event(0.0),))
    made.see(9.9, 1)
    made.see(10.0, 1)
    made.see(9.8, 1, events=(event(9.8, "exit"),))
    assert made.said == ["opened", "ended", "opened"]
    assert made.changes[1].alert.t_end == made.changes[2].alert.t_start == 9.9


def test_a_lost_camera_ends_the_alert_when_time_passes() -> None:
    made = desk(merge_s=8)
    made.see(0.0, 1, events=(event(0.0),))
    assert made.take(made.policy.tick(8.0)) == ()
    (change,) = made.take(made.policy.tick(8.5))
    assert (change.kind, change.alert.t_end, change.alert.end_reason) == ("ended", 0.0, "quiet")


def test_a_new_run_ends_the_alert_and_the_same_run_sent_again_does_not() -> None:
    made = desk()
    made.see(0.0, 1, events=(event(0.0),))
    assert made.take(made.policy.begin(header("run-1"))) == ()
    (change,) = made.take(made.policy.begin(header("run-2")))
    assert (change.kind, change.alert.end_reason, change.alert.run) == ("ended", "new run", "run-1")


class TestCooldown:
    def test_an_event_in_the_cooldown_of_its_rule_is_kept_but_opens_nothing(self) -> None:
        made = desk(merge_s=8)
        made.see(0.0, 1, events=(event(0.0),))
        made.see(20.0, 2, events=(event(20.0, track=2),))
        assert made.said == ["opened", "ended"]
        assert [each.id for each in made.suppressed] == ["enter-2-20.0"]
        assert made.policy.suppressed == 1

    def test_another_rule_is_not_held_back_by_it(self) -> None:
        made = desk(merge_s=8)
        made.see(0.0, 1, events=(event(0.0),))
        made.see(20.0, 2, events=(event(20.0, "exit", track=2),))
        assert made.said == ["opened", "ended", "opened"]

    def test_a_graver_event_is_not_held_back(self) -> None:
        made = desk(merge_s=8)
        made.see(0.0, 1, events=(event(0.0),))
        made.see(20.0, 2, events=(event(20.0, track=2, severity="alert"),))
        assert made.said == ["opened", "ended", "opened"]

    def test_suppressed_events_do_not_prolong_it(self) -> None:
        made = desk(merge_s=8)
        for t in (0.0, 12.0, 24.0, 30.0):
            made.see(t, int(t) + 1, events=(event(t, track=int(t) + 1),))
        assert [each.t for each in made.suppressed] == [12.0, 24.0]
        assert made.said == ["opened", "ended", "opened"]

    def test_an_open_alert_absorbs_events_in_their_cooldown(self) -> None:
        made = desk()
        made.see(0.0, 1, events=(event(0.0),))
        made.see(5.0, 2, events=(event(5.0, track=2),))
        assert made.said == ["opened", "extended"]
        assert made.suppressed == []


class TestBestView:
    def test_sure_large_and_whole_is_best(self) -> None:
        small, large = (0.4, 0.4, 0.5, 0.6), (0.3, 0.2, 0.5, 0.6)
        assert quality(0.8, large) > quality(0.8, small) > quality(0.4, small)
        assert quality(0.8, (0.0, 0.2, 0.2, 0.6)) == pytest.approx(quality(0.8, large) / 2)

    def test_the_still_follows_the_best_moment_and_only_marked_gains_are_reported(self) -> None:
        made = desk()
        made.see(0.0, 1, events=(event(0.0),))
        made.feed(look(1.0, person(IN, score=0.81)))
        made.feed(look(2.0, person((0.6, 0.7), height=0.4)))
        made.feed(look(3.0, person((0.6, 0.7), score=0.82, height=0.4)))
        assert [(change.kind, change.alert.best.t) for change in made.changes if change.alert.best] == [
            ("opened", 0.0),
            ("extended", 2.0),
        ]
        made.take(made.policy.close(4.0, "end of clip"))
        assert made.ended[0].best == BestView(
            track=1, label="person", t=3.0, score=0.82, box=person((0.6, 0.7), height=0.4).box
        )

    def test_a_stranger_to_the_alert_is_not_its_still(self) -> None:
        made = desk()
        made.see(0.0, 1, events=(event(0.0),))
        made.feed(look(1.0, person(IN), person((0.3, 0.9), 2, 0.99, height=0.8)))
        assert made.said == ["opened"]

    def test_the_still_of_a_person_who_has_gone_is_cut_where_he_was_last_seen(self) -> None:
        made = desk()
        made.see(0.0, 1)
        made.see(1.0, 1)
        made.see(4.0, events=(event(4.0, "exit"),))
        best = made.changes[0].alert.best
        assert best is not None
        assert best.t == 1.0


def test_a_quiet_minute_with_a_person_standing_there_writes_nothing() -> None:
    made = desk(length_max_s=600)
    made.see(0.0, 1, events=(event(0.0),))
    for index in range(1, 300):
        assert made.see(index * 0.2, 1) == ()


def test_a_crowd_is_listed_up_to_a_bound_and_no_event_is_lost() -> None:
    made = desk(length_max_s=3600)
    crowd = TRACKS_MAX + 50
    for track in range(1, crowd + 1):
        made.see(track * 0.2, track, events=(event(track * 0.2, track=track),))
    made.take(made.policy.close(crowd * 0.2, "end of clip"))
    assert len(made.ended[0].tracks) == TRACKS_MAX
    assert sum(change.event is not None for change in made.changes) == crowd


def test_a_clock_set_back_ends_the_alert_and_its_cooldowns() -> None:
    made = desk()
    made.see(5000.0, 1, events=(event(5000.0),))
    made.see(1400.0, 1, events=(event(1400.0),))
    assert made.said == ["opened", "ended", "opened"]
    assert made.ended[0].end_reason == "clock set back"
    assert made.ended[0].t_end == 5000.0


def test_the_id_of_an_alert_comes_from_its_first_event() -> None:
    def ids(t: float) -> str:
        made = desk()
        made.see(t, 1, events=(event(t),))
        return made.changes[0].alert.id

    assert ids(1.0) == ids(1.0) != ids(2.0)
    assert len(ids(1.0)) == 16


@dataclass(frozen=True)
class Moment:
    """One thing that befalls a policy; dt may be a little negative, as frames come a little out of order."""

    what: str
    dt: float
    looked: bool
    seen: tuple[int, ...]
    fires: tuple[tuple[str, int, Severity], ...]


severities: st.SearchStrategy[Severity] = st.sampled_from(["info", "warning", "alert"])
moments = st.builds(
    Moment,
    what=st.sampled_from(["frame"] * 12 + ["tick", "run", "same run", "close"]),
    dt=st.one_of(st.floats(-0.9, 3.0), st.floats(0.0, 60.0)),
    looked=st.booleans(),
    seen=st.lists(st.integers(1, 5), unique=True, max_size=3).map(tuple),
    fires=st.lists(
        st.tuples(st.sampled_from(["enter", "exit"]), st.integers(1, 5), severities), max_size=3, unique=True
    ).map(tuple),
)


@settings(max_examples=300)
@given(st.lists(moments, max_size=60), st.floats(0.1, 30), st.floats(0.1, 90))
def test_whatever_happens_no_event_is_lost_and_alerts_do_not_overlap(
    story: list[Moment], merge_s: float, length_max_s: float
) -> None:
    made = desk(merge_s=merge_s, length_max_s=length_max_s)
    fed: list[Event] = []
    t = latest = 100.0
    for index, moment in enumerate(story):
        t = latest = max(latest, t + moment.dt)
        shown = max(0.0, t + min(0.0, moment.dt))
        if moment.what == "tick":
            made.take(made.policy.tick(t))
        elif moment.what == "close":
            made.take(made.policy.close(t, "closed"))
        elif moment.what != "frame":
            made.take(made.policy.begin(header("run-1" if moment.what == "same run" else f"run-{index}")))
        else:
            events = [event(shown, rule, track, severity) for rule, track, severity in moment.fires]
            fed += events
            made.feed(look(shown, *(person(IN, n) for n in moment.seen), looked=moment.looked), *events)
    made.take(made.policy.close(t, "end of clip"))

    told = [change.event for change in made.changes if change.event is not None]
    assert sorted(map(id, [*told, *made.suppressed])) == sorted(map(id, fed))
    assert made.policy.suppressed == len(made.suppressed)
    opened = [change.alert for change in made.changes if change.kind == "opened"]
    assert [alert.id for alert in opened] == [alert.id for alert in made.ended]
    for alert in made.ended:
        assert alert.t_end is not None
        assert alert.t_start <= alert.t_end
        assert alert.end_reason
    for one, following in itertools.pairwise(made.ended):
        assert one.t_end is not None
        assert one.t_end <= following.t_start
    assert_in_order(made.said)


def assert_in_order(said: list[str]) -> None:
    """opened, any extended, ended, opened, ..."""
    is_open = False
    for kind in said:
        assert is_open == (kind != "opened")
        is_open = kind != "ended"
    assert not is_open
