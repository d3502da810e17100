"""Deletes what exceeds the limits of age and size, and never what an alert still needs.

The policy (docs/storage.md): the oldest of the continuous recording first; then the oldest evidence that a person has
reviewed and of which nothing is to be sent; then nothing, and the recorder pauses. The ledger holds what was deleted.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.base.clock import ClockStepDetector
from appliance.base.errors import StoreError
from appliance.base.telemetry import LogThrottle
from appliance.config import CameraConfig, StorageConfig
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.decisions import prune_decisions
from appliance.store.deletions import HELD, DeletionLedger, DeletionReason, SegmentPruner
from appliance.store.escalations import UNSETTLED, in_states
from appliance.store.exports import delete_old_exports
from appliance.store.paths import EVIDENCE, inside
from appliance.store.quotas import StorageLimits, StorageUsage, read_usage
from appliance.store.segments import sweep_orphans
from appliance.store.users import AccessLog

logger = logging.getLogger(__name__)

REMOVED_BY_PERSON = "a person deleted the alert"
REMOVED_FOR_ROOM = "removed to make room, after it was reviewed"


@dataclass(frozen=True, slots=True)
class RetentionTuning:
    """How much one run does, and how careful it is.

    Attributes:
        sweep_every_s: files without a row are rare, and looking for them reads every folder.
        evidence_every_s: all alerts are looked through for evidence that is too old: 0.7 s with a million of them.
        clock_settle_s: for so long after a step of the wall clock nothing is deleted for its age.
        boxes_per_batch: rows of one camera in one transaction.
        alerts_per_run: alerts whose evidence one run deletes.
        written_kept_s: of the hourly sums; rates are made of the last 24 hours.
    """

    sweep_every_s: float = 3600.0
    evidence_every_s: float = 60.0
    clock_settle_s: float = 600.0
    boxes_per_batch: int = 20_000
    alerts_per_run: int = 200
    written_kept_s: float = 72 * 3600


TUNING = RetentionTuning()

# There is evidence to delete, and no escalation of the alert is under way.
_DONE = f"""EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'ready')
    AND NOT EXISTS (SELECT 1 FROM escalation WHERE alert = alert.id
                    AND {in_states(UNSETTLED)})"""

# The cameras in the boxes table, by hopping along its primary key.
_CAMERAS = """WITH RECURSIVE hop (camera) AS (SELECT min(camera) FROM boxes UNION ALL
    SELECT (SELECT min(camera) FROM boxes WHERE camera > hop.camera) FROM hop WHERE hop.camera IS NOT NULL)
    SELECT camera FROM hop WHERE camera IS NOT NULL"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """Deletions of one run. `short_bytes`: bytes still above the limits because the rest is needed."""

    segments: int = 0
    segment_bytes: int = 0
    evidence_files: int = 0
    evidence_bytes: int = 0
    boxes: int = 0
    refused: int = 0
    short_bytes: int = 0


class Retention:
    """Keeps the storage folder within its limits: age, quotas, size, free space.

    Owner: one thread that calls `run_once()` now and then. State: the clocks at its last run, so that a clock that was
    stepped does not pass for age. Invariant: it deletes only below segments/, evidence/ and exports/; alerts, verdicts
    and audit rows stay.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        storage: StorageConfig,
        cameras: Mapping[str, CameraConfig] | None = None,
        *,
        free_bytes: Callable[[Path], int] = lambda root: shutil.disk_usage(root).free,
        rows_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """rows_wait: whether rows of segments that are on disk wait in memory, as the database cannot be written."""
        self._db = db
        self._root = root
        self._limits = StorageLimits.of(storage, cameras or {})
        self._undo_delete_s = storage.undo_delete_hours * 3600
        self._keep_access_s = storage.access_log_days * 86400
        self._keep_boxes_s = storage.keep_hours * 3600
        self._free_bytes = free_bytes
        self._rows_wait = rows_wait
        self._clock = db.clock
        self._steps = ClockStepDetector(self._clock)
        self._distrust_until = float("-inf")
        self._swept_at = self._clock.monotonic()
        self._evidence_at = float("-inf")
        self._repeats = LogThrottle(logger, self._clock, every_s=600.0)
        self._deletions = DeletionLedger(db)
        self._pruner = SegmentPruner(db, root, self._deletions)
        self._evidence: list[int] = []
        self.last = RetentionReport()

    def run_once(self) -> RetentionReport:
        """Delete what is beyond the limits, at most `BATCHES_PER_RUN` batches of segments. Raises StoreError."""
        self._pruner.begin()
        self._evidence = []
        trusted = self._clock_is_trusted()
        if trusted:
            self._by_age()
        self._by_quota()
        self._make_room("size", self._over_size())
        self._make_room("disk", self._lacking())
        self.last = RetentionReport(
            segments=self._pruner.files,
            segment_bytes=self._pruner.bytes,
            evidence_files=len(self._evidence),
            evidence_bytes=sum(self._evidence),
            boxes=prune_boxes(self._db, self._keep_boxes_s, HELD) if trusted else 0,
            refused=self._pruner.refused,
            short_bytes=int(max(0, self._over_size(), self._lacking())),
        )
        self._sweep()
        self._log()
        return self.last

    def _clock_is_trusted(self) -> bool:
        """Return False for ten minutes after the wall clock was stepped: a wrong date must not empty the disk."""
        step_s = self._steps.step_s()
        if step_s:
            logger.warning("the clock was stepped by %+.0f s: nothing is deleted for its age", step_s)
            self._distrust_until = self._clock.monotonic() + TUNING.clock_settle_s
        return self._clock.monotonic() >= self._distrust_until

    def _by_age(self) -> None:
        now = self._clock.now()
        for camera in self._usage().cameras("continuous"):
            self._pruner.prune("age", before_t=now - self._limits.camera(camera).keep_s, camera=camera)
        if self._clock.monotonic() >= self._evidence_at:
            old = delete_old_evidence(self._db, self._root, self._deletions, self._limits)
            self._evidence += old
            self._evidence_at = self._clock.monotonic() + (0 if old else TUNING.evidence_every_s)
        self._evidence += delete_unwanted_evidence(self._db, self._root, self._deletions, self._undo_delete_s)
        prune_side_rows(self._db, self._limits.evidence_s)
        prune_decisions(self._db, self._limits.evidence_s)
        self._deletions.forget_old()
        AccessLog(self._db).forget_old(self._keep_access_s)
        delete_old_exports(self._db, self._root, self._keep_access_s)

    def _by_quota(self) -> None:
        usage, limits = self._usage(), self._limits
        for camera, own in limits.cameras.items():
            if own.continuous_bytes is not None:
                over = usage.bytes("continuous", camera) - own.continuous_bytes
                self._pruner.prune("camera_quota", enough=over, camera=camera)
            if own.evidence_bytes is not None:
                self._free_evidence(usage.bytes("evidence", camera) - own.evidence_bytes, "camera_quota", camera)
        usage = self._usage()
        if limits.continuous_bytes is not None:
            self._pruner.prune("quota", enough=usage.bytes("continuous") - limits.continuous_bytes)
        if limits.evidence_bytes is not None:
            self._free_evidence(usage.bytes("evidence") - limits.evidence_bytes, "quota")

    def _make_room(self, reason: DeletionReason, excess: float) -> None:
        """Free `excess` bytes; delete evidence only for the part that no recording can free.

        The disk is not measured in between: it may report freed space late.
        """
        freed = self._pruner.prune(reason, enough=excess)
        if not self._pruner.exhausted:
            self._free_evidence(excess - freed, reason)

    def _free_evidence(self, enough: float, reason: DeletionReason, camera: str | None = None) -> None:
        if enough > 0:
            self._evidence += delete_reviewed_evidence(self._db, self._root, self._deletions, enough, reason, camera)

    def _usage(self) -> StorageUsage:
        with self._db.read() as connection:
            return read_usage(connection)

    def _over_size(self) -> float:
        usage = self._usage()
        ring = 0 if self._limits.ring_in_memory else usage.bytes("pre_roll")
        return usage.bytes() + ring - self._limits.size_bytes

    def _lacking(self) -> float:
        return self._limits.free_bytes_wanted - self._free_bytes(self._root)

    def _sweep(self) -> None:
        """Not while a file may only seem to have no row."""
        if self._clock.monotonic() - self._swept_at >= TUNING.sweep_every_s and not self._rows_wait():
            self._swept_at = self._clock.monotonic()
            sweep_orphans(self._db, self._root)

    def _log(self) -> None:
        if self.last.segments or self.last.evidence_files:
            logger.info("deleted %d segments and %d evidence files", self.last.segments, self.last.evidence_files)
        if self.last.short_bytes:
            self._repeats.report(
                f"{self.last.short_bytes // 1_000_000} MB more should be free, but what is left is needed by alerts, "
                "not reviewed, being written, or not ours"
            )


