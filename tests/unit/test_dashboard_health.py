"""Health events over HTTP: the list, what a person says of one, the timeline, the stream and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.broker.nats_connection import LinkState
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, IngestOrders
from appliance.dashboard.stream_api import changes_of
from appliance.store.health_events import HealthEventStore
from appliance.types import HealthEvent
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
MOVED = HealthEvent(camera="gate", id="m1", kind="moved", t=T0 + 6, t_start=T0, reason="it has moved by 8 %")
FROZEN = HealthEvent(
    camera="dock", id="f1", kind="frozen", t=T0 - 50, t_start=T0 - 60, t_end=T0 - 20, reason="it stands still",
    recovery="connecting to the camera again", attempts=2,
)  # fmt: skip
STUCK = HealthEvent(camera="", id="d1", kind="detector", t=T0 + 20, t_start=T0 + 10, reason="it does not answer")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(T0 + 100))
    for event in (FROZEN, MOVED, STUCK):
        HealthEventStore(made.db).put(event)
    yield made
    made.close()


@pytest.fixture
def orders() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def client(site: Site, orders: list[tuple[str, str]]) -> TestClient:
    app = create_app(
        site.stored,
        site.config.for_dashboard(),
        probes=CoreProbes(orders=IngestOrders(lambda camera, kind: orders.append((camera, kind)), list)),
    )
    return TestClient(app, base_url="http://127.0.0.1")


def ids(client: TestClient, query: str = "") -> list[str]:
    return [event["id"] for event in client.get(f"/api/v1/health/events{query}").json()["events"]]


def test_the_list_is_newest_first_by_camera_kind_and_page(client: TestClient) -> None:
    assert ids(client) == ["d1", "m1", "f1"]
    assert ids(client, "?camera=gate") == ["d1", "m1"], "what ails the box ails each camera"
    assert ids(client, "?kind=frozen") == ["f1"]
    first = client.get("/api/v1/health/events?limit=2").json()
    assert [event["id"] for event in first["events"]] == ["d1", "m1"]
    assert ids(client, "?" + first["next"]) == ["f1"]
    assert client.get("/api/v1/health/events?kind=sad").status_code == 422
    event = client.get("/api/v1/health/events/f1").json()
    assert (event["title"], event["attempts"], event["camera_page"]) == ("Frozen picture", 2, "/cameras/dock")
    assert client.get("/api/v1/health/events/none").status_code == 404


def test_to_say_that_a_view_is_right_makes_the_camera_learn_it(
    client: TestClient, orders: list[tuple[str, str]]
) -> None:
    for _ in range(2):
        assert client.post("/api/v1/health/events/m1/seen", json={}).json()["seen_t"] == T0 + 100
    assert set(orders) == {("gate", "moved")}
    assert client.post("/api/v1/health/events/none/seen", json={}).status_code == 404
    assert client.post("/api/v1/health/events/m1/seen", json={"x": 1}).status_code == 422


def test_other_events_are_only_marked_as_seen(client: TestClient, orders: list[tuple[str, str]]) -> None:
    for event in ("d1", "f1"):
        assert client.post(f"/api/v1/health/events/{event}/seen", json={}).json()["seen_t"] is not None
    assert orders == []
    assert client.get("/api/v1/health/events/d1").json()["t_end"] is None


def test_the_timeline_holds_both_in_order_and_can_hold_one_alone(site: Site, client: TestClient) -> None:
    site.raise_alert("before", T0 - 30)
    site.raise_alert("after", T0 + 5)
    page = client.get("/").text
    order = [page.index(mark) for mark in ('id="h-d1"', 'id="a-after"', 'id="h-m1"', 'id="a-before"', 'id="h-f1"')]
    assert order == sorted(order)
    assert "h-m1" not in client.get("/?show=alerts").text
    assert "a-after" not in client.get("/?show=health").text
    assert "h-m1" not in client.get("/?review=open").text, "it has no review"
    dock = client.get("/?camera=dock").text
    assert ("h-f1" in dock, "h-m1" in dock, "h-d1" in dock) == (True, False, True)
    assert client.get("/fragments/health/m1").status_code == 200
    assert client.get("/fragments/health/m1?show=alerts").status_code == 204
    assert client.get("/fragments/health/m1?camera=dock").status_code == 204


def test_pages_of_the_timeline_go_on_without_a_gap_or_a_double(site: Site, client: TestClient) -> None:
    events = HealthEventStore(site.db)
    for n in range(40):
        site.raise_alert(f"x{n}", T0 - 1000 - 2 * n)
        events.put(replace(FROZEN, id=f"y{n}", t_start=T0 - 1001 - 2 * n, t_end=T0 - 900))
    seen: list[str] = []
    url: str | None = "/"
    while url:
        page = client.get(url).text
        seen += [part.split('"')[0] for part in page.split(' data-id="')[1:]]
        tail = page.partition('id="older" href="')[2]
        url = tail.split('"')[0].replace("&amp;", "&") or None
    assert len(seen) == len(set(seen)) == 83


def test_changes_of_all_three_are_read_in_order_and_in_pieces(site: Site) -> None:
    events = HealthEventStore(site.db)
    read = changes_of(site.db.rev, site.alerts, site.cameras, events)
    since = at = site.db.rev()
    for n in range(6):
        site.raise_alert(f"a{n}", T0 + n, seconds=None)
        events.put(replace(FROZEN, id=f"n{n}", t_start=T0 + n))
    told: list[tuple[int, str]] = []
    while batch := read(at, 2):
        told += [(change.rev, change.kind) for change in batch]
        at = max(change.rev for change in batch)
    assert [rev for rev, _ in told] == sorted({rev for rev, _ in told})
    assert [kind for _, kind in told].count("health") == 6
    assert [kind for _, kind in told].count("alert") == 6
    assert since < told[0][0]


def test_healthz_names_what_is_not_well(site: Site, client: TestClient) -> None:
    HealthEventStore(site.db).put(replace(FROZEN, id="b1", kind="black", t_end=None, reason=""))
    health = client.get("/healthz").json()
    assert "camera dock: Black picture" in health["reasons"], "a fault without a reason is named"
    assert health["status"] == "degraded"
    assert "camera gate: it has moved by 8 %" in health["reasons"]
    assert "it does not answer" in health["reasons"]
    metrics = client.get("/metrics").text
    assert 'vedette_health_open{camera="gate",kind="moved"} 1' in metrics
    assert 'vedette_health_open{camera="dock",kind="frozen"} 0' in metrics
    assert 'vedette_health_open{camera="",kind="detector"} 1' in metrics


def test_readyz_is_ready_only_while_every_camera_is_watched_as_promised(site: Site, client: TestClient) -> None:
    """What the cloud does is no part of it: an appliance without one watches as well."""
    store = HealthEventStore(site.db)
    for camera in ("gate", "dock"):
        site.live(camera, T0)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "degraded")
    assert "camera gate: it has moved by 8 %" in answer.json()["reasons"]
    store.end_open(T0 + 90, "")
    site.link = LinkState(up=False, since=0.0)
    assert client.get("/readyz").json() == {"status": "ready", "reasons": []}
    assert client.get("/readyz").status_code == 200
    store.put(replace(MOVED, id="o1", kind="overloaded", reason="it gets 0.7 of 5.0 inferences a second"))
    assert client.get("/readyz").json()["reasons"] == ["camera gate: it gets 0.7 of 5.0 inferences a second"]
    assert "Too few inferences" in client.get("/cameras").text


def test_an_appliance_that_has_reached_no_camera_yet_is_not_ready(site: Site, client: TestClient) -> None:
    HealthEventStore(site.db).end_open(T0 + 90, "")
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json()["reasons"] == [
        "camera dock was not reached yet", "camera gate was not reached yet",
    ]  # fmt: skip


def test_the_cameras_page_and_the_cameras_own_say_it(client: TestClient) -> None:
    assert "Camera moved" in client.get("/cameras").text
    gate = client.get("/cameras/gate").text
    assert gate.index('id="h-m1"') < gate.index("<canvas")
    assert 'id="h-d1"' in gate
    assert "Frozen picture" in client.get("/cameras/dock").text


def test_hostile_reasons_are_inert(site: Site, client: TestClient) -> None:
    HealthEventStore(site.db).put(replace(MOVED, id="bad", reason="<script>alert(1)</script>"))
    for page in ("/", "/cameras/gate", "/fragments/health/bad"):
        assert "<script>alert(1)" not in client.get(page).text
