"""How the appliance does now: broker link, load, heat and warnings, for the services and pages that ask."""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.base.clock import Clock
from appliance.base.machine import load_per_core
from appliance.broker import LinkState
from appliance.core.appliance_monitor import ApplianceMonitor
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.dashboard.deps import SystemHealth
from appliance.recheck.recheck_policy import ApplianceStatus, CloudStatus
from appliance.rules.arming import Arming
from appliance.store.database import Database
from appliance.store.write_backlog import WriteBacklog
from appliance.uplink.uplink_service import UplinkService


@dataclass(frozen=True, slots=True)
class SystemProbes:
    """How the appliance does now, for the services that ask. Any thread."""

    escalates: bool
    supervisor: IngestSupervisor
    uplink: UplinkService | None
    backlog: WriteBacklog
    db: Database
    clock: Clock
    arming: Arming
    monitor: ApplianceMonitor

    def link(self) -> LinkState:
        """Only where there is an uplink."""
        assert self.uplink is not None
        state = self.uplink.link
        return replace(state, error=state.error or self.uplink.waits_for)

    def cloud(self) -> CloudStatus:
        if self.uplink is None or not self.escalates:
            return CloudStatus()
        link = self.uplink.link
        down_s = None if link.up else self.clock.now() - link.since
        return CloudStatus(configured=True, down_s=down_s, silent=link.up and link.breaker != "closed")

    def appliance(self) -> ApplianceStatus:
        status = self.supervisor.status
        if status.pid == 0 or status.health is None:
            return ApplianceStatus()
        return ApplianceStatus(
            starts=status.starts,
            load=load_per_core(),
            temperature_c=self.temperature_c(),
            detector_load=status.health.load,
            detector_queue=status.health.queue,
            hot=self.monitor.shed.heat.step > 0,
        )

    def temperature_c(self) -> float | None:
        """Return the reading of the hottest sensor; None: no sensor reports a temperature."""
        hottest = self.monitor.status.reading.hottest
        return hottest.celsius if hottest is not None else None

    def warning(self) -> str:
        """Return what is wrong with the database, or ''."""
        return self.backlog.warning or self.db.displaced

    def health(self) -> SystemHealth:
        status = self.supervisor.status
        warnings = [self.warning(), status.health.warning if status.health else "", *self.arming.warnings()]
        state = SystemHealth(
            ingest_running=status.pid != 0,
            ingest_starts=status.starts,
            ingest_pid=status.pid,
            warnings=tuple(text for text in warnings if text),
        )
        if status.health is None:
            return state
        return replace(
            state,
            detector_ms=status.health.detector_ms,
            queue=status.health.queue,
            rss_bytes=status.health.rss_bytes,
            load=status.health.load,
            age_p95_ms=status.health.age_p95_ms,
            hardware=status.health.hardware,
        )
