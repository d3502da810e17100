"""Reports on the storage folder: what it holds, its limits, when they will be reached, and what was deleted."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.store.database import Database, open_read_only
from appliance.store.deletions import (
    STORAGE_CLASSES,
    DeletedRow,
    DeletionReason,
    StorageClass,
    deletion_totals,
    newest_deletions,
)
from appliance.store.paths import DATABASE, SCENARIOS
from appliance.store.quotas import (
    HOUR_S,
    LOOK_BACK_HOURS,
    CameraLimits,
    RecordMode,
    StorageLimits,
    StorageUsage,
    WriteRates,
    read_usage,
    read_write_rates,
)

DELETED_SHOWN = 50  # rows on the page
SCENARIO_FILES_MAX = 50_000  # 500 scenarios of at most 100 files
CACHED_S = 10.0  # the sums read every row of a camera, and pages ask every few seconds
DAY_S = 86400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraStorage:
    """The storage of one camera.

    Attributes:
        taken: bytes by storage class.
        rate: bytes that a second of video takes; None: not yet known.
        measured_s: seconds of video in the last day, from which `rate` was measured.
        evidence_rate: bytes of evidence a second; None: not yet known.
        oldest_t: UTC seconds at which its continuous recording begins; None: there is none.
        preroll_s: seconds of video that the pre-roll ring holds at this rate; None: there is no ring or no rate.
    """

    camera: str
    mode: RecordMode
    limits: CameraLimits
    taken: dict[StorageClass, int]
    rate: float | None
    measured_s: float
    evidence_rate: float | None
    oldest_t: float | None
    preroll_s: float | None
    forecast: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStorage:
    """The storage of the whole folder.

    Attributes:
        taken: bytes by storage class.
        scenarios: bytes of the kept scenarios.
        database: bytes of the database.
        unreviewed_bytes: bytes of evidence of alerts that nobody has reviewed; no limit deletes it.
        ring_in_memory: True: the pre-roll rings are in memory, and count against no limit of the disk.
        evidence_rate: bytes of evidence a second, of all cameras; None: not yet known.
        unknown: names of the cameras that record continuously and whose `rate` is not yet known.
        deleted: the newest rows about deleted files, at most DELETED_SHOWN.
        deleted_files: number of all deleted files, by storage class and reason.
        deleted_bytes: their bytes.
    """

    limits: StorageLimits
    taken: dict[StorageClass, int]
    scenarios: int
    database: int
    unreviewed_bytes: int
    disk_free: int
    disk_total: int
    ring_in_memory: bool
    evidence_rate: float | None
    forecast: Forecast
    unknown: tuple[str, ...]
    cameras: tuple[CameraStorage, ...]
    deleted: tuple[DeletedRow, ...]
    deleted_files: dict[tuple[StorageClass, DeletionReason], int]
    deleted_bytes: dict[tuple[StorageClass, DeletionReason], int]


@dataclass(frozen=True, slots=True)
class Disk:
    """Holds the size and the free bytes of the disk that the folder is on."""

    total: int
    free: int


DiskProbe = Callable[[Path], Disk]


def disk_space(root: Path) -> Disk:
    found = shutil.disk_usage(root)
    return Disk(found.total, found.free)


def read_storage(db: Database, root: Path, limits: StorageLimits, *, disk: DiskProbe = disk_space) -> SiteStorage:
    """Return the report of this moment. Raise StoreError."""
    with db.read() as connection:
        return _report(connection, root, limits, db.clock.now(), disk)


class StorageReportCache:
    """Gives the report to many readers. It is made at most every `CACHED_S`, because that reads folders and tables.

    State: the last report, and until when it is given. Any thread may call; two threads at once may both make one.
    """

    def __init__(self, db: Database, root: Path, limits: StorageLimits, *, disk: DiskProbe = disk_space) -> None:
        self._db = db
        self._root = root
        self._limits = limits
        self._disk = disk
        self._last: SiteStorage | None = None
        self._good_until = float("-inf")

    def read(self) -> SiteStorage:
        """Return the report of this moment, or of a few seconds ago. Raise StoreError."""
        last, began = self._last, self._db.clock.monotonic()
        if last is not None and began < self._good_until:
            return last
        self._last = found = read_storage(self._db, self._root, self._limits, disk=self._disk)
        self._good_until = self._db.clock.monotonic() + CACHED_S
        return found


def read_storage_offline(root: Path, limits: StorageLimits, now: float) -> SiteStorage:
    """Return the report without the appliance's process, which may run or not.

    Raise StoreError, also for a database of an older version.
    """
    with open_read_only(root / DATABASE) as connection:
        return _report(connection, root, limits, now, disk_space)


def _report(
    connection: sqlite3.Connection, root: Path, limits: StorageLimits, now: float, disk: DiskProbe
) -> SiteStorage:
    usage, written = read_usage(connection), read_write_rates(connection, now)
    free = disk(root)
    names = sorted({*limits.cameras, *usage.cameras()})
    plans = {name: _plan(name, limits, usage, written) for name in names if limits.camera(name).mode == "continuous"}
    kept_s = evidence_kept_s(connection, limits, now)
    others = [_evidence_growth(name, kept_s.get(name, limits.evidence_s), usage, written) for name in names]
    rooms = _rooms(limits, usage, free.free)
    site = forecast_site(plans, others, rooms)
    # Evidence may have no limit, so its final size is not known: recording gets the space that evidence leaves today.
    share_s = reach_s(plans, usage.bytes("continuous") + min(rooms.values())) if site.outlook == "fills" else None
    files, size = deletion_totals(connection)
    return SiteStorage(
        limits=limits,
        taken=_taken(usage, None),
        scenarios=_bytes_below(root / SCENARIOS),
        database=sum(_size(root / f"{DATABASE}{end}") for end in ("", "-wal", "-shm")),
        unreviewed_bytes=_unreviewed(connection),
        disk_free=free.free,
        disk_total=free.total,
        ring_in_memory=limits.ring_in_memory,
        evidence_rate=_sum(written.evidence_rate(name) for name in names),
        forecast=site,
        unknown=tuple(name for name, plan in plans.items() if plan.rate is None),
        cameras=tuple(
            _camera(name, limits, usage, written, _outlook(plans.get(name), site, share_s), _oldest(connection, name))
            for name in names
        ),
        deleted=tuple(newest_deletions(connection, DELETED_SHOWN)),
        deleted_files=dict(files),
        deleted_bytes=dict(size),
    )


def _camera(
    name: str,
    limits: StorageLimits,
    usage: StorageUsage,
    written: WriteRates,
    forecast: Forecast,
    oldest_t: float | None,
) -> CameraStorage:
    own = limits.camera(name)
    kind: StorageClass = "pre_roll" if own.mode == "pre_roll" else "continuous"
    rate = None if own.mode == "off" else written.rate(name, kind)
    return CameraStorage(
        camera=name,
        mode=own.mode,
        limits=own,
        taken=_taken(usage, name),
        rate=rate,
        measured_s=written.seconds(name, kind),
        evidence_rate=written.evidence_rate(name),
        oldest_t=oldest_t,
        preroll_s=own.preroll_bytes / rate if own.mode == "pre_roll" and rate else None,
        forecast=forecast,
    )


def _outlook(plan: RecordingPlan | None, site: Forecast, share_s: float | None) -> Forecast:
    return Forecast(outlook="off") if plan is None else forecast_camera(plan, site, share_s)


def _plan(name: str, limits: StorageLimits, usage: StorageUsage, written: WriteRates) -> RecordingPlan:
    own = limits.camera(name)
    return RecordingPlan(
        rate=written.rate(name, "continuous"),
        bytes=usage.bytes("continuous", name),
        keep_s=own.keep_s,
        quota=float("inf") if own.continuous_bytes is None else own.continuous_bytes,
    )


def evidence_kept_s(connection: sqlite3.Connection, limits: StorageLimits, now: float) -> dict[str, float]:
    """Return the mean time for which the evidence of a camera's alerts of the last day is kept: seconds by camera.

    As in retention, the zone with the shortest time decides about an alert whose events are in several zones. For a
    camera without an alert the result is the mean of its zones.
    """
    found: dict[str, list[float]] = {}
    rows = connection.execute(
        """SELECT camera, json_group_array(DISTINCT zone) AS zones FROM event
           WHERE alert IN (SELECT id FROM alert WHERE t_start > ?) GROUP BY camera, alert""",
        (now - LOOK_BACK_HOURS * HOUR_S,),
    )
    for row in rows:
        own = limits.camera(row["camera"])
        found.setdefault(row["camera"], []).append(
            min(own.evidence_s(zone, limits.evidence_s) for zone in json.loads(row["zones"]))
        )
    for name, own in limits.cameras.items():
        if name not in found:
            found[name] = [own.evidence_s(zone, limits.evidence_s) for zone in own.zones or ("",)]
    return {name: sum(each) / len(each) for name, each in found.items()}


def _evidence_growth(name: str, kept_s: float, usage: StorageUsage, written: WriteRates) -> Growth:
    """Return the growth of a camera's evidence. kept_s: seconds for which it is kept.

    Only its age limits evidence, because no quota deletes what is not reviewed.
    """
    rate = written.evidence_rate(name)
    level = float("inf") if rate is None else rate * kept_s
    return Growth(rate=rate, bytes=usage.bytes("evidence", name), level=level)


def _rooms(limits: StorageLimits, usage: StorageUsage, free: int) -> dict[str, float]:
    ring = 0 if limits.ring_in_memory else usage.bytes("pre_roll")
    rooms = {
        "size": limits.size_bytes - usage.bytes() - ring,
        "disk": free - limits.free_bytes_wanted,
    }
    if limits.continuous_bytes is not None:
        rooms["quota"] = limits.continuous_bytes - usage.bytes("continuous")
    return rooms


def _taken(usage: StorageUsage, camera: str | None) -> dict[StorageClass, int]:
    return {what: usage.bytes(what, camera) for what in STORAGE_CLASSES}


def _oldest(connection: sqlite3.Connection, camera: str) -> float | None:
    row = connection.execute(
        "SELECT t_start FROM segment WHERE camera = ? AND kind = 'continuous' ORDER BY t_start LIMIT 1", (camera,)
    ).fetchone()
    return None if row is None else row["t_start"]


def _unreviewed(connection: sqlite3.Connection) -> int:
    found: float = connection.execute(
        """SELECT total(evidence.bytes) FROM alert JOIN evidence ON evidence.alert = alert.id
           WHERE alert.review IS NULL AND evidence.state = 'ready'"""
    ).fetchone()[0]
    return int(found)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _bytes_below(folder: Path) -> int:
    """Return the bytes of the kept scenarios in a folder: only a person deletes them, but they take space, too.

    `walk` passes over a folder that is deleted meanwhile; `rglob` ends there with an error.
    """
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(_size(file) for file in itertools.islice(files, SCENARIO_FILES_MAX) if not file.is_symlink())


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


ForecastKind = Literal["unknown", "age", "fills", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Describes how a camera's recording or evidence grows.

    Attributes:
        rate: bytes a second; None: not yet known.
        bytes: its size now.
        level: the size in bytes at which it stops growing, because as much is deleted as is added; inf: it never stops.
    """

    rate: float | None
    bytes: float
    level: float

    def added(self, seconds: float) -> float:
        """Return by how many bytes it grows in `seconds`."""
        if not self.rate:
            return 0.0
        return min(self.rate * seconds, max(0.0, self.level - self.bytes))

    @property
    def full_s(self) -> float:
        """Seconds until its size is `level`; inf: it never is."""
        if not self.rate:
            return float("inf")
        return max(0.0, self.level - self.bytes) / self.rate


