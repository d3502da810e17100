"""Labelled incidents: what must have been reported, merged as alerts are merged."""

from __future__ import annotations

from typing import Any

from appliance.config import SiteConfig
from appliance.lab.curve_footage import CameraTruth, label_incidents
from appliance.scenario.expectations import EventPattern, Expectation
from appliance.types import Box, FrameBoxes, StreamHeader, TrackedObject

HEADER = StreamHeader(camera="gate", clip="", model="truth", size=(400, 300), run="truth")
OUTSIDE: Box = (0.1, 0.4, 0.2, 0.6)
INSIDE: Box = (0.7, 0.4, 0.8, 0.6)


def site(**rule: Any) -> SiteConfig:
    rules = [{"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert", **rule}]
    zones = {"yard": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]}
    return SiteConfig.model_validate({"cameras": {"gate": {"url": "file:x", "zones": zones, "rules": rules}}})


def examined_frames(*inside: tuple[float, float], seconds: float = 60) -> list[FrameBoxes]:
    """Five looks a second; in each span another person stands in the yard, having come from outside."""
    found = []
    for seq in range(round(seconds * 5)):
        t = seq / 5
        objects = []
        for number, (start, end) in enumerate(inside, start=1):
            if start - 1 <= t < end:
                box = INSIDE if t >= start else OUTSIDE
                objects.append(TrackedObject(track=number, label="person", score=0.9, box=box))
        found.append(FrameBoxes(camera="gate", seq=seq, frame=seq, t=t, looked=True, objects=tuple(objects)))
    return found


def windows(
    config: SiteConfig, frames: list[FrameBoxes], *wanted: Expectation, derived: bool = False
) -> list[list[float]]:
    labels = label_incidents(
        config.for_decisions(), CameraTruth(header=HEADER, frames=frames, expectations=wanted, derived=derived)
    )
    return [[each.start, each.end] for each in labels.incidents(0)]


def wants(at: float | None = None, **pattern: Any) -> Expectation:
    return Expectation(pattern=EventPattern(rule="intruder", **pattern), source="expect 1", at=at)


def test_true_events_make_incidents_that_last_as_long_as_the_object_is_in_view() -> None:
    """In the zone from 10 s, told 0.6 s later when it is sure; in view until 19.8 s. 1 s before, 3 s after."""
    ((start, end),) = windows(site(), examined_frames((10, 20)), derived=True)
    assert 9.0 <= start <= 9.8
    assert end == 19.8 + 3


def test_two_people_within_merge_s_are_one_incident_and_further_apart_two() -> None:
    assert len(windows(site(), examined_frames((10, 12), (18, 20)), derived=True)) == 1
    assert len(windows(site(), examined_frames((10, 12), (25, 27)), derived=True)) == 2


def test_true_boxes_alone_label_nothing_that_no_entry_speaks_of() -> None:
    assert windows(site(), examined_frames((10, 12), (30, 32)), wants(10.2, start=9.2, end=13.2)) == windows(
        site(), examined_frames((10, 12)), derived=True
    )


def test_an_entry_and_the_true_event_that_it_speaks_of_are_one_label() -> None:
    frames = examined_frames((10, 20))
    assert windows(site(), frames, wants(10.2, start=9, end=14), derived=True) == windows(site(), frames, derived=True)


def test_without_true_boxes_an_entry_lasts_as_long_as_its_window() -> None:
    empty = examined_frames()
    assert windows(site(), empty, wants(10.0, start=9, end=13)) == [[9.0, 13.0]]
    assert windows(site(), empty, wants(start=20.0, end=26.0)) == [[19.0, 29.0]]
    # Both within 8 s of each other: one incident.
    assert windows(site(), empty, wants(10.0, start=9, end=13), wants(start=15, end=17)) == [[9.0, 20.0]]


def test_an_entry_after_the_last_frame_still_counts() -> None:
    assert windows(site(), examined_frames(seconds=5), wants(10.0, start=9, end=13)) == [[9.0, 13.0]]


def test_entries_without_a_moment_are_counted_and_left_out() -> None:
    some = Expectation(pattern=EventPattern(rule="intruder", start=1, end=50), source="expect 2", min=3, max=None)
    may = Expectation(pattern=EventPattern(rule="intruder", start=1, end=5), source="expect 3", min=0)
    found = label_incidents(
        site().for_decisions(),
        CameraTruth(header=HEADER, frames=examined_frames(), expectations=[wants(), some, may], derived=False),
    )
    assert (found.alerts, found.untimed) == ((), 2)


def test_what_the_site_does_not_ask_about_is_no_label() -> None:
    assert windows(site(escalate=False), examined_frames((10, 20)), derived=True) == []
    assert windows(site(severity="info"), examined_frames((10, 20)), derived=True) == []


def test_what_a_cooldown_holds_back_is_no_incident() -> None:
    assert len(windows(site(cooldown_s=60), examined_frames((10, 12), (25, 27)), derived=True)) == 1
