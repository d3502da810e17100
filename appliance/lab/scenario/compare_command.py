"""`vedette scenario compare`: finds out whether a variant of a network may replace it, on this footage."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from appliance.base.clock import Clock, SystemClock, iso_utc, process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.base.console import text_console
from appliance.base.errors import SourceError, UsageError
from appliance.bundle.manifest import sha256_of
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.detect.model_advice import MeasuredFigures, VariantMeasurement, measurement_path
from appliance.detect.model_files import cpu_name
from appliance.detect.runtime_choice import GAIN_MIN, trial_frame
from appliance.lab.scenario.scenario_command import (
    check_writable,
    load_scenarios,
    progress_status,
    total_figures,
    write_report,
)
from appliance.scenario import scenario_loader, scenario_runner
from appliance.scenario.metrics import EventFigures
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader

EVENTS_MIN = 10  # with fewer, one event more or less is a tenth and chance decides
TOLERANCE = 0.01  # by which a share may be lower and still count as the same
COST_RUNS = 15  # inferences of each model, a median

InferenceCost = Callable[[Sequence[ObjectDetector]], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """tolerance: by which each figure may be lower. out: where the result is kept; None: beside the variant's file."""

    base: str
    variant: str
    tolerance: float = TOLERANCE
    events_min: int = EVENTS_MIN
    out: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One network on all scenarios. cpu_ms: of one inference."""

    name: str
    results: tuple[ScenarioResult, ...]
    cpu_ms: float

    @property
    def total(self) -> EventFigures:
        return total_figures(self.results)


def compare_command(
    paths: Sequence[Path],
    pattern: str,
    options: CompareOptions,
    load: DetectorLoader | None = None,
    cost: InferenceCost | None = None,
) -> int:
    """Return 0 when the variant is recommended, else 1. Raises UsageError, SourceError and ModelError."""
    clock = SystemClock()
    plans = [each for each in load_scenarios(scenario_loader.find_scenarios(paths, pattern)) if not each.absent]
    if not plans:
        raise UsageError("the footage of none of these scenarios is there")
    base_file, variant_file = _file_of(options.base), _file_of(options.variant)
    target = options.out or (measurement_path(variant_file) if variant_file else None)
    check_writable(target, ("a measurement of a variant", re.compile(rb'\{\s*"version": ?1,\s*"variant"')))
    runs = _runs(plans, options, load, cost or cost_in_turns, clock)
    reasons = reasons_against(*runs, tolerance=options.tolerance, events_min=options.events_min)
    found = VariantMeasurement(
        variant=runs[1].name,
        variant_sha256=sha256_of(variant_file) if variant_file else "0" * 64,
        base=runs[0].name,
        base_sha256=sha256_of(base_file) if base_file else "",
        recommended=not reasons,
        reasons=tuple(reasons),
        scenarios=tuple(plan.name for plan in plans),
        events=runs[0].total.recall.of,
        footage_s=round(runs[0].total.footage_s, 1),
        figures={"base": _figures(runs[0]), "variant": _figures(runs[1])},
        measured=iso_utc(clock.now()),
        machine=cpu_name(),
    )
    if target is not None and variant_file is not None:
        write_report(target, (found.model_dump_json(indent=1) + "\n").encode())
    if options.as_json:
        print(json.dumps({**found.model_dump(mode="json"), "differences": _differences(*runs)}))
    else:
        _print(found, runs, target)
    return 0 if found.recommended else 1


def _file_of(model: str) -> Path | None:
    """Return the model's file. Raise ModelError."""
    found = detector_loader.locate(DetectorConfig(model=model))
    return None if found is None else found.path


def _runs(
    plans: Sequence[ScenarioPlan],
    options: CompareOptions,
    load: DetectorLoader | None,
    cost: InferenceCost,
    clock: Clock,
) -> tuple[ModelRun, ModelRun]:
    """Run each scenario with one network and then the other, while its clip is in the page cache."""
    # Each as its file is, not as the appliance would run it: compared are two files.
    caches = [DetectorCache(name, load=load or detector_loader.load) for name in (options.base, options.variant)]
    results: tuple[list[ScenarioResult], list[ScenarioResult]] = ([], [])
    for number, plan in enumerate(plans, start=1):
        for which, (cache, into) in enumerate(zip(caches, results, strict=True)):
            status = f"{number}/{len(plans)} {plan.name}: {(options.base, options.variant)[which]}"
            with progress_status(status, quiet=options.as_json):
                result = scenario_runner.run_scenario(plan, cache, clock=clock)
            if unread := next((each for each in result.faults if each.kind == "footage" and each.fails), None):
                raise SourceError(f"{plan.name}: {unread.title}")
            into.append(result)
    loaded = [cache.get(plans[-1].config.detector) for cache in caches]
    base_ms, variant_ms = cost(loaded)
    return (
        ModelRun(loaded[0].name, tuple(results[0]), base_ms),
        ModelRun(loaded[1].name, tuple(results[1]), variant_ms),
    )


