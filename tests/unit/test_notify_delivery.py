"""Delivery to one target, step by step: how long it waits after a failure, and what goes first then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.notify.delivery import BACKOFF_LAST_S, TargetSender, UnstoredAlert
from appliance.notify.message import NotificationMessage, SendResult
from tests.support.notification_site import NotifyingSite, hook
from tests.support.sample_rows import T0, opened

OK = SendResult(ok=True, status=200)
FAILS = SendResult(ok=False, error="it failed")


class ScriptedSender:
    """Answers as its script says, and then takes everything. Alerts in `poison` are never taken."""

    def __init__(self, *script: SendResult) -> None:
        self.script = list(script)
        self.poison: set[str] = set()
        self.sent: list[str] = []

    async def send(self, message: NotificationMessage) -> SendResult:
        self.sent.append(message.alert)
        if message.alert in self.poison:
            return FAILS
        return self.script.pop(0) if self.script else OK

    async def close(self) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NotifyingSite]:
    with contextlib.closing(NotifyingSite(tmp_path, ManualClock(T0), phone=hook("http://phone.lan"))) as made:
        yield made


def test_an_update_waits_no_longer_than_its_own_target_is_given(tmp_path: Path) -> None:
    targets = {"phone": hook("http://phone.lan", expire_hours=1), "desk": hook("http://desk.lan", expire_hours=24)}
    with contextlib.closing(NotifyingSite(tmp_path, ManualClock(T0), **targets)) as site:
        site.alert(asked=True)
        for name in targets:
            go(TargetSender(name, site.targets[name], site.deps(), ScriptedSender()))
        site.verdict("confirmed")
        site.notifier._reopen_changed()
        rows = {row.target: row for row in site.notices.of("a1")}
        assert {row.state for row in rows.values()} == {"changed"}
        assert {name: (row.window.expire_t - T0) / 3600 for name, row in rows.items()} == {"phone": 1, "desk": 24}


def test_a_message_that_was_given_up_as_too_late_uses_up_the_error_budget(site: NotifyingSite) -> None:
    sender = ScriptedSender()
    sender.poison.add("a2")
    site.alert("a1", asked=True)
    go(made := target_sender(site, sender))
    site.alert("a2")
    go(made)
    site.verdict("confirmed", "a1")
    site.notifier._reopen_changed()
    site.clock.advance(13 * 3600)
    site.notifier._expire()
    site.notifier._expire()
    assert [site.notice(name).state for name in ("a1", "a2")] == ["given_up", "given_up"]
    counts = dict(site.db.latencies.read()["told"][0])
    assert (counts["30"], counts["+Inf"]) == (1, 2), "the update of a1 is no first message"


def test_a_target_that_refuses_each_message_fails_and_uses_up_the_error_budget(site: NotifyingSite) -> None:
    refuses = SendResult(ok=False, status=400, refused=True, error="h answered 400")
    made = target_sender(site, ScriptedSender(refuses, refuses))
    site.alert("a1")
    site.alert("a2")
    go(made)
    assert [site.notice(name).state for name in ("a1", "a2")] == ["given_up", "given_up"], "none is tried again"
    status = made.status
    assert (status.failing_since, status.error, status.failures, status.given_up) == (T0, "h answered 400", 2, 2)
    counts = dict(site.db.latencies.read()["told"][0])
    assert (counts["30"], counts["+Inf"]) == (0, 2)
    site.alert("a3")
    go(made)
    assert (made.status.failing_since, site.notice("a3").state) == (None, "told")


def test_a_message_that_nobody_wants_is_no_failure_of_its_target(site: NotifyingSite) -> None:
    made = target_sender(site, ScriptedSender(SendResult(ok=False, refused=True, error="no browser has subscribed")))
    site.alert()
    go(made)
    assert (site.notice().state, made.status.failing_since, made.status.failures) == ("given_up", None, 0)
    assert "told" not in site.db.latencies.read()


def target_sender(site: NotifyingSite, sender: ScriptedSender) -> TargetSender:
    return TargetSender("phone", site.targets["phone"], site.deps(), sender)


def go(made: TargetSender) -> None:
    """As often as it wants to go on at once."""

    async def on() -> None:
        while await made.run_once() == 0.0:
            pass

    asyncio.run(on())


def test_waits_as_long_as_the_target_requests(site: NotifyingSite) -> None:
    sender = ScriptedSender(SendResult(ok=False, status=429, error="busy", after_s=60.0))
    made = target_sender(site, sender)
    site.alert()
    go(made)
    site.clock.advance(59)
    go(made)
    assert sender.sent == ["a1"]
    site.clock.advance(1)
    go(made)
    assert site.notice().state == "told"


def test_backs_off_and_forgives(site: NotifyingSite) -> None:
    sender = ScriptedSender(*[FAILS] * 12)
    made = target_sender(site, sender)
    site.alert()
    while made.status.failures < 12:
        go(made)
        site.clock.advance(BACKOFF_LAST_S)
    assert made.status.failing_since == T0
    go(made)
    assert (made.status.failing_since, site.notice().state) == (None, "told")
    sender.script = [FAILS]
    site.alert("a2")
    go(made)
    site.clock.advance(3)  # as after a first failure
    go(made)
    assert site.notice("a2").state == "told"


def test_a_message_that_a_target_never_takes_is_not_in_the_way_of_others(site: NotifyingSite) -> None:
    sender = ScriptedSender()
    sender.poison = {"a1"}
    made = target_sender(site, sender)
    for name in ("a1", "a2", "a3"):
        site.alert(name)
        site.clock.advance(1)
    go(made)
    site.clock.advance(10)
    go(made)
    assert [site.notice(name).state for name in ("a1", "a2", "a3")] == ["waiting", "told", "told"]


def test_the_most_severe_goes_first(site: NotifyingSite) -> None:
    sender = ScriptedSender()
    site.alert("a1")
    site.alert("a2")
    site.escalate("a2")
    go(target_sender(site, sender))
    assert sender.sent == ["a2", "a1"]


def test_a_verdict_that_comes_while_another_message_is_on_its_way_is_respected(site: NotifyingSite) -> None:
    class Slow(ScriptedSender):
        async def send(self, message: NotificationMessage) -> SendResult:
            if not self.sent:
                site.verdict("rejected", "a2")
            return await super().send(message)

    sender = Slow()
    site.alert("a1")
    site.clock.advance(1)
    site.alert("a2", asked=True)
    go(target_sender(site, sender))
    assert sender.sent == ["a1"]
    assert site.notice("a2").state == "withdrawn"


def test_what_cannot_be_recorded_as_dropped_delays_nothing(site: NotifyingSite) -> None:
    sender = ScriptedSender()
    site.alert("a1", camera="gate")
    site.forbidden.add("gate")
    site.clock.advance(1)
    site.alert("a2")
    site.notices.full = True
    go(target_sender(site, sender))
    assert sender.sent == ["a2"]
    assert site.notice("a1").state == "waiting"


def test_a_message_of_before_the_clock_was_set_back_silences_nobody_for_hours(tmp_path: Path) -> None:
    target = hook("http://phone.lan", repeat_s=60)
    with contextlib.closing(NotifyingSite(tmp_path, ManualClock(T0), phone=target)) as site:
        made = target_sender(site, ScriptedSender())
        site.alert("a1")
        go(made)
        site.clock.jump(-3 * 3600)
        site.clock.advance(600)
        site.alert("a2")
        go(made)
        assert site.notice("a2").state == "told"


def test_an_alert_of_the_moment_in_which_the_clock_is_set_back_is_told(site: NotifyingSite) -> None:
    site.alert("a1")
    site.clock.jump(-24 * 3600)
    site.alert("a2")
    windows = site.notice("a1").window.expire_t - 24 * 3600, site.notice("a2").window.expire_t
    site.notices.clock_stepped(-24 * 3600)
    assert (site.notice("a1").window.expire_t, site.notice("a2").window.expire_t) == windows
    go(target_sender(site, sender := ScriptedSender()))
    assert sorted(sender.sent) == ["a1", "a2"]


def test_an_alert_that_is_not_stored_is_told_in_time_or_not_at_all(site: NotifyingSite) -> None:
    sender = ScriptedSender(FAILS, FAILS)
    made = target_sender(site, sender)
    change = opened("a1", t=site.clock.now())
    (notice,) = site.planner.plan(change, site.clock.now())
    made.send_unstored(UnstoredAlert(notice, change, "the disk is full"))
    go(made)
    site.clock.advance(11 * 3600)
    go(made)
    assert sender.sent == ["a1", "a1"]
    site.clock.advance(2 * 3600)
    go(made)
    assert sender.sent == ["a1", "a1"], "after expire_hours nobody is told any more"
