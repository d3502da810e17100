"""The fault plan of a soak, and the checks that hold polls of the appliance against it.

The plan is made from a seed, so that a failed soak can be repeated. Every stall must be noticed and recovered from,
nothing else disturbed, and memory flat.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.ingest.process_tree import KINDS, memory_kinds, pss_bytes

_SAMPLE = re.compile(r'^(vedette_\w+)(?:\{camera="([^"]+)"\})? (\S+)$', re.MULTILINE)
ANSWER_S_MAX = 10.0
Kind = Literal["stall", "hang", "drip", "off", "cut", "reset", "garbage", "noise", "jump"]
LASTING: tuple[Kind, ...] = ("stall", "hang", "drip")
AT_ONCE: tuple[Kind, ...] = ("cut", "reset", "garbage", "noise", "jump")
RECOVER_S = 45.0
LAST_S = (15.0, 40.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """camera '': the server of all cameras is off (`off`). Seconds since the plan began; momentary: both equal."""

    kind: Kind
    camera: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """apart_s: from a camera's recovery to its next fault, uniformly; off_apart_s: the same for the whole server."""

    apart_s: tuple[float, float]
    off_apart_s: tuple[float, float]
    first_s: tuple[float, float]
    last_s: tuple[float, float] = LAST_S
    recover_s: float = RECOVER_S


LONG = Pace(apart_s=(20.0, 180.0), off_apart_s=(420.0, 900.0), first_s=(20.0, 120.0))
SHORT = Pace(apart_s=(1.0, 3.0), off_apart_s=(1e9, 1e9), first_s=(2.0, 5.0), last_s=(11.0, 12.0), recover_s=25.0)


def make(cameras: list[str], seconds: float, pace: Pace, seed: int) -> list[Fault]:
    """Return all faults by their start; each ends, and can be recovered from, before `seconds` are over.

    Each camera has every kind in a new order before one repeats. Faults that would overlap with the server being off,
    or with the recovery from that, are left out.
    """
    chance = random.Random(seed)
    off = list(_offs(seconds, pace, chance))
    found = list(off)
    for camera in cameras:
        own = _of_camera(camera, seconds, pace, chance)
        found += [each for each in own if not any(_meet(each, other, pace.recover_s) for other in off)]
    return sorted(found, key=lambda fault: (fault.start_s, fault.camera))


def _offs(seconds: float, pace: Pace, chance: random.Random) -> list[Fault]:
    found: list[Fault] = []
    start_s = chance.uniform(*pace.off_apart_s)
    while (end_s := start_s + chance.uniform(*pace.last_s)) + pace.recover_s <= seconds:
        found.append(Fault("off", "", round(start_s, 2), round(end_s, 2)))
        start_s = end_s + pace.recover_s + chance.uniform(*pace.off_apart_s)
    return found


def _of_camera(camera: str, seconds: float, pace: Pace, chance: random.Random) -> list[Fault]:
    found: list[Fault] = []
    deck: list[Kind] = []
    start_s = chance.uniform(*pace.first_s)
    while True:
        if not deck:
            deck = [*LASTING, *AT_ONCE]
            chance.shuffle(deck)
        kind = deck.pop()
        end_s = start_s + (chance.uniform(*pace.last_s) if kind in LASTING else 0.0)
        if end_s + pace.recover_s > seconds:
            return found
        found.append(Fault(kind, camera, round(start_s, 2), round(end_s, 2)))
        start_s = end_s + pace.recover_s + chance.uniform(*pace.apart_s)


def _meet(one: Fault, other: Fault, apart_s: float) -> bool:
    return one.start_s < other.end_s + apart_s and other.start_s < one.end_s + apart_s


@dataclass(frozen=True, slots=True)
class StatusSample:
    """One poll. t: UTC seconds; states, packets: by camera; empty where the dashboard did not answer.

    own_bytes: heap and anonymous memory of each process; kinds: see `process_tree.memory_kinds`.
    """

    t: float
    states: dict[str, str]
    packets: dict[str, float]
    ingest_starts: float
    pss_bytes: int
    own_bytes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int:
        """All kinds of all processes; the proportional set size in a record that has no kinds."""
        return sum(sum(each.values()) for each in self.kinds.values()) or self.pss_bytes

    @property
    def answered(self) -> bool:
        return bool(self.states)


