"""The uplink over a real nats-server: shaped, within its daily allowance, and while nobody answers."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from appliance import wire
from benchmarks import uplink
from benchmarks.stub_engines import Instant
from tests.servers.nats import NatsServer
from tests.servers.site import evidence_image, site
from tests.servers.worker import worker
from tests.support.waiting import until
from tests.system.test_escalation_nats import left_in_queue, make_streams


@pytest.fixture
def broker(one_broker: NatsServer) -> NatsServer:
    return one_broker


def test_a_backlog_drains_at_the_shaped_rate_and_live_escalations_overtake_it(
    broker: NatsServer, tmp_path: Path
) -> None:
    options = argparse.Namespace(backlog=110, kbps=1600.0, live=3, live_every_s=0.4)
    found = uplink.measure_drain(broker.url, tmp_path / "site", options)  # which sees the live ones settled before it
    # One burst above 1, in so short a time. How far below, and how fast the live ones are, is a matter of the machine:
    # `benchmarks.uplink` holds those bars.
    assert 0.2 < found["share_of_rate"] < 1.12, found


def test_48_hours_of_escalations_go_when_the_link_is_back_the_newest_first(broker: NatsServer, tmp_path: Path) -> None:
    make_streams(broker.url)
    with site(tmp_path / "site", broker.url, expire_s=72 * 3600.0) as here:
        here.cut()
        for n in range(48):
            here.ask(n, (evidence_image(n),), severity="alert" if n == 0 else "warning")
        with here.db.transaction() as connection:
            connection.execute("UPDATE escalation SET created_t = created_t - (48 - rowid) * 3600.0")
        here.ask(99, severity="warning")
        here.connect()
        with worker(broker.url, Instant()):
            until(lambda: here.settled(*range(48), 99), 60)
        with here.db.read() as connection:
            sent = [row[0] for row in connection.execute("SELECT escalation.alert FROM audit JOIN escalation "
                "ON escalation.id = audit.escalation WHERE kind = 'facts' ORDER BY audit.id")]  # fmt: skip
        assert "alert-99" in sent[:8], "within the first lanes"
        assert here.count("expired") == 0
        assert here.service.verdicts.applied == 49


def test_when_the_daily_allowance_is_used_up_only_the_gravest_go(broker: NatsServer, tmp_path: Path) -> None:
    make_streams(broker.url)
    large = evidence_image(3, (640, 480), noise=True)
    with site(tmp_path / "site", broker.url, mb_day=0.3) as here, worker(broker.url, Instant()):
        for n in range(4):
            here.ask(n, (large + bytes([n]),), severity="warning")
        until(lambda: "MB of today are sent" in here.service.waits_for)
        assert here.count("ready") >= 1
        here.ask(9, severity="alert")
        until(lambda: here.settled(9))
        total = sum(each.amount for each in here.meter.totals("all") if each.kind == "uplink_bytes")
        assert total < 330_000, "the allowance, one grave question and the connection's own"


def test_while_no_worker_answers_escalations_wait_here_and_one_is_tried(
    broker: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.uplink.send_limits.PROBE_FIRST_S", 0.5)
    make_streams(broker.url)
    with site(tmp_path / "site", broker.url, silent_s=5.0) as here:
        here.ask(0)
        until(lambda: here.count("sent") == 1)
        until(lambda: here.service.link.breaker == "open", 30)
        assert "no worker has answered" in here.service.link.breaker_why
        for n in range(1, 6):
            here.ask(n)
        until(lambda: here.count("sent") == 2, 30, "one is tried")
        assert left_in_queue(broker.url) == 2
        assert here.count("ready") == 4
        with worker(broker.url, Instant()):
            until(lambda: here.settled(*range(6)), 30)
        until(lambda: here.service.link.breaker == "closed")
        assert here.service.link.trips == 1


def test_after_a_cut_at_most_a_chunk_is_sent_again_and_counted_as_that(broker: NatsServer, tmp_path: Path) -> None:
    large = evidence_image(7, (2000, 1500), noise=True)
    make_streams(broker.url)
    with site(tmp_path / "site", broker.url, kbps_max=8000.0) as here:
        asked = here.ask(1, (large,))
        until(lambda: here.outbox.media_of(asked)[0].chunks_acked >= 2)
        broker.kill()
        broker.start()
        with worker(broker.url, Instant()):
            until(lambda: here.settled(1), 60)
        totals = here.meter_totals()
        assert totals.get("uplink_bytes_again", 0) <= wire.CHUNK_BYTES + 2000
        assert totals["uplink_bytes_frame"] >= len(large)
        row = here.detail(1).escalation
        assert row is not None
        assert row.bytes_sent == totals["uplink_bytes"]
        assert row.bytes_sent <= len(large) * 1.01 + wire.CHUNK_BYTES + 3000
