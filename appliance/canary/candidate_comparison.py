"""Decides whether a candidate is better or worse than what is in force, or whether there is too little evidence.

It takes pairs: an object that one or both networks found in the same frame, the CPU time of both for it, what both did
with an expectation of a kept scenario. It answers *better*, *worse* or *not enough*. Each question is a sequential test
of a share: an e-value, the likelihood of a mixture of shares beyond the bound against the bound itself (H. Robbins,
1970; A. Ramdas et al., 2023). By Ville's inequality it exceeds 1/alpha with a probability of at most alpha however
often one looks, so evidence may be added as it comes. The chance that a candidate which keeps all bounds is called
worse is at most ALPHA, shared out evenly over the questions; so is that of calling one better that does not.

An object that only one network found is no proof of anything by itself: both may lose what hardly scores. Therefore a
candidate may lose up to LOST_MAX of what the other is sure of, in each part of the frame, by day and at night, of each
kind. An alert that a person or a judge called false counts for the candidate that leaves it out. Frames a second apart
show the same objects, so answers are less independent than the test takes them to be; the bounds leave room for that,
and `tests/unit/test_canary.py` measures how often equal networks are stopped.
Pairs: an object counts if one network gives it a calibrated score of SURE. The other has lost it if it finds none of
that kind with SEEN at that place. Pure; without numpy, for the core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from appliance.bundle.manifest import SCORE_KINDS
from appliance.types import Box, iou

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from appliance.types import Detections

ALPHA = 0.02  # chance of a wrong "worse", and of a wrong "better"
LOST_MAX = 0.15  # share of the objects that the other is sure of
GAINED_MAX = 0.35  # share of what either found that the candidate alone is sure of: half as many again
SHIFT_MAX = 0.6  # of log-odds on the common scale, in half of the objects: a threshold of .5 acts as one of .35 or .65
SLOWER_MAX, CHEAPER_MIN = 1.5, 0.8  # CPU time of an inference against the other's
MEMORY_SHARE_MAX, MEMORY_MORE_MB = 2.0, 48.0  # against the other's, and MiB more: both must be exceeded
ENERGY_SHARE_MAX = 1.5  # joules of the same frames
WARMER_MAX = 1.2  # CPU time of an inference against the other's, where the appliance is too hot already
LOAD_MAX = 0.85  # share of the detector's time that would be in use: beyond it cameras are overloaded
STRATUM_MIN = 5  # objects by day, and at night, before a candidate can be better
TESTS_MIN = 24  # strata, kinds and costs among which ALPHA is shared, at least
_GRID = 16  # shares of the mixture
Outcome = Literal["better", "worse", "not enough"]
Light = Literal["day", "night"]


@functools.cache  # a judge has dozens of tests of two bounds
def _steps(bound: float, side: Literal["above", "below"]) -> tuple[tuple[float, float], ...]:
    """Return by how much a hit, and a miss, moves the logarithm of the likelihood of each share beyond the bound."""
    room = 1 - bound if side == "above" else bound
    shares = [(k + 0.5) / _GRID * room for k in range(_GRID)]
    grid = [bound + each if side == "above" else each for each in shares]
    return tuple((math.log(p / bound), math.log((1 - p) / (1 - bound))) for p in grid)


class ShareTest:
    """Tests whether a share is beyond a bound. State: counts, and the largest e-value so far (its logarithm)."""

    def __init__(self, bound: float, side: Literal["above", "below"] = "above") -> None:
        self.n = self.hits = 0
        self.log_e_max = 0.0
        self._steps = _steps(bound, side)

    def add(self, hit: bool) -> None:
        """Take one more answer."""
        self.n += 1
        self.hits += hit
        logs = [self.hits * yes + (self.n - self.hits) * no for yes, no in self._steps]
        top = max(logs)
        log_e = top + math.log(sum(math.exp(each - top) for each in logs) / len(logs))
        self.log_e_max = max(self.log_e_max, log_e)

    def is_beyond(self, alpha: float) -> bool:
        """Return True if the share is beyond the bound, with a probability of error of at most `alpha`."""
        return self.log_e_max >= -math.log(alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedObject:
    """An object in a frame that both networks examined.

    place: ninth of the frame, 0..8, in which its foot stands. found: who is sure of it while the other does not see
    it even weakly, or both. shift: by how much the candidate's score is higher, in log-odds on the common scale; None:
    not both found it. truth: whether it is what it is called, as a person or a judge said; None: nobody did. t: UTC
    seconds, for who wants to see the frame.
    """

    camera: str
    t: float
    kind: str
    place: int
    light: Light
    found: Literal["both", "old", "new"]
    shift: float | None = None
    truth: bool | None = None
    box: Box = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Cost of one network for the frames. load: of the detector's time with it, by extrapolation; None: not known.

    memory_mb: MiB. joules, cpu_ms: of an inference. is_hot: the appliance sheds load or is throttled for its heat.
    failure: how it ended if it did not examine all of them (a crash, a time-out); "": it did.
    """

    failure: str = ""
    memory_mb: float = 0.0
    joules: float | None = None
    load: float | None = None
    cpu_ms: float | None = None
    is_hot: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome with its reasons, in words; lacking: what "better" would still need. objects: pairs that counted.

    kept: it is shown to lose less than LOST_MAX of what the other is sure of; a network that finds nothing never is.
    cpu_ms: CPU time of an inference of the candidate, the median. shares: by stratum, (lost, objects).
    """

    outcome: Outcome
    reasons: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    objects: int = 0
    lost: int = 0
    gained: int = 0
    wins: int = 0
    losses: int = 0
    cpu_ratio: float | None = None
    cpu_ms: float | None = None
    kept: bool = False
    shares: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class CandidateJudge:
    """Collects pairs about one candidate. State: a test for each question. `verdict` may be called at any time.

    of: what is compared. Objects of frames must be of day and night before a candidate can be better.
    """

    def __init__(self, of: Literal["objects", "alerts", "escalations"] = "objects") -> None:
        self._of = of
        self._lost: dict[str, ShareTest] = {}
        self._kept = ShareTest(LOST_MAX, "below")
        self._gained = ShareTest(GAINED_MAX)
        self._higher, self._lower = ShareTest(0.5), ShareTest(0.5)
        self._slower, self._cheaper = ShareTest(0.5), ShareTest(0.5)
        self._wins, self._losses = ShareTest(0.5), ShareTest(0.5)
        self._ratios: list[float] = []
        self._cpu_ms: list[float] = []
        self._gates: list[str] = []

    def add_object(self, pair: PairedObject) -> None:
        """Take an object that one or both found."""
        if pair.truth is not None and pair.found != "both":
            self._known(won=(pair.found == "new") == pair.truth)
        if pair.found == "new":
            if pair.truth is None:
                self._gained.add(True)
            return
        if pair.truth is False:
            return
        self._gained.add(False)
        self._kept.add(pair.found == "old")
        for stratum in ("all", pair.light, f"place {pair.place}", f"kind {pair.kind}", f"camera {pair.camera}"):
            self._lost.setdefault(stratum, ShareTest(LOST_MAX)).add(pair.found == "old")
        if pair.shift is not None:
            self._higher.add(pair.shift > SHIFT_MAX)
            self._lower.add(pair.shift < -SHIFT_MAX)

    def add_expectation(self, *, old_right: bool, new_right: bool) -> None:
        """Count an expectation or prohibition (of a kept scenario or judged alert) that each side met or missed."""
        if old_right != new_right:
            self._known(won=new_right)

    def add_answer(self, *, old_right: bool, new_right: bool) -> None:
        """Count an alert or verdict whose truth is known, by who was right about it."""
        self.add_expectation(old_right=old_right, new_right=new_right)
        if old_right:
            self._kept.add(not new_right)
            self._lost.setdefault("all", ShareTest(LOST_MAX)).add(not new_right)

    def add_unknown(self, *, gained: bool) -> None:
        """Count an alert that nobody reviewed. gained: only the candidate reports it."""
        self._gained.add(gained)

    def add_cpu(self, old_ms: float, new_ms: float) -> None:
        """Take the CPU time of both for the same frame."""
        ratio = new_ms / max(old_ms, 1e-3)
        self._ratios.append(ratio)
        self._cpu_ms.append(new_ms)
        self._slower.add(ratio > SLOWER_MAX)
        self._cheaper.add(ratio < CHEAPER_MIN)

    def add_costs(self, old: RunCosts, new: RunCosts) -> None:
        """Compare the costs of both runs: each limit that is exceeded stops the candidate."""
        self._gates = [*_gates(old, new)]

    def verdict(self) -> Judgement:
        """Return the outcome with the evidence so far."""
        lost, worse = self._lost.get("all"), [*self._gates, *self._faults()]
        better, lacking = list(self._merits()), list(self._lacks())
        outcome: Outcome = "worse" if worse else "better" if better and not lacking else "not enough"
        if not better and not worse:
            lacking.append("nothing shows it to be better: neither known alerts nor a lower cost")
        return Judgement(
            outcome, tuple(worse or better), () if worse else tuple(lacking), objects=lost.n if lost else 0,
            lost=lost.hits if lost else 0, gained=self._gained.hits, wins=self._wins.hits, losses=self._losses.hits,
            cpu_ratio=_median(self._ratios), cpu_ms=_median(self._cpu_ms), kept=self._kept.is_beyond(ALPHA),
            shares={name: (each.hits, each.n) for name, each in sorted(self._lost.items())},
        )  # fmt: skip

    def _known(self, *, won: bool) -> None:
        self._wins.add(won)
        self._losses.add(not won)

    def _faults(self) -> Iterator[str]:
        alpha = ALPHA / max(TESTS_MIN, len(self._lost) + 5)
        for stratum, test in sorted(self._lost.items()):
            if test.is_beyond(alpha):
                yield f"it loses {test.hits} of {test.n} {self._of} ({stratum})"
        if self._gained.is_beyond(alpha):
            yield f"it alone is sure of {self._gained.hits} of {self._gained.n} {self._of}"
        for test, way in ((self._higher, "higher"), (self._lower, "lower")):
            if test.is_beyond(alpha):
                yield f"its scores are {way} than they should be for {test.hits} of {test.n} objects"
        if self._slower.is_beyond(alpha):
            yield f"it takes over {SLOWER_MAX:g} times the CPU time in {self._slower.hits} of {self._slower.n} frames"
        if self._losses.is_beyond(alpha):
            yield f"of known alerts and scenarios it loses {self._losses.hits} and wins {self._wins.hits}"

    def _merits(self) -> Iterator[str]:
        if self._wins.is_beyond(ALPHA / 2):
            yield f"of known alerts and scenarios it wins {self._wins.hits} and loses {self._losses.hits}"
        if self._cheaper.is_beyond(ALPHA / 2):
            yield f"it takes less than {CHEAPER_MIN:g} of the CPU time, and loses nothing"

    def _lacks(self) -> Iterator[str]:
        if not self._kept.is_beyond(ALPHA):
            yield f"too few {self._of} to show that it loses less than {LOST_MAX:.0%} ({self._kept.n} so far)"
        for light in ("day", "night") if self._of == "objects" else ():
            seen = self._lost[light].n if light in self._lost else 0
            if seen < STRATUM_MIN:
                yield f"{STRATUM_MIN - seen} more objects by {light}"


def judged_alerts(
    alerts: Iterable[tuple[bool, bool, bool | None]],
    verdicts: Iterable[tuple[bool, bool]] = (),
    expectations: Iterable[tuple[bool, bool]] = (),
) -> Judgement:
    """Return what alerts say of changed settings: raised with those in force, raised with the changed ones, and truth.

    truth: whether it is right, as a person said; None: nobody did. Such an alert proves nothing when it is left out.
    verdicts, expectations: whether what is in force, and the candidate, is right about an alert, a kept scenario.
    """
    judge = CandidateJudge("alerts")
    for old, new, truth in alerts:
        if truth is not None:
            judge.add_answer(old_right=old == truth, new_right=new == truth)
        elif new:
            judge.add_unknown(gained=not old)
    for old, new in verdicts:
        judge.add_answer(old_right=old, new_right=new)
    for old, new in expectations:
        judge.add_expectation(old_right=old, new_right=new)
    return judge.verdict()


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _gates(old: RunCosts, new: RunCosts) -> Iterator[str]:
    if new.failure:
        yield f"it failed: {new.failure}"
        return
    more_mb = new.memory_mb - old.memory_mb
    if new.memory_mb > MEMORY_SHARE_MAX * old.memory_mb and more_mb > MEMORY_MORE_MB:
        yield f"it takes {more_mb:.0f} MiB more memory ({new.memory_mb:.0f} for {old.memory_mb:.0f})"
    if old.joules and new.joules and new.joules > ENERGY_SHARE_MAX * old.joules:
        yield f"it takes {new.joules / old.joules:.1f} times the energy"
    if old.is_hot and old.cpu_ms and new.cpu_ms and new.cpu_ms > WARMER_MAX * old.cpu_ms:
        yield f"the appliance is too hot as it is, and it takes {new.cpu_ms / old.cpu_ms:.1f} times the CPU time"
    if new.load is not None and new.load > LOAD_MAX:
        yield f"the detector would be at work {new.load:.0%} of the time, which heats and overloads the appliance"


SURE, SEEN = 0.5, 0.2  # score of an object that counts; of one that the other network sees all the same
NIGHT_MEAN, NIGHT_SATURATION = 75.0, 4.0  # of 255: dark, or the grey of an infrared lamp
SAME_IOU_MIN = 0.35  # boxes of two networks on the same object
_KIND_OF = {label: kind for kind, labels in SCORE_KINDS.items() for label in labels}


@dataclass(frozen=True, slots=True)
class FoundObject:
    """A detection; score: on the common scale."""

    kind: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True)
class SurveyedFrame:
    """Detections of a network in a frame. cpu_ms: CPU time of the inference, all threads of the child."""

    t: float
    light: Light
    cpu_ms: float
    objects: tuple[FoundObject, ...]


@dataclass(frozen=True, slots=True)
class KnownObject:
    """An object that was answered for: from t0 to t1 it is there (right), or it is false, at any time."""

    t0: float
    t1: float
    kind: str
    box: Box
    right: bool


def kind_of(label: str) -> str:
    """Return the label to compare by: cars, buses and trucks are `vehicle`."""
    return _KIND_OF.get(label, label)


def paired_objects(
    camera: str, old: SurveyedFrame, new: SurveyedFrame, known: Sequence[KnownObject] = ()
) -> Iterator[PairedObject]:
    """Yield the objects of a frame of `camera` that both examined."""
    about = {"camera": camera, "t": old.t, "light": old.light}
    for one, other, alone in ((old, new, "old"), (new, old, "new")):
        for each in one.objects:
            if each.score < SURE:
                continue
            match = _match(each, other.objects)
            if match is None or match.score < SEEN:
                yield _pair(each, about, alone, known, None)
            elif alone == "old":
                yield _pair(each, about, "both", known, _logit(match.score) - _logit(each.score))
            elif match.score < SURE:  # else the pair was counted from the other side
                yield _pair(each, about, "both", known, None)


def _pair(
    each: FoundObject, about: Mapping[str, Any], found: Any, known: Sequence[KnownObject], shift: float | None
) -> PairedObject:
    x1, _, x2, y2 = each.box
    column, row = min(2, int((x1 + x2) / 2 * 3)), min(2, int(y2 * 3))
    truth = _truth(each, about["t"], known)
    return PairedObject(
        kind=each.kind, place=row * 3 + column, found=found, shift=shift, truth=truth, box=each.box, **about
    )


def _match(each: FoundObject, others: Sequence[FoundObject]) -> FoundObject | None:
    same = [other for other in others if other.kind == each.kind and iou(each.box, other.box) >= SAME_IOU_MIN]
    return max(same, key=lambda other: other.score, default=None)


def _truth(each: FoundObject, t: float, known: Sequence[KnownObject]) -> bool | None:
    answers = [
        one.right
        for one in known
        if one.kind == each.kind and iou(one.box, each.box) >= SAME_IOU_MIN and (not one.right or one.t0 <= t <= one.t1)
    ]
    return any(answers) if answers else None


def common_score(score: float, line: tuple[float, float] | None) -> float:
    """Return a score on the common scale. line: of its label, as `detector.calibration_of` has it."""
    if line is None:
        return score
    return 1 / (1 + math.exp(-(line[0] * _logit(score) + line[1])))


def _logit(score: float) -> float:
    bounded = min(max(score, 0.01), 0.99)
    return math.log(bounded / (1 - bounded))


def found_objects(
    found: Detections, labels: Sequence[str], lines: Mapping[str, tuple[float, float]]
) -> tuple[FoundObject, ...]:
    """Return detections as objects to compare. lines: as `detector.calibration_of` has them."""
    names = [labels[kind] for kind in found.class_ids.tolist()]
    rows = zip(names, found.scores.tolist(), found.boxes.tolist(), strict=True)
    return tuple(
        FoundObject(kind_of(name), round(common_score(score, lines.get(name)), 4), rounded_box(box))
        for name, score, box in rows
    )


def rounded_box(corners: Sequence[float]) -> Box:
    """Return a box with four digits, a thirtieth of a pixel."""
    x1, y1, x2, y2 = (round(float(side), 4) for side in corners)
    return (x1, y1, x2, y2)


def light_of(pixels: NDArray[np.uint8]) -> Light:
    """Return whether a BGR frame is dark, or grey as under an infrared lamp."""
    small = pixels[::16, ::16].astype("int16")
    saturation = float((small.max(axis=2) - small.min(axis=2)).mean())
    return "night" if float(small.mean()) < NIGHT_MEAN or saturation < NIGHT_SATURATION else "day"
