"""Lets a second network examine frames that the network in force has examined; the second one decides nothing.

Which: a bundle that was named for it (`vedette models shadow`, the page Models), compared with what is in force; or,
while a bundle is on probation, the network before it, which says what a blind one does not see. The second network is
in a sandbox of its own (`canary.shadow_child`), not in the ingest process: a crash, a hang or a leak of a network
nobody trusts must not end the detection of all cameras, and 50 MB more is the price. The core asks for a frame, ingest
hands it over in memory, the child examines it; so nothing waits, and what is not asked for costs nothing.

It is the first that gives way: the child ends when the appliance is hot, throttled, loaded or short of memory, and
begins again later. What was found is on disk (`canary.proof_store`), so a restart loses nothing.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from appliance.base.child_processes import SHADOW_FUNCTIONS
from appliance.base.clock import Clock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, PreconditionError, SourceError
from appliance.base.local_files import SAMPLE_FILE, DiskWriteError, live_memory
from appliance.base.machine import process_usage
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.bundle.rollout import (
    MEMORY_LEFT_BYTES,
    SHADOW_EVERY_S,
    bundle_bytes,
    end_shadow,
    needed_bytes,
    shadow_of,
    shortage,
)
from appliance.canary.candidate_comparison import (
    FoundObject,
    RunCosts,
    SurveyedFrame,
    common_score,
    kind_of,
    rounded_box,
)
from appliance.canary.proof_store import LiveEvidence, LiveFrame, ProofStore, apply_outcome, file_of
from appliance.config import IngestConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.dashboard.deps import ShadowStatus
from appliance.detect.model_files import model_folders, packaged_network, pull_folder
from appliance.health.load_shedding import LoadShedding
from appliance.sandbox.sandbox import (
    Sandbox,
    SandboxError,
    SandboxFolders,
    SandboxLimits,
    SandboxTimeout,
    SandboxUnavailable,
)
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.store.paths import PROOFS
from appliance.types import SampleCommand, SampledFrame

logger = logging.getLogger(__name__)

SAMPLE_WAIT_S = 10.0  # a whole frame is examined at least each `heartbeat_s`, 4 s as it comes
EXAMINE_S_MAX, EXAMINE_CPU_S = 60.0, 10.0  # of one frame: a busy board may take a minute; one that hangs uses the CPU
LOAD_S_MAX, LOAD_CPU_S = 300.0, 60.0  # the same of loading a network and measuring it
FAILURES_MAX = 3  # without an answer in between: a kill, or memory that was short for a moment, is no fault of it
REST_S = 30.0  # after it gave way: to load and measure two networks each few seconds would be a load itself
RETRY_S = 600.0  # after what failed without being anybody's fault
NICE = 19  # the lowest: the child has what cameras leave
LIFE_S = 3600.0  # then both are measured anew, since heat and load change what an inference costs
REPORT_EVERY = 12  # frames: once a minute the page and the decision are up to date
LOAD_MAX = 0.7  # share of the detector's time in use: below `judge.LOAD_MAX`, so that the shadow goes first
NEAR_HOT_C = 5.0  # below the limit from which load is shed
HOT_S = 86_400.0  # an appliance that was too hot within a day is a hot one
METER_S = 15.0  # of measuring where power is read each 5 s: the last reading is then of this alone
WATTS_MIN = 0.5  # a smaller difference is no reading
LIMITS = SandboxLimits(memory_bytes=1024**3, reply_bytes_max=1024 * 1024, idle_s=900.0)
_RAISES = (ModelError, DetectorError, SourceError)


@dataclass(frozen=True, slots=True)
class ShadowSources:
    """Readings of the appliance that the shadow goes by. hot_c: from where on load is shed for heat."""

    shed: Callable[[], LoadShedding]
    sensors: Callable[[], SensorStatus]
    is_switching: Callable[[], bool]
    hot_c: Callable[[], float] = lambda: 80.0


@dataclass(frozen=True, slots=True)
class ShadowTask:
    """candidate: that is judged. child, live: settings of the network in the sandbox, and of that in force.

    is_live: the candidate is in force, on probation, and the child runs the network before.
    """

    candidate: BundleRef
    child: DetectorConfig
    live: DetectorConfig
    cameras: tuple[str, ...]
    is_live: bool

    @property
    def networks(self) -> tuple[str, str]:
        """Names of what is trusted, and of the candidate."""
        old = self.child if self.is_live else self.live
        return old.model, str(self.candidate)


class ShadowTrial:
    """Owner of the child. State: what is compared, its costs and its evidence. `run_once` is called by one thread."""

    def __init__(
        self, root: Path, config: Callable[[], IngestConfig], store: BundleStore, supervisor: IngestSupervisor,
        sources: ShadowSources, clock: Clock, *, cpu_s: float = LOAD_CPU_S,
        nice: int = NICE,
    ) -> None:  # fmt: skip
        """config: of ingest, as it is now. cpu_s: see LOAD_CPU_S. nice: of the child."""
        self._cpu_s, self._nice = cpu_s, nice
        self._root, self._config, self._store, self._supervisor = root, config, store, supervisor
        self._sources, self._clock = sources, clock
        self._memory = live_memory(root)
        self._proofs = ProofStore(root)
        self._task: ShadowTask | None = None
        self._child: Sandbox | None = None
        self._evidence: LiveEvidence | None = None
        self._costs = RunCosts(), RunCosts()  # of what is in force, and in the child
        self._names = "", ""  # of both, as the detector calls them
        self._side, self._began = 0, 0.0
        self._turn = itertools.count()
        self._failures, self._retry_at, self._hot_at = 0, float("-inf"), float("-inf")
        self._stop = threading.Event()
        self._is_candidate = False  # that is at work in the child
        self.status = ShadowStatus()

    def stop(self) -> None:
        """End the child. Any thread; `run_once` comes back within a second."""
        self._stop.set()
        child = self._child
        if child is not None:
            child.close()

    def run_once(self) -> None:
        """Compare one frame, if anything is to be compared and the appliance has time for it."""
        task = self._wanted()
        if self._stop.is_set():
            return
        if task is None or task != self._task:
            self._end()
            self._task, self._evidence, self._failures, self._retry_at = task, None, 0, float("-inf")
            if task is not None:
                self._proofs.keep_only(str(task.candidate), task.networks)
        if task is None:
            self.status = ShadowStatus()
            return
        if why := self._why_not(task):
            if self._child is not None:
                self._retry_at = self._clock.monotonic() + REST_S
            self._end()
            self.status = self._status("waiting", why)
            return
        if self._child is not None and self._clock.monotonic() - self._began > LIFE_S:
            self._end()
        try:
            child = self._child or self._begin(task)
            self._compare(task, child)
        except SandboxUnavailable:  # it was stopped
            self._end()
        except SandboxTimeout as error:  # without using the CPU time of one that hangs
            self._wait(f"this appliance has no time for it: {error}")
        except (SandboxError, ModelError, DetectorError, SourceError) as error:
            self._failed(task, str(error))
        except (OSError, DiskWriteError) as error:
            logger.warning("what the shadow finds is not kept: %s", error)

    def _wanted(self) -> ShadowTask | None:
        """Return what is to be compared by the pointers; None: nothing."""
        try:
            table, named = self._store.in_force(), shadow_of(self._store)
        except ModelError:
            return None
        config = self._config()
        own = set(table.cameras)
        shared = [name for name, each in config.cameras.items() if each.enabled and not each.model and name not in own]
        settings = config.detector.model_copy(update={"precision": "auto"})

        def of(ref: BundleRef | None) -> DetectorConfig:
            return settings.with_model(packaged_network() if ref is None else str(ref))

        present = None if table.everywhere is None else table.everywhere.bundle
        live = of(present) if config.detector.model == "auto" else settings
        if named is not None and named not in table.quarantined and named != present:
            return ShadowTask(named, of(named), live, tuple(shared), is_live=False)
        for ref in table.on_probation():
            on = [name for name, slot in table.pointers.items() if slot.bundle == ref]
            before = next(slot.before for slot in table.slots if slot.bundle == ref)
            cameras = [*(shared if "" in on else ()), *filter(None, on)]
            return ShadowTask(ref, of(before), of(ref), tuple(cameras), is_live=True)
        return None

    def _why_not(self, task: ShadowTask) -> str:
        """Return why nothing is compared now; '' if it is."""
        shed, now, detector = self._sources.shed(), self._sources.sensors(), task.live
        if shed.heat.step or now.reading.throttling:
            self._hot_at = self._clock.monotonic()
        hottest = now.reading.hottest
        health = self._supervisor.status.health
        if shed.faults or now.reading.throttling:
            return next(iter(shed.faults.values()), "a processor is throttled")
        if hottest is not None and hottest.celsius > self._sources.hot_c() - NEAR_HOT_C:
            return f"{hottest.name} has {hottest.celsius:.0f} degrees"
        if health is None or self._supervisor.status.pid == 0 or self._sources.is_switching():
            return "detection is being started, or its network replaced"
        if health.load > LOAD_MAX:
            return f"the detector is at work {health.load:.0%} of the time"
        if detector.backend in ("hailo", "tensorrt") or detector.device not in ("auto", "cpu"):
            return "the network in force runs on an accelerator, which serves one process"
        if self._clock.monotonic() < self._retry_at:
            return self.status.reason
        if self._evidence is not None and self._evidence.is_full:
            return f"{self._evidence.frames} frames did not decide it"
        if self._child is None:
            return self._no_room(task)
        left = now.memory.left_bytes
        return "" if left is None or left >= MEMORY_LEFT_BYTES else f"{left / 1e6:.0f} MB of memory are left"

    def _no_room(self, task: ShadowTask) -> str:
        try:
            size = bundle_bytes(self._store, BundleRef.parse(task.child.model))
        except ModelError:  # what comes with Vedette
            size = Path(task.child.model).stat().st_size if Path(task.child.model).is_file() else 0
        return shortage(needed_bytes(size), self._sources.sensors().memory)

    def _begin(self, task: ShadowTask) -> Sandbox:
        """Measure the network in force in a child, then load the other in the next. Raise SandboxError, ModelError."""
        self.status = self._status("measuring", "")
        self._is_candidate = task.is_live
        live, live_name, _ = self._loaded(task.live, keep=False)
        self._is_candidate = not task.is_live
        beside, name, self._side = self._loaded(task.child, keep=True)
        self._names = live_name, name
        self._costs, self._began = (live, beside), self._clock.monotonic()
        if self._evidence is None:
            self._evidence = LiveEvidence(file_of(self._root / PROOFS, str(task.candidate)), task.networks)
        assert self._child is not None
        return self._child

    def _loaded(self, settings: DetectorConfig, *, keep: bool) -> tuple[RunCosts, str, int]:
        """Return the cost of a network in a child of its own, its name, and the side of its input."""
        folders = [each for each in (*model_folders(), self._store.root) if each.is_dir()]
        folders += [self._memory] if self._memory is not None else []
        child = self._child = Sandbox(SHADOW_FUNCTIONS, LIMITS, SandboxFolders(readable=tuple(folders)), _RAISES)
        if self._stop.is_set():
            child.close()
        idle = self._sources.sensors().watts
        values = {
            "detector": settings.model_dump(mode="json"), "model_folder": str(pull_folder()),
            "nice": self._nice, "measure_s": 0.0 if idle is None else METER_S,
        }  # fmt: skip
        found = child.call("load_network", values, wall_s=LOAD_S_MAX, cpu_s=self._cpu_s)
        busy = self._sources.sensors().watts
        joules = None
        if idle is not None and busy is not None and busy - idle >= WATTS_MIN:
            joules = (busy - idle) * found["wall_ms"] / 1000
        if not keep:
            self._end()
        costs = RunCosts(memory_mb=found["memory_mb"], joules=joules, cpu_ms=found["cpu_ms"])
        return costs, found["model"], found["side"]

    def _compare(self, task: ShadowTask, child: Sandbox) -> None:
        evidence, memory = self._evidence, self._memory
        if evidence is None or memory is None or not task.cameras:
            return
        camera = task.cameras[next(self._turn) % len(task.cameras)]
        command = SampleCommand(id=uuid4().hex[:12], camera=camera, side=self._side)
        sample = self._supervisor.sample(command, SAMPLE_WAIT_S, self._stop)
        if sample is None:  # none was due
            return
        if sample.model == self._names[1] != self._names[0]:  # it is in force by now
            return
        if sample.error:
            self._wait(sample.error)
            return
        width, height = sample.size
        values = {"file": str(memory / SAMPLE_FILE), "width": width, "height": height}
        answer = child.call("examine", values, wall_s=EXAMINE_S_MAX, cpu_s=EXAMINE_CPU_S)
        try:
            frame = _live_frame(task, sample, answer, self._costs[0].cpu_ms or 0.0)
        except (KeyError, TypeError, ValueError):
            raise ModelError("the child answered what makes no sense") from None
        self._failures = 0
        evidence.add(frame)
        self.status = self._status("looking", "")
        if evidence.frames % REPORT_EVERY == 0:
            self._decide(task, evidence)

    def _decide(self, task: ShadowTask, evidence: LiveEvidence, failure: str = "") -> None:
        """Keep the report, and do what follows from it."""
        old, new = self._costs_of(task)
        report = evidence.report(str(task.candidate), self._clock.now(), old, replace(new, failure=failure))
        self._proofs.put(report)
        try:
            if done := apply_outcome(self._store, task.candidate, report):
                logger.info("live frames: %s", done)
                if not task.is_live:
                    end_shadow(self._store)
        except (ModelError, PreconditionError) as error:
            logger.warning("%s", error)

    def _costs_of(self, task: ShadowTask) -> tuple[RunCosts, RunCosts]:
        """Return the costs of what is trusted and of the candidate, with the detector's time that both take."""
        live, child = self._costs
        health = self._supervisor.status.health
        if health is not None and live.cpu_ms and child.cpu_ms:
            ratio = child.cpu_ms / live.cpu_ms
            live, child = replace(live, load=health.load), replace(child, load=health.load * ratio)
        old, new = (child, live) if task.is_live else (live, child)
        return replace(old, is_hot=self._clock.monotonic() - self._hot_at < HOT_S), new

    def _failed(self, task: ShadowTask, why: str) -> None:
        """End the child; a candidate in it that failed again and again is worse."""
        self._end()
        self._failures += 1
        logger.warning("a network beside the one in force failed (%d of %d): %s", self._failures, FAILURES_MAX, why)
        if self._failures < FAILURES_MAX:
            return
        self._failures = 0
        self._wait(why)
        if not self._is_candidate:
            return
        evidence = self._evidence or LiveEvidence(file_of(self._root / PROOFS, str(task.candidate)), task.networks)
        self._decide(task, evidence, why)

    def _wait(self, why: str) -> None:
        """End the child, and begin again after a while: nobody is to blame."""
        self._end()
        self._retry_at = self._clock.monotonic() + RETRY_S
        self.status = self._status("waiting", why)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _status(self, progress: Any, reason: str) -> ShadowStatus:
        evidence, task = self._evidence, self._task
        usage = process_usage(self._child.pid) if self._child is not None and self._child.pid else None
        return ShadowStatus(
            progress, "" if task is None else str(task.candidate), reason,
            0 if evidence is None else evidence.frames, 0 if usage is None else usage.memory_bytes,
            (self._costs[1].cpu_ms or 0.0) / 1000 / SHADOW_EVERY_S,
        )  # fmt: skip


def _live_frame(task: ShadowTask, sample: SampledFrame, answer: Mapping[str, Any], live_ms: float) -> LiveFrame:
    """Return the objects of both networks in a frame. Raise KeyError, TypeError, ValueError: the answer is none."""
    light = answer["light"]
    beside = tuple(FoundObject(each["kind"], each["score"], rounded_box(each["box"])) for each in answer["objects"])
    found = tuple(
        FoundObject(
            kind_of(each.label), round(common_score(each.score, sample.calibration.get(each.label)), 4),
            rounded_box(each.box),
        )
        for each in sample.objects
    )  # fmt: skip
    live = SurveyedFrame(sample.t, light, live_ms, found)
    child = SurveyedFrame(sample.t, light, answer["cpu_ms"], beside)
    return LiveFrame(sample.camera, *((child, live) if task.is_live else (live, child)))
