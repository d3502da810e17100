"""How long somebody has been there."""

from __future__ import annotations

import pytest

from appliance.rules.engine import RulesEngine
from appliance.rules.zones_and_lines import DwellTimer
from tests.support.sample_tracks import camera, fired, inferences, look, person

LOITER = {"name": "loiter", "kind": "dwell", "zone": "yard", "seconds": 5}
IN = (0.6, 0.6)
OUT = (0.2, 0.6)


def loiter(**more: object) -> RulesEngine:
    return RulesEngine("gate", camera({**LOITER, **more}))


def test_it_fires_after_so_many_seconds_not_frames() -> None:
    assert fired(loiter().feed, inferences([IN] * 60, every_s=0.2)) == [("loiter", 5.0)]
    assert fired(loiter().feed, inferences([IN] * 60, every_s=1.0)) == [("loiter", 5.0)]


def test_it_fires_once_per_stay_and_again_in_the_next() -> None:
    once = [IN] * 60
    assert [t for _, t in fired(loiter().feed, inferences([*once, *[OUT] * 5, *once]))] == [5.0, 18.0]


def test_a_person_behind_a_pillar_for_three_seconds_is_still_there() -> None:
    assert fired(loiter().feed, inferences([*[IN] * 15, *[None] * 15, *[IN] * 15])) == [("loiter", 6.0)]


def test_a_person_lost_for_longer_begins_a_new_stay() -> None:
    frames = inferences([*[IN] * 15, *[None] * 25, *[IN] * 40])
    assert [t for _, t in fired(loiter().feed, frames)] == [13.0]


def test_a_passer_by_does_not_fire() -> None:
    assert fired(loiter().feed, inferences([OUT, *[IN] * 20, OUT, OUT, *[IN] * 20, OUT, OUT])) == []


def test_time_without_an_examined_frame_is_no_proof_of_presence() -> None:
    engine = RulesEngine("gate", camera(LOITER, detect={"heartbeat_s": 2}))
    frames = [look(0.0, person(IN)), look(0.2, person(IN)), look(600.0, person(IN))]
    assert fired(engine.feed, frames) == []
    assert fired(engine.feed, [look(602.0, person(IN))]) == [("loiter", 602.0)]


def test_what_stood_hidden_and_reappears_unmoved_is_not_reported_again() -> None:
    hidden = [None] * 100
    assert fired(loiter().feed, inferences([*[IN] * 40, *hidden, *[IN] * 60])) == [("loiter", 5.0)]


def test_who_reappears_elsewhere_in_the_zone_begins_a_new_stay() -> None:
    aside = (IN[0] + 0.1, IN[1])
    found = fired(loiter().feed, inferences([*[IN] * 40, *[None] * 100, *[aside] * 40]))
    assert [rule for rule, _ in found] == ["loiter", "loiter"]


def test_a_camera_clock_set_back_does_not_undo_a_stay() -> None:
    frames = [*inferences([IN] * 15, t=1000.0), *inferences([IN] * 20, t=400.0)]
    assert len(fired(loiter().feed, frames)) == 1


def test_a_rule_that_becomes_armed_counts_from_then() -> None:
    armed_from = 10.0
    schedule = {"hours": ["22:00-06:00"]}
    engine = RulesEngine(
        "gate", camera({**LOITER, "schedule": schedule}), local_time=lambda t: (0, 22 * 60 if t >= armed_from else 600)
    )
    assert fired(engine.feed, inferences([IN] * 100)) == [("loiter", 15.0)]


@pytest.mark.parametrize(("gap", "seconds"), [(2.0, 2.0), (3.0, 3.0), (30.0, 3.0)])
def test_an_unwatched_gap_counts_for_at_most_the_longest_loss(gap: float, seconds: float) -> None:
    stay = DwellTimer(began=10.0, seen=10.0)
    stay.update(10.0 + gap, gap_max_s=3.0)
    assert stay.seconds == pytest.approx(seconds)
