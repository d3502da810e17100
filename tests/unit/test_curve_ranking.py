"""The arithmetic of the router's curves, on cases done by hand: 1000 bytes of one camera, a few things to send."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from appliance.lab.curve_ranking import (
    Bootstrap,
    Candidate,
    LabelledIncident,
    Lead,
    all_or_nothing,
    leads,
    ranked,
    ranking,
    recall_at,
    smallest_share,
    staircase,
)
from appliance.lab.curve_strategies import SimulatedVerdicts, ranking_without, spread

WHOLE = np.array([1000.0])


def incident(start: float, end: float, footage: int = 0) -> LabelledIncident:
    return LabelledIncident(footage=footage, start=start, end=end, t=start)


def thing(
    value: float, *moments: float, size: int = 100, footage: int = 0, t: float | None = None, alert: str = ""
) -> Candidate:
    at = moments[0] if t is None else t
    return Candidate(footage=footage, t=at, value=value, bytes=size, moments=moments, alert=alert)


TWO = (incident(9, 15), incident(29, 35))


def costs(*candidates: Candidate, incidents: Sequence[LabelledIncident] = TWO) -> list[float]:
    return list(ranking(ranked(candidates), incidents).costs(WHOLE))


def test_each_incident_is_found_at_the_first_thing_that_shows_it() -> None:
    """Sent: the false one (100 bytes), then the second incident's (250), then the first's (50)."""
    assert costs(thing(0.9, 20), thing(0.5, 10, size=50), thing(0.7, 30, size=250)) == [0.4, 0.35]


def test_an_incident_that_is_shown_twice_is_found_once() -> None:
    found = ranking(ranked([thing(0.9, 10), thing(0.8, 11), thing(0.7, 12)]), TWO).costs(WHOLE)
    assert list(found) == [0.1, inf]
    assert recall_at(found, 1.0) == 0.5


def test_one_thing_may_show_two_incidents_whose_windows_overlap() -> None:
    assert costs(thing(0.9, 14), incidents=(incident(9, 15), incident(13, 19))) == [0.1, 0.1]


def test_any_image_of_an_escalation_counts_and_the_window_is_closed_at_both_ends() -> None:
    assert costs(thing(0.9, 8.9, 9.0)) == [0.1, inf]
    assert costs(thing(0.9, 15.0, 15.1)) == [0.1, inf]
    assert costs(thing(0.9, 8.9, 15.1)) == [inf, inf]


def test_another_camera_at_the_same_time_does_not_count() -> None:
    assert costs(thing(0.9, 10, footage=0), incidents=(incident(9, 15, footage=1),)) == [inf]


def test_of_equal_values_the_earlier_is_sent_first() -> None:
    assert costs(thing(0.5, 30), thing(0.5, 10)) == [0.1, 0.2]
    assert [each.t for each in ranked([thing(0.5, 30), thing(0.5, 10), thing(0.6, 99)])] == [99, 10, 30]


def test_what_does_not_fit_the_budget_ends_the_sending() -> None:
    """The second thing weighs 900: with a budget of 20 % the cheap third one is not sent in its place."""
    found = ranking(ranked([thing(0.9, 50), thing(0.8, 10, size=900), thing(0.7, 30, size=1)]), TWO).costs(WHOLE)
    assert [recall_at(found, share) for share in (0.2, 0.999, 1.0, 1.001)] == [0.0, 0.0, 0.5, 1.0]


def test_whoever_sends_all_or_nothing_has_no_recall_below_all() -> None:
    whole = all_or_nothing(ranking([thing(0, t) for t in (5, 10, 20)], TWO))
    assert list(whole.costs(WHOLE)) == [0.3, inf]


def test_a_strategy_with_nothing_to_send_finds_nothing() -> None:
    found = ranking([], TWO).costs(WHOLE)
    assert (recall_at(found, 1.0), smallest_share(found, 0.95), staircase(found)) == (0.0, inf, [])
    assert list(all_or_nothing(ranking([], TWO)).costs(WHOLE)) == [inf, inf]


def test_two_cameras_share_one_budget() -> None:
    """1000 and 3000 bytes: 200 bytes are 5 %."""
    order = ranked([thing(0.9, 10), thing(0.8, 10, footage=1)])
    found = ranking(order, (incident(9, 15), incident(9, 15, footage=1)))
    assert list(found.costs(np.array([1000.0, 3000.0]))) == [0.025, 0.05]
    # The second clip drawn twice: it counts, and is paid for, twice.
    assert list(found.costs(np.array([1000.0, 3000.0]), np.array([0.0, 2.0]))) == [0.0, round(200 / 6000, 12)]


def test_the_staircase_and_the_smallest_share() -> None:
    found = np.array([0.1, 0.3, 0.3, inf])
    assert staircase(found) == [(0.1, 0.25), (0.3, 0.75)]
    assert [smallest_share(found, recall) for recall in (0.25, 0.5, 0.75, 0.95)] == [0.1, 0.3, 0.3, inf]


def test_of_many_orders_the_curve_is_their_mean() -> None:
    two = np.array([[0.1, 0.2], [0.3, inf]])
    assert [recall_at(two, share) for share in (0.1, 0.2, 0.3)] == [0.25, 0.5, 0.75]
    assert smallest_share(two, 0.75) == 0.3


def test_which_strategy_is_ahead_where() -> None:
    """The first has its incidents at 10 and 40 %, the other both at 20 %."""
    one, other = np.array([0.1, 0.4]), np.array([0.2, 0.2])
    assert leads(one, other, 1.0) == (Lead(0.1, 0.2, 0.5),)
    assert leads(other, one, 1.0) == (Lead(0.2, 0.4, 0.5),)


def test_a_strategy_that_never_finds_it_stays_behind_to_the_end() -> None:
    assert leads(np.array([0.1, 0.2]), np.array([0.1, inf]), 1.0) == (Lead(0.2, 1.0, 0.5, closed=True),)
    assert leads(np.array([0.1, inf]), np.array([0.1, 0.2]), 1.0) == ()
    assert leads(np.array([1.0]), np.array([inf]), 1.0) == (Lead(1.0, 1.0, 1.0, closed=True),)


def test_a_lead_holds_its_beginning_and_the_last_of_all_its_end_too() -> None:
    assert [Lead(0.1, 0.2, 0.5).holds(share) for share in (0.09, 0.1, 0.19, 0.2)] == [False, True, True, False]
    assert Lead(0.1, 1.0, 0.5, closed=True).holds(1.0)
    # The other catches up at 100 % to the byte.
    assert leads(np.array([0.5]), np.array([1.0]), 1.0) == (Lead(0.5, 1.0, 1.0),)


def test_a_lead_that_grows_is_one_lead() -> None:
    assert leads(np.array([0.1, 0.2]), np.array([0.5, 0.5]), 1.0) == (Lead(0.1, 0.5, 1.0),)


def test_frames_are_sent_apart_first_and_then_closer() -> None:
    """By value alone it would be 10, 11, 12, 30; merge_s is 8."""
    frames = [thing(0.9, 10), thing(0.8, 11), thing(0.7, 12), thing(0.1, 30)]
    assert [each.t for each in spread(frames, [8.0])] == [10, 30, 12, 11]


def test_spacing_is_kept_for_each_camera_by_itself() -> None:
    frames = [thing(0.9, 10), thing(0.8, 11, footage=1), thing(0.7, 12)]
    assert [(each.footage, each.t) for each in spread(frames, [8.0, 8.0])] == [(0, 10), (1, 11), (0, 12)]


def test_the_stand_in_rejects_what_shows_nothing_and_is_wrong_as_often_as_it_should() -> None:
    order = [thing(0.5, 10, alert="real"), thing(0.5, 20, alert="false"), thing(0.5, 21, alert="unasked")]
    asked = frozenset({(0, "real"), (0, "false")})
    assert SimulatedVerdicts(0.0, 3).rejected(order, TWO, asked) == [{(0, "false")}] * 3
    assert SimulatedVerdicts(1.0, 1).rejected(order, TWO, asked) == [{(0, "real")}]
    some = SimulatedVerdicts(0.05, 400).rejected(order, TWO, asked)
    assert some == SimulatedVerdicts(0.05, 400).rejected(order, TWO, asked)
    assert 8 <= sum((0, "real") in each for each in some) <= 34  # 400 x 0.05 = 20, four deviations either way
    assert 366 <= sum((0, "false") in each for each in some) <= 392


def test_a_true_alert_that_was_rejected_is_not_found() -> None:
    order = [thing(0.9, 10, alert="a"), thing(0.5, 30, alert="b")]
    assert list(ranking_without(order, frozenset(), TWO).costs(WHOLE)) == [0.001, 0.002]
    assert list(ranking_without(order, frozenset({(0, "a")}), TWO).costs(WHOLE)) == [inf, 0.001]


def test_where_all_were_found_the_interval_is_the_exact_bound() -> None:
    found = ranking(ranked([thing(0.9, 10), thing(0.8, 30)]), TWO)
    (none, every) = Bootstrap(WHOLE, np.array([0, 0]), 50).sample([found]).recalls([0.05, 0.5])
    assert (none.value, none.low) == (0.0, 0.0)
    assert (every.value, every.high, every.of) == (1.0, 1.0, 2)
    assert every.low == pytest.approx(0.025**0.5)


def test_an_interval_over_clips_is_wider_than_one_over_incidents_of_one_clip() -> None:
    """Ten clips; in half of them all four incidents are found, in the others none."""
    places = np.repeat(np.arange(10), 4)
    incidents = [incident(10 * n, 10 * n + 5, footage=clip) for clip in range(10) for n in range(4)]
    order = [thing(1, 10 * n, footage=clip) for clip in range(0, 10, 2) for n in range(4)]
    (clips,) = Bootstrap(np.full(10, 1000.0), places, 500).sample([ranking(order, incidents)]).recalls([1.0])
    assert clips.value == 0.5
    assert clips.low is not None
    assert clips.high is not None
    assert clips.high - clips.low > 0.5  # of 40 strangers it would be 0.31


def test_the_interval_of_the_smallest_share_is_open_where_a_draw_never_reaches_the_goal() -> None:
    order = [thing(1, 10, footage=0)]
    found = ranking(order, (incident(9, 15, footage=0), incident(9, 15, footage=1)))
    half = Bootstrap(np.array([1000.0, 1000.0]), np.array([0, 1]), 200).sample([found]).smallest(0.5)
    assert half.value == 0.05
    assert half.high is None
