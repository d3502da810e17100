"""Boxes in, events out: what fires, what does not, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import Schedule
from appliance.rules.engine import RulesEngine
from appliance.rules.weekly_hours import ArmedHours
from appliance.rules.zones_and_lines import TUNING
from appliance.types import Event, FrameBoxes, Point
from tests.support.sample_tracks import YARD, camera, fired, header, inferences, look, person

INTRUDER = {"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert", "at_start": "report"}
LEAVER = {"name": "leaver", "kind": "exit", "zone": "yard"}
DOORMAN = {"name": "doorman", "kind": "line", "line": "door"}
IN: Point = (0.6, 0.6)
OUT: Point = (0.2, 0.6)
FAST_PATH: tuple[Point, ...] = ((0.3, 0.5), (0.45, 0.5), (0.6, 0.5), (0.75, 0.5))
FRIDAY, SATURDAY = 4, 5


def engine(*rules: dict[str, object], local_time: Callable[[float], tuple[int, int]] | None = None) -> RulesEngine:
    made = RulesEngine("gate", camera(*rules), local_time)
    made.feed(header())
    return made


def scored(scores: list[float], foot: Point = IN) -> list[FrameBoxes]:
    return [look(index * 0.2, person(foot, score=score)) for index, score in enumerate(scores)]


def test_an_event_says_what_happened_where_to_whom() -> None:
    feed = engine(INTRUDER).feed
    (event,) = [event for frame in inferences([OUT, IN, IN]) for event in feed(frame)]
    assert (event.camera, event.rule, event.kind) == ("gate", "intruder", "enter")
    assert (event.track, event.label) == (1, "person")
    assert (event.t, event.zone, event.line, event.severity, event.score) == (0.4, "yard", "", "alert", 0.8)
    assert event.box == person(IN).box


def test_enter_and_exit_fire_once_each() -> None:
    frames = inferences([OUT, OUT, *[IN] * 5, OUT, OUT, OUT])
    assert fired(engine(INTRUDER, LEAVER).feed, frames) == [("intruder", 0.6), ("leaver", 1.6)]


def test_a_line_fires_in_the_asked_direction_only() -> None:
    # The door is walked downwards, so that eastward is right to left.
    eastward = inferences([(0.3, 0.5), (0.45, 0.5), (0.55, 0.5), (0.6, 0.5), (0.6, 0.5)])
    assert fired(engine(DOORMAN).feed, eastward) == [("doorman", 0.6)]
    assert fired(engine({**DOORMAN, "direction": "right_to_left"}).feed, eastward) == [("doorman", 0.6)]
    assert fired(engine({**DOORMAN, "direction": "left_to_right"}).feed, eastward) == []


def test_only_the_labels_of_the_rule_fire_it() -> None:
    frames = [look(t * 0.2, person(IN, label="car")) for t in range(9)]
    assert fired(engine(INTRUDER).feed, frames) == []
    assert fired(engine({**INTRUDER, "labels": ["car", "truck"]}).feed, frames) == [("intruder", 0.2)]


def test_a_car_that_reads_person_once_is_not_an_intruder() -> None:
    labels = ["car", "car", "person", "car", "car", "car", "person", "car"]
    frames = [look(index * 0.2, person(IN, label=label, score=0.9)) for index, label in enumerate(labels[:6])]
    assert fired(engine(INTRUDER).feed, frames) == []


class TestScore:
    def test_one_weak_detection_does_not_hide_a_well_seen_person(self) -> None:
        feed = engine(INTRUDER).feed
        seen_before = [look(index * 0.2, person(OUT, score=0.8)) for index in range(5)]
        arrives = [look(1.0, person(IN, score=0.15)), look(1.2, person(IN, score=0.15))]
        assert fired(feed, [*seen_before, *arrives]) == [("intruder", 1.2)]

    def test_one_strong_false_detection_does_not_fire(self) -> None:
        assert fired(engine(INTRUDER).feed, scored([0.2, 0.2, 0.95, 0.2, 0.2, 0.2, 0.95, 0.2, 0.2])) == []

    def test_of_two_frames_both_must_be_good(self) -> None:
        assert fired(engine(INTRUDER).feed, scored([0.95, 0.2])) == []
        assert fired(engine(INTRUDER).feed, scored([0.95, 0.6])) == [("intruder", 0.2)]

    def test_a_person_who_becomes_clear_inside_fires_then(self) -> None:
        assert fired(engine(INTRUDER).feed, scored([0.3, 0.3, 0.3, 0.7, 0.7, 0.7, 0.7])) == [("intruder", 1.2)]

    def test_a_person_seen_clearly_once_remains_one_behind_a_bush(self) -> None:
        feed = engine(INTRUDER).feed
        behind = [look(1.0 + index * 0.2, person(OUT, score=0.2)) for index in range(30)]
        arrives = [look(8.0, person(IN, score=0.2)), look(8.2, person(IN, score=0.2))]
        assert fired(feed, [*scored([0.8] * 5, OUT), *behind, *arrives]) == [("intruder", 8.2)]

    def test_a_crossing_waits_three_seconds_for_certainty(self) -> None:
        unsure = [(0.3, 0.5), (0.55, 0.5), (0.6, 0.5)]
        sure_in_time = [look(0.6 + 0.2 * index, person((0.6, 0.5), score=0.9)) for index in range(4)]
        too_late = [look(5.0 + 0.2 * index, person((0.6, 0.5), score=0.9)) for index in range(9)]
        assert fired(engine(DOORMAN).feed, [*inferences(unsure, score=0.3), *sure_in_time]) == [("doorman", 1.2)]
        assert fired(engine(DOORMAN).feed, [*inferences(unsure, score=0.3), *too_late]) == []


class TestCompany:
    def test_beside_another_a_change_is_believed_later(self) -> None:
        beside = person((0.63, 0.6), track=2)
        frames = [look(index * 0.2, person(foot), beside) for index, foot in enumerate([OUT, OUT, IN, IN, IN])]
        alone = inferences([OUT, OUT, IN, IN, IN])
        assert [each for each in told(engine(INTRUDER), frames) if each[0] == 1] == [(1, 0.8)]
        assert told(engine(INTRUDER), alone) == [(1, 0.6)]

    def test_a_box_that_two_share_for_two_frames_enters_nowhere(self) -> None:
        other = person((0.21, 0.6), track=2)
        one, both = person(OUT), replace(person(OUT), box=(0.2, 0.3, 0.64, 0.6))
        frames = [look(0.2 * index, each, other) for index, each in enumerate([one, one, both, both, one, one])]
        assert told(engine(INTRUDER), frames) == []
        assert told(engine(INTRUDER), [look(frame.t, frame.objects[0]) for frame in frames]) == [(1, 0.6)]

    def test_who_left_a_moment_ago_is_no_company_to_the_next_through_that_place(self) -> None:
        # Two fast cars in a row, each seen twice beyond the line: the second fires like the first.
        first = [look(0.2 * index, person(foot, 1)) for index, foot in enumerate(FAST_PATH)]
        second = [look(1.0 + 0.2 * index, person(foot, 2)) for index, foot in enumerate(FAST_PATH)]
        assert told(engine(DOORMAN), [*first, *second]) == [(1, 0.6), (2, 1.6)]
        assert told(engine(DOORMAN), second) == [(2, 1.6)]

    def test_nor_is_a_lost_one_that_the_next_covers(self) -> None:
        frames = [look(0.0, person(OUT), person((0.61, 0.6), track=2))]
        frames += [look(0.2 * index, person(IN)) for index in range(1, 5)]
        assert [each for each in told(engine(INTRUDER), frames) if each[0] == 1] == [(1, 0.4)]

    def test_frames_with_a_long_miss_between_them_are_not_in_a_row(self) -> None:
        seen_twice = inferences([OUT, IN, None, None, None, None, IN, OUT, OUT])
        assert told(engine(INTRUDER), seen_twice) == []
        one_missed = inferences([OUT, IN, None, IN, IN])
        assert told(engine(INTRUDER), one_missed) == [(1, 0.6)]


def told(made: RulesEngine, frames: list[FrameBoxes]) -> list[tuple[int, float]]:
    """(track, time) of each event."""
    return [(event.track, event.t) for frame in frames for event in made.feed(frame)]


class TestSchedule:
    @pytest.mark.parametrize(
        ("weekday", "minute", "armed"),
        [
            (FRIDAY, 21 * 60 + 59, False),
            (FRIDAY, 22 * 60, True),
            (SATURDAY, 0, True),
            (SATURDAY, 5 * 60 + 59, True),
            (SATURDAY, 6 * 60, False),
            (SATURDAY, 23 * 60, False),
            (FRIDAY, 3 * 60, False),
        ],
    )
    def test_a_span_past_midnight_belongs_to_the_day_it_begins(self, weekday: int, minute: int, armed: bool) -> None:
        assert ArmedHours(Schedule(days=("fri",), hours=("22:00-06:00",))).armed(weekday, minute) is armed

    def test_sunday_night_runs_into_monday(self) -> None:
        assert ArmedHours(Schedule(days=("sun",), hours=("22:00-06:00",))).armed(0, 60)

    def test_the_whole_day_has_no_hole_at_midnight(self) -> None:
        hours = ArmedHours(Schedule())
        assert all(hours.armed(day, minute) for day in range(7) for minute in (0, 1, 719, 1439))

    @given(st.integers(0, 6), st.integers(0, 1439))
    def test_a_span_that_ends_where_it_begins_lasts_24_hours(self, weekday: int, minute: int) -> None:
        assert ArmedHours(Schedule(hours=("08:00-08:00",))).armed(weekday, minute)

    def test_an_entry_outside_the_hours_does_not_fire_when_they_begin(self) -> None:
        rule = {**INTRUDER, "schedule": {"hours": ["22:00-06:00"]}}
        night = engine(rule, local_time=lambda t: (0, 22 * 60 if t >= 5 else 600))
        assert fired(night.feed, inferences([OUT, *[IN] * 50])) == []
        assert fired(night.feed, inferences([OUT, OUT, IN, IN], t=11.0)) == [("intruder", 11.6)]

    def test_a_disarmed_site_is_outside_every_schedule(self) -> None:
        made = engine(INTRUDER)
        assert fired(lambda look: made.feed(look, off={"intruder"}), inferences([OUT, *[IN] * 5])) == []
        assert fired(made.feed, inferences([IN, IN], t=1.2)) == [], "who came meanwhile did not come when it was armed"
        assert fired(made.feed, inferences([OUT, OUT, OUT, IN, IN], t=1.6)) != []

    @pytest.mark.parametrize("kind", ["schedule", "pause"])
    def test_an_entry_that_was_doubtful_until_the_rule_went_off_does_not_fire(self, kind: str) -> None:
        schedule = {"schedule": {"hours": ["22:00-06:00"]}} if kind == "schedule" else {}
        made = engine({**INTRUDER, **schedule}, local_time=lambda t: (0, 22 * 60 if t < 1 else 6 * 60))
        frames = [look(0.2 * index, person(IN if index else OUT, score=0.4)) for index in range(5)]
        assert fired(made.feed, frames) == []
        off = {"intruder"} if kind == "pause" else set[str]()
        assert fired(lambda each: made.feed(each, off=off), inferences([IN] * 9, t=1.0, score=0.9)) == []
        assert fired(made.feed, inferences([IN] * 9, t=3.0, score=0.9)) == [], "nor afterwards"

    def test_without_a_wall_clock_every_rule_is_armed(self) -> None:
        rule = {**INTRUDER, "schedule": {"hours": ["03:00-03:01"]}}
        assert fired(engine(rule).feed, inferences([IN, IN])) == [("intruder", 0.2)]


WHOLE = {"url": "file:x", "zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]}}
CARS = ((0.2, 0.5), (0.45, 0.52), (0.7, 0.5))


def car_park(moves_off: int = 0, until_s: float = 12.0) -> list[FrameBoxes]:
    """Three cars stand there from the first frame on, their boxes breathing; one of them moves off at 5 s."""
    frames = []
    for index in range(round(until_s / 0.2)):
        t, cars = index * 0.2, []
        for number, (x, y) in enumerate(CARS, 1):
            gone = 0.1 * max(0.0, t - 5.0) if number == moves_off else 0.0
            cars.append(person((x + gone + 0.004 * (index % 2), y), number, label="car", height=0.05))
        frames.append(look(t, *cars))
    return frames


class TestAtStart:
    """What is there at the start is there."""

    def told(self, frames: list[FrameBoxes], **rule: object) -> list[tuple[int, float]]:
        made = {"name": "any-car", "kind": "enter", "zone": "all", "labels": ["car"], **rule}
        settings = camera().model_validate({**WHOLE, "rules": [made]})
        return told(RulesEngine("gate", settings), frames)

    def test_a_car_park_of_the_first_frame_does_not_enter(self) -> None:
        assert self.told(car_park()) == []
        assert self.told(car_park(), at_start="ignore") == []
        assert self.told(car_park(), at_start="report") == [(1, 0.2), (2, 0.2), (3, 0.2)]

    def test_the_one_that_moves_off_does(self) -> None:
        ((track, t),) = self.told(car_park(moves_off=2))
        assert track == 2
        assert 5.2 < t < 5.8
        assert self.told(car_park(moves_off=2), at_start="ignore") == []

    def test_who_walks_in_the_first_frame_enters_as_soon_as_that_is_seen(self) -> None:
        walker = [look(0.2 * index, person((0.3 + 0.03 * index, 0.6), label="car")) for index in range(8)]
        assert self.told(walker) == [(1, 0.6)]

    def test_who_comes_later_enters_though_he_stands_still(self) -> None:
        late = [look(0.0), look(3.4, person(IN, label="car")), look(3.6, person(IN, label="car"))]
        assert self.told(late) == [(1, 3.6)]

    def test_one_who_stood_outside_the_zone_enters_like_any_other(self) -> None:
        frames = inferences([*[OUT] * 3, *[IN] * 3])
        for choice in ("moving", "ignore", "report"):
            assert fired(engine({**INTRUDER, "at_start": choice}).feed, frames) == [("intruder", 0.8)]

    def test_one_first_box_in_the_zone_does_not_make_it_stand_there(self) -> None:
        """Boxes jitter: it stood beside the zone, and walks in later."""
        frames = inferences([IN, *[OUT] * 3, *[IN] * 3])
        for choice in ("moving", "ignore", "report"):
            assert fired(engine({**INTRUDER, "at_start": choice}).feed, frames) == [("intruder", 1.0)]
        stays = inferences([IN, *[OUT] * 3, *[IN] * 12])
        dwell = {"name": "stays", "kind": "dwell", "zone": "yard", "seconds": 1.5, "at_start": "ignore"}
        assert fired(engine(dwell).feed, stays) == [("stays", 2.4)]

    def test_one_box_outside_the_zone_does_not_unmake_it(self) -> None:
        frames = inferences([IN, OUT, *[IN] * 6])
        assert fired(engine({**INTRUDER, "at_start": "ignore"}).feed, frames) == []

    def test_who_left_and_comes_back_enters(self) -> None:
        frames = inferences([*[IN] * 3, *[OUT] * 3, *[IN] * 3])
        assert fired(engine({**INTRUDER, "at_start": "ignore"}).feed, frames) == [("intruder", 1.4)]

    def test_a_box_that_is_cut_once_has_not_moved_off(self) -> None:
        frames = car_park()
        half = replace(frames[30].objects[0], box=(0.215, 0.45, 0.235, 0.5))
        frames[30] = replace(frames[30], objects=(half, *frames[30].objects[1:]))
        assert self.told(frames) == []

    def test_a_dwell_counts_from_the_first_frame_unless_it_is_told_otherwise(self) -> None:
        dwell = {"kind": "dwell", "seconds": 3}
        assert self.told(car_park(), **dwell) == [(1, 3.0), (2, 3.0), (3, 3.0)]
        assert self.told(car_park(), **dwell, at_start="ignore") == []
        assert self.told(car_park(2), **dwell, at_start="ignore") == []
        ((track, t),) = self.told(car_park(2), **dwell, at_start="moving")
        assert track == 2
        assert 8.2 < t < 8.8

    def test_it_leaves_and_crosses_lines_like_any_other(self) -> None:
        frames = inferences([*[IN] * 5, *[OUT] * 3])
        assert fired(engine(LEAVER).feed, frames) == [("leaver", 1.2)]

    def test_a_new_connection_is_a_new_start(self) -> None:
        made = engine({**INTRUDER, "at_start": "moving"})
        assert fired(made.feed, inferences([IN] * 5)) == []
        made.feed(header(run="run-2"))
        assert fired(made.feed, inferences([IN] * 5, t=60.0)) == []

    def test_what_is_not_known_where_it_is_known_what_stood_there_has_come_meanwhile(self) -> None:
        made = RulesEngine("gate", camera({**INTRUDER, "at_start": "moving"}))
        made.feed(replace(header(), known_before=True))
        assert fired(made.feed, inferences([IN] * 5)) == [("intruder", 0.2)]


class TestLoss:
    def test_a_frame_that_failed_changes_nothing(self) -> None:
        seen = inferences([OUT, IN, IN, IN, OUT, OUT])
        blind = [look(frame.t + 0.1, looked=False) for frame in seen]
        between = [each for pair in zip(seen, blind, strict=True) for each in pair]
        rules = (INTRUDER, LEAVER)
        assert fired(engine(*rules).feed, between) == fired(engine(*rules).feed, seen) != []

    def test_a_detector_that_is_down_makes_no_one_leave(self) -> None:
        at_the_edge = (0.6, 1.0)
        rule = {
            "url": "file:x",
            "zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]},
            "rules": [{**LEAVER, "zone": "all"}],
        }
        feed = RulesEngine("gate", camera().model_validate(rule)).feed
        assert fired(feed, inferences([at_the_edge] * 5)) == []
        assert fired(feed, [look(1.0 + index, looked=False) for index in range(50)]) == []
        assert fired(feed, [look(51.0), look(54.5)]) == [("leaver", 54.5)]

    def test_who_is_lost_in_the_middle_of_the_frame_has_not_left(self) -> None:
        assert fired(engine(LEAVER).feed, inferences([*[IN] * 5, *[None] * 100])) == []

    def test_who_comes_back_into_view_where_he_was_does_not_enter_again(self) -> None:
        assert fired(engine(INTRUDER).feed, inferences([*[IN] * 5, *[None] * 50, *[IN] * 5])) == [("intruder", 0.2)]

    def test_a_path_that_was_not_seen_crosses_no_line(self) -> None:
        west, east = (0.3, 0.5), (0.6, 0.5)
        assert fired(engine(DOORMAN).feed, inferences([*[west] * 3, *[None] * 20, *[east] * 3])) == []
        assert (
            fired(engine(DOORMAN).feed, [look(0.0, person(west)), look(9.0, person(east)), look(9.2, person(east))])
            == []
        )

    @pytest.mark.parametrize(("after", "expected"), [([IN], []), ([IN, IN], [("intruder", 60.2)])])
    def test_before_and_after_a_time_that_was_not_examined_is_not_in_a_row(
        self, after: list[Point], expected: list[tuple[str, float]]
    ) -> None:
        before = inferences([OUT, OUT, IN])
        assert fired(engine(INTRUDER).feed, [*before, *inferences(after, t=60.0)]) == expected

    def test_nor_does_one_across_frames_that_missed_it_on_a_camera_seldom_examined(self) -> None:
        slow = camera(DOORMAN, detect={"heartbeat_s": 60})
        west, east = (0.3, 0.5), (0.6, 0.5)
        frames = inferences([*[west] * 3, *[None] * 20, *[east] * 3])
        assert fired(RulesEngine("gate", slow).feed, frames) == []
        watched_now_and_then = inferences([west, west, east, east], every_s=60)
        assert fired(RulesEngine("gate", slow).feed, watched_now_and_then) == [("doorman", 180.0)]


class TestMemory:
    def test_a_new_run_resets_everything(self) -> None:
        made = engine(INTRUDER)
        frames = inferences([IN, IN, IN])
        assert len(fired(made.feed, frames)) == 1
        made.feed(header(run="run-1"))
        assert fired(made.feed, frames[1:]) == []
        made.feed(header(run="run-2"))
        assert made.tracks == 0
        assert len(fired(made.feed, frames)) == 1

    def test_tracks_unseen_for_a_minute_are_forgotten(self) -> None:
        made = engine(INTRUDER)
        for frame in [look(0.0, person(IN)), look(59.0, person(OUT, 2)), look(61.0, person(OUT, 2))]:
            made.feed(frame)
        assert made.tracks == 1

    def test_there_are_never_more_tracks_than_the_cap_and_the_oldest_go_first(self) -> None:
        made = engine(INTRUDER)
        for track in range(TUNING.tracks_max + 20):
            made.feed(look(track * 0.01, person(OUT, track + 1)))
        assert made.tracks == TUNING.tracks_max
        assert made.evicted == 20

    def test_ids_come_from_content_alone(self) -> None:
        def ids(run: str = "run-1", camera_name: str = "gate") -> list[str]:
            made = RulesEngine(camera_name, camera(INTRUDER, LEAVER))
            made.feed(header(run, camera_name))
            return [event.id for frame in inferences([OUT, IN, IN, OUT, OUT]) for event in made.feed(frame)]

        assert ids() == ids()
        assert len({*ids(), *ids("run-2"), *ids(camera_name="yard")}) == 6
        assert all(len(each) == 16 and int(each, 16) >= 0 for each in ids())


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 4), st.floats(0, 1), st.floats(0.2, 1), st.floats(0, 1)),
            max_size=4,
            unique_by=lambda row: row[0],
        ),
        max_size=60,
    )
)
def test_whatever_comes_entries_and_exits_of_a_track_alternate(
    rows: list[list[tuple[int, float, float, float]]],
) -> None:
    anyone = {"labels": ["person"], "score_min": 0.0}
    made = engine({**INTRUDER, **anyone}, {**LEAVER, **anyone})
    events: list[Event] = []
    for index, row in enumerate(rows):
        events += made.feed(look(index * 0.2, *[person((x, y), track, score) for track, x, y, score in row]))
    for track in {event.track for event in events}:
        kinds = [event.kind for event in events if event.track == track]
        assert kinds == [("enter", "exit")[index % 2] for index in range(len(kinds))]
    assert len({event.id for event in events}) == len(events)


LOITERER = {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 20}


def stood(seconds: float | None, foot: Point = IN, looks_: int = 40, t: float = 0.0) -> list[FrameBoxes]:
    """Looks at somebody who is known to have stood there for so long before."""
    there = replace(person(foot), stood_s=seconds)
    return [look(t + index * 0.2, there) for index in range(looks_)]


def test_what_is_known_to_have_stood_in_a_zone_before_does_not_enter_it_and_leaves_it() -> None:
    frames = [*stood(600.0), *inferences([OUT] * 4, t=8.0)]
    assert fired(engine(INTRUDER, LEAVER).feed, frames) == [("leaver", 8.2)]
    frames = [*stood(None), *inferences([OUT] * 4, t=8.0)]
    assert fired(engine(INTRUDER, LEAVER).feed, frames) == [("intruder", 0.2), ("leaver", 8.2)]


def test_what_is_known_to_have_stood_elsewhere_enters_like_any_other() -> None:
    frames = [*stood(600.0, OUT), *inferences([IN] * 4, t=8.0)]
    assert fired(engine(INTRUDER).feed, frames) == [("intruder", 8.2)]


def test_one_that_left_and_comes_back_enters() -> None:
    frames = [*stood(600.0), *inferences([OUT] * 4, t=8.0), *inferences([IN] * 4, t=9.0)]
    assert fired(engine(INTRUDER).feed, frames) == [("intruder", 9.2)]


def test_dwelling_that_has_fired_does_not_fire_again() -> None:
    assert fired(engine(LOITERER).feed, stood(600.0, looks_=150)) == []


def test_dwelling_that_had_begun_before_fires_when_its_time_has_come() -> None:
    assert fired(engine(LOITERER).feed, stood(15.0, looks_=150)) == [("loiterer", 5.0)]


def test_dwelling_counts_from_when_the_rule_is_armed_also_for_what_stood_there_before() -> None:
    late = {**LOITERER, "schedule": Schedule(hours=("01:00-24:00",)).model_dump()}
    feed = engine(late, local_time=lambda t: (FRIDAY, 0 if t < 10 else 60)).feed
    assert fired(feed, stood(600.0, looks_=200)) == [("loiterer", 30.0)]


def sized(*heights: float, feet: Point = IN) -> list[FrameBoxes]:
    return [look(index * 0.2, person(feet, height=height)) for index, height in enumerate(heights)]


@pytest.mark.parametrize(("limit", "first"), [({"height_min": 0.3}, 0.8), ({"height_max": 0.15}, None), ({}, 0.2)])
def test_a_rule_reports_only_what_is_as_high_as_it_wants(limit: dict[str, float], first: float | None) -> None:
    frames = sized(0.2, 0.2, 0.25, 0.25, 0.35)
    assert fired(engine({**INTRUDER, **limit}).feed, frames) == ([] if first is None else [("intruder", first)])


def test_who_is_cut_off_by_the_border_is_as_high_as_when_whole() -> None:
    """The yard reaches to 0.9 of the picture: who leaves it walks out over the lower border."""
    leaving = [look(n * 0.2, person((0.6, foot), height=height)) for n, (foot, height) in enumerate(
        [(0.6, 0.5), (0.6, 0.5), (0.85, 0.5), (1.0, 0.2), (1.0, 0.1), (1.0, 0.1)])]  # fmt: skip
    assert fired(engine({**LEAVER, "height_min": 0.4}).feed, leaving) == [("leaver", 0.8)]
    small = [look(n * 0.2, person((0.6, foot), height=0.1)) for n, foot in enumerate([0.6, 0.6, 0.85, 1.0, 1.0, 1.0])]
    assert fired(engine({**LEAVER, "height_min": 0.4}).feed, small) == []


FLAG = [[0.5, 0.5], [0.7, 0.5], [0.7, 0.7], [0.5, 0.7]]


def ignoring(*rules: dict[str, object]) -> RulesEngine:
    made = RulesEngine("gate", camera(*rules, zones={"yard": YARD, "flag": FLAG}, ignore=["flag"]))
    made.feed(header())
    return made


def test_what_stands_in_an_ignored_zone_is_reported_when_it_comes_out_of_it() -> None:
    loiterer = {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 1.0}
    assert fired(ignoring(INTRUDER, loiterer).feed, inferences([OUT, *[IN] * 10])) == []
    assert fired(engine(INTRUDER).feed, inferences([OUT, *[IN] * 10])) == [("intruder", 0.4)]
    assert fired(ignoring(INTRUDER).feed, inferences([OUT, *[IN] * 10, (0.75, 0.6)])) == [("intruder", 2.2)]


def test_an_ignored_zone_holds_for_lines_and_for_who_leaves() -> None:
    across = inferences([(0.45, 0.6), (0.45, 0.6), (0.55, 0.6), *[(0.6, 0.6)] * 30, (0.75, 0.6)])
    assert fired(engine(DOORMAN).feed, across) == [("doorman", 0.6)]
    assert fired(ignoring(DOORMAN).feed, across) == [], "a crossing is not reported when its time is over"
