"""`vedette demo`: what it starts and watches, and what it says of alerts and verdicts, as text or JSON lines."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import webbrowser
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from appliance.base.backoff import Backoff
from appliance.base.child_modules import APPLIANCE, CLOUD_WORKER, RTSP_SERVER
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, SourceRefused, UsageError, VedetteError, printable, redact
from appliance.demo import demo_config
from appliance.demo.demo_config import (
    DASHBOARD_PORT,
    NO_VLM,
    VLM_KEY,
    DemoCamera,
    VlmServer,
    dashboard_port,
    find_clips,
    find_local_vlm,
    find_nats_server,
    free_port,
    lock_data_folder,
    probe_vlm,
)
from appliance.demo.looping_clip import as_camera_clip

TIMEOUT_S = 3.0  # of the demo's own dashboard on loopback, also on a busy laptop
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # a page of alerts has some 100 kB


class NoAnswer(VedetteError):
    """The dashboard did not answer, or not as it should; ask again later."""


@dataclass(frozen=True, slots=True)
class DemoAlert:
    """An alert of the API's list, as far as the demo shows it."""

    id: str
    camera: str
    title: str
    rules: tuple[str, ...]
    t_start: float
    verdict: str | None
    page: str


class DashboardClient:
    """Asks the appliance on this machine. No state; never through a proxy."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port

    def healthy(self) -> bool:
        """Return whether the dashboard answers."""
        try:
            self._get("/healthz")
        except NoAnswer:
            return False
        return True

    def alerts(self, limit: int = 50) -> list[DemoAlert]:
        """Return the newest alerts, newest first. Raise NoAnswer."""
        try:
            return [
                DemoAlert(
                    id=str(item["id"]),
                    camera=str(item["camera"]),
                    title=str(item["title"]),
                    rules=tuple(map(str, item["rules"])),
                    t_start=float(item["t_start"]),
                    verdict=item["verdict"],
                    page=str(item["page"]),
                )
                for item in self._get(f"/api/v1/alerts?limit={limit}")["alerts"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise NoAnswer(f"the list of alerts is not as expected ({error!r})") from None

    def reason(self, alert: str) -> str:
        """Return the cloud's reason for its verdict; "" without one. Raise NoAnswer."""
        verdict = self._get(f"/api/v1/alerts/{alert}").get("verdict") or {}
        return str(verdict.get("reason", ""))

    def _get(self, path: str) -> Any:
        link = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            link.request("GET", path, headers={"Accept": "application/json"})
            answer = link.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
            if answer.status != http.client.OK:
                raise NoAnswer(f"{path} answered {answer.status}")
            return json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{path}: {error}") from None
        finally:
            link.close()


REMEMBERED_MAX = 2000  # alerts that were printed already; the newest 50 are asked for


