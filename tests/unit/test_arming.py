"""Profiles, the week that turns them, and what is paused: in force as wanted, over by itself, kept over a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import PreconditionError
from appliance.config import SiteConfig
from appliance.rules.arming import Arming
from appliance.store.arming import ArmingRow, ArmingStore
from appliance.store.boxes import BoxStore
from appliance.store.database import STEPS, Database, migrate
from appliance.store.timeline import StoredEvent, TimelineStore
from appliance.store.users import AccessLog
from appliance.types import FrameBoxes, StreamHeader, TrackedObject
from appliance.web.visitor import Visitor
from tests.support.core_harness import CoreHarness
from tests.support.core_harness import site as core_site
from tests.support.dashboard_site import Site, config_of

MONDAY = 1_700_438_400.0  # 2023-11-20 00:00 UTC
HOUR = 3600.0
ARMING: dict[str, Any] = {
    "profiles": {
        "home": {"cameras": ["gate"], "rules": ["intruder"], "notify": []},
        "closed": {"rules": ["intruder", "loiterer"]},
    },
    "schedule": [
        {"profile": "closed", "days": ["mon", "tue"], "hours": ["20:00-06:00"]},
        {"profile": "home", "days": ["tue"], "hours": ["05:00-09:00"]},
    ],
}


def utc(t: float) -> tuple[int, int]:
    minutes = int((t - MONDAY) // 60)
    return minutes // 1440 % 7, minutes % 1440


def config(**arming: Any) -> SiteConfig:
    return SiteConfig.model_validate({**config_of().model_dump(exclude_none=True), "arming": arming or ARMING})


class Week:
    """A site in a week that begins on a Monday, at `hours` of it."""

    def __init__(self, folder: Path, hours: float = 0.0, **arming: Any) -> None:
        self.clock = ManualClock(MONDAY + hours * HOUR)
        self.db = Database(folder / "vedette.db", self.clock)
        self.config = config(**arming)
        self.arming = self.start()

    def start(self) -> Arming:
        self.arming = Arming(self.config.arming, self.config.cameras, ArmingStore(self.db), self.clock, utc)
        return self.arming

    def at(self, hours: float) -> Arming:
        self.clock.jump(MONDAY + hours * HOUR - self.clock.now())
        return self.arming


@pytest.mark.parametrize(
    ("hours", "profile", "turns", "following"),
    [(0, "armed", 20, "closed"), (20, "closed", 30, "home"), (27, "closed", 30, "home"), (30, "home", 33, "armed"),
     (33, "armed", 44, "closed"), (54, "armed", 7 * 24 + 20, "closed")],
)  # fmt: skip
def test_the_week_turns_the_profile(tmp_path: Path, hours: float, profile: str, turns: float, following: str) -> None:
    state = Week(tmp_path, hours).arming.in_force()
    assert (state.name, state.by, state.following) == (profile, "schedule", following)
    assert state.until_t == MONDAY + turns * HOUR


def test_a_turn_is_at_the_hour_also_over_the_change_to_summer_time(tmp_path: Path) -> None:
    """At Monday 03:00 clocks are put forward to 04:00: the night ends at six, 5 hours after midnight."""
    week = Week(tmp_path, 0)

    def summer(t: float) -> tuple[int, int]:
        return utc(t + (HOUR if t >= MONDAY + 3 * HOUR else 0))

    hours = [{"profile": "disarmed", "hours": ["22:00-06:00"]}]
    arming = Arming(config(schedule=hours).arming, {}, ArmingStore(week.db), week.clock, summer)
    assert arming.in_force().until_t == MONDAY + 5 * HOUR


@pytest.mark.parametrize("hours", [1.5, 2.5, 2.99])
def test_a_turn_at_a_minute_that_summer_time_leaves_out_is_where_clocks_are_put_forward(
    tmp_path: Path, hours: float
) -> None:
    """At Monday 03:00 clocks are put forward to 04:00, and there is no 03:30 on that day."""
    week = Week(tmp_path, hours)

    def summer(t: float) -> tuple[int, int]:
        return utc(t + (HOUR if t >= MONDAY + 3 * HOUR else 0))

    nights = [{"profile": "disarmed", "hours": ["22:00-03:30"]}]
    arming = Arming(config(schedule=nights).arming, {}, ArmingStore(week.db), week.clock, summer)
    assert arming.in_force().until_t == MONDAY + 3 * HOUR
    assert arming.in_force().following == "armed"


def test_a_profile_says_which_rules_report(tmp_path: Path) -> None:
    week = Week(tmp_path)
    assert week.arming.off_rules("gate") == frozenset()
    assert week.at(30).off_rules("gate") == {"loiterer", "wrong-way"}, "home"
    assert week.at(20).off_rules("gate") == {"wrong-way"}, "closed"
    week.arming.choose("disarmed", None, "anna")
    assert week.arming.off_rules("gate") == {"intruder", "loiterer", "wrong-way"}
    assert not week.arming.reports


def test_what_was_off_is_known_later_if_nobody_changed_it(tmp_path: Path) -> None:
    week = Week(tmp_path, 10)
    week.arming.choose("disarmed", MONDAY + 12 * HOUR, "anna")
    week.arming.pauses.begin("gate", "intruder", MONDAY + 14 * HOUR, "anna")
    found = [week.at(21).off_rules("gate", MONDAY + hours * HOUR) for hours in (9, 11, 13, 15, 20)]
    assert found == [set(), {"intruder", "loiterer", "wrong-way"}, {"intruder"}, set(), {"wrong-way"}]


def test_a_choice_ends_by_itself_and_outlives_a_restart(tmp_path: Path) -> None:
    week = Week(tmp_path)
    week.arming.choose("home", MONDAY + HOUR, "anna", "dinner")
    week.db.close()
    week.db = Database(tmp_path / "vedette.db", week.clock)
    state = week.start().in_force()
    assert (state.name, state.by, state.who, state.why, state.following) == (
        "home",
        "person",
        "anna",
        "dinner",
        "armed",
    )
    assert week.at(0.99).profile == "home"
    assert week.at(1).profile == "armed"


def test_a_pause_of_a_rule_a_camera_ends_by_itself_or_by_hand(tmp_path: Path) -> None:
    week = Week(tmp_path)
    week.arming.pauses.begin("gate", "intruder", MONDAY + HOUR, "anna", "painters")
    assert week.arming.off_rules("gate") == {"intruder"}
    week.arming.pauses.begin("gate", "", MONDAY + 2 * HOUR, "")
    assert len(week.arming.off_rules("gate")) == 3
    assert [row.rule for row in week.start().pauses.paused("gate")] == ["", "intruder"], "after a restart, too"
    assert "rule intruder of camera gate is paused by anna (painters): it reports nothing" in week.arming.warnings()
    assert week.arming.pauses.end("gate")
    assert not week.arming.pauses.end("gate")
    assert week.at(1.1).off_rules("gate") == frozenset()
    assert week.arming.warnings() == ()


def test_a_clock_set_back_ends_a_pause_rather_than_prolonging_it(tmp_path: Path) -> None:
    week = Week(tmp_path)
    week.arming.pauses.begin("gate", "", MONDAY + HOUR, "anna")
    assert week.at(-24).off_rules("gate") == frozenset()


@pytest.mark.parametrize(
    ("camera", "rule", "hours"), [("barn", "", 1), ("gate", "nap", 1), ("gate", "", -1), ("gate", "", 24 * 7 + 1)]
)
def test_a_pause_is_of_something_that_is_there_and_has_an_end(
    tmp_path: Path, camera: str, rule: str, hours: float
) -> None:
    with pytest.raises(PreconditionError):
        Week(tmp_path).arming.pauses.begin(camera, rule, MONDAY + hours * HOUR, "anna")


def test_the_switch_gives_back_what_the_week_says(tmp_path: Path) -> None:
    week = Week(tmp_path, 30)
    assert week.arming.arm(armed=False, who="MQTT")
    assert not week.arming.arm(armed=False, who="MQTT")
    assert week.arming.arm(armed=True, who="MQTT")
    assert week.arming.profile == "home"
    always_off = Week(tmp_path / "b", 0, default="disarmed")
    assert always_off.arming.arm(armed=True, who="MQTT")
    assert always_off.arming.profile == "armed"


def test_a_profile_that_is_gone_from_the_site_file_is_in_force_no_more(tmp_path: Path) -> None:
    week = Week(tmp_path)
    week.arming.choose("home", None, "anna")
    week.config = config(profiles={"closed": {}})
    assert week.start().profile == "armed"
    with pytest.raises(PreconditionError, match="armed, closed, disarmed"):
        week.arming.choose("home", None, "anna")


def test_a_target_is_quiet_by_profile_and_by_snooze(tmp_path: Path) -> None:
    week = Week(tmp_path, 20)
    assert week.arming.quiet_reason("phone", "gate", ("intruder",)) == ""
    week.arming.pauses.snooze("phone", "gate", "intruder", week.clock.now() + HOUR, "link")
    assert "snoozed by link" in week.arming.quiet_reason("phone", "gate", ("intruder",))
    assert week.arming.quiet_reason("phone", "gate", ("intruder", "loiterer")) == "", "another rule is news"
    assert week.arming.quiet_reason("tablet", "gate", ("intruder",)) == ""
    assert week.arming.off_rules("gate") == {"wrong-way"}, "a snooze is of the target, not of the rule"
    assert "home" in week.at(30).quiet_reason("tablet", "gate", ("intruder",)), "nobody is told at home"


@pytest.mark.parametrize(
    ("arming", "words"),
    [({"profiles": {"armed": {}}}, "is there already"), ({"default": "away"}, "no profile `away`"),
     ({"profiles": {"home": {"cameras": ["barn"]}}}, "no camera `barn`"),
     ({"profiles": {"home": {"rules": ["nap"]}}}, "no rule `nap`"),
     ({"profiles": {"home": {"notify": ["nobody"]}}}, "no target `nobody`"),
     ({"schedule": [{"profile": "away"}]}, "no profile `away`"),
     ({"schedule": [{"profile": "armed", "hours": ["9-5"]}]}, "not a span of hours")],
)  # fmt: skip
def test_what_a_profile_names_must_be_there(arming: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**arming)


def test_the_switch_of_an_older_version_stays_off(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "vedette.db", isolation_level=None) as old:
        migrate(old, STEPS[:14])
        old.execute("INSERT INTO counter VALUES ('disarmed', 1)")
    old.close()
    assert Week(tmp_path).arming.profile == "disarmed"


def test_a_paused_rule_reports_nobody_who_came_meanwhile(tmp_path: Path) -> None:
    harness = CoreHarness(tmp_path, core_site(), ManualClock())

    def see(x: float, track: int = 1) -> None:
        harness.examine((TrackedObject(track=track, label="person", score=0.9, box=(x, 0.2, x + 0.1, 0.6)),))

    now = harness.clock.now()
    harness.stores.arming.put(ArmingRow(camera="gate", rule="intruder", since_t=now, until_t=now + 5, who="anna"))
    for n in range(10):
        see(0.1 + 0.02 * n)
    harness.clock.advance(5.0)
    for n in range(10):
        see(0.3 + 0.02 * n)
    assert harness.alerts.page(limit=5) == []
    see(0.1, track=2)
    see(0.12, track=2)
    assert harness.newest.tracks == (2,)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Site, TestClient]]:
    site = Site(tmp_path, ManualClock(MONDAY), config())
    with site.client() as client:
        yield site, client
    site.close()


def test_the_api_chooses_pauses_and_says_who(served: tuple[Site, TestClient]) -> None:
    site, client = served
    found = client.get("/api/v1/arming").json()
    assert (found["profile"], found["profiles"]) in [
        (name, ["armed", "home", "closed", "disarmed"]) for name in ("armed", "home", "closed")
    ]
    done = client.post("/api/v1/arming", json={"profile": "disarmed", "minutes": 60, "why": "cleaners"}).json()
    assert (done["profile"], done["until_t"], done["reports"]) == ("disarmed", MONDAY + HOUR, False)
    done = client.post("/api/v1/cameras/gate/pause", json={"rule": "intruder", "minutes": 15}).json()
    assert [(each["camera"], each["rule"], each["until_t"]) for each in done["pauses"]] == [
        ("gate", "intruder", MONDAY + 900)
    ]
    assert client.post("/api/v1/cameras/gate/pause", json={"rule": "intruder", "minutes": 0}).json()["pauses"] == []
    done = client.post("/api/v1/arming", json={"profile": None}).json()
    assert done["by"] == "schedule"
    log = [(row.what, row.about) for row in AccessLog(site.db).newest()]
    assert ("chose the profile", "disarmed until 2023-11-20T01:00:00.000Z: cleaners") in log
    assert ("paused", "gate, rule intruder until 2023-11-20T00:15:00.000Z") in log


def store_walker(site: Site) -> float:
    """The boxes of somebody who walks through the zone in a minute from now; when that begins."""
    t0 = site.clock.now() + 60
    site.clock.advance(120)
    walker = [
        TrackedObject(track=1, label="person", score=0.9, box=(0.1 + n / 50, 0.3, 0.2 + n / 50, 0.7)) for n in range(20)
    ]
    frames = [
        FrameBoxes(camera="gate", seq=n, frame=n, t=t0 + n / 5, looked=True, objects=(each,) if n > 3 else ())
        for n, each in enumerate(walker)
    ]
    BoxStore(site.db).append("gate", "run", frames)
    return t0


def test_why_nobody_was_reported_may_be_that_the_site_was_disarmed(served: tuple[Site, TestClient]) -> None:
    site, client = served
    client.post("/api/v1/arming", json={"profile": "disarmed"})
    t0 = store_walker(site)
    found = client.get("/api/v1/cameras/gate/why", params={"from": t0, "to": t0 + 10}).json()
    assert (found["sentence_key"], found["because"]["stage"]) == ("held", "disarmed")


def test_why_puts_scores_on_the_common_scale_as_they_were_live(served: tuple[Site, TestClient]) -> None:
    site, client = served
    header = StreamHeader(
        camera="gate", clip="", model="m", size=(320, 240), run="run", calibration={"person": (1.0, -4.0)}
    )
    site.cameras.write_header(header)
    t0 = store_walker(site)
    found = client.get("/api/v1/cameras/gate/why", params={"from": t0, "to": t0 + 10}).json()
    assert (found["sentence_key"], found["because"]["stage"]) == ("held", "score")


def test_why_reads_the_events_of_no_moment_twice(
    served: tuple[Site, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, client = served
    spans: list[tuple[float, float]] = []
    read = TimelineStore.events

    def events(store: TimelineStore, camera: str, t0: float, t1: float) -> list[StoredEvent]:
        spans.append((t0, t1))
        return read(store, camera, t0, t1)

    monkeypatch.setattr(TimelineStore, "events", events)
    t0 = site.clock.now() - 60
    assert client.get("/api/v1/cameras/gate/why", params={"from": t0, "to": t0 + 10}).status_code == 200
    assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    assert spans[-1][1] == t0 + 10


def test_until_the_week_turns_is_a_time(served: tuple[Site, TestClient]) -> None:
    done = served[1].post("/api/v1/arming", json={"profile": "disarmed", "turn": True}).json()
    assert done["until_t"] > MONDAY
    assert done["following"] in {"armed", "home", "closed"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("arming", {"profile": "party"}), ("arming", {"profile": "home", "until_t": 12}), ("cameras/gate/pause", {}),
     ("cameras/gate/pause", {"rule": "nap", "minutes": 5}), ("cameras/gate/pause", {"minutes": 1e9}),
     ("cameras/nowhere/pause", {"minutes": 0}), ("cameras/gate/pause", {"minutes": 5, "until_t": False})],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_words(served: tuple[Site, TestClient], path: str, body: dict[str, Any]) -> None:
    answer = served[1].post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 422
    assert json.loads(answer.text)["detail"]
    assert served[1].get("/api/v1/arming").json()["pauses"] == []


def test_a_pause_stands_on_the_wall_and_on_the_timelines(served: tuple[Site, TestClient]) -> None:
    _, client = served
    client.post("/api/v1/cameras/gate/pause", json={"rule": "intruder", "minutes": 60, "why": "the painters"})
    assert ">paused: intruder</span>" in client.get("/live").text
    for path in ("/timeline", "/cameras/gate/timeline"):
        assert "the painters" in client.get(path).text, path
    assert "the painters" not in client.get("/cameras/dock/timeline").text
    client.post("/api/v1/cameras/gate/pause", json={"rule": "intruder", "minutes": 0})
    assert "paused: intruder" not in client.get("/live").text


def test_what_is_refused_is_a_sentence(served: tuple[Site, TestClient]) -> None:
    refused = served[1].post("/api/v1/cameras/nowhere/pause", json={"minutes": 60})
    assert (refused.status_code, refused.json()["detail"]) == (422, "There is no camera nowhere in the site file.")


def test_a_visitor_with_some_cameras_sees_their_pauses(
    served: tuple[Site, TestClient], set_visitor: Callable[[Visitor, str], None]
) -> None:
    from appliance.dashboard.arming_api import ArmingReport

    site, client = served
    client.post("/api/v1/cameras/gate/pause", json={"minutes": 15})
    arming = Arming(site.config.arming, site.config.cameras, ArmingStore(site.db), site.clock, utc)
    set_visitor(Visitor("x", "viewer", frozenset({"dock"})), "10.0.0.1")
    assert ArmingReport.of(arming).pauses == []
    set_visitor(Visitor("x", "viewer", frozenset({"gate"})), "10.0.0.1")
    assert len(ArmingReport.of(arming).pauses) == 1
