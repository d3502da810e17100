"""Finds pictures that training must not use, by hash and by likeness: evaluation footage and all with ground truth."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from models.evaluation import cameras
from models.train import film
from models.train.index import IndexFault
from models.train.phash import distances, from_hex, mirrored, phash

FILMS = ("pets09_s2l1_vtest_768x576.mp4", "pets09_s2l1_vtest_480x360.mp4", "intel_one-by-one-person.mp4")
WORDS = ("pets09", "pets2009", "one-by-one", "one_by_one", "groundtruth")
EVERY = 5
HASHES = Path("train/fence_hashes.txt")  # below the data: further evaluation pictures, known by their hashes alone
OWN_HASHES = Path(__file__).parents[1] / "evaluation" / "hashes.txt"  # of what models.evaluation.public brings
NEAR_MAX = 6  # bits; the reference data were made unlike each other by the same bounds
NEAR_MIRRORED_MAX = 3
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


@dataclass(frozen=True, slots=True)
class Fence:
    """Hashes of everything behind it. Nothing is ever taken off."""

    sha256: frozenset[str] = frozenset()
    looks: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    mirrored: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def forbids(self, sha256: str, look: int, flipped: int | None = None) -> bool:
        """Return whether a picture is an evaluation picture, or looks like one.

        The picture has this file hash and perceptual hash (`flipped`: of its mirror image).
        """
        if sha256 in self.sha256:
            return True
        one = np.array([look], np.uint64)
        near = distances(one, self.looks).min(initial=64) <= NEAR_MAX
        turned = distances(one, self.mirrored).min(initial=64) <= NEAR_MIRRORED_MAX
        if flipped is not None and not turned:
            other = np.array([flipped], np.uint64)
            turned = distances(other, self.looks).min(initial=64) <= NEAR_MIRRORED_MAX
        return bool(near or turned)

    def wider(self, looks: Sequence[int]) -> Fence:
        """Return this fence with further pictures, by their perceptual hashes."""
        return replace(self, looks=np.concatenate([self.looks, np.array(looks, np.uint64)]))


def barred(path: Path) -> bool:
    """Return whether the name alone says that a file is for evaluation only."""
    name = str(path).lower()
    return any(word in name for word in WORDS)


def build(data: Path) -> Fence:
    """Build the fence around all pictures that may not be learnt from.

    They are every 5th frame of the evaluation footage, every picture under groundtruth/ of `data`, the hashes of
    `HASHES` and `OWN_HASHES`, and those of the camera pictures (models/evaluation/cameras.jsonl).
    """
    shas, looks, flips = set(), [], []
    for path in sorted((data / "groundtruth").rglob("*")):
        if path.is_file():
            shas.add(hashlib.sha256(path.read_bytes()).hexdigest())
    for picture in _pictures(data):
        looks.append(phash(picture))
        flips.append(mirrored(picture))
    fence = Fence(frozenset(shas), np.array(looks, np.uint64), np.array(flips, np.uint64))
    further = [path for path in (data / HASHES, OWN_HASHES) if path.is_file()]
    fence = fence.wider([look for path in further for look in listed(path)])
    return fence.wider([picture.look for picture in cameras.table()])


def listed(path: Path) -> list[int]:
    """Return the perceptual hashes of a file with one of 16 hex digits a line. Raise IndexFault."""
    try:
        return [from_hex(line.strip()) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise IndexFault(f"{path}: not a list of hashes: {error}") from None


def _pictures(data: Path) -> Iterator[NDArray[np.uint8]]:
    for name in FILMS:
        yield from (picture for _, picture, _ in film.frames(data / "footage" / name, EVERY))
    for path in sorted((data / "groundtruth").rglob("*")):
        if path.suffix.lower() in PICTURES:
            picture = cv2.imread(str(path))
            if picture is not None:
                yield np.asarray(picture, np.uint8)
