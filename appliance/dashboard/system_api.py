"""`/api/v1/system`, its log and the page System: processes, detector, machine, links, versions."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Query
from starlette.responses import StreamingResponse

from appliance.backup.diagnostics import DiagnosticsSource, stream_bundle, versions
from appliance.base import machine
from appliance.base.child_processes import SANDBOX
from appliance.base.clock import Clock
from appliance.base.config_model import Backend
from appliance.base.errors import ModelError
from appliance.base.telemetry import RING_LINES_MAX, LogLevel, LogLine, log_text
from appliance.config import DecisionConfig
from appliance.dashboard.deps import CoreProbes, DatabasePart
from appliance.dashboard.headroom_api import HeadroomReader, sentence
from appliance.dashboard.health_api import HealthReader
from appliance.dashboard.metrics_api import ApplianceCollector
from appliance.dashboard.schemas import API, ApiModel
from appliance.dashboard.settings_api import Settings
from appliance.detect.detector_loader import locate, with_device
from appliance.detect.runtime_choice import with_remembered_runtime
from appliance.health.load_shedding import LoadShedding
from appliance.sandbox.confinement import missing_confinement
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.store.cameras import CameraStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.savings import EnergyAccount
from appliance.store.storage_report import StorageReportCache
from appliance.types import DROP_REASONS, DropReason
from appliance.web.routes import RouteList, provided
from appliance.web.texts import N_

READ_EVERY_S = 2.0  # a page that is open asks each few seconds; the kernel adds up a process's pages for milliseconds
LOG_SHOWN = 200  # lines on the page; base.telemetry.RING_LINES_MAX are kept
BACKEND_NAMES: dict[Backend, str] = {
    "auto": "ONNX Runtime", "onnx": "ONNX Runtime", "openvino": "OpenVINO", "tensorrt": "TensorRT", "hailo": "HailoRT",
    "hog": "OpenCV HOG",
}  # fmt: skip
DROP_TEXTS: dict[DropReason, str] = {
    "newer": N_("a newer picture took its place"), "capped": N_("this camera had its part of the detector"),
    "late": N_("came up too late"), "run": N_("the stream began anew"), "failed": N_("the detector failed"),
    "stuck": N_("the detector did not answer"),
}  # fmt: skip

router = RouteList(prefix=f"{API}/system", tags=["system"])


class ProcessItem(ApiModel):
    """A process of the appliance: `core`, `ingest`, `media sandbox` or `child`.

    memory_bytes: its share of what it holds with others when `proportional`, else what is resident. cpu: cores in use
    since it was last looked at; of the first look the mean since its start. restarts: of the ingest process, since the
    core started; null: not counted.
    """

    name: str
    pid: int
    uptime_s: float
    memory_bytes: int
    proportional: bool
    cpu: float
    threads: int
    restarts: int | None


class DetectorItem(ApiModel):
    """The detector. Rates are inferences a second; null: not known now.

    network: as the streams' headers name it ('' before the first). precision: `as the file` unless the site file or a
    measurement sets another. sentence: what follows for the cameras. hardware_decoding: what of it there is, and its
    sessions in use; empty: it is off.
    """

    network: str
    backend: str
    device: str
    precision: str
    running: bool
    load: float | None
    inference_ms: float | None
    queue: int
    age_p95_ms: float
    inferences_s: float | None
    room: float | None
    sentence: str
    hardware_decoding: str


class UnexaminedItem(ApiModel):
    """Frames of a camera that were due and had no inference since the core started, by reason."""

    camera: str
    examined: int
    unexamined: int
    reasons: dict[str, int]


class EnergyItem(ApiModel):
    """The energy that the appliance drew since the core started, all its programs, as far as it is measured.

    sources: where. watts: now. joules_per_camera_hour: for an hour of one live camera. null: not known, or there was
    none.
    """

    joules: int
    sources: list[str]
    watts: float | None
    joules_per_camera_hour: float | None
    joules_per_alert: float | None


class SheddingItem(ApiModel):
    """The work that the appliance sheds, against heat or lack of memory.

    step: 0: nothing; see docs/power.md. reasons: why and what, a sentence each. fps_share, input_share: of detections a
    second, and of the sides of the detector's input.
    """

    heat_step: int
    memory_step: int
    fps_share: float
    input_share: float
    offload: bool
    reasons: list[str]


class MachineItem(ApiModel):
    """The box now. null: it does not tell.

    temperatures: empty where there is no sensor. throttling: why a processor is slowed down, a sentence each; empty:
    none is. energy: what was drawn. memory_stalled: the share of the last ten seconds in which a task waited for
    memory. shedding: what it does less of. clock_synchronised null as in many containers; clock_error_s: at most so
    much off.
    """

    cores: int
    load_per_core: float | None
    memory_bytes: int | None
    memory_available_bytes: int | None
    uptime_s: float | None
    temperatures: tuple[machine.Temperature, ...]
    throttling: list[str] | None
    energy: EnergyItem | None
    memory_stalled: float | None
    shedding: SheddingItem | None
    clock_synchronised: bool | None
    clock_error_s: float | None
    disk_free_bytes: int
    disk_total_bytes: int
    storage_bytes: int
    storage_max_bytes: float
    database_bytes: int


class LinkItem(ApiModel):
    """A connection to something outside: uplink, the model server nearby, home automation, a notification target."""

    name: str
    up: bool
    text: str


class SystemReport(ApiModel):
    """The appliance now.

    faults: a sentence each. confinement_missing: what keeps processes that decode video from files, ports and other
    processes, and this kernel does not have, a sentence each. versions: of Vedette, Python, the kernel, the schema and
    packages.
    """

    faults: list[str]
    processes: list[ProcessItem]
    confinement_missing: list[str]
    detector: DetectorItem
    unexamined: list[UnexaminedItem]
    machine: MachineItem
    links: list[LinkItem]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    processes: tuple[ProcessItem, ...]
    cpu_s: Mapping[int, float]


class SystemReader:
    """Reads how the appliance does. Any thread may call.

    State: the last look at the processes, which is answered again for READ_EVERY_S and makes CPU a rate.
    """

    def __init__(
        self, config: DecisionConfig, root: Path, clock: Clock, probes: CoreProbes,
        readers: tuple[HealthReader, HeadroomReader, StorageReportCache, CameraStore, Meter],
    ) -> None:  # fmt: skip
        """readers: of faults, headroom, storage, cameras and counters."""
        self._config = config
        self._root = root
        self._clock = clock
        self._probes = probes
        self._health, self._headroom, self._storage, self._cameras, self._meter = readers
        self._lock = threading.Lock()
        self._last: _Look | None = None

    def report(self) -> SystemReport:
        return SystemReport(
            faults=self._health.reasons(), processes=self._processes(), confinement_missing=self._confinement_missing,
            detector=self._detector(), unexamined=self._unexamined(), machine=self._machine(), links=self._links(),
            versions=versions(),
        )  # fmt: skip

    def log(self, level: LogLevel, count: int) -> Sequence[LogLine]:
        """Return the newest lines, oldest first."""
        return self._probes.log(level, count)

    def _processes(self) -> list[ProcessItem]:
        with self._lock:
            now, last = self._clock.monotonic(), self._last
            if last is None or now - last.at >= READ_EVERY_S:
                last = self._last = self._look(now, last)
            return list(last.processes)

    def _look(self, now: float, before: _Look | None) -> _Look:
        health = self._probes.health() if self._probes.health else None
        core, ingest = os.getpid(), health.ingest_pid if health else 0
        found, cpu_s = [], {}
        for each in machine.usages(machine.process_family(core)):
            cpu_s[each.pid] = each.cpu_s
            known = before.cpu_s.get(each.pid) if before else None
            if before is None or known is None:
                cpu = each.cpu_s / each.uptime_s if each.uptime_s else 0.0
            else:
                cpu = (each.cpu_s - known) / (now - before.at)
            is_ingest = each.pid == ingest
            child = "ingest" if is_ingest else "media sandbox" if SANDBOX in each.command else "child"
            found.append(
                ProcessItem(
                    name="core" if each.pid == core else child,
                    pid=each.pid, uptime_s=round(each.uptime_s, 1), memory_bytes=each.memory_bytes,
                    proportional=each.proportional, cpu=round(max(0.0, cpu), 3), threads=each.threads,
                    restarts=max(0, health.ingest_starts - 1) if health and is_ingest else None,
                )
            )  # fmt: skip
        return _Look(now, tuple(found), cpu_s)

    def _detector(self) -> DetectorItem:
        health = self._probes.health() if self._probes.health else None
        room = self._headroom.report()
        rates = [each.examined for each in room.cameras if each.examined is not None]
        networks = sorted({row.model for row in self._cameras.all() if row.model})
        backend, device, precision = self._backend
        return DetectorItem(
            network=", ".join(networks), backend=backend, device=device, precision=precision,
            running=health is not None and health.ingest_running, load=room.load, inference_ms=room.inference_ms,
            queue=health.queue if health else 0, age_p95_ms=health.age_p95_ms if health else 0.0,
            inferences_s=round(sum(rates), 2) if rates else None, room=room.room, sentence=sentence(room),
            hardware_decoding=health.hardware if health else "",
        )  # fmt: skip

    @cached_property
    def _backend(self) -> tuple[str, str, str]:
        settings = with_remembered_runtime(self._config.detector, self._root)
        try:
            hog = locate(settings) is None
        except ModelError:
            hog = False
        if hog:
            return "OpenCV HOG", "cpu", "fp32"
        settings = with_device(settings)
        precision = settings.precision if settings.precision != "auto" else "as the file"
        device = "hailo" if settings.backend == "hailo" else settings.device
        return BACKEND_NAMES[settings.backend], device, precision

    def _unexamined(self) -> list[UnexaminedItem]:
        found = []
        counted = {(each.camera, each.metric): each.amount for each in self._meter.totals("start")}
        for name in sorted(self._config.cameras):
            reasons = {why: counted.get((name, Metric(MetricName.UNEXAMINED, why)), 0) for why in DROP_REASONS}
            found.append(
                UnexaminedItem(
                    camera=name, examined=counted.get((name, Metric(MetricName.EXAMINED)), 0),
                    unexamined=counted.get((name, Metric(MetricName.UNEXAMINED)), 0),
                    reasons={why: amount for why, amount in reasons.items() if amount},
                )
            )  # fmt: skip
        return found

    def _machine(self) -> MachineItem:
        memory, clock, storage = machine.memory_bytes(), machine.clock_sync(), self._storage.read()
        box = self._probes.sensors() if self._probes.sensors else None
        heat = box.reading.temperatures if box else machine.temperatures()
        throttling_now = box.reading.throttling if box else None
        return MachineItem(
            cores=os.cpu_count() or 1, load_per_core=machine.load_per_core(),
            memory_bytes=memory[0] if memory else None, memory_available_bytes=memory[1] if memory else None,
            uptime_s=machine.uptime_s(),
            temperatures=tuple(heat),
            throttling=list(throttling_now) if throttling_now is not None else None,
            energy=_energy(EnergyAccount.of(self._meter.totals("start")), box.watts if box else None),
            memory_stalled=box.memory.stalled if box else None,
            shedding=_shedding(self._probes.shedding()) if self._probes.shedding else None,
            clock_synchronised=clock.synchronised, clock_error_s=clock.error_s_max,
            disk_free_bytes=storage.disk_free, disk_total_bytes=storage.disk_total,
            storage_bytes=sum(storage.taken.values()) + storage.scenarios, storage_max_bytes=storage.limits.size_bytes,
            database_bytes=storage.database,
        )  # fmt: skip

    def _links(self) -> list[LinkItem]:
        found = []
        if self._probes.link is not None:
            link = self._probes.link()
            why = link.error if not link.up else link.breaker_why if link.breaker != "closed" else ""
            found.append(LinkItem(name="uplink", up=link.up and link.breaker == "closed", text=why))
        judge = self._probes.pool().local if self._probes.pool is not None else None
        if judge is not None:
            text = judge.error or ("judging" if judge.at_work else judge.waits_for or f"{judge.judged} judged here")
            found.append(LinkItem(name="local judge", up=not judge.error, text=text))
        if self._probes.mqtt is not None:
            mqtt = self._probes.mqtt()
            found.append(LinkItem(name="MQTT", up=mqtt.connected, text=mqtt.error))
        return found + [
            LinkItem(name=f"{each.name} ({each.kind})", up=each.failing_since is None, text=each.error)
            for each in self._probes.targets()
        ]

    @cached_property
    def _confinement_missing(self) -> list[str]:
        return list(missing_confinement())


def _shedding(shed: LoadShedding) -> SheddingItem:
    reasons = list(shed.faults.values())
    return SheddingItem.of_row(shed, heat_step=shed.heat.step, memory_step=shed.memory.step, reasons=reasons)


def _energy(account: EnergyAccount | None, watts: float | None) -> EnergyItem | None:
    if account is None:
        return None
    per_hour, per_alert = account.joules_per_camera_hour, account.joules_per_alert
    return EnergyItem(
        joules=account.joules, sources=list(account.sources), watts=watts if watts is None else round(watts, 2),
        joules_per_camera_hour=per_hour if per_hour is None else round(per_hour, 1),
        joules_per_alert=per_alert if per_alert is None else round(per_alert, 1),
    )  # fmt: skip


System = Annotated[SystemReader, Depends(provided(SystemReader))]
Level = Annotated[LogLevel, Query(description="this level and graver ones")]


@router.get("")
def system(reader: System) -> SystemReport:
    """Return processes, detector, frames not examined, machine, links and versions, now."""
    return reader.report()


@router.get("/log")
def system_log(
    reader: System, level: Level = "debug", limit: Annotated[int, Query(ge=1, le=2000)] = LOG_SHOWN
) -> Sequence[LogLine]:
    """Return the newest lines of the log of the core and the ingest process, oldest first, without secrets of URLs."""
    return reader.log(level, limit)


@router.get("/diagnostics.zip", response_class=StreamingResponse, responses={200: {"content": {"application/zip": {}}}})
def diagnostics(
    reader: System, settings: Settings, db: DatabasePart,
    collector: Annotated[ApplianceCollector, Depends(provided(ApplianceCollector))],
) -> StreamingResponse:  # fmt: skip
    """One zip for who helps: site file, versions, state, log, faults, gaps, metrics, schema; no secrets, no images."""
    service = settings.service if settings.is_editable else None
    source = DiagnosticsSource(
        service.path if service else None,
        service.scrubber() if service else SecretScrubber(()),
        db.read, versions, service.versions.all() if service else (),
        {
            "system.json": lambda: reader.report().model_dump(mode="json"),
            "log.txt": lambda: log_text(reader.log("debug", RING_LINES_MAX)),
            "metrics.txt": collector.text,
        },
    )  # fmt: skip
    return StreamingResponse(
        stream_bundle(source), media_type="application/zip",
        headers={"Content-Disposition": 'attachment; filename="vedette-diagnostics.zip"'},
    )  # fmt: skip
