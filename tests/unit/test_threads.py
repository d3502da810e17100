"""Parts side by side: stopped in reverse order; one that fails, or just ends, ends all."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import ModelError, StoreError, StoreUnavailable
from appliance.base.service_loop import ServiceLoop
from appliance.base.threads import (
    FILES_WAIT_S,
    RESTART_LAST_S,
    WELL_AFTER_S,
    Service,
    ServiceGroup,
    ServiceRestarts,
    periodic_service,
)
from tests.support.waiting import until


def waiting(name: str, ended: list[str]) -> Service:
    stop = threading.Event()

    def run() -> None:
        assert stop.wait(60)
        ended.append(name)

    return Service(name, run, stop.set)


def failing(error: BaseException) -> Service:
    def run() -> None:
        raise error

    return Service("broken", run, lambda: None)


def test_the_last_started_is_the_first_stopped() -> None:
    parts, ended = ServiceGroup(), []
    for name in ("meter", "evidence", "core"):
        parts.start(waiting(name, ended))
    parts.stop()
    assert parts.wait() == 0
    assert ended == ["core", "evidence", "meter"]


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(0), StoreError("the file is damaged")])
def test_one_that_fails_ends_all_with_1_and_says_why(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    parts, ended = ServiceGroup(), []
    parts.start(waiting("meter", ended))
    parts.start(failing(error))
    assert parts.wait() == 1
    assert ended == ["meter"]
    assert "broken stopped" in caplog.text
    assert ("Traceback" in caplog.text) == (not isinstance(error, StoreError))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_one_that_finds_no_file_descriptor_waits_and_goes_on(number: int, caplog: pytest.LogCaptureFixture) -> None:
    clock, runs, stop = ManualClock(), [], threading.Event()

    def run() -> None:
        runs.append(clock.monotonic())
        if len(runs) < 5:
            raise OSError(number, os.strerror(number))
        stop.wait(60)

    parts = ServiceGroup(clock)
    parts.start(Service("rechecks", run, stop.set))
    until(lambda: len(runs) == 5)
    parts.stop()
    assert parts.wait() == 0
    assert clock.monotonic() - runs[0] >= 4 * FILES_WAIT_S
    assert len([each for each in caplog.records if "too many files are open" in each.message]) == 1


def test_one_that_cannot_run_twice_or_fails_otherwise_ends_all() -> None:
    lacking = OSError(errno.EMFILE, "Too many open files")
    for service in (
        Service("dashboard", partial(_raise, lacking), lambda: None, resumes=False),
        Service("core", partial(_raise, OSError(errno.EIO, "I/O error")), lambda: None),
    ):
        parts = ServiceGroup(ManualClock())
        parts.start(service)
        assert parts.wait() == 1


def _raise(error: OSError) -> None:
    raise error


def test_wrong_use_ends_all_with_2(caplog: pytest.LogCaptureFixture) -> None:
    parts = ServiceGroup()
    parts.start(failing(ModelError("nano.onnx: no such model file")))
    assert parts.wait() == 2
    assert "broken stopped: nano.onnx: no such model file" in caplog.text
    assert "Traceback" not in caplog.text


def test_one_that_ends_by_itself_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    parts = ServiceGroup()
    parts.start(Service("dashboard", lambda: None, lambda: None))
    assert parts.wait() == 1
    assert "dashboard ended by itself" in caplog.text


def test_one_that_hangs_is_left_behind_and_the_log_says_where(caplog: pytest.LogCaptureFixture) -> None:
    parts, never = ServiceGroup(stop_s_max=0.05), threading.Event()

    def hang() -> None:
        never.wait(60)

    parts.start(Service("evidence", hang, lambda: None))
    parts.stop(3)
    assert parts.wait() == 3
    never.set()
    assert "evidence did not stop within 0.05 s; it is in " in caplog.text
    assert ", called by hang (test_threads.py:" in caplog.text


def test_one_that_ends_once_all_were_asked_to_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    parts = ServiceGroup()
    parts.start(Service("cameras", parts.stop, lambda: None))
    assert parts.wait() == 0
    assert caplog.text == ""


STORM = """
import os, signal, threading
from appliance.base.threads import ServiceGroup

