"""`vedette replay` from the command line: load, show progress on a terminal, print the report."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from appliance import config
from appliance.config import SiteConfig
from appliance.detect import detector
from appliance.errors import ConfigError, UsageError
from appliance.replay import report
from appliance.replay.runner import replay


def replay_command(
    clip: Path, site_file: Path, *, camera: str | None, model: str | None, log: Path | None, as_json: bool
) -> int:
    """Replay `clip` and print what it raised. Returns 0, or 1 when the clip could not be read to its end."""
    site = config.load(site_file)
    if model is not None:
        site = site.model_copy(update={"detector": site.detector.model_copy(update={"model": model})})
    name = _camera(site, site_file, camera)
    loaded = detector.load(site.detector)
    with _log_file(log) as sink, _progress(quiet=as_json) as progress:
        result = replay(clip, site, name, loaded, log=sink, progress=progress)
    if as_json:
        print(json.dumps(report.as_json(result)))
    else:
        report.print_text(result, Console(highlight=False))
    return 0 if result.error is None else 1


def _camera(site: SiteConfig, site_file: Path, asked: str | None) -> str:
    names = tuple(site.cameras)
    if asked is None and len(names) == 1:
        return names[0]
    if asked is None:
        raise UsageError(f"{site_file} has {len(names)} cameras: say which with --camera ({', '.join(names)})")
    if asked not in names:
        raise ConfigError(str(site_file), [f"there is no camera `{asked}` (there is: {', '.join(names)})"])
    return asked


@contextlib.contextmanager
def _log_file(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    try:
        with path.open("wb") as sink:
            yield sink
    except OSError as error:
        raise UsageError(f"{path}: the log cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[float, float | None], None] | None]:
    """A bar on a terminal, nothing elsewhere. The callback takes seconds done and the clip's length if known."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
