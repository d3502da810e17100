"""Starts, watches and restarts the ingest process, and hands its messages to the core one at a time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Protocol

from appliance.base.backoff import Backoff
from appliance.base.child_modules import INGEST, ChildCpu, end_child
from appliance.base.clock import Clock
from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import UsageError, VedetteError
from appliance.base.json_lines import WireError, decode_ingest, encode_command
from appliance.base.machine import family_cpu_s, process_family
from appliance.base.telemetry import LogThrottle
from appliance.config import IngestConfig
from appliance.ingest.ingest_needs import IngestNeeds
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
STILL_S = 60.0  # without any CPU time: a busy board gives even the lowest priority some, a disk answers sooner
HANG_SHARE_MAX = 5.0  # of the CPU time that the networks in force needed on this board
WAIT_SHARE_MAX = 12.0  # of the clock against CPU time, on a board that is busy: an hour
SHORT_LIVES_MAX = 2  # one after the other: the first may be the machine's start, or a kill
EXIT_WRONG_USE = 2  # of vedette and its children: wrong use or configuration
_LOOK_S = 0.5  # between two looks at whether a trial, or a wait, is to end
_READ_BYTES = 256 * 1024  # a pipe of Linux holds 64 kB, so one read empties it
# The ingest process gets this much of our environment: where models, libraries and accelerators are, and how they
# are tuned. Passwords of its cameras come with its configuration; all other secrets stay here.
_INGEST_VARIABLES = (
    "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_DATA_HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV", "VEDETTE_MODELS",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip
_INGEST_PREFIXES = (
    "LC_", "PYTHON", "CUDA_", "ORT_", "TRT_", "OMP_", "KMP_", "OPENBLAS_", "MKL_", "HAILO_", "LIBVA_", "MALLOC_",
)  # fmt: skip


class IngestDied(VedetteError):
    """The ingest process ended or fell silent; it is started again."""


class IngestRefused(UsageError):
    """The ingest process will not start with this configuration or model; the reason is on standard error."""


class IngestTooSlow(IngestRefused):
    """It was still at work when time was up: this board had no time for it, which is no fault of the network."""


@dataclass(frozen=True, slots=True)
class NetworkTrial:
    """Networks that came up in a child: their settings by name with nothing left open, and the memory each took."""

    networks: Mapping[str, DetectorConfig]
    memory_bytes: Mapping[str, int]
    seconds: float = 0.0
    """How long that took."""


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

    def lost(self, reason: str) -> None:
        """Take note that the ingest process died, for `reason`."""
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

        replace_network: called with the reason when the child did not stay up SHORT_LIVES_MAX times; returns whether it
        put another network in force, with which the child is started at once.

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
        self._load_cpu_s = 0.0  # that it took to come up
        self._examined: dict[str, ExaminedFrames] = {}
        self._answers: queue.SimpleQueue[NetworksAnswer | None] = queue.SimpleQueue()
        self._samples: queue.SimpleQueue[SampledFrame] = queue.SimpleQueue()
        self._replace_network = replace_network
        self._short_lives = 0
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
                listener.lost(str(error))
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
        if self._short_lives >= SHORT_LIVES_MAX and self._replace_network(reason):
            self._short_lives = 0

    def run_once(self, listener: IngestListener) -> None:
        """Run one life of the child. Raises IngestDied when it ends, unless asked to stop.

        Raises IngestRefused when no child has ever sent anything and this one ends with 2: wrong use does not pass by
        itself. One that has worked is started again whatever it says: the appliance goes on without detection and shows
        it.
        """
        self._messages = 0
        with self._child() as (child, channel):
            for line in self._lines(child, channel):
                self._take(line, listener)
        if child.returncode == EXIT_WRONG_USE and not self._has_spoken:
            raise IngestRefused("the ingest process refuses its configuration; the line above says why")
        if self._is_restarting:
            raise IngestDied("the ingest process is started anew with other settings")
        if not self._stop.is_set():
            raise IngestDied(f"the ingest process ended ({_how(child.returncode)}); starting it again")

    def try_settings(
        self, config: IngestConfig, wait_s: float = START_S_MAX, *, wait_share: float = 1.0
    ) -> NetworkTrial:
        """Have a child of its own load what `config` asks for, while the present one goes on. Any thread.

        Raises IngestRefused with the reason: with these settings no detection process would come up. It hangs when it
        has used no CPU time for STILL_S, or HANG_SHARE_MAX times what the present process needed to load its networks,
        and wait_s at least. Before that it may take `wait_share` times wait_s of the clock, then IngestTooSlow is
        raised.
        """
        began = self._clock.monotonic()
        out, noise, code = self._try(config, wait_s, wait_share)
        if code:
            refusal = noise.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("vedette ingest: ")
            known = code == EXIT_WRONG_USE
            raise IngestRefused(refusal if known else f"loading what they ask for ended with {_how(code)}")
        try:
            values = json.loads(out.strip().rpartition(b"\n")[2])
            networks = {name: DetectorConfig.model_validate(each) for name, each in values["networks"].items()}
            grown = {name: int(count) for name, count in values["memory_bytes"].items()}
            return NetworkTrial(networks, grown, self._clock.monotonic() - began)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise IngestRefused("loading what they ask for gave an answer that makes no sense") from None

    def _try(self, config: IngestConfig, wait_s: float, wait_share: float) -> tuple[bytes, bytes, int]:
        """Return what a child that tries wrote, what it complained of, and its exit code. Raise IngestRefused."""
        began = self._clock.monotonic()
        given: bytes | None = config.model_dump_json().encode() + b"\n"
        try:
            child = subprocess.Popen(
                [*self._command, "--try"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=child_environment(_INGEST_VARIABLES, _INGEST_PREFIXES),
            )  # fmt: skip
        except OSError as error:
            raise IngestRefused(f"these settings could not be tried: {error.strerror}") from None
        with child:
            cpu = ChildCpu(child.pid, self._clock)
            while True:
                try:
                    out, noise = child.communicate(given, timeout=_LOOK_S)
                    return out, noise, child.returncode
                except subprocess.TimeoutExpired:
                    given = None  # it has it
                    still_s, took_s = cpu.still_s(), self._clock.monotonic() - began
                    hangs = cpu.used_s > max(wait_s, HANG_SHARE_MAX * self._load_cpu_s) or still_s > STILL_S
                    if self._stop.is_set() or hangs or took_s > wait_share * wait_s:
                        for pid in reversed(process_family(child.pid)):
                            with contextlib.suppress(OSError):
                                os.kill(pid, signal.SIGKILL)
                        raise (IngestRefused if hangs else IngestTooSlow)(
                            f"what they ask for did not load within {took_s:.0f} s, {cpu.used_s:.0f} s of CPU time"
                        ) from None

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
                found = self._samples.get(timeout=_LOOK_S)
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
                env={**child_environment(_INGEST_VARIABLES, _INGEST_PREFIXES), "OPENBLAS_NUM_THREADS": "1"},
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
            self._send_config(child, given)
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

    @staticmethod
    def _send_config(child: subprocess.Popen[bytes], config: IngestConfig) -> None:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(config.model_dump_json().encode() + b"\n")
            child.stdin.flush()

    def _lines(self, child: subprocess.Popen[bytes], channel: int) -> Iterator[bytes]:
        """Yield all lines until the child has closed its end; after `stop()` ask it to end within STOP_S_MAX."""
        pending = b""
        began_at = received_at = self._clock.monotonic()
        silence_s_max = START_S_MAX
        end_by: float | None = None
        ready = select.poll()  # unlike select(), of descriptors beyond 1023, too
        ready.register(channel, select.POLLIN)
        while end_by is None or self._clock.monotonic() < end_by:
            if self._stop.is_set() and end_by is None:
                _ask_to_end(child)
                end_by = self._clock.monotonic() + STOP_S_MAX
            if not ready.poll(250):
                if self._clock.monotonic() - received_at > silence_s_max:
                    child.kill()
                    raise IngestDied(f"the ingest process said nothing for {silence_s_max:.0f} s; starting it again")
                continue
            received_at, silence_s_max = self._clock.monotonic(), SILENCE_S_MAX
            data = os.read(channel, _READ_BYTES)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            if not self._messages and received_at - began_at > LOAD_S_MAX:
                child.kill()
                raise IngestDied(f"the ingest process was not ready after {LOAD_S_MAX:.0f} s; starting it again")
            yield from filter(None, lines)  # an empty one is a sign of life (signs_of_life)
            if len(pending) > LINE_BYTES_MAX:
                child.kill()
                raise IngestDied("the ingest process sent a line without end; starting it again")
        logger.warning("the ingest process did not end within %.0f s and is killed", STOP_S_MAX)
        child.kill()

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
            self._load_cpu_s = family_cpu_s(self.status.pid)
        if isinstance(message, FrameBoxes):
            seen = self.examined(message.camera)
            answered, failed = seen.answered + message.looked, seen.failed + (not message.looked)
            camera = message.camera
            self._examined[camera] = ExaminedFrames(answered, failed)
        if isinstance(message, NetworksAnswer):
            if message.outcome == "in force":
                self._examined = {}
            self._answers.put(message)
            return
        if isinstance(message, SampledFrame):
            self._samples.put(message)
            return
        if isinstance(message, IngestHealth):
            status = self.status
            self.status = IngestStatus(status.pid, status.starts, status.refused_lines, message)
        listener.take(message)


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


def _how(code: int | None) -> str:
    if code is None:
        return "still running"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
