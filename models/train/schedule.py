"""How fast to learn at each step, and the slow average of what was learnt. Pure functions of the step's number."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from models.train.network import Network


def rate(step: int, steps: int, peak: float, warmup: int, floor: float = 0.02) -> float:
    """Learning rate: linear to `peak` over `warmup` steps, then half a cosine down to `floor` of it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


class Average:
    """Exponential moving average of a network, norms' statistics included. Young averages forget faster: the decay
    rises to `decay` within some `horizon` steps.
    """

    def __init__(self, network: Network, decay: float, horizon: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self._decay, self._horizon = decay, horizon

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Take in the network after `step`."""
        decay = self._decay * (1 - math.exp(-(step + 1) / self._horizon))
        fresh = network.state_dict()
        for name, kept in self.network.state_dict().items():
            if kept.dtype.is_floating_point:
                kept.lerp_(fresh[name].to(kept.dtype), 1 - decay)
            else:
                kept.copy_(fresh[name])


def groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weights decay; norms and biases do not."""
    many = [each for each in network.parameters() if each.ndim > 1]
    one = [each for each in network.parameters() if each.ndim <= 1]
    return [{"params": many, "weight_decay": decay}, {"params": one, "weight_decay": 0.0}]
