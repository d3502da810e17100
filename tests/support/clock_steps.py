"""A pytest plug-in: a test that fails where the machine's clock was set meanwhile runs once more.

A virtual machine that was paused has its clock set by as long as the pause. A recording then has a gap, as it must, and
a test that asserts "no gap" fails rightly, but says nothing about the product. The report of the second run counts.
"""

from __future__ import annotations

import time

import pytest
from _pytest.runner import runtestprotocol

STEP_S_MIN = 0.2  # NTP slews smaller ones


def offset_s() -> float:
    """Seconds of the wall clock at which the clock that nobody sets was zero."""
    return time.time() - time.monotonic()


class ClockSteps:
    """Runs tests, and knows where the clock stood when the first test of the module began."""

    def __init__(self) -> None:
        self._module, self._offset_s = "", 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        module = item.nodeid.split("::")[0]
        if module != self._module:
            self._module, self._offset_s = module, offset_s()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        step_s = offset_s() - self._offset_s
        if abs(step_s) >= STEP_S_MIN and any(report.failed for report in reports):
            self._offset_s += step_s
            item.session._setupstate.teardown_exact(None)  # fixtures of the module may have seen the step, too
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            for report in reports:
                report.sections.append(("clock", f"run again: this machine's clock was set by {step_s:+.1f} s"))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
