"""The figures of a scenario are right on cases done by hand, and say how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest

from appliance.lab.scenario.event_metrics import NO_ESTIMATE, estimate_median, estimate_share, event_figures
from appliance.lab.scenario.tracking_metrics import LabelledBoxes, hota_figures


def labelled(*rows: tuple[float, float]) -> LabelledBoxes:
    """Unit boxes at x with an identity each."""
    boxes = np.array([[x, 0, x + 1, 1] for x, _ in rows], float).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array([value for _, value in rows], float))


def test_hota_of_perfect_tracks_is_one() -> None:
    truth = [labelled((0, 1), (5, 2))] * 3
    assert hota_figures(truth, truth) == pytest.approx(hota_figures(truth, truth))
    assert hota_figures(truth, truth).hota == pytest.approx(1)


def test_hota_of_a_track_that_breaks_in_the_middle() -> None:
    """All boxes are found (DetA 1), each half track shares 2 of 4 looks with the person: AssA 1/2, HOTA sqrt(1/2)."""
    found = hota_figures(
        [labelled((0, 10)), labelled((0, 10)), labelled((0, 11)), labelled((0, 11))], [labelled((0, 1))] * 4
    )
    assert (found.det_a, found.ass_a, found.hota) == pytest.approx((1, 0.5, sqrt(0.5)))


def test_hota_of_misses_and_false_boxes() -> None:
    """2 of 4 true boxes, and 2 false ones: DetA 2/6; the track shares 2 looks of 4 with the person: AssA 1/2."""
    answers = [labelled((0, 10)), labelled((0, 10)), labelled((9, 12)), labelled((9, 12))]
    found = hota_figures(answers, [labelled((0, 1))] * 4)
    assert (found.det_a, found.ass_a) == pytest.approx((2 / 6, 2 / 4))


def test_hota_counts_a_loose_box_only_at_the_overlaps_it_reaches() -> None:
    """IoU 0.8/1.2 = 2/3: right at 0.05 .. 0.65, that is 13 of 19 overlaps."""
    found = hota_figures([labelled((0.2, 10))] * 2, [labelled((0, 1))] * 2)
    assert (found.hota, found.det_a) == pytest.approx((13 / 19, 13 / 19))


@pytest.mark.parametrize("shape", [((3, 1), (0, 4)), ((0, 4), (3, 1))])
def test_hota_keeps_identities_together_over_the_whole_film(shape: Sequence[tuple[int, int]]) -> None:
    """More rows than columns and the other way round; an extra box changes DetA, never who belongs to whom."""
    truth = [labelled((0, 1)), labelled((0, 1), (0.1, 2))]
    found = [labelled((0, 7)), labelled((0.1, 7))]
    assert 0 < hota_figures(found, truth).hota < 1
    assert 0 < hota_figures(truth, found).hota < 1


def test_hota_leaves_a_box_with_the_track_that_follows_the_person_elsewhere() -> None:
    """In the last frame a stray box lies nearer (IoU 2/3) than the person's own track (IoU 7/13 = 0.54).

    Paired with its own track: up to 0.50 (10 of 19 overlaps) all 4 looks agree, AssA 1; above, 3 of 5: AssA 3/5.
    """
    found = [labelled((0, 7))] * 3 + [labelled((0.3, 7), (0.2, 8))]
    assert hota_figures(found, [labelled((0, 1))] * 4).ass_a == pytest.approx((10 * 1 + 9 * 3 / 5) / 19)


def test_hota_of_nothing_is_nothing() -> None:
    assert hota_figures([labelled()], [labelled((0, 1))]).hota == 0
    assert hota_figures([labelled((0, 1))], [labelled()]).hota == 0


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
