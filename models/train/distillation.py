"""Distillation: the teacher that answers during training, and the comparison of its feature maps with the pupil's.

Teachers are known as ONNX files only. YOLOX is built on the same grid as ours (strides 8, 16, 32), so its answer is a
lesson cell by cell. PyTorch runs its graph on any device: on a GPU ONNX Runtime may be missing, and its answers would
travel through the host. On a CPU ONNX Runtime runs the same file, 2.7 times as fast as PyTorch there.

A small set of pictures says little about a network's many layers; the maps of a teacher that has seen a hundred times
as many say something about every layer at every place (FitNets, arXiv:1412.6550). Each of the pupil's maps is turned by
a 1x1 convolution, which is thrown away afterwards, towards the teacher's map, its channels at mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from appliance.detect.class_labels import COCO_80
from models.train.dataset import CLASSES, IndexFault
from models.train.loss import Lesson
from models.train.network import Views, cells

MOMENTUM = 0.02  # of the teacher's running means and variances
PLAIN = 0.25  # weight of a tower's cell where the teacher sees nothing, against 1 where it is sure
WHOLE_MAX = 24
"""Maps with more rows than this, in cells, are compared in every second row and column only.

At an input of 320 px these are the maps of the strides 4 and 8, which have 88 % of all cells. A convolution does the
same at every cell, so a quarter of them stands for all. The comparison of 16 pictures took 89 ms instead of 150.
"""


class Imitation(nn.Module):
    """Owns the 1x1 convolutions and what is known of the teacher's channels; learns together with the pupil."""

    def __init__(self, mine: Views, theirs: Views) -> None:
        """mine, theirs: of any one picture, for their numbers of channels."""
        super().__init__()
        pairs = list(zip(_all(mine), _all(theirs), strict=True))
        self.turns = nn.ModuleList(nn.Conv2d(one.shape[1], other.shape[1], 1) for one, other in pairs)
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(other.shape[1], affine=False, momentum=MOMENTUM) for _, other in pairs
        )

    def forward(self, mine: Views, lesson: Lesson) -> Tensor:
        """Return the mean over all maps of the squared difference, in float32; 1 is what a pupil without eyes gets."""
        weights = [None] * len(mine.scenes) + _weights(lesson, mine.towers)
        pairs = zip(self.turns, self.norms, _all(mine), _all(lesson.views), weights, strict=True)
        unlike = []
        for turn, norm, one, other, weight in pairs:
            seen = weight if weight is None else _thinned(weight)
            unlike.append(_apart(turn(_thinned(one).float()), norm(_thinned(other).detach().float()), seen))
        return torch.stack(unlike).mean()


def _thinned(view: Tensor) -> Tensor:
    """Return every second row and column of a large map (B, C, H, W), a small one whole."""
    return view[..., ::2, ::2] if view.shape[-2] > WHOLE_MAX else view


def _apart(mine: Tensor, theirs: Tensor, weight: Tensor | None) -> Tensor:
    apart = (mine - theirs).square()
    return apart.mean() if weight is None else (apart.mean(1, keepdim=True) * weight).mean()