def poll(url: str, pid: int) -> StatusSample:
    """Poll the dashboard at `url` of the appliance whose core process is `pid`."""
    t, pss, kinds = time.time(), pss_bytes(pid), memory_kinds(pid)
    own = {name: found["heap"] + found["anonymous"] for name, found in kinds.items()}
    try:
        states = {each["name"]: each["state"] for each in json.loads(_page(f"{url}/api/v1/cameras"))}
        samples = _SAMPLE.findall(_page(f"{url}/metrics"))
    except (OSError, urllib.error.URLError):
        return StatusSample(t, {}, {}, 0.0, pss, own, kinds)
    packets = {camera: float(value) for name, camera, value in samples if name == "vedette_camera_packets_total"}
    starts = next((float(value) for name, _, value in samples if name == "vedette_ingest_starts_total"), 0.0)
    return StatusSample(t, states, packets, starts, pss, own, kinds)


def gaps(url: str, camera: str) -> list[dict[str, Any]]:
    """Return the gaps that the appliance shows for a camera."""
    found: list[dict[str, Any]] = json.loads(_page(f"{url}/api/v1/cameras/{camera}"))["gaps"]
    return found


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
        text: str = answer.read().decode()
    return text


POINTS_MIN = 8  # of a slope
NOTICE_S = 10.0
SILENT_S_MAX = 12.0
SAMPLE_S = 2.0
WARM_S, WARM_SHARE = 600.0, 0.5  # networks and caches fill; of a soak under 20 minutes half is for that
GROWTH_SHARE_MAX, GROWTH_MB_MAX = 0.05, 10.0
# Of one process over the time after warming up, whatever its length. Between two trims ingest's heap varies by 3 MB.
PROCESS_MB_MAX = {"core": 4.0, "ingest": 8.0, "media": 8.0}
_FAULT_LINE = re.compile(
    r"^\S+ (?:warning|error) +(.*?(?:recording is paused|internal error|of alert \S+ is missing)[^(\n]*)", re.MULTILINE
)
SHORT_S, SHORT_GROWTH_MB_MAX = 600.0, 40.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not have happened, as a sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class SoakResult:
    """The outcome. noticed_s, recovered_s: of each fault that stopped frames, how long that took."""

    findings: list[Finding] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    disturbed_s: float = 0.0
    memory_mb: float = 0.0
    growth_mb_h: float = 0.0
    process_mb: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By process: memory of its own after warming up, and MB an hour."""
    kinds_mb_h: dict[str, dict[str, float]] = field(default_factory=dict)
    """By process and kind of memory: MB an hour."""


def slope(points: Sequence[tuple[float, float]], pairs_max: int = 20_000) -> float:
    """Return the Theil-Sen slope: the median of all pairs.

    If the points are too many, the pairs are those of a regular sample of them.
    """
    step = max(1, int(len(points) / (2 * pairs_max) ** 0.5) + 1) if len(points) ** 2 > 2 * pairs_max else 1
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points[::step], 2) if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


def log_findings(log: str) -> list[Finding]:
    """Return each log message about paused recording, lost evidence or an internal error, once."""
    sentences = {match.group(1).strip() for match in _FAULT_LINE.finditer(log)}
    return [Finding(f"the log says: {text}") for text in sorted(sentences)]


def evaluate(
    faults: Sequence[Fault],
    begun_t: float,
    samples: Sequence[StatusSample],
    gaps: Mapping[str, Sequence[Mapping[str, Any]]],
    recover_s: float,
) -> SoakResult:
    """begun_t: UTC when the plan began; gaps: of each camera, those that the appliance showed during the soak."""
    verdict = _memory(samples)
    seen = [each for each in samples if each.answered]
    cameras = sorted(seen[0].states) if seen else []
    if not seen:
        verdict.findings.append(Finding("the dashboard never answered"))
    for fault in faults:
        for camera in [fault.camera] if fault.camera else cameras:
            _evaluate_fault(fault, camera, begun_t, seen, gaps.get(camera, ()), recover_s, verdict)
    disturbed = 0.0
    for camera in cameras:
        verdict.findings.extend(_stale_live(camera, seen))
        disturbed += _disturbed(camera, faults, begun_t, seen, recover_s, verdict)
    return SoakResult(
        verdict.findings, verdict.noticed_s, verdict.recovered_s, disturbed, verdict.memory_mb, verdict.growth_mb_h,
        verdict.process_mb, verdict.kinds_mb_h,
    )  # fmt: skip


def _evaluate_fault(
    fault: Fault,
    camera: str,
    begun_t: float,
    seen: Sequence[StatusSample],
    gaps: Sequence[Mapping[str, Any]],
    recover_s: float,
    verdict: SoakResult,
) -> None:
    start_t, end_t = begun_t + fault.start_s, begun_t + fault.end_s
    name = f"{camera}: {fault.kind} at {fault.start_s:.0f} s"
    if fault.kind in (*LASTING, "off"):
        not_live = next((each.t for each in seen if each.t >= start_t and each.states.get(camera) != "live"), None)
        if not_live is None or not_live > start_t + NOTICE_S + SAMPLE_S:
            verdict.findings.append(Finding(f"{name} was not noticed within {NOTICE_S:.0f} s"))
        else:
            verdict.noticed_s.append(not_live - start_t)
        if not any(gap["t_start"] <= end_t and (gap["t_end"] or end_t) >= start_t for gap in gaps):
            verdict.findings.append(Finding(f"{name} left no gap to be seen"))
    live_again = next(
        (each.t for each in seen if each.t >= end_t + SAMPLE_S and each.states.get(camera) == "live"), None
    )
    if live_again is None or live_again > end_t + recover_s + SAMPLE_S:
        verdict.findings.append(Finding(f"{name} was not recovered from within {recover_s:.0f} s"))
    elif fault.kind in (*LASTING, "off"):
        verdict.recovered_s.append(live_again - end_t)


def _stale_live(camera: str, seen: Sequence[StatusSample]) -> list[Finding]:
    """Find a camera that is shown as live although no packets come, independent of the plan."""
    found, since = [], None
    for before, now in itertools.pairwise(seen):
        stands = now.packets.get(camera, 0) == before.packets.get(camera, 0) and now.states.get(camera) == "live"
        since = (since or before.t) if stands else None
        if since is not None and now.t - since > SILENT_S_MAX:
            found.append(Finding(f"{camera}: shown as live for {now.t - since:.0f} s without a packet"))
            since = None
    return found


def _disturbed(
    camera: str,
    faults: Sequence[Fault],
    begun_t: float,
    seen: Sequence[StatusSample],
    recover_s: float,
    verdict: SoakResult,
) -> float:
    """Return the seconds in which a camera was not live although nothing was wrong with it."""
    own = [each for each in faults if each.camera in ("", camera)]
    total, since = 0.0, None
    for before, now in itertools.pairwise(seen):
        at = now.t - begun_t
        free = not any(each.start_s - SAMPLE_S <= at <= each.end_s + recover_s for each in own)
        not_live = free and now.states.get(camera) != "live"
        total += now.t - before.t if not_live else 0.0
        since = (since or before.t) if not_live else None
        if since is not None and now.t - since > NOTICE_S:
            verdict.findings.append(Finding(f"{camera}: {now.states.get(camera)} at {at:.0f} s, and nothing was wrong"))
            since = None
    return total


def _memory(samples: Sequence[StatusSample]) -> SoakResult:
    """Memory is flat when its robust slope over the time after warming up stays small, in all and by process.

    The proportional set size says how much it is, not whether it grows: when a neighbour that maps the same libraries
    ends, it rises by tens of MB.
    """
    known = [each for each in samples if each.pss_bytes]
    if len(known) < POINTS_MIN:
        return SoakResult([Finding("memory could not be weighed")])
    warm_s = min(WARM_S, WARM_SHARE * (known[-1].t - known[0].t))
    warm = [each for each in known if each.t >= known[0].t + warm_s]
    middle = statistics.median(each.pss_bytes / 1e6 for each in warm)
    _, per_s, span_s = _growth([(each.t, each.memory_bytes / 1e6) for each in warm])
    most = SHORT_GROWTH_MB_MAX if span_s < SHORT_S else max(GROWTH_MB_MAX, GROWTH_SHARE_MAX * middle)
    result = SoakResult([], memory_mb=middle, growth_mb_h=per_s * 3600)
    _judge_growth(result, "memory", per_s, span_s, most)
    for name, process_most in PROCESS_MB_MAX.items():
        points = [(each.t, each.own_bytes[name] / 1e6) for each in warm if each.own_bytes.get(name)]
        if len(points) >= POINTS_MIN:
            own_mb, per_s, span_s = _growth(points)
            result.process_mb[name] = own_mb, per_s * 3600
            _judge_growth(result, f"{name}'s own memory", per_s, span_s, process_most)
        known_kinds = [(each.t, each.kinds[name]) for each in warm if name in each.kinds]
        if len(known_kinds) >= POINTS_MIN:
            result.kinds_mb_h[name] = {
                kind: 3600 * slope([(t, sizes[kind] / 1e6) for t, sizes in known_kinds]) for kind in KINDS
            }
    return result


def _growth(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median, the robust slope a second, and the seconds of the points."""
    return statistics.median(mb for _, mb in points), slope(points), points[-1][0] - points[0][0]


def _judge_growth(result: SoakResult, what: str, per_s: float, span_s: float, most: float) -> None:
    if per_s * span_s > most:
        text = f"{what} grew by {per_s * span_s:.1f} MB in {span_s / 60:.0f} minutes (at most {most:.0f} MB is flat)"
        result.findings.append(Finding(text))
