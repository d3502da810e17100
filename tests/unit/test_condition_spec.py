"""What may be written after --with, and what is said to a slip."""

from __future__ import annotations

import math
import re

import pytest

from appliance.__main__ import main
from appliance.base.errors import UsageError
from appliance.replay.footage_conditions import (
    CONDITION_KINDS,
    NO_CONDITIONS,
    ConditionKind,
    ConditionSet,
    conditions_help,
    parse_condition,
    parse_conditions,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rain", "rain:10mm"),
        ("rain:40mm", "rain:40mm"),
        ("rain:40", "rain:40mm"),
        ("ir@20s", "infrared:25m@20s"),
        ("ir:15m@1:05", "infrared:15m@65s"),
        ("fog:50m@10-30s", "fog:50m@10s-30s"),
        ("drop:5%", "drop:5%"),
        ("exposure:-2ev", "exposure:-2ev"),
        ("freeze:500ms@10s", "freeze:0.5s@10s"),
        ("gap@0:20", "gap:3s@20s"),
        ("cut:3s@20s", "gap:3s@20s"),
        ("late:1s", "late:1000ms"),
        ("scale:0.5", "scale:0.5"),
        ("night@0s-9s", "night:1lux@0s-9s"),
    ],
)
def test_a_condition_is_written_in_full_and_reads_back(text: str, words: str) -> None:
    read = parse_condition(text)
    assert read.text == words
    assert parse_condition(words) == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("snwo", "did you mean `snow`?"),
        ("tempest", "there is: rain, snow"),
        ("rain:400mm", "from 1mm to 100mm"),
        ("rain:10px", "counted in mm, as in `rain:40mm`"),
        ("noise:4px", "noise is a plain number"),
        ("rain:lots", "`lots` is no strength; write `rain:40mm`"),
        ("freeze", "say when, as in `freeze:2s@10s`"),
        ("rain@soon", "`soon` is no time"),
        ("rain@20s-10s", "ends before it begins"),
        ("rain:", "is no weather"),
        ("none,rain", "write it alone"),
        (",".join(["rain"] * 41), "at most 40"),
    ],
)
def test_a_mistake_is_reported_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_conditions([text])


def test_the_order_and_the_commas_do_not_matter() -> None:
    assert (
        parse_conditions(["night,rain", "drop"])
        == parse_conditions(["drop", "rain", "night"])
        == parse_conditions(["rain,drop,night"])
    )
    assert parse_conditions(["rain, rain"]) == parse_conditions(["rain"])


def test_the_order_of_equal_ones_does_not_depend_on_the_interpreter() -> None:
    """Sets of texts have another order in each run of Python, and the order decides which seed each gets."""
    texts = [f"fog:50m@10s-{end}s" for end in range(11, 31)]
    assert ConditionSet.parse(texts).texts == tuple(texts)


@pytest.mark.parametrize("text", ["freeze:2s@10805.25s", "fog:50m@1234567s", "rain:40.1234567mm"])
def test_long_numbers_read_back_as_they_were(text: str) -> None:
    assert ConditionSet.parse([text]).texts == (text,)


def test_no_conditions_are_the_same_with_any_seed() -> None:
    assert ConditionSet.parse(["none"], 7) == ConditionSet.parse([], 3) == NO_CONDITIONS
    assert ConditionSet.parse(["rain"], 7) != ConditionSet.parse(["rain"], 8)


@pytest.mark.parametrize("kind", CONDITION_KINDS, ids=lambda kind: kind.name)
def test_every_example_of_the_help_reads_and_every_kind_has_one(kind: ConditionKind) -> None:
    assert parse_condition(kind.example).kind == kind
    assert kind.example in conditions_help()
    assert kind.amounts[0] <= (kind.duration_s if kind.amount is None else kind.amount) <= kind.amounts[1]


def test_a_window_ends_and_a_moment_lasts_its_seconds() -> None:
    fog, freeze = parse_condition("fog@10s-20s"), parse_condition("freeze:2s@10s")
    assert [fog.at(t) for t in (9.9, 10, 19.9, 20)] == [False, True, True, False]
    assert [freeze.at(t) for t in (9.9, 10, 11.9, 12)] == [False, True, True, False]
    assert parse_condition("rain").t1 == math.inf


@pytest.mark.parametrize("command", [["replay"], ["scenario", "run"]])
def test_help_is_shown_without_anything_else_on_the_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--with", "help"])
    assert left.value.code == 0
    assert "ir:15m@20s" in capsys.readouterr().out


def test_a_slip_on_the_command_line_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["replay", "x.mp4", "--config", "site.yaml", "--with", "rian"])
    assert left.value.code == 2
    assert "did you mean `rain`?" in capsys.readouterr().err
