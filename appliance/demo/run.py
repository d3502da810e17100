"""`vedette demo`: the whole house on one machine, started, watched over and stopped as one thing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import webbrowser
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from appliance.clock import Clock, SystemClock
from appliance.demo.api import Api
from appliance.demo.children import Child
from appliance.demo.parts import claimed
from appliance.demo.plan import DemoOptions, House, make_plan
from appliance.demo.story import Story, Teller
from appliance.errors import MissingPart

__all__ = ["DemoOptions", "demo"]

DATA = Path("vedette-data") / "demo"
PORT_OPEN_S_MAX = 15.0
READY_S_MAX = 90.0
LOOK_EVERY_S = 1.0
STARTS_MAX = 3
_TICK_S = 0.2


def demo(options: DemoOptions, clock: Clock | None = None) -> int:
    """Run the demo until Ctrl-C, SIGTERM or `options.seconds`. Returns 0 when it was stopped on purpose.

    Must be called in the main thread. Raises UsageError before anything is started, in one sentence with the remedy.
    """
    clock = clock or SystemClock()
    teller = Teller(clock, as_json=options.json)
    data = (options.data or DATA).absolute()
    with claimed(data), _Stop.on_signals() as stop:
        house = make_plan(options, data, teller)
        return _Demo(house, options, clock, teller, stop).run()


class _Stop:
    """Counts the requests to stop: one ends the demo in order, two at once."""

    def __init__(self) -> None:
        self.asked = 0

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
        self.asked += 1


class _Demo:
    """The running demo.

    State: the children, in order of starting. Owner: the main thread. Invariant: when `run` returns or raises, no
    child is left; when this process is killed, the kernel ends them.
    """

    def __init__(self, house: House, options: DemoOptions, clock: Clock, teller: Teller, stop: _Stop) -> None:
        self._house = house
        self._options = options
        self._clock = clock
        self._teller = teller
        self._stop = stop
        logs = house.data / "logs"
        logs.mkdir(exist_ok=True, mode=0o700)
        self._children = [Child(program, logs / f"{program.name}.log", clock) for program in house.programs]

    def run(self) -> int:
        api = Api(self._house.dashboard_port)
        story = Story(api, self._teller, self._house.url, self._clock.now())
        try:
            self._start()
            self._wait(api.healthy, READY_S_MAX, f"the dashboard at {self._house.url}")
            if not self._stop.asked:
                self._welcome()
                self._watch(story)
        finally:
            self._end()
        return 0

    def _start(self) -> None:
        """Those first that others connect to."""
        waiting = {"nats-server": self._house.nats_port, "rtsp": self._house.rtsp_port}
        for child in self._children:
            child.start()
            port = waiting.get(child.program.name)
            if port is not None:
                self._wait(partial(_answers, port), PORT_OPEN_S_MAX, f"{child.program.name} on port {port}")

    def _wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self._clock.monotonic() + seconds
        while not self._stop.asked and not ready():
            self._look_after()
            self._give_up_on_those_that_keep_dying()
            if self._clock.monotonic() > deadline:
                raise MissingPart(f"{what} did not answer within {seconds:.0f} s; see {self._house.data / 'logs'}")
            self._clock.sleep(_TICK_S)

    def _give_up_on_those_that_keep_dying(self) -> None:
        """Before the demo is up; later, a part is started again for as long as it takes."""
        for child in self._children:
            if child.starts > STARTS_MAX:
                name, words = child.program.name, child.last_words() or "it says nothing"
                raise MissingPart(f"{name} dies again and again: {words} (see {child.log})")

    def _watch(self, story: Story) -> None:
        began = self._clock.monotonic()
        looked_at = float("-inf")
        while not self._stop.asked:
            now = self._clock.monotonic()
            if self._options.seconds is not None and now - began >= self._options.seconds:
                break
            self._look_after()
            if now - looked_at >= LOOK_EVERY_S:
                story.look()
                looked_at = now
            self._clock.sleep(_TICK_S)
        story.look()

    def _look_after(self) -> None:
        for child in self._children:
            death = child.check()
            if death is not None:
                name = child.program.name
                text = f"{name} died ({death}); started again"
                self._teller.tell("restart", text, part=name, how=death, pid=child.pid)

    def _welcome(self) -> None:
        house = self._house
        pids = {child.program.name: child.pid for child in self._children}
        self._teller.tell(
            "ready", f"Dashboard: {house.url}", stamped=False, url=house.url, data=str(house.data), pids=pids
        )
        self._explain()
        if self._options.open_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(house.url)

    def _explain(self) -> None:
        if self._options.json:
            return
        own = not self._options.cameras
        expect = "The first alert comes in about 20 s" if own else "An alert comes when somebody walks into the picture"
        self._teller.tell("", f"  {expect}; the cloud worker's verdict follows a few seconds later.", stamped=False)
        self._teller.tell("", f"  Site file, recordings and logs: {self._house.data}", stamped=False)
        self._teller.tell("", "  Ctrl-C stops everything.", stamped=False)

    def _end(self) -> None:
        """In the reverse of what depends on what: the appliance first, so that it can still say goodbye to the rest."""
        if any(child.pid for child in self._children):
            self._teller.tell("stopping", "stopping ...")
        asked = self._stop.asked
        order = {"vedette": 0, "worker": 1, "nats-server": 2, "rtsp": 3}
        for child in sorted(self._children, key=lambda child: order[child.program.name]):
            if not child.stop(lambda: self._stop.asked > asked):
                self._teller.tell("killed", f"{child.program.name} did not stop by itself", part=child.program.name)
        self._teller.tell("stopped", f"stopped; everything stays in {self._house.data}", data=str(self._house.data))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
