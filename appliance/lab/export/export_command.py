"""`vedette export`: settings from the command line, progress on a terminal, the numbers at the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from appliance import config
from appliance.base.clock import parse_moment
from appliance.base.console import CommandProgress, text_console
from appliance.base.errors import UsageError
from appliance.config import DecisionConfig
from appliance.lab.export.alert_exporter import Exporter, ExportProgress
from appliance.lab.export.coco_yolo_formats import ExportReport
from appliance.lab.export.export_folder import SPLITS, ExportFolder, ExportFormat, ExportSettings, zip_folder

PER_ALERT_MAX = 200  # bound of --per-alert


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of `vedette export`."""

    format: ExportFormat
    to: Path
    t_from: str | None = None
    t_to: str | None = None
    labels: str | None = None
    cameras: str | None = None
    split: float = 0.8
    per_alert: int = 6
    zip: bool = False
    as_json: bool = False


def export_command(options: ExportOptions, site_file: Path) -> int:
    """Export. Returns 0; raises UsageError, StoreError and DiskWriteError."""
    site = config.load(site_file)
    exporter = Exporter(site.storage, export_settings(options, site.for_decisions()), options.to)
    with _progress(quiet=options.as_json) as progress:
        report = exporter.run(progress)
        zipped = _zipped(exporter, options.to) if options.zip else None
    if options.as_json:
        print(json.dumps({"folder": str(options.to), "zip": None if zipped is None else str(zipped), **asdict(report)}))
    else:
        _print(report, options.to, zipped, text_console(soft_wrap=True))
    return 0


def _zipped(exporter: Exporter, to: Path) -> Path:
    folder = ExportFolder(to)
    exporter.must_have_room(sum(file.stat().st_size for file in folder.files()))
    return zip_folder(folder)


def export_settings(options: ExportOptions, site: DecisionConfig) -> ExportSettings:
    """The options as settings. Raises UsageError."""
    if not 0 <= options.split <= 1:
        raise UsageError(f"--split is a share of the incidents, from 0 to 1; {options.split:g} is not")
    if not 1 <= options.per_alert <= PER_ALERT_MAX:
        raise UsageError(f"--per-alert is from 1 to {PER_ALERT_MAX}")
    watched = tuple(
        dict.fromkeys(label for camera in site.cameras.values() for rule in camera.rules for label in rule.labels)
    )
    labels = watched if options.labels is None else _names(options.labels, "--labels")
    cameras = None if options.cameras is None else _names(options.cameras, "--cameras")
    if not labels:
        raise UsageError("no rule of the site file watches for anything: say which labels with --labels")
    for camera in cameras or ():
        if camera not in site.cameras:
            raise UsageError(f"there is no camera `{camera}` (there is: {', '.join(site.cameras)})")
    t_from = None if options.t_from is None else parse_moment(options.t_from)
    t_to = None if options.t_to is None else parse_moment(options.t_to)
    if t_from is not None and t_to is not None and t_to <= t_from:
        raise UsageError("--to-time must be later than --from")
    return ExportSettings(
        site=site.site.name, format=options.format, labels=labels, cameras=cameras, t_from=t_from, t_to=t_to,
        split=options.split, per_alert=options.per_alert,
    )  # fmt: skip


def _names(text: str, option: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise UsageError(f"{option} is a list such as person,car")
    return found


def _print(report: ExportReport, to: Path, zipped: Path | None, console: Console) -> None:
    images = report.pictures
    console.print(
        f"{sum(images.values())} pictures in {escape(str(to))}: {images['train']} to train, {images['val']} to "
        f"validate; {report.boxes} boxes, {report.backgrounds} pictures of false alarms without one"
    )
    console.print(
        f"  {report.alerts['right']} right alerts and {report.alerts['false alarm']} false alarms"
        + (f", {report.reused} of them from an earlier run" if report.reused else "")
    )
    console.print(f"  left out: {report.left_out_text}")
    for part in SPLITS:
        if sum(images.values()) and not images[part]:
            console.print(f"  nothing in {part} yet: so few incidents all fell into the other part")
    if zipped is not None:
        console.print(f"  and as {escape(str(zipped))}")
    console.print("  The boxes are the detector's own, and the pictures show people: read its README.md.")


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[ExportProgress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with CommandProgress(*columns, quiet=quiet) as bar:
        task = bar.add_task("exporting alerts", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
