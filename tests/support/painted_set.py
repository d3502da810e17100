"""A training set of few small pictures that is learnt in seconds."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from models.train import dataset
from models.train.dataset import Entry, Label


def painted(folder: Path, count: int) -> None:
    """A set of pictures with one bright person-shaped bar each."""
    rng, entries = np.random.default_rng(0), []
    (folder / "images").mkdir(parents=True)
    for number in range(count):
        image = rng.integers(0, 60, (96, 128, 3), np.uint8)
        x, y = (int(value) for value in rng.integers((4, 4), (90, 40)))
        image[y : y + 48, x : x + 20] = 240
        cv2.imwrite(str(folder / "images" / f"{number}.png"), image)
        box = Label(0, x / 128, y / 96, (x + 20) / 128, (y + 48) / 96)
        side: dataset.Split = "train" if number % 4 else "val"
        entries.append(Entry(f"images/{number}.png", str(number), "0" * 16, 128, 96, (box,), (), "painted", side))
    dataset.write(folder, entries)