def fills_in_s(things: Sequence[Growth], room: float) -> float | None:
    """Return the seconds until `things` together have grown by `room` bytes; None: all stop growing before.

    Each thing grows linearly up to its level. Between two moments at which a thing stops, the sum is linear, too.
    """
    if room <= 0:
        return 0.0
    before_s, before = 0.0, 0.0
    for until_s in sorted({each.full_s for each in things if each.rate}):
        slope = sum(each.rate or 0.0 for each in things if each.full_s > before_s)
        after = sum(each.added(until_s) for each in things)
        if after >= room or until_s == float("inf"):
            return before_s + (room - before) / slope if slope > 0 else None
        before_s, before = until_s, after
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecasts what will delete a recording, its age or a limit.

    Attributes:
        outlook: `unknown`: the recording is too short for a forecast. `age`: parts are deleted when they are too old,
            before any limit is reached. `fills`: a limit deletes parts earlier than their age. `off`: nothing is
            recorded.
        days_left: days until the limit is reached; 0: it is reached already; None: unless `outlook` is `fills`.
        limit: the limit of `fills`: camera_quota, quota, size or disk; else "".
        keeps_s: seconds of recording that will then be kept; None: not known.
    """

    outlook: ForecastKind
    days_left: float | None = None
    limit: str = ""
    keeps_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """Holds the limits of a camera that records continuously.

    Attributes:
        rate, bytes: see `Growth`.
        keep_s: seconds after which recording is deleted.
        quota: bytes that its recording may take; inf: no limit.
    """

    rate: float | None
    bytes: float
    keep_s: float
    quota: float

    @property
    def growth(self) -> Growth:
        by_age = float("inf") if self.rate is None else self.rate * self.keep_s
        return Growth(rate=self.rate, bytes=self.bytes, level=min(by_age, self.quota))


def forecast_site(plans: Mapping[str, RecordingPlan], others: Sequence[Growth], rooms: Mapping[str, float]) -> Forecast:
    """Return the forecast of all cameras together.

    others: the evidence, which grows in addition to the recording. rooms: bytes that are left, by limit. The room
    `quota` is for continuous recording only; the other rooms are for recording and evidence together.
    """
    if not plans:
        return Forecast(outlook="off")
    known = [plan.growth for plan in plans.values()]
    if all(each.rate is None for each in known):
        return Forecast(outlook="unknown")
    times = {limit: fills_in_s(known if limit == "quota" else [*known, *others], room) for limit, room in rooms.items()}
    reached = {limit: seconds for limit, seconds in times.items() if seconds is not None}
    if not reached:
        return Forecast(outlook="age")
    first = min(reached, key=lambda limit: reached[limit])
    return Forecast(outlook="fills", days_left=reached[first] / DAY_S, limit=first)


def forecast_camera(plan: RecordingPlan, site: Forecast, share_s: float | None) -> Forecast:
    """Return the forecast of one camera. Its own quota counts, or the site's limit if this is reached earlier.

    share_s: seconds of recording that each camera keeps under the site's limit; None: that limit is not reached.
    """
    if plan.rate is None:
        return Forecast(outlook="unknown")
    by_quota = plan.quota / plan.rate if plan.rate > 0 else float("inf")
    keeps = min(plan.keep_s, by_quota, share_s if share_s is not None else float("inf"))
    own = by_quota < plan.keep_s
    own_days = max(0.0, plan.quota - plan.bytes) / plan.rate / DAY_S if own else None
    shared = site.outlook == "fills" and share_s is not None and share_s < min(plan.keep_s, by_quota)
    if own_days is not None and not (shared and site.days_left is not None and site.days_left < own_days):
        return Forecast(outlook="fills", days_left=own_days, limit="camera_quota", keeps_s=keeps)
    if shared:
        return Forecast(outlook="fills", days_left=site.days_left, limit=site.limit, keeps_s=keeps)
    return Forecast(outlook="age", keeps_s=keeps)


def reach_s(plans: Mapping[str, RecordingPlan], room: float) -> float | None:
    """Return the seconds of recording that each camera keeps if all recordings share `room` bytes.

    The oldest part is deleted first, so all recordings begin at the same moment. None: they fit into `room` until their
    age deletes them.
    """
    spans = sorted({_span(plan) for plan in plans.values() if plan.rate})
    before_s, taken = 0.0, 0.0
    for until_s in spans:
        slope = sum(plan.rate or 0.0 for plan in plans.values() if _span(plan) > before_s)
        after = taken + slope * (until_s - before_s)
        if after > room:
            return before_s + max(0.0, room - taken) / slope
        before_s, taken = until_s, after
    return None


def _span(plan: RecordingPlan) -> float:
    return min(plan.keep_s, plan.quota / plan.rate) if plan.rate else 0.0
