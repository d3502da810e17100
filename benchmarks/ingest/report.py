"""Measurements as rows, as a table, and as the ratios that the bars limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.ingest.cameras import Setting
from benchmarks.ingest.measurement import Measured, Score

RATIO_MAX = {"quiet": 0.28, "mixed": 0.62, "busy": 0.65}
TWO_STREAMS_MAX = 0.8
FIRST_MS_MAX = {"lowest": 100.0}  # beyond the floor's; thrifty: one key-frame interval
LIVE_AGE_MS_MAX = 300.0
SHARE_MAX = 60.0  # percent of the cores, 16 quiet cameras of two streams
POINT = 1.0
TAKEN_MIN = 95.0
BASE_MB, CAMERA_MB = 200, 30
MISSED = "MISSED"
CORES = 2  # of the machine that the bars are about


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one setting. Rates are a camera-minute; medians of the rounds, recall over all rounds.

    found: share of the seconds in which a labelled object was to be seen that had it, percent; first_*_ms: median from
    the frame in which an object is first in view to its box being reported, and to the frame of its first box.
    age_p95_ms: from the frame being taken to its being reported, those decoded after the fact included;
    live_age_ms: without these, as the contender says itself, the median of its seconds. taken: percent of the footage
    shown that it took in; well below 100 the machine was too busy to compare times.
    """

    scene: str
    lines: int
    streams: int
    cameras: int
    gop_s: int
    who: str
    rounds: int
    taken: float
    cpu_s: float
    cpu_s_all: tuple[float, ...]
    detector_s: float
    looks: float
    look_ms: float | None
    decoded: float
    dropped: float
    pss_mb: float
    found: float | None
    seconds: int
    visits: int
    visits_found: int
    wrong: float
    age_p95_ms: float | None
    live_age_ms: float | None
    first_told_ms: float | None
    first_seen_ms: float | None

    @property
    def setting(self) -> tuple[str, int, int, int, int]:
        return self.scene, self.lines, self.streams, self.cameras, self.gop_s

    @property
    def rest_s(self) -> float:
        return self.cpu_s - self.detector_s

    @property
    def owed_s(self) -> float:
        """CPU seconds as if dropped inferences had been run, so that a busy machine makes no contender cheap."""
        return self.cpu_s + self.dropped * (self.look_ms or 0.0) / 1000


def row(setting: Setting, who: str, rounds: Sequence[Measured]) -> Row:
    def rate(of: Callable[[Measured], float]) -> list[float]:
        return [of(each) / each.camera_minutes for each in rounds]

    total = sum((each.score for each in rounds), Score())
    looks, detector_s = sum(each.looks for each in rounds), sum(each.detector_s for each in rounds)
    minutes = sum(each.camera_minutes for each in rounds)
    cpu = rate(lambda each: each.cpu_s)
    return Row(
        scene=setting.scene, lines=setting.lines, streams=setting.streams, cameras=setting.cameras, gop_s=setting.gop_s,
        who=who, rounds=len(rounds), taken=round(100 * minutes / sum(each.asked_minutes for each in rounds), 1),
        cpu_s=round(statistics.median(cpu), 3), cpu_s_all=tuple(round(each, 3) for each in cpu),
        detector_s=round(statistics.median(rate(lambda each: each.detector_s)), 3),
        looks=round(statistics.median(rate(lambda each: each.looks)), 1),
        look_ms=round(1000 * detector_s / looks, 1) if looks else None,
        decoded=round(statistics.median(rate(lambda each: each.decoded)), 1),
        dropped=round(statistics.median(rate(lambda each: each.dropped)), 1),
        pss_mb=round(max(each.pss_bytes for each in rounds) / 1e6, 1),
        found=round(100 * total.seconds_found / total.seconds, 1) if total.seconds else None,
        seconds=total.seconds, visits=total.visits, visits_found=total.visits_found,
        wrong=round(total.wrong / minutes, 1), age_p95_ms=_p95_ms([age for each in rounds for age in each.ages_s]),
        live_age_ms=_median([age for each in rounds for age in each.live_age_ms]),
        first_told_ms=_median_ms(total.first_reported_s), first_seen_ms=_median_ms(total.first_seen_s),
    )  # fmt: skip


def line(found: Row) -> str:
    """Write one row as it comes."""
    cells = dict(zip(HEAD, _cells(found), strict=True))
    return "  ".join(f"{name} {cell}" for name, cell in cells.items() if cell)


