"""Name the modules that run in processes of their own, watch a child's CPU time, and end it.

Whoever starts a child takes its module from here, so that the import tests can follow a name that is no import.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import Final

from appliance.base.clock import Clock
from appliance.base.machine import family_cpu_s

CLOUD_WORKER: Final = "cloud_worker"
APPLIANCE: Final = "appliance"
"""Both as `vedette demo` starts them; the second also as a command that the running appliance calls at night."""
INGEST: Final = "appliance.ingest"
INGEST_PROBE: Final = "appliance.ingest.camera_probe"
HARDWARE_PROBE: Final = "appliance.media.hardware_probe"
RUNTIME_CHOICE: Final = "appliance.detect.runtime_choice"
RTSP_SERVER: Final = "appliance.demo.rtsp_server"
SANDBOX: Final = "appliance.sandbox.sandbox_child"
MEDIA_FUNCTIONS: Final = "appliance.media.sandboxed_functions"
"""Runs inside a sandbox: stills, clips and pictures of recorded video."""
LIVE_FUNCTIONS: Final = "appliance.media.rendition"
"""Runs inside a sandbox: the live video of one camera, converted for browsers."""
JOB_FUNCTIONS: Final = "appliance.scenario.sandboxed_jobs"
"""Runs inside a sandbox: what a person asks the dashboard to do with the recording."""
SHADOW_FUNCTIONS: Final = "appliance.canary.shadow_child"
"""Runs inside a sandbox: a network that examines live frames beside the one in force."""
LLAMA_SERVER: Final = "llama_cpp.server"
"""Model server of the package llama-cpp-python, where it is installed; `vedette judge` starts it."""
BENCH: Final = "appliance.lab.bench_measurement"
"""Started by `vedette bench` only."""

RUNTIME: Final = (
    APPLIANCE,
    INGEST,
    INGEST_PROBE,
    HARDWARE_PROBE,
    RUNTIME_CHOICE,
    RTSP_SERVER,
    SANDBOX,
    MEDIA_FUNCTIONS,
    LIVE_FUNCTIONS,
    JOB_FUNCTIONS,
    SHADOW_FUNCTIONS,
)
"""The children of the running appliance. None loads `appliance.lab`, but a command that APPLIANCE is given at night."""
LAB: Final = (BENCH,)
"""The children of commands in `appliance.lab`."""
PARENT: Final = "VEDETTE_PARENT"
"""Environment variable of a child that must not outlive who started it: the parent's process id."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
KILLED_S_MAX = 10.0  # a killed process is gone at once, but one that is stuck in a driver does not even die


class ChildCpu:
    """Tells how long a child and all that it started have gone without CPU time: it hangs, or waits. One thread."""

    def __init__(self, pid: int, clock: Clock) -> None:
        self.used_s = 0.0
        """CPU time at the last call of `still_s`."""
        self._pid, self._clock, self._since = pid, clock, clock.monotonic()

    def still_s(self) -> float:
        """Return the seconds since a call found more CPU time than the one before it, or since the beginning."""
        now, before_s, self.used_s = self._clock.monotonic(), self.used_s, family_cpu_s(self._pid)
        if self.used_s > before_s:
            self._since = now
        return now - self._since


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it is gone, if PARENT is set; Linux only."""
    parent = os.environ.pop(PARENT, "")
    if parent:
        signal_at_parents_end(signal.SIGKILL)
        if str(os.getppid()) != parent:  # it was gone before
            os._exit(1)


def signal_at_parents_end(sent: signal.Signals) -> None:
    """Have the kernel send this signal to this process when the thread that started it is gone; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent, 0, 0, 0)


def end_child(child: subprocess.Popen[bytes], *, asked_s: float = 0.0, killed_s: float = KILLED_S_MAX) -> None:
    """Kill a child, after `asked_s` in which one that was asked to end may do so; wait for `killed_s` at most."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(asked_s)
        return
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(killed_s)


def exit_text(code: int | None) -> str:
    """Return the exit status of a child in words: `signal 9`, `exit code 1`; None: it still runs."""
    if code is None:
        return "still running"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
