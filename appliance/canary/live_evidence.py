"""Keeps what a candidate and the network in force found in the same live frames over restarts, and judges it.

The file has a line of JSON for each frame; the first line names the networks that are compared. A line that a power
cut truncated is left out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from appliance.base.geometry import iou
from appliance.canary.judge import CandidateJudge, Judgement, PairedObject, RunCosts
from appliance.canary.paired_frames import SurveyedFrame, paired_objects
from appliance.canary.proof_store import DifferingFrame, ProofReport

logger = logging.getLogger(__name__)

FRAMES_MAX = 20_000  # a frame in 5 s: 28 hours, so a day and a night; 8 MB
SHOWN_MAX = 60  # frames that differ, in one report: the newest
STANDS_S = 3600.0  # an object that stays where it is counts once in so long
STANDS_IOU_MIN = 0.7  # of its box and the one that counted


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
        self._standing: deque[PairedObject] = deque(maxlen=64)
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
        with self._path.open("ab") as file:
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
        kept = lines[:-1]  # what follows the last line's end is torn, or nothing
        if not kept or kept[0] != head:
            self._path.write_bytes(head + b"\n")
            return
        if lines[-1]:
            with self._path.open("r+b") as file:
                file.truncate(sum(len(each) + 1 for each in kept))
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
            self._standing.append(pair)
            if pair.found != "both":
                self._differing.append(DifferingFrame(pair.camera, pair.t, pair.kind, pair.found))

    def _new_objects(self, frame: LiveFrame) -> Iterator[PairedObject]:
        """Yield the objects that did not stand there a while ago: a parked car is no new evidence each time."""
        for pair in paired_objects(frame.camera, frame.old, frame.new):
            stood = any(
                other.camera == pair.camera and other.kind == pair.kind and other.found == pair.found
                and pair.t - other.t < STANDS_S and iou(pair.box, other.box) >= STANDS_IOU_MIN
                for other in self._standing
            )  # fmt: skip
            if not stood:
                yield pair


def file_of(folder: Path, candidate: str) -> Path:
    """Return where the evidence about a candidate lies."""
    return folder / f"{candidate.replace('/', '_')}.frames"
