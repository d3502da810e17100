"""Cost against accuracy of the cascade, on alerts made by hand."""

from __future__ import annotations

import pytest

from appliance.lab.curve_measurement import JudgedAlert, cascade_of
from appliance.lab.curve_report import cascade_sentence, cascade_table


def judged(chance: float, *incidents: int, size: int = 100, claims: tuple[float, float] = (0.0, 1.0)) -> JudgedAlert:
    return JudgedAlert(
        chance=chance, chance_min=claims[0], chance_max=claims[1], incidents=frozenset(incidents), bytes=size,
        gpu_s=1.0, money=0.01,
    )  # fmt: skip


TEN = [
    *(judged(0.9 + n / 100, n) for n in range(6)),  # right, and known to be
    judged(0.05), judged(0.1),  # false, and known to be
    judged(0.65), judged(0.4, 7),  # the appliance is wrong about these
]  # fmt: skip


def test_the_surest_stay_first_and_asking_costs_what_is_left() -> None:
    curve = cascade_of(TEN, judge_error=0.0)
    first, last = curve.points[0], curve.points[-1]
    assert (curve.alerts, curve.right) == (10, 7)
    assert (first.kept, first.asked, first.bytes, first.gpu_s, first.accuracy, first.lost) == (0, 10, 1000, 10, 1.0, 0)
    assert (last.kept, last.bytes, last.accuracy, last.lost) == (1.0, 0, 0.8, 1)
    most, as_right = curve.most, curve.as_right
    assert (as_right.kept, as_right.sure, as_right.doubtful, as_right.bytes) == (0.8, 6, 2, 200)
    assert (most.kept, most.lost, most.accuracy) == (0.9, 0, 0.9)  # the doubtful incident is asked about last
    assert [each.bytes for each in curve.points] == sorted((each.bytes for each in curve.points), reverse=True)
    assert curve.at(0.75).kept == 0.8


def test_an_incident_is_lost_only_when_all_its_alerts_are_held_for_false() -> None:
    assert cascade_of([judged(0.1, 1), judged(0.2, 1)], 0.0).points[-1].lost == 1
    assert cascade_of([judged(0.1, 1), judged(0.9, 1)], 0.0).points[-1].lost == 0
    assert cascade_of([judged(0.1, 1), judged(0.2, 1)], 0.0).points[1].lost == 0  # the other one is asked about


def test_a_loss_weighs_more_than_any_judge_is_wrong() -> None:
    curve = cascade_of(TEN, judge_error=0.5)
    assert curve.points[-1].accuracy > curve.points[0].accuracy
    assert (curve.as_right.lost, curve.as_right.kept) == (0, 0.9)


def test_what_the_claims_allow_is_told_beside_it() -> None:
    assert cascade_of(TEN, 0.05).claimed.kept == 0
    claims = (0.2, 0.9)
    curve = cascade_of([judged(each.chance, *each.incidents, claims=claims) for each in TEN], 0.05)
    assert (curve.claimed.kept, curve.claimed.sure, curve.claimed.doubtful) == (0.8, 6, 2)


def test_the_words_say_the_share_the_goal_and_whether_it_was_met() -> None:
    curve = cascade_of(TEN, judge_error=0.05)
    assert cascade_sentence(curve).startswith(
        "cascade: 90 % of 10 alerts (7 of them right) stay at the edge without an incident lost (goal: 85 %, met; "
        "that few prove only that under 28 % of such alerts are lost), 90 % of the bytes of asking saved; "
    )
    assert "0.95 where all are asked about and the judge is wrong in 5 %" in cascade_sentence(curve)
    assert "no more wrong answers than that up to 80 %" in cascade_sentence(curve)
    doubtful = cascade_of([judged(0.05 + n / 100, n) for n in range(4)], judge_error=0.05)
    assert "0 % of 4 alerts" in cascade_sentence(doubtful)
    assert "missed" in cascade_sentence(doubtful)
    two = cascade_of([judged(0.9, 1), judged(0.95, 2)], judge_error=0.05)
    assert "(goal: 85 %, met; that few prove only that under 78 % of such alerts are lost)" in cascade_sentence(two)
    rows = {row[0]: row for row in cascade_table(curve).rows}
    assert rows["and as right as asking"][1:8] == ("80 %", "6", "2", "2", "200 B", "20 %", "2.0")
    assert float(rows["0 % or more"][9]) == pytest.approx(0.95)
