"""Logging: text or JSON lines on stderr, repeated lines counted, secrets of URLs redacted, one message one line."""

from __future__ import annotations

import json
import logging
import sys

from appliance.clock import Clock, iso_utc
from appliance.errors import printable, redact


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


LINES_MAX = 30  # of one reporter in `every_s`


class LogThrottle:
    """Reports a repeated matter at most once per `every_s`, and LINES_MAX different ones, with a count of what was held
    back: what another side sends may be as various as it likes.

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