class DemoConsole:
    """Prints lines for people, or JSON lines for programs. It has no state.

    Secrets are taken out, and so is everything that would steer a terminal: a reason is what a model wrote.
    """

    def __init__(self, clock: Clock, *, as_json: bool, out: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._out = out or sys.stdout

    def emit(self, event: str, text: str, *, stamped: bool = True, **fields: object) -> None:
        """Print that `event` happened; `text` for people, `fields` for programs."""
        now = self._clock.now()
        if self._as_json:
            line = json.dumps({"event": event, "t": round(now, 3), **fields})
        else:
            line = f"{datetime.fromtimestamp(now).astimezone():%H:%M:%S}  {text}" if stamped else text
        try:
            print(redact(line if self._as_json else printable(line)), file=self._out, flush=True)
        except BrokenPipeError:
            self._out = open("/dev/null", "w")  # noqa: SIM115 (the reader is gone; the demo goes on)


class AlertReporter:
    """Prints each alert and each verdict once.

    State: the alerts printed, at most `REMEMBERED_MAX`, and their verdicts. Owner: the main thread. Alerts that began
    before `since_t` (of an earlier demo in the same folder) are passed over.
    """

    def __init__(self, api: DashboardClient, console: DemoConsole, url: str, since_t: float) -> None:
        self._api = api
        self._console = console
        self._url = url
        self._since_t = since_t
        self._verdicts: OrderedDict[str, str | None] = OrderedDict()
        self.alerts = 0
        self.verdicts = 0

    def poll(self) -> None:
        """Ask once and print what is new; an appliance that does not answer is asked again next time."""
        try:
            for alert in reversed(self._api.alerts()):
                if alert.t_start >= self._since_t:
                    self._take(alert)
        except NoAnswer:
            return

    def _take(self, alert: DemoAlert) -> None:
        if alert.id not in self._verdicts:
            self._verdicts[alert.id] = None
            self.alerts += 1
            self._console.emit(
                "alert", self._alert_line(alert), id=alert.id, camera=alert.camera, rules=list(alert.rules)
            )
            while len(self._verdicts) > REMEMBERED_MAX:
                self._verdicts.popitem(last=False)
        if alert.verdict is not None and self._verdicts[alert.id] != alert.verdict:
            reason = self._api.reason(alert.id)
            self._verdicts[alert.id] = alert.verdict
            self.verdicts += 1
            text = f"verdict  {alert.camera}: {alert.verdict}{f' - {reason}' if reason else ''}"
            self._console.emit("verdict", text, id=alert.id, verdict=alert.verdict, reason=reason)

    def _alert_line(self, alert: DemoAlert) -> str:
        rules = ", ".join(alert.rules)
        return f"alert    {alert.camera}: {alert.title} ({rules})  {self._url.rstrip('/')}{alert.page}"


LOG_BYTES_MAX = 4 * 1024 * 1024  # of one program; some 30,000 lines
HEALTHY_AFTER_S = 30.0  # one that ran so long begins with a short backoff again
TAIL_BYTES = 2000  # the last lines of a log: what went wrong stands there
WRONG_USE = 2  # exit code; another start would not help
_POLL_S = 0.05  # a person sees that it begins
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """A program to run, and how long it may take to stop."""

    name: str
    command: tuple[str, ...]
    stop_s: float = 5.0  # how long it may take to end after SIGTERM
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # added to ours; may hold passwords


class ChildProcess:
    """One program, kept running.

    State: the process, and when to start it again. Owner: the demo's main thread, which must also be the one that
    starts it: the kernel kills the child (PR_SET_PDEATHSIG) when that thread ends, however it ends. The child leads a
    process group of its own, so that Ctrl-C in the terminal reaches us alone and children stop in order.
    Its output goes to `log`, which is cut (the older half moves to `.1`) beyond `LOG_BYTES_MAX`.
    """

    def __init__(self, program: ChildProgram, log: Path, clock: Clock) -> None:
        self.program = program
        self.log = log
        self.starts = 0
        self._clock = clock
        self._backoff = Backoff(0.5, 8.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._death = ""

    @property
    def pid(self) -> int:
        """Its process id; 0 while it is not running."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it. Raises MissingDependency when it cannot be started at all."""
        self._restart_at = None
        environment = {**os.environ, **self.program.environment}
        try:
            with open(self.log, "ab", opener=_private) as output:
                self._process = subprocess.Popen(
                    self.program.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 (this process has one thread)
                )
        except OSError as error:
            raise MissingDependency(
                f"{self.program.name} cannot be started ({self.program.command[0]}: {error.strerror})"
            ) from None
        self.starts += 1
        self._started_at = self._clock.monotonic()

    def check(self) -> str | None:
        """Restart it when it died, after a backoff. Then returns how it had died (`signal 9`), else None.

        Raises MissingDependency when it ended because of wrong use, which another start would not mend.
        """
        self._bound_log()
        if self._restart_at is not None:
            if self._clock.monotonic() < self._restart_at:
                return None
            self.start()
            return self._death
        code = self._process.poll() if self._process else None
        if code is not None:
            self._plan_restart(code)
        return None

    def _plan_restart(self, code: int) -> None:
        now = self._clock.monotonic()
        self._kill_group()
        if code == WRONG_USE:
            raise MissingDependency(f"{self.program.name} cannot run: {self.last_log_line() or 'see ' + str(self.log)}")
        if now - self._started_at > HEALTHY_AFTER_S:
            self._backoff.reset()
        self._restart_at = now + self._backoff.next_s()
        self._death = exit_text(code)

    def stop(self, at_once: Callable[[], bool]) -> bool:
        """Ask it to end, then make it; True if it ended by itself. `at_once()`: do not wait any longer."""
        process, self._restart_at = self._process, None
        if process is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        deadline = self._clock.monotonic() + self.program.stop_s
        while process.poll() is None and self._clock.monotonic() < deadline and not at_once():
            self._clock.sleep(_POLL_S)
        by_itself = process.poll() is not None
        self._kill_group()
        return by_itself

    def last_log_line(self) -> str:
        """Return the last line of its log."""
        try:
            with self.log.open("rb") as text:
                text.seek(max(0, text.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = text.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""

    def _kill_group(self) -> None:
        """Kill all that is left of its process group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _bound_log(self) -> None:
        """Cut a log that is too long. The child appends, so the file may be emptied under it."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size <= LOG_BYTES_MAX:
                return
            kept = self.log.read_bytes()[-LOG_BYTES_MAX // 2 :]
            older = self.log.with_suffix(".log.1")
            older.touch(mode=0o600)
            older.write_bytes(kept)
            os.truncate(self.log, 0)


def exit_text(code: int) -> str:
    """Return an exit status in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _dies_with(parent: int) -> Callable[[], None]:
    """Return the hook between fork and exec that lets a child die when its parent does. Linux only, as Vedette is."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


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
    return tuple(demo_config.camera_from_url(f"camera{number}", url) for number, url in enumerate(urls, 1))


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


__all__ = ["DemoOptions", "demo"]

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
