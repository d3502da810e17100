"""Writes a run's log: one JSON object a line, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class RunLog:
    """Owns `log.jsonl` of a run's folder; every line is flushed, so that a kill loses at most the line it hits."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """step: lines of later steps are dropped, for they will be written again."""
        kept = [line for line in _lines(path) if json.loads(line).get("step", 0) <= step] if step else []
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **what: Any) -> None:
        """One line."""
        self._file.write(json.dumps({"type": kind, **what}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Done."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    """Whole lines of an earlier run; the last may have been cut by a kill."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            json.loads(line)
        except ValueError:
            break
        lines.append(line)
    return lines
