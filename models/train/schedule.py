"""Computes the learning rate and the weight average of each step. Pure functions of the step's number."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from models.train.network import Network


def rate(step: int, steps: int, peak: float, warmup: int, fall: float = 1.0, floor: float = 0.02) -> float:
    """Return the learning rate at `step`.

    It is linear to `peak` over `warmup` steps, then flat, then over the last share `fall` of the steps half a cosine
    down to `floor` of it. A run that stays flat for long can be made longer (arXiv:2405.18392).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    begin = max(warmup, round(steps * (1 - fall)))
    done = (step - begin) / max(1, steps - begin)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2)


class Average:
    """Exponential moving average of a network, norms' statistics included.

    Young averages forget faster: over about the last tenth of their steps, until `decay` is reached.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self._decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Take in the network after `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        fresh = network.state_dict()
        pairs = [(kept, fresh[name]) for name, kept in self.network.state_dict().items()]
        floats = [pair for pair in pairs if pair[0].dtype.is_floating_point]
        torch._foreach_lerp_([kept for kept, _ in floats], [new for _, new in floats], 1 - decay)
        for kept, new in pairs:
            if not kept.dtype.is_floating_point:
                kept.copy_(new)


def groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weights decay; norms and biases do not."""
    many = [each for each in network.parameters() if each.ndim > 1]
    one = [each for each in network.parameters() if each.ndim <= 1]
    return [{"params": many, "weight_decay": decay}, {"params": one, "weight_decay": 0.0}]