parts = ServiceGroup()
signal.signal(signal.SIGUSR1, lambda *_: parts.stop())
storm = threading.Thread(target=lambda: [os.kill(os.getpid(), signal.SIGUSR1) for _ in range(1000)])
storm.start()
code = parts.wait()
storm.join()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # drops what is still pending
print(code)
"""


def test_signals_may_come_many_at_once() -> None:
    """In a process of its own: a test that ended the one it runs in took all tests of that process with it."""
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_periodic_part_goes_on_when_the_disk_is_full(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    done = threading.Event()
    answers = iter([StoreUnavailable("the disk is full"), StoreUnavailable("the disk is full"), None])

    def job() -> None:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        done.set()

    parts = ServiceGroup()
    parts.start(periodic_service("meter", 0.001, job, SystemClock()))
    assert done.wait(60)
    parts.stop()
    assert parts.wait() == 0
    assert caplog.text.count("meter waits") == 1


def test_services_are_replaced_while_the_others_run() -> None:
    parts, ended = ServiceGroup(), []
    old, new = waiting("notifier", ended), waiting("notifier", ended)
    parts.start(waiting("meter", ended))
    parts.start(old)
    parts.replace([old], [new])
    assert ended == ["notifier"]
    parts.stop()
    assert parts.wait() == 0, "one that was replaced has not failed"
    assert ended == ["notifier", "notifier", "meter"]


class Failing:
    """A service that fails so often, and then runs until it is stopped. runs: how often it was run."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self._stop = threading.Event()
        self.runs = 0
        self.service = Service("uplink", self.run, self._stop.set, resumes=False)

    def run(self) -> None:
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)
        self._stop.wait(60)


def test_one_that_only_talks_to_others_is_started_again_and_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock, failing = ManualClock(), Failing(TypeError("a bug"), KeyError("another"), OSError(errno.EIO, "I/O error"))
    restarts, parts = ServiceRestarts(clock), ServiceGroup(clock)
    began = clock.monotonic()
    parts.start(restarts.guard(failing.service))
    until(lambda: failing.runs == 4)
    assert clock.monotonic() - began >= 0.75 * (1 + 2 + 4), "backed off"
    assert "uplink (OSError, 3 x)" in restarts.fault
    assert caplog.text.count("Traceback") == 3
    clock.advance(RESTART_LAST_S + WELL_AFTER_S)
    assert restarts.fault == ""
    parts.stop()
    assert parts.wait() == 0


def test_one_that_also_fails_while_it_closes_is_run_no_more() -> None:
    clock, stopped = ManualClock(), threading.Event()
    runs: list[bool] = []

    def run() -> None:
        runs.append(stopped.wait(60))
        raise TypeError("a bug")

    parts = ServiceGroup(clock)
    parts.start(ServiceRestarts(clock).guard(Service("uplink", run, stopped.set, resumes=False)))
    parts.stop()
    assert parts.wait() == 0
    assert len(runs) <= 2


def test_a_service_that_cannot_be_stopped_keeps_no_other_from_its_end(caplog: pytest.LogCaptureFixture) -> None:
    parts, ended, finish = ServiceGroup(stop_s_max=0.1), [], threading.Event()

    def refuse() -> None:
        raise OSError("no pipe")

    parts.start(waiting("meter", ended))
    parts.start(Service("broken", finish.wait, refuse))
    parts.stop()
    assert parts.wait() == 0
    finish.set()
    assert ended == ["meter"]
    assert "broken could not be asked to stop" in caplog.text


@pytest.mark.parametrize(("error", "code"), [(StoreError("damaged"), 1), (ModelError("no model"), 2)])
def test_what_the_database_or_the_settings_refuse_ends_all_even_so(error: Exception, code: int) -> None:
    clock = ManualClock()
    parts, failing = ServiceGroup(clock), Failing(error)
    parts.start(ServiceRestarts(clock).guard(failing.service))
    assert (parts.wait(), failing.runs) == (code, 1)


def test_a_loop_that_failed_runs_again_with_what_is_bound_to_it() -> None:
    loop, event, left = ServiceLoop(), asyncio.Event(), []

    async def main(*, fails: bool) -> None:
        left.append(asyncio.create_task(event.wait()))  # binds the event to the loop
        await asyncio.sleep(0)
        if fails:
            raise TypeError("a bug")
        event.set()
        await asyncio.wait_for(event.wait(), 10)

    with pytest.raises(TypeError):
        loop.run(main(fails=True))
    assert left[0].cancelled(), "nothing runs on behind"
    loop.run(main(fails=False))
