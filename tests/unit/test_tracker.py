"""One tracker per camera: who keeps a number, who gets a new one, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from appliance.track.tracker import Tracker
from appliance.types import Detections, TrackedObject

LABELS = ("person", "bicycle", "car", "truck", "dog")
Seen = tuple[float, float, float, str]


def look(*seen: Seen) -> Detections:
    """Objects as (centre x, centre y, score, label); persons 0.03 x 0.12, others 0.12 x 0.10."""
    boxes = []
    for x, y, _, label in seen:
        w, h = (0.03, 0.12) if label == "person" else (0.12, 0.10)
        boxes.append([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([score for _, _, score, _ in seen], np.float32),
        np.array([LABELS.index(label) for *_, label in seen], np.int32),
    )


def person(x: float, y: float = 0.5, score: float = 0.8) -> Seen:
    return (x, y, score, "person")


def numbers(objects: Iterable[TrackedObject]) -> list[int]:
    return [each.track for each in objects]


def settled(*seen: Seen, t: float = 0.0) -> Tracker:
    """A tracker that has confirmed `seen`, last seen at `t`."""
    tracker = Tracker(LABELS)
    for step in (-0.4, -0.2, 0.0):
        tracker.update(look(*seen), t + step)
    return tracker


def test_a_sure_object_is_confirmed_at_its_second_detection_a_doubtful_one_at_its_third() -> None:
    tracker = Tracker(LABELS)
    seen = look(person(0.2, score=0.9), person(0.8, score=0.52))
    assert tracker.update(seen, 0.0) == ()
    assert numbers(tracker.update(seen, 0.2)) == [1]
    assert numbers(tracker.update(seen, 0.4)) == [1, 2]


def test_a_single_flash_is_no_track() -> None:
    tracker = Tracker(LABELS)
    for step in range(10):
        seen = look(person(0.5, score=0.95)) if step % 2 == 0 else Detections.empty()
        assert tracker.update(seen, step * 0.2) == ()


def test_low_scores_continue_a_track_but_begin_none() -> None:
    tracker = Tracker(LABELS)
    for step in range(10):
        assert tracker.update(look(person(0.5, score=0.3)), step * 0.2) == ()
    tracker = settled(person(0.5))
    (kept,) = tracker.update(look(person(0.505, score=0.25)), 0.2)
    assert (kept.track, kept.score) == (1, 0.25)
    assert tracker.update(look(person(0.505, score=0.15)), 0.4) == ()


def test_who_is_seen_but_poorly_is_not_asked_to_be_just_where_expected() -> None:
    aside = look(person(0.516, score=0.3))  # three tenths of what both cover
    surely, poorly = settled(person(0.5)), settled(person(0.5))
    poorly.update(look(person(0.5, score=0.35)), 0.2)
    surely.update(look(person(0.5, score=0.45)), 0.2)
    assert surely.update(aside, 0.4) == ()
    assert numbers(poorly.update(aside, 0.4)) == [1]


def test_however_poorly_seen_a_doubtful_box_beside_is_not_taken() -> None:
    tracker = settled(person(0.5))
    tracker.update(look(person(0.5, score=0.3)), 0.2)
    assert tracker.update(look(person(0.524, score=0.3)), 0.4) == ()


def test_only_what_was_seen_in_this_frame_is_reported_with_its_own_score_and_box() -> None:
    tracker = settled(person(0.2), person(0.8))
    (only,) = tracker.update(look((0.2004, 0.5, 1.0, "person")), 0.2)
    assert only == TrackedObject(track=1, label="person", score=1.0, box=(0.1854, 0.44, 0.2154, 0.56))
    assert tracker.update(Detections.empty(), 0.4) == ()


def test_a_doubtful_box_is_reported_nearer_to_where_the_object_was_expected() -> None:
    told = []
    for score in (1.0, 0.75, 0.45):
        (only,) = settled(person(0.2)).update(look(person(0.21, score=score)), 0.2)
        told.append(only.box[0])
    assert told == sorted(told, reverse=True)
    assert told[0] == pytest.approx(0.195)
    assert 0.186 < told[2] < 0.193


def test_boxes_are_clipped_to_the_frame() -> None:
    tracker = settled(person(0.0))
    (edge,) = tracker.update(look(person(0.0)), 0.2)
    assert edge.box[0] == 0.0


def test_a_walker_behind_a_pole_keeps_the_number() -> None:
    tracker = Tracker(LABELS)
    found = {}
    for step in range(30):
        hidden = 12 <= step < 20
        seen = Detections.empty() if hidden else look(person(0.1 + 0.02 * step))
        found[step] = numbers(tracker.update(seen, step * 0.2))
    assert found[11] == found[20] == found[29] == [1]


def test_who_comes_after_the_memory_has_run_out_is_someone_new() -> None:
    tracker = settled(person(0.5))
    for step in range(1, 15):
        tracker.update(Detections.empty(), step * 0.2)
    tracker.update(look(person(0.5)), 3.2)
    assert numbers(tracker.update(look(person(0.5)), 3.4)) == [2]


def test_two_who_cross_at_different_heights_keep_their_numbers() -> None:
    tracker = Tracker(LABELS)
    last: tuple[TrackedObject, ...] = ()
    for step in range(40):
        x = 0.1 + 0.02 * step
        last = tracker.update(look(person(x, 0.48), person(1 - x, 0.56)), step * 0.2)
    assert [(each.track, each.box[0] > 0.5) for each in last] == [(1, True), (2, False)]


@pytest.mark.parametrize("gap", [0.1, 0.5, 1.0, 2.0], ids="{}s".format)
def test_uneven_frames_do_not_cost_a_walker_the_number(gap: float) -> None:
    tracker = Tracker(LABELS)
    t, seen = 0.0, []
    for step in range(24):
        t += 0.2 if step < 12 or step % 2 else gap
        seen += numbers(tracker.update(look(person(0.1 + 0.03 * t)), t))
    assert set(seen) == {1}
    assert len(seen) == 23


def test_idle_frames_seconds_apart_still_confirm_what_stands_there() -> None:
    tracker = Tracker(LABELS)
    seen = [numbers(tracker.update(look((0.5, 0.5, 0.8, "car")), t)) for t in (0.0, 10.0, 20.0, 30.0)]
    assert seen == [[], [1], [1], [1]]


def test_after_a_gap_only_the_same_place_is_the_same_object() -> None:
    tracker = settled((0.2, 0.5, 0.8, "car"), (0.6, 0.5, 0.8, "car"))
    assert numbers(tracker.update(look((0.2, 0.5, 0.8, "car"), (0.66, 0.5, 0.8, "car")), 10.0)) == [1]


def test_after_a_very_long_gap_everyone_is_new() -> None:
    tracker = settled((0.2, 0.5, 0.8, "car"))
    assert tracker.update(look((0.2, 0.5, 0.8, "car")), 100.0) == ()


def test_a_person_in_front_of_a_car_is_not_the_car() -> None:
    tracker = settled((0.5, 0.5, 0.8, "car"))
    tracker.update(look((0.5, 0.5, 0.9, "dog")), 0.2)
    (dog,) = tracker.update(look((0.5, 0.5, 0.9, "dog")), 0.4)
    assert (dog.track, dog.label) == (2, "dog")


def test_a_van_that_is_now_a_car_and_now_a_truck_is_one_vehicle_named_by_the_vote() -> None:
    tracker = Tracker(LABELS)
    names = [("car", 0.9), ("truck", 0.6), ("car", 0.7), ("truck", 0.9), ("truck", 0.9), ("truck", 0.9)]
    told = [tracker.update(look((0.5, 0.5, score, name)), step * 0.2) for step, (name, score) in enumerate(names)]
    assert [[(each.track, each.label) for each in objects] for objects in told] == [
        [], [(1, "car")], [(1, "car")], [(1, "car")], [(1, "truck")], [(1, "truck")],
    ]  # fmt: skip


def test_one_vehicle_detected_twice_under_two_names_is_one_track() -> None:
    tracker = Tracker(LABELS)
    for step in range(5):
        told = tracker.update(look((0.5, 0.5, 0.8, "car"), (0.501, 0.5, 0.6, "truck")), step * 0.2)
    assert numbers(told) == [1]


def test_half_a_person_beside_the_whole_one_is_no_other() -> None:
    tracker = settled(person(0.5))
    whole = [0.485, 0.44, 0.515, 0.56]
    for step, other in enumerate(([0.485, 0.44, 0.515, 0.50], [0.48, 0.43, 0.53, 0.56], [0.486, 0.49, 0.514, 0.56])):
        boxes = np.array([whole, other], np.float32)
        seen = Detections(boxes, np.array([0.9, 0.8], np.float32), np.zeros(2, np.int32))
        assert numbers(tracker.update(seen, 0.2 + 0.2 * step)) == [1]


def test_two_side_by_side_are_two() -> None:
    tracker = Tracker(LABELS)
    for step in range(3):
        told = tracker.update(look(person(0.5), person(0.515)), step * 0.2)
    assert numbers(told) == [1, 2]


def test_who_walked_out_of_the_frame_is_not_who_comes_in_there() -> None:
    tracker = settled(person(0.01))
    for step in range(1, 7):
        tracker.update(Detections.empty(), step * 0.2)
    tracker.update(look(person(0.01)), 1.4)
    assert numbers(tracker.update(look(person(0.01)), 1.6)) == [2]


def test_a_clock_that_stands_still_or_goes_back_loses_no_track() -> None:
    tracker, x = Tracker(LABELS), 0.2
    seen = []
    for t in (99.0, 99.2, 99.4, 99.6, 99.6, 88.8, 89.0, 89.2):
        x += 0.02
        seen.append(numbers(tracker.update(look(person(x)), t)))
    assert seen == [[], *[[1]] * 7]


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        Tracker(LABELS).update(Detections.empty(), math.nan)


def test_numbers_are_the_trackers_own() -> None:
    one, other = settled(person(0.5)), settled(person(0.5))
    assert numbers(one.update(look(person(0.5)), 0.2)) == numbers(other.update(look(person(0.5)), 0.2)) == [1]


def test_numbers_follow_the_order_of_confirmation_then_of_appearance() -> None:
    tracker = Tracker(LABELS)
    seen = look(person(0.9, score=0.95), person(0.1, score=0.9), person(0.5, score=0.7))
    tracker.update(seen, 0.0)
    told = tracker.update(seen, 0.2)
    assert [(each.track, round((each.box[0] + each.box[2]) / 2, 1)) for each in told] == [(1, 0.9), (2, 0.1), (3, 0.5)]


def crowd(seed: int) -> list[tuple[Detections, float]]:
    """Thirty walkers at random, some missed, some doubtful, over 60 uneven looks."""
    rng = np.random.default_rng(seed)
    place, speed, t, looks = rng.uniform(0.1, 0.9, (30, 2)), rng.normal(0, 0.03, (30, 2)), 0.0, []
    for _ in range(60):
        dt = float(rng.choice([0.2, 0.2, 0.2, 1.0]))
        t, place = t + dt, place + speed * dt
        seen = [person(x, y, float(rng.uniform(0.1, 0.95))) for x, y in place if rng.random() > 0.1]
        looks.append((look(*seen), t))
    return looks


@pytest.mark.parametrize("seed", range(3))
def test_the_same_frames_give_the_same_objects_and_a_number_is_never_used_twice_in_a_frame(seed: int) -> None:
    first, second = Tracker(LABELS), Tracker(LABELS)
    highest = 0
    for seen, t in crowd(seed):
        told = first.update(seen, t)
        assert repr(told) == repr(second.update(seen, t))
        assert numbers(told) == sorted(set(numbers(told)))
        fresh = [number for number in numbers(told) if number > highest]
        assert fresh == list(range(highest + 1, highest + 1 + len(fresh)))
        highest += len(fresh)


def test_a_flood_of_boxes_has_a_bound() -> None:
    rng = np.random.default_rng(0)
    tracker = Tracker(("person",))
    for step in range(4):
        corner = rng.uniform(0, 0.9, (1000, 2)).astype(np.float32)
        boxes = np.concatenate([corner, corner + 0.02], axis=1)
        tracker.update(Detections(boxes, np.full(1000, 0.9, np.float32), np.zeros(1000, np.int32)), step * 0.2)
    assert len(tracker._tracks) <= 300
