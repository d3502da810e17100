"""Computes storage quotas of each class of recording: limits in the site file, size and growth, from running sums."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from appliance.config import CameraConfig, CameraQuotaConfig, StorageConfig
from appliance.store.deletions import STORAGE_CLASSES, StorageClass

GB = 1_000_000_000  # bytes
MB = 1_000_000  # bytes
HOUR_S = 3600.0  # seconds
LOOK_BACK_HOURS = 24  # a day has its quiet and busy hours
RATE_AFTER_S = 3600.0  # of video; before, a rate shows the start more than the camera
EVIDENCE_AFTER_S = 6 * 3600.0  # alerts come in bursts
FREE_HEADROOM = 1.2  # the recorder stops at disk_free_min_mb, so retention aims at more
_TRIM_FROM = 8  # with so many hours, the highest and the lowest are left out
RecordMode = Literal["continuous", "pre_roll", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraLimits:
    """Storage limits of one camera.

    keep_s: a continuous recording's age in seconds; None in bytes: no limit of its own. zones: its zones now, each with
    the seconds for which evidence of an alert in it is kept (None: as elsewhere); empty: no zone has its own.
    """

    mode: RecordMode
    keep_s: float
    continuous_bytes: float | None
    evidence_bytes: float | None
    preroll_bytes: int
    zones: Mapping[str, float | None] = field(default_factory=dict)

    def evidence_s(self, zone: str, usual_s: float) -> float:
        """Return how long evidence of an event in a zone is kept. zone '': of a line; one that is gone: the least."""
        if not self.zones or not zone:
            return usual_s
        kept = self.zones[zone] if zone in self.zones else min(each for each in self.zones.values() if each is not None)
        return usual_s if kept is None else kept


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLimits:
    """Storage limits of the site, and of each camera of the file.

    A camera that was taken out of the file has the site's limits.
    """

    cameras: Mapping[str, CameraLimits]
    other: CameraLimits
    size_bytes: float
    continuous_bytes: float | None
    evidence_bytes: float | None
    evidence_s: float
    free_bytes_min: float
    ring_in_memory: bool

    @classmethod
    def of(cls, storage: StorageConfig, cameras: Mapping[str, CameraConfig]) -> StorageLimits:
        return cls(
            cameras={
                name: _camera_limits(
                    storage, camera.quota, (camera.record or "off") if camera.enabled else "off", tuple(camera.zones)
                )
                for name, camera in cameras.items()
            },
            other=_camera_limits(storage, CameraQuotaConfig(), "off"),
            size_bytes=storage.size_max_gb * GB,
            continuous_bytes=_bytes(storage.quota.continuous_gb),
            evidence_bytes=_bytes(storage.quota.evidence_gb),
            evidence_s=storage.evidence_days * 86400,
            free_bytes_min=storage.disk_free_min_mb * MB,
            ring_in_memory=storage.preroll_dir is not None,
        )

    def camera(self, name: str) -> CameraLimits:
        return self.cameras.get(name, self.other)

    @property
    def free_bytes_wanted(self) -> float:
        """Bytes that retention keeps free on the disk."""
        return self.free_bytes_min * FREE_HEADROOM

    @property
    def rings(self) -> dict[str, int]:
        """The cameras that keep a pre-roll only, and the bytes of each ring."""
        return {name: each.preroll_bytes for name, each in self.cameras.items() if each.mode == "pre_roll"}


def _camera_limits(
    storage: StorageConfig, quota: CameraQuotaConfig, mode: RecordMode, zones: tuple[str, ...] = ()
) -> CameraLimits:
    """Return the limits of a camera. The recording shows all zones, so the strictest bounds it."""
    days = quota.zone_days
    return CameraLimits(
        mode=mode,
        keep_s=min([(quota.continuous_hours or storage.keep_hours) * 3600, *(each * 86400 for each in days.values())]),
        zones={zone: days[zone] * 86400 if zone in days else None for zone in zones} if days else {},
        continuous_bytes=_bytes(quota.continuous_gb),
        evidence_bytes=_bytes(quota.evidence_gb),
        preroll_bytes=round((quota.preroll_mb or storage.quota.preroll_mb) * MB),
    )


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * GB


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Storage used by one class of one camera."""

    camera: str
    what: StorageClass
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Storage used by all classes of all cameras."""

    rows: tuple[UsageRow, ...]

    def bytes(self, what: StorageClass | None = None, camera: str | None = None) -> int:
        """Bytes of a class (None: all, but what may lie in memory) and camera (None: all)."""
        chosen = ("continuous", "alert", "evidence") if what is None else (what,)
        return sum(row.bytes for row in self.rows if row.what in chosen and camera in (None, row.camera))

    def files(self, what: StorageClass, camera: str | None = None) -> int:
        return sum(row.files for row in self.rows if row.what == what and camera in (None, row.camera))

    def cameras(self, what: StorageClass | None = None) -> list[str]:
        """Return the names of the cameras of which anything is stored; the site file may no longer have them."""
        return sorted({row.camera for row in self.rows if row.files > 0 and what in (None, row.what)})


def read_usage(connection: sqlite3.Connection) -> StorageUsage:
    """Return the running sums."""
    rows = connection.execute("SELECT camera, class, files, bytes FROM usage")
    return StorageUsage(tuple(UsageRow(row["camera"], row["class"], row["files"], row["bytes"]) for row in rows))


def recount_usage(connection: sqlite3.Connection) -> None:
    """Make the running sums anew from the rows, for the start: two scans."""
    connection.execute("DELETE FROM usage")
    connection.execute("INSERT INTO usage SELECT camera, kind, count(*), sum(bytes) FROM segment GROUP BY 1, 2")
    connection.execute(
        """INSERT INTO usage SELECT alert.camera, 'evidence', count(*), sum(evidence.bytes) FROM evidence
           JOIN alert ON alert.id = evidence.alert WHERE evidence.state = 'ready' GROUP BY alert.camera"""
    )


@dataclass(frozen=True, slots=True)
class WrittenHour:
    """Amount written in one hour of the recording: bytes, and seconds of video (0 for evidence)."""

    hour: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WriteRates:
    """Amounts written in the last LOOK_BACK_HOURS: hours by camera and class, and when the first of all began."""

    hours: dict[tuple[str, StorageClass], tuple[WrittenHour, ...]]
    now: float

    def rate(self, camera: str, what: StorageClass) -> float | None:
        """Bytes a second of video of a recorded class, as `trimmed_rate` reckons; None: not yet known."""
        return trimmed_rate(self.hours.get((camera, what), ()))

    def evidence_rate(self, camera: str) -> float | None:
        """Bytes of evidence a second, quiet hours included; None: not yet known."""
        watched_s = self.watched_s
        if watched_s < EVIDENCE_AFTER_S:
            return None
        return sum(hour.bytes for hour in self.hours.get((camera, "evidence"), ())) / watched_s

    @property
    def watched_s(self) -> float:
        """Seconds since the first hour in which anything was written, at most LOOK_BACK_HOURS."""
        first = min((hour.hour for hours in self.hours.values() for hour in hours), default=None)
        if first is None:
            return 0.0
        return max(0.0, min(self.now - first * HOUR_S, LOOK_BACK_HOURS * HOUR_S))

    def seconds(self, camera: str, what: StorageClass) -> float:
        """Seconds of video in these hours."""
        return sum(hour.seconds for hour in self.hours.get((camera, what), ()))


def read_write_rates(connection: sqlite3.Connection, now: float) -> WriteRates:
    """Return the amounts written in the last LOOK_BACK_HOURS before `now`."""
    first = int(now / HOUR_S) - LOOK_BACK_HOURS + 1
    found: dict[tuple[str, StorageClass], list[WrittenHour]] = {}
    rows = connection.execute("SELECT * FROM written WHERE hour BETWEEN ? AND ? ORDER BY hour", (first, now / HOUR_S))
    for row in rows:
        if row["class"] in STORAGE_CLASSES:
            found.setdefault((row["camera"], row["class"]), []).append(
                WrittenHour(row["hour"], row["bytes"], row["seconds"])
            )
    return WriteRates({key: tuple(hours) for key, hours in found.items()}, now)


def trimmed_rate(hours: tuple[WrittenHour, ...]) -> float | None:
    """Bytes a second of video; None: of less than RATE_AFTER_S of video it is not yet known.

    Only recorded seconds count, so that a camera that was away does not seem cheap. With `_TRIM_FROM` hours or more the
    busiest and the quietest are left out: one hour of snow or of a covered lens is not the day.
    """
    known = [hour for hour in hours if hour.seconds > 0]
    if sum(hour.seconds for hour in known) < RATE_AFTER_S:
        return None
    if len(known) >= _TRIM_FROM:
        known = sorted(known, key=lambda hour: hour.bytes / hour.seconds)[1:-1]
    return sum(hour.bytes for hour in known) / sum(hour.seconds for hour in known)