HEAD = (
    "scene", "stream", "cams", "who", "taken %", "CPU-s", "detector", "rest", "decoded", "looks", "ms/look",
    "dropped", "age p95 ms", "live ms", "PSS MB", "found %", "visits", "first box ms", "of frame ms",
    "wrong",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Write all rows, aligned; CPU seconds, frames and boxes are a camera-minute."""
    cells = [list(HEAD), *(_cells(each) for each in rows)]
    widths = [max(len(each[k]) for each in cells) for k in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)) for each in cells)


def ratios(rows: Sequence[Row], ours: str, floor: str) -> str:
    """Compare ours with the floor in each setting, with the bar where there is one; dropped looks count as if taken."""
    by = {(each.setting, each.who): each for each in rows}
    lines = []
    for mine in (each for each in rows if each.who.split()[0] == ours):
        setting = " ".join([*_cells(mine)[:3], *mine.who.split()[1:]])
        if mine.streams == 2:
            lines.append(
                f"{setting}: {mine.rest_s:.2f} CPU-s without the detector {_bar(mine.rest_s, TWO_STREAMS_MAX)}"
            )
        share = 100 * mine.cpu_s * mine.cameras / 60 / CORES
        most_mb = BASE_MB + CAMERA_MB * mine.cameras
        many = _bar(share, SHARE_MAX) if (mine.scene, mine.streams, mine.cameras) == ("quiet", 2, 16) else ""
        lines.append(f"{setting}: {share:.0f} % of {CORES} cores {many}")
        lines.append(f"{setting}: memory {mine.pss_mb:.0f} MB {_bar(mine.pss_mb, most_mb)}")
        if mine.live_age_ms is not None:
            bar = _bar(mine.live_age_ms, LIVE_AGE_MS_MAX)
            lines.append(f"{setting}: live frame age at the tracker, p95: {mine.live_age_ms:.0f} ms {bar}")
        theirs = by.get((mine.setting, floor))
        if theirs is None or not theirs.cpu_s:
            continue
        if min(mine.taken, theirs.taken) < TAKEN_MIN:
            behind = ", ".join(f"{each.who} took in {each.taken:.0f} %" for each in (mine, theirs))
            lines.append(f"{setting}: NOT COMPARABLE, the machine was too busy ({behind} of the footage)")
            continue
        ratio = mine.owed_s / theirs.owed_s
        # The bars are for one stream of 720p; elsewhere the ratio is for comparison over time.
        bar = _bar(ratio, RATIO_MAX[mine.scene]) if (mine.lines, mine.streams) == (720, 1) else ""
        lines.append(f"{setting}: {ratio:.2f} x {floor} {bar}")
        if mine.found is not None and theirs.found is not None:
            lines.append(
                f"{setting}: found {mine.found - theirs.found:+.1f} points {_bar(theirs.found - mine.found, POINT)}"
            )
        if mine.first_told_ms is not None and theirs.first_told_ms is not None:
            more_ms, most_ms = mine.first_told_ms - theirs.first_told_ms, _first_ms_max(mine)
            lines.append(f"{setting}: first box {more_ms:+.0f} ms {_bar(more_ms, most_ms) if most_ms else ''}")
    return "\n".join(lines)


def is_missed(comparison: str) -> bool:
    """Return whether a bar was missed in a comparison that `ratios` wrote."""
    return MISSED in comparison


def _first_ms_max(mine: Row) -> float | None:
    """Return how much later than the floor's the first box may be."""
    latency = mine.who.split()[-1]
    return 1000.0 * mine.gop_s if latency == "thrifty" else FIRST_MS_MAX.get(latency)


def _bar(value: float, most: float) -> str:
    return f"(bar {most:g}: {'met' if value <= most else MISSED})"


def _cells(each: Row) -> list[str]:
    return [
        each.scene,
        f"{each.lines}p x{each.streams} g{each.gop_s}",
        str(each.cameras),
        each.who,
        f"{each.taken:.0f}",
        f"{each.cpu_s:.2f}",
        f"{each.detector_s:.2f}",
        f"{each.rest_s:.2f}",
        f"{each.decoded:.0f}",
        f"{each.looks:.0f}",
        _number(each.look_ms, 1),
        f"{each.dropped:.0f}",
        _number(each.age_p95_ms, 0),
        _number(each.live_age_ms, 0),
        f"{each.pss_mb:.0f}",
        _number(each.found, 1),
        f"{each.visits_found}/{each.visits}" if each.visits else "",
        _number(each.first_told_ms, 0),
        _number(each.first_seen_ms, 0),
        f"{each.wrong:.1f}",
    ]


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _p95_ms(seconds: Sequence[float]) -> float | None:
    return round(1000 * sorted(seconds)[int(0.95 * (len(seconds) - 1))], 0) if seconds else None


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 0) if values else None


def _median_ms(seconds: Sequence[float]) -> float | None:
    return round(1000 * statistics.median(seconds), 0) if seconds else None
