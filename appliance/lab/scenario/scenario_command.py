"""`vedette scenario run`, `keep`, `list` and `delete`; results as text, HTML, JSON and JUnit XML.

The XML has the form that Jenkins, GitLab, GitHub Actions and Azure read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.progress import SpinnerColumn, TextColumn
from rich.table import Table

from appliance import config
from appliance.base.clock import SystemClock, iso_utc
from appliance.base.console import CommandProgress, text_console
from appliance.base.errors import ConfigError, UsageError
from appliance.base.local_files import DiskWriteError, check_output, is_special, write_file
from appliance.lab.scenario import html_report
from appliance.lab.scenario.html_report import StillsByFrame, cut_stills
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.replay_report import format_time
from appliance.scenario import scenario_loader, scenario_runner
from appliance.scenario.metrics import EventFigures, event_figures, format_estimate
from appliance.scenario.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.scenario.scenario_loader import ScenarioPlan, plans_by_conditions, read_condition_sets
from appliance.scenario.scenario_result import ScenarioResult, fault_lines
from appliance.scenario.scenario_runner import DetectorCache
from appliance.scenario.scenario_store import StoredScenario

# Characters that XML 1.0 cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(results: Sequence[ScenarioResult], now: float) -> bytes:
    """Return one suite, one case a scenario; one that failed has one `failure` with all its words. now: UTC seconds."""
    failed = sum(result.status == "failed" for result in results)
    skipped = sum(result.status in ("skipped", "known failing") for result in results)
    counts = {
        "name": "vedette scenarios",
        "tests": str(len(results)),
        "failures": str(failed),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{sum(result.wall_s for result in results):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {**counts, "timestamp": iso_utc(now)[:19]})
    for result in results:
        _case(suite, result)
    ElementTree.indent(root)
    page: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return page + b"\n"


def _case(suite: ElementTree.Element, result: ScenarioResult) -> None:
    folder = result.file.parent.as_posix().strip("./").replace("/", ".") or "scenarios"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": _clean(folder),
            "name": _clean(result.name),
            "time": f"{result.wall_s:.3f}",
            "file": _clean(result.file.as_posix()),
        },
    )
    if result.judged_by:
        properties = ElementTree.SubElement(case, "properties")
        ElementTree.SubElement(properties, "property", {"name": "verdicts_by", "value": _clean(result.judged_by)})
    if result.status == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": _clean(result.reason)})
    elif result.status == "known failing":
        # As pytest writes an expected failure: JUnit itself knows none.
        message = _clean(f"known failing: {result.reason}")
        ElementTree.SubElement(case, "skipped", {"type": "pytest.xfail", "message": message}).text = _clean(result.text)
    elif result.status == "failed":
        first, more = result.failures[0].title, len(result.failures) - 1
        message = f"{first} (and {more} more)" if more else first
        failure = ElementTree.SubElement(
            case, "failure", {"message": _clean(message), "type": result.failures[0].kind.replace(" ", "-")}
        )
        failure.text = _clean(result.text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)


_TRUTH_TEXT = {"right": "right", "false": "false alarm"}
_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow", "known failing": "yellow"}
_result: TypeAdapter[ScenarioResult] = TypeAdapter(ScenarioResult)
_figures: TypeAdapter[EventFigures] = TypeAdapter(EventFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTargets:
    """The report files beside the terminal, and whether the terminal gets JSON."""

    junit: Path | None = None
    html: Path | None = None
    as_json: bool = False


def run_command(
    paths: Sequence[Path],
    pattern: str,
    model: str | None,
    reports: ReportTargets,
    conditions: Sequence[str],
    seed: int,
) -> int:
    """Run `vedette scenario run`; see `scenario_command`."""
    sets = read_condition_sets(conditions, seed)
    return scenario_command(paths, pattern, DetectorCache(model), reports, condition_sets=sets)


def scenario_command(
    paths: Sequence[Path],
    pattern: str,
    models: DetectorCache,
    reports: ReportTargets,
    condition_sets: Sequence[ConditionSet] = (),
    beside: Mapping[str, object] | None = None,
) -> int:
    """Run every scenario at `paths`. Returns 0 when none failed, else 1. Raises UsageError before anything is run.

    condition_sets: run each under these instead of its own. beside: more for the JSON object.
    """
    clock = SystemClock()
    plans = [
        each
        for one in load_scenarios(scenario_loader.find_scenarios(paths, pattern))
        for each in plans_by_conditions(one, condition_sets)
    ]
    check_writable(reports.junit, _JUNIT)
    check_writable(reports.html)
    # The stills of each scenario are cut as soon as it is evaluated: its clip is still in the page cache.
    results: list[ScenarioResult] = []
    stills: list[StillsByFrame] = []
    for number, each in enumerate(plans, start=1):
        with progress_status(f"{number}/{len(plans)} {each.name}", quiet=reports.as_json):
            results.append(scenario_runner.run_scenario(each, models, clock=clock))
            stills.append(cut_stills(results[-1], stills) if reports.html else {})
    _write(results, stills, reports, clock.now())
    if reports.as_json:
        print(json.dumps({**(beside or {}), **as_json(results), "runtime": models.ways}))
    else:
        console = text_console(soft_wrap=True)
        print_text(results, console)
        if models.ways:
            console.print(f"The network ran by {', '.join(models.ways)}, as the appliance takes it here.")
    return 1 if any(result.status == "failed" for result in results) else 0


def load_scenarios(files: Sequence[Path]) -> list[ScenarioPlan]:
    """Read all files first, so that a fault in the last one is reported at once. Raises ConfigError with all faults."""
    plans, problems, sources = [], [], []
    for file in files:
        try:
            plans.append(scenario_loader.load_scenario(file))
        except ConfigError as error:
            sources.append(error.source)
            problems += [f"{error.source}: {problem}" for problem in error.problems]
    if len(sources) == 1:
        raise ConfigError(sources[0], [problem.removeprefix(f"{sources[0]}: ") for problem in problems])
    if problems:
        raise ConfigError(f"{len(sources)} scenarios", problems)
    return plans


HTML = ("an HTML report", re.compile(rb"\s*<!doctype html", re.IGNORECASE))
_JUNIT = ("a JUnit report", re.compile(rb"\s*<(\?xml|testsuite)"))


def check_writable(path: Path | None, kind: tuple[str, re.Pattern[bytes]] = HTML) -> None:
    """Raise UsageError before anything is run, where it can be known.

    kind: what is written, and how it begins.
    """
    if path is not None:
        check_output(path, *kind)


@contextmanager
def progress_status(what: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner, or lines, while the caller works on `what`."""
    with CommandProgress(SpinnerColumn(), TextColumn("{task.description}"), quiet=quiet) as status:
        status.add_task(escape(what), total=None)
        yield


