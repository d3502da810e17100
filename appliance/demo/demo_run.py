"""`vedette demo`: plans cameras, judge, files and programs; starts the programs, watches them, stops them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from appliance.base.child_processes import APPLIANCE, CLOUD_WORKER, RTSP_SERVER
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, SourceRefused, UsageError
from appliance.demo import demo_config
from appliance.demo.child_process import ChildProcess, ChildProgram
from appliance.demo.demo_config import (
    DASHBOARD_PORT,
    NO_VLM,
    VLM_KEY,
    DemoCamera,
    dashboard_port,
    find_clips,
    find_nats_server,
    free_port,
    lock_data_folder,
)
from appliance.demo.demo_console import AlertReporter, DashboardClient, DemoConsole
from appliance.demo.demo_vlm import VlmServer, find_local_vlm, probe_vlm
from appliance.demo.looping_clip import as_camera_clip

DETECTOR_JUDGES = (
    "Judged by a detector that looks again: it can reject or doubt, not confirm. A real model: "
    "vedette judge says which fits this machine and starts it; the demo then finds it by itself."
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `vedette demo`."""

    clip: Path | None = None  # played as the one camera
    cameras: tuple[str, ...] = ()  # RTSP addresses to use instead
    port: int | None = None  # None: 8080 or the next free one
    data: Path | None = None  # None: ./vedette-data/demo
    open_browser: bool = True
    seconds: float | None = None  # stop by itself so long after the dashboard is up
    model: str | None = None
    vlm: str | None = None  # a language model's server; None: one of this machine; NO_VLM: a detector judges
    vlm_model: str | None = None  # None: the only one that the server has
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The programs in order of starting, and their ports."""

    programs: tuple[ChildProgram, ...]
    nats_port: int
    rtsp_port: int | None
    dashboard_port: int
    data: Path
    judge: str  # what judges, one line

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}/"


def make_plan(options: DemoOptions, data: Path, console: DemoConsole) -> DemoPlan:
    """Find what is needed, write the configuration files, and plan how each program is started. Raises UsageError."""
    nats = find_nats_server()
    vlm, judge = _judge(options, console)
    with_key = bool(os.environ.get(VLM_KEY)) and options.vlm is not None
    rtsp_port = None if options.cameras else free_port()
    cameras, rtsp = _cameras(options, data, rtsp_port, console)
    port = dashboard_port(options.port)
    if options.port is None and port != DASHBOARD_PORT:
        console.emit("port", f"port {DASHBOARD_PORT} is taken; the dashboard uses {port}", port=port)
    nats_port = free_port()
    model = _model(options.model)
    address = f"nats://127.0.0.1:{nats_port}"
    site_path = _write(data / "demo.yaml", demo_config.site_file(data, cameras, address, port, model))
    worker_path = _write(data / "worker.yaml", demo_config.worker_file(address, model, vlm, with_key=with_key))
    nats_path = _write(data / "nats.conf", demo_config.nats_file(data, nats_port))
    secrets = {camera.variable: camera.password for camera in cameras if camera.password}
    python = sys.executable
    programs = (
        ChildProgram("nats-server", (str(nats), "-c", str(nats_path))),
        *rtsp,
        ChildProgram("worker", (python, "-m", CLOUD_WORKER, "run", "--config", str(worker_path)), stop_s=10.0),
        ChildProgram("vedette", (python, "-m", APPLIANCE, "run", "--config", str(site_path)), 25.0, secrets),
    )
    return DemoPlan(programs, nats_port, rtsp_port, port, data, judge)


def _judge(options: DemoOptions, console: DemoConsole) -> tuple[VlmServer | None, str]:
    """Return the language model's server, which has answered, and one line on what judges. Raise UsageError."""
    if options.vlm == NO_VLM:
        return None, DETECTOR_JUDGES
    if options.vlm is None:
        found, why = find_local_vlm(options.vlm_model)
        if found is not None:
            console.emit("judge", f"found a model server on this machine: {found.model} at {found.url}", url=found.url)
            return found, f"Judged by the vision-language model {found.model} at {found.url}."
        if options.vlm_model is not None:
            raise UsageError(f"--vlm-model needs --vlm: no server on this machine has it{f' ({why})' if why else ''}")
        if why:
            console.emit("judge", f"a server on this machine is not used: {why}")
        return None, DETECTOR_JUDGES
    console.emit("probe", f"asking the model at {options.vlm} a trial question ...", url=options.vlm)
    vlm = probe_vlm(options.vlm, options.vlm_model, os.environ.get(VLM_KEY, ""))
    return vlm, f"Judged by the vision-language model {vlm.model} at {vlm.url}."


def _cameras(
    options: DemoOptions, data: Path, rtsp_port: int | None, console: DemoConsole
) -> tuple[tuple[DemoCamera, ...], tuple[ChildProgram, ...]]:
    """Return the cameras, and the program that plays them if they are files."""
    if options.cameras:
        if options.clip is not None:
            raise UsageError("give either --clip or --camera, not both")
        return _given(options.cameras), ()
    if options.clip is not None:
        clips = {demo_config.camera_name(options.clip): _playable(options.clip.absolute(), data, console)}
    else:
        clips = dict(find_clips())
    mounts = tuple(f"{name}={path}" for name, path in clips.items())
    command = (sys.executable, "-m", RTSP_SERVER, "--port", str(rtsp_port), *mounts)
    cameras = tuple(DemoCamera(name, f"rtsp://127.0.0.1:{rtsp_port}/{name}") for name in clips)
    return cameras, (ChildProgram("rtsp", command),)


def _given(urls: tuple[str, ...]) -> tuple[DemoCamera, ...]:
    for url in urls:
        if not url.startswith(("rtsp://", "rtsps://")):
            raise UsageError(f"`{url}` is not a camera's address: it must begin with rtsp:// or rtsps://")
    try:
        return tuple(demo_config.camera_from_url(f"camera{number}", url) for number, url in enumerate(urls, 1))
    except ValueError as error:  # of rtsp://[
        raise UsageError(f"--camera: {error}: write an address such as rtsp://user:password@host:554/path") from None


def _playable(clip: Path, data: Path, console: DemoConsole) -> Path:
    try:
        return as_camera_clip(clip, data / "clips", lambda text: console.emit("convert", text))
    except SourceRefused as error:
        raise UsageError(f"--clip {error}") from None


def _model(model: str | None) -> str | None:
    """Return the model; a path as an absolute one, since the children run in other folders."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_file() else model


def _write(path: Path, text: str) -> Path:
    """Write a file that only this user may read: it holds user names and addresses of cameras."""
    path.unlink(missing_ok=True)
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600), encoding="utf-8") as file:
        file.write(text)
    return path


DATA = Path("vedette-data") / "demo"
PORT_OPEN_S_MAX = 15.0  # nats-server opens its port within a second, on an SD card in some
READY_S_MAX = 300.0  # the first start compiles sources and measures runtimes, on a busy or slow machine, too
POLL_EVERY_S = 1.0  # of the dashboard's list of alerts
STARTS_MAX = 3  # a program that ends three times will not stay
_TICK_S = 0.2  # Ctrl-C is answered so soon


def demo(options: DemoOptions) -> int:
    """Run the demo until Ctrl-C, SIGTERM or `options.seconds`. Returns 0 when it was stopped on purpose.

    Must be called in the main thread. Raises UsageError before anything is started, in one sentence with the remedy.
    """
    clock = SystemClock()
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
        self._console.emit("starting", "starting; the first time this takes up to a minute, on a small computer longer")
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
