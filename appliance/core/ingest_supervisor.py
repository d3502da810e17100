"""Starts, watches and restarts the ingest process, and hands its messages to the core one at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from appliance.base.backoff import Backoff
from appliance.base.child_processes import INGEST, end_child, exit_text
from appliance.base.clock import Clock
from appliance.base.errors import VedetteError
from appliance.base.json_lines import WireError, decode_ingest, encode_command
from appliance.base.machine import family_cpu_s
from appliance.base.telemetry import LogThrottle
from appliance.config import IngestConfig
from appliance.core.ingest_trial import (
    EXIT_WRONG_USE,
    INGEST_PREFIXES,
    INGEST_VARIABLES,
    LOOK_S,
    IngestRefused,
    IngestTrial,
)
from appliance.ingest.ingest_resources import IngestNeeds
from appliance.sandbox.sandbox import START_S_MAX, child_environment
from appliance.types import (
    Command,
    ConfigureCommand,
    FrameBoxes,
    IngestHealth,
    IngestMessage,
    NetworksAnswer,
    NetworksCommand,
    SampleCommand,
    SampledFrame,
)

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 1024 * 1024  # of one message; more is no message
LOG_LINE_BYTES_MAX = 16 * 1024  # a longer line is cut into several
SILENCE_S_MAX = 20.0  # it sends a sign of life each second, once it has started
STOP_S_MAX = 8.0  # its own limit is 6 s
HEALTHY_AFTER_S = 30.0  # a child that lived so long is restarted without a long wait
LOAD_S_MAX = 1800.0  # until its first message: a slow card compiles a network in a quarter of an hour; then it hangs
DEATHS_MAX, DEATHS_S = 5, 3600.0  # of a network in an hour, however long its process lived, as of one that leaks
SHORT_LIVES_MAX = 2  # one after the other: the first may be the machine's start, or a kill
_READ_BYTES = 256 * 1024  # a pipe of Linux holds 64 kB, so one read empties it


class IngestDied(VedetteError):
    """The ingest process ended or fell silent; it is started again."""


@dataclass(frozen=True, slots=True)
class ExaminedFrames:
    """Frames of a camera since its network was put in force, or since the child's start. failed: without an answer."""

    answered: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """The state of the ingest process, for /healthz and /metrics. `pid` 0: not running."""

    pid: int = 0
    starts: int = 0
    refused_lines: int = 0
    health: IngestHealth | None = None


class IngestListener(Protocol):
    """Takes the messages of the ingest process: the core."""

    def take(self, message: IngestMessage) -> None: ...

    def lost(self, reason: str, *, intended: bool = False) -> None:
        """Take note that the ingest process died, for `reason`. intended: it was ended to be started anew."""
        ...


