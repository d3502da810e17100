"""Runs functions on hostile data in a child process that has no secrets, no network and little memory.

The child is `sandbox_child`. Both speak JSON with binary parts (`send`, `receive`), never pickle: what a child that was
taken over sends must not run code in its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from appliance.base.child_processes import SANDBOX, ChildCpu, end_child, exit_text
from appliance.base.clock import SystemClock
from appliance.base.errors import VedetteError, printable
from appliance.base.process_memory import TRIM_EVERY_S

START_S_MAX = 120.0  # of a child that reads its libraries, which takes a busy machine or a slow card their time
TEXT_LENGTH_MAX = 300  # of an error that the child reports
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "ORT_DISABLE_TELEMETRY")
PARTS_MAX = 1024  # binary values of one message; a call has a handful
_JSON_BYTES_MAX = 16 * 1024 * 1024  # an explained span with all its tracks; a child may send no more
_HEAD = struct.Struct("!II")

Value = Any
"""A value that may be handed over: any of JSON, and bytes, which arrive as a bytearray."""
Progress = Callable[[Value], None]
"""Called with what a function says while it works."""


class SandboxError(VedetteError):
    """The child gave no answer. The data it was given should not be tried for ever."""


class SandboxTimeout(SandboxError):
    """The child did not answer within the limit, and was killed."""


class SandboxDied(SandboxError):
    """It ended in the middle: out of memory, killed by its limits, or a crash."""


class SandboxUnavailable(SandboxError):
    """It could not be started, or was ended: nothing is known of the data."""


class SandboxFailed(SandboxError):
    """The function raised something that nobody expects of it."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of a call.

    wall_s: of a call. memory_bytes: beyond what the child holds with its modules loaded. file_bytes_max: of a file that
    it writes. idle_s: a child that was not called for so long ends, and gives its memory back. trim_s: one that is
    called again and again gives the free pages between what it keeps back so often, between two calls. rest_s: one that
    was not called for so long does so, too. calls_max: after so many calls it ends instead, which
    suits only functions that keep nothing from one call to the next.
    """

    wall_s: float = 10.0
    idle_s: float = 300.0
    trim_s: float = TRIM_EVERY_S
    rest_s: float = 1.0
    calls_max: int | None = None
    memory_bytes: int = 512 * 1024 * 1024
    files_max: int = 64
    file_bytes_max: int = 0
    reply_bytes_max: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxFolders:
    """Beneath which folders files may be opened; nothing else is, where the kernel has Landlock."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class Sandbox:
    """One child process that runs the functions of `module`, one call at a time; any thread may call.

    State: the child, started by the first call and again after it died, was killed or was idle for `limits.idle_s`.
    Invariant: never more than one child; it ends with this process, since its socket does. `confined` says what the
    kernel enforces beyond limits and empty environment: "landlock" (files), "seccomp" (system calls).
    """

    def __init__(
        self,
        module: str,
        limits: SandboxLimits,
        folders: SandboxFolders | None = None,
        raises: Sequence[type[VedetteError]] = (),
    ) -> None:
        """Prepare the sandbox; the first call starts the child.

        module: `package.module` of the functions, loaded in the child only. raises: errors of theirs that `call` raises
        as they are.
        """
        self._module = module
        self._limits = limits
        self._folders = folders or SandboxFolders()
        self._raises = {each.__name__: each for each in raises}
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._begun: socket.socket | None = None  # to a child that has not said yet that it is ready
        self._still_s: float | None = None  # of the call that goes on
        self._is_still = False
        self.confined: tuple[str, ...] = ()
        self.starts = 0
        self.kills = 0

    def call(
        self, function: str, *values: Value, wall_s: float | None = None, progress: Progress | None = None,
        cpu_s: float | None = None, still_s: float | None = None,
    ) -> Value:  # fmt: skip
        """Return the result of `function(*values)` of the module. Raises SandboxError, or one of `raises`.

        cpu_s: of CPU time, at twice of which it dies: less than wall_s tells what hangs from what has no time.
        still_s: without any CPU time, after which it is killed: it waits for what does not come. None: it may wait.
        progress: called with what the function yields before it returns, where it is a generator.
        """
        with self._lock:
            limit_s = self._limits.wall_s if wall_s is None else wall_s
            self._still_s, self._is_still = still_s, False
            for attempt in (1, 2):
                try:
                    return self._ask(function, values, limit_s, progress or _unheard, cpu_s or limit_s)
                except _WentIdle:
                    self._end()
                    if attempt == 2:
                        raise SandboxDied("the sandbox ended by itself, twice") from None
                except (SandboxTimeout, SandboxDied, SandboxUnavailable):
                    self._end()
                    raise
            raise AssertionError("unreachable")

    def begin(self) -> None:
        """Start the child without waiting for it: a call that may come soon finds it ready."""
        with self._lock:
            if self.pid == 0:
                self._end()
                self._begun = self._spawn()

    def close(self) -> None:
        """End the child, also in the middle of a call, which then raises SandboxUnavailable, as all later ones do."""
        self._closed.set()
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def rest(self) -> None:
        """End the child unless a call is going on; the next call starts another. Never waits."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    @property
    def pid(self) -> int:
        """Process id of the child; 0: there is none now."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else 0

    def _ask(self, function: str, values: Sequence[Value], limit_s: float, progress: Progress, cpu_s: float) -> Value:
        try:
            channel = self._channel or self._start()
            channel.settimeout(limit_s)
            send(channel, {"function": function, "values": list(values), "cpu_s": cpu_s})
            end = self._clock.monotonic() + limit_s
            with self._killed_when_still():
                reply = self._receive(channel, limit_s)
                while "progress" in reply:
                    progress(reply["progress"])
                    reply = self._receive(channel, end - self._clock.monotonic())
        except TimeoutError:
            self.kills += 1
            raise SandboxTimeout(f"{function} took longer than {limit_s:g} s") from None
        except (OSError, EOFError):
            raise self._death(function) from None
        except ValueError as error:
            self.kills += 1
            raise SandboxDied(f"{function}: the child sent what is no answer: {error}") from None
        except BaseException:  # of `progress`, or of this process: what the child answers later is for no other call
            self._end()
            raise
        return self._result(function, reply)

    @contextlib.contextmanager
    def _killed_when_still(self) -> Iterator[None]:
        """Kill the child once it has had no CPU time for `still_s`: who waits here then finds that it died."""
        child, still_s, over = self._child, self._still_s, threading.Event()
        if child is None or still_s is None:
            yield
            return

        def watch() -> None:
            cpu = ChildCpu(child.pid, self._clock)
            while not over.wait(still_s / 10):
                if cpu.still_s() > still_s:
                    self._is_still = True
                    child.kill()
                    return

        thread = threading.Thread(target=watch, name="sandbox watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _receive(self, channel: socket.socket, limit_s: float) -> dict[str, Value]:
        end = self._clock.monotonic() + limit_s

        def remaining_s() -> float:
            left = end - self._clock.monotonic()
            if left <= 0:
                raise TimeoutError
            return left

        reply = receive(channel, self._limits.reply_bytes_max, remaining_s)
        if not isinstance(reply, dict):
            raise ValueError("not an object")
        return reply

    def _result(self, function: str, reply: dict[str, Value]) -> Value:
        if "result" in reply:
            return reply["result"]
        name, text = str(reply.get("error", "")), _plain(str(reply.get("text", "")))
        if reply.get("ends") is True:  # memory or files are spent
            raise SandboxDied(f"{function}: {text}")
        if name in self._raises:
            raise self._raises[name](text)
        raise SandboxFailed(f"{function}: {_plain(name)}: {text}")

    def _death(self, function: str) -> SandboxError:
        child = self._child
        if child is None or self._closed.is_set():
            return SandboxUnavailable(f"{function}: the sandbox was ended")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
        if child.returncode == 0:
            return _WentIdle("idle")
        how = exit_text(child.returncode)
        if child.returncode == -signal.SIGXCPU:
            how = "it used more CPU time than it may"
        if self._is_still:
            how = f"it used no CPU time for {self._still_s:g} s"
        return SandboxDied(f"{function}: the sandbox died ({how})")

    def _spawn(self) -> socket.socket:
        if self._closed.is_set():
            raise SandboxUnavailable("the sandbox was ended")
        try:
            here, there = socket.socketpair()
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox cannot be started: {error.strerror or error}") from None
        task = {
            "fd": there.fileno(),
            "module": self._module,
            "limits": asdict(self._limits),
            "readable": [str(each) for each in self._folders.readable],
            "writable": [str(each) for each in self._folders.writable],
        }
        # One thread while it starts: Landlock holds for threads that are started later.
        environment = {**child_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", SANDBOX, json.dumps(task)],
                stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, pass_fds=(there.fileno(),),
            )  # fmt: skip
        except OSError as error:
            here.close()
            raise SandboxUnavailable(f"the sandbox cannot be started: {error.strerror or error}") from None
        finally:
            there.close()
        self.starts += 1
        if self._closed.is_set():  # just now, by another thread
            self._child.kill()
        return here

    def _start(self) -> socket.socket:
        here = self._channel = self._begun or self._spawn()
        self._begun = None
        try:
            here.settimeout(START_S_MAX)
            ready = self._receive(here, START_S_MAX)
        except (OSError, EOFError, ValueError):  # TimeoutError is an OSError
            if self._closed.is_set():
                raise SandboxUnavailable("the sandbox was ended") from None
            raise SandboxUnavailable(f"the sandbox for {self._module} does not start; see the lines above") from None
        self.confined = tuple(str(each) for each in ready.get("confined", ()))
        return here

    def _end(self) -> None:
        child, channels = self._child, (self._channel, self._begun)
        self._child = self._channel = self._begun = None
        for channel in channels:
            if channel is not None:
                channel.close()
        if child is not None:
            end_child(child)


class _WentIdle(SandboxError):
    """It ended just before it was called."""


def child_environment(names: Sequence[str] = (), prefixes: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment for a child that needs no secret: Python's module paths, language and time zone.

    names, prefixes: of further variables that it is given, where they are set.
    """
    kept = {*_KEPT_VARIABLES, *names}
    return {
        **{name: value for name, value in os.environ.items() if name in kept or name.startswith(tuple(prefixes))},
        "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in sys.path if each),
        "PYTHONSAFEPATH": "1",  # nothing is imported from the folder that it happens to start in
    }


def _plain(text: str) -> str:
    """Return a text of a child that may have been taken over as one line that is not too long."""
    return printable(text[:TEXT_LENGTH_MAX])[:TEXT_LENGTH_MAX]


def _unheard(progress: Value) -> None:
    """Nobody wants to know."""


def send(channel: socket.socket, value: Value) -> None:
    """Send two lengths, the lengths of the binary parts, the JSON, and the parts."""
    parts: list[memoryview] = []
    text = json.dumps(_flattened(value, parts)).encode()
    head = _HEAD.pack(len(text), len(parts)) + b"".join(struct.pack("!Q", len(each)) for each in parts)
    channel.sendall(head + text)
    for part in parts:
        channel.sendall(part)


def _flattened(value: Value, parts: list[memoryview]) -> Value:
    if isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        parts.append(view.cast("B") if view.nbytes else memoryview(b""))  # a view of nothing cannot be cast
        return {"$part": len(parts) - 1}
    if isinstance(value, dict):
        return {name: _flattened(each, parts) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_flattened(each, parts) for each in value]
    return value


def receive(channel: socket.socket, bytes_max: int, remaining_s: Callable[[], float | None]) -> Value:
    """Return the next value. Raises EOFError, ValueError, and TimeoutError by `remaining_s`."""
    length, count = _HEAD.unpack(_exactly(channel, _HEAD.size, remaining_s))
    if length > _JSON_BYTES_MAX or count > PARTS_MAX:
        raise ValueError("it is too large")
    sizes = struct.unpack(f"!{count}Q", _exactly(channel, 8 * count, remaining_s))
    if sum(sizes) > bytes_max:
        raise ValueError(f"it is over {bytes_max} bytes")
    try:
        value = json.loads(_exactly(channel, length, remaining_s))
        parts = [_exactly(channel, size, remaining_s) for size in sizes]
        return _joined(value, parts)
    except (RecursionError, IndexError, TypeError) as error:
        raise ValueError(type(error).__name__) from None


def _joined(value: Value, parts: Sequence[bytearray]) -> Value:
    if isinstance(value, dict):
        if "$part" in value:
            return parts[value["$part"]]
        return {name: _joined(each, parts) for name, each in value.items()}
    if isinstance(value, list):
        return [_joined(each, parts) for each in value]
    return value


def _exactly(channel: socket.socket, size: int, remaining_s: Callable[[], float | None]) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        channel.settimeout(remaining_s())
        received = channel.recv_into(view[at:])
        if not received:
            raise EOFError
        at += received
    return data
