"""Our own rendered clips as labelled pictures: exact boxes, free of rights."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
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


def clips(folder: Path) -> list[Path]:
    """The clips of `folder` that have a truth file."""
    return [path for path in sorted(folder.glob("*.mp4")) if path.with_suffix(".gt.txt").is_file()]


def pictures(clip: Path, every: int) -> Iterator[tuple[int, NDArray[np.uint8], tuple[Label, ...], tuple[Label, ...]]]:
    """(frame, BGR picture, boxes, ignore) of every `every`th frame. Raises IndexFault."""
    classes = _classes(clip.with_suffix(".truth.json"))
    rows = _rows(clip.with_suffix(".gt.txt"))
    for number, picture, (width, height) in film.frames(clip, every):
        boxes: list[Label] = []
        ignore: list[Label] = []
        for cls, x, y, w, h, seen in rows.get(number + 1, ()):
            corners = (max(0.0, x / width), max(0.0, y / height), min(1.0, (x + w) / width), min(1.0, (y + h) / height))
            clear = seen >= SEEN_MIN and min(w, h) >= SIDE_MIN
            (boxes if clear else ignore).append(Label(classes[cls], *corners))
        yield number, picture, tuple(boxes), tuple(ignore)


def _classes(truth: Path) -> dict[int, int]:
    try:
        names = json.loads(truth.read_text(encoding="utf-8"))["classes"]
        return {int(number): CLASSES.index(ALIASES.get(name, name)) for number, name in names.items()}
    except (OSError, ValueError, KeyError) as error:
        raise IndexFault(f"{truth}: its classes cannot be understood: {error!r}") from None


def _rows(path: Path) -> dict[int, list[tuple[int, float, float, float, float, float]]]:
    """MOTChallenge rows by frame (from 1): class, x, y, width, height in pixels, visible share."""
    rows = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            x, y, w, h = (float(value) for value in row[2:6])
            if w > 0 and h > 0:
                rows[int(row[0])].append((int(row[7]), x, y, w, h, float(row[8])))
    return dict(rows)
