"""Makes batches by number: sample n of a run is always the same, so that a run can resume."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from models.train.augment import RECIPES, Recipe, compose
from models.train.dataset import DecodedPictures, Entry, IndexFault, Label
from models.train.geometry import Floats, Sample, empty, fit
from models.train.loss import PADDING, Truth

GROWN_AT = 0.75  # share of a run after which pictures have their last size, unless --grow-steps says when
GAUGED = 48  # pictures on which batch norms are measured when a run starts from an .onnx


@dataclass(frozen=True, slots=True)
class Sides:
    """The input sides of a run.

    They lie around `first` px when it begins and grow evenly to around `last` px at step `grown`; each batch is within
    `around` x 32 px of that.
    """

    first: int
    last: int
    around: int
    grown: int = 1

    def at(self, step: int, rng: np.random.Generator) -> int:
        """Return the side of a batch: a multiple of 32, at least 64."""
        middle = self.first + (self.last - self.first) * min(1.0, step / max(1, self.grown))
        return max(64, 32 * (round(middle / 32) + int(rng.integers(-self.around, self.around + 1))))


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings that fix every sample of a run.

    `sides` are those of the square input a batch is made in, by the step's number. From step `calm_from` on, pictures
    come whole and undistorted. `window_from` is the side in pixels at which pictures are composed before a window of
    the batch's side is cut out of them, 0 for the batch's side.
    """

    seed: int
    batch: int
    steps: int
    sides: Sides
    calm_from: int
    recipe: Recipe
    window_from: int = 0

    def side(self, step: int) -> int:
        """Return the input's side at `step`."""
        return self.sides.at(step, np.random.default_rng([self.seed, 1, step]))


@dataclass(frozen=True, slots=True)
class Batch:
    """pictures: (B, 3, S, S) uint8 RGB."""

    step: int
    pictures: Tensor
    truth: Truth

    def pin_memory(self) -> Batch:
        """Pin the tensors, so that the copy to the GPU need not wait. The loader calls this."""
        truth = self.truth
        pinned = (truth.boxes, truth.classes, truth.sure, truth.ignore_boxes, truth.ignore_classes)
        return Batch(self.step, self.pictures.pin_memory(), Truth(*(each.pin_memory() for each in pinned)))


class Draws(Dataset[Sample]):
    """The samples of a plan by number."""

    def __init__(self, cache: DecodedPictures, entries: Sequence[Entry], weights: Sequence[int], plan: Plan) -> None:
        """Take the `entries` of the cache and `weights`: how often an epoch shows each, 0 for never."""
        self._cache = cache
        self._rows = [(rows(entry.boxes, entry), rows(entry.ignore, entry)) for entry in entries]
        self._deck = np.repeat(np.arange(len(entries)), weights)
        self._plan = plan
        self._epoch = -1
        self._order = self._deck

    def __len__(self) -> int:
        return self._plan.steps * self._plan.batch

    def epoch_length(self) -> int:
        """Return the number of samples in which every picture came as often as its weight says."""
        return len(self._deck)

    def __getitem__(self, number: int) -> Sample:
        plan, step = self._plan, number // self._plan.batch
        rng = np.random.default_rng([plan.seed, 2, number])
        others = lambda: self.raw(int(rng.choice(self._deck)))  # noqa: E731
        first = self.raw(self._at(number))
        side, calm = plan.side(step), step >= plan.calm_from
        return compose(first, others, plan.recipe, rng, side=side, whole=plan.window_from, calm=calm)

    def raw(self, place: int) -> Sample:
        """Return a picture of the cache as it is, boxes in pixels."""
        boxes, ignore = self._rows[place]
        return Sample(self._cache[place], boxes.copy(), ignore.copy())

    def _at(self, number: int) -> int:
        epoch, place = divmod(number, len(self._deck))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._plan.seed, 3, epoch]).permutation(self._deck)
        return int(self._order[place])


class _Steps(Sampler[list[int]]):
    """The sample numbers of each batch from a step on."""

    def __init__(self, plan: Plan, start: int) -> None:
        self._plan, self._start = plan, start

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._start, self._plan.steps):
            yield list(range(step * self._plan.batch, (step + 1) * self._plan.batch))

    def __len__(self) -> int:
        return self._plan.steps - self._start