def cost_in_turns(networks: Sequence[ObjectDetector]) -> list[float]:
    """Return the median CPU ms of an inference of each, in turns, so that other load falls on all alike."""
    frames = [trial_frame(network) for network in networks]
    took: list[list[float]] = [[] for _ in networks]
    for run in range(1 + COST_RUNS):
        for network, frame, into in zip(networks, frames, took, strict=True):
            at = process_cpu_s()
            network.detect([frame])
            if run:  # the first pays for memory and caches
                into.append((process_cpu_s() - at) * 1000)
    return [statistics.median(each) for each in took]


def reasons_against(base: ModelRun, variant: ModelRun, *, tolerance: float, events_min: int) -> list[str]:
    """Say why the variant may not be recommended, the weightiest first; []: it may."""
    before, after = base.total, variant.total
    found = [
        f"{one.name} passes with {base.name} and fails with the variant"
        for one, other in zip(base.results, variant.results, strict=True)
        if one.status == "passed" and other.status == "failed"
    ]
    shares = [
        ("recall", before.recall.value, after.recall.value),
        ("precision", before.precision.value, after.precision.value),
    ]
    for one, other in zip(base.results, variant.results, strict=True):
        if one.tracks is not None and other.tracks is not None:
            shares += [
                (f"{name} of {one.name}", getattr(one.tracks, name), getattr(other.tracks, name))
                for name in ("ap50", "hota", "idf1", "mota")
            ]
    for name, old, new in shares:
        if old is not None and (new is None or new < old - tolerance - 1e-9):
            now = "nothing" if new is None else f"{new:.3f}"
            found.append(f"{name} falls from {old:.3f} to {now}, by more than {tolerance:g}")
    wrong = sum(len(each.judgement.false_alarms) for each in variant.results)
    was_wrong = sum(len(each.judgement.false_alarms) for each in base.results)
    if wrong > was_wrong * (1 + tolerance):
        found.append(f"{wrong} false alarms instead of {was_wrong}")
    if before.recall.of < events_min:
        found.append(
            f"only {before.recall.of} events had to be reported in this footage: {events_min} are the least that "
            "tells the two apart"
        )
    if variant.cpu_ms > base.cpu_ms * (1 - GAIN_MIN):
        found.append(f"it spares nothing here: {variant.cpu_ms:.1f} ms of CPU an inference against {base.cpu_ms:.1f}")
    return found


def _figures(run: ModelRun) -> MeasuredFigures:
    total = run.total
    tracks = [each.tracks for each in run.results if each.tracks is not None]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.fmean(known), 4) if known else None

    return MeasuredFigures(
        passed=sum(each.status == "passed" for each in run.results),
        recall=total.recall.value,
        precision=total.precision.value,
        false_alarms=sum(len(each.judgement.false_alarms) for each in run.results),
        alerts=total.alerts,
        hota=mean([each.hota for each in tracks]),
        idf1=mean([each.idf1 for each in tracks]),
        ap50=mean([each.ap50 for each in tracks]),
        cpu_ms=round(run.cpu_ms, 2),
    )


def _differences(base: ModelRun, variant: ModelRun) -> list[dict[str, object]]:
    """List, scenario by scenario, what came with each."""
    return [
        {
            "scenario": one.name,
            "status": [one.status, other.status],
            "reported": [sum(each.judgement.required_outcomes) for each in (one, other)],
            "required": len(one.judgement.required_outcomes),
            "false_alarms": [len(each.judgement.false_alarms) for each in (one, other)],
        }
        for one, other in zip(base.results, variant.results, strict=True)
    ]


def _print(found: VariantMeasurement, runs: Sequence[ModelRun], target: Path | None) -> None:
    console = text_console(soft_wrap=True)
    table = Table()
    for name in ("scenario", "", "came", "false"):
        table.add_column(name)
    for each in _differences(*runs):
        rows = {name: value for name, value in each.items() if isinstance(value, list)}
        status, reported, wrong = rows["status"], rows["reported"], rows["false_alarms"]
        table.add_row(
            escape(str(each["scenario"])),
            status[0] if status[0] == status[1] else f"{status[0]} -> [bold]{status[1]}[/]",
            f"{_change(reported)} of {each['required']}",
            _change(wrong),
        )
    console.print(table)
    for name in MeasuredFigures.model_fields:
        old, new = (getattr(found.figures[which], name) for which in ("base", "variant"))
        if old is not None or new is not None:
            console.print(f"{name.replace('_', ' '):14} {_number(old):>8} -> {_number(new)}")
    console.print(f"\n{escape(found.variant)} instead of {escape(found.base)}: ", end="")
    console.print("[green]recommended[/]" if found.recommended else "[red]not recommended[/]")
    for reason in found.reasons:
        console.print(f"  {escape(reason)}")
    if target is not None:
        console.print(f"kept in {escape(str(target))}, where `vedette check` reads it")


def _change(pair: Sequence[object]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} -> {pair[1]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
