"""The appliance re-checks an alert that the cloud does not answer: when, which object, and with what verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.config import RecheckConfig, RouterConfig
from appliance.recheck.recheck_policy import (
    ApplianceStatus,
    CloudStatus,
    RecheckCandidate,
    choose_subject,
    find_blocker,
    judge_recheck,
    recheck_reason,
)
from appliance.recheck.service import ANSWER_S, ENDED_EVERY_S, FRESH_S, GIVE_UP_S, RecheckService, StatusSources
from appliance.router.calibration import UNTRAINED
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.reviews import ReviewStore
from appliance.types import CropRequest, CropResult, RecheckCommand, RecheckDetection, RecheckResult, TrackStability
from tests.support.recheck_yard import FPS, alert_of, record, walk
from tests.support.sample_rows import T0, sample_escalation
from tests.support.sample_rows import sample_verdict as answer

SETTINGS = RecheckConfig()
UP, GONE = CloudStatus(configured=True), CloudStatus(configured=True, down_s=5.0)
IDLE = ApplianceStatus(starts=1, load=0.2, detector_load=0.1)


@pytest.mark.parametrize(
    ("candidate", "cloud", "why"),
    [
        (RecheckCandidate(age_s=3), CloudStatus(), "this site asks no cloud"),
        (RecheckCandidate(age_s=3, refused="severity info is not asked about"), UP, "was not asked: severity info"),
        (RecheckCandidate(age_s=3, delivery="deferred", wait="budget"), UP, "waits for the budget"),
        (RecheckCandidate(age_s=3, delivery="ready"), GONE, "the cloud cannot be reached"),
        (
            RecheckCandidate(age_s=3, delivery="waiting"),
            CloudStatus(configured=True, silent=True),
            "the cloud does not answer",
        ),
        (RecheckCandidate(age_s=30, delivery="sent", sent_s=25), UP, "the cloud has not answered for 25 s"),
        (RecheckCandidate(age_s=30, delivery="ready", escalated_s=25), UP, "the question has not left for 25 s"),
        (RecheckCandidate(age_s=300, delivery="expired"), UP, "no answer came in time"),
    ],
)
def test_an_alert_is_rechecked_where_the_cloud_does_not_answer(
    candidate: RecheckCandidate, cloud: CloudStatus, why: str
) -> None:
    assert why in recheck_reason(candidate, cloud, SETTINGS)


@pytest.mark.parametrize(
    ("candidate", "cloud"),
    [
        (RecheckCandidate(age_s=1), CloudStatus()),
        (RecheckCandidate(age_s=3, delivery="ready"), UP),
        (RecheckCandidate(age_s=9, delivery="sent", sent_s=8), UP),
        (RecheckCandidate(age_s=9), UP),
        (RecheckCandidate(age_s=3, delivery="ready"), CloudStatus(configured=True, down_s=0.5)),
    ],
    ids=["too early", "just made", "on its way", "the router has not decided", "the link is only just being made"],
)
def test_an_alert_that_is_about_to_be_answered_is_left_alone(candidate: RecheckCandidate, cloud: CloudStatus) -> None:
    assert recheck_reason(candidate, cloud, SETTINGS) == ""


def test_switched_off_nothing_is_rechecked() -> None:
    assert recheck_reason(RecheckCandidate(age_s=99), CloudStatus(), RecheckConfig(enabled=False)) == ""


def test_a_recheck_needs_capacity_to_spare() -> None:
    def blocker(appliance: ApplianceStatus, rechecks: int = 0, router: RouterConfig | None = None) -> str:
        return find_blocker(appliance, rechecks, SETTINGS, router or RouterConfig())

    assert blocker(IDLE) == ""
    assert blocker(ApplianceStatus()) == "ingest"
    assert blocker(ApplianceStatus(starts=1, detector_load=0.9)) == "detector"
    assert blocker(ApplianceStatus(starts=1, detector_queue=1)) == "detector"
    assert blocker(ApplianceStatus(starts=1, load=3.0)) == "box"
    assert blocker(ApplianceStatus(starts=1, load=3.0), router=RouterConfig(load_max=4.0)) == ""
    assert blocker(ApplianceStatus(starts=1, temperature_c=90), router=RouterConfig(temperature_max_c=80)) == "box"
    assert blocker(IDLE, rechecks=SETTINGS.per_minute) == "rate"


def result_of(*scores: float, name: str = "", label: str = "person") -> RecheckResult:
    """A crop for each score, in which the object is found that sure, or (0) not at all."""
    box = (0.4, 0.4, 0.5, 0.7)

    def found(score: float) -> tuple[RecheckDetection, ...]:
        return (RecheckDetection(label=label, score=score, box=box),) if score else ()

    sightings = tuple(CropResult(t=T0 + n, box=box, found=found(score)) for n, score in enumerate(scores))
    return RecheckResult(id=name, camera="gate", model="m", ms=80.0, sightings=sightings)


SEEN = TrackStability(score=0.7, spread=0.1, looks=10, moved=1.0)


def chance(seen: TrackStability) -> float:
    return UNTRAINED.probability("gate", "person", seen)


def test_who_is_found_again_is_rechecked_the_surer_the_surer() -> None:
    sure = judge_recheck("person", SEEN, result_of(0.9, 0.9, 0.8, 0.9), "the cloud cannot be reached", chance)
    less = judge_recheck("person", SEEN, result_of(0.9, 0.6, 0.0, 0.6), "the cloud cannot be reached", chance)
    assert (sure.decision, less.decision) == ("rechecked", "rechecked"), "a detector confirms nothing"
    assert sure.confidence > less.confidence
    assert sure.reason == (
        "A second look on this appliance found the person again in 4 of 4 pictures. "
        "It looked because the cloud cannot be reached."
    )


def test_who_is_not_found_again_is_never_withdrawn_only_less_sure() -> None:
    none = judge_recheck("person", SEEN, result_of(0.0, 0.0), "", chance)
    few = judge_recheck("person", SEEN, result_of(0.9, 0.3, 0.2, 0.0), "", chance)
    assert (none.decision, few.decision) == ("unsure", "unsure")
    assert none.confidence < few.confidence <= chance(SEEN)
    assert "which proves nothing: the alert stands" in none.reason


def test_another_kind_of_thing_or_another_place_is_not_the_one() -> None:
    assert judge_recheck("person", SEEN, result_of(0.9, 0.9, label="car"), "", chance).seen == 0
    beside = CropResult(
        t=T0, box=(0.1, 0.1, 0.2, 0.4), found=(RecheckDetection(label="person", score=0.9, box=(0.6, 0.1, 0.7, 0.4)),)
    )
    assert judge_recheck("person", SEEN, RecheckResult(id="", camera="gate", sightings=(beside,)), "", chance).seen == 0


class CoreSide:
    """Re-checks on a real store; the ingest process is a list of the commands that it was sent."""

    def __init__(self, folder: Path, settings: RecheckConfig = SETTINGS) -> None:
        self.clock = ManualClock(T0)
        self.db = Database(folder / "vedette.db", self.clock)
        self.alerts, self.meter = AlertStore(self.db), Meter(self.db, "r")
        self.commands: list[RecheckCommand] = []
        self.appliance, self.cloud, self.alive = IDLE, CloudStatus(), True
        sources = StatusSources(lambda: self.appliance, lambda: self.cloud, lambda: UNTRAINED)
        self.service = RecheckService(settings, RouterConfig(), self.db, self.meter, self.clock, self._send, sources)
        record(folder, self.db, T0)

    def second(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.service.run_once()

    def answer(self, *scores: float, error: str = "") -> None:
        name = self.commands[-1].id
        result = RecheckResult(id=name, camera="gate", error=error) if error else result_of(*scores, name=name)
        self.service.receive(result)
        self.service.run_once()

    def row(self, alert: str = "a1") -> tuple[str | None, str | None]:
        """(the state of its re-check, the edge verdict)."""
        detail = self.alerts.get(alert)
        assert detail is not None
        return (detail.recheck.state if detail.recheck else None), detail.row.judged.edge

    def counts(self) -> dict[str, int]:
        return {each.kind.removeprefix("second_look_"): each.amount for each in self.meter.totals("all")}

    def _send(self, command: RecheckCommand) -> bool:
        if self.alive:
            self.commands.append(command)
        return self.alive


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreSide]:
    core = CoreSide(tmp_path)
    yield core
    core.db.close()


def test_an_alert_is_rechecked_once_at_moments_spread_over_its_life(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second()
    (order,) = core.commands
    times = [glimpse.t for glimpse in order.glimpses]
    assert (len(times), len(set(times))) == (4, 4)
    assert max(times) - min(times) > 0.5 * (max(walk()) - min(walk())) / FPS
    assert [footage.path for footage in order.footage] == ["segments/gate/yard.mp4"]
    core.answer(0.9, 0.9, 0.9, 0.9)
    core.second(10)
    assert (len(core.commands), core.row(), core.counts()) == (1, ("judged", "rechecked"), {"rechecked": 1})
    detail = core.alerts.get("a1")
    assert detail is not None
    assert (detail.row.judged.verdict, detail.row.judged.edge_confidence) == (None, pytest.approx(0.9, abs=0.1))


def test_who_walked_out_of_the_picture_before_the_rule_fired_is_rechecked_where_he_was_seen(core: CoreSide) -> None:
    alert_of(core.db, T0, gone_s=3.2)
    core.second()
    (order,) = core.commands
    seen = [T0 + frame / FPS for frame in walk()]
    assert len(order.glimpses) == 4
    assert all(min(seen) <= glimpse.t <= max(seen) for glimpse in order.glimpses)


def test_the_most_severe_comes_first_and_at_most_so_many_a_minute(tmp_path: Path) -> None:
    core = CoreSide(tmp_path, RecheckConfig(per_minute=2))
    alert_of(core.db, T0, "mild", track=1, severity="info")
    alert_of(core.db, T0, "grave", track=2, severity="alert")
    alert_of(core.db, T0, "middling", track=3, severity="warning")
    for _ in range(8):
        core.second()
        if core.commands and core.row(core.commands[-1].id.rpartition(".")[0])[0] == "asked":
            core.answer(0.9)
    assert [order.id for order in core.commands] == ["grave.1", "middling.1"]
    core.second(60)
    assert core.commands[-1].id == "mild.1"
    core.db.close()


def test_what_failed_is_tried_once_more_and_then_recorded_as_failed(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second()
    core.answer(error="the detector failed")
    core.second()
    assert [order.id for order in core.commands] == ["a1.1", "a1.2"]
    core.answer(error="the detector failed")
    core.second()
    assert len(core.commands) == 2
    assert core.row() == ("failed", None), "nothing is said of what is there"
    assert core.counts() == {"retried": 1, "failed": 1}
    detail = core.alerts.get("a1")
    assert detail is not None
    assert detail.recheck is not None
    assert detail.recheck.error == "the detector failed"


def test_what_is_never_answered_is_given_up(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second()
    core.second(ANSWER_S + 1)
    assert len(core.commands) == 2
    core.second(ANSWER_S + 1)
    assert core.row() == ("failed", None)


def test_a_recheck_of_which_the_ingest_process_dies_is_not_made_again(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second()
    core.appliance = ApplianceStatus(starts=2)
    core.second()
    assert (len(core.commands), core.row()) == (1, ("failed", None))


def test_after_a_restart_it_is_ordered_again_but_not_for_ever(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second()
    for _ in range(3):
        again = RecheckService(
            RecheckConfig(),
            RouterConfig(),
            core.db,
            core.meter,
            core.clock,
            core._send,
            StatusSources(lambda: IDLE, CloudStatus, lambda: UNTRAINED),
        )
        again.run_once()
    assert [order.id for order in core.commands] == ["a1.1", "a1.2"]
    assert core.row() == ("failed", None), "nobody works on it any more"


@pytest.mark.parametrize("what", ["reviewed", "deleted", "old"])
def test_a_recheck_that_needs_no_second_try_does_not_stay_asked(core: CoreSide, what: str) -> None:
    alert_of(core.db, T0)
    core.second()
    core.appliance = ApplianceStatus(starts=1, detector_load=1.0)
    core.answer(error="the detector failed")
    assert core.row() == ("asked", None)
    if what == "reviewed":
        ReviewStore(core.db).review(["a1"], "false_alarm", T0 + 5)
    elif what == "deleted":
        ReviewStore(core.db).delete(["a1"], "", T0 + 5)
    core.second(ENDED_EVERY_S if what != "old" else FRESH_S + 1)
    assert core.row() == (("failed", None) if what == "old" else (None, None))


def test_a_deleted_alert_is_not_rechecked(core: CoreSide) -> None:
    alert_of(core.db, T0)
    ReviewStore(core.db).delete(["a1"], "", T0)
    core.second()
    assert (core.commands, core.row()) == ([], (None, None))


def test_the_cloud_that_was_faster_is_not_contradicted(core: CoreSide) -> None:
    core.cloud = GONE
    alert_of(core.db, T0, ask=lambda alert, event: sample_escalation(camera="gate"))
    core.second()
    assert core.alerts.apply_verdict(answer(decision="rejected"), T0 + 9)
    core.answer(0.9, 0.9)
    assert core.row() == (None, None)
    assert core.counts() == {"late": 1}


def test_the_clouds_later_verdict_stands_above_and_is_applied_once(core: CoreSide) -> None:
    core.cloud = GONE
    alert_of(core.db, T0, ask=lambda alert, event: sample_escalation(camera="gate"))
    core.second()
    core.answer(0.9, 0.9, 0.9)
    assert core.row() == ("judged", "rechecked")
    assert core.alerts.apply_verdict(answer(decision="rejected"), T0 + 9)
    assert not core.alerts.apply_verdict(answer(decision="rejected"), T0 + 10)
    detail = core.alerts.get("a1")
    assert detail is not None
    assert (detail.row.judged.verdict, detail.row.judged.edge, len(detail.verdicts)) == ("rejected", "rechecked", 1)


def test_an_appliance_without_capacity_records_a_failure(core: CoreSide) -> None:
    core.appliance = ApplianceStatus(starts=1, detector_load=1.0)
    alert_of(core.db, T0)
    core.second(GIVE_UP_S / 2)
    assert core.row() == (None, None)
    core.second(GIVE_UP_S)
    assert (core.commands, core.row(), core.counts()) == ([], ("failed", None), {"missed": 1})


def test_history_is_left_alone(core: CoreSide) -> None:
    alert_of(core.db, T0)
    core.second(3600)
    assert (core.commands, core.row()) == ([], (None, None))


def test_only_what_is_recorded_is_rechecked(core: CoreSide) -> None:
    over = alert_of(core.db, T0)
    row = core.alerts.get("a1")
    assert row is not None
    assert over.t_end is not None
    frames = BoxStore(core.db).span("gate", T0, over.t_end)
    until = over.t_start + 1.0
    subject = choose_subject(row.alert, frames, until, (960, 540), 4)
    assert subject is not None
    assert all(crop.t <= until for crop in subject.crops)
    assert choose_subject(row.alert, frames, over.t_start - 1, (960, 540), 4) is None
    assert isinstance(subject.crops[0], CropRequest)
