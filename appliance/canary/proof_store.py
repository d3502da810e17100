"""Keep on disk what networks found in the same live frames, and reports of trials of candidates; act on an outcome."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from appliance.base.json_lines import AppendOnlyFile, whole_bytes
from appliance.base.local_files import write_file
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.canary.candidate_comparison import (
    CandidateJudge,
    Judgement,
    PairedObject,
    RunCosts,
    SurveyedFrame,
    paired_objects,
)
from appliance.store.paths import PROOFS
from appliance.types import iou

Source = Literal["recording", "live"]
KEPT_MAX = 20  # reports of some 10 kB, the newest
FRAMES_MAX = 20_000  # a frame in 5 s: 28 hours, so a day and a night; 8 MB
SHOWN_MAX = 60  # frames that differ, in one report; of live ones the newest
STANDS_S = 3600.0  # an object that stays where it is counts once in so long
STANDS_IOU_MIN = 0.7  # of its box and the one that counted
STANDING_MAX = 64  # objects of a camera that may stand still: those seen last

logger = logging.getLogger(__name__)


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


def apply_outcome(
    store: BundleStore, ref: BundleRef, report: ProofReport, cameras: Collection[str] | None = None
) -> str:
    """Do what follows from the outcome of a trial, and return it in words. Raise ModelError, PreconditionError.

    A worse one is quarantined, and the one before comes back wherever it is in force. A better one is put in force on
    probation. One that is on probation, and is shown to lose little of what the one before finds in what was recorded
    since, is proven, where it is in force; of live frames the core says so, which counts its answers, too.
    cameras: those that were chosen for the trial, which proves it on no other; None: all were.
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
        tried = [each for each in waiting if cameras is None or each in cameras]
        if not tried:
            return f"{ref} stays on probation: it was tried on {', '.join(cameras or ())} alone"
        for camera in tried:
            store.settle(camera, proven=True)
        return f"{ref} is proven on {', '.join(each or 'all cameras' for each in tried)}"
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
        kept = report.candidate, report.source  # it stays also by a clock that was set back
        for old in [each for each in self.all() if (each.candidate, each.source) != kept][KEPT_MAX - 1 :]:
            self._path(old.candidate, old.source).unlink(missing_ok=True)
            if old.source == "live" and old.candidate != report.candidate:
                file_of(self._folder, old.candidate).unlink(missing_ok=True)

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

    def keep_only(self, candidate: str, networks: tuple[str, str]) -> None:
        """Delete the live trial of a candidate that compared other networks than these, as what was in force before."""
        found = self.of(candidate, "live")
        if found is not None and found.networks != networks:
            self._path(candidate, "live").unlink(missing_ok=True)

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


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """A frame that both networks examined. old: the trusted network, or the one in force; new: the candidate."""

    camera: str
    old: SurveyedFrame
    new: SurveyedFrame


_FRAME: TypeAdapter[LiveFrame] = TypeAdapter(LiveFrame)


class LiveEvidence:
    """Owner of the file of one candidate. State: the judge, and objects that stand still. One thread."""

    def __init__(self, path: Path, networks: tuple[str, str]) -> None:
        """Go on with what is in the file if it compares these networks (old, new); else begin anew. Raise OSError."""
        self._path, self._networks = path, networks
        self._judge = CandidateJudge()
        self._standing: defaultdict[str, list[PairedObject]] = defaultdict(list)
        self._differing: deque[DifferingFrame] = deque(maxlen=SHOWN_MAX)
        self._first_t = self._last_t = 0.0
        self.frames = 0
        self._open()

    @property
    def is_full(self) -> bool:
        """Return True if the limit of frames is reached."""
        return self.frames >= FRAMES_MAX

    def add(self, frame: LiveFrame) -> None:
        """Keep a frame and take what follows from it. Raise OSError."""
        kept = whole_bytes(self._path)  # not what a full disk left of the last line: this one would join it
        with contextlib.closing(AppendOnlyFile(self._path, kept)) as file:
            file.write(_FRAME.dump_json(frame) + b"\n")
        self._take(frame)

    def verdict(self, old: RunCosts, new: RunCosts) -> Judgement:
        """Return the judgement so far. old, new: the cost of both networks."""
        self._judge.add_costs(old, new)
        return self._judge.verdict()

    def report(self, candidate: str, made_t: float, old: RunCosts, new: RunCosts) -> ProofReport:
        """Return the same as a report for the page."""
        return ProofReport(
            candidate=candidate, made_t=made_t, judgement=self.verdict(old, new), networks=self._networks,
            frames=self.frames, footage_s=self._last_t - self._first_t, wall_s=0.0, differing=tuple(self._differing),
            source="live", costs=(old, new),
        )  # fmt: skip

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        head = "\t".join(self._networks).encode()
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        kept = lines[:-1]  # what follows the last line's end is torn, or nothing; `add` cuts it off
        if not kept or kept[0] != head:
            self._path.write_bytes(head + b"\n")
            return
        for line in kept[1:]:
            try:
                self._take(_FRAME.validate_json(line))
            except ValidationError:  # a disk that lost a block
                logger.warning("%s: a line is damaged, and left out", self._path)

    def _take(self, frame: LiveFrame) -> None:
        self.frames += 1
        self._first_t, self._last_t = self._first_t or frame.old.t, frame.old.t
        self._judge.add_cpu(frame.old.cpu_ms, frame.new.cpu_ms)
        for pair in self._new_objects(frame):
            self._judge.add_object(pair)
            if pair.found != "both":
                self._differing.append(DifferingFrame(pair.camera, pair.t, pair.kind, pair.found))

    def _new_objects(self, frame: LiveFrame) -> Iterator[PairedObject]:
        """Yield the objects that did not stand there a while ago: a parked car is no new evidence each time."""
        standing = self._standing[frame.camera]
        for pair in paired_objects(frame.camera, frame.old, frame.new):
            stood = [
                other
                for other in standing
                if (other.kind, other.found) == (pair.kind, pair.found)
                and pair.t - other.t < STANDS_S and iou(pair.box, other.box) >= STANDS_IOU_MIN
            ]  # fmt: skip
            if not stood:
                yield pair
            for other in stood:  # who stays is seen again; who walks by is forgotten first
                standing.remove(other)
            standing += stood or [pair]
        del standing[:-STANDING_MAX]


def file_of(folder: Path, candidate: str) -> Path:
    """Return where the evidence about a candidate lies."""
    return folder / f"{candidate.replace('/', '_')}.frames"
