"""A person has an alert escalated: past the router's own estimates, within privacy and budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, StoredSite
from appliance.router.escalation_planner import WAITING_MAX, EscalationRequests, RequestAnswer
from appliance.types import SystemLoad
from tests.support.core_harness import CoreHarness, site
from tests.support.dashboard_site import Site
from tests.support.waiting import PATIENCE

T0 = 1_700_000_000.0
Make = Callable[..., CoreHarness]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    opened: list[CoreHarness] = []

    def harness(config: SiteConfig) -> CoreHarness:
        opened.append(CoreHarness(tmp_path, config, ManualClock(T0)))
        return opened[-1]

    yield harness
    for each in opened:
        each.db.close()


def ask(box: CoreHarness, alert: str) -> RequestAnswer:
    """As the dashboard does, in a thread of its own, while the core goes on."""
    answers: list[RequestAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(box.stores.requests.ask(alert)))
    asking.start()
    while asking.is_alive():
        box.second()
        asking.join(0.01)
    return answers[0]


def test_what_is_worth_nothing_to_the_router_goes_when_a_person_asks(make: Make) -> None:
    box = make(site("info", severities=["alert"]))
    alert = box.walk()
    assert box.escalated(alert) is None
    assert ask(box, alert) == RequestAnswer(True, "a person asks")
    row = box.escalated(alert)
    assert row is not None
    assert (row.priority, row.state) == ("high", "waiting")
    assert box.decided(alert)[-1] == ("now", "a person asks")


def test_what_the_router_thinks_it_worth_does_not_count(make: Make) -> None:
    box = make(site(router={"value_min": 1000.0}))
    alert = box.walk()
    assert box.decided(alert)[-1] == ("never", "the answer is worth less than its bytes")
    assert ask(box, alert) == RequestAnswer(True, "a person asks")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image_free": False, "privacy": {"never": True}}, "the privacy rule of this camera forbids it"),
        ({}, "escalation is switched off"),
    ],
)
def test_privacy_and_the_switch_hold(make: Make, change: dict[str, object], reason: str) -> None:
    config = site().model_dump(mode="json")
    config["cameras"]["gate"] |= change
    config["escalation"]["enabled"] = bool(change)
    box = make(SiteConfig.model_validate(config))
    alert = box.walk()
    assert ask(box, alert) == RequestAnswer(False, reason)
    assert box.escalated(alert) is None


def test_it_waits_for_the_budget_as_all_do(make: Make) -> None:
    box = make(site("info", severities=["alert"], budget={"mb_day": 0.03}))
    answers = [ask(box, alert) for alert in [box.walk() for _ in range(8)]]
    assert all(answer.accepted for answer in answers)
    assert answers[0].reason == "a person asks"
    assert answers[-1].reason == "a person asks; it waits until the budget is renewed"


def test_a_new_budget_releases_it_whatever_the_queue_is_like(make: Make) -> None:
    """Its alert is no grave one, but a person waits for the answer: as when it was asked, only the budget counts."""
    box = make(site("info", severities=["alert"], budget={"mb_day": 0.03}))
    alerts = [box.walk() for _ in range(8)]
    for each in alerts:
        ask(box, each)
    row = box.escalated(alerts[-1])
    assert row is not None
    assert row.wait == "budget"
    assert row.until_t is not None
    box.system_load = SystemLoad(link_up=True, queue_age_s=10_000.0)
    waited = [alert for alert in alerts if (found := box.escalated(alert)) is not None and found.wait]
    for each in alerts:
        if each not in waited:
            box.judge(each, "confirmed")
    box.clock.advance(row.until_t - box.clock.now())
    box.second()
    waits = {found.wait for found in map(box.escalated, waited) if found is not None}
    assert "" in waits
    assert "queue" not in waits


def test_it_is_asked_once(make: Make) -> None:
    box = make(site("info", severities=["alert"]))
    alert = box.walk()
    ask(box, alert)
    box.evidence_made(alert)
    assert ask(box, alert) == RequestAnswer(False, "it is being sent already")
    box.judge(alert, "rejected")
    assert ask(box, alert) == RequestAnswer(False, "the cloud has answered already")
    assert "no such alert" in ask(box, "nobody").reason


def test_without_an_uplink_and_without_an_answer_it_is_refused(make: Make) -> None:
    config = site().model_dump(mode="json")
    config["uplink"] = None
    box = make(SiteConfig.model_validate(config))
    assert ask(box, box.walk()) == RequestAnswer(False, "this site has no uplink")
    idle = EscalationRequests(answer_s=0.01)
    assert "too busy" in idle.ask("a").reason
    for _ in range(WAITING_MAX):
        last = idle.ask("a")
    assert last.reason == "too many are asked for at once"
    asked: list[str] = []
    idle.answer_all(
        lambda alert: asked.append(alert) or RequestAnswer(True, ""),  # type: ignore[func-returns-value]
        lambda question: RequestAnswer(False, "none was asked"),
    )
    assert asked == [], "who asked has gone"


def test_the_api_says_why_not_and_notes_who_did(tmp_path: Path) -> None:
    made = Site(tmp_path, ManualClock(T0))
    made.raise_alert("kept", T0, ask=False)
    answers = {"kept": RequestAnswer(False, "the privacy rule of this camera forbids it")}
    app = create_app(
        StoredSite(made.db, made.meter, made.root, made.clock),
        made.config.for_dashboard(),
        probes=CoreProbes(escalate=lambda alert: answers[str(alert)]),
    )
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        assert 'id="escalate"' in client.get("/alerts/kept").text
        refused = client.post("/api/v1/alerts/kept/escalate", json={})
        assert (refused.status_code, refused.json()["detail"]) == (
            409, "It is not escalated: the privacy rule of this camera forbids it.",
        )  # fmt: skip
        assert client.get("/api/v1/alerts/kept").json()["changes"] == []
        answers["kept"] = RequestAnswer(True, "a person asks")
        assert client.post("/api/v1/alerts/kept/escalate", json={}).status_code == 200
        assert client.get("/api/v1/alerts/kept").json()["changes"][0]["what"] == "escalated"
        assert client.post("/api/v1/alerts/nobody/escalate", json={}).status_code == 404
    made.close()


def test_who_asks_hears_the_answer_that_is_being_written_when_the_time_is_up() -> None:
    """A slow card stalls the write for seconds: the pictures of a refused question would be deleted under its row."""
    requests, begins = EscalationRequests(answer_s=0.05), threading.Event()

    def stalled(alert: str) -> RequestAnswer:
        begins.set()
        asking.join(0.3)  # still waiting
        return RequestAnswer(True, "a person asks")

    answers: list[RequestAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(requests.ask("a1")))
    asking.start()
    while not begins.is_set():
        requests.answer_all(stalled, lambda asked: RequestAnswer(False, ""))
    asking.join(PATIENCE)
    assert answers == [RequestAnswer(True, "a person asks")]
