"""Reads labelled pictures: a YOLO folder, our own index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from appliance.base.errors import UsageError
from models.train import dataset

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


class SetFault(UsageError):
    """A labelled set cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One labelled picture.

    - boxes: float64 (N, 4) x1 y1 x2 y2 in pixels of a `size` (width, height) picture; `pixels` may be a smaller or
      larger copy of it.
    - names: the name of each box; empty: of a region that is to be ignored for every class.
    - crowd: (N,) bool, true for boxes that are not to count.
    """

    name: str
    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    names: tuple[str, ...]
    crowd: NDArray[np.bool_]
    size: tuple[int, int]


def yolo(folder: Path, names: Sequence[str]) -> Iterator[Labelled]:
    """`folder`/images and `folder`/labels: a text file a picture, rows of class, then centre and size or a polygon."""
    pictures = [path for path in sorted((folder / "images").glob("*")) if path.suffix.lower() in SUFFIXES]
    if not pictures:
        raise SetFault(f"{folder / 'images'}: no pictures")
    for path in pictures:
        pixels = _picture(path)
        rows = _yolo_rows(folder / "labels" / f"{path.stem}.txt", len(names))
        scale = np.array([pixels.shape[1], pixels.shape[0]] * 2, float)
        boxes = np.array([box for _, box in rows], float).reshape(-1, 4) * scale
        crowd = np.zeros(len(rows), bool)
        yield Labelled(path.name, pixels, boxes, tuple(names[cls] for cls, _ in rows), crowd, _size(pixels))


def yolo_names(data: Path) -> list[str]:
    """Return the class names of a data.yaml, in order."""
    try:
        names = yaml.safe_load(data.read_text(encoding="utf-8"))["names"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise SetFault(f"{data}: no `names` in it: {error!r}") from None
    return (
        [str(names[number]) for number in sorted(names)] if isinstance(names, dict) else [str(each) for each in names]
    )


def assembled(path: Path, split: dataset.Split) -> Iterator[Labelled]:
    """Yield one side of a set that `models.train.assemble` made; regions to ignore are crowd.

    As in training, a region of one class is ignored for those that it is mistaken for, too.
    """
    root = path if path.is_dir() else path.parent
    for entry in dataset.of(dataset.read(path), split):
        scale = np.array([entry.width, entry.height] * 2, float)
        ignored = [replace(each, cls=cls) for each in entry.ignore for cls in dataset.kin(each.cls)]
        labels = (*entry.boxes, *ignored)
        boxes = np.array([[each.x1, each.y1, each.x2, each.y2] for each in labels], float).reshape(-1, 4) * scale
        crowd = np.arange(len(labels)) >= len(entry.boxes)
        names = tuple(dataset.CLASSES[each.cls] for each in labels)
        yield Labelled(entry.image, _picture(root / entry.image), boxes, names, crowd, (entry.width, entry.height))


def _yolo_rows(path: Path, classes: int) -> list[tuple[int, list[float]]]:
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            cls, *values = line.split()
            box = _corners([float(value) for value in values])
            if not 0 <= int(cls) < classes:
                raise ValueError(f"class {cls} has no name")
        except ValueError as error:
            raise SetFault(f"{path}, line {number}: {error}") from None
        rows.append((int(cls), box))
    return rows


def _corners(values: list[float]) -> list[float]:
    if len(values) == 4:
        x, y, width, height = values
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    if len(values) < 6 or len(values) % 2:
        raise ValueError("neither a box (4 numbers) nor a polygon")
    return [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])]


def _picture(path: Path) -> NDArray[np.uint8]:
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise SetFault(f"{path}: missing or not a picture")
    return np.asarray(picture, np.uint8)


def _size(pixels: NDArray[np.uint8]) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]
