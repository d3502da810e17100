"""Runs the teacher during training: an ONNX network of convolutions, by PyTorch on any device.

Teachers are known as ONNX files only; on a GPU ONNX Runtime may be missing, and its answers would travel through the
host. YOLOX is built on the same grid as ours (strides 8, 16, 32), so its answer is a lesson cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from appliance.detect.class_labels import COCO_80
from models.train.index import CLASSES, IndexFault
from models.train.loss import Lesson
from models.train.network import Views, cells

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
