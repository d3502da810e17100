"""Where a replay log goes: a new file, or one that a killed replay left, which is checked line by line and goes on."""

from __future__ import annotations

from pathlib import Path

from appliance.errors import UsageError
from appliance.replay.whole_lines import WholeLines, whole_bytes


class GrowingLog:
    """The file of a replay log.

    When resuming, every line that is written is first compared with the one that stands there, so that what follows
    can be trusted; once all whole lines of the file were met, new ones are appended. `met`: lines compared.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Raises OSError."""
        self._path = path
        self.met = 0
        kept = whole_bytes(path) if resume else 0
        self._left = kept
        self._old = path.open("rb") if kept else None
        self._file = WholeLines(path, kept)

    def write(self, line: bytes) -> int:
        """Raises UsageError when the file holds something else at this place, OSError when the disk is full."""
        if self._old is None:
            return self._file.write(line)
        if self._old.readline() != line:
            raise UsageError(
                f"{self._path}: line {self.met + 1} is not what this replay finds: it was made with other footage, "
                "settings or another machine; leave --resume away to begin anew"
            )
        self.met += 1
        self._left -= len(line)
        if self._left <= 0:
            self._old.close()
            self._old = None
        return len(line)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        if self._old is not None:
            self._old.close()
        self._file.close()
