"""Values of groups and their flat records: every field is in the log line, and comes back from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pytest

from appliance.base.json_lines import decode_log, encode_log, flat, grouped
from appliance.types import (
    CascadeAnswer,
    Route,
    RouteCost,
    RouteInputs,
    SystemLoad,
    TrackStability,
)

INPUTS = RouteInputs(
    label="car", stability=TrackStability(score=0.5, looks=3), system_load=SystemLoad(load=1.5, offload=True), crowd=2,
)  # fmt: skip
ROUTE = Route(
    camera="gate", alert="a", event="e", t=1.5, ask=True, when="later", wait="box", until_t=9.0, inputs=INPUTS,
    cost=RouteCost(value=0.5, bytes=7, gpu_s=1.25), cascade=CascadeAnswer(tier="cloud", edge="between", certainty=0.75),
)  # fmt: skip


def single_fields(cls: Any) -> Iterator[str]:
    for each in fields(cls):
        if is_dataclass(each.default) and each.name != "inputs":
            yield from single_fields(type(each.default))
        else:
            yield each.name


@pytest.mark.parametrize("cls", [Route, RouteInputs])
def test_a_flat_record_has_every_field_once(cls: Any) -> None:
    assert sorted(cls.KEYS) == sorted(single_fields(cls))


def test_a_log_line_is_flat_and_is_read_back_in_groups() -> None:
    line = encode_log(ROUTE)
    written = json.loads(line)
    assert (tuple(written), tuple(written["inputs"])) == (Route.KEYS, RouteInputs.KEYS)
    assert (written["gpu_s"], written["edge"], written["inputs"]["load"]) == (1.25, "between", 1.5)
    assert decode_log(line) == ROUTE


def test_a_record_of_another_version_keeps_what_is_known() -> None:
    assert grouped(RouteInputs, asdict(flat(INPUTS))) == INPUTS
    known = grouped(RouteInputs, {"looks": 3, "crowd": 2, "unheard_of": 1})
    assert known == RouteInputs(stability=TrackStability(looks=3), crowd=2)