def _write(
    results: Sequence[ScenarioResult], stills: Sequence[StillsByFrame], reports: ReportTargets, now: float
) -> None:
    if reports.junit:
        write_report(reports.junit, junit_report(results, now))
    if reports.html:
        write_report(reports.html, html_report.html_report(results, stills, total_figures(results), now).encode())


def write_report(path: Path, data: bytes) -> None:
    """Write it whole or not at all, except into a pipe or a device. Raises UsageError."""
    try:
        if path.exists() and is_special(path):
            path.write_bytes(data)
        else:
            write_file(path.resolve(), data)
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from None
    except DiskWriteError as error:
        raise UsageError(f"{path}: the report cannot be written: {error}") from None


def total_figures(results: Sequence[ScenarioResult]) -> EventFigures:
    """Return the figures of all scenarios that ran, as if they were one."""
    evaluated = [result for result in results if result.events is not None]
    return event_figures(
        [outcome for result in evaluated for outcome in result.judgement.required_outcomes],
        [outcome for result in evaluated for outcome in result.judgement.judged_outcomes],
        [hit.delay_s for result in evaluated for hit in result.judgement.hits if hit.delay_s is not None],
        alerts=sum(result.events.alerts for result in evaluated if result.events),
        footage_s=sum(result.events.footage_s for result in evaluated if result.events),
    )


def as_json(results: Sequence[ScenarioResult]) -> dict[str, Any]:
    """Return every field of each result under its own name, and the sums."""
    total = total_figures(results)
    return {
        "passed": not any(result.status == "failed" for result in results),
        "total": {**json.loads(_figures.dump_json(total)), "alerts_per_hour": total.alerts_per_hour},
        # By way of dump_json: the end of a window that has none is null, not JavaScript's Infinity.
        "scenarios": [json.loads(_result.dump_json(result)) for result in results],
    }


def print_text(results: Sequence[ScenarioResult], console: Console) -> None:
    """Print the table, the faults, and the sums last."""
    console.print(_table(results))
    for result in results:
        if result.faults or result.reason:
            _print_faults(result, console)
    console.print()
    for line in summary_lines(results):
        console.print(escape(line))


def _table(results: Sequence[ScenarioResult]) -> Table:
    table = Table()
    for name in ("scenario", "", "came", "missed", "false", "alerts", "delay", "footage"):
        table.add_column(name, justify="left" if name in ("scenario", "") else "right")
    for result in results:
        events, matches = result.events, result.judgement
        figures = ["-"] * 6
        if events is not None:
            figures = [
                f"{sum(matches.required_outcomes)} of {len(matches.required_outcomes)}",
                str(sum(miss.missing for miss in matches.misses)),
                str(len(matches.false_alarms)),
                str(events.alerts),
                "-" if events.delay_s.value is None else f"{events.delay_s.value:.1f} s",
                format_time(events.footage_s),
            ]
        table.add_row(escape(result.name), f"[{_COLOURS[result.status]}]{result.status}[/]", *figures)
    return table


