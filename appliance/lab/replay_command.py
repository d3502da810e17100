"""`vedette replay`: makes replays of clips, folders or recordings from its options, plays them, prints the report."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from appliance import config
from appliance.base import yamlfile
from appliance.base.clock import SystemClock, iso_utc, local_weekday_minute, parse_moment
from appliance.base.console import CommandProgress, text_console
from appliance.base.errors import ConfigError, MissingDependency, SourceError, UsageError, camera_address
from appliance.config import ReplaySections
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.detect.runtime_choice import as_at_run_time, way_text
from appliance.ingest.hardware_decoders import HardwareDecoders
from appliance.lab.replay_verdicts import (
    ActiveVerdictSource,
    MakeOracle,
    ShowStatus,
    open_verdict_source,
    site_for_verdicts,
)
from appliance.replay import replay_report
from appliance.replay.footage import RecordingSource, TimeSpan
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet
from appliance.replay.replay_log_writer import Replayed, run_id_of
from appliance.replay.replay_plan import (
    ReplayInput,
    ReplayOptions,
    ReplayPlan,
    ReplayProgress,
    clip_input,
    read_stood_before,
    with_conditions,
    with_hardware,
    with_stood_before,
    workers_for,
)
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_resume import OpenLog, open_log
from appliance.replay.replay_runner import play
from appliance.replay.verdict_source import VerdictOptions
from appliance.rules.engine import unknown_labels
from appliance.scenario.scenario_verdicts import oracle_for_replay
from appliance.store.storage_reader import StorageArchive
from appliance.types import HardwareKind

_CONTAINERS = {".mp4", ".mkv", ".avi", ".mov", ".m4v", ".webm", ".ts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".3gp"}
_RAW = {".264", ".h264", ".265", ".h265", ".hevc", ".gif"}
VIDEO_SUFFIXES = frozenset(_CONTAINERS | _RAW)
FILES_MAX = 10_000  # clips of one run; more are a folder by mistake
_ADDRESS = re.compile(r"(rtsps?|rtmps?|https?|ftp|udp|tcp|nats):/", re.IGNORECASE)
DEFAULT_CAMERA = "clip"  # of a replay without a site file


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The footage that the command line selects for replay."""

    paths: Sequence[Path] = ()  # clips and folders of them
    cameras: Sequence[str] = ()  # values of --camera, `NAME` or `NAME=CLIP`
    t_from: str | None = None  # as written
    t_to: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """One replay: a clip of one camera, clips of several together, or (clips empty) the recording of some cameras."""

    name: str
    cameras: tuple[str, ...]
    clips: tuple[Path, ...] = ()
    span: TimeSpan | None = None

    def plan(self, config: ReplaySections, detector: ObjectDetector) -> ReplayPlan:
        """Plan the replay of this footage. Raise SourceError, StoreError."""
        if self.span is None:
            inputs = [
                clip_input(clip, config.decisions, camera, detector)
                for camera, clip in zip(self.cameras, self.clips, strict=True)
            ]
            return ReplayPlan(tuple(inputs), config.decisions, detector)
        span = self.span
        inputs = [_recording(camera, config, span, detector) for camera in self.cameras]
        return ReplayPlan(
            tuple(inputs), config.decisions, detector, local_time=lambda t: local_weekday_minute(span.t0 + t)
        )


def replay_targets(selection: ReplaySelection, config: ReplaySections, site_file: Path) -> list[ReplayTarget]:
    """Return the footage to replay, in order. Raise UsageError or ConfigError with what would be right."""
    pairs = [each.partition("=") for each in selection.cameras]
    named = any(sign for _, sign, _ in pairs)
    for name, sign, clip in pairs:
        if sign and not clip:
            raise UsageError(f"--camera {name}= names no clip: write --camera {name or 'gate'}=clip.mp4")
    _refuse_mixed_kinds(selection, named=named)
    if named:
        if not all(sign for _, sign, _ in pairs):
            raise UsageError("say of every camera what it plays: --camera gate=gate.mp4 --camera yard=yard.mp4")
        cameras = [_known(name, config, site_file) for name, _, _ in pairs]
        if len(set(cameras)) < len(cameras):
            raise UsageError("a camera can play one clip at a time; --camera names one twice")
        return [ReplayTarget("+".join(cameras), tuple(cameras), tuple(Path(clip) for _, _, clip in pairs))]
    names = [_known(name, config, site_file) for name in dict.fromkeys(selection.cameras)] or [_only(config, site_file)]
    if selection.t_from is not None:
        return [_recorded(names, selection, config)]
    if len(names) > 1:
        raise UsageError("clips go to one camera; several together: --camera gate=gate.mp4 --camera yard=yard.mp4")
    return [ReplayTarget(file.name, (names[0],), (file,)) for file in video_files(selection.paths)]


