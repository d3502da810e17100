"""A program that the demo keeps running: started, restarted after a backoff, stopped; its log has a bound."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.base.backoff import Backoff
from appliance.base.child_processes import exit_text
from appliance.base.clock import Clock
from appliance.base.errors import MissingDependency

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
    Its output goes to `log`; beyond `LOG_BYTES_MAX` the newer half of that moves to `.1`, and the rest is deleted.
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
