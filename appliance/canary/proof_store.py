"""Keep reports of trials of candidates on disk, and act on an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.canary.judge import Judgement
from appliance.media.atomic_file import write_file
from appliance.store.paths import PROOFS

KEPT_MAX = 20  # reports of some 10 kB, the newest


@dataclass(frozen=True, slots=True)
class DifferingFrame:
    """A frame in which one of both is sure of an object that the other does not see."""

    camera: str
    t: float
    kind: str
    found: str


@dataclass(frozen=True, slots=True)
class ProofReport:
    """A trial as it is kept. frames: that both examined; footage_s, wall_s: seconds of recording, and of the clock.

    cameras: what each camera's own recording says, without scenarios and the costs of the whole.
    """

    candidate: str
    made_t: float
    judgement: Judgement
    networks: tuple[str, str]
    frames: int
    footage_s: float
    wall_s: float
    differing: tuple[DifferingFrame, ...]
    unread: tuple[str, ...] = ()
    cameras: Mapping[str, Judgement] = field(default_factory=dict)


PROOF_REPORT: TypeAdapter[ProofReport] = TypeAdapter(ProofReport)


def apply_outcome(store: BundleStore, ref: BundleRef, report: ProofReport) -> str:
    """Do what follows from the outcome of a trial, and return it in words. Raise ModelError, PreconditionError.

    A worse one is quarantined, and the one before comes back wherever it is in force. A better one is put in force on
    probation. One that is on probation and not worse on what was recorded since is proven, where it is in force.
    """
    outcome, table = report.judgement.outcome, store.in_force()
    slot = table.everywhere
    if outcome == "worse":
        store.quarantine(ref, "; ".join(report.judgement.reasons))
        return f"{ref} is in quarantine, and is not in force anywhere"
    if slot is not None and slot.bundle == ref:
        if slot.state == "probation":
            store.settle(proven=True)
            return f"{ref} is proven"
        return ""
    first = [name for name, own in table.cameras.items() if own.bundle == ref and own.state == "probation"]
    if first:
        for camera in first:
            store.settle(camera, proven=True)
        return f"{ref} is proven on {', '.join(first)}"
    if outcome == "better":
        store.put_in_force(ref, state="probation")
        return f"{ref} is in force on probation: try it again on what it has recorded"
    return ""


class ProofStore:
    """The last trial of each candidate, a file each in the storage folder. Any thread may read; one writes."""

    def __init__(self, root: Path) -> None:
        self._folder = root / PROOFS

    def put(self, report: ProofReport) -> None:
        """Keep a report in place of an older one of this candidate. Raise DiskWriteError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._path(report.candidate), PROOF_REPORT.dump_json(report, indent=1))
        for old in self.all()[KEPT_MAX:]:
            self._path(old.candidate).unlink(missing_ok=True)

    def all(self) -> list[ProofReport]:
        """Return all reports, the newest first; one that cannot be read is left out."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(PROOF_REPORT.validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                continue
        return sorted(found, key=lambda each: -each.made_t)

    def of(self, candidate: str) -> ProofReport | None:
        """Return the last trial of a candidate; None: it was not tried."""
        return next((each for each in self.all() if each.candidate == candidate), None)

    def _path(self, candidate: str) -> Path:
        return self._folder / f"{candidate.replace('/', '_')}.json"
