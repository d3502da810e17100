"""The network: plain convolutions, path-aggregation neck, anchor-free head at strides 8, 16, 32.

Only Conv, Relu and Concat come out of an export: every compiler for NPUs (TensorRT, Hailo's DFC) knows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.train.dataset import CLASSES


def fold(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight (out, in, k, k) and bias (out,) of a convolution followed by `norm` in evaluation mode, as one."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return weight * gain.reshape(-1, 1, 1, 1), norm.bias - norm.running_mean * gain


class ConvUnit(nn.Module):
    """Convolution, batch norm, ReLU. `fuse()` merges the norm into the convolution, which gets a bias."""

    def __init__(self, c_in: int, c_out: int, k: int = 1, stride: int = 1, *, depthwise: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, k, stride, k // 2, groups=c_in if depthwise else 1, bias=False)
        self.norm = nn.BatchNorm2d(c_out, eps=1e-3, momentum=0.03)
        self.fused: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H / stride, W / stride)."""
        if self.fused is not None:
            return torch.relu(self.fused(x))
        return torch.relu(self.norm(self.conv(x)))

    @torch.no_grad()
    def fuse(self) -> None:
        """Become one convolution; only for a copy that is exported or measured, never trained again."""
        weight, bias = fold(self.conv.weight, self.norm)
        self.fused = self.conv
        self.fused.weight, self.fused.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.conv = self.norm = None  # type: ignore[assignment]


class Separable(nn.Module):
    """Depthwise 5x5, then 1x1 (MobileNet); both with ReLU."""

    def __init__(self, c: int, stride: int = 1) -> None:
        super().__init__()
        self.depth = ConvUnit(c, c, 5, stride, depthwise=True)
        self.mix = ConvUnit(c, c)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c, H, W) into (B, c, H / stride, W / stride)."""
        mixed: Tensor = self.mix(self.depth(x))
        return mixed


class Split(nn.Module):
    """Two 1x1 convolutions instead of a slice, and a chain of n full 3x3 on the narrow half.

    Everything is concatenated and mixed by a 1x1 (the ELAN of YOLOv7 and C2f of YOLOv8 in its cheapest form).
    """

    def __init__(self, c_in: int, c_out: int, narrow: int, n: int = 1) -> None:
        super().__init__()
        self.left = ConvUnit(c_in, narrow)
        self.right = ConvUnit(c_in, narrow)
        self.chain = nn.ModuleList(ConvUnit(narrow, narrow, 3) for _ in range(n))
        self.mix = ConvUnit((2 + n) * narrow, c_out)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H, W)."""
        parts = [self.left(x), self.right(x)]
        for brick in self.chain:
            parts.append(brick(parts[-1]))
        mixed: Tensor = self.mix(torch.cat(parts, 1))
        return mixed


STRIDES = (8, 16, 32)
PRIOR = 0.01  # score of every cell before training, as RetinaNet (arXiv:1708.02002) starts
REACH = 2.0  # cells from a cell's centre to a side before training


@dataclass(frozen=True, slots=True)
class Design:
    """Widths and depths of a network.

    - widths, depths: of the stages at strides 4, 8, 16, 32.
    - neck: channels at every level.
    - head: channels of the one full 3x3 convolution that both answers read, and then the neck halves by full ones, too
      (0: two separable ones of the neck's width).
    """

    name: str
    stem: int
    widths: tuple[int, int, int, int]
    depths: tuple[int, int, int, int]
    neck: int
    head: int = 0


DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        # Full 3x3 convolutions: what NPUs are fastest at, and twice as fast to train on a CPU as separable ones.
        Design("dense", 16, (32, 64, 128, 256), (1, 2, 3, 2), 80),
        # No depthwise convolution at all: in bfloat16 their backward pass takes a third of a step of `dense`.
        Design("full", 16, (32, 64, 128, 256), (1, 2, 3, 2), 64, head=32),
    )
}