def batches(draws: Draws, plan: Plan, start: int, workers: int, *, pin: bool = False, nice: int = 0) -> Iterator[Batch]:
    """Yield the plan's batches from step `start` to its end.

    `workers` processes (0: this one) make them; they are `nice` to others by so much more than this one.
    """
    loader: DataLoader[Sample] = DataLoader(
        draws,
        batch_sampler=_Steps(plan, start),
        num_workers=workers,
        collate_fn=pack,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
        worker_init_fn=partial(_quiet, nice) if workers else None,
    )
    for step, batch in enumerate(loader, start):
        yield Batch(step, batch.pictures, batch.truth)


def pack(samples: Sequence[Sample]) -> Batch:
    """Return samples of one size as tensors, labels padded to the longest."""
    pictures = np.stack([sample.pixels[:, :, ::-1].transpose(2, 0, 1) for sample in samples])
    boxes, ignore = _padded([sample.boxes for sample in samples]), _padded([sample.ignore for sample in samples])
    truth = Truth(
        boxes=boxes[..., 1:5],
        classes=boxes[..., 0].long().clamp(min=0),
        sure=sureness(boxes[..., 5]),
        ignore_boxes=ignore[..., 1:5],
        ignore_classes=ignore[..., 0].long(),
    )
    return Batch(0, torch.from_numpy(np.ascontiguousarray(pictures)), truth)


def sureness(scores: Tensor) -> Tensor:
    """Return the answer of a perfect cell: 1 for drawn boxes, less for boxes that teachers were unsure of.

    A network's 0.7 is as sure as it gets on small objects, hence the 0.3.
    """
    return torch.where(scores > 0, (scores + 0.3).clamp(max=1.0), 0.0)


def rows(labels: Sequence[Label], entry: Entry) -> Floats:
    """Return (N, 6): class, x1, y1, x2, y2 in pixels, score."""
    if not labels:
        return empty()
    scale = np.array([1, entry.width, entry.height, entry.width, entry.height, 1], np.float32)
    table = np.array([[each.cls, each.x1, each.y1, each.x2, each.y2, each.score] for each in labels], np.float32)
    return np.asarray(table * scale, np.float32)


def _padded(parts: Sequence[NDArray[np.float32]]) -> Tensor:
    table = np.zeros((len(parts), max(1, *(len(each) for each in parts)), 6), np.float32)
    table[..., 0] = PADDING
    for row, each in zip(table, parts, strict=True):
        row[: len(each)] = each
    return torch.from_numpy(table)


def _quiet(nice: int, worker: int) -> None:
    """Sixteen workers with sixteen threads each would stand in each other's way."""
    os.nice(nice)
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def weights_of(options: argparse.Namespace, entries: list[Entry]) -> list[int]:
    """Return how often an epoch shows each picture: val never, the rest once unless --weight says otherwise."""
    table: dict[str, int] = {}
    sources = {entry.source for entry in entries}
    for text in options.weight:
        source, _, count = text.partition("=")
        if source not in sources or not count.isdigit():
            raise IndexFault(f"--weight {text}: SOURCE=N with a whole N and one of {', '.join(sorted(sources))}")
        table[source] = int(count)
    weights = [table.get(entry.source, 1) if entry.split == "train" else 0 for entry in entries]
    if not any(weights):
        raise IndexFault("no picture is left to train on")
    return weights


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that these options make. Raise IndexFault."""
    for name in ("size", "size_from"):
        side = getattr(options, name)
        if side % 32 or 0 < side < 64:
            raise IndexFault(f"--{name.replace('_', '-')} {side}: a multiple of 32, at least 64")
    calm_from = round(options.steps * (1 - options.calm))
    grown = options.grow_steps or round(options.steps * GROWN_AT)
    sides = Sides(options.size_from or options.size, options.size, options.scales, grown)
    recipe = RECIPES[options.recipe]
    return Plan(options.seed, options.batch, options.steps, sides, calm_from, recipe, options.window_from)


def gauging_pictures(draws: Draws, entries: list[Entry], side: int) -> Tensor:
    """Return (GAUGED, 3, side, side) RGB 0..1: whole training pictures, evenly from the index."""
    places = [number for number, entry in enumerate(entries) if entry.split == "train"]
    chosen = [places[number * len(places) // GAUGED] for number in range(GAUGED)]
    return pack([fit(draws.raw(place), side) for place in chosen]).pictures.float() / 255
