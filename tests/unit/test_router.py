"""Whether, when and with which evidence the cloud is asked, and in which words."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import config
from appliance.base.clock import footage_period, local_period
from appliance.replay.replay_routing import router_context_of
from appliance.router.decide import BudgetLimit, EscalationCost, RouterCase, decide, expected_bytes, is_drawn
from appliance.router.escalation_budget import EscalationBudget
from appliance.router.escalation_planner import EscalationPlanner, build_escalation
from appliance.router.track_stats import TRACKS_MAX, CameraTrackStats
from appliance.rules.weekly_hours import off_peak_in_s
from appliance.types import (
    Alert,
    AlertChange,
    Event,
    FrameBoxes,
    PrivacyLevel,
    Severity,
    StreamHeader,
    TrackedObject,
)
from tests.support.router_inputs import route_inputs

ALERT = Alert(camera="gate", id="a1", rules=("r",), severity="alert", t_start=1.0, t_end=None, tracks=(1,))
EVENT = Event(camera="gate", rule="r", kind="enter", track=1, label="person", t=1.5, score=0.8, zone="yard")
ENTER = config.EnterRule(name="r", kind="enter", zone="yard")
SETTINGS = config.EscalationConfig()
COSTS = tuple(EscalationCost(each, 1.0, 0.0) for each in expected_bytes(SETTINGS))
DAY_S = 86400.0


def case(alert: str = "a1", *, limits: tuple[BudgetLimit, ...] = (), now: float = 0.0, **inputs: Any) -> RouterCase:
    """An alert of severity `warning` that is likely real, at a site that may ask."""
    known = {"label": "person", "chance": 0.8, **inputs}
    return RouterCase(
        alert=alert,
        rule="r",
        escalate=True,
        uplink=True,
        inputs=route_inputs(**known),
        costs=COSTS,
        limits=limits,
        now=now,
    )


def told(router: dict[str, Any] | None = None, **changes: Any) -> config.EscalationConfig:
    return config.EscalationConfig.model_validate({"router": router or {}, **changes})


def bytes_a_day(amount: float, spent: float = 0.0) -> tuple[BudgetLimit, ...]:
    return (BudgetLimit("mb_day", "bytes", amount, spent, DAY_S),)


@pytest.mark.parametrize(
    ("changed", "settings", "reason"),
    [
        ({"uplink": False}, SETTINGS, "this site has no uplink"),
        ({}, told(enabled=False), "escalation is switched off"),
        ({"escalate": False}, SETTINGS, "the rule r is not to be escalated"),
        ({}, told(severities=["alert"]), "alerts of severity warning are not escalated"),
    ],
)
def test_when_the_site_file_rules_it_out_the_reason_is_said(
    changed: dict[str, Any], settings: config.EscalationConfig, reason: str
) -> None:
    decision = decide(replace(case(), **changed), settings)
    assert (decision.when, decision.ask, decision.priority, decision.reason) == ("never", False, "", reason)


@pytest.mark.parametrize(("severity", "priority"), [("alert", "high"), ("warning", "normal")])
def test_severity_decides_how_urgently(severity: Severity, priority: str) -> None:
    decision = decide(case(severity=severity), SETTINGS)
    assert (decision.when, decision.priority, decision.evidence) == ("now", priority, "crops")


@pytest.mark.parametrize(("pool_wait_s", "answered"), [(25.0, True), (26.0, True), (26.5, False), (31.0, False)])
def test_an_answer_is_in_time_when_queue_and_judging_together_are(pool_wait_s: float, answered: bool) -> None:
    """A worker that is free in 26 s and judges for 4 answers after 30 s."""
    asked = replace(case(pool_wait_s=pool_wait_s), costs=tuple(replace(each, gpu_s=4.0) for each in COSTS))
    decision = decide(asked, told({"answer_s": 30}))
    assert decision.when == ("now" if answered else "later")
    assert bool(decision.flagged) != answered


def test_a_crowd_is_what_the_last_frame_shows() -> None:
    tracks = CameraTrackStats()
    tracks.begin((1280, 720))
    for count in (7, 2):
        people = tuple(
            TrackedObject(track=n, label="person", score=0.8, box=(0.1, 0.1, 0.2, 0.5)) for n in range(count)
        )
        tracks.observe(FrameBoxes(camera="gate", seq=0, frame=0, t=1.0, looked=True, objects=people))
        assert tracks.crowd == count
    tracks.begin((1280, 720))
    assert tracks.crowd == 0


def test_an_image_free_camera_is_asked_about_with_facts_alone() -> None:
    assert decide(case(privacy="image_free", severity="alert"), told(first="clip")).evidence == "facts"


def test_what_is_likely_real_is_worth_more_than_sure_nonsense_of_a_graver_rule() -> None:
    person, nonsense = case(chance=0.9, severity="warning"), case(chance=0.1, severity="alert")
    assert decide(person, SETTINGS).value > 3 * decide(nonsense, SETTINGS).value


def test_cheap_evidence_makes_an_escalation_worth_more() -> None:
    assert decide(case(), told(first="crops")).value > decide(case(), told(first="frames")).value


def test_an_escalation_of_the_owners_own_is_worth_more() -> None:
    assert decide(case(own_question=True), SETTINGS).value > decide(case(), SETTINGS).value


def test_what_stands_where_it_was_asked_about_is_not_asked_about_again() -> None:
    decision = decide(case(repeat=True, label="car"), told({"audit_share": 0}))
    assert (decision.when, decision.reason) == ("never", "this car stands where it was asked about before")


def test_what_is_hardly_ever_real_is_left_out_only_with_a_claim_behind_it() -> None:
    quiet = told({"audit_share": 0})
    assert decide(case(chance=0.01, chance_min=0.0), quiet).when == "now"
    assert decide(case(chance=0.01, chance_min=0.02), quiet).reason == "such alerts are hardly ever real"


def test_value_below_the_owners_minimum_is_left_out() -> None:
    value = decide(case(), SETTINGS).value
    assert decide(case(), told({"value_min": value})).when == "now"
    assert decide(case(), told({"value_min": value * 1.01, "audit_share": 0})).when == "never"


def test_of_what_is_left_out_a_sample_is_asked_about_all_the_same() -> None:
    settings = told({"audit_share": 0.02})
    found = [decide(case(f"alert-{n}", chance=0.01, chance_min=0.5), settings) for n in range(10_000)]
    asked = [each for each in found if each.ask]
    assert 150 <= len(asked) <= 250  # 200 ± 3.6 standard deviations
    assert {each.reason for each in asked} == {"audit sample: such alerts are hardly ever real"}
    assert {(each.priority, each.audit_share) for each in asked} == {("low", 0.02)}
    assert found == [decide(case(f"alert-{n}", chance=0.01, chance_min=0.5), settings) for n in range(10_000)]


def test_a_larger_sample_holds_the_smaller_one() -> None:
    names = [f"alert-{n}" for n in range(2000)]
    small, large = ({name for name in names if is_drawn(name, share)} for share in (0.05, 0.2))
    assert small < large
    assert all(is_drawn(name, 1.0) for name in names)
    assert not any(is_drawn(name, 0.0) for name in names)


def test_a_small_budget_buys_less_evidence_before_it_buys_none() -> None:
    crops, facts = COSTS[1].bytes, COSTS[0].bytes
    free = told(budget={"alert_reserve": 0})
    assert decide(case(limits=bytes_a_day(crops)), free).evidence == "crops"
    cheaper = decide(case(limits=bytes_a_day(crops * 2, spent=crops + 1)), free)
    assert (cheaper.when, cheaper.evidence) == ("now", "facts")
    waits = decide(case(limits=bytes_a_day(crops * 2, spent=crops * 2 - facts + 1)), free)
    assert (waits.when, waits.wait and waits.wait.until_t) == ("later", DAY_S)
    assert waits.reason.endswith("it waits until the budget is renewed")


def test_facts_do_not_answer_an_escalation_of_the_owners_own_so_it_waits() -> None:
    crops = COSTS[1].bytes
    limits = bytes_a_day(crops * 2, spent=crops + 1)
    decision = decide(case(own_question=True, limits=limits), told(budget={"alert_reserve": 0}))
    assert (decision.when, decision.evidence) == ("later", "crops")


def test_the_reserve_is_for_alerts() -> None:
    limits = bytes_a_day(COSTS[1].bytes * 10, spent=COSTS[1].bytes * 8)
    own = {"own_question": True, "limits": limits}
    assert decide(case(severity="warning", **own), SETTINGS).when == "later"
    assert decide(case(severity="alert", **own), SETTINGS).when == "now"


def test_it_waits_for_the_most_that_a_renewed_budget_can_pay() -> None:
    """The clip costs more than a day has: with money left the alert goes with less, and without any it waits for it."""
    _, crops, _, clip = (cost.bytes for cost in COSTS)
    rich = told(first="clip", budget={"alert_reserve": 0})
    assert decide(case(limits=bytes_a_day(clip - 1)), rich).when == "now"
    spent = decide(case(limits=bytes_a_day(clip - 1, spent=clip - 1)), rich)
    assert (spent.when, spent.evidence) == ("later", decide(case(limits=bytes_a_day(clip - 1)), rich).evidence)
    poor = decide(case(limits=bytes_a_day(crops, spent=crops)), rich)
    assert (poor.when, poor.evidence) == ("later", "crops")


def test_what_a_renewed_budget_could_not_pay_is_never_asked() -> None:
    decision = decide(case(limits=bytes_a_day(COSTS[0].bytes - 1)), SETTINGS)
    assert (decision.when, decision.reason) == ("never", "one question costs more than the budget allows")


def test_what_would_expire_before_its_budget_is_renewed_is_never_asked() -> None:
    limits = (BudgetLimit("mb_month", "bytes", 1e6, 1e6, 30 * DAY_S),)
    decision = decide(case(limits=limits, severity="alert"), SETTINGS)
    assert decision.reason == "it would expire before its time came: it waits until the budget is renewed"


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"load": 3.0}, "box"),
        ({"temperature_c": 90.0}, "box"),
        ({"queue_age_s": 700.0}, "queue"),
        ({"off_peak_in_s": 3600.0}, "off-peak"),
    ],
)
def test_the_less_urgent_waits_and_the_urgent_goes(inputs: dict[str, float], why: str) -> None:
    settings = told({"load_max": 2.0, "temperature_max_c": 80.0}, first="frames")
    waits = decide(case(now=100.0, **inputs), settings)
    assert (waits.when, waits.wait and waits.wait.why) == ("later", why)
    urgent = decide(case(severity="alert", **inputs), settings)
    assert urgent.when == "now"
    assert urgent.evidence == ("frames" if why == "off-peak" else "crops")


def test_what_is_unknown_holds_nothing_up() -> None:
    assert decide(case(), told({"load_max": 0.1, "temperature_max_c": 1.0})).when == "now"


ANY = st.fixed_dictionaries(
    {
        "severity": st.sampled_from(["info", "warning", "alert"]),
        "own_question": st.booleans(),
        "chance": st.floats(0, 1),
        "chance_min": st.floats(0, 1),
        "chance_max": st.floats(0, 1),
        "learn_share": st.floats(0, 1),
        "crowd": st.integers(0, 100),
        "rechecked": st.sampled_from([None, "unsure", "rechecked"]),
        "pool_wait_s": st.none() | st.floats(0, 1e5),
        "gpu_hour": st.none() | st.floats(0, 1e4),
        "repeat": st.booleans(),
        "link_up": st.sampled_from([None, True, False]),
        "queue_age_s": st.none() | st.floats(0, 1e6),
        "load": st.none() | st.floats(0, 64),
        "temperature_c": st.none() | st.floats(-20, 120),
        "off_peak_in_s": st.none() | st.floats(0, 86400),
    }
)


@settings(max_examples=300, deadline=None)
@given(inputs=ANY, name=st.text(max_size=8), first=st.sampled_from(["facts", "crops", "frames", "clip"]))
def test_privacy_stands_whatever_else_is_the_case(inputs: dict[str, Any], name: str, first: str) -> None:
    settings = told({"audit_share": 1.0, "answer_s": 30}, first=first, severities=["info", "warning", "alert"])
    privacy: PrivacyLevel
    for privacy in ("never", "image_free"):
        decision = decide(case(name, privacy=privacy, **inputs), settings)
        assert decision.evidence == "facts"
        assert privacy != "never" or decision.when == "never"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ANY, min_size=1, max_size=60),
    st.floats(0.001, 2.0),
    st.floats(0, 30),
    st.floats(0, 1),
    st.sampled_from(["facts", "crops", "frames", "clip"]),
)
def test_a_budget_is_never_exceeded(
    many: list[dict[str, Any]], mb_day: float, gpu_s_month: float, reserve: float, first: str
) -> None:
    """Whatever is asked, in whatever order: what was let go now costs no more than the site file allows."""
    budget = {"mb_day": mb_day, "gpu_s_month": gpu_s_month, "alert_reserve": reserve}
    settings = told(budget=budget, first=first, severities=["info", "warning", "alert"])
    purse = EscalationBudget(settings.budget, settings.prices, footage_period)
    days: dict[float, float] = {}
    gpu_s = grave = 0.0
    for n, inputs in enumerate(many):
        now = n * 3600.0
        decision = decide(case(f"a{n}", limits=purse.limits(now), now=now, **inputs), settings)
        if decision.when == "now":
            purse.spend(decision.cost, now)
            days[now // DAY_S] = days.get(now // DAY_S, 0.0) + decision.cost.bytes
            gpu_s += decision.cost.gpu_s
            grave += decision.cost.gpu_s * (inputs["severity"] == "alert")
    assert max(days.values(), default=0) <= mb_day * 1e6
    assert gpu_s <= gpu_s_month
    assert gpu_s - grave <= gpu_s_month * (1 - reserve) + 1e-9


def test_a_day_and_a_month_begin_with_nothing_spent() -> None:
    budget = config.BudgetConfig(mb_day=1.0, money_month=5.0)
    purse = EscalationBudget(budget, config.PricesConfig(uplink_gb=2000.0), footage_period)
    purse.spend(purse.cost(600_000), 10.0)
    assert [(each.name, each.spent) for each in purse.limits(20.0)] == [("mb_day", 600_000), ("money_month", 1.2)]
    assert [each.spent for each in purse.limits(DAY_S + 1)] == [0.0, 1.2]
    assert [each.spent for each in purse.limits(30 * DAY_S + 1)] == [0.0, 0.0]


def test_a_decision_takes_less_than_a_fifth_of_a_millisecond() -> None:
    """The budget of docs/design.md, with room for a busy machine: `make bench` measures it."""
    settings, spent = told({"load_max": 2.0}), []
    for n in range(2000):
        before = time.thread_time()
        decide(case(f"a{n}", chance=n / 2000, chance_min=0.1, limits=bytes_a_day(1e9)), settings)
        spent.append(time.thread_time() - before)
    assert sorted(spent)[int(0.99 * len(spent))] < 0.2e-3 * 5


@pytest.mark.parametrize(
    ("event", "rule", "question"),
    [
        (EVENT, ENTER, "Is there really a person entering the zone `yard`?"),
        (
            replace(EVENT, kind="exit", label="elephant"),
            config.ExitRule(name="r", kind="exit", zone="yard"),
            "Is there really an elephant leaving the zone `yard`?",
        ),
        (
            replace(EVENT, kind="dwell"),
            config.DwellRule(name="r", kind="dwell", zone="yard", seconds=20),
            "Is there really a person staying in the zone `yard` for at least 20 seconds?",
        ),
        (
            replace(EVENT, kind="line", zone="", line="door", label="car"),
            config.LineRule(name="r", kind="line", line="door", direction="left_to_right"),
            "Is there really a car crossing the line `door` (left to right)?",
        ),
        (EVENT, ENTER.model_copy(update={"ask": "Does someone climb the fence?"}), "Does someone climb the fence?"),
    ],
)
def test_the_escalation_is_the_owners_or_made_from_the_rule(event: Event, rule: config.Rule, question: str) -> None:
    assert build_escalation(ALERT, event, rule, site="s", now=2.0).question == question


def test_the_same_alert_of_the_same_site_is_the_same_escalation() -> None:
    first = build_escalation(ALERT, EVENT, ENTER, site="depot-7", now=2.0)
    assert first.id == build_escalation(ALERT, EVENT, ENTER, site="depot-7", now=99.0).id
    assert first.id != build_escalation(ALERT, EVENT, ENTER, site="depot-8", now=2.0).id
    assert first.id.startswith("esc-")
    assert len(first.id) == 20


def test_days_and_months_of_the_calendar_and_of_footage() -> None:
    here = local_period(datetime(2026, 2, 14, 13, 30).timestamp())  # noqa: DTZ001 (the calendar on the wall)
    ends = [datetime.fromtimestamp(t).isoformat() for t in (here.day_t, here.day_end_t, here.month_t, here.month_end_t)]  # noqa: DTZ006
    assert ends == ["2026-02-14T00:00:00", "2026-02-15T00:00:00", "2026-02-01T00:00:00", "2026-03-01T00:00:00"]
    assert here.day == "2026-02-14"
    second = footage_period(DAY_S + 5)
    assert (second.day_t, second.day_end_t, second.month_t, second.month_end_t) == (DAY_S, 2 * DAY_S, 0, 30 * DAY_S)


@pytest.mark.parametrize(
    ("weekday", "minute", "minutes"),
    [(0, 22 * 60, 0), (0, 12 * 60, 600), (1, 5 * 60 + 59, 0), (1, 6 * 60, 960), (4, 12 * 60, 600)],
)
def test_off_peak_hours_are_counted_down(weekday: int, minute: int, minutes: int) -> None:
    hours = off_peak_in_s(config.OffPeakConfig(hours=("22:00-06:00",)), lambda t: (weekday, minute))
    assert hours is not None
    assert hours(0.0) == minutes * 60


def test_off_peak_days_may_be_far_away_and_a_clip_has_no_hours() -> None:
    hours = off_peak_in_s(config.OffPeakConfig(days=("sun",)), lambda t: (0, 0))
    assert hours is not None
    assert hours(0.0) == 6 * DAY_S
    assert off_peak_in_s(config.OffPeakConfig(), None) is None
    assert off_peak_in_s(None, lambda t: (0, 0)) is None


DECISION_MS_MAX = 1.0
"""Fifty times the figure of docs/router.md, in CPU time: what a change of the algorithm costs, not a busy machine."""


def test_a_decision_costs_a_fraction_of_a_millisecond_whatever_it_is() -> None:
    """The core decides in the thread that reads the cameras: an alert may not hold them up."""
    settings = told({"audit_share": 0.02, "value_min": 0.1}, off_peak={"hours": ["22:00-06:00"]})
    limits = tuple(BudgetLimit(name, "bytes", 1e9, 5e8, DAY_S) for name in ("mb_day", "mb_month"))
    cases = [case(f"a{n}", limits=limits, chance=n / 2000, chance_min=0.2, load=n / 500) for n in range(2000)]
    began = time.process_time()
    found = [decide(each, settings) for each in cases]
    took_ms = (time.process_time() - began) * 1000 / len(cases)
    assert {each.when for each in found} >= {"now", "never"}
    assert took_ms < DECISION_MS_MAX


def test_planning_an_alert_costs_the_same_with_one_track_and_with_as_many_as_are_kept() -> None:
    def planned_ms(tracks: int) -> float:
        site = config.SiteConfig.model_validate(
            {
                "uplink": {"url": "nats://hub:4222"},
                "cameras": {
                    "gate": {
                        "url": "file:/x.mp4",
                        "zones": {"yard": [[0, 0], [1, 0], [1, 1]]},
                        "rules": [{"name": "r", "kind": "enter", "zone": "yard"}],
                    }
                },
            }
        )
        planner = EscalationPlanner("gate", site.cameras["gate"].rules, router_context_of(site.for_decisions()))
        planner.begin(StreamHeader(camera="gate", clip="", model="m", size=(640, 480), run="r1"))
        for n in range(tracks):
            boxes = (TrackedObject(track=n, label="person", score=0.8, box=(0.1, 0.1, 0.2, 0.4)),)
            planner.observe(FrameBoxes(camera="gate", seq=n, frame=n, t=n / 10, looked=True, objects=boxes))
        changes = [
            AlertChange("opened", replace(ALERT, id=f"a{n}"), replace(EVENT, track=tracks - 1)) for n in range(500)
        ]
        began = time.process_time()
        assert all(planner.plan(each, 0.0) is not None for each in changes)
        return (time.process_time() - began) * 1000 / len(changes)

    few, many = planned_ms(1), planned_ms(TRACKS_MAX + 100)
    assert max(few, many) < 5 * DECISION_MS_MAX
    assert many < 5 * few + DECISION_MS_MAX
