"""Composes one training picture from several; the result depends only on the random generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.train import codec, geometry, looks
from models.train.picture import Pixels, Sample

Rng = np.random.Generator
Look = Callable[[Pixels, Rng], Pixels]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How often (0..1) and how much. grids: chances of 1 x 1, 2 x 2, 3 x 3 pictures; zoom: range of scales, 1 fits."""

    grids: tuple[float, float, float] = (0.4, 0.45, 0.15)
    zoom: tuple[float, float] = (0.6, 2.2)
    stretch: float = 1.3
    flip: float = 0.5
    fisheye: float = 0.06
    colour: float = 0.7
    tone: float = 0.4
    grey: float = 0.06
    infrared: float = 0.08
    night: float = 0.07
    noise: float = 0.08
    blur: float = 0.1
    coarse: float = 0.1
    rain: float = 0.04
    jpeg: float = 0.15
    h264: float = 0.08

    def looks(self) -> tuple[tuple[float, Look], ...]:
        """Return the changes of the pixels, in the order in which they happen to light: scene, lens, sensor, coder."""
        return (
            (self.colour, looks.colour),
            (self.tone, looks.tone),
            (self.rain, looks.rain),
            (self.blur, looks.blur),
            (self.coarse, looks.coarse),
            (self.noise, lambda pixels, rng: looks.noise(pixels, rng, rng.uniform(2, 12))),
            (self.jpeg, looks.jpeg),
            (self.h264, codec.h264),
        )


PLAIN = Recipe(
    (1.0, 0.0, 0.0), (1.0, 1.0), 1.0, flip=0.0, fisheye=0.0, colour=0.0, tone=0.0, grey=0.0, infrared=0.0, night=0.0,
    noise=0.0, blur=0.0, coarse=0.0, rain=0.0, jpeg=0.0, h264=0.0,
)  # fmt: skip
RECIPES = {"full": Recipe(), "plain": PLAIN}


def compose(
    first: Sample,
    others: Callable[[], Sample],
    recipe: Recipe,
    rng: Rng,
    *,
    side: int,
    whole: int = 0,
    calm: bool = False,
) -> Sample:
    """Compose a `side` x `side` sample of `first` and, in a grid, of `others`.

    `whole` composes at this side in pixels if it is larger, and cuts the sample out of it. `calm` makes one whole
    picture, only mirrored and given another look, for the last part of a run (YOLOX closes its mosaic for the same
    reason).
    """
    if calm or recipe is PLAIN:
        sample = geometry.fit(first, side)
    else:
        lines = 1 + int(rng.choice(3, p=recipe.grids))
        sample = geometry.grid(first, others, max(side, whole), rng, lines, recipe.zoom, recipe.stretch)
        if rng.uniform() < recipe.fisheye:
            sample = geometry.fisheye(sample, float(rng.uniform(0.2, 0.9)))
        if whole > side:
            sample = geometry.window(sample, side, rng)
    if rng.uniform() < recipe.flip:
        sample = geometry.mirror(sample)
    return sample.look(seen(sample.pixels, recipe, rng))


def seen(pixels: Pixels, recipe: Recipe, rng: Rng) -> Pixels:
    """Return what a camera makes of it: day, night or infrared, then each look by its chance."""
    light, dark = rng.uniform(), False
    for chance, change in ((recipe.infrared, looks.infrared), (recipe.night, looks.night), (recipe.grey, looks.grey)):
        if 0 <= light < chance:
            pixels, dark = change(pixels, rng), change is not looks.grey
        light -= chance
    # A night that is darkened once more shows nothing that could be learnt.
    for chance, look in recipe.looks()[2 if dark else 0 :]:
        if rng.uniform() < chance:
            pixels = look(pixels, rng)
    return pixels
