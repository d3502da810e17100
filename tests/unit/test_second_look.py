"""The box looks at an alert once more where nobody else answers: when, at what, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from second_yard import FPS, alert_of, record, walk
from shelf import T0, answer, question

from appliance.clock import ManualClock
from appliance.config import RecheckConfig, RouterConfig, SiteConfig
from appliance.recheck.recheck_policy import (
    ApplianceStatus,
    CloudStatus,
    RecheckCandidate,
    choose_subject,
    find_blocker,
    judge_recheck,
    recheck_reason,
)
from appliance.recheck.service import ANSWER_S, GIVE_UP_S, RecheckService, StatusSources
from appliance.router.calibration import UNTRAINED, TrackStability
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.types import CropRequest, CropResult, RecheckDetection, RecheckResult
from appliance.types import RecheckCommand as Order

SETTINGS = RecheckConfig()
UP, GONE = CloudStatus(asked=True), CloudStatus(asked=True, down_s=5.0)
IDLE = ApplianceStatus(starts=1, load=0.2, detector_load=0.1)


@pytest.mark.parametrize(
    ("case", "cloud", "why"),
    [
        (RecheckCandidate(age_s=3), CloudStatus(), "this site asks no cloud"),
        (RecheckCandidate(age_s=3, refused="severity info is not asked about"), UP, "was not asked: severity info"),
        (RecheckCandidate(age_s=3, delivery="deferred", wait="budget"), UP, "waits for the budget"),
        (RecheckCandidate(age_s=3, delivery="ready"), GONE, "the cloud cannot be reached"),
        (
            RecheckCandidate(age_s=3, delivery="waiting"),
            CloudStatus(asked=True, silent=True),
            "the cloud does not answer",
        ),
        (RecheckCandidate(age_s=30, delivery="sent", sent_s=25), UP, "the cloud has not answered for 25 s"),
        (RecheckCandidate(age_s=30, delivery="ready", question_s=25), UP, "the question has not left for 25 s"),
        (RecheckCandidate(age_s=300, delivery="expired"), UP, "no answer came in time"),
    ],
)
def test_it_looks_again_where_nobody_else_answers(case: RecheckCandidate, cloud: CloudStatus, why: str) -> None:
    assert why in recheck_reason(case, cloud, SETTINGS)


@pytest.mark.parametrize(
    ("case", "cloud"),
    [
        (RecheckCandidate(age_s=1), CloudStatus()),
        (RecheckCandidate(age_s=3, delivery="ready"), UP),
        (RecheckCandidate(age_s=9, delivery="sent", sent_s=8), UP),
        (RecheckCandidate(age_s=9), UP),
        (RecheckCandidate(age_s=3, delivery="ready"), CloudStatus(asked=True, down_s=0.5)),
    ],
    ids=["too early", "just made", "on its way", "the router has not decided", "the link is only just being made"],
)
def test_it_leaves_alone_what_is_about_to_be_answered(case: RecheckCandidate, cloud: CloudStatus) -> None:
    assert recheck_reason(case, cloud, SETTINGS) == ""


def test_switched_off_it_never_looks_again() -> None:
    assert recheck_reason(RecheckCandidate(age_s=99), CloudStatus(), RecheckConfig(enabled=False)) == ""


def test_it_looks_only_with_time_to_spare() -> None:
    def obstacle(box: ApplianceStatus, looks: int = 0, router: RouterConfig | None = None) -> str:
        return find_blocker(box, looks, SETTINGS, router or RouterConfig())

    assert obstacle(IDLE) == ""
    assert obstacle(ApplianceStatus()) == "ingest"
    assert obstacle(ApplianceStatus(starts=1, detector_load=0.9)) == "detector"
    assert obstacle(ApplianceStatus(starts=1, detector_queue=1)) == "detector"
    assert obstacle(ApplianceStatus(starts=1, load=3.0)) == "box"
    assert obstacle(ApplianceStatus(starts=1, load=3.0), router=RouterConfig(load_max=4.0)) == ""
    assert obstacle(ApplianceStatus(starts=1, temperature_c=90), router=RouterConfig(temperature_max_c=80)) == "box"
    assert obstacle(IDLE, looks=SETTINGS.per_minute) == "rate"


def sight(*scores: float, name: str = "", label: str = "person") -> RecheckResult:
    """A picture for each score, in which the object is found that sure, or (0) not at all."""
    box = (0.4, 0.4, 0.5, 0.7)

    def found(score: float) -> tuple[RecheckDetection, ...]:
        return (RecheckDetection(label=label, score=score, box=box),) if score else ()

    sightings = tuple(CropResult(t=T0 + n, box=box, found=found(score)) for n, score in enumerate(scores))
    return RecheckResult(id=name, camera="gate", model="m", ms=80.0, sightings=sightings)


SEEN = TrackStability(score=0.7, spread=0.1, looks=10, moved=1.0)


def chance(seen: TrackStability) -> float:
    return UNTRAINED.probability("gate", "person", seen)


def test_who_is_found_again_is_confirmed_the_surer_the_surer() -> None:
    sure = judge_recheck("person", SEEN, sight(0.9, 0.9, 0.8, 0.9), "the cloud cannot be reached", chance)
    less = judge_recheck("person", SEEN, sight(0.9, 0.6, 0.0, 0.6), "the cloud cannot be reached", chance)
    assert (sure.decision, less.decision) == ("confirmed", "confirmed")
    assert sure.confidence > less.confidence
    assert sure.reason == (
        "A second look on this box found the person again in 4 of 4 pictures. "
        "It looked because the cloud cannot be reached."
    )


def test_who_is_not_found_again_is_never_withdrawn_only_less_sure() -> None:
    none = judge_recheck("person", SEEN, sight(0.0, 0.0), "", chance)
    few = judge_recheck("person", SEEN, sight(0.9, 0.3, 0.2, 0.0), "", chance)
    assert (none.decision, few.decision) == ("unsure", "unsure")
    assert none.confidence < few.confidence <= chance(SEEN)
    assert "which proves nothing: the alert stands" in none.reason


def test_another_kind_of_thing_or_another_place_is_not_the_one() -> None:
    assert judge_recheck("person", SEEN, sight(0.9, 0.9, label="car"), "", chance).seen == 0
    beside = CropResult(
        t=T0, box=(0.1, 0.1, 0.2, 0.4), found=(RecheckDetection(label="person", score=0.9, box=(0.6, 0.1, 0.7, 0.4)),)
    )
    assert judge_recheck("person", SEEN, RecheckResult(id="", camera="gate", sightings=(beside,)), "", chance).seen == 0


def site(**settings: int) -> SiteConfig:
    return SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}, "second_look": settings})


class Desk:
    """Second looks on a real store; the ingest process is a list of what it was asked."""

    def __init__(self, folder: Path, **settings: int) -> None:
        self.clock = ManualClock(T0)
        self.db = Database(folder / "vedette.db", self.clock)
        self.alerts, self.meter = AlertStore(self.db), Meter(self.db, "r")
        self.orders: list[Order] = []
        self.box, self.cloud, self.alive = IDLE, CloudStatus(), True
        views = StatusSources(lambda: self.box, lambda: self.cloud, lambda: UNTRAINED)
        self.looks = RecheckService(site(**settings), self.db, self.meter, self.clock, self._send, views)
        record(folder, self.db, T0)

    def second(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.looks.run_once()

    def answer(self, *scores: float, error: str = "") -> None:
        name = self.orders[-1].id
        said = RecheckResult(id=name, camera="gate", error=error) if error else sight(*scores, name=name)
        self.looks.receive(said)
        self.looks.run_once()

    def row(self, alert: str = "a1") -> tuple[str | None, str | None]:
        """(the state of its second look, what the box says)."""
        detail = self.alerts.get(alert)
        assert detail is not None
        return (detail.recheck.state if detail.recheck else None), detail.alert.edge

    def counts(self) -> dict[str, int]:
        return {each.kind.removeprefix("second_look_"): each.amount for each in self.meter.totals("all")}

    def _send(self, order: Order) -> bool:
        if self.alive:
            self.orders.append(order)
        return self.alive


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.db.close()


def test_an_alert_is_looked_at_once_at_moments_spread_over_its_life(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second()
    (order,) = desk.orders
    times = [glimpse.t for glimpse in order.glimpses]
    assert (len(times), times) == (4, sorted(times))
    assert times[-1] - times[0] > 0.5 * (max(walk()) - min(walk())) / FPS
    assert [footage.path for footage in order.footage] == ["segments/gate/yard.mp4"]
    desk.answer(0.9, 0.9, 0.9, 0.9)
    desk.second(10)
    assert (len(desk.orders), desk.row(), desk.counts()) == (1, ("judged", "confirmed"), {"confirmed": 1})
    detail = desk.alerts.get("a1")
    assert detail is not None
    assert (detail.alert.verdict, detail.alert.edge_confidence) == (None, pytest.approx(0.9, abs=0.1))


def test_the_gravest_comes_first_and_at_most_so_many_a_minute(tmp_path: Path) -> None:
    desk = Desk(tmp_path, per_minute=2)
    alert_of(desk.db, T0, "mild", track=1, severity="info")
    alert_of(desk.db, T0, "grave", track=2, severity="alert")
    alert_of(desk.db, T0, "middling", track=3, severity="warning")
    for _ in range(8):
        desk.second()
        if desk.orders and desk.row(desk.orders[-1].id.rpartition(".")[0])[0] == "asked":
            desk.answer(0.9)
    assert [order.id for order in desk.orders] == ["grave.1", "middling.1"]
    desk.second(60)
    assert desk.orders[-1].id == "mild.1"
    desk.db.close()


def test_what_failed_is_tried_once_more_and_then_said_to_have_failed(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second()
    desk.answer(error="the detector failed")
    desk.second()
    assert [order.id for order in desk.orders] == ["a1.1", "a1.2"]
    desk.answer(error="the detector failed")
    desk.second()
    assert len(desk.orders) == 2
    assert desk.row() == ("failed", None), "nothing is said of what is there"
    assert desk.counts() == {"retried": 1, "failed": 1}
    detail = desk.alerts.get("a1")
    assert detail is not None
    assert detail.recheck is not None
    assert detail.recheck.error == "the detector failed"


def test_what_is_never_answered_is_given_up(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second()
    desk.second(ANSWER_S + 1)
    assert len(desk.orders) == 2
    desk.second(ANSWER_S + 1)
    assert desk.row() == ("failed", None)


def test_a_look_of_which_the_ingest_process_dies_is_not_made_again(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second()
    desk.box = ApplianceStatus(starts=2)
    desk.second()
    assert (len(desk.orders), desk.row()) == (1, ("failed", None))


def test_after_a_restart_it_is_asked_again_but_not_for_ever(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second()
    for _ in range(3):
        again = RecheckService(
            site(),
            desk.db,
            desk.meter,
            desk.clock,
            desk._send,
            StatusSources(lambda: IDLE, CloudStatus, lambda: UNTRAINED),
        )
        again.run_once()
    assert [order.id for order in desk.orders] == ["a1.1", "a1.2"]


def test_the_cloud_that_was_faster_is_not_contradicted(desk: Desk) -> None:
    desk.cloud = GONE
    alert_of(desk.db, T0, ask=lambda alert, event: question(camera="gate"))
    desk.second()
    assert desk.alerts.apply_verdict(answer(decision="rejected"), T0 + 9)
    desk.answer(0.9, 0.9)
    assert desk.row() == (None, None)
    assert desk.counts() == {"late": 1}


def test_the_clouds_later_verdict_stands_above_and_is_applied_once(desk: Desk) -> None:
    desk.cloud = GONE
    alert_of(desk.db, T0, ask=lambda alert, event: question(camera="gate"))
    desk.second()
    desk.answer(0.9, 0.9, 0.9)
    assert desk.row() == ("judged", "confirmed")
    assert desk.alerts.apply_verdict(answer(decision="rejected"), T0 + 9)
    assert not desk.alerts.apply_verdict(answer(decision="rejected"), T0 + 10)
    detail = desk.alerts.get("a1")
    assert detail is not None
    assert (detail.alert.verdict, detail.alert.edge, len(detail.verdicts)) == ("rejected", "confirmed", 1)


def test_a_box_without_time_says_so_in_the_end(desk: Desk) -> None:
    desk.box = ApplianceStatus(starts=1, detector_load=1.0)
    alert_of(desk.db, T0)
    desk.second(GIVE_UP_S / 2)
    assert desk.row() == (None, None)
    desk.second(GIVE_UP_S)
    assert (desk.orders, desk.row(), desk.counts()) == ([], ("failed", None), {"missed": 1})


def test_history_is_left_alone(desk: Desk) -> None:
    alert_of(desk.db, T0)
    desk.second(3600)
    assert (desk.orders, desk.row()) == ([], (None, None))


def test_only_what_is_recorded_is_looked_at(desk: Desk) -> None:
    over = alert_of(desk.db, T0)
    row = desk.alerts.get("a1")
    assert row is not None
    assert over.t_end is not None
    frames = BoxStore(desk.db).span("gate", T0, over.t_end)
    until = over.t_start + 1.0
    subject = choose_subject(row.alert, frames, until, (960, 540), 4)
    assert subject is not None
    assert all(glimpse.t <= until for glimpse in subject.glimpses)
    assert choose_subject(row.alert, frames, over.t_start - 1, (960, 540), 4) is None
    assert isinstance(subject.glimpses[0], CropRequest)
