"""What a soak proved: every stall noticed and recovered from, nothing else disturbed, memory flat."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.plan import LASTING, Fault
from benchmarks.soak.watch import Glance

NOTICE_S = 10.0
SILENT_S_MAX = 12.0
GLANCE_S = 2.0
WARM_SHARE = 0.25
GROWTH_SHARE_MAX, GROWTH_MB_MAX = 0.05, 10.0
_TROUBLE = re.compile(
    r"^\S+ (?:warning|error) +(.*?(?:recording is paused|internal error|of alert \S+ is missing)[^(\n]*)", re.MULTILINE
)
SHORT_S, SHORT_GROWTH_MB_MAX = 600.0, 40.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not have happened, as a sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. noticed_s, recovered_s: of each fault that stopped pictures, how long it took."""

    findings: list[Finding] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    disturbed_s: float = 0.0
    memory_mb: float = 0.0
    growth_mb_h: float = 0.0


def slope(points: Sequence[tuple[float, float]], pairs_max: int = 20_000) -> float:
    """Theil-Sen: the median slope of all pairs (of a regular sample of the points, if those are too many)."""
    step = max(1, int(len(points) / (2 * pairs_max) ** 0.5) + 1) if len(points) ** 2 > 2 * pairs_max else 1
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points[::step], 2) if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


def of_log(log: str) -> list[Finding]:
    """Each sentence in which the appliance says that it does not record, lost evidence or has a bug, once."""
    said = {match.group(1).strip() for match in _TROUBLE.finditer(log)}
    return [Finding(f"the log says: {text}") for text in sorted(said)]


def judge(
    faults: Sequence[Fault],
    begun_t: float,
    glances: Sequence[Glance],
    gaps: Mapping[str, Sequence[Mapping[str, Any]]],
    recover_s: float,
) -> Verdict:
    """begun_t: UTC when the plan began; gaps: of each camera, those that the appliance showed during the soak."""
    verdict = _memory(glances)
    seen = [each for each in glances if each.answered]
    cameras = sorted(seen[0].states) if seen else []
    if not seen:
        verdict.findings.append(Finding("the dashboard never answered"))
    for fault in faults:
        for camera in [fault.camera] if fault.camera else cameras:
            _judge_fault(fault, camera, begun_t, seen, gaps.get(camera, ()), recover_s, verdict)
    disturbed = 0.0
    for camera in cameras:
        verdict.findings.extend(_unnoticed(camera, seen))
        disturbed += _disturbed(camera, faults, begun_t, seen, recover_s, verdict)
    return Verdict(
        verdict.findings, verdict.noticed_s, verdict.recovered_s, disturbed, verdict.memory_mb, verdict.growth_mb_h
    )


def _judge_fault(
    fault: Fault,
    camera: str,
    begun_t: float,
    seen: Sequence[Glance],
    gaps: Sequence[Mapping[str, Any]],
    recover_s: float,
    verdict: Verdict,
) -> None:
    start_t, end_t = begun_t + fault.start_s, begun_t + fault.end_s
    name = f"{camera}: {fault.kind} at {fault.start_s:.0f} s"
    if fault.kind in (*LASTING, "off"):
        dark = next((each.t for each in seen if each.t >= start_t and each.states.get(camera) != "live"), None)
        if dark is None or dark > start_t + NOTICE_S + GLANCE_S:
            verdict.findings.append(Finding(f"{name} was not noticed within {NOTICE_S:.0f} s"))
        else:
            verdict.noticed_s.append(dark - start_t)
        if not any(gap["t_start"] <= end_t and (gap["t_end"] or end_t) >= start_t for gap in gaps):
            verdict.findings.append(Finding(f"{name} left no gap to be seen"))
    light = next((each.t for each in seen if each.t >= end_t + GLANCE_S and each.states.get(camera) == "live"), None)
    if light is None or light > end_t + recover_s + GLANCE_S:
        verdict.findings.append(Finding(f"{name} was not recovered from within {recover_s:.0f} s"))
    elif fault.kind in (*LASTING, "off"):
        verdict.recovered_s.append(light - end_t)


def _unnoticed(camera: str, seen: Sequence[Glance]) -> list[Finding]:
    """Whatever the plan says: a camera that is shown as live and whose packets do not come."""
    found, since = [], None
    for before, now in itertools.pairwise(seen):
        stands = now.packets.get(camera, 0) == before.packets.get(camera, 0) and now.states.get(camera) == "live"
        since = (since or before.t) if stands else None
        if since is not None and now.t - since > SILENT_S_MAX:
            found.append(Finding(f"{camera}: shown as live for {now.t - since:.0f} s without a packet"))
            since = None
    return found


def _disturbed(
    camera: str, faults: Sequence[Fault], begun_t: float, seen: Sequence[Glance], recover_s: float, verdict: Verdict
) -> float:
    """Seconds in which a camera was not live although nothing was wrong with it."""
    own = [each for each in faults if each.camera in ("", camera)]
    total, since = 0.0, None
    for before, now in itertools.pairwise(seen):
        at = now.t - begun_t
        free = not any(each.start_s - GLANCE_S <= at <= each.end_s + recover_s for each in own)
        dark = free and now.states.get(camera) != "live"
        total += now.t - before.t if dark else 0.0
        since = (since or before.t) if dark else None
        if since is not None and now.t - since > NOTICE_S:
            verdict.findings.append(Finding(f"{camera}: {now.states.get(camera)} at {at:.0f} s, and nothing was wrong"))
            since = None
    return total


def _memory(glances: Sequence[Glance]) -> Verdict:
    """Flat: the robust slope of the part after warming up, over that part, stays small."""
    points = [(each.t, each.pss_bytes / 1e6) for each in glances if each.pss_bytes]
    if len(points) < 8:
        return Verdict([Finding("memory could not be weighed")])
    warm = [point for point in points if point[0] >= points[0][0] + WARM_SHARE * (points[-1][0] - points[0][0])]
    middle, per_s, span_s = statistics.median(mb for _, mb in warm), slope(warm), warm[-1][0] - warm[0][0]
    most = SHORT_GROWTH_MB_MAX if span_s < SHORT_S else max(GROWTH_MB_MAX, GROWTH_SHARE_MAX * middle)
    wrong = per_s * span_s > most
    text = f"memory grew by {per_s * span_s:.1f} MB in {span_s / 60:.0f} minutes (at most {most:.0f} MB is flat)"
    findings = [Finding(text)] if wrong else []
    return Verdict(findings, memory_mb=middle, growth_mb_h=per_s * 3600)
