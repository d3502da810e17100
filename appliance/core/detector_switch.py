"""Puts another network in the place of the one in force while cameras continue.

The choice of networks stands in the site file and in the pointers of the bundles, which the dashboard, `vedette
models` and a proof change. This service looks at both each second. When they name other networks it

1. lets a child of the lowest priority load them: one that crashes, hangs or is refused there was never near a camera,
2. compares the memory they took with what is left,
3. hands them to the ingest process, which loads them beside those in force and swaps between two frames,
4. counts what they answer: after WORKS_AFTER frames a network on probation is proven, if it was also shown to find
   what the one before finds (`core.shadow_trial`): a blind one answers, too.

Whatever fails on the way with a network on probation puts that network in quarantine, and the one before stays or comes
back. Where two cannot stand beside each other (memory, an accelerator), ingest is started anew, and a health event says
so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import uuid4

from appliance.base.clock import Clock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ModelError, PreconditionError
from appliance.base.telemetry import LogThrottle
from appliance.bundle.bundle_store import BundleStore, InForce, InForceTable, PointersUnreadable
from appliance.bundle.manifest import BundleRef
from appliance.bundle.rollout import advance_rollout
from appliance.config import OWN_NETWORKS_MAX, IngestConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.ingest_trial import (
    WAIT_SHARE_MAX,
    IngestRefused,
    IngestStopped,
    IngestTooSlow,
    IngestTrial,
    NetworkTrial,
)
from appliance.dashboard.deps import SwitchStatus
from appliance.detect.model_files import AUTO_MODEL
from appliance.sensors.linux_sensors import MemoryReading
from appliance.types import NetworksCommand

logger = logging.getLogger(__name__)

EVERY_S = 1.0  # a change is noticed within a second
TRIAL_S_MAX = 300.0  # CPU time of a child that may measure runtimes; a slow board has more (`IngestTrial`)
LOAD_S_MAX, LOAD_SHARE_MAX = 120.0, 4.0  # of a network beside another: at least, and against what the child took
WORKS_AFTER = 1000  # frames: some minutes of motion, and a day at rest; the network is no danger to ingest then
FAILS_AFTER = 50  # frames in a row without an answer, of a network that has not answered any
MEMORY_FACTOR = 1.5  # of what a network took in the trial: both are warm at once, and frames have their peaks
MEMORY_LEFT_BYTES = 64_000_000  # stays free: a segment's index, a page of the dashboard
FAULT_S = 600.0  # so long a health event tells of a switch that was none
SHARED = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Settings with the cameras' pointers in them, and the bundle that `auto` stands for."""

    config: IngestConfig
    everywhere: BundleRef | None

    @classmethod
    def of(cls, config: IngestConfig, table: InForceTable) -> _Wanted:
        """Return the settings with the pointers in them; of a network that the site file names, no pointer counts."""
        asked, slot = config.detector.model, table.everywhere
        follows = slot is not None and asked in (AUTO_MODEL, slot.bundle.name)
        if asked != AUTO_MODEL:
            return cls(config, slot.bundle if slot is not None and follows else None)
        room = OWN_NETWORKS_MAX - len(config.own_networks())
        pointers = {name: str(own.bundle) for name, own in table.cameras.items() if own.bundle != _bundle(slot)}
        bundles = sorted(set(pointers.values()))[: max(0, room)]
        cameras = {
            name: each.model_copy(update={"model": pointers[name]})
            if each.model is None and pointers.get(name) in bundles
            else each
            for name, each in config.cameras.items()
        }
        return cls(config.model_copy(update={"cameras": cameras}), _bundle(slot))

    @property
    def networks(self) -> dict[str, tuple[DetectorConfig, BundleRef | None]]:
        """The networks by name, with what makes them others."""
        own = {each.model: (each, None) for each in self.config.own_networks()}
        return {SHARED: (self.config.detector, self.everywhere), **own}

    @property
    def cameras(self) -> dict[str, str]:
        """Name of the network of each camera that has its own."""
        return {name: each.model for name, each in self.config.cameras.items() if each.model in self.networks}

    @property
    def bundles(self) -> frozenset[str]:
        named = {name for name in self.networks if "@" in name}
        return frozenset(named | ({str(self.everywhere)} if self.everywhere else set()))


