"""Who kept an expected event from coming: told from the record, one cause at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from appliance.config import CameraConfig
from appliance.replay.replay_result import ReplayResult
from appliance.rules.engine import RulesEngine
from appliance.scenario.expectations import EventPattern
from appliance.scenario.loss_attribution import MissRecord, find_culprit
from appliance.types import Box, Event, FrameBoxes, LogEnd, StreamHeader, TrackedObject

STEP_S = 0.2
Object = tuple[int, str, float, float]
"""track, label, score, x of its left side."""
Scene = Callable[[float], list[Object]]


def frames_of(scene: Scene, seconds: float = 12.0) -> tuple[FrameBoxes, ...]:
    found = []
    for n in range(round(seconds / STEP_S)):
        t = n * STEP_S
        objects = tuple(
            TrackedObject(track=track, label=label, score=score, box=(x, 0.3, x + 0.1, 0.7))
            for track, label, score, x in scene(t)
        )
        found.append(FrameBoxes(camera="gate", seq=n, frame=2 * n, t=t, looked=True, objects=objects))
    return tuple(found)


def camera_of(**rule: Any) -> CameraConfig:
    """The right half of the picture is the yard; a line stands at its border."""
    plain = {"name": "r", "kind": "enter", "zone": "yard", **rule}
    if plain["kind"] == "line":
        plain = {key: value for key, value in plain.items() if key != "zone"} | {"line": "door"}
    return CameraConfig.model_validate(
        {
            "url": "file:x",
            "zones": {"yard": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]},
            "lines": {"door": [[0.5, 1], [0.5, 0]]},
            "rules": [plain],
        }
    )


def result_of(events: tuple[Event, ...], suppressed: tuple[Event, ...] = ()) -> ReplayResult:
    end = LogEnd(
        camera="gate", run="r", t=12, reason="", frames=0, examined=0, unlooked=0, decode_errors=0, time_jumps=0,
        footage_bytes=0, suppressed=tuple(event.id for event in suppressed),
    )  # fmt: skip
    return ReplayResult(clip="x", model="m", size=(1280, 720), end=end, events=events)


def record_of(scene: Scene, camera: CameraConfig, *, held: bool = False, **pattern: Any) -> MissRecord:
    frames = frames_of(scene)
    engine = RulesEngine("gate", camera)
    engine.feed(StreamHeader(camera="gate", clip="", model="", size=(1280, 720), run="r"))
    events = tuple(event for frame in frames for event in engine.feed(frame))
    result = result_of(events, events if held else ())
    return MissRecord(EventPattern(rule="r", **pattern), camera, camera.rules, result, frames)


def walks(number: int = 1, label: str = "person", score: float = 0.8) -> Scene:
    """From left to right, over the border after 4 s."""
    return lambda t: [(number, label, score, min(0.8, 0.05 + 0.1 * t))]


def together(*scenes: Scene) -> Scene:
    return lambda t: [each for scene in scenes for each in scene(t)]


def changes_number(t: float) -> list[Object]:
    """Another number with every detection: nobody is ever seen outside and then inside."""
    return [(1 + round(t / STEP_S), "person", 0.8, 0.05 + 0.1 * t)]


def stays(t: float) -> list[Object]:
    return walks()(t) if t < 7 else []


def stands_there(t: float) -> list[Object]:
    return [(1, "person", 0.8, 0.7)]


def from_the_right(t: float) -> list[Object]:
    return [(1, "person", 0.8, max(0.05, 0.8 - 0.1 * t))]


@pytest.mark.parametrize(
    ("name", "words", "scene", "rule"),
    [
        ("score", "and the rule wants 1.00", walks(score=0.3), {"score_min": 1.0}),
        ("size", "was 0.40 of the picture high and the rule wants 0.5 to 1", walks(), {"height_min": 0.5}),
        ("label", "taken for a dog", walks(label="dog"), {}),
        ("at_start", "track 1 was there at the start", stands_there, {}),
        ("rule", "did not stay for the 9 s", stays, {"kind": "dwell", "seconds": 9}),
        ("rule", "crossed the other way", from_the_right, {"kind": "line", "direction": "left_to_right"}),
        ("tracker", "as one track it fires", changes_number, {}),
    ],
)  # fmt: skip
def test_the_culprit_is_whose_change_makes_the_rule_fire(
    name: str, words: str, scene: Scene, rule: dict[str, Any]
) -> None:
    record = record_of(scene, camera_of(**rule))
    assert record.result.events == ()
    found = find_culprit(record)
    assert (found.name, words in found.text) == (name, True), found


def test_an_ignored_place_is_a_culprit() -> None:
    there = camera_of().model_dump() | {"ignore": ["corner"]}
    there["zones"] |= {"corner": [[0.5, 0.2], [1, 0.2], [1, 1], [0.5, 1]]}
    found = find_culprit(record_of(walks(), CameraConfig.model_validate(there)))
    assert (found.name, "ignores" in found.text) == ("ignored", True)


def test_company_is_told_from_a_score() -> None:
    """Somebody close by makes a visit too short to be believed; alone, it is believed at once."""

    def short_visit(t: float) -> list[Object]:
        return [(1, "person", 0.8, 0.6 if 3.9 < t < 4.3 else 0.2)]

    def shadow(t: float) -> list[Object]:
        return [(2, "person", 0.8, 0.65 if 3.9 < t < 4.3 else 0.25)]

    assert record_of(short_visit, camera_of()).result.events != (), "alone it fires"
    record = record_of(together(short_visit, shadow), camera_of())
    assert record.result.events == ()
    assert find_culprit(record).name == "company"


def test_what_fired_is_looked_for_behind_the_rules() -> None:
    held = record_of(walks(), camera_of(cooldown_s=60), held=True)
    assert find_culprit(held).name == "cooldown"
    counted = record_of(walks(), camera_of())
    assert find_culprit(counted).name == "expectation"


def crowd_of(count: int) -> Scene:
    """`count` people, well apart from each other, who all cross within a second of the fourth and are reported."""
    return together(*(walks_at(number, 0.02 * number) for number in range(1, count + 1)))


def walks_at(number: int, ahead: float, score: float = 0.8) -> Scene:
    return lambda t: [(number, "person", score, min(0.8, ahead + 0.1 * t))]


def scattered(frames: tuple[FrameBoxes, ...]) -> tuple[FrameBoxes, ...]:
    """Move each track to one of five lanes, so that only who shares a lane is in company."""
    return tuple(
        replace(frame, objects=tuple(replace(each, box=_lane(each.box, each.track)) for each in frame.objects))
        for frame in frames
    )


def _lane(box: Box, track: int) -> Box:
    y = 0.12 + 0.16 * (track % 5)
    return box[0], y, box[2], y + 0.13


def missed_among(count: int, scene: Scene, **rule: Any) -> MissRecord:
    """n entries of one pattern; events came for `count` of them, and the one that is missing is of `scene`."""
    camera = camera_of(**rule)
    frames = scattered(frames_of(together(crowd_of(count), scene)))
    engine = RulesEngine("gate", camera)
    engine.feed(StreamHeader(camera="gate", clip="", model="", size=(1280, 720), run="r"))
    events = tuple(event for frame in frames for event in engine.feed(frame))
    assert sorted(event.track for event in events) == list(range(1, count + 1)), "the others are reported"
    counted = frozenset(event.id for event in events)
    return MissRecord(EventPattern(rule="r"), camera, camera.rules, result_of(events), frames, counted=counted)


def changes_number_in_its_lane(t: float) -> list[Object]:
    return [(14 + 5 * round(t / STEP_S), *each[1:]) for each in changes_number(t)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "words", "scene", "rule"),
    [
        ("score", "track 9 came to 0.15", walks_at(9, 0.1, score=0.15), {"score_min": 0.5}),
        ("at_start", "track 9 was there at the start", lambda t: [(9, "person", 0.8, 0.7)], {}),
        ("label", "track 9 was taken for a dog", walks(9, label="dog"), {}),
        ("tracker", "as one track it fires", changes_number_in_its_lane, {}),
    ],
)  # fmt: skip
def test_where_entries_overlap_the_culprit_is_named_of_the_track_that_crossed_without_an_event(
    count: int, name: str, words: str, scene: Scene, rule: dict[str, Any]
) -> None:
    found = find_culprit(missed_among(count, scene, **rule))
    assert (found.name, words in found.text) == (name, True), found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_entries_overlap_company_is_told_of_the_track_that_had_it(count: int) -> None:
    """A visit of two looks with somebody close by, who stays outside; others are reported meanwhile."""
    visit: Scene = lambda t: [(9, "person", 0.8, 0.46 if 3.9 < t < 4.3 else 0.2)]  # noqa: E731
    shadow: Scene = lambda t: [(14, "person", 0.8, 0.43 if 3.9 < t < 4.3 else 0.17)]  # noqa: E731
    found = find_culprit(missed_among(count, together(visit, shadow)))
    assert (found.name, "alone, track 9 fires" in found.text) == ("company", True), found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_entries_overlap_an_object_without_a_box_was_missed_by_the_detector(count: int) -> None:
    record = missed_among(count, lambda t: [])
    assert find_culprit(replace(record, at_truth=frozenset())).name == "detector"
    shared = find_culprit(replace(record, at_truth=frozenset({1})))
    assert (shared.name, shared.text) == ("tracker", "track 1 lay on the object and fills another entry")
    assert find_culprit(record).name == "expectation", "where the truth has no boxes, nothing else is known"


def test_an_earlier_report_of_somebody_else_is_no_reason_where_the_true_box_is_known() -> None:
    """Track 9 stands outside while the other crosses, and somebody was reported before."""
    outside: Scene = lambda t: [(9, "person", 0.8, 0.2)]  # noqa: E731
    record = missed_among(2, outside)
    first, second = record.result.events
    late = replace(record, pattern=replace(record.pattern, start=first.t + 0.1, end=12.0), at_truth=frozenset({9}))
    assert first.t + 0.1 < second.t
    found = find_culprit(replace(late, counted=frozenset({second.id})))
    assert (found.name, found.text) == ("unknown", "track 9 lay on the object and did not fire")


def test_a_rule_that_reported_the_object_before_is_not_said_to_have_missed_it() -> None:
    found = find_culprit(record_of(walks(), camera_of(), start=6.0, end=9.0))
    assert (found.name, found.text) == ("earlier", "rule r reported track 1 at 0:04.2")
    assert find_culprit(record_of(walks(), camera_of(), start=0.0, end=3.0)).name == "unknown"


def test_nobody_is_accused_where_no_change_helps() -> None:
    assert find_culprit(record_of(lambda t: [], camera_of())).name == "unknown"


def test_a_record_that_begins_in_the_middle_takes_nobody_for_there_at_the_start() -> None:
    """Who stood in the zone before it and moves off later did not enter then: no change would have helped."""

    def moves_off(t: float) -> list[Object]:
        return [(1, "person", 0.8, 0.55 if t < 8 else 0.85)]

    camera = camera_of()
    later = tuple(frame for frame in frames_of(moves_off) if frame.t > 1)
    record = MissRecord(EventPattern(rule="r", start=5), camera, camera.rules, result_of(()), later)
    assert find_culprit(record).name == "unknown"