def video_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files themselves, and of each folder its videos, sorted by name. Raises UsageError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if _ADDRESS.match(str(path)):  # Path made one slash of two
                raise UsageError(
                    f"{camera_address(str(path).replace(':/', '://', 1))} is an address: replay takes files; a camera "
                    "goes into the site file, and its recording is replayed with --from"
                )
            found.append(path)
            continue
        try:
            inside = sorted(each for each in path.iterdir() if each.suffix.lower() in VIDEO_SUFFIXES and each.is_file())
        except OSError as error:
            raise UsageError(f"the folder {path} cannot be read: {error.strerror}") from None
        if not inside:
            raise UsageError(f"there is no video in {path} (looked for {', '.join(sorted(VIDEO_SUFFIXES))})")
        found += inside
    if len(found) > FILES_MAX:
        raise UsageError(f"{len(found)} files at once are too many; at most {FILES_MAX}")
    return found


def _refuse_mixed_kinds(selection: ReplaySelection, *, named: bool) -> None:
    recording = selection.t_from is not None or selection.t_to is not None
    if (bool(selection.paths) + named + recording) != 1:
        raise UsageError(
            "say what to replay, in one way: clips or folders, or --camera NAME=CLIP for several together, or "
            "--camera NAME --from TIME for what this appliance recorded (see vedette replay --help)"
        )
    if recording and selection.t_from is None:
        raise UsageError("--to needs --from")


def _only(config: ReplaySections, site_file: Path) -> str:
    names = tuple(config.decisions.cameras)
    if len(names) == 1:
        return names[0]
    raise UsageError(f"{site_file} has {len(names)} cameras: say which with --camera ({', '.join(names)})")


def _known(name: str, config: ReplaySections, site_file: Path) -> str:
    if name not in config.decisions.cameras:
        there = ", ".join(config.decisions.cameras)
        raise ConfigError(str(site_file), [f"there is no camera `{name}` (there is: {there})"])
    return name


def _recorded(cameras: Sequence[str], selection: ReplaySelection, config: ReplaySections) -> ReplayTarget:
    archive = StorageArchive(config.storage.dir)
    spans = {camera: archive.span(camera) for camera in cameras}
    known = [span for span in spans.values() if span is not None]
    if not known:
        raise SourceError(f"nothing is recorded of {', '.join(cameras)} in {config.storage.dir}")
    t0 = parse_moment(selection.t_from or "")
    t1 = parse_moment(selection.t_to) if selection.t_to is not None else max(end for _, end in known)
    begin, end = min(begin for begin, _ in known), max(end for _, end in known)
    if t0 >= t1 and selection.t_to is not None:
        raise UsageError("--to must be later than --from")
    if t0 > end or t1 < begin:
        raise SourceError(
            f"nothing is recorded of that time: {config.storage.dir} holds {iso_utc(begin)} to {iso_utc(end)}"
        )
    return ReplayTarget("+".join(cameras), tuple(cameras), span=TimeSpan(t0, t1))


def _recording(camera: str, config: ReplaySections, span: TimeSpan, detector: ObjectDetector) -> ReplayInput:
    archive = StorageArchive(config.storage.dir)
    rows = archive.segments(camera, span.t0, span.t1)
    if not rows:
        raise SourceError(f"nothing is recorded of {camera} between {iso_utc(span.t0)} and {iso_utc(span.t1)}")
    source = RecordingSource(archive.root, camera, span, rows, archive.gaps(camera, span.t0, span.t1))
    plan = config.decisions.cameras[camera]
    readable = [(path, limit) for path, limit in source.files() if path.is_file()]
    run = run_id_of(readable, camera, plan, config.decisions.detector, f"{detector.name}|{span.t0!r}|{span.t1!r}")
    replayed = Replayed(
        camera=camera,
        kind="recording",
        clip=source.name,
        run=run,
        files=len(rows),
        t_from=span.t0,
        t_to=span.t1,
    )
    return ReplayInput(source, replayed)


