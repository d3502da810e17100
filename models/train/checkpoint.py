"""What a run keeps: the average of its weights, judged by the held-back pictures, its checkpoints and its log.

A checkpoint consists of two files, each small enough to be carried: `last.pt` (weights, average, step) and
`optimizer-STEP.pt`. `last.pt` names its optimizer file and is put in place last, by a rename: before it the old pair is
whole, after it the new one. So a kill while writing loses nothing. The log has one JSON object a line, and is cut back
to the checkpoint when a run resumes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from appliance.detect.letterbox import Letterbox
from appliance.detect.output_head import filter_and_sort, non_maximum_suppression
from appliance.types import Detections
from models.evaluation.arithmetic import average_precision, match
from models.train.dataset import CLASSES, DecodedPictures, Entry, IndexFault, Label, kin
from models.train.network import Network, cells, corners


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


SCORE_MIN = 0.02
BATCH = 32


@dataclass(frozen=True, slots=True)
class Verdict:
    """AP50 of each class that has boxes, their mean, and the person's (nan where there is none)."""

    mean: float
    person: float
    classes: dict[str, float]


@torch.no_grad()
def detect(network: Network, pictures: Sequence[np.ndarray], side: int, device: torch.device) -> list[Detections]:
    """Return the network's detections in BGR pictures of any size, laid in as the appliance lays them.

    The boxes are shares.
    """
    box = Letterbox(side, side, "centre")
    laid = np.stack([box.lay(picture)[:, :, ::-1].transpose(2, 0, 1) for picture in pictures])
    answer = network(torch.from_numpy(np.ascontiguousarray(laid)).to(device).float() / 255).float()
    boxes = corners(answer, cells(side, side).to(device)).cpu().numpy()
    scores = answer[:, 4:].sigmoid().transpose(1, 2).cpu().numpy()
    found = []
    for picture, all_boxes, all_scores in zip(pictures, boxes, scores, strict=True):
        best = all_scores.max(axis=1)
        keep = np.flatnonzero(best >= SCORE_MIN)
        classes = all_scores[keep].argmax(axis=1).astype(np.int32)
        seen = non_maximum_suppression(Detections(all_boxes[keep], best[keep], classes), 0.6, per_class=True)
        shares = box.to_shares(seen.boxes, picture.shape[1], picture.shape[0])
        found.append(filter_and_sort(Detections(shares, seen.scores, seen.class_ids), SCORE_MIN))
    return found


def judge(
    network: Network, cache: DecodedPictures, entries: Sequence[Entry], places: Sequence[int], side: int
) -> Verdict:
    """Return AP50 on the pictures at `places` of `entries` and `cache`."""
    device = next(network.parameters()).device
    network.eval()
    cv2.setNumThreads(1)
    found: list[Detections] = []
    for start in range(0, len(places), BATCH):
        chunk = [cache[place] for place in places[start : start + BATCH]]
        found += detect(network, chunk, side, device)
    figures = {name: _figure(cls, found, [entries[place] for place in places]) for cls, name in enumerate(CLASSES)}
    known = {name: round(value, 4) for name, value in figures.items() if not np.isnan(value)}
    return Verdict(round(float(np.mean(list(known.values()) or [0.0])), 4), known.get("person", float("nan")), known)


def _figure(cls: int, found: Sequence[Detections], entries: Sequence[Entry]) -> float:
    answers = []
    for each in found:
        mine = each.select(each.class_ids == cls)
        answers.append((mine.boxes.astype(float), mine.scores.astype(float)))
    truth = [_boxes([label for label in entry.boxes if label.cls == cls]) for entry in entries]
    # What the teachers doubted, or took for the like (a van for a lorry), is nobody's mistake.
    doubtful = [_boxes([label for label in entry.ignore if cls in kin(label.cls)]) for entry in entries]
    return average_precision(match(answers, truth, doubtful))


def _boxes(labels: Sequence[Label]) -> np.ndarray:
    return np.array([[each.x1, each.y1, each.x2, each.y2] for each in labels], float).reshape(-1, 4)


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
    imitation: nn.Module | None,
    *,
    settings: Mapping[str, Any],
    free: Collection[str],
) -> Progress | None:
    """Load the last checkpoint of `folder`, if there is one.

    Raise IndexFault if its run has other `settings` than these, those in `free` aside: its weights may not fit.
    """
    path = folder / LAST
    if not path.is_file():
        return None
    state = torch.load(path, map_location=device, weights_only=True)
    kept = state["settings"]
    other = sorted(name for name in {*settings, *kept} - {*free} if settings.get(name) != kept.get(name))
    if other:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        raise IndexFault(f"{folder} holds a run with other settings ({names}): choose another --out")
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


class RunLog:
    """Owns `log.jsonl` of a run's folder; every line is flushed, so that a kill loses at most the line it hits."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """step: lines of later steps are dropped, for they will be written again."""
        kept = [line for line in _lines(path) if json.loads(line).get("step", 0) <= step] if step else []
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **what: Any) -> None:
        """One line."""
        self._file.write(json.dumps({"type": kind, **what}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Done."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    """Whole lines of an earlier run; the last may have been cut by a kill."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            json.loads(line)
        except ValueError:
            break
        lines.append(line)
    return lines
