"""Deletes what is too old or too much, oldest first, and never what an alert still needs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.clock import StepWatch
from appliance.config import Storage
from appliance.errors import StoreError
from appliance.store.database import Database
from appliance.store.paths import SEGMENTS, inside
from appliance.store.segments import Segments
from appliance.store.thinning import thin_boxes, thin_evidence, thin_notes
from appliance.telemetry import Repeats

HEADROOM = 1.2  # the recorder stops at disk_free_min_mb, so there is to be more
SWEEP_EVERY_S = 3600.0
ROLL_S_MAX = 65.0  # pre-roll, post-roll and escalation span are at most 60 s
BATCH = 500
BATCHES_A_RUN = 20
WRITING_S_MAX = 600.0
CLOCK_SETTLE_S = 600.0

# What the alerts that are not finished still need of the recording.
HELD = f"""WITH held AS (
    SELECT camera, t_start - {ROLL_S_MAX} AS t0, coalesce(t_end, 9e15) + {ROLL_S_MAX} AS t1 FROM alert
    WHERE t_end IS NULL OR id IN (SELECT alert FROM evidence WHERE state = 'waiting')
    OR id IN (SELECT alert FROM escalation WHERE state = 'waiting'))"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What one run deleted. `short_bytes`: what is still missing to the limits because the rest is needed."""

    segments: int = 0
    segment_bytes: int = 0
    evidence_files: int = 0
    evidence_bytes: int = 0
    boxes: int = 0
    refused: int = 0
    short_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Old:
    path: str
    bytes: int


class Retention:
    """Keeps the storage folder within its limits: age, size, free space.

    Owner: one thread that calls `run_once()` now and then. State: when it last looked, so that a clock that was
    stepped does not pass for age. Invariant: it deletes only below segments/ and evidence/; alerts, verdicts and
    audit rows stay.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        storage: Storage,
        *,
        free_bytes: Callable[[Path], int] = lambda root: shutil.disk_usage(root).free,
    ) -> None:
        self._db = db
        self._root = root
        self._storage = storage
        self._free_bytes = free_bytes
        self._clock = db.clock
        self._steps = StepWatch(self._clock)
        self._distrust_until = float("-inf")
        self._swept_at = self._clock.monotonic()
        self._repeats = Repeats(logger, self._clock, every_s=600.0)
        self.last = RetentionReport()

    def run_once(self) -> RetentionReport:
        """Delete what is beyond the limits, at most BATCHES_A_RUN batches. Raises StoreError."""
        deleted, refused = self._delete_old() if self._clock_is_trusted() else ([], 0)
        for _ in range(BATCHES_A_RUN):
            excess = self._excess()
            more, bad = self._delete(self._candidates(float("inf")), excess) if excess > 0 else ([], 0)
            deleted, refused = deleted + more, refused + bad
            if not more:
                break
        days_s = self._storage.evidence_days * 86400
        evidence = thin_evidence(self._db, self._root, days_s) if self._trusted else []
        if self._trusted:
            thin_notes(self._db, days_s)
        self.last = RetentionReport(
            segments=len(deleted),
            segment_bytes=sum(each.bytes for each in deleted),
            evidence_files=len(evidence),
            evidence_bytes=sum(evidence),
            boxes=thin_boxes(self._db, self._storage.keep_hours * 3600, HELD) if self._trusted else 0,
            refused=refused,
            short_bytes=int(max(0, self._excess())),
        )
        self._sweep()
        self._say()
        return self.last

    @property
    def _trusted(self) -> bool:
        return self._clock.monotonic() >= self._distrust_until

    def _clock_is_trusted(self) -> bool:
        """False for ten minutes after the wall clock was stepped: a wrong date must not empty the disk at once."""
        step_s = self._steps.step_s()
        if step_s:
            logger.warning("the clock was stepped by %+.0f s: nothing is deleted for its age", step_s)
            self._distrust_until = self._clock.monotonic() + CLOCK_SETTLE_S
        return self._trusted

    def _delete_old(self) -> tuple[list[_Old], int]:
        deleted: list[_Old] = []
        refused = 0
        before_t = self._clock.now() - self._storage.keep_hours * 3600
        for _ in range(BATCHES_A_RUN):
            more, bad = self._delete(self._candidates(before_t), float("inf"))
            deleted, refused = deleted + more, refused + bad
            if not more:
                break
        return deleted, refused

    def _excess(self) -> float:
        """Bytes by which the limits are exceeded; the larger of the two."""
        with self._db.read() as connection:
            used: float = connection.execute(
                "SELECT (SELECT total(bytes) FROM segment) + (SELECT total(bytes) FROM evidence)"
            ).fetchone()[0]
        lacking = self._storage.disk_free_min_mb * 1e6 * HEADROOM - self._free_bytes(self._root)
        return max(used - self._storage.size_max_gb * 1e9, lacking)

    def _candidates(self, before_t: float) -> list[_Old]:
        """The oldest segments that ended before `before_t`, that are not being written and that no alert needs."""
        with self._db.read() as connection:
            rows = connection.execute(
                f"""{HELD} SELECT path, bytes FROM segment WHERE t_end < ? AND (complete = 1 OR t_end < ?)
                    AND NOT EXISTS (SELECT 1 FROM held WHERE held.camera = segment.camera
                                    AND segment.t_end > held.t0 AND segment.t_start < held.t1)
                    ORDER BY t_end LIMIT {BATCH}""",
                (min(before_t, 9e15), self._clock.now() - WRITING_S_MAX),
            )
            return [_Old(row["path"], row["bytes"]) for row in rows]

    def _delete(self, candidates: list[_Old], enough: float) -> tuple[list[_Old], int]:
        """Delete candidates until `enough` bytes are freed: files first, so that a kill leaves rows, not orphans."""
        deleted: list[_Old] = []
        dropped: list[str] = []
        refused = 0
        freed = 0
        for each in candidates:
            if freed >= enough:
                break
            try:
                inside(self._root, each.path, SEGMENTS).unlink(missing_ok=True)
                deleted.append(each)
                freed += each.bytes
            except StoreError as error:
                logger.warning("a segment row was dropped, its file left alone: %s", error)
                refused += 1
            except OSError as error:
                logger.warning("a segment cannot be deleted: %s", error)
                refused += 1
                continue
            dropped.append(each.path)
        with self._db.transaction(durable=False) as connection:
            connection.executemany("DELETE FROM segment WHERE path = ?", [(path,) for path in dropped])
        return deleted, refused

    def _sweep(self) -> None:
        if self._clock.monotonic() - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = self._clock.monotonic()
            Segments(self._db).sweep_orphans(self._root)

    def _say(self) -> None:
        if self.last.segments or self.last.evidence_files:
            logger.info("deleted %d segments and %d evidence files", self.last.segments, self.last.evidence_files)
        if self.last.short_bytes:
            self._repeats.report(
                f"{self.last.short_bytes // 1_000_000} MB more should be free, but what is left is needed by alerts, "
                "being written, or not ours"
            )