class IngestSupervisor:
    """Owner of the ingest child process.

    One thread calls `run()`: it starts the child, gives it the configuration on standard input (so that no password
    stands in a process list), reads JSON lines from a pipe, and starts it again when it dies or says nothing for
    `SILENCE_S_MAX` (before its first word: for `START_S_MAX`). The listener's `take` is called in that thread for each
    message, in order, up to the child's last one also after `stop()`; its `lost` once per death, with the reason.
    Invariant: at most one child; it never outlives this process (its standard input ends with us).
    """

    def __init__(
        self,
        config: IngestConfig,
        clock: Clock,
        command: tuple[str, ...] = (sys.executable, "-m", INGEST),
        log_line: Callable[[str], None] | None = None,
        replace_network: Callable[[str], bool] = lambda reason: False,
    ) -> None:
        """Prepare the supervisor; `run` starts the process.

        replace_network: called with the reason when the child did not stay up SHORT_LIVES_MAX times, or died DEATHS_MAX
        times within DEATHS_S; returns whether it put another network in force, with which the child is started at once.

        log_line: takes each line that the child writes on its standard error, which also goes to this process's
        standard error; None: only there.
        """
        self._log_line = log_line
        self._config = config
        self._confined_to = IngestNeeds.of(config)
        self._is_restarting = False
        self._clock = clock
        self._command = command
        self._stop = threading.Event()
        self._child_lock = threading.Lock()
        self._child_process: subprocess.Popen[bytes] | None = None
        self._has_spoken = False
        self._messages = 0  # of this life
        self.trial = IngestTrial(command, clock, self._stop)
        self._examined: dict[str, ExaminedFrames] = {}
        self._answers: queue.SimpleQueue[NetworksAnswer | None] = queue.SimpleQueue()
        self._samples: queue.SimpleQueue[SampledFrame] = queue.SimpleQueue()
        self._replace_network = replace_network
        self._short_lives = 0
        self._deaths: deque[float] = deque(maxlen=DEATHS_MAX)
        self._backoff = Backoff(0.5, 8.0)
        self._repeats = LogThrottle(logger, clock, every_s=1.0)
        self._refused = LogThrottle(logger, clock)
        self.status = IngestStatus()

    def run(self, listener: IngestListener) -> None:
        """Keep the child running until `stop()`."""
        while not self._stop.is_set():
            started = self._clock.monotonic()
            self._examined = {}
            try:
                self.run_once(listener)
            except IngestRefused as error:
                if not self._replace_network(str(error)):
                    raise
            except IngestDied as error:
                self._answers.put(None)  # who waits for an answer of this child gets none
                if self._stop.is_set():
                    return
                self._repeats.report(error)
                self._count_life(started, str(error))
                listener.lost(str(error), intended=self._is_restarting)
                if self._is_restarting:
                    self._is_restarting = False
                    continue
                if self._clock.monotonic() - started > HEALTHY_AFTER_S:
                    self._backoff.reset()
                self._clock.sleep(self._backoff.next_s(), self._stop)

    def _count_life(self, started: float, reason: str) -> None:
        lived_long = self._messages > 0 and self._clock.monotonic() - started > HEALTHY_AFTER_S
        # A network that hangs keeps its process for longer than HEALTHY_AFTER_S, and nothing is examined.
        useless = not any(each.answered for each in self._examined.values()) and self._examined
        self._short_lives = 0 if (lived_long and not useless) or self._is_restarting else self._short_lives + 1
        now = self._clock.monotonic()
        if self._is_restarting:
            self._deaths.clear()
        else:
            self._deaths.append(now)
        often = len(self._deaths) == DEATHS_MAX and now - self._deaths[0] < DEATHS_S
        if (self._short_lives >= SHORT_LIVES_MAX or often) and self._replace_network(reason):
            self._short_lives = 0
            self._deaths.clear()

    def run_once(self, listener: IngestListener) -> None:
        """Run one life of the child. Raises IngestDied when it ends, unless asked to stop.

        Raises IngestRefused when no child has ever sent anything and this one ends with 2: wrong use does not pass by
        itself. One that has worked is started again whatever it says: the appliance goes on without detection and shows
        it.
        """
        self._messages = 0
        with self._child() as (child, channel):
            for line in _lines(child, channel, self._clock, self._stop, lambda: self._messages > 0):
                self._take(line, listener)
        if child.returncode == EXIT_WRONG_USE and not self._has_spoken:
            raise IngestRefused("the ingest process refuses its configuration; the line above says why")
        if self._is_restarting:
            raise IngestDied("the ingest process is started anew with other settings")
        if not self._stop.is_set():
            raise IngestDied(f"the ingest process ended ({exit_text(child.returncode)}); starting it again")

    def reconfigure(self, config: IngestConfig) -> None:
        """Run with these settings from now on.

        Other cameras are handed to the child. For all else it is started anew, also for what its confinement does not
        let it reach (the port of a camera).

        Any thread. A child that is just being started with the settings before is started anew, too.
        """
        before, self._config = self._config, config
        if before == config:
            return
        command = ConfigureCommand(cameras=config.model_dump(mode="json")["cameras"])
        fits = before.model_copy(update={"cameras": config.cameras}) == config and self._confined_to.covers(
            IngestNeeds.of(config)
        )
        if not (fits and self.send(command)):
            self.restart()

    def adopt(self, config: IngestConfig) -> None:
        """Start the next child with these settings; the present one has them already. Any thread."""
        self._config = config

    def switch(self, command: NetworksCommand, wait_s: float) -> NetworksAnswer | None:
        """Hand the child other networks and wait for its answer; None: there is no child, or it ended. One thread.

        What is not ready after `wait_s` is refused.
        """
        while not self._answers.empty():
            self._answers.get_nowait()
        deadline = self._clock.monotonic() + wait_s
        if not self.send(command):
            return None
        while not self._stop.is_set():
            try:
                answer = self._answers.get(timeout=max(0.0, deadline - self._clock.monotonic()))
            except queue.Empty:
                return NetworksAnswer(id=command.id, outcome="refused", reason=f"it was not ready after {wait_s:.0f} s")
            if answer is None or answer.id == command.id:
                return answer
        return None

    def sample(self, command: SampleCommand, wait_s: float, stop: threading.Event) -> SampledFrame | None:
        """Have the child hand over a frame that it examines; None: there was none in that time. One thread."""
        deadline = self._clock.monotonic() + wait_s
        if not self.send(command):
            return None
        while not stop.is_set() and self._clock.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                found = self._samples.get(timeout=LOOK_S)
                if found.id == command.id:
                    return found
        return None

    def examined(self, camera: str) -> ExaminedFrames:
        """Return the frames of a camera since its network was put in force. Any thread."""
        return self._examined.get(camera, ExaminedFrames())

    def restart(self) -> None:
        """Start the child anew, as for another network; without a child there is nothing to do. Any thread."""
        with self._child_lock:
            child = self._child_process
            if child is not None:
                self._is_restarting = True
                _ask_to_end(child)

    def send(self, command: Command) -> bool:
        """Hand the child a command; False: there is none now. Any thread."""
        with self._child_lock:
            child = self._child_process
            if child is None or child.stdin is None:
                return False
            try:
                child.stdin.write(encode_command(command))
                child.stdin.flush()
            except (OSError, ValueError):  # it has just died, or is being ended
                return False
            return True

    @property
    def starts(self) -> int:
        """How often the child was started."""
        return self.status.starts

    def stop(self) -> None:
        """Ask the child to end; `run()` returns once it has."""
        self._stop.set()
        self._answers.put(None)  # a child that ends answers no more, which is no fault of the network it was given

    @contextlib.contextmanager
    def _child(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        try:
            reading, writing = os.pipe()
        except OSError as error:
            raise IngestDied(f"the ingest process cannot be started: {error.strerror}") from None
        try:
            child = subprocess.Popen(
                [*self._command, "--fd", str(writing), *(["--record-on"] if self._has_spoken else [])],
                stdin=subprocess.PIPE,
                stdout=sys.stderr if self._log_line is None else subprocess.PIPE,
                stderr=None if self._log_line is None else subprocess.STDOUT,
                pass_fds=(writing,),
                # One thread until it is confined: OpenBLAS starts as many as there are cores when numpy is loaded.
                env={**child_environment(INGEST_VARIABLES, INGEST_PREFIXES), "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            os.close(reading)
            raise IngestDied(f"the ingest process cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        self.status = IngestStatus(child.pid, self.status.starts + 1, self.status.refused_lines)
        if child.stdout is not None and self._log_line is not None:
            threading.Thread(
                target=_pass_on, args=(child.stdout, self._log_line), name="ingest log", daemon=True
            ).start()
        try:
            given = self._config
            self._confined_to = IngestNeeds.of(given)
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(given.model_dump_json().encode() + b"\n")
                child.stdin.flush()
            with self._child_lock:
                self._child_process = child
                if self._config is not given:  # other ones came before there was a child to hand them to
                    self._is_restarting = True
                    _ask_to_end(child)
            yield child, reading
        finally:
            with self._child_lock:
                self._child_process = None
            os.close(reading)
            _ask_to_end(child)
            end_child(child, asked_s=STOP_S_MAX)
            self.status = IngestStatus(0, self.status.starts, self.status.refused_lines)

    def _take(self, line: bytes, listener: IngestListener) -> None:
        try:
            message = decode_ingest(line)
        except WireError as error:
            status = self.status
            self.status = IngestStatus(status.pid, status.starts, status.refused_lines + 1, status.health)
            self._refused.report(f"refused a line from the ingest process: {error}")
            return
        self._has_spoken = True
        self._messages += 1
        if self._messages == 1:
            self.trial.load_cpu_s = family_cpu_s(self.status.pid)
        if isinstance(message, FrameBoxes):
            seen = self.examined(message.camera)
            answered, failed = seen.answered + message.looked, seen.failed + (not message.looked)
            camera = message.camera
            self._examined[camera] = ExaminedFrames(answered, failed)
        if isinstance(message, NetworksAnswer):
            if message.outcome == "in force":
                self._examined = {}
                self._deaths.clear()
            self._answers.put(message)
            return
        if isinstance(message, SampledFrame):
            self._samples.put(message)
            return
        if isinstance(message, IngestHealth):
            status = self.status
            self.status = IngestStatus(status.pid, status.starts, status.refused_lines, message)
        listener.take(message)


def _lines(
    child: subprocess.Popen[bytes], channel: int, clock: Clock, stop: threading.Event, has_spoken: Callable[[], bool]
) -> Iterator[bytes]:
    """Yield all lines until the child has closed its end; after `stop` ask it to end within STOP_S_MAX."""
    pending = b""
    began_at = received_at = clock.monotonic()
    silence_s_max = START_S_MAX
    end_by: float | None = None
    ready = select.poll()  # unlike select(), of descriptors beyond 1023, too
    ready.register(channel, select.POLLIN)
    while end_by is None or clock.monotonic() < end_by:
        if stop.is_set() and end_by is None:
            _ask_to_end(child)
            end_by = clock.monotonic() + STOP_S_MAX
        if not ready.poll(250):
            if clock.monotonic() - received_at > silence_s_max:
                child.kill()
                raise IngestDied(f"the ingest process said nothing for {silence_s_max:.0f} s; starting it again")
            continue
        received_at, silence_s_max = clock.monotonic(), SILENCE_S_MAX
        data = os.read(channel, _READ_BYTES)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        if not has_spoken() and received_at - began_at > LOAD_S_MAX:
            child.kill()
            raise IngestDied(f"the ingest process was not ready after {LOAD_S_MAX:.0f} s; starting it again")
        yield from filter(None, lines)  # an empty one is a sign of life (signs_of_life)
        if len(pending) > LINE_BYTES_MAX:
            child.kill()
            raise IngestDied("the ingest process sent a line without end; starting it again")
    logger.warning("the ingest process did not end within %.0f s and is killed", STOP_S_MAX)
    child.kill()


def _pass_on(pipe: IO[bytes], take: Callable[[str], None]) -> None:
    """Pass lines on until the child and all that it started have closed their end; endless lines come in parts."""
    with contextlib.suppress(OSError, ValueError), pipe:
        while line := pipe.readline(LOG_LINE_BYTES_MAX):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: the child must go on
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
            take(line.decode(errors="replace").rstrip("\n"))


def _ask_to_end(child: subprocess.Popen[bytes]) -> None:
    """Close the child's standard input: it closes its segments, says so, and ends."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
