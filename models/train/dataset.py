"""A training set: its index, one JSON line per picture, its perceptual hashes, and the file of its decoded pictures.

The index has all that training needs of a picture. The hash tells similar pictures: they differ in few bits, whatever
their size, coding or brightness. The file holds all pictures decoded, and every worker maps it into memory: decoding
JPEGs would take more time than a GPU takes to learn from them. It costs 0.5 MB a picture (photographs are at most
416 px, frames 640 px, on their longer side).

Standard library, numpy and OpenCV only: it is also used on a machine that has PyTorch and little else.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

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
    """One picture. `image` is relative to the index's folder; `phash` 16 hex digits (see `phash`).

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


def shrunk(picture: NDArray[np.uint8], side_max: int) -> NDArray[np.uint8]:
    """Return the picture with at most `side_max` pixels on the longer side."""
    share = side_max / max(picture.shape[:2])
    if share >= 1:
        return picture
    return np.asarray(cv2.resize(picture, None, fx=share, fy=share, interpolation=cv2.INTER_AREA), np.uint8)


HASH_SIDE = 32
_ONES = np.array([value.bit_count() for value in range(1 << 16)], np.uint8)


def phash(picture: NDArray[np.uint8]) -> int:
    """Which of the 8 x 8 lowest DCT coefficients of the grey 32 x 32 picture exceed their median (Zauner 2010)."""
    grey = cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY) if picture.ndim == 3 else picture
    small = cv2.resize(grey, (HASH_SIDE, HASH_SIDE), interpolation=cv2.INTER_AREA)
    low = cv2.dct(small.astype(np.float32))[:8, :8].ravel()
    # The mean brightness is left out of the median, as one coefficient a hundred times the others.
    bits = low > np.median(low[1:])
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def mirrored(picture: NDArray[np.uint8]) -> int:
    """Return the hash of the picture seen in a mirror."""
    return phash(np.ascontiguousarray(picture[:, ::-1]))


def distances(one: NDArray[np.uint64], many: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return (N, M): in how many of their 64 bits each of `one` (N,) differs from each of `many` (M,)."""
    different = one[:, None] ^ many[None, :]
    words = different.view(np.uint16).reshape(*different.shape, 4)
    return np.asarray(_ONES[words].sum(axis=-1, dtype=np.uint8))


def as_hex(value: int) -> str:
    """Return 16 hex digits, as the index holds it."""
    return f"{value:016x}"


def from_hex(text: str) -> int:
    """Return the hash that `as_hex` wrote."""
    return int(text, 16)


log = logging.getLogger(__name__)


class DecodedPictures:
    """Read-only BGR pictures (H, W, 3), by their place in `entries`; may be handed to other processes."""

    def __init__(self, path: Path, places: NDArray[np.int64]) -> None:
        """places: (N, 3) offset, height, width."""
        self._path = path
        self._places = places
        self._bytes: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> NDArray[np.uint8]:
        if self._bytes is None:
            self._bytes = np.memmap(self._path, np.uint8, "r")
        offset, height, width = (int(value) for value in self._places[number])
        return self._bytes[offset : offset + height * width * 3].reshape(height, width, 3)

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_places": self._places, "_bytes": None}


def decoded(root: Path, entries: Sequence[Entry], path: Path) -> DecodedPictures:
    """Decode every picture below `root` into `path`, or use the file of an earlier run over the same pictures."""
    key = hashlib.sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()
    note = path.with_suffix(".json")
    sizes = np.array([(entry.height, entry.width) for entry in entries], np.int64)
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    places = np.column_stack([np.concatenate([[0], ends[:-1]]), sizes])
    if path.is_file() and note.is_file() and json.loads(note.read_text())["key"] == key:
        return DecodedPictures(path, places)
    path.parent.mkdir(parents=True, exist_ok=True)
    log.info("decoding %d pictures into %s (%.1f GB)", len(entries), path, float(ends[-1]) / 1e9)
    fresh = path.with_suffix(".part")
    with fresh.open("wb") as file:
        for entry in entries:
            file.write(_decode(root, entry).tobytes())
    note.unlink(missing_ok=True)  # a kill before the new note must not leave the old one beside other pictures
    fresh.replace(path)
    note.write_text(json.dumps({"key": key, "pictures": len(entries)}) + "\n")
    return DecodedPictures(path, places)


def _decode(root: Path, entry: Entry) -> NDArray[np.uint8]:
    picture = cv2.imread(str(root / entry.image), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise IndexFault(f"{root / entry.image}: missing or not a picture, but the index names it")
    if picture.shape[:2] != (entry.height, entry.width):
        raise IndexFault(f"{root / entry.image}: its size is not the one in the index")
    return np.asarray(picture, np.uint8)