def prune_boxes(db: Database, keep_s: float, held: str) -> int:
    """Delete box rows older than their camera's continuous recording, or than `keep_s` if there is none; how many.

    held: a `WITH held AS (camera, t0, t1)` clause of what must stay. Bounded to one batch a camera.
    """
    deleted = 0
    cameras = [row["camera"] for row in db.rows(_CAMERAS)]
    for camera in cameras:
        with db.transaction(durable=False) as connection:
            cutoff_t = connection.execute(
                f"""{held} SELECT min(coalesce((SELECT min(t_start) FROM segment WHERE camera = :camera
                        AND kind = 'continuous'), :keep_t),
                    coalesce((SELECT min(t0) FROM held WHERE camera = :camera), 9e15))""",
                {"camera": camera, "keep_t": db.clock.now() - keep_s},
            ).fetchone()[0]
            gone = connection.execute(
                f"""DELETE FROM boxes WHERE camera = :camera AND t < min(:cutoff_t, coalesce(
                    (SELECT t FROM boxes WHERE camera = :camera ORDER BY t LIMIT 1 OFFSET {TUNING.boxes_per_batch}),
                    9e15))""",
                {"camera": camera, "cutoff_t": cutoff_t},
            )
            deleted += gone.rowcount
            connection.execute(
                """DELETE FROM activity WHERE camera = :camera AND minute < CAST(min(:cutoff_t, coalesce(
                    (SELECT min(t) FROM boxes WHERE camera = :camera), 9e15)) / 60 AS INTEGER)""",
                {"camera": camera, "cutoff_t": cutoff_t},
            )
    return deleted