def _weights(lesson: Lesson, towers: Sequence[Tensor]) -> list[Tensor | None]:
    """Return (B, 1, H, W) for each tower: more where the teacher sees something; mean 1."""
    best = lesson.scores.float().amax(-1)
    found: list[Tensor | None] = []
    start = 0
    for tower in towers[: len(towers) // 2]:
        batch, _, height, width = tower.shape
        part = best[:, start : start + height * width].reshape(batch, 1, height, width)
        weight = PLAIN + part
        found.append(weight / weight.mean())
        start += height * width
    return found * 2


def _all(views: Views) -> tuple[Tensor, ...]:
    return views.scenes + views.towers


Values = dict[str, Tensor]
_OURS = [COCO_80.index(name) for name in CLASSES]


class YoloxTeacher(nn.Module):
    """YOLOX from its ONNX file, of any picture size that is a multiple of 32. No gradients, no state."""

    def __init__(self, path: Path) -> None:
        """Load the graph. Raise IndexFault if it has other operators, or another layout, than YOLOX has."""
        super().__init__()
        graph = onnx.load(str(path)).graph
        unknown = sorted({node.op_type for node in graph.node} - set(_OPS))
        if unknown or len(graph.output) != 1:
            raise IndexFault(f"{path}: not a YOLOX network (operators {', '.join(unknown) or 'known, outputs many'})")
        self._nodes = list(graph.node)
        self._input = graph.input[0].name
        self._output = graph.output[0].name
        self._scenes, self._towers = places(graph)
        self._names = {}
        for number, each in enumerate(graph.initializer):
            self._names[each.name] = f"value_{number}"
            self.register_buffer(f"value_{number}", torch.from_numpy(numpy_helper.to_array(each).copy()))

    @torch.no_grad()
    def forward(self, pictures: Tensor) -> Lesson:
        """Turn RGB 0..1 pictures (B, 3, H, W) into what the teacher makes of every cell."""
        values: Values = {name: getattr(self, attribute) for name, attribute in self._names.items()}
        values[self._input] = pictures.flip(1) * 255.0
        for node in self._nodes:
            taken = [values[name] if name else None for name in node.input]
            given = _OPS[node.op_type](taken, _attributes(node))
            values.update(zip(node.output, given, strict=True))
        views = Views(tuple(values[name] for name in self._scenes), tuple(values[name] for name in self._towers))
        return lesson(values[self._output], views, pictures)


def lesson(rows: Tensor, views: Views, pictures: Tensor) -> Lesson:
    """YOLOX's raw rows (B, N, 85) for `pictures` in our classes and in pixels."""
    grid = cells(pictures.shape[3], pictures.shape[2]).to(rows.device)
    corner, stride = (grid[:2] - grid[2] / 2).t(), grid[2][:, None]
    rows = rows.float()
    centre = rows[..., :2] * stride + corner
    half = rows[..., 2:4].clamp(max=8.0).exp() * stride / 2
    scores = rows[..., 4:5] * rows[..., 5:][..., _OURS]
    return Lesson(scores, torch.cat([centre - half, centre + half], -1), views)


def places(graph: onnx.GraphProto) -> tuple[list[str], list[str]]:
    """Return the names of the values that are `Views` of YOLOX, found by structure.

    A halving convolution reads the end of a stage; the last convolution before an answer reads the end of a tower.
    """
    makers = {name: node for node in graph.node for name in node.output}
    halved = [node.input[0] for node in graph.node if node.op_type == "Conv" and _attributes(node)["strides"] == [2, 2]]
    ends = [makers[node.input[0]] for node in graph.node if node.op_type == "Reshape"]
    sides = [makers[end.input[0]].input[0] for end in ends]
    kinds = [makers[makers[end.input[2]].input[0]].input[0] for end in ends]
    return halved[-5:], sides + kinds


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def _conv(taken: list[Any], given: dict[str, Any]) -> list[Tensor]:
    top, left, bottom, right = given.get("pads", [0, 0, 0, 0])
    if (top, left) != (bottom, right):
        taken[0] = nn.functional.pad(taken[0], (left, right, top, bottom))
        top = left = 0
    bias = taken[2] if len(taken) > 2 else None
    stride, groups = given.get("strides", [1, 1]), given.get("group", 1)
    return [nn.functional.conv2d(taken[0], taken[1], bias, tuple(stride), (top, left), groups=groups)]


def _slice(taken: list[Any], given: dict[str, Any]) -> list[Tensor]:
    x, starts, ends = taken[0], taken[1].tolist(), taken[2].tolist()
    axes = taken[3].tolist() if len(taken) > 3 else list(range(len(starts)))
    steps = taken[4].tolist() if len(taken) > 4 else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, min(end, x.shape[axis]), step)
    return [x[tuple(index)]]


def _pool(taken: list[Any], given: dict[str, Any]) -> list[Tensor]:
    pads = given["pads"]
    return [nn.functional.max_pool2d(taken[0], given["kernel_shape"], given["strides"], (pads[0], pads[1]))]


def _resize(taken: list[Any], given: dict[str, Any]) -> list[Tensor]:
    return [nn.functional.interpolate(taken[0], scale_factor=2.0, mode="nearest")]


def _reshape(taken: list[Any], given: dict[str, Any]) -> list[Tensor]:
    # The file says 1 picture and so many cells: any batch and any size are meant.
    return [taken[0].flatten(2)]


_OPS: dict[str, Callable[[list[Any], dict[str, Any]], list[Tensor]]] = {
    "Conv": _conv,
    "Slice": _slice,
    "MaxPool": _pool,
    "Resize": _resize,
    "Reshape": _reshape,
    "Sigmoid": lambda taken, given: [taken[0].sigmoid()],
    "Mul": lambda taken, given: [taken[0] * taken[1]],
    "Add": lambda taken, given: [taken[0] + taken[1]],
    "Concat": lambda taken, given: [torch.cat(taken, given["axis"])],
    "Transpose": lambda taken, given: [taken[0].permute(given["perm"])],
}


class CpuTeacher:
    """YOLOX from its ONNX file, of any batch and any picture size that is a multiple of 32."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the graph. Raise IndexFault if it has another layout than YOLOX has."""
        import onnxruntime  # not where the teacher runs on a GPU, whose machine need not have it

        model = onnx.load(str(path))
        graph = model.graph
        if len(graph.output) != 1:
            raise IndexFault(f"{path}: not a YOLOX network ({len(graph.output)} outputs)")
        scenes, towers = places(graph)
        self._scenes = len(scenes)
        self._input = graph.input[0].name
        _free_sides(graph)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in scenes + towers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, pictures: Tensor) -> Lesson:
        """Turn RGB 0..1 pictures (B, 3, H, W) into what the teacher makes of every cell."""
        given = np.ascontiguousarray(pictures.flip(1).mul(255.0).numpy())
        rows, *maps = (torch.from_numpy(each) for each in self._session.run(None, {self._input: given}))
        return lesson(rows, Views(tuple(maps[: self._scenes]), tuple(maps[self._scenes :])), pictures)


def _free_sides(graph: onnx.GraphProto) -> None:
    """Take the fixed batch and size out of a graph."""
    _write_shape(graph.input[0], ("batch", 3, "height", "width"))
    _write_shape(graph.output[0], ("batch", "cells", 85))
    del graph.value_info[:]
    constants = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape":
            wanted = constants[node.input[1]]
            # 0 keeps the batch, whatever it is.
            wanted.CopyFrom(numpy_helper.from_array(np.array([0, 85, -1], np.int64), wanted.name))


def _write_shape(value: onnx.ValueInfoProto, sides: Sequence[int | str]) -> None:
    kind = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, sides))
