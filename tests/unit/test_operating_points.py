"""What a sweep chooses and how it explains that: pure arithmetic on made-up outcomes."""

from __future__ import annotations

import pytest

from appliance.base.errors import UsageError
from appliance.lab.operating_points import (
    OperatingPoint,
    ScenarioOutcome,
    TuningAim,
    choose_point,
    read_aim,
    recall_difference,
)
from appliance.lab.tune_command import choice_sentences
from appliance.lab.tune_sweep import SweepSetting, SweepValue, apply_setting, read_sweep, sweep_grid
from tests.support.block_footage import site


def outcome(name: str, filled: list[bool], wrong: int = 0, alerts: int = 1) -> ScenarioOutcome:
    places = tuple((f"event {number}", 1, int(flag)) for number, flag in enumerate(filled))
    return ScenarioOutcome(
        scenario=name,
        required=places,
        right=sum(filled),
        wrong=wrong,
        delays=(),
        alerts=alerts,
        footage_s=60.0,
        bytes=0,
    )


def point(value: float | None, *outcomes: ScenarioOutcome) -> OperatingPoint:
    setting: SweepSetting = () if value is None else (("rules.score_min", value),)
    return OperatingPoint(setting, outcomes)


def test_takes_the_best_precision_among_the_points_that_reach_the_recall() -> None:
    points = [
        point(None, outcome("a", [True] * 8 + [False] * 2, wrong=0)),
        point(0.3, outcome("a", [True] * 10, wrong=6)),
        point(0.4, outcome("a", [True] * 10, wrong=2)),
        point(0.9, outcome("a", [True] * 2 + [False] * 8, wrong=0)),
    ]
    choice = choose_point(points, TuningAim("recall", 0.95))
    assert choice.point.setting == (("rules.score_min", 0.4),)
    assert choice.reached
    told = " ".join(choice_sentences(choice, points))
    assert "2 events that had to be reported more, 2 false alarms more" in told
    assert "not as it is: its precision of 1.000 is better, but its recall is 0.800" in told


def test_chooses_the_nearest_to_the_aim_when_nothing_reaches_it_and_reports_that() -> None:
    points = [
        point(None, outcome("a", [True] * 5 + [False] * 5)),
        point(0.4, outcome("a", [True] * 9 + [False], wrong=9)),
    ]
    choice = choose_point(points, TuningAim("recall", 0.95))
    assert choice.point.setting == (("rules.score_min", 0.4),)
    assert not choice.reached
    assert any("no point reaches the aim" in sentence for sentence in choice_sentences(choice, points))


def test_leaves_the_present_setting_where_nothing_is_better() -> None:
    same = outcome("a", [True] * 4)
    points = [point(0.3, same), point(None, same), point(0.7, same)]
    choice = choose_point(points, TuningAim("recall", 0.95))
    assert choice.point.present
    told = choice_sentences(choice, points)
    assert "that is the present setting: nothing to change" in told
    assert "just the same comes of: rules.score_min 0.3; rules.score_min 0.7" in told


def test_a_setting_that_reports_nothing_at_all_is_not_precise() -> None:
    """Nothing that it says is wrong, and no recall is left: an aim that this reached would end with the exit code 0."""
    silent, present = point(0.9, outcome("a", [False] * 5)), point(None, outcome("a", [True] * 5, wrong=5))
    choice = choose_point([present, silent], TuningAim("precision", 0.9))
    assert (choice.point, choice.reached) == (present, False)


def test_the_other_aims() -> None:
    strict = point(0.8, outcome("a", [True] * 6 + [False] * 4, wrong=0))
    loose = point(0.3, outcome("a", [True] * 10, wrong=10))
    between = point(None, outcome("a", [True] * 9 + [False], wrong=1))
    points = [strict, loose, between]
    assert choose_point(points, TuningAim("precision", 1.0)).point is strict
    assert choose_point(points, TuningAim("recall", 1.0)).point is loose
    assert choose_point(points, TuningAim("f1")).point is between


def test_fewer_alerts_decide_between_points_that_are_equally_right() -> None:
    busy = point(None, outcome("a", [True] * 3, alerts=9))
    calm = point(0.6, outcome("a", [True] * 3, alerts=3))
    assert choose_point([busy, calm], TuningAim("recall", 0.95)).point is calm


def test_of_points_that_miss_the_aim_alike_the_present_one_stays_whatever_its_alerts() -> None:
    """Fewer alerts would choose a setting that reports nothing, where no setting finds anything."""
    present = point(None, outcome("a", [False] * 3, wrong=5, alerts=5))
    silent = point(0.9, outcome("a", [False] * 3, alerts=0))
    busy = point(0.3, outcome("a", [False] * 3, wrong=6, alerts=6))
    assert choose_point([present, silent, busy], TuningAim("recall", 0.95)).point is present
    better = outcome("a", [True, False, False], alerts=1), outcome("a", [True, False, False], alerts=4)
    points = [present, point(0.7, better[0]), point(0.6, better[1])]
    assert choose_point(points, TuningAim("recall", 0.95)).point is points[2], "the nearest in alerts"


