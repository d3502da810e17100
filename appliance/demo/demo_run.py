"""`vedette demo`: starts the planned programs, watches them and stops them in order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency
from appliance.demo.child_process import ChildProcess
from appliance.demo.demo_config import lock_data_folder
from appliance.demo.demo_console import AlertReporter, DashboardClient, DemoConsole
from appliance.demo.demo_plan import DemoOptions, DemoPlan, make_plan

DATA = Path("vedette-data") / "demo"
PORT_OPEN_S_MAX = 15.0  # nats-server opens its port within a second, on an SD card in some
READY_S_MAX = 90.0  # the first start compiles sources and measures runtimes, on any machine
POLL_EVERY_S = 1.0  # of the dashboard's list of alerts
STARTS_MAX = 3  # a program that ends three times will not stay
_TICK_S = 0.2  # Ctrl-C is answered so soon


def demo(options: DemoOptions, clock: Clock | None = None) -> int:
    """Run the demo until Ctrl-C, SIGTERM or `options.seconds`. Returns 0 when it was stopped on purpose.

    Must be called in the main thread. Raises UsageError before anything is started, in one sentence with the remedy.
    """
    clock = clock or SystemClock()
    console = DemoConsole(clock, as_json=options.as_json)
    data = (options.data or DATA).absolute()
    with lock_data_folder(data), _Stop.on_signals() as stop:
        plan = make_plan(options, data, console)
        return _Demo(plan, options, clock, console, stop).run()


class _Stop:
    """Counts the requests to stop: one ends the demo in order, two at once."""

    def __init__(self) -> None:
        self.requests = 0

    @classmethod
    @contextlib.contextmanager
    def on_signals(cls) -> Iterator[_Stop]:
        stop = cls()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, stop._count) for number in numbers}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count(self, *_: object) -> None:
        self.requests += 1


class _Demo:
    """The running demo.

    State: the children, in order of starting. Owner: the main thread. Invariant: when `run` returns or raises, no
    child is left; when this process is killed, the kernel ends them.
    """

    def __init__(self, plan: DemoPlan, options: DemoOptions, clock: Clock, console: DemoConsole, stop: _Stop) -> None:
        self._plan = plan
        self._options = options
        self._clock = clock
        self._console = console
        self._stop = stop
        logs = plan.data / "logs"
        logs.mkdir(exist_ok=True, mode=0o700)
        self._children = [ChildProcess(program, logs / f"{program.name}.log", clock) for program in plan.programs]

    def run(self) -> int:
        api = DashboardClient(self._plan.dashboard_port)
        reporter = AlertReporter(api, self._console, self._plan.url, self._clock.now())
        try:
            self._start()
            self._wait(api.healthy, READY_S_MAX, f"the dashboard at {self._plan.url}")
            if not self._stop.requests:
                self._announce_ready()
                self._watch(reporter)
        finally:
            self._end()
        return 0

    def _start(self) -> None:
        """Start the children in order; wait for those that others connect to."""
        waiting = {"nats-server": self._plan.nats_port, "rtsp": self._plan.rtsp_port}
        for child in self._children:
            child.start()
            port = waiting.get(child.program.name)
            if port is not None:
                self._wait(partial(_answers, port), PORT_OPEN_S_MAX, f"{child.program.name} on port {port}")

    def _wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self._clock.monotonic() + seconds
        while not self._stop.requests and not ready():
            self._restart_dead()
            self._refuse_crash_loops()
            if self._clock.monotonic() > deadline:
                raise MissingDependency(f"{what} did not answer within {seconds:.0f} s; see {self._plan.data / 'logs'}")
            self._clock.sleep(_TICK_S)

    def _refuse_crash_loops(self) -> None:
        """Refuse before the demo is up; later a child is restarted for as long as it takes."""
        for child in self._children:
            if child.starts > STARTS_MAX:
                name, line = child.program.name, child.last_log_line() or "it says nothing"
                raise MissingDependency(f"{name} dies again and again: {line} (see {child.log})")

    def _watch(self, reporter: AlertReporter) -> None:
        began = self._clock.monotonic()
        polled_at = float("-inf")
        while not self._stop.requests:
            now = self._clock.monotonic()
            if self._options.seconds is not None and now - began >= self._options.seconds:
                break
            self._restart_dead()
            if now - polled_at >= POLL_EVERY_S:
                reporter.poll()
                polled_at = now
            self._clock.sleep(_TICK_S)
        reporter.poll()

    def _restart_dead(self) -> None:
        for child in self._children:
            death = child.check()
            if death is not None:
                name = child.program.name
                text = f"{name} died ({death}); started again"
                self._console.emit("restart", text, part=name, how=death, pid=child.pid)

    def _announce_ready(self) -> None:
        plan = self._plan
        pids = {child.program.name: child.pid for child in self._children}
        self._console.emit(
            "ready", f"Dashboard: {plan.url}", stamped=False, url=plan.url, data=str(plan.data), pids=pids
        )
        self._console.emit("judge", f"  {plan.judge}", stamped=False, judge=plan.judge)
        self._explain()
        if self._options.open_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(plan.url)

    def _explain(self) -> None:
        if self._options.as_json:
            return
        own = not self._options.cameras
        expect = "The first alert comes in about 20 s" if own else "An alert comes when somebody walks into the picture"
        self._console.emit("", f"  {expect}; the cloud worker's verdict follows a few seconds later.", stamped=False)
        self._console.emit("", f"  Site file, recordings and logs: {self._plan.data}", stamped=False)
        self._console.emit("", "  Ctrl-C stops everything.", stamped=False)

    def _end(self) -> None:
        """Stop in reverse order of starting: the appliance first, so that it can still finish with the rest."""
        if any(child.pid for child in self._children):
            self._console.emit("stopping", "stopping ...")
        requests = self._stop.requests
        for child in reversed(self._children):
            if not child.stop(lambda: self._stop.requests > requests):
                self._console.emit("killed", f"{child.program.name} did not stop by itself", part=child.program.name)
        self._console.emit("stopped", f"stopped; everything stays in {self._plan.data}", data=str(self._plan.data))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
