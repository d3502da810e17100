"""`vedette scenario keep`, `list` and `delete`: keep a reviewed alert as a scenario, list or delete the kept ones."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance import config
from appliance.base.clock import Clock, SystemClock, iso_utc
from appliance.base.console import text_console
from appliance.base.errors import UsageError
from appliance.keep.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.keep.scenario_store import StoredScenario
from appliance.lab.scenario.scenario_command import ReportTargets, scenario_command
from appliance.replay.replay_report import format_time
from appliance.scenario.scenario_runner import DetectorCache

_TRUTH_TEXT = {"right": "right", "false": "false alarm"}


def keep_command(
    alert: str,
    site_file: Path,
    options: KeepOptions,
    *,
    to: Path | None,
    run: bool,
    as_json: bool,
    clock: Clock | None = None,
) -> int:
    """Keep one alert. Returns 0, or what running it at once gives."""
    kept = _exporter(site_file, to, clock).keep(alert, options)
    if as_json:
        print(json.dumps(_as_json(kept)))
    else:
        _print_kept(kept, text_console(soft_wrap=True))
    return scenario_command([kept.folder], "", DetectorCache(), ReportTargets(as_json=as_json)) if run else 0


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


def _exporter(site_file: Path, to: Path | None, clock: Clock | None = None) -> ScenarioExporter:
    site = config.load(site_file)
    return ScenarioExporter(
        site.storage.dir, site.for_decisions(), site.storage.disk_free_min_mb, clock or SystemClock(), to
    )


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
