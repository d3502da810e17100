"""`vedette replay` from the command line: load, show progress on a terminal, print the report."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from appliance import config
from appliance.clock import SystemClock
from appliance.config import SiteConfig
from appliance.detect import detector
from appliance.detect.detector import ObjectDetector
from appliance.detect.precision import as_remembered
from appliance.errors import SourceError, UsageError
from appliance.replay import report
from appliance.replay.cassette_arguments import VerdictWishes
from appliance.replay.cassette_command import Answering, MakeStandIn, answering, asking
from appliance.replay.logfile import LogFile, opened
from appliance.replay.programme import Asked, Item, items
from appliance.replay.result import ReplayResult
from appliance.replay.runner import Manner, Show, hands_for, play, under
from appliance.weather.weather import CLEAR, Weather


@dataclass(frozen=True, slots=True)
class _Bar:
    """told: seconds done, and the footage's length if it is known; None: nobody looks. say: what is waited for."""

    told: Callable[[float, float | None], None] | None = None
    say: Callable[[str], None] = lambda sentence: None


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the command is to go about it; see `arguments.add_replay`. stand_in: who can make one of a scenario."""

    model: str | None = None
    speed: float | None = None
    log: Path | None = None
    resume: bool = False
    as_json: bool = False
    verdicts: VerdictWishes = field(default_factory=VerdictWishes)
    stand_in: MakeStandIn | None = None
    weather: Weather = CLEAR


@dataclass(frozen=True, slots=True)
class _Done:
    """One run. results: none when the footage could not be read at all; error says why."""

    name: str
    results: tuple[ReplayResult, ...] = ()
    error: str | None = None

    @property
    def well(self) -> bool:
        return self.error is None and all(each.error is None and not each.unanswered for each in self.results)


def replay_command(asked: Asked, site_file: Path, wishes: Wishes) -> int:
    """Replay and print what it raised. Returns 0, or 1 when some footage could not be read to its end, or a question
    was not answered by whoever was to answer."""
    site = asking(config.load(site_file), wishes.verdicts)
    if wishes.model is not None:
        site = site.model_copy(update={"detector": site.detector.model_copy(update={"model": wishes.model})})
    if wishes.resume and wishes.log is None:
        raise UsageError("--resume goes on with a log: say which with --log")
    todo = items(asked, site, site_file)
    logs = _logs(todo, wishes.log)
    with answering(site, wishes.verdicts, wishes.stand_in) as answers:
        stage = _Stage(site, detector.load(as_remembered(site.detector, site.storage.dir)), wishes, answers)
        if len(todo) == 1:
            done = [_run(todo[0], logs[0], stage)]
        else:
            done = [_try(item, log, stage) for item, log in zip(todo, logs, strict=True)]
    _print(done, as_json=wishes.as_json)
    return 0 if all(each.well for each in done) else 1


def _logs(todo: Sequence[Item], log: Path | None) -> list[Path | None]:
    """Where each run's log goes: the file itself for one, `NAME.jsonl` in a folder for several."""
    if log is None:
        return [None] * len(todo)
    if len(todo) == 1 and not log.is_dir():
        return [log]
    names = [f"{item.name}.jsonl" for item in todo]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UsageError(
            f"two of the clips are called {double.removesuffix('.jsonl')}: replay their folders one by one"
        )
    try:
        log.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{log}: several runs need a folder for their logs: {error.strerror}") from None
    return [log / name for name in names]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What all runs of a command have in common."""

    site: SiteConfig
    detector: ObjectDetector
    wishes: Wishes
    answering: Answering


def _try(item: Item, log: Path | None, stage: _Stage) -> _Done:
    """One clip of many that cannot be read is told of at the end, and does not keep the others from being replayed."""
    try:
        return _run(item, log, stage)
    except SourceError as error:
        return _Done(item.name, error=str(error))


def _run(item: Item, log: Path | None, stage: _Stage) -> _Done:
    show = under(item.show(stage.site, stage.detector), stage.wishes.weather)
    show = replace(show, answers=stage.answering.answers)
    if log is None:
        return _Done(item.name, _play(show, None, item.name, stage))
    try:
        with opened(log, show.opening(), resume=stage.wishes.resume) as file:
            if file.finished is not None:
                return _Done(item.name, file.finished)
            results = _play(show, file, item.name, stage)
            file.complete()
            return _Done(item.name, results)
    except OSError as error:
        raise UsageError(f"{log}: the log cannot be written: {error.strerror}") from None


def _play(show: Show, file: LogFile | None, name: str, stage: _Stage) -> tuple[ReplayResult, ...]:
    with _progress(name, quiet=stage.wishes.as_json) as bar:
        stage.answering.say = bar.say
        manner = Manner(
            SystemClock(), stage.wishes.speed, bar.told, file.looks if file else None, hands_for(stage.site)
        )
        return play(show, file.sink if file else None, manner)


def _print(done: Sequence[_Done], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_json(done)))
        return
    console = Console(highlight=False)
    for each in done:
        for result in each.results:
            report.print_text(result, console)
        if each.error:
            report.print_failure(each.error, console)
    report.print_total([result for each in done for result in each.results], console)


def _json(done: Sequence[_Done]) -> object:
    """One clip gives one object; several runs, or cameras together, a list of them under `runs`."""
    if len(done) == 1 and len(done[0].results) == 1:
        return report.as_json(done[0].results[0])
    runs = [report.as_json(result) for each in done for result in each.results]
    failed = [{"clip": each.name, "error": each.error} for each in done if each.error is not None]
    return {"runs": runs, "failed": failed}


@contextlib.contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[_Bar]:
    """A bar on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield _Bar()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"replaying {name}", total=None)

        def told(done: float, total: float | None) -> None:
            bar.update(task, completed=done, total=total)

        def say(sentence: str) -> None:
            bar.update(task, description=f"replaying {name}{': ' if sentence else ''}{sentence}")

        yield _Bar(told, say)
