"""The figures of events are right on cases done by hand, and come with honest intervals."""

from __future__ import annotations

import pytest

from appliance.scenario.metrics import NO_ESTIMATE, estimate_median, estimate_share, event_figures


def test_a_share_comes_with_an_interval_that_narrows_with_more_events() -> None:
    few, many = estimate_share([True, True, True, False]), estimate_share([True, True, True, False] * 50)
    assert few.value == many.value == 0.75
    assert few.low is not None
    assert few.high is not None
    assert many.low is not None
    assert many.high is not None
    assert few.low < many.low < 0.75 < many.high <= few.high
    assert (many.low, many.high) == pytest.approx((0.69, 0.81), abs=0.015)


def test_all_right_of_few_does_not_claim_certainty() -> None:
    """The bootstrap would say 1 to 1; five out of five only prove 48 % (Clopper-Pearson)."""
    assert estimate_share([True] * 5).low == pytest.approx(0.478, abs=0.001)
    assert estimate_share([False] * 5).high == pytest.approx(0.522, abs=0.001)
    assert estimate_share([]) == NO_ESTIMATE


def test_a_median_of_one_has_no_interval() -> None:
    assert estimate_median([0.4]).low is None
    found = estimate_median([0.2, 0.4, 0.4, 0.6, 5.0])
    assert (found.value, found.low) == (0.4, 0.2)


def test_the_same_events_give_the_same_intervals() -> None:
    figures = [event_figures([True, False, True], [True], [0.1, 0.5], alerts=3, footage_s=1800) for _ in range(2)]
    assert figures[0] == figures[1]
    assert figures[0].alerts_per_hour == 6
    assert event_figures([], [], [], alerts=0, footage_s=0).alerts_per_hour is None
