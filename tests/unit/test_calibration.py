"""From scores to probabilities, and how much of the real may be claimed to be kept."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from appliance.cli.calibrate_command import brier, calibration_report, ece
from appliance.router.calibration import (
    UNTRAINED,
    Calibration,
    GroupFit,
    SureClaim,
    error_bound,
    features,
    missed_max,
    recall_low,
)
from appliance.router.calibration_fit import AlertOutcome, claim_recall, fit, held_out
from appliance.types import TrackStability

STEADY = TrackStability(score=0.8, spread=0.05, looks=12, moved=1.0)
FLICKER = TrackStability(score=0.8, spread=0.15, looks=2, moved=0.0)


def world(
    count: int, *, seed: int = 1, camera: str = "gate", label: str = "person", lift: float = 0.0
) -> list[AlertOutcome]:
    """Alerts of a place where the score says too much, and where what moves is real."""
    chance, made = random.Random(seed), []
    for n in range(count):
        seen = TrackStability(
            score=round(chance.uniform(0.5, 0.95), 3),
            spread=round(chance.uniform(0.02, 0.2), 3),
            looks=chance.choice([2, 3, 5, 9, 17, 30]),
            moved=round(chance.uniform(0, 2), 3),
        )
        z = lift - 3.5 + math.log(seen.score / (1 - seen.score)) + 0.6 * math.log2(seen.looks) + seen.moved
        real = chance.random() < 1 / (1 + math.exp(-z))
        made.append(AlertOutcome(id=f"{camera}-{seed}-{n}", camera=camera, label=label, stability=seen, real=real))
    return made


def test_untaught_it_trusts_what_is_steady_more_than_what_flickers() -> None:
    steady, flicker = (UNTRAINED.chance("gate", "person", seen) for seen in (STEADY, FLICKER))
    assert steady.chance > 0.9
    assert flicker.chance < 0.7
    assert (steady.chance_n, steady.chance_min) == (0, 0.0)


def test_without_any_answer_it_stays_with_what_is_built_in() -> None:
    assert fit([]).chance("gate", "person", STEADY) == UNTRAINED.chance("gate", "person", STEADY)


def test_the_chance_comes_with_the_share_that_is_asked_about_while_nothing_is_claimed() -> None:
    few = fit(world(12))
    assert few.chance("gate", "person", STEADY).learn_share == 1.0
    share = few.chance("gate", "person", STEADY, error_max=1.0, cold_share=0.5).learn_share
    assert share == few.sure("gate", "person").learn_share(1.0, 0.5)


def test_it_learns_that_the_score_says_too_much() -> None:
    outcomes = world(1500)
    scores = np.array([each.stability.score for each in outcomes])
    real = np.array([float(each.real) for each in outcomes])
    weight = np.ones(len(outcomes))
    honest = held_out(outcomes)
    assert brier(honest, real, weight) < 0.8 * brier(scores, real, weight)
    assert ece(honest, real, weight) < 0.05 < ece(scores, real, weight)


def test_a_few_answers_move_it_a_little_and_many_a_lot() -> None:
    def nonsense(count: int) -> list[AlertOutcome]:
        return [
            AlertOutcome(id=f"x{n}", camera="gate", label="person", stability=STEADY, real=False) for n in range(count)
        ]

    chances = [fit(nonsense(count)).probability("gate", "person", STEADY) for count in (0, 1, 5, 50)]
    assert chances == sorted(chances, reverse=True)
    assert chances[1] > 0.5
    assert chances[3] < 0.15


def test_a_camera_with_few_answers_follows_its_label_and_one_with_many_goes_its_own_way() -> None:
    rest = world(600)
    few, many = (rest + world(count, seed=2, camera="yard", lift=-4.0) for count in (2, 400))
    label = fit(rest).probability("gate", "person", STEADY)
    new, known = (fit(each).chance("yard", "person", STEADY) for each in (few, many))
    assert abs(new.chance - label) < 0.1
    assert known.chance < label - 0.3
    assert (new.chance_n, known.chance_n) == (2, 400)
    assert fit(rest).probability("never-seen", "person", STEADY) == pytest.approx(label, abs=0.05)


def test_a_label_never_seen_follows_all_the_others() -> None:
    taught = fit(world(600, lift=-3.0))
    assert taught.probability("gate", "dog", STEADY) < UNTRAINED.probability("gate", "dog", STEADY)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 60), st.booleans()), max_size=40), st.integers(1, 60))
def test_a_higher_score_or_more_looks_never_make_it_less_likely(
    told: list[tuple[float, int, bool]], looks: int
) -> None:
    """Whatever it is told, also by answers that say the opposite."""
    outcomes = [
        AlertOutcome(
            id=str(n), camera="gate", label="person", stability=TrackStability(score=score, looks=many), real=real
        )
        for n, (score, many, real) in enumerate(told)
    ]
    taught = fit(outcomes)
    scores = [taught.probability("gate", "person", TrackStability(score=s / 20, looks=looks)) for s in range(21)]
    seen = [taught.probability("gate", "person", TrackStability(score=0.6, looks=n)) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert scores == sorted(scores)
    assert seen == sorted(seen)
    assert all(0 < p < 1 for p in scores + seen)


def test_the_same_answers_teach_the_same_in_any_order() -> None:
    outcomes = world(300)
    shuffled = outcomes[:]
    random.Random(3).shuffle(shuffled)
    assert fit(outcomes).to_json() == fit(outcomes).to_json()
    one, other = (fit(each).chance("gate", "person", FLICKER) for each in (outcomes, shuffled))
    assert one.chance == pytest.approx(other.chance, abs=1e-6)


def test_what_is_written_holds_all_of_it() -> None:
    taught = fit(world(200))
    read = TypeAdapter(Calibration).validate_json(taught.to_json())
    assert read == taught
    assert (read.version, read.everything.n, read.cameras["gate/person"].n) == (1, 200, 200)


def test_too_few_real_ones_claim_nothing() -> None:
    """58 without a miss are not enough to be sure of 0.95; 59 are (0.95^59 < 0.05)."""
    for count, sure in ((58, False), (59, True)):
        chances = np.linspace(0.3, 0.9, count)
        claim = claim_recall(chances, np.ones(count, bool), np.ones(count), 0.95)
        assert (claim.chance_min > 0) == sure
        assert claim.real == count
    assert claim.chance_min == pytest.approx(0.3)
    assert claim.recall_low >= 0.95


def test_no_real_one_claims_nothing() -> None:
    assert claim_recall(np.zeros(3), np.zeros(3, bool), np.ones(3), 0.95).chance_min == 0


@pytest.mark.parametrize(("kept", "n", "low"), [(59, 59, 0.9505), (95, 100, 0.8977), (0, 10, 0.0), (1, 1, 0.05)])
def test_the_bound_is_that_of_clopper_and_pearson(kept: int, n: int, low: float) -> None:
    assert recall_low(kept, n) == pytest.approx(low, abs=5e-4)


# Sampling plans for a recall of 95 % and of 90 %, known with 95 % confidence, as quality control prints them.
PLANS = {0.95: (59, 93, 124, 153, 181, 208), 0.90: (29, 46, 61, 76, 89, 103)}


@pytest.mark.parametrize("recall", PLANS)
def test_so_many_misses_are_allowed_as_the_tables_of_quality_control_allow(recall: float) -> None:
    for missed, n in enumerate(PLANS[recall]):
        assert missed_max(n, recall) == missed
        assert missed_max(n - 1, recall) == (missed - 1 if missed else None)
    assert missed_max(0, recall) is None


@pytest.mark.parametrize(("wrong", "n", "high"), [(0, 59, 0.0495), (1, 93, 0.0500), (5, 100, 0.1023), (10, 10, 1.0)])
def test_the_bound_of_an_error_is_that_of_clopper_and_pearson(wrong: int, n: int, high: float) -> None:
    assert error_bound(wrong, n) == pytest.approx(high, abs=2e-4)


def test_the_recall_that_is_claimed_is_kept_by_those_to_come() -> None:
    """Of 200 worlds: learnt on one half, held against the other. The claim may fail in 5 % of them."""
    draws = np.random.default_rng(5)
    failed = 0
    for _ in range(200):
        learnt, to_come = draws.beta(4, 2, 300), draws.beta(4, 2, 20_000)
        claim = claim_recall(learnt, np.ones(300, bool), np.ones(300), 0.95)
        failed += float((to_come >= claim.chance_min).mean()) < 0.95
    assert failed <= 20  # 10 expected, 3.2 standard deviations


def test_an_audited_one_stands_for_those_that_were_not_asked_about() -> None:
    """Real ones among what is left out must lower the recall that is claimed, each with its weight."""
    sure = np.linspace(0.5, 0.99, 400)
    plain = claim_recall(sure, np.ones(400, bool), np.ones(400), 0.95)
    chances = np.concatenate([[0.02] * 3, sure])
    weighed = claim_recall(chances, np.ones(403, bool), np.array([50.0] * 3 + [1.0] * 400), 0.95)
    assert plain.chance_min > 0.5
    assert weighed.chance_min <= 0.02
    assert weighed.effective < 403 / 5


@pytest.mark.parametrize(("audited", "claims"), [(80, False), (100, False), (150, True)])
def test_an_audit_claims_no_more_than_all_its_thresholds_together_can(audited: int, claims: bool) -> None:
    """Half of all alerts lie below; of some of those that were audited none was real.

    One threshold that was fixed beforehand would be sure of 95 % after 80. The best of five needs 99 % at each, and so
    more: of 100 without a real one up to 1 - 0.005^(1/100) = 5.2 % may still be, which are 5.6 % of all the real ones.
    """
    chances = np.concatenate([np.full(audited, 0.01), np.full(400, 0.9)])
    real = np.concatenate([np.zeros(audited, bool), np.ones(400, bool)])
    weight = np.concatenate([np.full(audited, 10.0), np.ones(400)])
    come = np.concatenate([np.full(2000, 0.01), np.full(2000, 0.9)])
    claim = claim_recall(chances, real, weight, 0.95, come)
    assert (claim.chance_min > 0) == claims
    assert (claim.recall_low >= 0.95) == claims


def test_a_real_one_that_was_left_out_counts_for_as_many_as_it_stands_for() -> None:
    chances = np.concatenate([np.full(600, 0.01), np.full(400, 0.9)])
    real = np.concatenate([[True], np.zeros(599, bool), np.ones(400, bool)])
    weight = np.concatenate([np.full(600, 10.0), np.ones(400)])
    claim = claim_recall(chances, real, weight, 0.95, np.concatenate([np.full(2000, 0.01), np.full(2000, 0.9)]))
    assert claim.chance_min > 0
    assert claim.recall == pytest.approx(400 / 410, abs=1e-4), "ten of 410 real ones are missed"
    assert (claim.real, claim.effective) == (401, pytest.approx(6400**2 / (600 * 100 + 400), abs=0.1))


def test_what_was_seen_once_and_nothing_more_is_known_of_did_not_move() -> None:
    once = TrackStability(score=0.5)
    assert features(once) == (1.0, 0.0, 0.0, 0.0, 0.0)
    assert features(TrackStability(score=0.8, spread=0.1, looks=8, moved=1.5)) == pytest.approx(
        (1.0, math.log(4), 3.0, 1.5, 0.1)
    )


def sure_of(n: int, chance_max: float = 1.0) -> GroupFit:
    return GroupFit(n=n, sure=SureClaim(chance_max=chance_max, n=n, needed=97))


@pytest.mark.parametrize(
    ("camera", "label", "everything", "chance_max"),
    [
        (sure_of(96), sure_of(97, 0.8), sure_of(500, 0.7), 0.8),  # its own are too few: its label's
        (sure_of(96), sure_of(96), sure_of(500, 0.7), 0.7),  # those too: all
        (sure_of(97, 0.9), sure_of(400, 0.8), sure_of(500, 0.7), 0.9),
        (sure_of(97), sure_of(400, 0.8), sure_of(500, 0.7), 1.0),  # enough are known to see that it is never sure
        (sure_of(0), sure_of(0), sure_of(3), 1.0),
    ],
)
def test_of_what_it_is_sure_the_nearest_group_says_of_which_enough_is_known(
    camera: GroupFit, label: GroupFit, everything: GroupFit, chance_max: float
) -> None:
    taught = Calibration(everything=everything, labels={"person": label}, cameras={"gate/person": camera})
    assert taught.sure("gate", "person").chance_max == chance_max
    assert taught.chance("gate", "person", STEADY).chance_max == chance_max
    elsewhere = taught.sure("yard", "person")
    assert elsewhere == (label.sure if label.n >= 97 else everything.sure)
    assert taught.sure("gate", "dog") == everything.sure


def test_the_report_says_before_and_after_with_intervals() -> None:
    found = calibration_report([*world(400), *world(100, seed=7, camera="yard", label="car")], 0.9)
    assert [(each.camera, each.label, each.n) for each in found.groups] == [
        ("", "", 500),
        ("gate", "person", 400),
        ("yard", "car", 100),
    ]
    whole = found.groups[0]
    for figure in (whole.brier_before, whole.brier_after, whole.ece_before, whole.ece_after):
        assert figure.low <= figure.value <= figure.high + 0.02
    assert whole.brier_after.value < whole.brier_before.value
    assert calibration_report([], 0.9).groups == ()


def test_what_is_claimed_holds_on_alerts_that_were_not_learnt_from() -> None:
    learnt, later = world(2000), world(4000, seed=9)
    taught = fit(learnt, 0.95)
    claim = taught.claim("gate", "person")
    assert claim.chance_min > 0
    assert kept_of(taught, later, claim.chance_min) > 0.94
    assert left_out(taught, later, claim.chance_min) > 0.1


def kept_of(taught: Calibration, outcomes: Sequence[AlertOutcome], chance_min: float) -> float:
    real = [taught.probability(each.camera, each.label, each.stability) for each in outcomes if each.real]
    return sum(p >= chance_min for p in real) / len(real)


def left_out(taught: Calibration, outcomes: Sequence[AlertOutcome], chance_min: float) -> float:
    chances = [taught.probability(each.camera, each.label, each.stability) for each in outcomes]
    return sum(p < chance_min for p in chances) / len(chances)


def test_weights_do_not_make_answers_out_of_nothing() -> None:
    """What stands for fifty was still seen once: the chance moves no further than by as many plain answers."""
    one = [AlertOutcome(id=f"{n}", camera="gate", label="person", stability=STEADY, real=False) for n in range(5)]
    heavy = [replace(each, weight=50.0) for each in one]
    chances = [fit(each).probability("gate", "person", STEADY) for each in (heavy, one)]
    assert chances[0] == pytest.approx(chances[1])
