"""In and out of a zone, once each."""

from __future__ import annotations

import random

from appliance.rules.zones_and_lines import Passage, Zone, ZoneMembership
from appliance.types import Point

YARD = Zone("yard", [(0.4, 0.4), (0.8, 0.4), (0.8, 0.9), (0.4, 0.9)])
OUT: Point = (0.2, 0.6)
IN: Point = (0.6, 0.6)


def walk(feet: list[Point], every_s: float = 0.2, margin: float = 0.01) -> list[tuple[Passage, int]]:
    member = ZoneMembership()
    changes = [(YARD.update(member, at, index * every_s, margin, 1.0), index) for index, at in enumerate(feet)]
    return [(change, index) for change, index in changes if change]


def test_two_frames_inside_are_an_entry_and_two_outside_an_exit() -> None:
    assert walk([OUT, IN, IN, IN, OUT, OUT]) == [("entered", 2), ("left", 5)]


def test_a_single_frame_inside_is_not_believed() -> None:
    assert walk([OUT, IN, OUT, IN, OUT]) == []


def test_a_single_frame_outside_is_not_an_exit() -> None:
    assert walk([IN, IN, OUT, IN, OUT, IN]) == [("entered", 1)]


def test_a_track_that_begins_inside_enters() -> None:
    assert walk([IN, IN]) == [("entered", 1)]


def test_a_box_that_flickers_at_the_edge_enters_once() -> None:
    noise = random.Random(7)
    feet = [(0.4 + noise.gauss(0, 0.003), 0.6) for _ in range(500)]
    assert len(walk(feet, margin=0.015)) == 1


def test_a_fast_camera_needs_more_frames_for_the_same_time() -> None:
    assert walk([OUT, IN, IN, OUT, OUT, OUT], every_s=0.04) == []
    assert walk([OUT, *[IN] * 6], every_s=0.04) == [("entered", 5)]


def test_a_slow_camera_needs_two_frames_however_far_apart() -> None:
    assert walk([OUT, IN, IN], every_s=2.0) == [("entered", 2)]


def test_membership_knows_when_it_began() -> None:
    member = ZoneMembership()
    for index, at in enumerate([OUT, IN, IN]):
        YARD.update(member, at, index * 0.2, 0.01, 1.0)
    assert member.inside
    assert member.since == 0.2
