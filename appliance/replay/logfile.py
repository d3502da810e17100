"""The files of one replay's log: the log, the answers beside it, and whether they can be gone on with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import UsageError
from appliance.replay.changes import setting_changes
from appliance.replay.header import LogHeader
from appliance.replay.looks import SUFFIX, Looks
from appliance.replay.reader import RecordedLog, read_log
from appliance.replay.result import ReplayResult
from appliance.replay.resume import GrowingLog
from appliance.replay.whole_lines import whole_bytes


@dataclass(frozen=True, slots=True)
class LogFile:
    """An open log. looks: None where the log is no ordinary file (a pipe), which cannot be gone on with. finished: what
    it holds, when it was complete already; then nothing is to be done."""

    sink: GrowingLog | None
    looks: Looks | None
    finished: tuple[ReplayResult, ...] | None = None

    def complete(self) -> None:
        """The replay has come to its end: the answers are not needed any more."""
        if self.looks is not None:
            self.looks.forget()


@contextlib.contextmanager
def opened(path: Path, opening: LogHeader, *, resume: bool) -> Iterator[LogFile]:
    """Begin `path` anew, or go on with it. Raises UsageError when it is the log of another replay, OSError."""
    plain = path.is_file() or not path.exists()
    if resume and not plain:
        raise UsageError(f"{path} is not a file: it cannot be gone on with")
    left = _left(path, opening) if resume and whole_bytes(path) else None
    if left is not None and left.complete:
        yield LogFile(None, None, left.results())
        return
    with contextlib.ExitStack() as stack:
        looks = Looks(path.with_name(path.name + SUFFIX), opening.digest, resume=resume) if plain else None
        if looks is not None:
            stack.callback(looks.close)
        sink = GrowingLog(path, resume=left is not None)
        stack.callback(sink.close)
        yield LogFile(sink, looks)


def _left(path: Path, opening: LogHeader) -> RecordedLog:
    left = read_log(path)
    if left.header.digest == opening.digest:
        return left
    changed = "; ".join(setting_changes(left.header, opening)) or "the footage is another one"
    raise UsageError(f"{path} is the log of another replay ({changed}); leave --resume away to begin anew")
