"""The report of `vedette evaluate`: rows as JSON, tables for people, and the figures that fell since another report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.base.box_arrays import HeightFigures
from appliance.base.errors import UsageError
from appliance.base.json_lines import first_problem
from appliance.lab.detection_figures import LEVEL, SCORE, TIGHT_IOU, DetectionFigures
from appliance.lab.scenario.plot_page import ReportTable, aligned_lines

REPORT_BYTES_MAX = 16 * 1024 * 1024  # a report of 80 classes has 100 kB
_FALLING = {"ap50": "AP50", "ap50_95": "AP50:95", "precision": "precision", "recall": "recall"}
_PLACES = 4  # decimals; the interval of AP is wider
_Share = Annotated[float, Field(ge=0, le=1)]


class _ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class ModelCost(_ReportPart):
    """model: as it was asked for; detector: file stem and digest; cpu_ms: CPU time of an inference, the median."""

    model: str
    detector: str
    cpu_ms: Annotated[float, Field(ge=0)]


class HeightRow(_ReportPart):
    """HeightFigures, rounded; high: None where there is no upper end. ap50, ap70: None without boxes."""

    low: Annotated[float, Field(ge=0)]
    high: float | None
    boxes: Annotated[int, Field(ge=0)]
    ap50: _Share | None
    ap70: _Share | None

    @property
    def title(self) -> str:
        return f"{self.low:g}+" if self.high is None else f"{self.low:g}-{self.high:g}"


class FigureRow(_ReportPart):
    """A model on a class of a set: DetectionFigures, rounded, and AP by height in the network's input.

    ap70, by_height: missing from reports of before they were measured.
    """

    model: str
    set: str
    label: str
    images: Annotated[int, Field(ge=1)]
    boxes: Annotated[int, Field(ge=1)]
    ap50: _Share
    ap50_low: _Share
    ap50_high: _Share
    ap50_95: _Share
    precision: _Share | None
    recall: _Share
    calibration_error: _Share | None
    calibration: tuple[float, float] | None = None
    ap70: _Share | None = None
    by_height: tuple[HeightRow, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.set}, {self.label}"


class EvaluationReport(_ReportPart):
    """All figures of one run. arithmetic: what computed AP; by_class: car, bus and truck were kept apart."""

    type: Literal["vedette.evaluation"] = "vedette.evaluation"
    version: Literal[1] = 1
    arithmetic: str
    by_class: bool
    models: tuple[ModelCost, ...]
    figures: tuple[FigureRow, ...]
    notes: tuple[str, ...] = ()


def figure_row(
    model: str, set_name: str, label: str, figures: DetectionFigures, heights: Sequence[HeightFigures]
) -> FigureRow:
    calibration = figures.calibration
    rounded: dict[str, Any] = {
        name: _rounded(value) for name, value in asdict(figures).items() if name != "calibration"
    }
    return FigureRow(
        model=model,
        set=set_name,
        label=label,
        **rounded,
        calibration=None if calibration is None else (round(calibration[0], 2), round(calibration[1], 2)),
        by_height=tuple(
            HeightRow(
                low=each.low,
                high=each.high if math.isfinite(each.high) else None,
                boxes=each.boxes,
                ap50=_rounded(each.ap50),
                ap70=_rounded(each.ap70),
            )
            for each in heights
        ),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _PLACES)


def read_report(path: Path) -> EvaluationReport:
    """Read the output of an earlier `--json`. Raise UsageError."""
    remedy = "write it with `vedette evaluate … --json`"
    try:
        if path.stat().st_size > REPORT_BYTES_MAX:
            raise UsageError(f"{path}: over {REPORT_BYTES_MAX} bytes: no figures of `vedette evaluate`")
        return EvaluationReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: the figures cannot be read: {error.strerror}; {remedy}") from None
    except ValidationError as error:
        fault = first_problem(error, "file")
        raise UsageError(f"{path}: {fault}: not figures of `vedette evaluate`; {remedy}") from None


def report_lines(report: EvaluationReport) -> list[str]:
    """Write for people every figure, the mean over several sets, what a model costs, notes."""
    return [
        *aligned_lines(_figures_table(report)),
        "",
        *_height_lines(report),
        *aligned_lines(_models_table(report)),
        "",
        f"AP by COCO's rule ({report.arithmetic}); precision, recall at a score of {SCORE:g}; interval: "
        f"{LEVEL[0]}-{LEVEL[1]} % of a bootstrap over images.",
        *report.notes,
    ]


def _figures_table(report: EvaluationReport) -> ReportTable:
    head = (
        "set, class", "images", "boxes", "model", "AP50", f"{LEVEL[0]}-{LEVEL[1]} %", f"AP{TIGHT_IOU * 100:g}",
        "AP50:95", "precision", "recall", "calibration error",
    )  # fmt: skip
    return ReportTable(head, tuple(map(_figure_cells, sorted(report.figures, key=lambda row: row.title))))


def _figure_cells(row: FigureRow) -> tuple[str, ...]:
    return (
        row.title,
        str(row.images),
        str(row.boxes),
        row.model,
        f"{row.ap50:.3f}",
        f"{row.ap50_low:.3f}-{row.ap50_high:.3f}",
        "-" if row.ap70 is None else f"{row.ap70:.3f}",
        f"{row.ap50_95:.3f}",
        _cell(row.precision),
        _cell(row.recall),
        _cell(row.calibration_error),
    )


def _height_lines(report: EvaluationReport) -> list[str]:
    rows = [row for row in sorted(report.figures, key=lambda row: row.title) if row.by_height]
    if not rows:
        return []
    head = ("AP50 / AP70 (boxes) by px in the input", "model", *(each.title for each in rows[0].by_height))
    return [
        *aligned_lines(
            ReportTable(head, tuple((row.title, row.model, *map(_height_cell, row.by_height)) for row in rows))
        ),
        "",
    ]


def _height_cell(row: HeightRow) -> str:
    return "-" if row.ap50 is None or row.ap70 is None else f"{row.ap50:.3f} / {row.ap70:.3f} ({row.boxes})"


def _models_table(report: EvaluationReport) -> ReportTable:
    sets = {each.set for each in report.figures}
    labels = sorted({each.label for each in report.figures}) if len(sets) > 1 else []
    found = defaultdict(list)
    for each in report.figures:
        found[each.model, each.label].append(each.ap50)
    rows = []
    for model in report.models:
        means = [found[model.model, label] for label in labels]
        cells = (f"{sum(each) / len(each):.3f}" if each else "-" for each in means)
        rows.append((model.model, f"{model.cpu_ms:.1f}", *cells))
    return ReportTable(("model", "CPU ms", *(f"mean AP50 {label}" for label in labels)), tuple(rows))


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def fallen_figures(
    before: EvaluationReport, now: EvaluationReport, tolerance: float, labels: Sequence[str] = ()
) -> list[str]:
    """Return a sentence for each figure that is worse than `before` by more than `tolerance`, or not there any more.

    labels: only these; (): all. One model is compared with one whatever they are called. Raises UsageError where the
    two runs measured different things.
    """
    if before.by_class != now.by_class:
        raise UsageError("--gate: the figures were made " + ("with" if before.by_class else "without") + " --by-class")
    alone = len(before.models) == len(now.models) == 1
    present = {("" if alone else row.model, row.set, row.label): row for row in now.figures}
    wanted = [row for row in before.figures if not labels or row.label in labels]
    if not wanted:
        raise UsageError("--gate: the file has none of these figures; write it again with --json")
    fallen = []
    for old in wanted:
        new = present.get(("" if alone else old.model, old.set, old.label))
        if new is None:
            fallen.append(f"{old.title}, {old.model}: no longer measured")
            continue
        if (old.images, old.boxes) != (new.images, new.boxes):
            raise UsageError(
                f"--gate: {old.title}: {old.boxes} boxes in {old.images} images then, {new.boxes} in {new.images} now: "
                "another set; write the figures again with --json"
            )
        fallen += _fallen(old, new, tolerance)
    return fallen


def _fallen(old: FigureRow, new: FigureRow, tolerance: float) -> list[str]:
    limit = tolerance + 0.5 * 10**-_PLACES
    lines = []
    for key, name in _FALLING.items():
        was, is_now = getattr(old, key), getattr(new, key)
        if was is not None and (is_now is None or was - is_now > limit):
            value = "nothing was found" if is_now is None else f"{is_now:.3f}"
            lines.append(f"{new.title}, {new.model}: {name} fell from {was:.3f} to {value}")
    error_was, error_now = old.calibration_error, new.calibration_error
    if error_was is not None and error_now is not None and error_now - error_was > limit:
        lines.append(f"{new.title}, {new.model}: calibration error rose from {error_was:.3f} to {error_now:.3f}")
    return lines
