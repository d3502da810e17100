"""The router as a cascade: what stays at the edge on both sides, by which labels, under which bound; how it learns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import config, wire
from appliance.base.clock import ManualClock
from appliance.router.calibration import SURE_MIN, UNTRAINED, Calibration, SureClaim, error_bound
from appliance.router.calibration_fit import AlertOutcome, claim_sure, decided_of, fit, outcomes_of
from appliance.router.decide import (
    EscalationCost,
    RouterCase,
    RouterDecision,
    certainty_of,
    decide,
    edge_answer,
    expected_bytes,
)
from appliance.store.decisions import DecidedRow, OutcomeRow
from appliance.store.reviews import ReviewStore
from appliance.types import RouteInputs, TrackStability
from tests.support.core_harness import CoreHarness, site
from tests.support.router_inputs import route_inputs

COSTS = tuple(EscalationCost(each, 1.0, 0.0) for each in expected_bytes(config.EscalationConfig()))
SURE = {"chance": 0.97, "chance_max": 0.9, "error_high": 0.04}
DOUBTFUL = {"chance": 0.02, "chance_min": 0.1}


def told(router: dict[str, Any] | None = None, **changes: Any) -> config.EscalationConfig:
    return config.EscalationConfig.model_validate({"router": router or {}, **changes})


def case(alert: str = "a1", *, escalate: bool = True, **inputs: Any) -> RouterCase:
    known = {"label": "person", "chance": 0.5, **inputs}
    return RouterCase(
        alert=alert, rule="r", escalate=escalate, uplink=True, inputs=route_inputs(**known), costs=COSTS
    )  # fmt: skip


def test_a_sure_alert_stays_at_the_edge_on_both_sides_and_what_is_between_is_asked_about() -> None:
    quiet = told({"audit_share": 0})
    sure, doubtful, between = (
        decide(case(**each), quiet) for each in (SURE, DOUBTFUL, {"chance": 0.5, "chance_max": 0.9, "chance_min": 0.1})
    )
    assert (sure.tier, sure.edge, sure.reason) == (
        "edge", "sure", "the appliance is sure: such alerts are hardly ever wrong",
    )  # fmt: skip
    assert (doubtful.tier, doubtful.edge) == ("edge", "doubtful")
    assert (between.tier, between.edge, between.when) == ("cloud", "between", "now")


def test_without_a_claim_nothing_is_sure_however_high_its_chance() -> None:
    decision = decide(case(chance=0.9999), told({"audit_share": 0}))
    assert (decision.tier, decision.edge) == ("cloud", "between")


def test_the_certainty_is_that_of_the_answer_not_of_the_likelier_one() -> None:
    assert [certainty_of("sure", 0.97), certainty_of("doubtful", 0.02), certainty_of("between", 0.4)] == [
        0.97,
        0.98,
        0.6,
    ]
    assert certainty_of("doubtful", 0.7) == 0.3, "while all alerts are escalated, the threshold may lie above 0.5"
    assert certainty_of("", 0.9) == 0.0


def test_a_site_without_a_cloud_is_told_no_certainty_that_nobody_looked_for() -> None:
    for refused in (decide(replace(case(**SURE), uplink=False), told()), decide(case(**SURE), told(enabled=False))):
        assert (refused.tier, refused.edge) == ("edge", "")
    assert decide(case(escalate=False, **SURE), told()).edge == "sure"


def test_a_question_of_the_owners_and_a_crowd_are_never_the_edges_to_answer() -> None:
    quiet = told({"audit_share": 0, "crowd_max": 5})
    assert decide(case(**SURE, own_question=True), quiet).tier == "cloud"
    assert decide(case(**SURE, crowd=6), quiet).tier == "cloud"
    assert decide(case(**SURE, crowd=5), quiet).tier == "edge"
    assert decide(case(**SURE), told({"audit_share": 0, "error_max": 0})).tier == "cloud"


def test_the_shadow_audit_draws_its_share_from_both_sides_the_same_ones_each_time() -> None:
    settings = told({"audit_share": 0.05})
    for side, inputs in (("sure", SURE), ("doubtful", DOUBTFUL)):
        found = [decide(case(f"{side}-{n}", **inputs), settings) for n in range(8000)]
        asked = [each for each in found if each.ask]
        assert 330 <= len(asked) <= 470  # 400 ± 3.6 standard deviations
        assert {(each.audit_of, each.audit_share, each.priority) for each in asked} == {(side, 0.05, "low")}
        assert found == [decide(case(f"{side}-{n}", **inputs), settings) for n in range(8000)]


@pytest.mark.parametrize("inputs", [SURE, DOUBTFUL, {"chance": 0.5}])
def test_a_rule_that_is_not_escalated_and_a_private_camera_are_not_audited_either(inputs: dict[str, Any]) -> None:
    everything = told({"audit_share": 1.0})
    for n in range(50):
        assert decide(case(f"a{n}", escalate=False, **inputs), everything).when == "never"
        assert decide(case(f"a{n}", privacy="never", **inputs), everything).when == "never"
        image_free = decide(case(f"a{n}", privacy="image_free", **inputs), everything)
        assert (image_free.tier, image_free.evidence) == ("cloud", "facts")


def test_a_second_detection_that_does_not_find_it_again_makes_a_sure_alert_a_question() -> None:
    quiet = told({"audit_share": 0})
    assert decide(case(**SURE, rechecked="rechecked"), quiet).tier == "edge"
    assert decide(case(**SURE, rechecked="unsure"), quiet).tier == "cloud"
    assert decide(case(**DOUBTFUL, rechecked="rechecked"), quiet).tier == "cloud"
    assert decide(case(**DOUBTFUL, rechecked="unsure"), quiet).tier == "cloud"


def test_workers_that_cannot_answer_in_time_flag_the_answer_and_hold_back_the_less_urgent() -> None:
    settings = told({"answer_s": 30})
    waits = decide(case(pool_wait_s=60.0), settings)
    assert (waits.when, waits.wait and waits.wait.why) == ("later", "pool")
    grave = decide(case(pool_wait_s=60.0, severity="alert"), settings)
    assert (grave.when, grave.flagged) == (
        "now", "the workers cannot answer in time: the appliance's own answer stands until they have",
    )  # fmt: skip
    assert waits.flagged == grave.flagged
    for known in ({"pool_wait_s": 20.0}, {"pool_wait_s": None}):  # in time; nobody announced anything
        assert (decide(case(**known), settings).when, decide(case(**known), settings).flagged) == ("now", "")


def test_a_price_above_the_owners_holds_back_the_less_urgent() -> None:
    settings = told(prices={"gpu_hour_max": 1.0})
    waits = decide(case(gpu_hour=1.5), settings)
    assert (waits.when, waits.wait and waits.wait.why) == ("later", "price")
    assert decide(case(gpu_hour=1.5, severity="alert"), settings).when == "now"
    assert decide(case(gpu_hour=0.5), settings).when == "now"


def test_a_lost_link_flags_the_edges_answer() -> None:
    decision = decide(case(link_up=False), told())
    assert decision.flagged == "the cloud cannot be reached: the appliance's own answer stands until it can"


# What is claimed of the sure ones


def test_too_few_known_ones_claim_nothing_and_enough_do() -> None:
    """At 0.05 and a confidence shared by seven thresholds it takes 97 without a false one."""
    for count, holds in ((96, False), (97, True)):
        claim = claim_sure(np.full(count, 0.99), np.ones(count, bool), 0.05)
        assert (claim.holds, claim.needed, claim.n) == (holds, 97, count)
    assert claim.error_high <= 0.05
    assert not claim_sure(np.full(97, 0.99), np.arange(97) > 0, 0.05).holds


def test_the_error_bound_is_that_of_clopper_and_pearson() -> None:
    assert error_bound(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59), abs=1e-6)
    assert error_bound(3, 100) == pytest.approx(0.0757, abs=1e-3)  # scipy.stats.beta.ppf(0.95, 4, 97)


@pytest.mark.parametrize("error_max", [0.05, 0.1])
def test_the_stated_bound_holds_for_what_is_to_come(error_max: float) -> None:
    """In 200 worlds whose true share of wrong ones lies around the limit the claim is broken in at most 5 %."""
    chance = np.random.default_rng(7)
    broken = held = 0
    for _ in range(200):
        sharpness, n = chance.uniform(0.5, 3.0), int(chance.integers(100, 800))
        chances = chance.beta(4, 1, n)
        real = chance.random(n) < 1 - (1 - chances) ** sharpness
        claim = claim_sure(chances, real, error_max)
        if not claim.holds:
            continue
        held += 1
        later = chance.beta(4, 1, 20_000)
        kept = later[later >= claim.chance_max]
        broken += float(((1 - kept) ** sharpness).mean()) > error_max
    assert held > 50
    assert broken <= 0.05 * 200


def test_a_camera_that_is_known_well_goes_by_its_own_errors_not_by_those_of_the_others() -> None:
    steady = TrackStability(score=0.9, looks=20, moved=2.0)

    def outcomes(camera: str, n: int, wrong: int) -> list[AlertOutcome]:
        return [
            AlertOutcome(id=f"{camera}{k}", camera=camera, label="person", stability=steady, real=k >= wrong)
            for k in range(n)
        ]

    taught = fit(outcomes("gate", 600, 0) + outcomes("yard", 200, 40))
    assert taught.sure("gate", "person").holds
    assert not taught.sure("yard", "person").holds
    assert taught.sure("never-seen", "person") == taught.labels["person"].sure


# How it learns


@dataclass(frozen=True, slots=True)
class Told:
    """One alert of the simulation, what was decided about it, and the truth."""

    decision: RouterDecision
    real: bool
    chance: float


def live(count: int, settings: config.EscalationConfig, *, seed: int, learn_every: int = 250) -> list[Told]:
    """An appliance from its first alert on: it learns from the answers to what it asked, and from nothing else."""
    chance, calibration, rows, found = random.Random(seed), UNTRAINED, list[OutcomeRow](), list[Told]()
    come: list[DecidedRow] = []
    router = settings.router
    for n in range(count):
        steady = chance.random() < 0.7
        seen = TrackStability(
            score=round(chance.uniform(0.75, 0.97) if steady else chance.uniform(0.4, 0.7), 3),
            spread=0.05 if steady else 0.2,
            looks=chance.choice([8, 16, 30]) if steady else chance.choice([2, 3, 4]),
            moved=round(chance.uniform(0.5, 2), 2) if steady else 0.0,
        )
        real = chance.random() < (0.99 if steady else 0.02)
        inputs = told_inputs(calibration, seen, router)
        decision = decide(replace(case(f"{seed}-{n}"), inputs=inputs), settings)
        come.append(DecidedRow("gate", inputs))
        found.append(Told(decision, real, inputs.calibrated.chance))
        if decision.ask:
            known = replace(inputs, audit_share=decision.audit_share, audit_of=decision.audit_of)
            rows.append(OutcomeRow(f"{seed}-{n}", "gate", known, real, reviewed=False))
        if n % learn_every == learn_every - 1:
            calibration = fit(outcomes_of(rows), router.recall_min, router.error_max, decided_of(come[-2000:]))
    return found


def told_inputs(calibration: Calibration, seen: TrackStability, router: config.RouterConfig) -> RouteInputs:
    known = calibration.chance("gate", "person", seen, router.error_max, router.cold_share)
    return RouteInputs(label="person", stability=seen, calibrated=known)


def share(found: Sequence[Told], answer: str) -> float:
    return sum(each.decision.tier == "edge" and each.decision.edge == answer for each in found) / len(found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_asks_about_all_at_first_and_keeps_most_at_the_edge_when_it_has_learnt(seed: int) -> None:
    settings = told({"recall_min": 0.95, "audit_share": 0.05})
    found = live(3000, settings, seed=seed)
    first, last = found[:250], found[-1500:]
    assert all(each.decision.ask for each in first)
    asked = sum(each.decision.ask for each in last) / len(last)
    assert asked < 0.25
    assert share(last, "sure") > 0.5  # both sides
    assert share(last, "doubtful") > 0.1
    sure = [each for each in last if each.decision.edge == "sure"]
    assert sum(not each.real for each in sure) / len(sure) <= settings.router.error_max
    real = [each for each in last if each.real]
    assert sum(each.decision.edge == "doubtful" for each in real) / len(real) <= 1 - settings.router.recall_min
    kept = [each for each in last if each.decision.edge in ("sure", "doubtful")]
    audited = sum(each.decision.ask for each in kept) / len(kept)
    assert 0.03 < audited < 0.07
    # What was learnt is not forgotten by learning from the audit alone.
    assert sum(each.decision.ask for each in found[-500:]) < 0.3 * 500


def test_while_it_learns_the_share_that_is_asked_about_falls_and_rises_again_with_errors() -> None:
    def claim(n: int, wrong: int = 0) -> float:
        return SureClaim(n=n, wrong=wrong, needed=97).learn_share(0.05, 0.5)

    assert [claim(n) for n in (0, 48, 97, 300)] == pytest.approx([1.0, 0.75, 0.5, 0.5], abs=0.01)
    assert claim(97, wrong=5) == 1.0
    assert SureClaim(n=300, needed=97, chance_max=0.97).learn_share(0.05, 0.5) == 1.0  # sure: nothing is to be learnt
    found = [decide(case(f"a{n}", chance=0.97, learn_share=0.5), told()) for n in range(2000)]
    asked = [each for each in found if each.ask]
    assert 900 <= len(asked) <= 1100
    assert {(each.priority, each.edge) for each in asked} == {("normal", "between")}
    assert all(decide(case(f"a{n}", chance=0.9, learn_share=0.5), told()).ask for n in range(200))
    assert SURE_MIN > 0.9


def test_a_decision_keeps_no_state() -> None:
    before = [repr(decide(case(f"a{n}", **SURE), told())) for n in range(20)]
    assert before == [repr(decide(case(f"a{n}", **SURE), told())) for n in range(20)]
    assert edge_answer(route_inputs(**SURE)) == "sure"


# What counts as a label, and what is written


@pytest.fixture
def box(tmp_path: Path) -> CoreHarness:
    return CoreHarness(tmp_path, site(), ManualClock(1_760_000_000.0))


def answer(box: CoreHarness, alert: str, engine: str, decision: str = "confirmed") -> None:
    row = box.escalated(alert)
    assert row is not None
    verdict = wire.Verdict(
        escalation=row.id, site=row.site, alert=alert, decision=decision, reason="So.", engine=engine, model="m",
        seconds=0.1, judged_t=box.clock.now(),
    )  # type: ignore[arg-type]  # fmt: skip
    assert box.alerts.apply_verdict(verdict, box.clock.now())


def test_a_detectors_second_look_in_the_cloud_teaches_nothing(box: CoreHarness) -> None:
    detected, refused, judged, reviewed = (box.walk() for _ in range(4))
    answer(box, detected, "redetect")
    answer(box, refused, "redetect", "rejected")
    answer(box, judged, "openai")
    answer(box, reviewed, "redetect")
    ReviewStore(box.db).review([reviewed], "false_alarm", box.clock.now())
    assert {(row.alert, row.real) for row in box.decisions.outcomes()} == {(judged, True), (reviewed, False)}


def test_the_record_says_who_answered_and_how_sure_the_edge_was(box: CoreHarness) -> None:
    alert = box.walk()
    with box.db.read() as connection:
        row = connection.execute("SELECT * FROM decision WHERE alert = ?", (alert,)).fetchone()
    assert (row["tier"], row["edge"], row["flagged"]) == ("cloud", "between", "")
    assert 0.5 <= row["certainty"] <= 1