def delete_old_evidence(db: Database, root: Path, deletions: DeletionLedger, limits: StorageLimits) -> list[int]:
    """Delete the evidence files of alerts that are too old, unless an escalation of theirs is still under way.

    The rows stay and say that it was removed. Returns the size of each file deleted.
    """
    alerts = db.rows(
        f"{_TOO_OLD} SELECT id, camera, keep_s FROM old WHERE {_DONE.replace('alert.id', 'old.id')} LIMIT :most",
        {**_ages(db, limits), "most": TUNING.alerts_per_run},
    )
    return [
        size
        for row in alerts
        for size in _remove_evidence(db, root, deletions, row, "age", f"removed after {row['keep_s'] / 86400:g} days")
    ]


# The alerts that are older than their evidence may be, each with the seconds that hold for it: those of the strictest
# zone of its events. A zone that the site file no longer has counts as the strictest of its camera.
_TOO_OLD = """WITH kept (camera, zone, s) AS (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
        json_extract(value, '$[2]') FROM json_each(:zones)),
    aged AS (SELECT id, camera, t_end, t_start, coalesce((SELECT min(coalesce(
            (SELECT s FROM kept WHERE kept.camera = event.camera AND kept.zone = event.zone),
            (SELECT s FROM kept WHERE kept.camera = event.camera AND kept.zone IS NULL), :usual_s))
            FROM event WHERE event.alert = alert.id), :usual_s) AS keep_s
        FROM alert WHERE t_end < :now - :least_s
        AND EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'ready')),
    old AS (SELECT * FROM aged WHERE t_end < :now - keep_s ORDER BY t_start)"""


def _ages(db: Database, limits: StorageLimits) -> dict[str, float | str]:
    """Return the values of `_TOO_OLD`."""
    usual_s = limits.evidence_s
    zones: list[tuple[str, str | None, float]] = []
    for camera, own in limits.cameras.items():
        if own.zones:
            strictest = min(each for each in own.zones.values() if each is not None)
            zones += [(camera, zone, usual_s if s is None else s) for zone, s in own.zones.items()]
            zones += [(camera, "", usual_s), (camera, None, strictest)]  # of a line; of a zone that is gone
    least_s = min([usual_s, *(s for _, _, s in zones)])
    return {"zones": to_json(zones), "usual_s": usual_s, "least_s": least_s, "now": db.clock.now()}


def evidence_beyond(db: Database, limits: StorageLimits) -> tuple[int, int]:
    """Return how many alerts have evidence that is older than these limits allow, and its bytes. Raise StoreError."""
    row = db.row(
        f"""{_TOO_OLD} SELECT count(DISTINCT old.id) AS n, total(bytes) AS bytes FROM old
            JOIN evidence ON evidence.alert = old.id AND state = 'ready'""",
        _ages(db, limits),
    )
    return int(row["n"]), int(row["bytes"])


def recording_beyond(db: Database, camera: str, keep_s: float) -> int:
    """Return the bytes of a camera's continuous recording that are older than `keep_s`. Raise StoreError."""
    row = db.row(
        "SELECT total(bytes) AS bytes FROM segment WHERE camera = ? AND kind = 'continuous' AND t_end < ?",
        (camera, db.clock.now() - keep_s),
    )
    return int(row["bytes"])


