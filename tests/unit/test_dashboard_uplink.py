"""What the dashboard says of an alert while the cloud is away, and of the cloud itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.broker.nats_connection import LinkState
from appliance.store.health_events import HealthEventStore
from appliance.store.reviews import RecheckStore
from appliance.types import EdgeVerdict, HealthEvent
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0 + 100))
    made.live("gate", T0)
    yield made
    made.close()


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with site.client() as made:
        yield made


def standing(client: TestClient, alert: str) -> str:
    found: str = client.get(f"/api/v1/alerts/{alert}").json()["alert"]["standing"]
    return found


def test_an_alert_stands_at_once_and_the_verdict_upgrades_or_withdraws_it(site: Site, client: TestClient) -> None:
    for name in ("a", "b", "c"):
        site.raise_alert(name, T0)
    site.raise_alert("d", T0, ask=False)
    assert [standing(client, name) for name in "abcd"] == ["unverified"] * 3 + ["edge"]
    assert "Unverified" in client.get("/").text
    with site.db.transaction() as connection:
        for name, decision in (("a", "confirmed"), ("b", "rejected"), ("c", "unsure")):
            connection.execute(
                "UPDATE alert SET verdict = ?, judge = 'vlm', verdict_confidence = 0.9 WHERE id = ?", (decision, name)
            )
    assert [standing(client, name) for name in "abc"] == ["confirmed", "withdrawn", "unsure"]


def test_a_escalation_that_was_given_up_leaves_the_alert_unverified(site: Site, client: TestClient) -> None:
    site.raise_alert("a", T0)
    with site.db.transaction() as connection:
        connection.execute("UPDATE escalation SET state = 'expired', error = 'given up after 72 h: no verdict came'")
    assert standing(client, "a") == "unverified"
    assert "given up after 72 h" in client.get("/alerts/a").text


def test_with_both_sides_faulty_the_alert_is_there_and_says_so(site: Site, client: TestClient) -> None:
    site.raise_alert("a", T0)
    site.link = LinkState(up=False, since=0.0, error="the broker at hub:4222: nothing answers there")
    assert "The cloud cannot be reached now." in client.get("/alerts/a").text
    site.link = LinkState(up=True, since=0.0, breaker="open", breaker_why="no worker has answered for 5 min", trips=1)
    HealthEventStore(site.db).put(
        HealthEvent(
            id="h", camera="", kind="detector", t=T0, t_start=T0, t_end=None, reason="the detector does not answer"
        )
    )
    page = client.get("/alerts/a").text
    assert "Unverified: the appliance saw it (87 % sure)." in page
    assert "The cloud does not answer now." in page
    assert "The appliance itself is not well: Detector stuck." in page
    assert client.get("/api/v1/alerts").json()["alerts"][0]["id"] == "a", "it reaches whoever looks"


def test_what_the_appliance_itself_found_is_shown_and_changes_nothing_of_where_the_alert_stands(
    site: Site, client: TestClient
) -> None:
    site.raise_alert("a", T0)
    site.raise_alert("b", T0)
    edge = RecheckStore(site.db)
    for name in ("a", "b"):
        edge.begin(name, "the cloud cannot be reached")
    said = EdgeVerdict(
        decision="rechecked", confidence=0.91, model="m",
        reason="A second look on this appliance found the person again.",
        why="the cloud cannot be reached", looks=4, seen=4, score=0.8, ms=90.0,
    )  # fmt: skip
    assert edge.record_verdict("a", said)
    edge.record_failure("b", "the cloud cannot be reached", "the detector failed")
    found = client.get("/api/v1/alerts/a").json()
    assert [found["alert"][name] for name in ("edge", "edge_confidence", "standing")] == [
        "rechecked",
        0.91,
        "unverified",
    ]
    assert (found["second_look"]["verdict"]["source"], found["second_look"]["superseded"]) == ("edge", False)
    assert "found the person again" in client.get("/alerts/a").text
    assert "Seen twice" in client.get("/").text
    failed = client.get("/api/v1/alerts/b").json()
    assert (failed["alert"]["edge"], failed["second_look"]["error"]) == (None, "the detector failed")
    assert "The second detection on this appliance failed: the detector failed." in client.get("/alerts/b").text

    with site.db.transaction() as connection:
        connection.execute(
            "UPDATE alert SET verdict = 'rejected', judge = 'vlm', verdict_confidence = 0.9 WHERE id = 'a'"
        )
    assert standing(client, "a") == "withdrawn"
    assert "Seen twice" not in client.get("/").text


def test_the_breaker_is_on_the_page_in_healthz_and_in_the_metrics(site: Site, client: TestClient) -> None:
    assert 'vedette_breaker_state{state="closed"} 1' in client.get("/metrics").text
    site.link = LinkState(
        up=True, since=0.0, breaker="half_open", breaker_why="no worker has answered for 5 min", trips=2
    )
    assert "Cloud does not answer (no worker has answered for 5 min)" in client.get("/").text
    assert any("the cloud does not answer" in reason for reason in client.get("/healthz").json()["reasons"])
    told = client.get("/metrics").text
    assert 'vedette_breaker_state{state="half_open"} 1' in told
    assert "vedette_breaker_trips_total 2" in told