def _stage(c_in: int, c_out: int, depth: int) -> nn.Sequential:
    """Halve the picture, then a chain of `depth` convolutions."""
    down = ConvUnit(c_in, c_out, 3, 2)
    return nn.Sequential(down, Split(c_out, c_out, c_out // 4 if c_out >= 128 else c_out // 2, depth))


class Pool(nn.Module):
    """Wide sight for little: max pools of 5, 9, 13 as a chain of 5s, concatenated and mixed (YOLOv5's SPPF)."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.narrow = ConvUnit(c_in, c_in // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.mix = ConvUnit(c_in * 2, c_out)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H, W)."""
        parts = [self.narrow(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        mixed: Tensor = self.mix(torch.cat(parts, 1))
        return mixed


class Neck(nn.Module):
    """Down with the meaning, up with the place (PANet), the same width at all levels."""

    def __init__(self, widths: Sequence[int], c: int, *, full: bool) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(ConvUnit(width, c) for width in widths[:2])
        self.pool = Pool(widths[2], c)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.down = nn.ModuleList(ConvUnit(c, c, 3, 2) if full else Separable(c, stride=2) for _ in range(2))
        self.top = nn.ModuleList(Split(2 * c, c, c // 2) for _ in range(2))
        self.bottom = nn.ModuleList(Split(2 * c, c, c // 2) for _ in range(2))

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Turn three levels of the backbone into three of `c` channels."""
        p3, p4, p5 = self.lateral[0](levels[0]), self.lateral[1](levels[1]), self.pool(levels[2])
        p4 = self.top[0](torch.cat([p4, self.up(p5)], 1))
        p3 = self.top[1](torch.cat([p3, self.up(p4)], 1))
        p4 = self.bottom[0](torch.cat([p4, self.down[0](p3)], 1))
        p5 = self.bottom[1](torch.cat([p5, self.down[1](p4)], 1))
        return [p3, p4, p5]


class Branch(nn.Module):
    """One level's answer: a tower for the sides, one for the classes, or with `head` channels one for both."""

    def __init__(self, c: int, head: int) -> None:
        super().__init__()
        # Sequences of one, as the files of networks name their layers.
        self.side_tower = nn.Sequential(ConvUnit(c, head, 3) if head else Separable(c))
        self.class_tower = None if head else nn.Sequential(Separable(c))
        self.sides = nn.Conv2d(head or c, 4, 1)
        self.classes = nn.Conv2d(head or c, len(CLASSES), 1)
        assert self.sides.bias is not None
        assert self.classes.bias is not None
        nn.init.normal_(self.sides.weight, std=0.01)
        nn.init.normal_(self.classes.weight, std=0.01)
        nn.init.constant_(self.sides.bias, math.log(REACH))
        nn.init.constant_(self.classes.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn (B, c, H, W) into (B, 4 + classes, H, W), and return the views of the two towers with it.

        The first 4 are the log of the distances to left, top, right, bottom in cells; the classes are logits.
        """
        side = self.side_tower(x)
        kind = side if self.class_tower is None else self.class_tower(x)
        return torch.cat([self.sides(side), self.classes(kind)], 1), side, kind


@dataclass(frozen=True, slots=True)
class Views:
    """Feature maps (B, C, H, W) by which pupil and teacher can be compared.

    `scenes` are the backbone at strides 4, 8, 16, then the neck at 8, 16. `towers` are the box towers at strides 8, 16,
    32, then the class towers.
    """

    scenes: tuple[Tensor, ...]
    towers: tuple[Tensor, ...]


class Network(nn.Module):
    """RGB 0..1 pictures (B, 3, H, W), H and W multiples of 32, to raw answers (B, 4 + classes, cells)."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        c1, c2, c3, c4 = design.widths
        self.stem = ConvUnit(3, design.stem, 3, 2)
        before = (design.stem, c1, c2, c3)
        self.stages = nn.ModuleList(
            _stage(c_in, c_out, depth) for c_in, c_out, depth in zip(before, design.widths, design.depths, strict=True)
        )
        self.neck = Neck((c2, c3, c4), design.neck, full=design.head > 0)
        self.branches = nn.ModuleList(Branch(design.neck, design.head) for _ in STRIDES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Turn (B, 3, H, W) into (B, 4 + classes, cells): the levels one after the other, rows before columns."""
        return self.watched(pictures)[0]

    def watched(self, pictures: Tensor) -> tuple[Tensor, Views]:
        """Return the answer, and the views of the network on the way to it."""
        x = self.stem(pictures)
        stages = []
        for stage in self.stages:
            x = stage(x)
            stages.append(x)
        levels = self.neck(stages[1:])
        said = [branch(level) for branch, level in zip(self.branches, levels, strict=True)]
        views = Views((*stages[:3], *levels[:2]), (*(side for _, side, _ in said), *(kind for _, _, kind in said)))
        return torch.cat([_rows(answer) for answer, _, _ in said], 2), views

    def freeze(self, parts: int) -> None:
        """Let the stem and the first `parts` - 1 stages learn nothing more; repeat it after every `train()`.

        Their maps are the largest. Without their gradients, a step of the network takes half the time on a CPU.
        """
        for part in [self.stem, *self.stages][:parts]:
            part.eval().requires_grad_(False)

    def fuse(self) -> Network:
        """Merge all norms for delivery; returns itself."""
        for module in self.modules():
            if isinstance(module, ConvUnit):
                module.fuse()
        return self

    def parameters_count(self) -> int:
        """Count the numbers to be learnt; of a fused network, the numbers delivered."""
        return sum(parameter.numel() for parameter in self.parameters())


def _rows(answer: Tensor) -> Tensor:
    """Turn (B, C, H, W) into (B, C, H * W).

    int() makes the sides constants of the export; flatten leaves Shape nodes.
    """
    batch, channels, height, width = (int(side) for side in answer.shape)
    return answer.reshape(batch, channels, height * width)


def cells(width: int, height: int) -> Tensor:
    """(3, cells): x and y of each cell's centre in pixels, and its stride, in the order of the network's answer."""
    parts = []
    for stride in STRIDES:
        y, x = torch.meshgrid(torch.arange(height // stride), torch.arange(width // stride), indexing="ij")
        centre = torch.stack([x.flatten(), y.flatten()]).float() * stride + stride / 2
        parts.append(torch.cat([centre, torch.full((1, centre.shape[1]), float(stride))]))
    return torch.cat(parts, 1)


def corners(answer: Tensor, grid: Tensor) -> Tensor:
    """Return the boxes (B, cells, 4) x1 y1 x2 y2 in pixels from a raw answer (B, 4 + classes, cells)."""
    # exp overflows in half precision and one wild cell would spoil the loss: e^6 cells of 32 px is beyond any picture.
    reach = torch.exp(answer[:, :4].float().clamp(max=6.0)) * grid[2]
    return torch.cat([grid[:2] - reach[:, :2], grid[:2] + reach[:, 2:]], 1).transpose(1, 2)
