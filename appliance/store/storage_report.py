"""Storage report: the content of the storage folder, its limits, how long they last, and what was deleted."""

from __future__ import annotations

import itertools
import json
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
CACHED_S = 10.0  # sums walk every row of a camera; pages ask each few seconds
DAY_S = 86400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraStorage:
    """One camera. rate: bytes a second of video, None: not yet known; measured_s: the video of the last day behind it.

    preroll_s: how many seconds the ring holds at that rate. oldest_t: where its continuous recording begins.
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
    """The whole folder. unreviewed_bytes: evidence that no limit deletes; unknown: cameras without a rate yet.

    ring_in_memory: the pre-roll is not on the disk and not counted against its limits. deleted: the newest days.
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
    """Bytes of the disk that the folder is on."""

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
    """The report for many readers: made anew at most every `CACHED_S`, for it walks folders and adds up evidence.

    State: the last report and until when it is good. Any thread may call; two at once may both make one.
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
    """Return the report beside a running appliance, or without one. Raise StoreError, also for an older database."""
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
    # Where evidence ends up is not known when it has no limit; recording gets what evidence leaves today.
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
    """Return for how long, in the mean, the evidence of a camera's last day of alerts is kept; seconds by camera.

    As retention does it: an alert goes with the strictest zone of its events. Without an alert the zones count alike.
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
    """Evidence counts with its age alone: no quota deletes what is not reviewed. kept_s: how long it is kept."""
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
    """Return the bytes of the kept scenarios: only a person deletes them, but they take their part of the disk."""
    files = itertools.islice((file for file in folder.rglob("*")), SCENARIO_FILES_MAX)
    return sum(_size(file) for file in files if file.is_file() and not file.is_symlink())


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


ForecastKind = Literal["unknown", "age", "fills", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One thing that grows: a camera's recording, or evidence.

    rate: bytes a second; None: not yet known. bytes: what it takes now; level: where it stops growing, because its time
    is up or its own quota is reached (inf: nowhere).
    """

    rate: float | None
    bytes: float
    level: float

    def added(self, seconds: float) -> float:
        """Bytes that it takes more after `seconds`."""
        if not self.rate:
            return 0.0
        return min(self.rate * seconds, max(0.0, self.level - self.bytes))

    @property
    def full_s(self) -> float:
        """Seconds until it is at its level; inf: it does not get there."""
        if not self.rate:
            return float("inf")
        return max(0.0, self.level - self.bytes) / self.rate


def fills_in_s(things: Sequence[Growth], room: float) -> float | None:
    """Seconds until `things` together have taken `room` bytes more; None: they level off before.

    Each grows in a straight line up to its level, so what they take is linear between the moments of levelling off.
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
    """Forecast of a recording.

    outlook: unknown (too young), age (its time is up before any limit is reached), fills (a limit deletes it before its
    time, from `days_left` on; 0: it does so now), off (nothing is recorded). limit: which one: camera_quota, quota,
    size, disk; "" for age. keeps_s: how far back the recording will then reach.
    """

    outlook: ForecastKind
    days_left: float | None = None
    limit: str = ""
    keeps_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """A camera that records continuously: what it is allowed. rate, bytes: see `Growth`; quota: inf for none."""

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

    others: what grows beside the recording; rooms: bytes left, by limit. `quota` among the rooms is of the continuous
    recording alone; the other rooms are for everything.
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
    """Return the forecast of one camera: its own quota, or the site's limit if that comes first.

    share_s: how far back its recording will reach when the site's limit shares the room out; None: it does not.
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
    """Return how far back all recordings reach once `room` bytes hold all of them and the oldest always goes first.

    The moment is the same for all. None: they fit with their age limits.
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
