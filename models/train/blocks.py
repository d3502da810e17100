"""Defines the blocks of the network: convolutions that train with several branches and are exported as one.

Only Conv, Relu and Concat come out of an export: every compiler for NPUs (TensorRT, Hailo's DFC) knows them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def fold(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight (out, in, k, k) and bias (out,) of a convolution followed by `norm` in evaluation mode, as one."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return weight * gain.reshape(-1, 1, 1, 1), norm.bias - norm.running_mean * gain


class ConvUnit(nn.Module):
    """Convolution, batch norm, ReLU.

    `rep` adds a 1x1 and, where shapes allow, an identity branch while training (RepVGG, arXiv:2101.03697; MobileOne,
    arXiv:2206.04040); `fuse()` merges everything into one convolution with bias.
    """

    def __init__(
        self, c_in: int, c_out: int, k: int = 1, stride: int = 1, *, depthwise: bool = False, rep: bool = False
    ) -> None:
        super().__init__()
        groups = c_in if depthwise else 1
        self.k, self.stride, self.groups = k, stride, groups
        self.conv = nn.Conv2d(c_in, c_out, k, stride, k // 2, groups=groups, bias=False)
        self.norm = _norm(c_out)
        point = rep and k > 1
        self.point = nn.Conv2d(c_in, c_out, 1, stride, groups=groups, bias=False) if point else None
        self.point_norm = _norm(c_out) if point else None
        self.same_norm = _norm(c_out) if rep and stride == 1 and c_in == c_out else None
        self.fused: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H / stride, W / stride)."""
        if self.fused is not None:
            return torch.relu(self.fused(x))
        y = self.norm(self.conv(x))
        if self.point is not None and self.point_norm is not None:
            y = y + self.point_norm(self.point(x))
        if self.same_norm is not None:
            y = y + self.same_norm(x)
        return torch.relu(y)

    def bare(self) -> None:
        """Train without the additional branches."""
        self.point = self.point_norm = self.same_norm = None

    @torch.no_grad()
    def fuse(self) -> None:
        """Become one convolution; only for a copy that is exported or measured, never trained again."""
        weight, bias = fold(self.conv.weight, self.norm)
        if self.point is not None and self.point_norm is not None:
            more, offset = fold(self.point.weight, self.point_norm)
            weight = weight + nn.functional.pad(more, [self.k // 2] * 4)
            bias = bias + offset
        if self.same_norm is not None:
            more, offset = fold(self._identity(), self.same_norm)
            weight, bias = weight + more, bias + offset
        fused = nn.Conv2d(
            self.conv.in_channels, len(weight), self.k, self.stride, self.k // 2, groups=self.groups, bias=True
        ).to(weight.device)
        fused.weight.copy_(weight)
        assert fused.bias is not None
        fused.bias.copy_(bias)
        self.fused = fused
        self.conv = self.norm = self.point = self.point_norm = self.same_norm = None  # type: ignore[assignment]

    def _identity(self) -> Tensor:
        weight = torch.zeros_like(self.conv.weight)
        index = torch.arange(len(weight))
        weight[index, index % weight.shape[1], self.k // 2, self.k // 2] = 1.0
        return weight


class Separable(nn.Module):
    """Depthwise k x k, then 1x1 (MobileNet); both with ReLU."""

    def __init__(self, c_in: int, c_out: int, k: int = 5, stride: int = 1) -> None:
        super().__init__()
        self.depth = ConvUnit(c_in, c_in, k, stride, depthwise=True, rep=True)
        self.mix = ConvUnit(c_in, c_out, rep=True)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H / stride, W / stride)."""
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
        self.chain = nn.ModuleList(ConvUnit(narrow, narrow, 3, rep=True) for _ in range(n))
        self.mix = ConvUnit((2 + n) * narrow, c_out)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (B, c_in, H, W) into (B, c_out, H, W)."""
        parts = [self.left(x), self.right(x)]
        for brick in self.chain:
            parts.append(brick(parts[-1]))
        mixed: Tensor = self.mix(torch.cat(parts, 1))
        return mixed


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.03)
