"""Name the modules that run in processes of their own, and end a child.

Whoever starts a child takes its module from here, so that the import tests can follow a name that is no import.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import Final

CLOUD_WORKER: Final = "cloud_worker"
APPLIANCE: Final = "appliance"
"""Both as `vedette demo` starts them; the second also as a command that the running appliance calls at night."""
INGEST: Final = "appliance.ingest"
INGEST_PROBE: Final = "appliance.ingest.probe_process"
HARDWARE_PROBE: Final = "appliance.media.hardware_probe"
RUNTIME_CHOICE: Final = "appliance.detect.runtime_choice"
RTSP_SERVER: Final = "appliance.demo.rtsp_server"
SANDBOX: Final = "appliance.sandbox.sandbox"
MEDIA_FUNCTIONS: Final = "appliance.media.sandboxed_functions"
"""Runs inside a sandbox: stills, clips and pictures of recorded video."""
LIVE_FUNCTIONS: Final = "appliance.media.live_rendition"
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
"""The children of the running appliance. None of them loads `appliance.lab`."""
LAB: Final = (BENCH,)
"""The children of commands in `appliance.lab`."""
KILLED_S_MAX = 10.0  # a killed process is gone at once, but one that is stuck in a driver does not even die


def end_child(child: subprocess.Popen[bytes], *, asked_s: float = 0.0, killed_s: float = KILLED_S_MAX) -> None:
    """Kill a child, after `asked_s` in which one that was asked to end may do so; wait for `killed_s` at most."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(asked_s)
        return
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(killed_s)
