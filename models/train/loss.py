"""The loss of a one-stage, anchor-free detector: classes, boxes and, with a teacher, distillation.

    total = classes + BOX_GAIN * boxes + teacher_gain * teacher

- classes: binary cross entropy of each cell's class scores with the soft targets of task-aligned assignment (TOOD,
  arXiv:2108.07755; `assign.py`), divided by the sum of these targets.
- boxes: 1 - generalised IoU (arXiv:1902.09630) in the cells that were given a box, weighted by their target score.
- teacher: the same two terms, with the answers of a larger network for the same pictures as targets, cell by cell
  (knowledge distillation, arXiv:1503.02531).

Shapes: B pictures, C classes, N cells (those of the strides 8, 16 and 32 together). Boxes are x1 y1 x2 y2 in pixels of
the network's input. `trainer.py` calls `loss` once a batch and adds the distance of feature maps (`imitate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from models.train.assign import Truth, area, assign, ious
from models.train.network import Views, corners

BOX_GAIN = 5.0
QUALITY_MIN = 0.2
"""The least weight of a chosen cell's box. Small people need it: at first no box overlaps theirs."""
TEACHER_SCORE_MIN = 0.2
"""The teacher's box is learnt only in cells in which its score is higher."""
AGREES_MIN = 0.6
"""From this IoU with the drawn box on, the teacher's box is a second target beside it."""
LOOSE_MIN, LOOSE_SCORE_MIN = 0.5, 0.5
"""From this IoU up to AGREES_MIN, and from this score of the teacher on, the drawn box is loose and is not learnt.

The teacher found the same object with other borders. Data sets that were sheared or turned have such labels: boxes
around turned boxes. The class of the object is still learnt.
"""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Holds the teacher's answers for the same pictures, cell by cell."""

    scores: Tensor
    """(B, N, C), 0..1."""
    boxes: Tensor
    """(B, N, 4), pixels."""
    views: Views
    """The teacher's feature maps; `imitate.py` compares them with the pupil's."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Holds the loss of one batch, as scalars. All but `total` are for the log, without their gains."""

    total: Tensor
    """The sum that the optimiser minimises."""
    classes: Tensor
    boxes: Tensor
    teacher: Tensor
    """The distillation term; 0 without a teacher."""
    positives: Tensor
    """How many cells of the batch were given a box."""
    unlike: Tensor
    """The distance of the feature maps from the teacher's; 0 until the trainer adds it."""

    def parts(self) -> dict[str, float]:
        """Return the numbers of one log line by field; waits for the GPU."""
        names = ("total", "classes", "boxes", "teacher", "positives", "unlike")
        return {name: round(float(getattr(self, name).detach()), 5) for name in names}


def loss(answer: Tensor, grid: Tensor, truth: Truth, lesson: Lesson | None = None, teacher_gain: float = 0.0) -> Loss:
    """Return the loss of one batch, computed in float32.

    answer: (B, 4 + C, N), the network's raw output. Each cell has four numbers for its box (the logarithms of the
    distances from its centre to left, top, right and bottom, in strides) and the logits of the classes.
    grid: (3, N), centre x, centre y and stride of each cell in pixels.
    truth: the labels. lesson, teacher_gain: the teacher's answers and the weight of its term; without a teacher None
    and 0.

    The class term is divided by the batch's total target score, at least 1, as in TOOD.
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
    """Return the distillation term, a scalar: scores plus BOX_GAIN times boxes, each as in `loss`.

    logits: (B, N, C). boxes: (B, N, 4), pixels. Both are the pupil's.
    free: (B, N) bool, the cells in which the pupil learns the teacher's scores. In the other cells it learns only the
    labels, because the teacher misses many objects that people drew.
    placed: (B, N) bool, the cells in which the pupil learns the teacher's box if the teacher's score is above
    TEACHER_SCORE_MIN. They include cells with a label of the same object, because drawn boxes are looser.

    The term of the scores is the cross entropy minus the teacher's own entropy: the Kullback-Leibler divergence, which
    is 0 if pupil and teacher agree.
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
    """Return 1 - generalised IoU (arXiv:1902.09630) of boxes (..., 4) that broadcast against each other, 0..2."""
    shared = ious(one, other)
    low, high = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    hull = area(torch.cat([low, high], -1)) + 1e-7
    lowest, highest = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    union = area(one) + area(other) - area(torch.cat([lowest, highest], -1))
    return 1 - (shared - (hull - union) / hull)
