"""Reads our own rendered clips and practice stills as labelled pictures with exact boxes."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.train import film
from models.train.index import CLASSES, IndexFault, Label

SEEN_MIN = 0.3  # share of a body that must be visible for its box to be learnt
SIDE_MIN = 6  # pixels of the rendered picture
# Names of the renderer that are not ours. On the van the teachers differ: YOLOX-nano says car a little more often than
# truck, DEIMv2-Femto mostly truck; judge vehicles together (models.evaluate --merge vehicle=car,bus,truck).
ALIASES = {"van": "car", "bike": "bicycle", "motorbike": "motorcycle", "lorry": "truck"}


STILLS = "stills.jsonl"  # as `python -m fixtures.render practice` writes it


@dataclass(frozen=True, slots=True)
class Still:
    """A practice picture: its JPEG file, what is to be learnt and what is to be ignored in it."""

    path: Path
    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


def clips(folder: Path) -> list[Path]:
    """Return the clips of `folder` that have a truth file."""
    return [path for path in sorted(folder.glob("*.mp4")) if path.with_suffix(".gt.txt").is_file()]


def pictures(clip: Path, every: int) -> Iterator[tuple[int, NDArray[np.uint8], tuple[Label, ...], tuple[Label, ...]]]:
    """Yield (frame, BGR picture, boxes, ignore) of every `every`th frame. Raise IndexFault."""
    classes = _classes(clip.with_suffix(".truth.json"))
    rows = _rows(clip.with_suffix(".gt.txt"))
    for number, picture, (width, height) in film.frames(clip, every):
        boxes: list[Label] = []
        ignore: list[Label] = []
        for cls, x, y, w, h, seen in rows.get(number + 1, ()):
            label = _label(classes[cls], (x, y, x + w, y + h), (width, height))
            (boxes if _clear(w, h, seen) else ignore).append(label)
        yield number, picture, tuple(boxes), tuple(ignore)


def stills(folder: Path) -> Iterator[Still]:
    """Yield the practice stills of `folder`, in the order of its index. Raise IndexFault with the wrong line."""
    path = folder / STILLS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise IndexFault(f"{path}: the stills cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield _still(folder, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise IndexFault(f"{path}, line {number}: not a still: {error!r}") from None


def _still(folder: Path, row: dict[str, object]) -> Still:
    size = int(str(row["width"])), int(str(row["height"]))
    boxes: list[Label] = []
    ignore: list[Label] = []
    if not isinstance(row["boxes"], list):
        raise TypeError("boxes are not a list")
    for name, *sides, seen in row["boxes"]:
        x1, y1, x2, y2 = (float(side) for side in sides)
        if ALIASES.get(name, name) not in CLASSES:
            raise ValueError(f"there is no class {name!r}")
        label = _label(CLASSES.index(ALIASES.get(name, name)), (x1, y1, x2, y2), size)
        (boxes if _clear(x2 - x1, y2 - y1, float(seen)) else ignore).append(label)
    return Still(folder / str(row["image"]), tuple(boxes), tuple(ignore))


def _label(cls: int, sides: tuple[float, float, float, float], size: tuple[int, int]) -> Label:
    """Return a box in pixels as shares of the picture, cut at its edges."""
    (x1, y1, x2, y2), (width, height) = sides, size
    return Label(cls, max(0.0, x1 / width), max(0.0, y1 / height), min(1.0, x2 / width), min(1.0, y2 / height))


def _clear(width: float, height: float, seen: float) -> bool:
    """Return whether a box of that many pixels and visible share is learnt; the rest is ignored."""
    return seen >= SEEN_MIN and min(width, height) >= SIDE_MIN


def _classes(truth: Path) -> dict[int, int]:
    try:
        names = json.loads(truth.read_text(encoding="utf-8"))["classes"]
        return {int(number): CLASSES.index(ALIASES.get(name, name)) for number, name in names.items()}
    except (OSError, ValueError, KeyError) as error:
        raise IndexFault(f"{truth}: its classes cannot be understood: {error!r}") from None


def _rows(path: Path) -> dict[int, list[tuple[int, float, float, float, float, float]]]:
    """Return the MOTChallenge rows by frame (from 1): class, x, y, width, height in pixels, visible share."""
    rows = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            x, y, w, h = (float(value) for value in row[2:6])
            if w > 0 and h > 0:
                rows[int(row[0])].append((int(row[7]), x, y, w, h, float(row[8])))
    return dict(rows)