class _RecentFault:
    """The last fault, and when it was reported."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._text, self._at = clock, "", float("-inf")

    def set(self, text: str) -> None:
        self._text, self._at = text, self._clock.monotonic()

    @property
    def text(self) -> str:
        """The sentence as long as it is news; else ''."""
        return self._text if self._clock.monotonic() - self._at < FAULT_S else ""


class DetectorSwitch:
    """Owner of which networks the ingest process runs. State: what it was told last, and how that went.

    `run` is called by one thread, `reconfigure` by one at a time, `status` and `fault` by any.
    """

    def __init__(
        self, config: IngestConfig, store: BundleStore, supervisor: IngestSupervisor, clock: Clock,
        memory: Callable[[], MemoryReading], agrees: Callable[[BundleRef], bool], *, try_s_max: float = TRIAL_S_MAX,
    ) -> None:  # fmt: skip
        """config: as the supervisor was given it, but for the pointers of cameras. try_s_max: see TRIAL_S_MAX.

        agrees: whether a bundle was shown to find here what the network before it finds.
        """
        self._agrees = agrees
        self.status = SwitchStatus()
        self._config = config
        self._store = store
        self._supervisor = supervisor
        self._clock = clock
        self._memory = memory
        self._try_s_max = try_s_max
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._repeats = LogThrottle(logger, clock)
        self._table = InForceTable(None, {}, {})
        self._now = _Wanted.of(self._config, self._read_table())
        self._fault = _RecentFault(clock)
        supervisor.adopt(self._now.config)

    @property
    def settings(self) -> IngestConfig:
        """The settings of ingest as the site file has them, without the pointers of bundles. Any thread."""
        return self._config

    @property
    def fault(self) -> str:
        """A sentence as long as a switch that was refused, or was none, is news; else ''."""
        return self._fault.text

    def run(self) -> None:
        """Look at what is to be in force, for ever."""
        while not self._stop.is_set():
            self._wake.wait(EVERY_S)
            self._wake.clear()
            if not self._stop.is_set():
                self.run_once()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """Look at once: a pointer has changed. Any thread."""
        self._wake.set()

    def reconfigure(self, config: IngestConfig) -> None:
        """Put these settings in force: the networks by a switch, all else as the supervisor does it."""
        with self._lock:
            self._config, now = config, self._now
        known = now.config.cameras
        cameras = {
            name: each.model_copy(update={"model": known[name].model if name in known else None})
            for name, each in config.cameras.items()
        }
        before, then = now.config.detector, config.detector
        # Another network for re-checks has the rest of the section; only a new process loads it anew.
        whole = config.second_look.model is not None and before.model_copy(update={"model": then.model}) != then
        if whole:
            with self._lock:
                self._now = _Wanted.of(self._config, self._read_table())
            self._supervisor.reconfigure(self._now.config)
            return
        bridge = config.model_copy(update={"cameras": cameras, "detector": before})
        self._supervisor.reconfigure(bridge)
        with self._lock:
            self._now = _Wanted(bridge, now.everywhere)
        self._wake.set()

    def run_once(self) -> None:
        """Switch if other networks are to be in force; else judge those on probation."""
        table = self._read_table()
        with self._lock:
            wanted, now = _Wanted.of(self._config, table), self._now
        if wanted.networks == now.networks and wanted.cameras == now.cameras:
            self._judge(table, now)
            _advance(self._store, self._repeats)
        elif self._supervisor.status.pid != 0:
            self._switch(wanted, now, table)

    def _switch(self, wanted: _Wanted, now: _Wanted, table: InForceTable) -> None:
        new = [name for name, network in wanted.networks.items() if now.networks.get(name) != network]
        words = ", ".join(sorted(wanted.bundles)) or wanted.config.detector.model
        self.status = SwitchStatus("trying", words)
        try:
            trial = _tried(self._supervisor.trial, wanted, new, self._try_s_max)
        except IngestStopped:  # the next start tries it
            return
        except IngestTooSlow as error:
            self._take_back(wanted, now, table, str(error))
            return
        except IngestRefused as error:
            self._refuse(wanted, now, table, str(error))
            return
        if why := _needs_restart(trial, self._now.config.detector.device, self._memory().left_bytes):
            self._restart(wanted, why)
            return
        self.status = SwitchStatus("loading", words)
        networks = {
            name: trial.networks[name].model_dump(mode="json") if name in new else None for name in wanted.networks
        }
        command = NetworksCommand(id=uuid4().hex[:12], networks=networks, cameras=wanted.cameras)
        answer = self._supervisor.switch(command, max(LOAD_S_MAX, LOAD_SHARE_MAX * trial.seconds))
        if answer is None:  # it ended, for whatever reason; the next one reads the pointers, and a look tries again
            return
        if answer.outcome == "in force":
            self._is_now(wanted)
            self.status = SwitchStatus("in force", words)
            logger.info("%s: in force between two frames", words)
        elif answer.outcome == "restart":
            self._restart(wanted, answer.reason)
        else:
            self._refuse(wanted, now, table, answer.reason)

    def _restart(self, wanted: _Wanted, why: str) -> None:
        logger.warning("ingest is started anew for another network: %s", why)
        before = self._now.config
        self._is_now(wanted)
        self.status = SwitchStatus("restarted", ", ".join(sorted(wanted.bundles)), why)
        self._fault.set(f"the detection process was started anew for another network, a gap of some seconds: {why}")
        if before == wanted.config:
            self._supervisor.restart()
        else:
            self._supervisor.adopt(before)
            self._supervisor.reconfigure(wanted.config)

    def _refuse(self, wanted: _Wanted, now: _Wanted, table: InForceTable, why: str) -> None:
        """Leave in force what is, and put what is on probation in quarantine: the pointers then say what is."""
        blamed = [ref for ref in table.on_probation() if str(ref) in wanted.bundles - now.bundles]
        for ref in blamed:
            try:
                self._store.quarantine(ref, f"it does not come up here: {why}")
            except (ModelError, PreconditionError) as error:
                logger.warning("%s", error)
        named = ", ".join(map(str, blamed)) or wanted.config.detector.model
        logger.error("%s is not put in force: %s", named, why)
        self.status = SwitchStatus("refused", named, why)
        self._fault.set(f"{named} is not put in force, and what was stays: {why}")
        if not blamed:  # of no bundle on probation: it is not tried each second
            self._is_now(wanted)
            self._supervisor.adopt(now.config)

    def _take_back(self, wanted: _Wanted, now: _Wanted, table: InForceTable, why: str) -> None:
        """Leave in force what is; a network for which this board had no time is not blamed, and may be tried again."""
        for camera, slot in table.pointers.items():
            if slot.state == "probation" and str(slot.bundle) in wanted.bundles - now.bundles:
                try:
                    self._store.roll_back(camera)
                except (ModelError, PreconditionError) as error:
                    logger.warning("%s", error)
        named = ", ".join(sorted(wanted.bundles - now.bundles)) or wanted.config.detector.model
        self.status = SwitchStatus("refused", named, why)
        self._fault.set(f"{named} is taken back, not blamed: this appliance was too busy to load it; try again: {why}")
        rest = _Wanted.of(self._config, self._read_table())
        if rest == wanted:  # by the site file: not tried each second
            self._is_now(wanted)
            self._supervisor.adopt(now.config)

    def _judge(self, table: InForceTable, now: _Wanted) -> None:
        """Prove networks on probation that have worked, and take back those that do not answer."""
        own = now.cameras
        for camera, slot in table.pointers.items():
            if slot.state != "probation":
                continue
            enabled = [name for name, each in now.config.cameras.items() if each.enabled]
            names = [name for name in enabled if name not in own] if not camera else [camera]
            seen = [self._supervisor.examined(name) for name in names]
            try:
                if sum(each.answered for each in seen) >= WORKS_AFTER and self._agrees(slot.bundle):
                    self._store.settle(camera, proven=True)
                    logger.info("%s has passed its probation", slot.bundle)
                elif sum(each.failed for each in seen) >= FAILS_AFTER and not any(each.answered for each in seen):
                    self._store.quarantine(slot.bundle, f"it answered none of {FAILS_AFTER} frames")
                    self._fault.set(f"{slot.bundle} answered none of {FAILS_AFTER} frames; what was before comes back")
            except (ModelError, PreconditionError) as error:
                self._repeats.report(error)

    def _read_table(self) -> InForceTable:
        """Return the pointers; none if their file is damaged, those read last while it cannot be read."""
        try:
            self._table = self._store.in_force()
        except ModelError as error:
            self._repeats.report(error)
            if not isinstance(error, PointersUnreadable):
                self._table = InForceTable(None, {}, {})
        return self._table

    def _is_now(self, wanted: _Wanted) -> None:
        with self._lock:
            self._now = wanted
        self._supervisor.adopt(wanted.config)


def _bundle(slot: InForce | None) -> BundleRef | None:
    return None if slot is None else slot.bundle


def _tried(trial_of: IngestTrial, wanted: _Wanted, new: Iterable[str], cpu_s_max: float) -> NetworkTrial:
    """Have each new network loaded in a child of its own. Raise IngestRefused."""
    networks: dict[str, DetectorConfig] = {}
    memory_bytes: dict[str, int] = {}
    seconds = 0.0
    for name in new:
        alone = wanted.config.model_copy(update={"detector": wanted.networks[name][0], "cameras": {}})
        trial = trial_of.run(alone, cpu_s_max, wait_share=WAIT_SHARE_MAX)
        networks[name], memory_bytes[name] = trial.networks[SHARED], trial.memory_bytes[SHARED]
        seconds += trial.seconds
    return NetworkTrial(networks, memory_bytes, seconds)


def _needs_restart(trial: NetworkTrial, device: str, left_bytes: int | None) -> str:
    """Return why the new networks cannot be loaded beside the old ones, which are on `device`; '' if they can."""
    for each in trial.networks.values():
        if each.backend in ("hailo", "tensorrt") or each.provider == "tensorrt":
            return f"{each.backend} takes one network at a time, or compiles it first"
        if each.device not in ("auto", "cpu", device):
            return f"the device {each.device} is opened at the start of ingest"
    need = MEMORY_FACTOR * sum(trial.memory_bytes.values()) + MEMORY_LEFT_BYTES
    if left_bytes is not None and left_bytes < need:
        return f"two networks need {need / 1e6:.0f} MB of memory at once, and {left_bytes / 1e6:.0f} MB are left"
    return ""


def _advance(store: BundleStore, repeats: LogThrottle) -> None:
    """Give a bundle that is rolled out to all cameras, once it has proven itself on the first ones."""
    try:
        if done := advance_rollout(store):
            logger.info("%s", done)
    except (ModelError, PreconditionError) as error:
        repeats.report(error)
