"""Small files of the kernel's /sys and /proc, read without surprises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class RisingCounters:
    """Files that each hold a count since the machine's start. State: the counts of the last look."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._counts: dict[Path, int] | None = None

    def rose(self) -> bool | None:
        """Return True if any has risen since the last reading; None: there is none that can be read."""
        before = self._counts
        now = {path: count for path in self._files if (count := number_of(path)) is not None}
        self._counts = now
        if not now:
            return None
        return before is not None and any(count > before.get(path, count) for path, count in now.items())


def text_of(path: Path) -> str | None:
    """Return the file's text without the white space around it; None: it is not there, or cannot be read now."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a sensor that is asleep, a file of root's alone
        return None


def number_of(path: Path, base: int = 10) -> int | None:
    """Return the number in a file; None: it is not there, cannot be read, or is no number."""
    text = text_of(path)
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def matching(folder: Path, pattern: str, at_most: int = 256) -> list[Path]:
    """Return the matching paths, sorted; []: there are none, or no file descriptor is left to list them with."""
    try:
        return sorted(folder.glob(pattern))[:at_most]
    except OSError:
        return []
