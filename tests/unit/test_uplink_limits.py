"""The parts of the uplink, each with a clock that is moved by hand: rate, daily cap, breaker, traffic counter."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock, local_day
from appliance.base.tcpinfo import TcpBytes, bytes_on_wire, failed_connect_bytes
from appliance.broker.nats_connection import LinkState
from appliance.config import UplinkConfig
from appliance.store.database import Database
from appliance.store.meter import Meter, Metric, MetricName
from appliance.uplink.send_limits import PROBE_FIRST_S, CloudBreaker, DailyCap, RateLimiter, TokenBucket, TrafficCounter

MESSAGE = 5000


def drain(bucket: TokenBucket, clock: ManualClock, seconds: float, *, live: bool = False) -> int:
    """Send for so long as fast as it lets us; the bytes."""
    end, sent = clock.monotonic() + seconds, 0
    while clock.monotonic() < end:
        wait_s = bucket.wait_s(live=live)
        if wait_s:
            clock.advance(wait_s + 0.001)
            continue
        bucket.take(MESSAGE)
        sent += MESSAGE
    return sent


def test_the_backlog_drains_at_the_rate_and_never_faster() -> None:
    clock = ManualClock()
    bucket = TokenBucket(800.0, clock)
    sent = drain(bucket, clock, 60.0)
    assert 0.97 * 60 * 100_000 < sent < 60 * 100_000 + 25_000 + MESSAGE


def test_what_is_live_does_not_wait_behind_the_backlog() -> None:
    clock = ManualClock()
    bucket = TokenBucket(800.0, clock)
    drain(bucket, clock, 10.0)
    for _ in range(10):
        assert bucket.wait_s(live=True) == 0
        bucket.take(MESSAGE)
    assert bucket.wait_s(live=False) > 0.4, "what went before it is paid back by the backlog"


def test_however_much_is_live_the_rate_holds() -> None:
    clock = ManualClock()
    bucket = TokenBucket(800.0, clock)
    assert drain(bucket, clock, 60.0, live=True) < 61.3 * 100_000 + MESSAGE


def test_without_a_rate_nothing_waits() -> None:
    bucket = TokenBucket(None, ManualClock())
    bucket.take(10**9)
    assert bucket.wait_s(live=False) == 0


def noon() -> ManualClock:
    return ManualClock(datetime(2026, 6, 1, 12).timestamp())  # noqa: DTZ001 (local, as budgets are)


def test_when_the_day_is_used_up_the_urgent_go_on_and_the_rest_waits_until_midnight() -> None:
    clock = noon()
    today = DailyCap(1.0, "urgent", lambda day: 900_000 if day == local_day(clock.now()) else 0, clock)
    assert today.fits(90_000, "normal")
    today.spend(90_000)
    assert not today.fits(20_000, "normal")
    assert not today.fits(5_000, "low"), "a smaller one does not slip through before it"
    assert today.fits(20_000, "high")
    assert today.priorities() == ("high",)
    assert today.reason == "the 1 MB of today are sent: all but the most urgent waits until midnight (uplink.mb_day)"
    clock.advance(12 * 3600 + 1)
    assert today.fits(20_000, "low")
    assert today.reason == ""


def test_the_owner_may_have_all_wait() -> None:
    today = DailyCap(1.0, "wait", lambda _: 1_000_000, noon())
    assert today.priorities() == ()
    assert not today.fits(1, "high")


def test_what_was_sent_before_a_restart_counts() -> None:
    today = DailyCap(1.0, "wait", lambda _: 999_000, noon())
    assert not today.fits(2_000, "high")


def test_notifications_do_not_use_up_the_day_of_the_uplink_after_a_restart(tmp_path: Path) -> None:
    clock = noon()
    db = Database(tmp_path / "vedette.db", clock)
    meter, settings = Meter(db, "run"), UplinkConfig(url="nats://hub.example", mb_day=1.0)
    for purpose in ("", "notice"):
        meter.add("gate", Metric(MetricName.UPLINK_BYTES, purpose), 990_000)
    meter.flush(local_day(clock.now()))
    limiter = RateLimiter(settings, meter, clock, lambda: LinkState(up=True, since=0, wire=600_000, resent=100_000))
    assert limiter.daily_cap.fits(900_000, "low")
    limiter.charge("gate", "crop", 200_000)
    limiter.charge_overhead()
    meter.flush(local_day(clock.now()))
    again = RateLimiter(settings, meter, clock, lambda: LinkState(up=True, since=0))
    assert [again.daily_cap.fits(size, "low") for size in (400_000, 400_001)] == [True, False]
    db.close()


def test_a_silent_worker_is_tried_with_one_escalation_more_and_more_rarely() -> None:
    clock = ManualClock()
    breaker = CloudBreaker(300.0, clock)
    breaker.escalation_stored()
    clock.advance(299)
    breaker.check_silence(299.0)
    assert (breaker.state.name, breaker.blocks) == ("closed", False)
    clock.advance(2)
    breaker.check_silence(301.0)
    assert (breaker.state.name, breaker.blocks) == ("open", True)
    assert breaker.state.why == "no worker has answered for 5 min"
    waits = []
    for _ in range(7):
        waited = 0
        while breaker.blocks:
            clock.advance(1)
            waited += 1
            breaker.check_silence(1e6)
        assert (breaker.state.name, breaker.one_at_a_time) == ("half_open", True)
        breaker.escalation_stored()
        assert breaker.blocks, "one escalation and no more"
        waits.append(waited)
    assert waits[0] <= PROBE_FIRST_S * 1.3
    assert waits[:4] == sorted(waits[:4])
    assert 600 < max(waits) <= 900 + 60 + 2
    breaker.verdict_received()
    assert (breaker.state.name, breaker.blocks, breaker.state.trips) == ("closed", False, 1)


def test_while_the_workers_are_silent_a_link_that_is_up_does_not_shorten_the_silence() -> None:
    clock = ManualClock()
    breaker = CloudBreaker(300.0, clock)
    clock.advance(301)
    breaker.check_silence(301.0)
    whys = {breaker.state.why}
    for second in range(3600):
        clock.advance(1)
        if breaker.state.name == "half_open" and not breaker.blocks:
            breaker.escalation_stored()
        breaker.link_restored()  # as the uplink says each second
        breaker.check_silence(301.0 + second)
        whys.add(breaker.state.why)
    assert "no worker has answered for 0 min" not in whys
    assert max(int(why.split()[-2]) for why in whys if why) > 30


def test_silence_counts_only_while_a_worker_was_asked_and_could_answer() -> None:
    clock = ManualClock()
    breaker = CloudBreaker(300.0, clock)
    clock.advance(5000)
    breaker.check_silence(None)
    breaker.check_silence(10.0)
    assert breaker.state.name == "closed"
    breaker.link_lost("the broker at hub:4222: nothing answers there")
    clock.advance(5000)
    breaker.check_silence(5000.0)
    breaker.link_restored()
    assert breaker.state.name == "half_open", "the link is back; no verdict could come before"
    breaker.check_silence(5000.0)
    breaker.message_stored()
    breaker.check_silence(5000.0)
    assert breaker.state.name == "closed"


def test_a_broker_that_refuses_again_and_again_opens_it_and_the_first_message_closes_it() -> None:
    breaker = CloudBreaker(300.0, ManualClock())
    breaker.publish_failed("the stream is full")
    breaker.publish_failed("the stream is full")
    assert breaker.state.name == "closed"
    breaker.publish_failed("the stream is full")
    assert (breaker.state.name, breaker.state.why, breaker.blocks) == ("open", "the stream is full", False)
    breaker.link_restored()
    breaker.message_stored()
    assert breaker.state.name == "closed"


def test_payload_protocol_and_what_was_sent_again_are_counted_apart_and_add_up(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock())
    meter = Meter(db, "run")
    counter = TrafficCounter(meter)
    counter.count_message("gate", "crop", 5000)
    counter.count_message("gate", "again", 5000)
    assert counter.count_overhead(LinkState(up=True, since=0, wire=9000)) == 0, "the socket was read before"
    assert counter.count_overhead(LinkState(up=True, since=0, wire=12_000, resent=700)) == 2000
    assert {(each.camera, each.kind): each.amount for each in meter.totals("start")} == {
        ("gate", "uplink_bytes"): 10_000,
        ("gate", "uplink_bytes_crop"): 5000,
        ("gate", "uplink_bytes_again"): 5000,
        ("", "uplink_bytes"): 2000,
        ("", "uplink_bytes_resent"): 700,
        ("", "uplink_bytes_protocol"): 1300,
    }
    db.close()


@pytest.mark.parametrize(("version", "frame"), [(4, 66), (6, 86)])
def test_a_connection_weighs_its_payload_and_a_frame_for_each_segment(version: int, frame: int) -> None:
    counted = TcpBytes(received=0, sent=10_000, resent=1400, segments=20)
    wire = bytes_on_wire(counted, version=version, segment_max=1448, ended=False)
    assert wire is not None
    assert (wire.bytes, wire.resent) == (10_000 + 20 * frame + 8, 1400 + frame)
    ended = bytes_on_wire(counted, version=version, segment_max=1448, ended=True)
    assert ended is not None
    assert ended.bytes == wire.bytes + 4 * frame


def test_attempts_that_fail_are_counted_too() -> None:
    assert failed_connect_bytes(0.0, "10.0.0.1", answered=False).bytes >= 74
    assert failed_connect_bytes(5.0, "10.0.0.1", answered=False).bytes >= 6 * 74
    assert failed_connect_bytes(0.1, "hub.example", answered=True).bytes > 6000
