"""Keep reports of trials of candidates on disk, and act on an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.canary.judge import Judgement, RunCosts
from appliance.media.atomic_file import write_file
from appliance.store.paths import PROOFS

Source = Literal["recording", "live"]
KEPT_MAX = 20  # reports of some 10 kB, the newest


@dataclass(frozen=True, slots=True)
class DifferingFrame:
    """A frame in which one network is sure of an object that the other does not find."""

    camera: str
    t: float
    kind: str
    found: str


@dataclass(frozen=True, slots=True)
class ProofReport:
    """A trial as it is kept. frames: that both examined; footage_s, wall_s: seconds of recording, and of the clock.

    source: live: they were examined as they came. costs: of the network in force and of the candidate, where measured.
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
    source: Source = "recording"
    costs: tuple[RunCosts, RunCosts] | None = None


PROOF_REPORT: TypeAdapter[ProofReport] = TypeAdapter(ProofReport)


def apply_outcome(store: BundleStore, ref: BundleRef, report: ProofReport) -> str:
    """Do what follows from the outcome of a trial, and return it in words. Raise ModelError, PreconditionError.

    A worse one is quarantined, and the one before comes back wherever it is in force. A better one is put in force on
    probation. One that is on probation, and is shown to lose little of what the one before finds in what was recorded
    since, is proven, where it is in force; of live frames the core says so, which counts its answers, too.
    """
    outcome, table = report.judgement.outcome, store.in_force()
    if outcome == "worse":
        store.quarantine(ref, "; ".join(report.judgement.reasons))
        return f"{ref} is in quarantine, and is not in force anywhere"
    states = {camera: slot.state for camera, slot in table.pointers.items() if slot.bundle == ref}
    waiting = [camera for camera, state in states.items() if state == "probation"]
    if waiting and report.source == "recording":
        if not report.judgement.kept:
            return f"{ref} stays on probation: {'; '.join(report.judgement.lacking)}"
        for camera in waiting:
            store.settle(camera, proven=True)
        return f"{ref} is proven on {', '.join(each or 'all cameras' for each in waiting)}"
    if states:
        return ""
    if outcome == "better":
        store.put_in_force(ref, state="probation")
        return f"{ref} is in force on probation: try it again on what it has recorded"
    return ""


class ProofStore:
    """The last trials of each candidate, on recording and live, a file each in the storage folder.

    Any thread may read; one writes.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / PROOFS

    def put(self, report: ProofReport) -> None:
        """Keep a report in place of an older one of this candidate. Raise DiskWriteError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._path(report.candidate, report.source), PROOF_REPORT.dump_json(report, indent=1))
        for old in self.all()[KEPT_MAX:]:
            self._path(old.candidate, old.source).unlink(missing_ok=True)

    def all(self) -> list[ProofReport]:
        """Return all reports, the newest first; one that cannot be read is left out."""
        found = filter(None, map(_read, self._folder.glob("*.json")))
        return sorted(found, key=lambda each: -each.made_t)

    def of(self, candidate: str, source: Source = "recording") -> ProofReport | None:
        """Return the last trial of a candidate, on recording or live; None: it was not tried."""
        report = _read(self._path(candidate, source))
        return report if report is not None and report.candidate == candidate else None

    def forget(self, candidate: str) -> None:
        """Delete the trial on the recording of a candidate that was replaced."""
        self._path(candidate, "recording").unlink(missing_ok=True)

    def agrees(self, ref: BundleRef) -> bool:
        """Return True if live frames have shown that a bundle loses little of what the network before it finds."""
        report = self.of(str(ref), "live")
        return report is not None and report.judgement.kept and report.judgement.outcome != "worse"

    def _path(self, candidate: str, source: Source) -> Path:
        live = ".live" if source == "live" else ""
        return self._folder / f"{candidate.replace('/', '_')}{live}.json"


def _read(path: Path) -> ProofReport | None:
    try:
        return PROOF_REPORT.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
