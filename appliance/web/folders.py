"""Lists the folders that pages are made from: scripts and styles, templates, translations; a program adds its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_FOLDERS = [Path(__file__).parent]


def add(folder: Path) -> None:
    """Add the folder of a program, which has `static`, `templates` and `translations`. Call it before the first use."""
    _FOLDERS.append(folder)


def folders(kind: str) -> list[Path]:
    """Return the folders of a kind (`static`, `templates`, `translations`), this package's first."""
    return [folder / kind for folder in _FOLDERS]


def files(kind: str, pattern: str = "*") -> Iterator[Path]:
    """Yield the files of a kind that match the pattern, sorted within each folder."""
    for folder in folders(kind):
        yield from sorted(file for file in folder.rglob(pattern) if file.is_file())


def file_of(kind: str, name: str) -> Path:
    """Return the path of a file by its name. Raise KeyError if no folder has it."""
    for folder in folders(kind):
        if (folder / name).is_file():
            return folder / name
    raise KeyError(name)