def test_a_difference_is_paired_so_that_common_luck_falls_out() -> None:
    hard = [True] * 20 + [False] * 20
    better = point(0.4, outcome("a", hard[:-6] + [True] * 6))
    present = point(None, outcome("a", hard))
    gained = recall_difference(better, present)
    assert gained is not None
    assert gained.value == pytest.approx(6 / 40)
    assert gained.clear
    same = recall_difference(present, present)
    assert same is not None
    assert same.low < 0 < same.high, "forty events alike do not prove that all are"
    one_more = recall_difference(point(0.4, outcome("a", [*hard[:-1], True])), present)
    assert one_more is not None
    assert not one_more.clear, "one event more of forty proves nothing"


def test_points_with_other_expectations_are_not_compared() -> None:
    assert recall_difference(point(2.0, outcome("a", [True] * 3)), point(None, outcome("a", [True] * 4))) is None


def test_leaving_out_a_clip_finds_a_setting_that_only_suits_the_others() -> None:
    """0.4 is best over all, thanks to clip c; judged on clips that did not choose it, the gain is gone."""
    present = point(None, *(outcome(name, [True, True, True, False]) for name in "abc"))
    lucky = point(0.4, outcome("a", [False] * 4), outcome("b", [True] * 4), outcome("c", [True] * 4))
    choice = choose_point([present, lucky], TuningAim("recall", 0.7))
    assert choice.left_out is not None
    assert choice.left_out.recall.of == 12
    f1 = choose_point([present, lucky], TuningAim("f1"))
    assert f1.left_out is not None
    assert f1.left_out.recall.value is not None
    # Without a: 0.4 wins, and finds nothing in a. Without b or c: as it is.
    assert f1.left_out.recall.value == pytest.approx((0 + 3 + 3) / 12)


def test_two_clips_are_too_few_to_leave_one_out_and_that_is_reported() -> None:
    points = [point(None, outcome("a", [True]), outcome("b", [True]))]
    choice = choose_point(points, TuningAim("recall", 0.95))
    assert choice.left_out is None
    assert "same footage" in choice_sentences(choice, points)[-1]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rules.score_min=0.3:0.5:0.1", (0.3, 0.4, 0.5)),
        ("alerts.merge_s=4,8,16", (4.0, 8.0, 16.0)),
        ("detector.model=auto,models/new.onnx", ("auto", "models/new.onnx")),
        ("detect.fps=5", (5.0,)),
        ("rules.score_min=0.1:0.7:0.2", (0.1, 0.3, 0.5, 0.7)),  # not 0.30000000000000004
    ],
)
def test_reads_what_is_swept(text: str, values: tuple[SweepValue, ...]) -> None:
    assert read_sweep(text).values == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules.score_min", "write KEY="),
        ("rules.colour=1,2", "there is no such setting"),
        ("escalation.frames=1", "there is no such setting"),
        ("rules.score_min=0.8:0.3:0.1", "goes nowhere"),
        ("rules.score_min=0.3:0.8:0", "goes nowhere"),
        ("rules.score_min=high", "neither"),
        ("rules.score_min=0:1:0.0001", "1 to 100"),
        ("rules.score_min=,", "1 to 100"),
    ],
)
def test_refuses_what_cannot_be_swept(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_sweep(text)


def test_refuses_too_many_combinations_and_doubles() -> None:
    with pytest.raises(UsageError, match="over 400"):
        sweep_grid([read_sweep("rules.score_min=0.01:0.99:0.01"), read_sweep("alerts.merge_s=1:20:1")])
    with pytest.raises(UsageError, match="twice"):
        sweep_grid([read_sweep("detect.fps=1,2"), read_sweep("detect.fps=5")])


def test_puts_the_values_where_they_belong_and_nowhere_else() -> None:
    config = site()
    sweeps = [
        read_sweep("rules.score_min=0.7"),
        read_sweep("rules.loiterer.seconds=9"),
        read_sweep("detect.fps=2"),
        read_sweep("alerts.merge_s=3"),
    ]
    tried = apply_setting(config.for_decisions(), sweeps, sweep_grid(sweeps)[0])
    rules = tried.cameras["gate"].rules
    assert {rule.score_min for rule in rules} == {0.7}
    assert [getattr(rule, "seconds", None) for rule in rules] == [None, None, 9.0, None, None]
    assert (tried.cameras["gate"].detect.fps, tried.alerts.merge_s) == (2.0, 3.0)
    assert config == site(), "the site file's own settings stay as they are"
    assert not read_sweep("rules.nobody.score_min=0.5").found_in(config.for_decisions())


def test_a_value_that_the_site_file_would_refuse_is_refused_with_its_reason() -> None:
    sweep = read_sweep("rules.score_min=0.5,1.5")
    with pytest.raises(UsageError, match=r"rules\.score_min: 1\.5 is not possible: .*less than or equal to 1"):
        sweep.change(site(), 1.5)


@pytest.mark.parametrize("text", ["recall", "recall>=2", "speed>=0.5", "recall>=", ""])
def test_refuses_an_aim_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--aim"):
        read_aim(text)


def test_reads_an_aim() -> None:
    assert read_aim("recall>=0.95") == TuningAim("recall", 0.95)
    assert read_aim("precision >= 1") == TuningAim("precision", 1.0)
    assert read_aim("f1") == TuningAim("f1")