def delete_unwanted_evidence(db: Database, root: Path, deletions: DeletionLedger, older_s: float) -> list[int]:
    """Delete the evidence files of alerts that a person deleted more than `older_s` ago; return each deleted size.

    An alert with an escalation still under way keeps its files.
    """
    alerts = db.rows(
        f"""SELECT id, camera FROM alert WHERE deleted_t < ? AND t_end IS NOT NULL AND {_DONE}
            ORDER BY deleted_t LIMIT ?""",
        (db.clock.now() - older_s, TUNING.alerts_per_run),
    )
    return [size for row in alerts for size in _remove_evidence(db, root, deletions, row, "person", REMOVED_BY_PERSON)]


def delete_reviewed_evidence(
    db: Database,
    root: Path,
    deletions: DeletionLedger,
    enough: float,
    reason: DeletionReason,
    camera: str | None = None,
) -> list[int]:
    """Delete the evidence files of the oldest alerts until `enough` bytes are freed; return each deleted size.

    Only alerts that a person has reviewed and that have no escalation under way lose their files.
    """
    alerts = db.rows(
        f"""SELECT id, camera FROM alert WHERE review IS NOT NULL AND t_end IS NOT NULL AND {_DONE}
            AND NOT EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'waiting')
            AND (:camera IS NULL OR camera = :camera) ORDER BY t_start LIMIT :most""",
        {"camera": camera, "most": TUNING.alerts_per_run},
    )
    sizes: list[int] = []
    for row in alerts:
        if sum(sizes) >= enough:
            break
        sizes += _remove_evidence(db, root, deletions, row, reason, REMOVED_FOR_ROOM)
    return sizes


def delete_camera(db: Database, root: Path, camera: str) -> int:
    """Delete what a camera recorded, and the evidence of its alerts, because a person wants it; return the bytes.

    Segments that are still being written, and what an open alert or escalation needs, stay until they are too old.
    """
    deletions = DeletionLedger(db)
    pruner = SegmentPruner(db, root, deletions)
    freed = 0
    while pruner.prune("person", camera=camera):
        freed += pruner.bytes
        pruner.begin()
    freed += pruner.bytes
    with db.read() as connection:
        alerts = connection.execute(
            f"SELECT id, camera FROM alert WHERE camera = ? AND t_end IS NOT NULL AND {_DONE}", (camera,)
        ).fetchall()
    return freed + sum(
        size for row in alerts for size in _remove_evidence(db, root, deletions, row, "person", REMOVED_BY_PERSON)
    )


def _remove_evidence(
    db: Database, root: Path, deletions: DeletionLedger, alert: sqlite3.Row, reason: DeletionReason, words: str
) -> list[int]:
    """Inside one transaction, so that nothing is made or asked about meanwhile; nothing, if that was so before it.

    A file that the disk does not give up keeps its row, and is tried again.
    """
    sizes: list[int] = []
    stays: list[str] = []
    with db.transaction() as connection:
        if connection.execute(f"SELECT 1 FROM alert WHERE id = ? AND {_DONE}", (alert["id"],)).fetchone() is None:
            return sizes
        rows = connection.execute(
            "SELECT path, bytes, t_end FROM evidence WHERE alert = ? AND state = 'ready'", (alert["id"],)
        ).fetchall()
        for row in rows:
            try:
                file = inside(root, row["path"], EVIDENCE)
                file.unlink()
            except (StoreError, FileNotFoundError):
                continue
            except OSError as error:
                logger.warning("evidence cannot be deleted: %s", error)
                stays.append(row["path"])
                continue
            sizes.append(row["bytes"])
            deletions.add(alert["camera"], "evidence", reason, row["bytes"], row["t_end"])
            with contextlib.suppress(OSError):
                file.parent.rmdir()  # succeeds with the last one
        connection.execute(
            """UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ?
               WHERE alert = ? AND state = 'ready' AND path NOT IN (SELECT value FROM json_each(?))""",
            (words, alert["id"], to_json(stays)),
        )
        deletions.write(connection)
        bump_rev(db, connection, alert["id"])
    deletions.written()
    return sizes


def prune_side_rows(db: Database, older_s: float) -> None:
    """Delete held-back events and ended gaps older than `older_s`, sessions without boxes, and old counts."""
    before_t = db.clock.now() - older_s
    with db.transaction(durable=False) as connection:
        connection.execute("DELETE FROM event WHERE alert IS NULL AND t < ?", (before_t,))
        connection.execute("DELETE FROM gap WHERE t_end < ?", (before_t,))
        connection.execute(
            """DELETE FROM stream WHERE coalesce((SELECT min(t) FROM boxes WHERE camera = stream.camera), 9e15)
               > (SELECT min(t) FROM stream AS later WHERE later.camera = stream.camera AND later.t > stream.t)"""
        )
        connection.execute("DELETE FROM written WHERE hour < ?", ((db.clock.now() - TUNING.written_kept_s) / 3600,))
