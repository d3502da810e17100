"""What others send does not fill the log, however various it is."""

from __future__ import annotations

import logging

import pytest

from appliance.base.clock import ManualClock
from appliance.base.telemetry import LINES_MAX, LogThrottle


def test_the_same_is_told_once_a_minute_and_the_various_so_many_times(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttle = LogThrottle(logging.getLogger("x"), clock)
    for _ in range(50):
        throttle.report("the same")
    assert caplog.messages == ["the same"]
    for n in range(5000):
        throttle.report(f"matter {n}")
    assert len(caplog.messages) == LINES_MAX
    clock.advance(61)
    throttle.report("later")
    assert caplog.messages[-1] == f"later (and {5000 - LINES_MAX + 1} times more before)"
