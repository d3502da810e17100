"""Tries settings of the ingest process in a child of their own: what loads, how long it takes, or why it does not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.base.child_processes import ChildCpu, exit_text
from appliance.base.clock import Clock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import UsageError
from appliance.base.machine import process_family
from appliance.config import IngestConfig
from appliance.sandbox.sandbox import START_S_MAX, child_environment

STILL_S = 60.0  # without any CPU time: a busy board gives even the lowest priority some, a disk answers sooner
HANG_SHARE_MAX = 5.0  # of the CPU time that the networks in force needed on this board
WAIT_SHARE_MAX = 12.0  # of the clock against CPU time, on a board that is busy: an hour
EXIT_WRONG_USE = 2  # of vedette and its children: wrong use or configuration
LOOK_S = 0.5  # between two looks at whether a trial, or a wait, is to end
# The ingest process gets this much of our environment: where models, libraries and accelerators are, and how they
# are tuned. Passwords of its cameras come with its configuration; all other secrets stay here.
INGEST_VARIABLES = (
    "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_DATA_HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV", "VEDETTE_MODELS",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip
INGEST_PREFIXES = (
    "LC_", "PYTHON", "CUDA_", "ORT_", "TRT_", "OMP_", "KMP_", "OPENBLAS_", "MKL_", "HAILO_", "LIBVA_", "MALLOC_",
)  # fmt: skip


class IngestRefused(UsageError):
    """The ingest process will not start with this configuration or model; the reason is on standard error."""


class IngestTooSlow(IngestRefused):
    """It was still at work when time was up, or could not be started: the board's doing, no fault of the network."""


class IngestStopped(IngestTooSlow):
    """The appliance ends: nothing was found out about the network."""


@dataclass(frozen=True, slots=True)
class NetworkTrial:
    """Networks that came up in a child: their settings by name with nothing left open, and the memory each took."""

    networks: Mapping[str, DetectorConfig]
    memory_bytes: Mapping[str, int]
    seconds: float = 0.0
    """How long that took."""


class IngestTrial:
    """Has a child of its own load what other settings ask for, while the ingest process goes on.

    load_cpu_s: CPU time that the ingest process took to load its networks; its supervisor sets it.
    """

    def __init__(self, command: tuple[str, ...], clock: Clock, stop: threading.Event) -> None:
        """command: of the ingest process. stop: ends a trial."""
        self.load_cpu_s = 0.0
        self._command = command
        self._clock = clock
        self._stop = stop

    def run(self, config: IngestConfig, wait_s: float = START_S_MAX, *, wait_share: float = 1.0) -> NetworkTrial:
        """Have a child load what `config` asks for. Any thread.

        Raises IngestRefused with the reason: with these settings no detection process would come up. It hangs when it
        has used no CPU time for STILL_S, or HANG_SHARE_MAX times what the present process needed to load its networks,
        and wait_s at least. Before that it may take `wait_share` times wait_s of the clock, then IngestTooSlow is
        raised.
        """
        began = self._clock.monotonic()
        out, noise, code = self._communicate(config, wait_s, wait_share)
        if code:
            refusal = noise.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("vedette ingest: ")
            known = code == EXIT_WRONG_USE
            raise IngestRefused(refusal if known else f"loading what they ask for ended with {exit_text(code)}")
        try:
            values = json.loads(out.strip().rpartition(b"\n")[2])
            networks = {name: DetectorConfig.model_validate(each) for name, each in values["networks"].items()}
            grown = {name: int(count) for name, count in values["memory_bytes"].items()}
            return NetworkTrial(networks, grown, self._clock.monotonic() - began)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise IngestRefused("loading what they ask for gave an answer that makes no sense") from None

    def _communicate(self, config: IngestConfig, wait_s: float, wait_share: float) -> tuple[bytes, bytes, int]:
        """Return what a child that tries wrote, what it complained of, and its exit code. Raise IngestRefused."""
        began = self._clock.monotonic()
        given: bytes | None = config.model_dump_json().encode() + b"\n"
        try:
            child = subprocess.Popen(
                [*self._command, "--try"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=child_environment(INGEST_VARIABLES, INGEST_PREFIXES),
            )  # fmt: skip
        except OSError as error:
            raise IngestTooSlow(f"these settings could not be tried: {error.strerror}") from None
        with child:
            cpu = ChildCpu(child.pid, self._clock)
            while True:
                try:
                    out, noise = child.communicate(given, timeout=LOOK_S)
                    return out, noise, child.returncode
                except subprocess.TimeoutExpired:
                    given = None  # it has it
                    still_s, took_s = cpu.still_s(), self._clock.monotonic() - began
                    hangs = cpu.used_s > max(wait_s, HANG_SHARE_MAX * self.load_cpu_s) or still_s > STILL_S
                    if self._stop.is_set() or hangs or took_s > wait_share * wait_s:
                        for pid in reversed(process_family(child.pid)):
                            with contextlib.suppress(OSError):
                                os.kill(pid, signal.SIGKILL)
                        raise (IngestStopped if self._stop.is_set() else IngestRefused if hangs else IngestTooSlow)(
                            f"what they ask for did not load within {took_s:.0f} s, {cpu.used_s:.0f} s of CPU time"
                        ) from None
