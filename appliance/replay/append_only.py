"""Files that only grow by whole lines, and how much of one is whole after a kill."""

from __future__ import annotations

from pathlib import Path

_BLOCK_BYTES = 64 * 1024  # one read of the end of a file


class AppendOnlyFile:
    """Appends to a file past its first `kept` bytes, without a buffer of its own: what was written survives a kill.

    A full disk raises OSError and may leave a part of a line, which the next reader drops.
    """

    def __init__(self, path: Path, kept: int = 0) -> None:
        self._file = path.open("r+b" if kept else "wb", buffering=0)
        if kept:  # a pipe or a device can be neither cut nor wound
            self._file.truncate(kept)
            self._file.seek(kept)

    def write(self, line: bytes) -> int:
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]
        return len(line)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self._file.close()


def whole_bytes(path: Path) -> int:
    """How many bytes of the file are whole lines; 0 when it is not there. Raises OSError."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            while end > 0:
                start = max(0, end - _BLOCK_BYTES)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
    except FileNotFoundError:
        pass
    return 0
