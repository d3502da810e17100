"""What the handlers depend on, handed to them by FastAPI, and the probes into the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from appliance.broker import LinkState
from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.dashboard.snapshots import SnapshotCache
from appliance.dashboard.templating import Templates
from appliance.keep.scenario_exporter import ScenarioExporter
from appliance.notify.delivery import TargetStatus
from appliance.store.alerts import AlertCounts, AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NoticeStore
from appliance.store.segments import SegmentStore
from appliance.store.storage_report import StorageReportCache
from appliance.types import HealthKind


@dataclass(frozen=True, slots=True)
class SystemHealth:
    """The ingest process now, and warnings of the core: a sentence each.

    detector_ms: time of one inference, smoothed; queue: frames that wait for one; load: share of the time that the
    detector works, 0..1; age_p95_ms: of the frames that reached the trackers in the last seconds.
    """

    ingest_running: bool
    ingest_starts: int = 0
    detector_ms: float = 0.0
    queue: int = 0
    rss_bytes: int = 0
    load: float = 0.0
    age_p95_ms: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CoreProbes:
    """What the dashboard asks of the core that it runs in, besides the store. None: there is no such part.

    link: the uplink now. health: the ingest process now. targets: the notification targets now. rebaseline: called with
    a camera and a kind of fault when a person says that what the camera shows is right as it is.
    """

    link: Callable[[], LinkState] | None = None
    health: Callable[[], SystemHealth] | None = None
    targets: Callable[[], Sequence[TargetStatus]] = tuple
    rebaseline: Callable[[str, HealthKind], object] | None = None


NO_PROBES = CoreProbes()
COUNT_REST = 20.0
COUNT_AGE_S_MAX = 5.0


class AlertCountCache:
    """The alert counts, read again only when something changed, and at most a twentieth of the time.

    State: the last answer, its change number, and until when it stands. With 100 000 alerts a count takes some 40 ms,
    so it may then be a second old; with few alerts it is always of this moment.
    """

    def __init__(self, db: Database, alerts: AlertStore) -> None:
        self._db = db
        self._alerts = alerts
        self._last: AlertCounts | None = None
        self._rev = -1
        self._stands_until = float("-inf")

    def read(self) -> AlertCounts:
        """Total, open, to review, by verdict, and undelivered."""
        last, rev, began = self._last, self._db.rev(), self._db.clock.monotonic()
        if last is not None and (rev == self._rev or began < self._stands_until):
            return last
        last = self._last = self._alerts.counts()
        ended = self._db.clock.monotonic()
        self._rev, self._stands_until = rev, ended + min(COUNT_AGE_S_MAX, COUNT_REST * (ended - began))
        return last


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardDeps:
    """The store's rooms, the storage folder, the kept scenarios, the probes into the core. Shared by all requests."""

    db: Database
    root: Path
    config: SiteConfig
    clock: Clock
    alerts: AlertStore
    cameras: CameraStore
    boxes: BoxStore
    segments: SegmentStore
    meter: Meter
    health_events: HealthEventStore
    counts: AlertCountCache
    snapshots: SnapshotCache
    templates: Templates
    exporter: ScenarioExporter
    storage: StorageReportCache
    notices: NoticeStore
    probes: CoreProbes


def deps_of(request: Request) -> DashboardDeps:
    desk: DashboardDeps = request.app.state.desk
    return desk


Deps = Annotated[DashboardDeps, Depends(deps_of)]
