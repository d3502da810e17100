"""Why a rule did not report somebody: each reason is told from a walk that has it, and from none that has not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from appliance.alerts.pipeline import Pipeline
from appliance.alerts.span_explanation import SENTENCES, STAGES, TEXTS, TRACKS_MAX, SpanExplainer, SpanExplanation
from appliance.config import AlertsConfig, CameraConfig
from appliance.types import Event, FrameBoxes, Point
from tests.support.sample_tracks import YARD, camera, header, inferences, look, person

IN: Point = (0.6, 0.6)
OUT: Point = (0.2, 0.6)
ENTER: dict[str, Any] = {"name": "r", "kind": "enter", "zone": "yard", "at_start": "report"}
DWELL = {"name": "r", "kind": "dwell", "zone": "yard", "seconds": 9.0}
LINE = {"name": "r", "kind": "line", "line": "door"}
NIGHT = {"hours": ["22:00-06:00"]}
GOES_IN = [OUT, OUT, *[IN] * 6]
ACROSS: list[Point] = [(0.3, 0.5), (0.45, 0.5), (0.6, 0.5), (0.65, 0.5), (0.65, 0.5)]


def explained(
    frames: Sequence[FrameBoxes],
    rule: dict[str, Any],
    *,
    off: frozenset[str] = frozenset(),
    before: Sequence[Event] = (),
    **more: Any,
) -> tuple[SpanExplanation, CameraConfig]:
    plan = camera(rule, **more)
    pipeline = Pipeline("gate", plan, AlertsConfig(), local_time=lambda t: (0, 12 * 60))
    pipeline.policy.recall(before)
    explainer = SpanExplainer(plan, pipeline, (0.0, 100.0))
    explainer.begin(header())
    for frame in frames:
        explainer.feed(frame, off=off)
    return explainer.explanation, plan


def test_an_entry_that_was_doubtful_until_the_rule_went_off_is_explained_by_that() -> None:
    plan = camera(ENTER)
    pipeline = Pipeline("gate", plan, AlertsConfig(), local_time=lambda t: (0, 12 * 60))
    explainer = SpanExplainer(plan, pipeline, (0.0, 100.0))
    explainer.begin(header())
    for index in range(12):
        doubtful = look(0.2 * index, person(IN if index else OUT, score=0.4 if index < 6 else 0.9))
        explainer.feed(doubtful, off=frozenset() if index < 6 else frozenset({"r"}))
    (found,) = explainer.explanation.tracks
    assert [each.stage for each in found.spans] == ["place", "settling", "score", "disarmed"]


@pytest.mark.parametrize(
    ("stage", "words", "feet", "rule", "more"),
    [
        ("label", "it was a person; the rule wants car", GOES_IN, {**ENTER, "labels": ["car"]}, {}),
        ("place", "its feet were outside zone yard", [OUT] * 6, ENTER, {}),
        ("settling", "in zone yard in fewer than two examined frames in a row", [OUT, OUT, IN], ENTER, {}),
        ("start", "stood in zone yard when the session began", [IN] * 8, {**ENTER, "at_start": "moving"}, {}),
        ("start", "stood in zone yard when the session began", [IN] * 8, {**DWELL, "at_start": "ignore"}, {}),
        ("stay", "it stayed 1.0 of the 9 s that the rule wants in zone yard", GOES_IN, DWELL, {}),
        ("stay", "it did not leave zone yard", GOES_IN, {**ENTER, "kind": "exit", "at_start": ...}, {}),
        ("place", "it was never seen in zone yard", [OUT] * 6, {**ENTER, "kind": "exit", "at_start": ...}, {}),
        ("place", "it did not cross line door", [OUT] * 6, LINE, {}),
        ("way", "it crossed line door the other way", ACROSS, {**LINE, "direction": "left_to_right"}, {}),
        ("hours", "outside its schedule (mon, tue, wed, thu, fri, sat, sun: 22:00-06:00)", GOES_IN,
         {**ENTER, "schedule": NIGHT}, {}),
        ("hours", "outside its schedule", ACROSS, {**LINE, "schedule": NIGHT}, {}),
        ("hours", "outside its schedule", GOES_IN, {**DWELL, "schedule": NIGHT}, {}),
        ("disarmed", "switched off by the profile in force, or paused", GOES_IN, ENTER, {"off": frozenset({"r"})}),
        ("ignored", "in a zone that this camera ignores (all)", GOES_IN, ENTER,
         {"zones": {"yard": YARD, "all": [[0, 0.5], [1, 0.5], [1, 1], [0, 1]]}, "ignore": ["all"]}),
        ("size", "0.20 of the picture high; the rule wants at least 0.3", GOES_IN, {**ENTER, "height_min": 0.3}, {}),
        ("size", "0.20 of the picture high; the rule wants at most 0.1", GOES_IN, {**ENTER, "height_max": 0.1}, {}),
        ("score", "it was sure to 0.80; the rule wants 0.90", GOES_IN, {**ENTER, "score_min": 0.9}, {}),
        ("reported", "reported", GOES_IN, ENTER, {}),
        ("reported", "reported", ACROSS, LINE, {}),
    ],
)  # fmt: skip
def test_each_reason_is_told(
    stage: str, words: str, feet: list[Point], rule: dict[str, Any], more: dict[str, Any]
) -> None:
    rule = {key: value for key, value in rule.items() if value is not ...}
    found, plan = explained(inferences(feet), rule, **more)
    (life,) = found.tracks
    assert life.furthest is not None
    assert life.furthest.stage == stage, life.furthest.text
    assert words in life.furthest.text
    key, values, why = found.sentence(plan)
    if stage == "reported":
        assert (key, values["what"]) == ("reported", "person (r)")
    else:
        assert (key, why) == ("held", life.furthest)
        assert words in SENTENCES[key].format(**values, why=life.furthest.text)


def test_a_cooldown_says_until_when_it_holds_back() -> None:
    before = Event(camera="gate", rule="r", kind="enter", track=9, label="person", t=-5.0, score=0.8, box=(0, 0, 1, 1))
    found, _ = explained(inferences(GOES_IN), {**ENTER, "cooldown_s": 60}, before=[before])
    (life,) = found.tracks
    assert life.furthest is not None
    assert (life.furthest.stage, life.furthest.until) == ("cooldown", 55.0)
    assert [(each.rule, each.held_until) for each in found.events] == [("r", 55.0)]


def test_what_was_noted_is_forgotten_when_it_is_over() -> None:
    """Entered outside the hours, left, and came back: the second time only its place is to blame."""
    night = {**ENTER, "schedule": NIGHT}
    found, _ = explained(inferences([OUT, OUT, IN, IN, IN, OUT, OUT, OUT]), night)
    assert [each.stage for each in found.tracks[0].spans] == ["place", "settling", "hours", "place"]


def test_who_walks_out_of_the_picture_is_reported_though_the_frame_does_not_show_it() -> None:
    leaver = {"name": "r", "kind": "exit", "zone": "yard"}
    gone = [look(n * 0.2, person((0.6, 0.8 if n < 4 else 0.995))) for n in range(6)]
    empty = [look(1.2 + n * 0.5) for n in range(10)]
    wide = {"zones": {"yard": [[0.4, 0.4], [0.8, 0.4], [0.8, 1.0], [0.4, 1.0]]}}
    found, plan = explained([*gone, *empty], leaver, **wide)
    assert found.sentence(plan)[0] == "reported"
    assert found.tracks[0].furthest is not None
    assert found.tracks[0].furthest.stage == "reported"


def test_nothing_to_explain_is_told_too() -> None:
    assert explained([], ENTER)[0].sentence(camera(ENTER))[0] == "not_examined"
    assert explained([look(1.0, looked=False)], ENTER)[0].sentence(camera(ENTER))[0] == "failed"
    found, plan = explained([look(1.0), look(1.2)], ENTER)
    assert found.sentence(plan)[:2] == ("nobody", {"frames": "2"})
    found, plan = explained([look(1.0), replace(look(1.2, person(IN)), looked=False)], ENTER)
    assert found.sentence(plan)[:2] == ("nobody", {"frames": "2"}), "objects of a failed frame mean nothing"
    ruleless = camera()
    pipeline = Pipeline("gate", ruleless, AlertsConfig())
    explainer = SpanExplainer(ruleless, pipeline, (0.0, 100.0))
    explainer.begin(header())
    explainer.feed(look(1.0, person(IN)))
    assert explainer.explanation.sentence(ruleless)[0] == "no_rules"


def test_what_came_before_the_span_is_fed_and_not_shown() -> None:
    plan = camera(ENTER)
    explainer = SpanExplainer(plan, Pipeline("gate", plan, AlertsConfig()), (1.0, 2.0))
    explainer.begin(header())
    for frame in inferences(GOES_IN * 2):
        explainer.feed(frame)
    assert all(1.0 <= t <= 2.0 for t, _ in explainer.explanation.examined)
    assert explainer.explanation.tracks[0].t_start == 1.0


def test_a_crowd_is_bounded_and_counted() -> None:
    crowd = [person(OUT, track=n) for n in range(TRACKS_MAX + 5)]
    found, _ = explained([look(1.0, *crowd), look(1.2, *crowd)], ENTER)
    assert (len(found.tracks), found.tracks_left_out) == (TRACKS_MAX, 5)


def test_every_stage_has_its_words() -> None:
    assert {"label", "place", "settling", "way", "start", "hours", "disarmed", "ignored", "score"} <= set(STAGES) & set(
        TEXTS
    )


def test_a_stay_that_was_reported_before_the_session_is_not_said_to_be_too_short() -> None:
    there = [look(n * 0.2, replace(person(IN), stood_s=60.0)) for n in range(4)]
    found, _ = explained(there, DWELL)
    assert found.tracks[0].furthest is not None
    assert found.tracks[0].furthest.stage == "reported"
