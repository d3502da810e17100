"""Settings that change while the core runs: what did not change goes on, what did starts afresh on the same session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.core.core_settings import CoreDeps
from appliance.store.arming import ArmingRow
from appliance.types import HealthEvent, StreamHeader, TrackedObject
from tests.support.core_harness import CoreHarness, make_core, settings_of, site


@pytest.fixture
def harness(tmp_path: Path) -> CoreHarness:
    return CoreHarness(tmp_path, site(), ManualClock(1_700_000_000.0))


def see(harness: CoreHarness, frames: int = 3) -> None:
    """Somebody walks on."""
    for _ in range(frames):
        x = 0.1 + 0.02 * harness._seq
        harness.examine((TrackedObject(track=1, label="person", score=0.9, box=(x, 0.2, x + 0.1, 0.6)),))


def reconfigure(harness: CoreHarness, change: dict[str, Any] | None = None, **sections: Any) -> None:
    data = site().model_dump(mode="json") | sections
    data["cameras"]["gate"] |= change or {}
    data["cameras"]["back"] = {"url": "rtsp://127.0.0.1/y"}
    config = SiteConfig.model_validate(data)
    harness.core.reconfigure(settings_of(config, CoreDeps(harness.stores, harness.clock)))
    harness.second()


def test_a_camera_that_did_not_change_keeps_its_open_alert(harness: CoreHarness) -> None:
    see(harness)
    alert = harness.newest
    assert alert.t_end is None
    reconfigure(harness)
    see(harness)
    assert [row.alert.id for row in harness.alerts.page(limit=5)] == [alert.id]
    assert harness.newest.t_end is None
    assert len(harness.decided(alert.id)) == 1, "it is not decided about anew"


def test_a_camera_that_changed_ends_its_alert_and_follows_the_new_rules_on_the_same_session(
    harness: CoreHarness,
) -> None:
    see(harness)
    first = harness.newest
    half = [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]
    rule = {"name": "right", "kind": "enter", "zone": "half", "score_min": 0.3}
    reconfigure(harness, {"zones": {"half": half}, "rules": [rule]})
    row = harness.alerts.page(limit=5)[-1].alert
    assert (row.id, row.t_end is not None) == (first.id, True)
    for x in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        harness.examine((TrackedObject(track=2, label="person", score=0.9, box=(x, 0.2, x + 0.1, 0.6)),))
    assert harness.newest.id != first.id
    assert harness.newest.rules == ("right",)


def test_what_is_in_view_when_settings_change_is_not_reported_again(harness: CoreHarness) -> None:
    moving = {"rules": [{"name": "any", "kind": "enter", "zone": "yard", "at_start": "moving"}]}
    reconfigure(harness, moving)
    now = harness.clock.now()
    harness.core.take(StreamHeader(camera="gate", clip="", model="m", size=(640, 480), run="r2", known_before=True))
    standing = TrackedObject(track=7, label="person", score=0.9, box=(0.3, 0.2, 0.4, 0.6))
    for _ in range(10):
        harness.examine((standing,))
    assert len(harness.alerts.page(limit=5)) == 1, "it came after the connection"
    reconfigure(harness, moving | {"detect": {"fps": 4}})
    for _ in range(10):
        harness.examine((standing,))
    assert [row.alert.t_start > now for row in harness.alerts.page(limit=5)] == [True]
    for step in range(10):
        x = 0.3 + 0.05 * step
        harness.examine((replace(standing, box=(x, 0.2, x + 0.1, 0.6)),))
    assert len(harness.alerts.page(limit=5)) == 2, "it has moved off"


def test_a_new_title_or_privacy_takes_no_stay_from_who_stands_there(harness: CoreHarness) -> None:
    lingers = {"rules": [{"name": "lingers", "kind": "dwell", "zone": "yard", "seconds": 2, "score_min": 0.3}]}
    reconfigure(harness, lingers)
    standing = TrackedObject(track=7, label="person", score=0.9, box=(0.3, 0.2, 0.4, 0.6))
    for change in ({}, {"title": "The gate"}, {"privacy": {"blur": "people"}}, {"quota": {"continuous_hours": 9}}):
        reconfigure(harness, lingers | change)
        for _ in range(20):
            harness.examine((standing,))
    assert len(harness.alerts.page(limit=5)) == 1
    assert harness.newest.t_end is None


def test_a_cooldown_goes_on_over_a_change_of_settings_and_a_restart(harness: CoreHarness) -> None:
    rested = {"rules": [{**site().cameras["gate"].rules[0].model_dump(exclude_none=True), "cooldown_s": 60}]}
    reconfigure(harness, rested)
    first = harness.walk()
    reconfigure(harness, rested | {"detect": {"fps": 4}})
    assert harness.walk() == first
    data = site().model_dump(mode="json")
    data["cameras"]["gate"] |= rested
    harness.core = make_core(SiteConfig.model_validate(data), harness.stores, harness.clock)
    harness.core.take(StreamHeader(camera="gate", clip="", model="m", size=(640, 480), run="r2"))
    assert harness.walk() == first
    harness.clock.advance(60)
    assert harness.walk() != first


def test_a_camera_that_is_gone_takes_its_alert_and_its_faults_with_it(harness: CoreHarness) -> None:
    see(harness)
    now = harness.clock.now()
    harness.core.take(HealthEvent(camera="gate", id="h1", kind="black", t=now, t_start=now, reason="it is black"))
    config = SiteConfig.model_validate(
        site().model_dump(mode="json") | {"cameras": {"back": {"url": "rtsp://127.0.0.1/y"}}}
    )
    harness.core.reconfigure(settings_of(config, CoreDeps(harness.stores, harness.clock)))
    harness.second()
    assert harness.newest.t_end is not None
    assert [event.t_end is not None for event in harness.health.page(limit=5)] == [True]
    see(harness)  # what still comes of it is dropped
    assert len(harness.alerts.page(limit=5)) == 1


def test_other_alert_settings_end_what_is_open(harness: CoreHarness) -> None:
    see(harness)
    reconfigure(harness, alerts={"merge_s": 5})
    assert harness.newest.t_end is not None


def test_verdicts_and_questions_follow_the_new_settings_of_the_site(harness: CoreHarness) -> None:
    see(harness)
    alert = harness.newest
    asked = harness.escalated(alert.id)
    assert asked is not None
    assert asked.body.language == "en"
    reconfigure(harness, site={"language": "fr"}, escalation={"severity_on_verdict": {"confirmed": "info"}})
    harness.judge(alert.id, "confirmed")
    assert harness.newest.severity == "info"
    harness.walk()  # which is the alert that is open
    later = harness.escalated(harness.walk())
    assert later is not None
    assert later.body.language == "fr"


def test_a_disarmed_site_has_no_alerts_and_goes_on_examining(harness: CoreHarness) -> None:
    harness.stores.arming.put(ArmingRow(profile="disarmed", since_t=harness.clock.now(), until_t=None, who=""))
    see(harness, 10)
    assert harness.alerts.page(limit=5) == []
    harness.second()
    latest = harness.stores.boxes.latest("gate")
    assert latest is not None, "boxes are kept all the same"
    harness.stores.arming.remove()
    harness.examine((TrackedObject(track=2, label="person", score=0.9, box=(0.1, 0.2, 0.2, 0.6)),))
    harness.examine((TrackedObject(track=2, label="person", score=0.9, box=(0.12, 0.2, 0.22, 0.6)),))
    assert harness.newest.tracks == (2,)


def test_live_views_have_the_boxes_of_a_frame_before_they_are_written(harness: CoreHarness) -> None:
    see(harness, 1)
    noted = harness.stores.boxes.noted("gate")[-1]
    written = harness.stores.boxes.latest("gate")
    assert written is None or written.t < noted.t
    harness.second()
    assert harness.stores.boxes.latest("gate") == noted
