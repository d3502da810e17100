"""Writes the state that a run needs to resume, so that a kill while writing loses nothing.

It consists of two files, each small enough to be carried: `last.pt` (weights, average, step) and `optimizer-STEP.pt`.
`last.pt` names its optimizer file and is put in place last, by a rename: before it the old pair is whole, after it the
new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.train.index import IndexFault
from models.train.network import Network
from models.train.schedule import Average

LAST, BEST = "last.pt", "best.pt"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: steps done, the best figure so far, what the run was started with."""

    step: int
    best: float
    settings: dict[str, Any]


def save(
    folder: Path,
    network: Network,
    average: Average,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    imitation: nn.Module | None = None,
) -> None:
    """Put a checkpoint in place of the last one."""
    moments = folder / f"optimizer-{progress.step}.pt"
    _write({"optimizer": optimizer.state_dict(), "step": progress.step}, moments)
    state = {
        "design": network.design.name,
        "network": network.state_dict(),
        "ema": {"network": average.network.state_dict()},
        "step": progress.step,
        "best": progress.best,
        "settings": progress.settings,
        "optimizer": moments.name,
        "imitation": imitation.state_dict() if imitation else {},
    }
    _write(state, folder / LAST)
    for old in folder.glob("optimizer-*.pt"):
        if old != moments:
            old.unlink()


def save_best(folder: Path, average: Average, progress: Progress) -> None:
    """Keep the average that did best so far: all that an export needs."""
    state = {"design": average.network.design.name, "ema": {"network": average.network.state_dict()}}
    _write({**state, "step": progress.step, "best": progress.best, "settings": progress.settings}, folder / BEST)


def restore(
    folder: Path,
    network: Network,
    average: Average,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    imitation: nn.Module | None = None,
) -> Progress | None:
    """Load the last checkpoint of `folder`, if there is one. Raise IndexFault if it is not of this network."""
    path = folder / LAST
    if not path.is_file():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    if state["design"] != network.design.name:
        raise IndexFault(f"{path} is of the design {state['design']}, not {network.design.name}: choose another --out")
    moments = torch.load(folder / state["optimizer"], map_location=device, weights_only=True)
    network.load_state_dict(state["network"])
    average.network.load_state_dict(state["ema"]["network"])
    optimizer.load_state_dict(moments["optimizer"])
    if imitation:
        imitation.load_state_dict(state["imitation"])
    return Progress(int(state["step"]), float(state["best"]), dict(state["settings"]))


def _write(state: dict[str, Any], path: Path) -> None:
    fresh = path.with_suffix(".part")
    torch.save(state, fresh)
    fresh.replace(path)
