"""Keep built TensorRT engines (plans) on disk, under a key of all that they depend on; check one when it is read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.errors import ModelError

log = logging.getLogger(__name__)
PLANS_MAX = 8  # a site has a detector and perhaps a second one for re-checks; the rest is what was tried
PARTS_MAX = 1  # of files half written: the newest may be another process's, which is at it
HEADER_BYTES_MAX = 4096  # names, versions and digests: under 1 kB
TIMING_BYTES_MAX = 64 << 20  # TensorRT's timing caches have some MB
FORMAT = "vedette tensorrt plan 1"


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that an engine depends on; an engine for another key is not loaded.

    model: sha256 of the file. platform: `aarch64 Linux`. profiles: the shapes that it was built for. precision: as
    built, `fp16` or `int8 dla0`.
    """

    model: str
    tensorrt: str
    gpu: str
    compute: str
    platform: str
    precision: str
    profiles: str

    @property
    def digest(self) -> str:
        """24 hex digits, the file's name."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]

    @property
    def timing(self) -> str:
        """The name of what TensorRT learnt about its kernels: good for every network on this GPU and version."""
        basis = [self.tensorrt, self.gpu, self.compute, self.platform]
        return hashlib.sha256(json.dumps(basis).encode()).hexdigest()[:24]


def engine_folder() -> Path | None:
    """Return the folder of engines; None: this user has no home.

    It is $VEDETTE_ENGINES, else `engines` in systemd's $CACHE_DIRECTORY, else in this user's cache (XDG base
    directories).
    """
    named = os.environ.get("VEDETTE_ENGINES")
    if named:
        return Path(named).resolve()
    given = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / "engines"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "vedette" / "engines"


class PlanCache:
    """A folder of engines.

    An engine that is damaged or has another key is removed and built again; a folder that cannot be used costs a build
    at each start and a line in the log, never an error.

    An engine is code that the GPU's library runs: a folder that others may write to is not read.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is None:
            log.warning("TensorRT: no folder for engines, so each start builds them: set VEDETTE_ENGINES to one")
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
        except OSError as error:
            log.warning(
                "TensorRT: %s: %s, so each start builds its engines; set VEDETTE_ENGINES", folder, error.strerror
            )
            self._folder = None
            return
        if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
            log.warning("TensorRT: others may write to %s, so no engine is read from it: chmod go-w it", folder)
            self._folder = None

    def subfolder(self, name: str) -> Path | None:
        """Return a folder in it for what another library keeps; None: there is none that can be used."""
        made = self._path(name)
        try:
            if made is not None:
                made.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            log.warning("TensorRT: %s cannot be made, so engines are built at each start: %s", made, error.strerror)
            return None
        return made

    def load(self, key: PlanKey) -> bytes | None:
        """Return the engine for `key`, as it was stored; None: build it."""
        path = self._path(f"{key.digest}.plan")
        if path is None:
            return None
        try:
            plan = _read(path, asdict(key))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("TensorRT: the engine %s is not used and built again: %s", path.name, error)
            self.discard(key)
            return None
        with contextlib.suppress(OSError):  # root's alone, or this process is confined: kept by when it was built
            os.utime(path)
        return plan

    def store(self, key: PlanKey, plan: bytes) -> None:
        """Keep an engine; the least recently used beyond PLANS_MAX go, and what a kill left half written."""
        self._write(f"{key.digest}.plan", asdict(key), plan)
        if self._folder is not None:
            keep_newest(self._folder, "*.plan", PLANS_MAX)
            keep_newest(self._folder, ".*.part", PARTS_MAX)

    def discard(self, key: PlanKey) -> None:
        """Remove an engine that TensorRT does not take."""
        path = self._path(f"{key.digest}.plan")
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def load_timing(self, key: PlanKey) -> bytes:
        """Return the timings of an earlier build, which make the next one shorter; b"": none."""
        path = self._path(f"{key.timing}.timing")
        if path is None:
            return b""
        try:
            return _read(path, {"timing": key.timing}) if path.stat().st_size <= TIMING_BYTES_MAX else b""
        except (OSError, ValueError):
            return b""

    def store_timing(self, key: PlanKey, learnt: bytes) -> None:
        """Nothing larger than TIMING_BYTES_MAX."""
        if 0 < len(learnt) <= TIMING_BYTES_MAX:
            self._write(f"{key.timing}.timing", {"timing": key.timing}, learnt)

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / name

    def _write(self, name: str, basis: dict[str, str], content: bytes) -> None:
        """Written beside and moved into place: a power cut leaves the old file, the new one or none."""
        path = self._path(name)
        if path is None:
            return
        header = {"format": FORMAT, "key": basis, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        fresh = path.with_name(f".{name}.{os.getpid()}.part")
        try:
            with fresh.open("wb") as file:
                file.write(json.dumps(header, sort_keys=True).encode() + b"\n" + content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as error:
            log.warning("TensorRT: %s cannot be kept, so it is made at each start: %s", path, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink()


def keep_newest(folder: Path, pattern: str, count: int) -> tuple[Path, ...]:
    """Delete all but those that were written last; returns what was deleted. Leave those that cannot be deleted."""
    ages: dict[Path, int] = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process was quicker
            ages[path] = path.stat().st_mtime_ns
    old = tuple(sorted(ages, key=lambda path: -ages[path])[count:])
    for path in old:
        with contextlib.suppress(OSError):
            path.unlink()
    return old


def _read(path: Path, basis: dict[str, str]) -> bytes:
    """Read a file of the cache. Raise OSError, ValueError: damaged, or of something else."""
    with path.open("rb") as file:
        line = file.readline(HEADER_BYTES_MAX)
        header = json.loads(line)
        if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("key") != basis:
            raise ValueError("it was built for something else")
        content = file.read()
    if header.get("bytes") != len(content) or header.get("sha256") != hashlib.sha256(content).hexdigest():
        raise ValueError("it is damaged")
    return content


def must_be_one_file(path: Path, external: bool) -> None:
    """Raise ModelError: the hash of a file says nothing about weights that lie beside it."""
    if external:
        raise ModelError(
            f"{path}: it keeps weights in other files, which an engine's key does not know: save it as one file "
            "(onnx.save(onnx.load(PATH), NEW))"
        )
