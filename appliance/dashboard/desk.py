"""What every resource of the dashboard works with, handed to it by FastAPI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.dashboard.pictures import Pictures
from appliance.dashboard.ports import HealthProbe, LinkProbe, RelearnOrder, TargetsProbe
from appliance.dashboard.templating import Templates
from appliance.keep.keeper import Keeper
from appliance.store.alerts import AlertCounts, Alerts
from appliance.store.boxes import Boxes
from appliance.store.cameras import Cameras
from appliance.store.database import Database
from appliance.store.health import HealthEvents
from appliance.store.meter import Meter
from appliance.store.notices import Notices
from appliance.store.segments import Segments
from appliance.store.storage import StorageBook

COUNT_REST = 20.0
COUNT_AGE_S_MAX = 5.0


class Counts:
    """The alert counts, read again only when something changed, and at most a twentieth of the time.

    State: the last answer, its change number, and until when it stands. With 100 000 alerts a count takes some 40 ms,
    so it may then be a second old; with few alerts it is always of this moment.
    """

    def __init__(self, db: Database, alerts: Alerts) -> None:
        self._db = db
        self._alerts = alerts
        self._last: AlertCounts | None = None
        self._rev = -1
        self._stands_until = float("-inf")

    def now(self) -> AlertCounts:
        """Total, open, to review, by verdict, and undelivered."""
        last, rev, began = self._last, self._db.rev(), self._db.clock.monotonic()
        if last is not None and (rev == self._rev or began < self._stands_until):
            return last
        last = self._last = self._alerts.counts()
        ended = self._db.clock.monotonic()
        self._rev, self._stands_until = rev, ended + min(COUNT_AGE_S_MAX, COUNT_REST * (ended - began))
        return last


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The store's rooms, the storage folder, the kept scenarios, the probes into the core. Shared by all requests."""

    db: Database
    root: Path
    config: SiteConfig
    clock: Clock
    alerts: Alerts
    cameras: Cameras
    boxes: Boxes
    segments: Segments
    meter: Meter
    health_events: HealthEvents
    counts: Counts
    pictures: Pictures
    templates: Templates
    keeper: Keeper
    storage: StorageBook
    notices: Notices
    targets: TargetsProbe
    link: LinkProbe | None
    health: HealthProbe | None
    relearn: RelearnOrder | None = None


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(desk_of)]
