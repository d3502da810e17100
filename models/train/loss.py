"""The loss of a one-stage, anchor-free detector, and the assignment of its targets: classes, boxes, distillation.

    total = classes + BOX_GAIN * boxes + teacher_gain * teacher

- assignment: which cells learn which box is decided by the network's present answers, task-aligned (TOOD,
  arXiv:2108.07755), with help for tiny boxes.
- classes: binary cross entropy of each cell's class scores with the soft targets of the assignment, divided by the sum
  of these targets.
- boxes: 1 - generalised IoU (arXiv:1902.09630) in the cells that were given a box, weighted by their target score.
- teacher: the same two terms, with the answers of a larger network for the same pictures as targets, cell by cell
  (knowledge distillation, arXiv:1503.02531).

Shapes: B pictures, C classes, N cells (those of the strides 8, 16 and 32 together). Boxes are x1 y1 x2 y2 in pixels of
the network's input. `trainer.py` calls `loss` once a batch and adds the distance of feature maps (`distillation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from models.train.dataset import CLASSES, kin
from models.train.network import Views, corners

TOP = 10
SCORE_POWER, IOU_POWER = 0.5, 6.0
PADDING = -2  # class of a row that only fills up a batch's table
SIDE_MIN = 16.0  # px: a box narrower than two of the finest cells would often hold no cell's centre at all


@dataclass(frozen=True, slots=True)
class Truth:
    """The labels of a batch, padded.

    - boxes: (B, M, 4) x1 y1 x2 y2 px.
    - classes: (B, M) int64.
    - sure: (B, M) 0..1, 0 is padding.
    - ignore_boxes: (B, K, 4).
    - ignore_classes: (B, K), -1 any, -2 padding.
    """

    boxes: Tensor
    classes: Tensor
    sure: Tensor
    ignore_boxes: Tensor
    ignore_classes: Tensor

    def to(self, device: torch.device) -> Truth:
        """Return the same labels on `device`."""
        tensors = (self.boxes, self.classes, self.sure, self.ignore_boxes, self.ignore_classes)
        return Truth(*(each.to(device, non_blocking=True) for each in tensors))

    def of(self, picture: int) -> Truth:
        """Return the labels of one picture as a batch of one, with as little padding as possible."""
        row = slice(picture, picture + 1)
        boxes = _length(self.sure[picture] > 0)
        ignored = _length(self.ignore_classes[picture] != PADDING)
        return Truth(
            self.boxes[row, :boxes],
            self.classes[row, :boxes],
            self.sure[row, :boxes],
            self.ignore_boxes[row, :ignored],
            self.ignore_classes[row, :ignored],
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """The answers that each cell should give.

    - boxes: (B, N, 4) px.
    - scores: (B, N, C), 0, or how well a cell does where it is chosen.
    - chosen: (B, N) bool.
    - counts: (B, N, C) bool, true where the class loss looks at it.
    """

    boxes: Tensor
    scores: Tensor
    chosen: Tensor
    counts: Tensor


def ious(one: Tensor, other: Tensor) -> Tensor:
    """Return the IoU of boxes (..., 4) that broadcast against each other."""
    # Side by side, each contiguous: a fifth faster on a CPU than pairs in the last dimension.
    left, top, right, bottom = _sides(one)
    left_, top_, right_, bottom_ = _sides(other)
    wide = (torch.minimum(right, right_) - torch.maximum(left, left_)).clamp(min=0)
    shared = wide * (torch.minimum(bottom, bottom_) - torch.maximum(top, top_)).clamp(min=0)
    return shared / (area(one) + area(other) - shared + 1e-7)


@torch.no_grad()
def assign(scores: Tensor, boxes: Tensor, grid: Tensor, truth: Truth) -> Targets:
    """Assign targets to cells, from the network's present answers.

    Scores are (B, N, C) 0..1, boxes (B, N, 4), and the grid is (3, N).
    """
    if scores.device.type != "cpu":
        return _assign(scores, boxes, grid, truth)
    # One picture after another, without the padding: what is computed stays in the processor's cache.
    parts = [_assign(scores[n : n + 1], boxes[n : n + 1], grid, truth.of(n)) for n in range(len(scores))]
    names = ("boxes", "scores", "chosen", "counts")
    return Targets(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _assign(scores: Tensor, boxes: Tensor, grid: Tensor, truth: Truth) -> Targets:
    centres = grid[:2].t()
    real = truth.sure > 0
    inside = _inside(centres, _widened(truth.boxes)) & real[..., None]
    shared = ious(truth.boxes[:, :, None], boxes[:, None]) * inside
    index = truth.classes[:, None, :].expand(-1, scores.shape[1], -1)
    wanted = scores.gather(2, index).transpose(1, 2)
    fit = wanted.pow(SCORE_POWER) * shared.pow(IOU_POWER)
    chosen = _best(fit, inside, centres, truth.boxes)
    chosen, owner = _one_owner(chosen, shared)
    return _targets(chosen, owner, fit * chosen, shared * chosen, scores, truth, centres)


def _length(used: Tensor) -> int:
    """Return the length of a row (M,) of bool up to its last true value, at least 1."""
    return max([1, *(int(place) + 1 for place in used.nonzero()[-1:])])


def _best(fit: Tensor, inside: Tensor, centres: Tensor, boxes: Tensor) -> Tensor:
    """Return (B, M, N) bool: the TOP cells of each box. Nearness to its middle decides while no cell fits at all."""
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    away = (middle[..., :1] - centres[:, 0]).square() + (middle[..., 1:] - centres[:, 1]).square()
    order = torch.where(inside, fit + 1e-9 / (1 + away), -1.0)
    top = order.topk(min(TOP, order.shape[-1]), dim=-1).indices
    return torch.zeros_like(inside).scatter_(-1, top, True) & inside


def _one_owner(chosen: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """Give a cell that several boxes chose to the one it overlaps most. Return chosen and (B, N) its owner."""
    owner = torch.where(chosen, shared + 1e-6, 0.0).argmax(1)
    mine = torch.zeros_like(chosen).scatter_(1, owner[:, None], True)
    return chosen & mine, owner


def _targets(
    chosen: Tensor, owner: Tensor, fit: Tensor, shared: Tensor, scores: Tensor, truth: Truth, centres: Tensor
) -> Targets:
    # The best cell of a box is to answer with the overlap it reaches, the others in proportion.
    quality = fit / (fit.amax(-1, keepdim=True) + 1e-12) * shared.amax(-1, keepdim=True)
    quality = (quality * truth.sure[..., None]).amax(1)
    any_chosen = chosen.any(1)
    classes = truth.classes.gather(1, owner)
    wanted = torch.zeros_like(scores).scatter_(2, classes[..., None], quality[..., None]) * any_chosen[..., None]
    boxes = truth.boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    counts = ~_ignored(centres, truth, scores.shape[2]) | any_chosen[..., None]
    return Targets(boxes, wanted, any_chosen, counts)


def _ignored(centres: Tensor, truth: Truth, classes: int) -> Tensor:
    """Return (B, N, C) bool: cells in a region to ignore, for its class and those it is mistaken for."""
    covers = _inside(centres, truth.ignore_boxes)
    table = torch.zeros(len(CLASSES) + 2, classes, device=centres.device)
    for cls in range(len(CLASSES)):
        table[cls, list(kin(cls))] = 1
    table[-1] = 1  # ANY; the row before it is the padding's
    kinds = table[truth.ignore_classes]
    return torch.einsum("bkn,bkc->bnc", covers.to(kinds.dtype), kinds) > 0


def _inside(centres: Tensor, boxes: Tensor) -> Tensor:
    """Return (B, M, N) bool: centres (N, 2) strictly within boxes (B, M, 4)."""
    x, y = centres.t().contiguous()
    x1, y1, x2, y2 = (boxes[..., side, None] for side in range(4))
    return (x > x1) & (x < x2) & (y > y1) & (y < y2)


def _widened(boxes: Tensor) -> Tensor:
    middle, half = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]) / 2
    half = half.clamp(min=SIDE_MIN / 2)
    return torch.cat([middle - half, middle + half], -1)


def area(boxes: Tensor) -> Tensor:
    """Return the area of boxes (..., 4); 0 where a box is inside out."""
    left, top, right, bottom = boxes.unbind(-1)
    return (right - left).clamp(min=0) * (bottom - top).clamp(min=0)


def _sides(boxes: Tensor) -> tuple[Tensor, ...]:
    """Return left, top, right and bottom of boxes (..., 4), each (...) and contiguous."""
    return boxes.movedim(-1, 0).contiguous().unbind(0)


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
    """The teacher's feature maps; `distillation.py` compares them with the pupil's."""


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
