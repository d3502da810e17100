"""Say at the end of a run how many CPU seconds each test file took, with all processes that it started.

`make test ARGS="-p tests.support.cpu_times"`. CPU seconds say on a busy machine, too, what `--durations` says on a
quiet one: what a test costs. A process that its parent leaves behind is not counted once that parent has ended.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

from appliance.base.machine import family_cpu_s

COLLECTION = "(collection, in all workers)"
LINES_MAX = 60  # files below these take a second or two each

_spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # by file: own CPU, children's CPU, wall; seconds
_before = [0.0, 0.0]
_collection: list[tuple[float, float]] = []  # what it took, until a report has told it


def _so_far() -> tuple[float, float]:
    """Return the CPU seconds of this process, and those of its descendants that live or were waited for."""
    own = sum(os.times()[:2])  # user and system, in ticks as the family's
    return own, family_cpu_s(os.getpid()) - own


def _since_before() -> tuple[float, float]:
    before = tuple(_before)
    _before[:] = _so_far()
    return _before[0] - before[0], _before[1] - before[1]


def pytest_collection_finish() -> None:
    _collection.append(_since_before())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "teardown":
        report.cpu = _since_before()
        if _collection:
            report.cpu_of_collection = _collection.pop()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up in the process that reports: with xdist, what the workers sent."""
    spent = _spent[report.nodeid.partition("::")[0]]
    spent[2] += report.duration
    for whose, cpu in ((spent, "cpu"), (_spent[COLLECTION], "cpu_of_collection")):
        own, children = getattr(report, cpu, (0.0, 0.0))
        whose[0] += own
        whose[1] += children


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("CPU seconds by file: own, of processes started; and wall seconds")
    _spent["(all)"] = [sum(each) for each in zip(*_spent.values(), strict=True)]
    for file, (own, children, wall) in sorted(_spent.items(), key=lambda each: -each[1][0] - each[1][1])[:LINES_MAX]:
        terminalreporter.line(f"{own:8.1f} {children:8.1f} {wall:8.1f}  {file}")