@dataclass(frozen=True, slots=True)
class ReplayCommandOptions:
    """How the replay is done; see `vedette replay --help`."""

    model: str | None = None
    speed: float | None = None
    log: Path | None = None
    resume: bool = False
    as_json: bool = False
    verdicts: VerdictOptions = field(default_factory=VerdictOptions)
    oracle: MakeOracle | None = None  # makes the oracle judge of a scenario
    conditions: ConditionSet = NO_CONDITIONS
    stood_before: Path | None = None  # see `read_stood_before`
    hardware: HardwareKind | None = None  # what decodes; None: software


@dataclass(frozen=True, slots=True)
class _Finished:
    """One replay: its results, or why the footage could not be read at all."""

    name: str
    results: tuple[ReplayResult, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and all(each.end.error is None and not each.unanswered for each in self.results)


def default_site(selection: ReplaySelection) -> ReplaySections:
    """Return the site of a replay without a site file.

    It has default settings, and for each camera rules for people and vehicles that enter the frame. Raise UsageError
    for what only a site file says.
    """
    if selection.t_from is not None or selection.t_to is not None:
        raise UsageError("--from replays what an appliance has recorded: say which with --config")
    rules = [
        {"name": "person", "kind": "enter", "zone": "picture", "labels": ["person"]},
        {"name": "vehicle", "kind": "enter", "zone": "picture", "labels": ["car", "bus", "truck"]},
    ]
    zones = {"picture": [[0, 0], [1, 0], [1, 1], [0, 1]]}
    names = [each.partition("=")[0] for each in selection.cameras] or [DEFAULT_CAMERA]
    try:
        cameras = {name: {"url": "file:clip", "zones": zones, "rules": rules} for name in names}
        return config.of_cameras(cameras).for_replay()
    except ValidationError:
        raise UsageError(f"--camera {names[0]}: a name is of small letters, digits, - and _") from None


def _warn_of_unknown_labels(site: ReplaySections, cameras: Iterable[str], labels: Sequence[str], file: Path) -> None:
    """Warn on standard error, each with its line: such a rule is silent for another reason than the footage."""
    lines = yamlfile.line_numbers(file)
    for name in cameras:
        for unknown in unknown_labels(site.decisions.cameras[name].rules, labels):
            place = ("cameras", name, "rules", unknown.rule, "labels", unknown.label)
            print(f"vedette: {file}: {yamlfile.place_in_file(place, lines)}: {unknown.text}", file=sys.stderr)


def run_command(
    selection: ReplaySelection,
    site_file: Path | None,
    options: ReplayCommandOptions,
    answers: VerdictOptions,
    conditions: Sequence[str],
    seed: int,
) -> int:
    """Run `vedette replay`; see `replay_command`."""
    weather = ConditionSet.parse(conditions, seed)
    options = replace(options, verdicts=answers, oracle=oracle_for_replay, conditions=weather)
    return replay_command(selection, site_file, options)


def replay_command(selection: ReplaySelection, site_file: Path | None, options: ReplayCommandOptions) -> int:
    """Replay and print what it found.

    Returns 0, or 1 when some footage could not be read to its end, or an escalation has no verdict although there is a
    source of them.
    """
    loaded = default_site(selection) if site_file is None else config.load(site_file).for_replay()
    site = site_for_verdicts(loaded, options.verdicts)
    if options.model is not None:
        network = site.decisions.detector.with_model(options.model)
        site = replace(site, decisions=replace(site.decisions, detector=network))
    if options.resume and options.log is None:
        raise UsageError("--resume goes on with a log: say which with --log")
    decoders = _decoders(site, options.hardware)
    targets = replay_targets(selection, site, site_file or Path("the default site"))
    logs = _logs(targets, options.log)
    with open_verdict_source(site, options.verdicts, options.oracle) as verdicts:
        settled = as_at_run_time(site.decisions.detector, site.storage.dir)
        model = detector_loader.load(settled)
        cameras = dict.fromkeys(camera for target in targets for camera in target.cameras)
        if site_file is not None:
            _warn_of_unknown_labels(site, cameras, model.labels, site_file)
        setup = _Setup(site, model, options, verdicts, decoders)
        if len(targets) == 1:
            done = [_run(targets[0], logs[0], setup)]
        else:
            done = [_try(target, log, setup) for target, log in zip(targets, logs, strict=True)]
    _print(done, way_text(settled), as_json=options.as_json)
    return 0 if all(each.ok for each in done) else 1


def _decoders(site: ReplaySections, kind: HardwareKind | None) -> HardwareDecoders:
    """Make the decoders. Raise MissingDependency if this hardware does not work here."""
    decoders = HardwareDecoders(site.decode)
    if kind is not None and not (probed := decoders.probed([kind])[0]).works:
        raise MissingDependency(f"--hardware {kind} does not work here: {probed.text}")
    return decoders


def _logs(targets: Sequence[ReplayTarget], log: Path | None) -> list[Path | None]:
    """Return where each log goes: the file itself for one, `NAME.jsonl` in a folder for several."""
    if log is None:
        return [None] * len(targets)
    if len(targets) == 1 and not log.is_dir():
        return [log]
    names = [f"{target.name}.jsonl" for target in targets]
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
class _Setup:
    """The parts that all replays of a command share."""

    site: ReplaySections
    detector: ObjectDetector
    options: ReplayCommandOptions
    verdicts: ActiveVerdictSource
    decoders: HardwareDecoders


def _try(target: ReplayTarget, log: Path | None, setup: _Setup) -> _Finished:
    """Run one clip of many; one that cannot be read is reported at the end, and does not stop the others."""
    try:
        return _run(target, log, setup)
    except SourceError as error:
        return _Finished(target.name, error=str(error))


def _run(target: ReplayTarget, log: Path | None, setup: _Setup) -> _Finished:
    plan = with_conditions(target.plan(setup.site, setup.detector), setup.options.conditions)
    if setup.options.stood_before is not None:
        plan = with_stood_before(plan, read_stood_before(setup.options.stood_before, target.cameras))
    if setup.options.hardware is not None:
        plan = with_hardware(plan, setup.decoders, setup.options.hardware)
    plan = replace(plan, verdict_source=setup.verdicts.source)
    if log is None:
        return _Finished(target.name, _play(plan, None, target.name, setup))
    try:
        with open_log(log, plan.header(), resume=setup.options.resume) as file:
            if file.finished is not None:
                return _Finished(target.name, file.finished)
            results = _play(plan, file, target.name, setup)
            file.complete()
            return _Finished(target.name, results)
    except OSError as error:
        raise UsageError(f"{log}: the log cannot be written: {error.strerror}") from None


def _play(plan: ReplayPlan, file: OpenLog | None, name: str, setup: _Setup) -> tuple[ReplayResult, ...]:
    with _progress(name, quiet=setup.options.as_json) as (advance, show_status):
        setup.verdicts.show = show_status
        options = ReplayOptions(
            SystemClock(),
            setup.options.speed,
            advance,
            file.detections if file else None,
            workers_for(setup.site.decisions),
        )
        return play(plan, file.sink if file else None, options)


def _print(done: Sequence[_Finished], way: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_json(done)))
        return
    console = text_console()
    for each in done:
        for result in each.results:
            replay_report.print_text(result, console)
        if each.error:
            console.print(f"[red]{escape(each.error)}[/]")
    replay_report.print_total([result for each in done for result in each.results], console)
    if way:
        console.print(f"The network ran by {way}, as the appliance takes it here.")


def _json(done: Sequence[_Finished]) -> object:
    """Return one object for one clip; several runs, or cameras together, a list of them under `runs`."""
    if len(done) == 1 and len(done[0].results) == 1:
        return replay_report.as_json(done[0].results[0])
    runs = [replay_report.as_json(result) for each in done for result in each.results]
    failed = [{"clip": each.name, "error": each.error} for each in done if each.error is not None]
    return {"runs": runs, "failed": failed}


@contextlib.contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[tuple[ReplayProgress, ShowStatus]]:
    """Yield what shows how far a replay is, and what shows a sentence on what it waits for."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with CommandProgress(*columns, quiet=quiet) as bar:
        task = bar.add_task(f"replaying {name}", total=None)

        def advance(done: float, total: float | None) -> None:
            bar.update(task, completed=done, total=total)

        def show_status(sentence: str) -> None:
            bar.update(task, description=f"replaying {name}{': ' if sentence else ''}{sentence}")

        yield advance, show_status
