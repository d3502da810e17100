"""Frames in which nothing was reported: which are sent, which never, and what their verdicts are good for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_evidence import Site

from appliance import wire
from appliance.base.clock import ManualClock
from appliance.config import Rule, SiteConfig
from appliance.core.core_settings import router_context
from appliance.evidence.privacy import PrivacyRules
from appliance.router.router_maintenance import SILENT_RULE, SLOT_S, SilentFrame, SilentFrameAudit
from appliance.store.alerts import AlertStore
from appliance.store.escalations import EscalationStore
from appliance.store.reviews import RecheckStore, ReviewStore
from appliance.store.silent_frames import SilentFrameCounts, SilentFrameStore
from appliance.types import EdgeVerdict, FrameBoxes, SystemLoad, TrackedObject
from tests.support.core_harness import CoreHarness, site
from tests.support.sample_rows import T0, sample_verdict

START = 1_760_000_000.0 // SLOT_S * SLOT_S
PERSON = TrackedObject(track=1, label="person", score=0.9, box=(0.4, 0.2, 0.5, 0.6))
KINDS = {"openai": "vlm", "redetect": "detector"}
EVERY_SLOT = {"silent_frames_day": 86400 / SLOT_S}


def armed(rule: Rule, t: float) -> bool:
    return True


def audit(config: SiteConfig, is_armed: Callable[[Rule, float], bool] = armed) -> SilentFrameAudit:
    privacy = PrivacyRules(config.site, config.cameras, lambda t: (0, int(t // 60) % 1440))
    rules = config.cameras["gate"].rules
    return SilentFrameAudit("gate", rules, router_context(config.for_decisions()), is_armed, privacy.lets_frames_leave)


def frame(t: float, *objects: TrackedObject, looked: bool = True) -> FrameBoxes:
    return FrameBoxes(camera="gate", seq=0, frame=0, t=t, looked=looked, objects=objects)


def with_camera(config: SiteConfig, **changes: Any) -> SiteConfig:
    gate = config.cameras["gate"].model_dump(by_alias=True) | changes
    return SiteConfig.model_validate(config.model_dump() | {"cameras": {"gate": gate}})


def drawn(each: SilentFrameAudit, minutes: int, *objects: TrackedObject) -> list[SilentFrame]:
    found = (each.draw(frame(START + n * SLOT_S, *objects), "m", "r1", START) for n in range(minutes))
    return [one for one in found if one is not None]


def test_a_low_rate_is_kept_and_the_same_frames_are_drawn_again() -> None:
    config = site(router={"silent_frames_day": 24})
    found = drawn(audit(config), 20 * 1440)
    assert 400 <= len(found) <= 560  # 480 ± 3.7 standard deviations
    assert found == drawn(audit(config), 20 * 1440)
    assert len({each.escalation.alert for each in found}) == len(found)
    assert not drawn(audit(site(router={"silent_frames_day": 0})), 20 * 1440)


def test_of_a_slot_one_frame_goes_with_a_question_about_what_the_rules_watch_for() -> None:
    each = audit(site(router=EVERY_SLOT))
    first = each.draw(frame(START), "m", "r1", START + 1)
    assert first is not None
    assert each.draw(frame(START + 1), "m", "r1", START + 1) is None
    assert (first.escalation.rule, first.escalation.severity, first.labels) == (SILENT_RULE, "info", ("person",))
    assert first.escalation.question == (
        "Nothing was reported here. Is there a person in this picture that should have been noticed?"
    )


def test_a_frame_in_which_something_watched_was_detected_or_that_nobody_looked_at_says_nothing_of_misses() -> None:
    each = audit(site(router=EVERY_SLOT))
    assert each.draw(frame(START, PERSON), "m", "r1", START) is None
    assert each.draw(frame(START + 1, looked=False), "m", "r1", START) is None
    assert each.draw(frame(START + 2, replace(PERSON, label="cat")), "m", "r1", START) is not None


@pytest.mark.parametrize(
    "camera",
    [
        {"image_free": True},
        {"privacy": {"never": True}},
        {"privacy": {"never": [{"zones": ["yard"]}]}},
        {"privacy": {"blur": "people"}},
        {"privacy": {"blur": "surroundings"}},
    ],
)
def test_of_a_camera_whose_owner_forbids_it_no_frame_is_ever_drawn(camera: dict[str, Any]) -> None:
    assert not drawn(audit(with_camera(site(router=EVERY_SLOT), **camera)), 200)


def test_the_hours_of_a_privacy_rule_are_kept() -> None:
    config = with_camera(site(router=EVERY_SLOT), privacy={"never": [{"hours": ["08:00-20:00"]}]})
    hours = {int(each.escalation.t // 60) % 1440 // 60 for each in drawn(audit(config), 1440)}
    assert hours == {*range(8), *range(20, 24)}


def test_what_is_not_watched_or_never_escalated_is_not_audited() -> None:
    every, rules = site(router=EVERY_SLOT), site().cameras["gate"].model_dump()["rules"]
    assert drawn(audit(every), 5)
    assert not drawn(audit(every, lambda rule, t: False), 200)
    assert not drawn(audit(with_camera(every, rules=[rules[0] | {"escalate": False}])), 200)
    assert not drawn(audit(with_camera(every, rules=[rules[0] | {"severity": "info"}])), 200)
    assert not drawn(audit(every.model_copy(update={"uplink": None})), 200)


def test_it_is_left_out_where_budget_or_load_have_no_room() -> None:
    poor = site(router=EVERY_SLOT, budget={"mb_day": 0.1, "alert_reserve": 0.5})
    assert len(drawn(audit(poor), 100)) == 1  # 34 kB of the 50 that are not reserved
    limits = {"load_max": 2.0, "temperature_max_c": 80.0, "answer_s": 30.0}
    for load in (
        SystemLoad(link_up=False), SystemLoad(load=9.0), SystemLoad(queue_age_s=1e4), SystemLoad(temperature_c=81.0),
        SystemLoad(pool_wait_s=31.0), SystemLoad(gpu_hour=3.0), None,
    ):  # fmt: skip
        each = audit(site(router={**EVERY_SLOT, **limits}, prices={"gpu_hour_max": 2.0}))
        each._context.system_load = load or SystemLoad(
            link_up=True, load=1.0, queue_age_s=1.0, temperature_c=60.0, pool_wait_s=1.0, gpu_hour=1.0
        )
        assert bool(drawn(each, 50)) == (load is None), load


# On a real database


@pytest.fixture
def box(tmp_path: Path) -> CoreHarness:
    return CoreHarness(tmp_path, site(router=EVERY_SLOT), ManualClock(START))


def silent_rows(box: CoreHarness) -> list[str]:
    with box.db.read() as connection:
        return [row["id"] for row in connection.execute("SELECT id FROM alert WHERE audit = 1 ORDER BY t_start")]


def answer(box: CoreHarness, alert: str, engine: str, decision: str) -> None:
    row = box.escalated(alert)
    assert row is not None
    verdict = sample_verdict(decision=decision).model_copy(
        update={"escalation": row.id, "site": row.site, "alert": alert, "engine": engine, "kind": KINDS[engine]}
    )
    assert box.alerts.apply_verdict(verdict, box.clock.now())


def test_a_silent_frame_is_an_escalation_and_no_list_shows_it_as_an_alert(box: CoreHarness) -> None:
    for _ in range(3):
        box.examine(())
    (alert,) = silent_rows(box)
    row = box.escalated(alert)
    assert row is not None
    assert (row.priority, row.need, row.state, row.body.rule) == ("low", "frame", "waiting", SILENT_RULE)
    assert box.alerts.page() == []
    assert box.alerts.changed_since(0) == []
    assert box.alerts.counts().total == 0
    assert RecheckStore(box.db).unverified_alerts(0.0, 10) == []
    assert box.decisions.outcomes() == []
    assert box.alerts.get(alert) is not None  # it can be found


def test_nothing_is_audited_while_an_alert_is_open_or_with_the_frame_that_raised_it(box: CoreHarness) -> None:
    silent_rows_before = len(silent_rows(box))
    box.clock.advance(SLOT_S)
    for n in range(8):
        box.examine((replace(PERSON, box=(0.1 + 0.05 * n, 0.2, 0.2 + 0.05 * n, 0.6)),))
    assert len(silent_rows(box)) == silent_rows_before
    box.examine(())  # gone, and the alert is open still
    assert len(silent_rows(box)) == silent_rows_before


def test_people_and_language_models_bound_what_is_missed_and_a_detector_does_not(box: CoreHarness) -> None:
    for _ in range(4):
        box.examine(())
        box.clock.advance(SLOT_S)
    store = SilentFrameStore(box.db)
    rejected, confirmed, detected, reviewed = silent_rows(box)
    assert store.counts() == SilentFrameCounts(sent=4)
    answer(box, rejected, "openai", "rejected")
    answer(box, confirmed, "openai", "confirmed")
    answer(box, detected, "redetect", "rejected")
    ReviewStore(box.db).review([reviewed], "false_alarm", box.clock.now())
    assert store.counts() == SilentFrameCounts(
        sent=4, known=3, missed=1, by={"vlm": 2, "person": 1}, missed_alerts=(confirmed,)
    )


def test_one_picture_leaves_and_no_more_is_sent_whoever_asks(tmp_path: Path) -> None:
    yard = Site(tmp_path, {"first": "crops"})
    yard.record()
    yard.see([n / 5 for n in range(60)])
    question = audit(site(router=EVERY_SLOT)).draw(frame(T0 + 3), "m", "r1", T0 + 3)
    assert question is not None
    body = question.escalation.model_copy(update={"camera": "yard", "t": T0 + 3})
    assert SilentFrameStore(yard.db).add(body, question.labels, "r1")
    assert not SilentFrameStore(yard.db).add(body, question.labels, "r1")
    yard.pass_time(1)
    escalations = EscalationStore(yard.db)
    assert [row.ref.kind for row in escalations.media(body.id)] == ["frame"]
    detail = AlertStore(yard.db).get(body.alert)
    assert detail is not None
    row = detail.escalation
    assert row is not None
    assert (row.state, row.body.can) == ("ready", ())
    verdict = sample_verdict(decision="unsure").model_copy(
        update={"escalation": body.id, "site": body.site, "alert": body.alert, "need": "clip", "step": 0}
    )
    with yard.db.transaction() as connection:
        connection.execute("UPDATE escalation SET state = 'sent'")
    assert AlertStore(yard.db).take_verdict(verdict, yard.clock.now()) == "more"
    yard.pass_time(1)
    assert [each.ref.kind for each in escalations.media(body.id)] == ["frame"]
    found = AlertStore(yard.db).get(body.alert)
    assert found is not None
    assert found.verdict is not None
    assert found.verdict.body.reason.endswith("but an audit sends one picture and no more.")


# What the appliance's own second detection says of an alert that stayed at the edge


def kept(tmp_path: Path) -> tuple[CoreHarness, str]:
    """An alert that the appliance is likely sure of, and keeps while it learns."""
    box = CoreHarness(tmp_path, site(router={"cold_share": 0.0}), ManualClock(START))
    calibration = None
    for camera in box.core._settings.cameras.values():
        context = camera.planner._context
        fit = context.calibration.everything
        calibration = replace(
            context.calibration, everything=replace(fit, sure=replace(fit.sure, chance_max=0.5, error_high=0.04))
        )
        context.calibration = calibration
    alert = box.walk()
    assert box.decided(alert)[-1][0] == "never"
    return box, alert


def rechecked(box: CoreHarness, alert: str, decision: str, confidence: float = 0.9) -> None:
    store = RecheckStore(box.db)
    store.begin(alert, "the cloud was not asked")
    verdict = EdgeVerdict(
        decision=decision, confidence=confidence, reason="So.", model="m", why="w", looks=3, seen=0, score=0.0, ms=1.0
    )  # type: ignore[arg-type]  # fmt: skip
    assert store.record_verdict(alert, verdict)
    for _ in range(6):
        box.second()


def test_one_that_is_not_found_again_is_asked_about_after_all(tmp_path: Path) -> None:
    box, alert = kept(tmp_path)
    rechecked(box, alert, "unsure")
    assert box.escalated(alert) is not None
    assert box.decided(alert)[-1][0] == "now"
    assert len(box.decided(alert)) == 2


def test_one_that_is_found_again_stays_at_the_edge_and_is_decided_once(tmp_path: Path) -> None:
    box, alert = kept(tmp_path)
    rechecked(box, alert, "rechecked")
    assert box.escalated(alert) is None
    assert box.decisions.rechecked(10) == []


def test_what_privacy_forbids_stays_however_the_second_detection_ends(tmp_path: Path) -> None:
    config = with_camera(site(), privacy={"never": True})
    box = CoreHarness(tmp_path, config, ManualClock(START))
    alert = box.walk()
    rechecked(box, alert, "unsure")
    assert box.escalated(alert) is None
    assert wire.PRIORITIES[-1] == "low"
