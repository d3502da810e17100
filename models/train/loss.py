"""Penalties of the network: for wrong scores, for wrong boxes, and for differing from the teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from models.train.assign import Truth, assign, ious
from models.train.network import Views, corners

BOX_GAIN = 5.0
QUALITY_MIN = 0.2  # weight of a chosen cell's box while it overlaps nothing yet, else far people never start
TEACHER_SCORE_MIN = 0.2  # cells of which the teacher's box is followed
AGREES_MIN = 0.6  # IoU with what people drew, from which on the teacher's box is a second target beside it
# Between these the teacher means what was drawn and sees other borders: exports that were sheared or turned have boxes
# around their turned boxes. There the drawn box is not learnt where the teacher is sure; its object still is.
LOOSE_MIN, LOOSE_SCORE_MIN = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class Lesson:
    """The teacher's answers for the same pictures, cell by cell.

    Scores are (B, N, C) 0..1 and boxes (B, N, 4) px; with them come the teacher's feature maps.
    """

    scores: Tensor
    boxes: Tensor
    views: Views


@dataclass(frozen=True, slots=True)
class Loss:
    """total is what is minimised; the parts are for the log."""

    total: Tensor
    classes: Tensor
    boxes: Tensor
    teacher: Tensor
    positives: Tensor
    unlike: Tensor

    def parts(self) -> dict[str, float]:
        """Numbers for a line of the log; waits for the GPU."""
        names = ("total", "classes", "boxes", "teacher", "positives", "unlike")
        return {name: round(float(getattr(self, name).detach()), 5) for name in names}


def loss(answer: Tensor, grid: Tensor, truth: Truth, lesson: Lesson | None = None, teacher_gain: float = 0.0) -> Loss:
    """Return the loss of `answer`, the network's raw (B, 4 + C, N).

    Everything is computed in float32. Sums are shared out over the batch's total target score, as in TOOD.
    """
    answer = answer.float()
    boxes, logits = corners(answer, grid), answer[:, 4:].transpose(1, 2)
    targets = assign(logits.detach().sigmoid(), boxes.detach(), grid, truth)
    share = targets.scores.sum().clamp(min=1.0)
    wrong = binary_cross_entropy_with_logits(logits, targets.scores, reduction="none")
    classes = (wrong * targets.counts).sum() / share
    quality = targets.scores.amax(-1)
    weight = torch.where(targets.chosen, quality.clamp(min=QUALITY_MIN), 0.0)
    taught = answer.new_zeros(())
    if lesson is not None and teacher_gain > 0:
        shared = ious(lesson.boxes, targets.boxes)
        sure = (lesson.scores * (targets.scores > 0)).amax(-1) >= LOOSE_SCORE_MIN
        loose = targets.chosen & sure & (shared >= LOOSE_MIN) & (shared < AGREES_MIN)
        weight = torch.where(loose, 0.0, weight)
        taught = _taught(logits, boxes, lesson, ~targets.chosen, ~targets.chosen | loose | (shared >= AGREES_MIN))
    misplaced = (weight * giou_loss(boxes, targets.boxes)).sum() / weight.sum().clamp(min=1.0)
    total = classes + BOX_GAIN * misplaced + teacher_gain * taught
    return Loss(total, classes, misplaced, taught, targets.chosen.sum(), answer.new_zeros(()))


def _taught(logits: Tensor, boxes: Tensor, lesson: Lesson, free: Tensor, placed: Tensor) -> Tensor:
    """Return the cost of differing from the teacher: in its scores, and in its boxes where it is sure of something.

    The cost of scores is the cross entropy with the teacher's less its own entropy (so that 0 is reached). It counts
    only cells that are `free` (B, N): where the truth says what a cell is to answer, it has the last word, as the
    teacher is blind to much that people drew. Boxes count in those `placed` (B, N): drawn boxes are looser than the
    teacher's, so where both mean the same thing the teacher's is a second target.
    """
    share = lesson.scores.sum().clamp(min=1.0)
    soft = lesson.scores.clamp(1e-6, 1 - 1e-6)
    floor = -(soft * soft.log() + (1 - soft) * (1 - soft).log())
    unlike = binary_cross_entropy_with_logits(logits, soft, reduction="none") - floor
    scores = (unlike * free[..., None]).sum() / share
    best = lesson.scores.amax(-1)
    weight = torch.where((best > TEACHER_SCORE_MIN) & placed, best, 0.0)
    return scores + BOX_GAIN * (weight * giou_loss(boxes, lesson.boxes)).sum() / weight.sum().clamp(min=1.0)


def giou_loss(one: Tensor, other: Tensor) -> Tensor:
    """Return 1 - generalised IoU (arXiv:1902.09630) of boxes (..., 4), 0..2."""
    shared = ious(one, other)
    hull_low, hull_high = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    hull = (hull_high - hull_low).clamp(min=0).prod(-1) + 1e-7
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    sizes = [(each[..., 2:] - each[..., :2]).clamp(min=0).prod(-1) for each in (one, other)]
    union = sizes[0] + sizes[1] - inner
    return 1 - (shared - (hull - union) / hull)
