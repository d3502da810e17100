"""`vedette calibrate`: prints how well the calibration separates real alerts from false ones, as a table or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance import config
from appliance.base.console import text_console
from appliance.base.errors import UsageError
from appliance.base.local_files import check_output
from appliance.router.calibration import Calibration, RecallClaim, SureClaim
from appliance.router.calibration_fit import (
    ERROR_MAX,
    AlertOutcome,
    DecidedAlert,
    decided_of,
    fit,
    held_out,
    outcomes_of,
)
from appliance.store.decisions import outcomes_in
from appliance.store.paths import DATABASE

BINS = 10  # as M. Naeini et al.; more bins hold too few alerts each
RESAMPLES = 500  # bootstrap draws; with fewer the ends of the interval jump, more only take time
_LEVEL = (2.5, 97.5)  # percentiles of a 95 % interval
Array = NDArray[np.float64]
Measure = Callable[[Array, Array, Array], float]


@dataclass(frozen=True, slots=True)
class BootstrapFigure:
    """A measure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One label on one camera; camera and label "" for all.

    before: the detection score taken for a probability; after: the chance, for each alert by a calibration that was
    learnt without it. claim: of those that are left out as hardly ever real; sure: of those that stay at the edge as
    right.
    """

    camera: str
    label: str
    n: int
    real: int
    brier_before: BootstrapFigure
    brier_after: BootstrapFigure
    ece_before: BootstrapFigure
    ece_after: BootstrapFigure
    claim: RecallClaim
    sure: SureClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """recall: what the thresholds are to keep."""

    recall: float
    groups: tuple[GroupReport, ...]
    calibration: Calibration


def calibration_report(
    outcomes: Sequence[AlertOutcome],
    recall: float,
    error_max: float = ERROR_MAX,
    decided: Sequence[DecidedAlert] = (),
) -> CalibrationReport:
    """Report all alerts first, then each label of each camera. Deterministic: the bootstrap's seed is fixed."""
    calibration = fit(outcomes, recall, error_max, decided)
    before = np.array([each.stability.score for each in outcomes], np.float64)
    after = held_out(outcomes)
    real = np.array([each.real for each in outcomes], np.float64)
    weight = np.array([each.weight for each in outcomes], np.float64)

    def group(camera: str, label: str, rows: list[int]) -> GroupReport:
        a, b, y, w = before[rows], after[rows], real[rows], weight[rows]
        return GroupReport(
            camera=camera,
            label=label,
            n=len(rows),
            real=int(y.sum()),
            brier_before=_bootstrap(brier, a, y, w),
            brier_after=_bootstrap(brier, b, y, w),
            ece_before=_bootstrap(ece, a, y, w),
            ece_after=_bootstrap(ece, b, y, w),
            claim=calibration.everything.claim if not camera else calibration.claim(camera, label),
            sure=calibration.everything.sure if not camera else calibration.sure(camera, label),
        )

    places = sorted({(each.camera, each.label) for each in outcomes})
    rows_of = {
        place: [row for row, each in enumerate(outcomes) if (each.camera, each.label) == place] for place in places
    }
    groups = [group(*place, rows) for place, rows in rows_of.items()]
    whole = [group("", "", list(range(len(outcomes))))] if outcomes else []
    return CalibrationReport(recall=recall, groups=(*whole, *groups), calibration=calibration)


def brier(chances: Array, real: Array, weight: Array) -> float:
    """Return the mean squared error of the probabilities (G. Brier, 1950); 0 is perfect, 0.25 is a coin."""
    return float(np.average((chances - real) ** 2, weights=weight))


def ece(chances: Array, real: Array, weight: Array) -> float:
    """Return the expected calibration error over bins of equal width (M. Naeini et al., 2015).

    It is the mean distance of a bin's mean probability from its share of real ones. It grows by chance where there are
    few alerts: read it with its interval.
    """
    at = np.minimum((chances * BINS).astype(int), BINS - 1)
    gaps = np.bincount(at, weight * (chances - real), BINS)
    return float(np.abs(gaps).sum() / weight.sum())


