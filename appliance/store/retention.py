"""Deletes what is too old or too much, by the declared policy, and never what an alert still needs.

The policy (docs/storage.md): the oldest of the continuous recording first; then the oldest evidence that a person has
reviewed and of which nothing is to be sent; then nothing, and the recorder pauses. What was deleted is in the ledger.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.clock import StepWatch
from appliance.config import Camera, Storage
from appliance.store.database import Database
from appliance.store.decisions import thin_decisions
from appliance.store.deletions import Deletions, Reason
from appliance.store.held import HELD
from appliance.store.limits import Limits
from appliance.store.pruning import Pruner
from appliance.store.segments import Segments
from appliance.store.thinning import shed_evidence, thin_boxes, thin_evidence, thin_notes
from appliance.store.usage import Usage, usage_of
from appliance.telemetry import Repeats

HEADROOM = 1.2  # the recorder stops at disk_free_min_mb, so there is to be more
SWEEP_EVERY_S = 3600.0
CLOCK_SETTLE_S = 600.0

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


class Retention:
    """Keeps the storage folder within its limits: age, quotas, size, free space.

    Owner: one thread that calls `run_once()` now and then. State: when it last looked, so that a clock that was
    stepped does not pass for age. Invariant: it deletes only below segments/ and evidence/; alerts, verdicts and
    audit rows stay.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        storage: Storage,
        cameras: Mapping[str, Camera] | None = None,
        *,
        free_bytes: Callable[[Path], int] = lambda root: shutil.disk_usage(root).free,
    ) -> None:
        self._db = db
        self._root = root
        self._limits = Limits.of(storage, cameras or {})
        self._ring_in_memory = storage.preroll_dir is not None
        self._keep_boxes_s = storage.keep_hours * 3600
        self._free_bytes = free_bytes
        self._clock = db.clock
        self._steps = StepWatch(self._clock)
        self._distrust_until = float("-inf")
        self._swept_at = self._clock.monotonic()
        self._repeats = Repeats(logger, self._clock, every_s=600.0)
        self._deletions = Deletions(db)
        self._pruner = Pruner(db, root, self._deletions)
        self._evidence: list[int] = []
        self.last = RetentionReport()

    def run_once(self) -> RetentionReport:
        """Delete what is beyond the limits, at most `BATCHES_A_RUN` batches of segments. Raises StoreError."""
        self._pruner.begin()
        self._evidence = []
        trusted = self._clock_is_trusted()
        if trusted:
            self._by_age()
        self._by_quota()
        self._for_room()
        self.last = RetentionReport(
            segments=self._pruner.files,
            segment_bytes=self._pruner.bytes,
            evidence_files=len(self._evidence),
            evidence_bytes=sum(self._evidence),
            boxes=thin_boxes(self._db, self._keep_boxes_s, HELD) if trusted else 0,
            refused=self._pruner.refused,
            short_bytes=int(max(0, self._over_size(), self._lacking())),
        )
        self._sweep()
        self._say()
        return self.last

    def _clock_is_trusted(self) -> bool:
        """False for ten minutes after the wall clock was stepped: a wrong date must not empty the disk at once."""
        step_s = self._steps.step_s()
        if step_s:
            logger.warning("the clock was stepped by %+.0f s: nothing is deleted for its age", step_s)
            self._distrust_until = self._clock.monotonic() + CLOCK_SETTLE_S
        return self._clock.monotonic() >= self._distrust_until

    def _by_age(self) -> None:
        now = self._clock.now()
        for camera in self._usage().cameras("continuous"):
            self._pruner.prune("age", before_t=now - self._limits.camera(camera).keep_s, camera=camera)
        self._evidence += thin_evidence(self._db, self._root, self._deletions, self._limits.evidence_s)
        thin_notes(self._db, self._limits.evidence_s)
        thin_decisions(self._db, self._limits.evidence_s)
        self._deletions.forget_old()

    def _by_quota(self) -> None:
        usage, limits = self._usage(), self._limits
        for camera, own in limits.cameras.items():
            if own.continuous_bytes is not None:
                over = usage.bytes("continuous", camera) - own.continuous_bytes
                self._pruner.prune("camera_quota", enough=over, camera=camera)
            if own.evidence_bytes is not None:
                self._shed(usage.bytes("evidence", camera) - own.evidence_bytes, "camera_quota", camera)
        usage = self._usage()
        if limits.continuous_bytes is not None:
            self._pruner.prune("quota", enough=usage.bytes("continuous") - limits.continuous_bytes)
        if limits.evidence_bytes is not None:
            self._shed(usage.bytes("evidence") - limits.evidence_bytes, "quota")

    def _for_room(self) -> None:
        self._make_room("size", self._over_size())
        self._make_room("disk", self._lacking())

    def _make_room(self, reason: Reason, excess: float) -> None:
        """Of evidence only what no recording could make up for; not asked again in between, for a disk may be late to
        tell of what was freed."""
        freed = self._pruner.prune(reason, enough=excess)
        if not self._pruner.tired:
            self._shed(excess - freed, reason)

    def _shed(self, enough: float, reason: Reason, camera: str | None = None) -> None:
        if enough > 0:
            self._evidence += shed_evidence(self._db, self._root, self._deletions, enough, reason, camera)

    def _usage(self) -> Usage:
        with self._db.read() as connection:
            return usage_of(connection)

    def _over_size(self) -> float:
        usage = self._usage()
        ring = 0 if self._ring_in_memory else usage.bytes("pre_roll")
        return usage.bytes() + ring - self._limits.size_bytes

    def _lacking(self) -> float:
        return self._limits.free_bytes_min * HEADROOM - self._free_bytes(self._root)

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
                "not reviewed, being written, or not ours"
            )
