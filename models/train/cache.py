"""Decodes all pictures of an index once into one flat file, which every worker maps into memory.

Decoding JPEGs would take more time than a GPU takes to learn from them; the map costs 0.5 MB a picture of disk and is
shared by all workers. Photographs are at most 416 px, frames 640 px, on their longer side.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from models.train.index import Entry, IndexFault

log = logging.getLogger(__name__)


class Cache:
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


def build(root: Path, entries: Sequence[Entry], path: Path) -> Cache:
    """Decode every picture below `root` into `path`, or use the file of an earlier run over the same pictures."""
    key = hashlib.sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()
    note = path.with_suffix(".json")
    sizes = np.array([(entry.height, entry.width) for entry in entries], np.int64)
    ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
    places = np.column_stack([np.concatenate([[0], ends[:-1]]), sizes])
    if path.is_file() and note.is_file() and json.loads(note.read_text())["key"] == key:
        return Cache(path, places)
    path.parent.mkdir(parents=True, exist_ok=True)
    log.info("decoding %d pictures into %s (%.1f GB)", len(entries), path, float(ends[-1]) / 1e9)
    fresh = path.with_suffix(".part")
    with fresh.open("wb") as file:
        for entry in entries:
            file.write(_decode(root, entry).tobytes())
    fresh.replace(path)
    note.write_text(json.dumps({"key": key, "pictures": len(entries)}) + "\n")
    return Cache(path, places)


def _decode(root: Path, entry: Entry) -> NDArray[np.uint8]:
    picture = cv2.imread(str(root / entry.image), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise IndexFault(f"{root / entry.image}: missing or not a picture, but the index names it")
    if picture.shape[:2] != (entry.height, entry.width):
        raise IndexFault(f"{root / entry.image}: its size is not the one in the index")
    return np.asarray(picture, np.uint8)