def _bootstrap(measure: Measure, chances: Array, real: Array, weight: Array) -> BootstrapFigure:
    chance = np.random.default_rng(0)
    draws = [chance.integers(0, len(real), len(real)) for _ in range(RESAMPLES)]
    values = [measure(chances[draw], real[draw], weight[draw]) for draw in draws]
    low, high = np.percentile(values, _LEVEL)
    return BootstrapFigure(round(measure(chances, real, weight), 4), round(float(low), 4), round(float(high), 4))


_report: TypeAdapter[CalibrationReport] = TypeAdapter(CalibrationReport)


def calibrate_command(site_file: Path, recall: float | None, out: Path | None, *, as_json: bool) -> int:
    """Learn from what the appliance knows and print it. Returns 0. Raises ConfigError, StoreError, UsageError."""
    site = config.load(site_file)
    if out is not None:
        check_output(out, "a calibration", re.compile(rb'\{"version":'))
    rows, decided = outcomes_in(site.storage.dir.absolute() / DATABASE)
    router = site.escalation.router
    found = calibration_report(outcomes_of(rows), recall or router.recall_min, router.error_max, decided_of(decided))
    if out is not None:
        try:
            out.write_bytes(found.calibration.to_json() + b"\n")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print(_report.dump_json(found).decode())
    else:
        _print(found, sum(row.reviewed for row in rows), text_console(soft_wrap=True))
    return 0


def _print(found: CalibrationReport, reviewed: int, console: Console) -> None:
    if not found.groups:
        console.print("no alert was reviewed or judged yet: the router goes by what is built in and leaves nothing out")
        return
    known = found.groups[0].n
    console.print(f"{known} alerts are known to be real or not: {reviewed} by reviews, the rest by verdicts")
    table = Table(box=None, pad_edge=False)
    for name in ("camera", "label"):
        table.add_column(name)
    for name in ("n", "real", "Brier: score", "chance", "ECE: score", "chance"):
        table.add_column(name, justify="right")
    for group in found.groups:
        table.add_row(*_cells(group))
    console.print(table)
    console.print("in brackets: 95 % intervals (bootstrap); the chance of each alert was learnt from the others")
    console.print(f"left out, where {found.recall:g} of the real ones are to be kept:")
    for group in found.groups:
        name = f"{group.camera}, {group.label}" if group.camera else "all"
        console.print(escape(f"  {name}: {claim_text(group.claim, found.recall)}"))
    console.print("kept at the edge as sure:")
    for group in found.groups:
        name = f"{group.camera}, {group.label}" if group.camera else "all"
        console.print(escape(f"  {name}: {sure_text(group.sure)}"))


def _cells(group: GroupReport) -> tuple[str, ...]:
    figures = (group.brier_before, group.brier_after, group.ece_before, group.ece_after)
    names = (escape(group.camera or "all"), escape(group.label or "all"))
    return (*names, str(group.n), str(group.real), *map(_figure_text, figures))


def _figure_text(figure: BootstrapFigure) -> str:
    return f"{figure.value:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def claim_text(claim: RecallClaim, recall: float) -> str:
    """Return the claimed recall with its bound, or the reason why none is claimed."""
    if claim.chance_min <= 0:
        return f"nothing: too few real ones are known to be sure of {recall:g}"
    kept = f"keeps {claim.recall:.1%}, surely {claim.recall_low:.1%}"
    return f"below a chance of {claim.chance_min:.3f}: {kept}, by {claim.real} real ones"


def sure_text(sure: SureClaim) -> str:
    """Return the claimed error of what stays at the edge as sure, or the reason why none is claimed."""
    if not sure.holds:
        return f"nothing: {sure.wrong} of {sure.n} likely sure ones were wrong, and a claim takes {sure.needed} or more"
    known = f"{sure.wrong} of {sure.n} were wrong"
    return f"from a chance of {sure.chance_max:g}: {known}, surely at most {sure.error_high:.1%}"
