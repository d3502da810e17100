"""The benchmark of the uplink's share: what counts as an incident, what as asked about, and which budget was missed."""

from __future__ import annotations

from pathlib import Path

from appliance import config
from appliance.base import yamlfile
from appliance.lab.curve_ranking import LabelledIncident
from appliance.types import TrackedObject
from benchmarks.byte_balance import ByteBalance, LabelledCamera, SentEscalation, incidents_of, match_incidents
from benchmarks.ingest.cameras import FrameClock
from benchmarks.uplink_share import CASES, faults, report, site_file

BEGUN = 1_700_000_000.0
YARD = {
    "zones": {"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]},
    "rules": [{"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"}],
}


def visitor(begin: int, end: int, length: int = 900, *, once: bool = False) -> LabelledCamera:
    """A camera before which somebody stands in the middle from frame `begin` to `end` of each pass."""
    there = (TrackedObject(track=1, label="person", score=0.9, box=(0.4, 0.4, 0.5, 0.8)),)
    frames = dict.fromkeys(range(begin, end), there)
    return LabelledCamera("gate", Path("gate.mp4"), 15, (1280, 720), YARD, length, frames, once)


def incidents(show: LabelledCamera, seconds: float) -> tuple[LabelledIncident, ...]:
    taken = FrameClock(15)
    taken.note(0, BEGUN)
    text = site_file([show], "nats://127.0.0.1:4222", 554, Path("data"), image_free=False)
    return incidents_of(yamlfile.loads(text, config.SiteConfig), show, taken, BEGUN, BEGUN + seconds)


def totals(**changes: object) -> ByteBalance:
    facts = {
        "case": "mixed", "cameras": 2, "seconds": 100.0, "received": 10_000_000, "sent": 100_000, "kernel": 99_900,
        "by_kind": {"crop": 70_000, "protocol": 30_000}, "incidents": 3, "found": 3, "questions": 4, "settled": 4,
    }  # fmt: skip
    return ByteBalance(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_visit_is_an_incident_in_every_pass_and_another_one_each_time() -> None:
    found = incidents(visitor(150, 300), 150)
    assert [round(each.t - BEGUN) for each in found] == [10, 70, 130]
    assert found[0].start < BEGUN + 10 < BEGUN + 20 < found[0].end < BEGUN + 40


def test_footage_that_counts_once_has_no_second_pass() -> None:
    assert len(incidents(visitor(150, 300, once=True), 150)) == 1


def test_what_begins_as_the_run_ends_is_no_miss() -> None:
    assert len(incidents(visitor(150, 300), 15)) == 0


def test_an_incident_is_escalated_when_an_image_shows_it() -> None:
    wanted = {"gate": incidents(visitor(150, 300), 100)}
    first, second = (each.t for each in wanted["gate"])
    ask = [SentEscalation("gate", (first + 1,), True), SentEscalation("yard", (second + 1,), True)]
    assert match_incidents(wanted, ask) == (1, ["gate: intruder at 70.2 s"])
    assert match_incidents(wanted, [*ask, SentEscalation("gate", (first, second + 2), False)]) == (2, [])


def test_the_budgets_are_the_share_and_every_incident_or_a_rate_a_camera() -> None:
    assert faults(totals(), CASES["mixed"]) == []
    assert "3.00% is over 2%, most of it crop" in faults(totals(sent=300_000), CASES["mixed"])[0]
    assert "1 of 3 incidents" in faults(totals(found=2), CASES["mixed"])[0]
    assert faults(totals(sent=74_000), CASES["boxes-quiet"]) == []
    assert "3.04 kbit/s is over 3" in faults(totals(sent=76_000), CASES["boxes-quiet"])[0]


def test_the_report_names_share_rate_kinds_and_the_kernels_count() -> None:
    text = report(totals(found=2, missed=("gate: intruder at 70.0 s",)), CASES["mixed"])
    for words in ("1.00%, 4.00 kbit/s a camera", "counted 99900 (+0.10%)", "crop 70000, protocol 30000",
                  "not asked about: gate: intruder at 70.0 s", "MISSED"):  # fmt: skip
        assert words in text


def test_cameras_of_which_nothing_came_meet_no_budget() -> None:
    assert faults(totals(received=0, sent=0, incidents=0, found=0), CASES["quiet"]) == ["no byte came from the cameras"]
