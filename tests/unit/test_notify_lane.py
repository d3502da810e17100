"""One target's lane, step by step: how long it waits after a failure, and what goes first then."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from shelf import T0
from telling import Telling, hook

from appliance.clock import ManualClock
from appliance.notify.delivery import BACKOFF_LAST_S, TargetSender
from appliance.notify.http_sender import SendResult
from appliance.notify.ntfy_webhook import HttpRequest

OK = SendResult(ok=True, status=200)
FAILS = SendResult(ok=False, error="it failed")


class Scripted:
    """A way out that answers as its script says, and then takes everything. Alerts in `poison` are never taken."""

    def __init__(self, *script: SendResult) -> None:
        self.script = list(script)
        self.poison: set[str] = set()
        self.sent: list[str] = []

    async def send(self, request: HttpRequest) -> SendResult:
        alert = json.loads(request.body)["alert"]
        self.sent.append(alert)
        if alert in self.poison:
            return FAILS
        return self.script.pop(0) if self.script else OK

    async def close(self) -> None:
        pass


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Telling]:
    with contextlib.closing(Telling(tmp_path, ManualClock(T0), phone=hook("http://phone.lan"))) as made:
        yield made


def lane(box: Telling, post: Scripted) -> TargetSender:
    return TargetSender("phone", box.targets["phone"], box.means(), post)


def go(made: TargetSender) -> None:
    """As often as it wants to go on at once."""

    async def on() -> None:
        while await made.run_once() == 0.0:
            pass

    asyncio.run(on())


def test_waits_as_long_as_it_is_asked_to(box: Telling) -> None:
    post = Scripted(SendResult(ok=False, status=429, error="busy", after_s=60.0))
    made = lane(box, post)
    box.alert()
    go(made)
    box.clock.advance(59)
    go(made)
    assert post.sent == ["a1"]
    box.clock.advance(1)
    go(made)
    assert box.notice().state == "told"


def test_backs_off_and_forgives(box: Telling) -> None:
    post = Scripted(*[FAILS] * 12)
    made = lane(box, post)
    box.alert()
    while made.state.failures < 12:
        go(made)
        box.clock.advance(BACKOFF_LAST_S)
    assert made.state.failing_since == T0
    go(made)
    assert (made.state.failing_since, box.notice().state) == (None, "told")
    post.script = [FAILS]
    box.alert("a2")
    go(made)
    box.clock.advance(3)  # as after a first failure
    go(made)
    assert box.notice("a2").state == "told"


def test_a_message_that_cannot_be_stomached_is_not_in_the_way_of_others(box: Telling) -> None:
    post = Scripted()
    post.poison = {"a1"}
    made = lane(box, post)
    for name in ("a1", "a2", "a3"):
        box.alert(name)
        box.clock.advance(1)
    go(made)
    box.clock.advance(10)
    go(made)
    assert [box.notice(name).state for name in ("a1", "a2", "a3")] == ["waiting", "told", "told"]


def test_the_gravest_goes_first(box: Telling) -> None:
    post = Scripted()
    box.alert("a1")
    box.alert("a2")
    box.graver("a2")
    go(lane(box, post))
    assert post.sent == ["a2", "a1"]


def test_a_verdict_that_comes_while_another_message_is_on_its_way_is_heeded(box: Telling) -> None:
    class Slow(Scripted):
        async def send(self, request: HttpRequest) -> SendResult:
            if not self.sent:
                box.verdict("rejected", "a2")
            return await super().send(request)

    post = Slow()
    box.alert("a1")
    box.clock.advance(1)
    box.alert("a2", asked=True)
    go(lane(box, post))
    assert post.sent == ["a1"]
    assert box.notice("a2").state == "withdrawn"


def test_what_cannot_be_noted_as_dropped_holds_up_nothing(box: Telling) -> None:
    post = Scripted()
    box.alert("a1", camera="gate")
    box.forbidden.add("gate")
    box.clock.advance(1)
    box.alert("a2")
    box.notices.full = True
    go(lane(box, post))
    assert post.sent == ["a2"]
    assert box.notice("a1").state == "waiting"
