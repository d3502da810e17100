"""What a `vedette replay` command line asks for, turned into shows: files, folders, cameras together, recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from appliance.clock import iso_utc, local_weekday_minute
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.errors import ConfigError, SourceError, UsageError
from appliance.replay.header import Replayed
from appliance.replay.log import run_id_of
from appliance.replay.recording import RecordingFilm, Span
from appliance.replay.runner import Reel, Show, clip_reel
from appliance.store.archive import Archive

_CONTAINERS = {".mp4", ".mkv", ".avi", ".mov", ".m4v", ".webm", ".ts", ".m2ts", ".mpg", ".mpeg", ".flv", ".wmv", ".3gp"}
_RAW = {".264", ".h264", ".265", ".h265", ".hevc", ".gif"}
SUFFIXES = frozenset(_CONTAINERS | _RAW)
FILES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line. cameras: values of --camera, `NAME` or `NAME=CLIP`; t_from, t_to: as written."""

    paths: tuple[Path, ...] = ()
    cameras: tuple[str, ...] = ()
    t_from: str | None = None
    t_to: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One run: a clip of one camera, clips of several together, or (paths empty) the recording of some cameras."""

    name: str
    cameras: tuple[str, ...]
    clips: tuple[Path, ...] = ()
    span: Span | None = None

    def show(self, config: SiteConfig, detector: ObjectDetector) -> Show:
        """Raises SourceError, StoreError."""
        if self.span is None:
            reels = [
                clip_reel(clip, config, camera, detector) for camera, clip in zip(self.cameras, self.clips, strict=True)
            ]
            return Show(tuple(reels), config, detector)
        span = self.span
        reels = [_recording(camera, config, span, detector) for camera in self.cameras]
        return Show(tuple(reels), config, detector, wall=lambda t: local_weekday_minute(span.t0 + t))


def items(asked: Asked, config: SiteConfig, site_file: Path) -> list[Item]:
    """What is to be played, in order. Raises UsageError or ConfigError with what would be right."""
    pairs = [each.partition("=") for each in asked.cameras]
    named = any(sign for _, sign, _ in pairs)
    _one_kind(asked, named=named)
    if named:
        if not all(sign for _, sign, _ in pairs):
            raise UsageError("say of every camera what it plays: --camera gate=gate.mp4 --camera yard=yard.mp4")
        cameras = [_known(name, config, site_file) for name, _, _ in pairs]
        if len(set(cameras)) < len(cameras):
            raise UsageError("a camera can play one clip at a time; --camera names one twice")
        return [Item("+".join(cameras), tuple(cameras), tuple(Path(clip) for _, _, clip in pairs))]
    names = [_known(name, config, site_file) for name in dict.fromkeys(asked.cameras)] or [_only(config, site_file)]
    if asked.t_from is not None:
        return [_recorded(names, asked, config)]
    if len(names) > 1:
        raise UsageError("clips go to one camera; several together: --camera gate=gate.mp4 --camera yard=yard.mp4")
    return [Item(file.name, (names[0],), (file,)) for file in files(asked.paths)]


def files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and of each folder its videos, sorted by name. Raises UsageError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
        if not inside:
            raise UsageError(f"there is no video in {path} (looked for {', '.join(sorted(SUFFIXES))})")
        found += inside
    if len(found) > FILES_MAX:
        raise UsageError(f"{len(found)} files at once are too many; at most {FILES_MAX}")
    return found


def moment(text: str) -> float:
    """UTC seconds of `2026-11-20T10:00` (this machine's time), `…Z` or `…+01:00`. Raises UsageError."""
    try:
        read = datetime.fromisoformat(text.strip().removesuffix("Z") + ("+00:00" if text.strip().endswith("Z") else ""))
        return (read if read.tzinfo else read.astimezone()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{text}` is no time: write 2026-11-20T10:00 (this machine's time), 2026-11-20T10:00:00Z or …+01:00"
        ) from None


def _one_kind(asked: Asked, *, named: bool) -> None:
    recording = asked.t_from is not None or asked.t_to is not None
    if (bool(asked.paths) + named + recording) != 1:
        raise UsageError(
            "say what to replay, in one way: clips or folders, or --camera NAME=CLIP for several together, or "
            "--camera NAME --from TIME for what this box recorded (see vedette replay --help)"
        )
    if recording and asked.t_from is None:
        raise UsageError("--to needs --from")


def _only(config: SiteConfig, site_file: Path) -> str:
    names = tuple(config.cameras)
    if len(names) == 1:
        return names[0]
    raise UsageError(f"{site_file} has {len(names)} cameras: say which with --camera ({', '.join(names)})")


def _known(name: str, config: SiteConfig, site_file: Path) -> str:
    if name not in config.cameras:
        there = ", ".join(config.cameras)
        raise ConfigError(str(site_file), [f"there is no camera `{name}` (there is: {there})"])
    return name


def _recorded(cameras: Sequence[str], asked: Asked, config: SiteConfig) -> Item:
    archive = Archive(config.storage.dir)
    spans = {camera: archive.span(camera) for camera in cameras}
    known = [span for span in spans.values() if span is not None]
    if not known:
        raise SourceError(f"nothing is recorded of {', '.join(cameras)} in {config.storage.dir}")
    t0 = moment(asked.t_from or "")
    t1 = moment(asked.t_to) if asked.t_to is not None else max(end for _, end in known)
    begin, end = min(begin for begin, _ in known), max(end for _, end in known)
    if t0 >= t1 and asked.t_to is not None:
        raise UsageError("--to must be later than --from")
    if t0 > end or t1 < begin:
        raise SourceError(
            f"nothing is recorded of that time: {config.storage.dir} holds {iso_utc(begin)} to {iso_utc(end)}"
        )
    return Item("+".join(cameras), tuple(cameras), span=Span(t0, t1))


def _recording(camera: str, config: SiteConfig, span: Span, detector: ObjectDetector) -> Reel:
    archive = Archive(config.storage.dir)
    rows = archive.segments(camera, span.t0, span.t1)
    if not rows:
        raise SourceError(f"nothing is recorded of {camera} between {iso_utc(span.t0)} and {iso_utc(span.t1)}")
    film = RecordingFilm(archive.root, camera, span, rows, archive.gaps(camera, span.t0, span.t1))
    plan = config.cameras[camera]
    readable = [(path, limit) for path, limit in film.files() if path.is_file()]
    run = run_id_of(readable, camera, plan, config.detector, f"{detector.name}|{span.t0!r}|{span.t1!r}")
    replayed = Replayed(
        camera=camera,
        kind="recording",
        clip=film.name,
        run=run,
        files=len(rows),
        t_from=span.t0,
        t_to=span.t1,
    )
    return Reel(film, replayed)
