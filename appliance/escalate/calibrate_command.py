"""`vedette calibrate`: what the router has learnt, as a table or JSON."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance import config
from appliance.errors import UsageError
from appliance.escalate.calibration import Claim
from appliance.escalate.calibration_report import CalibrationReport, Figure, GroupReport, report
from appliance.escalate.learn import outcomes_of
from appliance.store.decisions import outcomes_in
from appliance.store.paths import DATABASE

_report: TypeAdapter[CalibrationReport] = TypeAdapter(CalibrationReport)


def calibrate_command(site_file: Path, recall: float | None, out: Path | None, *, as_json: bool) -> int:
    """Learn from what the box knows and tell it. Returns 0. Raises ConfigError, StoreError, UsageError."""
    site = config.load(site_file)
    rows = outcomes_in(site.storage.dir.absolute() / DATABASE)
    found = report(outcomes_of(rows), recall or site.escalation.router.recall_min)
    if out is not None:
        try:
            out.write_bytes(found.calibration.to_json() + b"\n")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print(_report.dump_json(found).decode())
    else:
        _print(found, sum(row.reviewed for row in rows), Console(highlight=False, soft_wrap=True))
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
        console.print(escape(f"  {name}: {claim_words(group.claim, found.recall)}"))


def _cells(group: GroupReport) -> tuple[str, ...]:
    figures = (group.brier_before, group.brier_after, group.ece_before, group.ece_after)
    names = (escape(group.camera or "all"), escape(group.label or "all"))
    return (*names, str(group.n), str(group.real), *map(_figure, figures))


def _figure(figure: Figure) -> str:
    return f"{figure.value:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def claim_words(claim: Claim, recall: float) -> str:
    """The recall that is claimed with its bound, or why none is."""
    if claim.chance_min <= 0:
        return f"nothing: too few real ones are known to be sure of {recall:g}"
    kept = f"keeps {claim.recall:.1%}, surely {claim.recall_low:.1%}"
    return f"below a chance of {claim.chance_min:.3f}: {kept}, by {claim.real} real ones"
