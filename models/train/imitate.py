"""Makes the network's feature maps similar to the teacher's, level by level (FitNets).

A small set of pictures says little about a network's many layers; the maps of a teacher that has seen a hundred times
as many say something about every layer at every place (FitNets, arXiv:1412.6550). Each of the pupil's maps is turned by
a 1x1 convolution, which is thrown away afterwards, towards the teacher's map, its channels at mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.train.loss import Lesson
from models.train.network import Views

MOMENTUM = 0.02  # of the teacher's running means and variances
PLAIN = 0.25  # weight of a tower's cell where the teacher sees nothing, against 1 where it is sure
WHOLE_MAX = 24
"""Maps with more rows than this, in cells, are compared in every second row and column only.

At an input of 320 px these are the maps of the strides 4 and 8, which have 88 % of all cells. A convolution does the
same at every cell, so a quarter of them stands for all. The comparison of 16 pictures took 89 ms instead of 150.
"""


class Imitation(nn.Module):
    """Owns the 1x1 convolutions and what is known of the teacher's channels; learns together with the pupil."""

    def __init__(self, mine: Views, theirs: Views) -> None:
        """mine, theirs: of any one picture, for their numbers of channels."""
        super().__init__()
        pairs = list(zip(_all(mine), _all(theirs), strict=True))
        self.turns = nn.ModuleList(nn.Conv2d(one.shape[1], other.shape[1], 1) for one, other in pairs)
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(other.shape[1], affine=False, momentum=MOMENTUM) for _, other in pairs
        )

    def forward(self, mine: Views, lesson: Lesson) -> Tensor:
        """Return the mean over all maps of the squared difference, in float32; 1 is what a pupil without eyes gets."""
        weights = [None] * len(mine.scenes) + _weights(lesson, mine.towers)
        pairs = zip(self.turns, self.norms, _all(mine), _all(lesson.views), weights, strict=True)
        unlike = []
        for turn, norm, one, other, weight in pairs:
            seen = weight if weight is None else _thinned(weight)
            unlike.append(_apart(turn(_thinned(one).float()), norm(_thinned(other).detach().float()), seen))
        return torch.stack(unlike).mean()


def _thinned(view: Tensor) -> Tensor:
    """Return every second row and column of a large map (B, C, H, W), a small one whole."""
    return view[..., ::2, ::2] if view.shape[-2] > WHOLE_MAX else view


def _apart(mine: Tensor, theirs: Tensor, weight: Tensor | None) -> Tensor:
    apart = (mine - theirs).square()
    return apart.mean() if weight is None else (apart.mean(1, keepdim=True) * weight).mean()


def _weights(lesson: Lesson, towers: Sequence[Tensor]) -> list[Tensor | None]:
    """Return (B, 1, H, W) for each tower: more where the teacher sees something; mean 1."""
    best = lesson.scores.float().amax(-1)
    found: list[Tensor | None] = []
    start = 0
    for tower in towers[: len(towers) // 2]:
        batch, _, height, width = tower.shape
        part = best[:, start : start + height * width].reshape(batch, 1, height, width)
        weight = PLAIN + part
        found.append(weight / weight.mean())
        start += height * width
    return found * 2


def _all(views: Views) -> tuple[Tensor, ...]:
    return views.scenes + views.towers
