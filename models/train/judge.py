"""Measures during training how well the averaged network does on the held-back pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from appliance.detect.letterbox import Letterbox
from appliance.detect.output_head import filter_and_sort, non_maximum_suppression
from appliance.types import Detections
from models.evaluation.arithmetic import average_precision, match
from models.train.cache import Cache
from models.train.index import CLASSES, Entry, Label, kin
from models.train.network import Network, cells, corners

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


def judge(network: Network, cache: Cache, entries: Sequence[Entry], places: Sequence[int], side: int) -> Verdict:
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
