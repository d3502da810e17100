"""Reads and writes the data set's index: one JSON line per picture, with all that training needs.

Standard library and numpy only: the index is also read on a machine that has PyTorch and little else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.base.errors import UsageError

NAME = "index.jsonl"
CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
ANY = -1  # an ignore box in which no class may be learnt
KINDS = ((0,), (1, 3), (2, 4, 5), (6, 7))  # classes that teachers and labellers mistake for each other
Split = Literal["train", "val"]


class IndexFault(UsageError):
    """The data set or its index cannot be used; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Label:
    """A box as shares 0..1 of the picture. `score`: 1 where a person or a renderer drew it, else the teachers' mean."""

    cls: int
    x1: float
    y1: float
    x2: float
    y2: float
    score: float = 1.0

    def row(self) -> list[float]:
        """As the index writes it: class, x1, y1, x2, y2, score."""
        return [self.cls, *(round(value, 4) for value in (self.x1, self.y1, self.x2, self.y2)), round(self.score, 3)]


@dataclass(frozen=True, slots=True)
class Entry:
    """One picture. `image` is relative to the index's folder; `phash` 16 hex digits (see `models.train.phash`).

    ignore: regions in which nothing may be learnt, of one class (and those it is mistaken for) or, `cls` -1, of any.
    group: pictures of one camera or clip share it and never stand on both sides of the split.
    rejected: boxes of which people or a judge said that no such object is in them; of sets of a site.
    """

    image: str
    sha256: str
    phash: str
    width: int
    height: int
    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]
    source: str
    split: Split
    licence: str = ""
    group: str = ""
    rejected: tuple[Label, ...] = ()

    def line(self) -> str:
        """Write one line of JSON, keys in a fixed order."""
        return json.dumps(
            {
                "image": self.image,
                "sha256": self.sha256,
                "phash": self.phash,
                "width": self.width,
                "height": self.height,
                "boxes": [label.row() for label in self.boxes],
                "ignore": [label.row() for label in self.ignore],
                "source": self.source,
                "split": self.split,
                "licence": self.licence,
                "group": self.group,
                **({"rejected": [label.row() for label in self.rejected]} if self.rejected else {}),
            },
            separators=(",", ":"),
        )


def write(folder: Path, entries: Iterable[Entry]) -> Path:
    """Write the index of `folder`, whole or not at all; returns its path."""
    path = folder / NAME
    fresh = path.with_suffix(".part")
    fresh.write_text("".join(entry.line() + "\n" for entry in entries), encoding="utf-8")
    return fresh.replace(path)


def read(path: Path) -> list[Entry]:
    """Return all entries of an index file (or of the folder that holds one). Raise IndexFault with file and line."""
    path = path / NAME if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise IndexFault(f"{path}: the index cannot be read: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(_entry(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise IndexFault(f"{path}, line {number}: not an entry of a data set: {error!r}") from None
    if not entries:
        raise IndexFault(f"{path}: the index is empty")
    return entries


def of(entries: Iterable[Entry], split: Split) -> Iterator[Entry]:
    """Yield the entries of one side of the split."""
    return (entry for entry in entries if entry.split == split)


def kin(cls: int) -> tuple[int, ...]:
    """Return the classes that `cls` is mistaken for, itself included; all for ANY."""
    return next((kind for kind in KINDS if cls in kind), tuple(range(len(CLASSES))))


def _entry(row: dict[str, object]) -> Entry:
    split = str(row["split"])
    if split not in ("train", "val"):
        raise ValueError(f"split is {split!r}, not train or val")
    return Entry(
        image=str(row["image"]),
        sha256=str(row["sha256"]),
        phash=str(row["phash"]),
        width=int(str(row["width"])),
        height=int(str(row["height"])),
        boxes=labels(row["boxes"]),
        ignore=labels(row["ignore"]),
        source=str(row["source"]),
        split="train" if split == "train" else "val",
        licence=str(row.get("licence", "")),
        group=str(row.get("group", "")),
        rejected=labels(row.get("rejected", [])),
    )


def labels(rows: object) -> tuple[Label, ...]:
    """Return the labels from rows of class, x1, y1, x2, y2 and perhaps a score. Raise ValueError or TypeError."""
    if not isinstance(rows, list):
        raise TypeError("boxes are not a list")
    found = tuple(Label(int(row[0]), *(float(value) for value in row[1:6])) for row in rows)
    for label in found:
        if not ANY <= label.cls < len(CLASSES):
            raise ValueError(f"there is no class {label.cls}")
        if not (-0.01 <= label.x1 < label.x2 <= 1.01 and -0.01 <= label.y1 < label.y2 <= 1.01):
            raise ValueError(f"not a box in shares of the picture: {label}")
    return found
