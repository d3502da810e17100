"""Writes the log: text or JSON lines on stderr, repeated lines counted, secrets of URLs removed, one line a message.

The last lines are kept in memory, too, for the page System.

From `remove_identifiers` on: it removes what the telemetry of libraries left in the home folder before it was off.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import printable, redact

logger = logging.getLogger(__name__)


class _TextFormatter(logging.Formatter):
    """`12:34:56 WARNING supervisor: sentence`, with the date left to journald."""

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix("appliance.").removeprefix("cloud_worker.")
        text = redact(printable(record.getMessage()))
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {room}: {text}"
        return self._with_traceback(record, line)

    def _with_traceback(self, record: logging.LogRecord, line: str) -> str:
        if not record.exc_info:
            return line
        traceback = redact(self.formatException(record.exc_info)).split("\n")
        return "\n".join([line, *(printable(each) for each in traceback)])


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"t": iso_utc(record.created), "level": record.levelname.lower(), "room": record.name}
        fields["message"] = redact(record.getMessage())
        if record.exc_info:
            fields["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields)


def configure_logging(*, level: str = "INFO", as_json: bool = False) -> None:
    """Send all logs to stderr, redacted. Third-party chatter below WARNING is dropped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for room in ("appliance", "cloud_worker"):
        logging.getLogger(room).setLevel(level)


LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
RING_LINES_MAX = 2000  # as many as the diagnostics show
RING_TEXT_MAX = 2000  # characters of one line
_CHILD_LINE = re.compile(r"\d\d:\d\d:\d\d (?P<level>[a-z]+) +(?P<room>[\w.]+): (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log. number: counts up since the start. t: UTC seconds. room: the part of Vedette it is from."""

    number: int
    t: float
    level: LogLevel
    room: str
    text: str


class LogRing(logging.Handler):
    """The last RING_LINES_MAX lines of this process and of the ingest process, redacted. Any thread."""

    def __init__(self, clock: Clock, lines_max: int = RING_LINES_MAX) -> None:
        super().__init__()
        self._clock = clock
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._numbers = itertools.count(1)
        self._ring_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError, LookupError):  # its arguments do not fit: that costs the line alone
            self.handleError(record)
            return
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        self._add(record.created, record.levelname, record.name.removeprefix("appliance."), text)

    def add_child_line(self, line: str) -> None:
        """Add a line that a child process wrote on its standard error: of our log, or of a library."""
        found = _CHILD_LINE.fullmatch(line)
        if found:
            self._add(self._clock.now(), found["level"], found["room"], found["text"])
        elif line.startswith("{"):
            self._add_json(line)
        elif line.strip():
            self._add(self._clock.now(), "info", "ingest", line)

    def tail(self, level: LogLevel = "debug", count: int = RING_LINES_MAX) -> list[LogLine]:
        """Return the newest `count` lines of this level and graver ones, oldest first."""
        wanted = LOG_LEVELS[LOG_LEVELS.index(level) :]
        with self._ring_lock:
            found = [each for each in self._lines if each.level in wanted]
        return found[-count:]

    def _add_json(self, line: str) -> None:
        try:
            data = json.loads(line)
            values = (str(data["level"]), str(data["room"]), str(data["message"]))
        except (ValueError, KeyError, TypeError):
            values = ("info", "ingest", line)
        self._add(self._clock.now(), *values)

    def _add(self, t: float, level: str, room: str, text: str) -> None:
        name = level.lower()
        known: LogLevel = next((each for each in LOG_LEVELS if each == name), "info")
        text_shown = "\n".join(printable(each) for each in redact(text[:RING_TEXT_MAX]).split("\n"))
        with self._ring_lock:
            self._lines.append(LogLine(next(self._numbers), t, known, sys.intern(printable(room)), text_shown))


def log_text(lines: Iterable[LogLine]) -> str:
    """Return them as a file, one line each (and more for a traceback)."""
    return "".join(f"{iso_utc(each.t)} {each.level:<8} {each.room}: {each.text}\n" for each in lines)


LINES_MAX = 30  # of one reporter in `every_s`


class LogThrottle:
    """Reports a repeated matter at most once per `every_s`, and LINES_MAX different ones, and counts the rest.

    The bound holds because texts from another side may vary without end.

    State: the last text, when it was logged, and how many since the last pause. Owner: one thread or task.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, every_s: float = 60.0) -> None:
        self._logger = logger
        self._clock = clock
        self._every_s = every_s
        self._text = ""
        self._logged_at = float("-inf")
        self._held = 0
        self._since = float("-inf")
        self._lines = 0

    def report(self, matter: object, level: int = logging.WARNING, *, with_traceback: bool = False) -> None:
        """Log `matter` (an error or a sentence) unless the same was logged less than `every_s` seconds ago.

        with_traceback: of the exception that is being handled.
        """
        text, now = str(matter), self._clock.monotonic()
        if now - self._since >= self._every_s:
            self._since, self._lines = now, 0
        if (text == self._text and now - self._logged_at < self._every_s) or self._lines >= LINES_MAX:
            self._held += 1
            return
        self._lines += 1
        suffix = f" (and {self._held} times more before)" if self._held else ""
        self._logger.log(level, "%s%s", text, suffix, exc_info=with_traceback)
        self._text, self._logged_at, self._held = text, now, 0


_DATABASE = "onnxruntime.db"
# Beneath the folder for caches (ONNX Runtime) and the home folder (OpenVINO): where, and which files.
_ONNX_RUNTIME = (
    ("Microsoft", "DeveloperTools", ".onnxruntime"),
    ("deviceid", "deviceid.lock", _DATABASE, *(f"{_DATABASE}{end}" for end in ("-journal", "-wal", "-shm", ".ses"))),
)
_OPENVINO = (("intel",), ("openvino_ga_cid", "openvino_ga_uid", "stats"))
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_identifiers() -> None:
    """Remove what ONNX Runtime and OpenVINO left in the home folder of this user, and the folders that are empty then.

    Only regular files of these names go, and no link is followed. Leave a file that cannot be removed, without an
    error.
    """
    home = Path(os.path.expanduser("~"))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    for base, (folders, names) in ((caches, _ONNX_RUNTIME), (home, _OPENVINO)):
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            removed = _remove(base, folders, names, opened)
            if removed:
                place = base.joinpath(*folders)
                logger.info("removed what a library's telemetry had left in %s: %s", place, ", ".join(removed))


def _remove(base: Path, folders: tuple[str, ...], names: tuple[str, ...], opened: contextlib.ExitStack) -> list[str]:
    """Remove the files and return their names. opened: closes the folders. Raises OSError."""
    parents = [os.open(base, _FOLDER)]
    opened.callback(os.close, parents[0])
    for name in folders:
        parents.append(os.open(name, _FOLDER, dir_fd=parents[-1]))
        opened.callback(os.close, parents[-1])
    removed = [name for name in names if _unlink(name, parents[-1])]
    if removed:
        with contextlib.suppress(OSError):  # something else is in it
            for name, parent in zip(reversed(folders), reversed(parents[:-1]), strict=True):
                os.rmdir(name, dir_fd=parent)
    return removed


def _unlink(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return True
    return False
