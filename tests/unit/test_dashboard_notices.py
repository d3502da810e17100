"""What the dashboard says of who was told: the alert's page, the API, the front page, healthz and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes
from appliance.notify.delivery import TargetStatus
from appliance.store.notices import NewNotice, NoticeStore, SentMessage, write_notices
from tests.support.dashboard_site import Site
from tests.support.prometheus_text import samples

T0 = 1_700_000_000.0


class Noticed:
    """The site, what its notifier would say of its targets, and a browser."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, ManualClock(T0))
        self.site.live("gate", T0)
        self.site.raise_alert("a", T0)
        self.notices = NoticeStore(self.site.db)
        self.states: tuple[TargetStatus, ...] = ()
        app = create_app(
            self.site.stored, self.site.config.for_dashboard(), probes=CoreProbes(targets=lambda: self.states)
        )
        self.client = TestClient(app, base_url="http://127.0.0.1:8080")

    def plan(self, target: str, hold_s: float = 0.0, forbidden: str = "") -> None:
        new = NewNotice(
            id=f"n-{target}", alert="a", target=target, camera="gate", created_t=T0, due_t=T0 + hold_s,
            expire_t=T0 + 3600, forbidden=forbidden,
        )  # fmt: skip
        with self.site.db.transaction() as connection:
            write_notices(connection, [new])

    def words(self) -> dict[str, str]:
        return {each["target"]: each["words"] for each in self.client.get("/api/v1/alerts/a").json()["notices"]}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Noticed]:
    made = Noticed(tmp_path)
    yield made
    made.site.close()


def test_the_alerts_page_says_who_was_notified_of_what_and_why_not(box: Noticed) -> None:
    assert box.words() == {}
    box.plan("held", hold_s=30)
    box.plan("phone")
    box.plan("siren")
    box.plan("far", forbidden="the privacy rules of this camera forbid it")
    rows = {row.target: row for row in box.notices.of("a")}
    said = SentMessage(standing="unverified", severity="warning", rules=("intruder",), t=T0 + 1, audit=None)
    box.notices.record_delivery(rows["phone"], said)
    box.notices.begin_attempt(rows["siren"])
    box.notices.record_failure(rows["siren"], "siren.lan answered 500", doubtful=True)
    assert box.words() == {
        "held": "Held for the cloud's verdict",
        "phone": "Told as unverified",
        "siren": "Being sent; siren.lan answered 500",
        "far": "The privacy rules of this camera forbid it",
    }
    page = box.client.get("/alerts/a").text
    assert "Notified" in page
    for words in box.words().values():
        assert words.replace("'", "&#39;") in page


def test_a_target_that_fails_for_long_is_shown_and_a_short_failure_is_of_no_interest(box: Noticed) -> None:
    box.states = (TargetStatus(name="phone", kind="ntfy", host="h", failing_since=T0 - 30, error="h answered 500"),)
    assert box.client.get("/healthz").json()["reasons"] == []
    box.states = (
        TargetStatus(name="phone", kind="ntfy", host="h", failing_since=T0 - 300, error="h answered 500", waiting=2),
    )
    said = "notify: phone cannot be told for 5 min, 2 waiting: h answered 500"
    assert said in box.client.get("/healthz").json()["reasons"]
    assert said[1:] in box.client.get("/").text


def test_the_metrics_count_what_became_of_notifying_each_target(box: Noticed) -> None:
    box.states = (
        TargetStatus(name="phone", kind="ntfy", host="h", told=3, withdrawn=2, waiting=1, failures=4, failing_since=T0),
    )
    expected = """
        vedette_notices_total{target="phone",outcome="told"} 3
        vedette_notices_total{target="phone",outcome="withdrawn"} 2
        vedette_notify_waiting{target="phone"} 1
        vedette_notify_failures_total{target="phone"} 4
        vedette_notify_failing{target="phone"} 1
    """
    assert samples(expected) <= samples(box.client.get("/metrics").text)