def _print_faults(result: ScenarioResult, console: Console) -> None:
    console.print(f"\n[{_COLOURS[result.status]}]{escape(result.name)}[/] ({escape(str(result.file))})")
    if result.reason:
        console.print(f"  {escape(result.reason)}")
    for fault in result.faults:
        for line in fault_lines(fault):
            console.print(f"  {escape(line)}")


def summary_lines(results: Sequence[ScenarioResult]) -> list[str]:
    """Say how many passed, the events' figures with their intervals, the alerts, and the model; plain text."""
    total = total_figures(results)
    counts = [(sum(result.status == status for result in results), status) for status in _COLOURS]
    lines = [", ".join(f"{count} {status}" for count, status in counts if count)]
    if total.footage_s:
        unjudged = sum(len(result.judgement.unjudged) for result in results)
        lines.append(
            f"events: recall {format_estimate(total.recall)} of {total.recall.of}, "
            f"precision {format_estimate(total.precision)} of "
            f"{total.precision.of}, delay {format_estimate(total.delay_s)} s (median, 95 % intervals)"
            + (f"; {unjudged} that no entry speaks of" if unjudged else "")
        )
        per_hour = total.alerts_per_hour or 0.0
        lines.append(f"{total.alerts} alerts in {format_time(total.footage_s)} of footage ({per_hour:.1f} an hour)")
    models = sorted({result.model for result in results if result.model})
    judges = sorted({result.judged_by for result in results if result.judged_by})
    return [*lines, *([f"model {', '.join(models)}"] if models else []), *(f"verdicts by {judge}" for judge in judges)]


def keep_command(
    alert: str,
    site_file: Path,
    options: KeepOptions,
    *,
    to: Path | None,
    run: bool,
    as_json: bool,
) -> int:
    """Keep one alert. Returns 0, or what running it at once gives."""
    kept = _exporter(site_file, to).keep(alert, options)
    if not as_json:
        _print_kept(kept, text_console(soft_wrap=True))
    elif not run:
        print(json.dumps(_as_json(kept)))
    if not run:
        return 0
    return scenario_command([kept.folder], "", DetectorCache(), ReportTargets(as_json=as_json), beside=_as_json(kept))


def list_command(site_file: Path, *, to: Path | None, as_json: bool) -> int:
    """List what is kept. Returns 0."""
    store = _exporter(site_file, to).store
    store.sweep()
    found = store.all()
    if as_json:
        print(json.dumps({"folder": str(store.folder), "scenarios": [_as_json(each) for each in found]}))
        return 0
    console = text_console(soft_wrap=True)
    if not found:
        console.print(f"No scenario is kept in {escape(str(store.folder))}.")
        return 0
    table = Table("scenario", "camera", "when (UTC)", "truth", "length", "MB", "note")
    for each in found:
        table.add_row(*(escape(cell) for cell in _row(each)))
    console.print(table)
    console.print(f"{sum(each.bytes for each in found) / 1e6:.1f} MB in {escape(str(store.folder))}")
    return 0


def delete_command(name: str, site_file: Path, *, to: Path | None) -> int:
    """Delete one. Raises UsageError when there is none of that name."""
    store = _exporter(site_file, to).store
    if not store.delete(name):
        raise UsageError(f"there is no scenario `{name}` in {store.folder}")
    text_console(soft_wrap=True).print(f"deleted {escape(str(store.folder / name))}")
    return 0


def _exporter(site_file: Path, to: Path | None) -> ScenarioExporter:
    site = config.load(site_file)
    return ScenarioExporter(site.storage.dir, site.for_decisions(), site.storage.disk_free_min_mb, SystemClock(), to)


def _row(each: StoredScenario) -> tuple[str, ...]:
    kept = each.card
    megabytes = f"{each.bytes / 1e6:.1f}"
    if kept is None:
        return (each.name, "", "", "", "", megabytes, "not kept by Vedette")
    when = iso_utc(kept.t_start)[:19].replace("T", " ")
    return (
        each.name,
        kept.camera,
        when,
        _TRUTH_TEXT[kept.truth],
        format_time(kept.t_end - kept.t_start),
        megabytes,
        kept.note,
    )


def _print_kept(stored: StoredScenario, console: Console) -> None:
    kept = stored.card
    assert kept is not None, "it was just written"
    console.print(f"kept alert {escape(kept.alert)} as {escape(str(stored.folder))} ({stored.bytes / 1e6:.1f} MB)")
    expected = f"{kept.expect} to be reported, {kept.never} never"
    others = ", and nothing else" if kept.complete else "; what else comes is not judged (--complete)"
    console.print(f"  {_TRUTH_TEXT[kept.truth]}: {expected}{others}")
    if kept.lacks:
        console.print(f"  the clip lacks something: {escape(kept.lacks)}")
    console.print("  It shows people: personal data, kept until you delete it.")
    console.print(f"  vedette scenario run {escape(str(stored.folder))}")


def _as_json(stored: StoredScenario) -> dict[str, object]:
    kept = None if stored.card is None else stored.card.model_dump(mode="json")
    return {"name": stored.name, "folder": str(stored.folder), "bytes": stored.bytes, "kept": kept}
