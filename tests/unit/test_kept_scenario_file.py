"""What a review says of a clip, event by event; and which stretch of a recording can be the clip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.clock import ManualClock
from appliance.base.errors import EvidenceError
from appliance.config import AlertsConfig, CameraConfig
from appliance.media.recorded import RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.scenario.scenario_exporter import ClipWindow, _cut_unbroken, clip_window, initial_events
from appliance.scenario.scenario_file import EventStanding, KnownEvent, derive_truth
from appliance.store.alert_rows import AlertReview, AlertRow
from appliance.store.alerts import AlertDetail
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.storage_reader import StorageArchive
from appliance.types import Alert, FrameBoxes, StreamHeader, TrackedObject
from tests.support.numbered_footage import encoded_footage, record
from tests.support.sample_rows import T0, event

CLIP = (T0, T0 + 60)


def seen(
    t: float, known: EventStanding, *, rule: str = "intruder", until: float = 0.0, lead_s: float = 0.15
) -> KnownEvent:
    return KnownEvent(event(T0 + t, rule=rule), known, lead_s, T0 + until if until else 0.0)


def test_what_was_right_is_expected_around_its_moment() -> None:
    truth = derive_truth([seen(10.123, "right"), seen(1.0, "right")], CLIP)
    assert [(each.at, each.start, each.end, each.optional) for each in truth.expect] == [
        (1.0, 0.0, 4.0, False),
        (10.12, 7.12, 13.12, False),
    ]
    assert truth.never == ()


def test_what_was_false_is_barred_by_kind_until_the_incident_was_over() -> None:
    events = [seen(10, "false", until=25), seen(14, "false", until=25), seen(20, "false", rule="loiterer", until=25)]
    truth = derive_truth(events, CLIP)
    assert [(each.rule, each.start, each.end) for each in truth.never] == [("intruder", 7, 28), ("loiterer", 17, 28)]
    assert derive_truth([seen(58, "false", until=59)], CLIP).never[0].end == 60


def test_what_was_not_reviewed_may_come_or_not_and_says_why() -> None:
    known: tuple[EventStanding, ...] = ("held back", "open", "there already")
    truth = derive_truth([seen(10 * n, each) for n, each in enumerate(known, start=1)], CLIP)
    assert all(each.optional for each in truth.expect)
    assert [each.note.split(",")[0] for each in truth.expect] == [
        "a cooldown held it back",
        "of another alert",
        "was there already when the clip begins",
    ]


def test_what_came_at_the_very_edge_of_the_clip_is_not_demanded() -> None:
    truth = derive_truth([seen(59.5, "right"), seen(5, "right", rule="loiterer", lead_s=20)], CLIP)
    assert [each.optional for each in truth.expect] == [True, True]


def test_an_excuse_does_not_cover_a_false_alarm() -> None:
    """A held-back event within the barred time would be a place that the false alarm could take."""
    truth = derive_truth([seen(10, "false", until=20), seen(12, "held back"), seen(25, "held back")], CLIP)
    assert [(each.at, each.start) for each in truth.expect] == [(25, 23)]


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.sampled_from(["right", "false", "held back", "open", "there already"])),
        min_size=1,
        max_size=12,
    )
)
def test_windows_hold_their_moment_and_those_of_a_kind_never_overlap(told: list[tuple[float, EventStanding]]) -> None:
    truth = derive_truth([seen(t, known) for t, known in told], CLIP)
    assert sum(not each.optional for each in truth.expect) <= sum(known == "right" for _, known in told)
    for each in truth.expect:
        assert each.at is not None
        assert 0 <= each.start <= each.at <= each.end
        for barred in truth.never:
            if each.optional and each.note != "right, but at the edge of the clip":
                assert each.end <= barred.start or barred.end <= each.start
    for barred in truth.never:
        assert 0 <= barred.start <= barred.end <= 60.01


def row(t_end: float) -> AlertRow:
    alert = Alert(
        id="a1", camera="yard", run="r1", severity="warning", rules=("loiterer",), labels=("person",), tracks=(7,),
        score=0.8, t_start=T0 + 30, t_end=T0 + t_end, end_reason="quiet",
    )  # fmt: skip
    return AlertRow(alert=alert, reviewed=AlertReview(review="reviewed"), created_t=T0, rev=1)


def test_a_long_stay_is_shown_from_before_it_began() -> None:
    camera = CameraConfig.model_validate(
        {
            "url": "file:x",
            "zones": {"z": [[0, 0], [1, 0], [1, 1]]},
            "rules": [{"name": "loiterer", "kind": "dwell", "zone": "z", "seconds": 20}],
        }
    )
    stay = event(T0 + 30, rule="loiterer")
    window = clip_window(AlertDetail(row=row(40), events=(stay,)), camera, AlertsConfig(pre_roll_s=5, post_roll_s=4))
    assert window == ClipWindow(T0 + 5, T0 + 44, T0 + 10, T0 + 30)


def parts(root: Path, *starts: float) -> list[RecordedSegment]:
    rows = [record(root, encoded_footage(0, 40), T0 + start, name=f"{start}") for start in starts]
    return [RecordedSegment(root / each.path, each.t_start, each.t_end) for each in rows]


def test_what_lies_beyond_a_long_hole_is_left_out_of_the_clip(tmp_path: Path) -> None:
    source = parts(tmp_path, 0, 50, 54, 100)
    clip = _cut_unbroken(READ_DIRECTLY, source, ClipWindow(T0, T0 + 103, T0 + 51, T0 + 56), tmp_path / "x.mp4")
    assert (clip.t_start, clip.t_end) == (pytest.approx(T0 + 50), pytest.approx(T0 + 58))


def test_a_long_hole_in_the_middle_is_no_clip(tmp_path: Path) -> None:
    source = parts(tmp_path, 0, 50)
    with pytest.raises(EvidenceError, match="a hole of 46 s"):
        _cut_unbroken(READ_DIRECTLY, source, ClipWindow(T0, T0 + 53, T0 + 1, T0 + 52), tmp_path / "x.mp4")
    assert not (tmp_path / "x.mp4").exists()
    assert _cut_unbroken(
        READ_DIRECTLY, parts(tmp_path, 0, 20), ClipWindow(T0, T0 + 23, T0 + 1, T0 + 22), tmp_path / "x.mp4"
    ).note


def test_their_scores_are_put_on_the_common_scale_of_their_session(tmp_path: Path) -> None:
    assert there_already("report", moves_off=False, calibration={"person": (1.0, -3.0)}) == []
    db, lines = Database(tmp_path / DATABASE, ManualClock(T0)), {"person": (0.8, -1.0)}
    CameraStore(db).write_header(
        StreamHeader(camera="gate", clip="", model="m", size=(320, 240), run="r", calibration=lines)
    )
    db.close()
    archive = StorageArchive(tmp_path)
    assert archive.calibration("gate", "r") == lines
    assert archive.calibration("gate", "an older one") == {}


def test_only_who_is_there_at_the_beginning_counts_as_there_already() -> None:
    """For them the replay of the clip fires what the rule makes of it: at once, when they move off, or never."""
    assert there_already("report", moves_off=False) == [("intruder", 1)]
    assert there_already("moving", moves_off=False) == []
    assert there_already("moving", moves_off=True) == [("intruder", 1)]
    assert there_already("ignore", moves_off=True) == []


def there_already(
    at_start: str, *, moves_off: bool, calibration: dict[str, tuple[float, float]] | None = None
) -> list[tuple[str, int]]:
    """The rule and track of each initial event: one stands in the zone from the beginning on, another comes later."""
    camera = CameraConfig.model_validate(
        {
            "url": "file:x",
            "zones": {"z": [[0, 0], [1, 0], [1, 1], [0, 1]]},
            "rules": [{"name": "intruder", "kind": "enter", "zone": "z", "at_start": at_start}],
        }
    )

    def look(n: int) -> FrameBoxes:
        x = 0.1 + (0.02 * max(0, n - 20) if moves_off else 0)
        stays = TrackedObject(track=1, label="person", score=0.9, box=(x, 0.1, x + 0.1, 0.5))
        comes = replace(stays, track=2, box=(0.6, 0.1, 0.7, 0.5))
        objects = (stays, comes) if n >= 20 else (stays,)
        return FrameBoxes(camera="gate", seq=n, frame=n, t=T0 + n / 5, looked=True, objects=objects)

    looks = [look(n) for n in range(40)]
    found = initial_events("gate", camera, AlertsConfig(), looks, (320, 240), calibration=calibration)
    assert initial_events("gate", camera, AlertsConfig(), [], (320, 240)) == []
    return [(each.rule, each.track) for each in found]
