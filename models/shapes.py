"""Let one of our networks take pictures of any shape, or of one: python -m models.shapes NAME.onnx --out FREE.onnx.

PyTorch exports a network for one shape: the centres of its cells are constants. `free` computes them in the graph from
the shapes of the three answers, so that any height and width that are multiples of 32 will do, and as many pictures at
once as one likes; no weight is touched.
`fix` (--size 416 416) is the way back, for compilers (TensorRT, Hailo) that want one shape and no Shape operator.
`cut_behind_convolutions` fixes it and ends it with the raw answers, for Hailo's.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.utils import Extractor

STRIDES = (8, 16, 32)
SIDE_MAX = 4096
GRID = ("centre", "stride", "half_stride")  # what the last steps multiply and add: (1, 2 or 1, cells), in pixels
SAME = 0  # a Reshape keeps this side, here the number of pictures
_OURS = "grid/"
OPS_BEFORE_CUT = frozenset(["Conv", "Relu", "Concat", "Resize", "MaxPool", "Constant"])


class NotOurs(ValueError):
    """The graph is not one that models.train.export writes; the text says what is missing."""


def load(path: Path) -> onnx.ModelProto:
    """Read a network. Raise NotOurs: there is none."""
    try:
        return onnx.load(str(path))
    except (OSError, DecodeError) as error:
        raise NotOurs(f"cannot be read as ONNX: {error}") from None


def free(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose picture input is [batch, 3, height, width], all three free. Raise NotOurs.

    A free one stays as it is. In one that takes single pictures of any shape, the batch is freed.
    """
    model = copy.deepcopy(model)
    graph = model.graph
    if is_free(model):
        return _of_any_batch(model)
    if not set(GRID) <= {each.name for each in graph.initializer}:
        raise NotOurs(f"no constants {', '.join(GRID)}")
    rows = level_rows(graph)
    keep = [each for each in graph.initializer if each.name not in GRID]
    channels = _sides(graph.output[0])[1]
    keep += [each for level, stride in enumerate(STRIDES) for each in _rulers(level, stride)]
    keep += _numbers(shape=np.array([SAME, channels, -1]), triples=np.array([1, 3, -1]), two=np.array([2, 1]))
    keep.append(numpy_helper.from_array(np.array(0.5, np.float32), f"{_OURS}half"))
    keep += _numbers(zero=np.array([0]), across=np.array([3]), down=np.array([2]))
    for node in rows:
        node.input[1] = f"{_OURS}shape"
    first = next(place for place, node in enumerate(graph.node) if set(GRID) & set(node.input))
    nodes = [*graph.node[:first], *_grid([node.input[0] for node in rows]), *graph.node[first:]]
    _become(graph, nodes, keep, batch="batch", height="height", width="width", cells="cells")
    return _checked(model)


def fix(model: onnx.ModelProto, width: int, height: int) -> onnx.ModelProto:
    """Return a copy for pictures of `width` x `height` pixels alone.

    Raise NotOurs, and ValueError for an impossible size.
    """
    if width % STRIDES[-1] or height % STRIDES[-1] or not 0 < min(width, height) <= max(width, height) <= SIDE_MAX:
        raise ValueError(f"{width}x{height}: both sides are multiples of {STRIDES[-1]} up to {SIDE_MAX}")
    model = free(model)
    graph = model.graph
    sides = [(width // stride, height // stride) for stride in STRIDES]
    channels = _sides(graph.output[0])[1]
    keep = [each for each in graph.initializer if not each.name.startswith(_OURS)]
    for level, (node, (across, down)) in enumerate(zip(level_rows(graph), sides, strict=True)):
        node.input[1] = f"rows.{level}"
        keep.append(numpy_helper.from_array(np.array([1, channels, across * down]), f"rows.{level}"))
    cells = _cells(sides)
    for name, values in zip(GRID, (cells[:, :2], cells[:, 2:], cells[:, 2:] / 2), strict=True):
        keep.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    nodes = [node for node in graph.node if not node.name.startswith(_OURS)]
    _become(graph, nodes, keep, batch=1, height=height, width=width, cells=cells.shape[2])
    notes = {each.key: each.value for each in model.metadata_props}
    helper.set_model_props(model, {**notes, "imgsz": f"[{height}, {width}]"})
    return _checked(model)


def cut_behind_convolutions(model: onnx.ModelProto, width: int, height: int) -> onnx.ModelProto:
    """Return a copy for one shape that ends with the convolutions of each stride. Raise NotOurs.

    The outputs are `sides_8` (1, 4, h, w), natural logarithms of distances in strides, and `classes_8` (1, classes, h,
    w), logits; and so on for 16 and 32.
    """
    fixed = fix(model, width, height)
    makers = {output: node for node in fixed.graph.node for output in node.output}
    ends: dict[str, str] = {}
    for stride, row in zip(STRIDES, level_rows(fixed.graph), strict=True):
        joined = makers.get(row.input[0])
        if joined is None or joined.op_type != "Concat" or len(joined.input) != 2:
            raise NotOurs(f"the answer of stride {stride} is not sides and classes side by side")
        ends |= {joined.input[0]: f"sides_{stride}", joined.input[1]: f"classes_{stride}"}
    inferred = onnx.shape_inference.infer_shapes(fixed)
    cut = Extractor(inferred).extract_model([inferred.graph.input[0].name], list(ends))
    for node in cut.graph.node:
        node.output[:] = [ends.get(each, each) for each in node.output]
        node.input[:] = [ends.get(each, each) for each in node.input]
    for output in cut.graph.output:
        output.name = ends[output.name]
    del cut.graph.value_info[:]
    onnx.helper.set_model_props(cut, {each.key: each.value for each in model.metadata_props})
    onnx.checker.check_model(cut, full_check=True)
    if strange := sorted({node.op_type for node in cut.graph.node} - OPS_BEFORE_CUT):
        raise NotOurs(f"it has {', '.join(strange)}, which Hailo's compiler was not seen to take")
    return cut


def is_free(model: onnx.ModelProto) -> bool:
    """Return whether height and width of the picture input are free."""
    return not any(each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim[2:])


def _grid(levels: Sequence[str]) -> Iterator[onnx.NodeProto]:
    """Nodes that make `centre`, `stride` and `half_stride` from the shapes of the answers (1, channels, h, w).

    The rulers, long enough for the largest picture, are cut to length and added across and down: three planes, x, y and
    stride, of every cell.
    """

    def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **settings: Any) -> onnx.NodeProto:
        outputs = [each if each in GRID else f"{_OURS}{each}" for each in outputs]
        return helper.make_node(kind, list(inputs), outputs, name=f"{_OURS}{'+'.join(outputs)}", **settings)

    for n, level in enumerate(levels):
        yield node("Shape", [level], [f"{n}.shape"])
        yield node("Split", [f"{_OURS}{n}.shape"], [f"{n}.{side}" for side in ("n", "c", "h", "w")], axis=0)
        for ruler, axis, length in (("across", "across", "w"), ("down", "down", "h")):
            cut = [f"{_OURS}{n}.{ruler}", f"{_OURS}zero", f"{_OURS}{n}.{length}", f"{_OURS}{axis}"]
            yield node("Slice", cut, [f"{n}.{ruler}.cut"])
        yield node("Add", [f"{_OURS}{n}.across.cut", f"{_OURS}{n}.down.cut"], [f"{n}.planes"])
        yield node("Reshape", [f"{_OURS}{n}.planes", f"{_OURS}triples"], [f"{n}.rows"])
    yield node("Concat", [f"{_OURS}{n}.rows" for n in range(len(levels))], ["cells"], axis=2)
    yield node("Split", [f"{_OURS}cells", f"{_OURS}two"], ["centre", "stride"], axis=1)
    yield node("Mul", ["stride", f"{_OURS}half"], ["half_stride"])


def _rulers(level: int, stride: int) -> Iterator[onnx.TensorProto]:
    """x of the cells of the longest row, and y of those of the longest column with the stride beside it."""
    centres = np.arange(SIDE_MAX // stride, dtype=np.float32) * stride + stride / 2
    none = np.zeros_like(centres)
    across = np.stack([centres, none, none])[None, :, None, :]
    down = np.stack([none, centres, none + stride])[None, :, :, None]
    yield numpy_helper.from_array(across, f"{_OURS}{level}.across")
    yield numpy_helper.from_array(down, f"{_OURS}{level}.down")


def _cells(sides: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """Return (1, 3, cells): x, y and stride of every cell, as `models.train.network.cells` has them."""
    parts = []
    for stride, (across, down) in zip(STRIDES, sides, strict=True):
        y, x = np.mgrid[:down, :across].astype(np.float32) * stride + stride / 2
        parts.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, stride, np.float32)]))
    return np.concatenate(parts, axis=1)[None]


def level_rows(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the three Reshapes that lay each level's answer out in one row, in order."""
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        before = [makers.get(each) for each in node.input]
        found = [each for each in before if each is not None and each.op_type == "Reshape"]
        if node.op_type == "Concat" and len(found) == len(before) == len(STRIDES) and not node.name.startswith(_OURS):
            return found
    raise NotOurs("no Concat of the three levels' rows")


def _become(
    graph: onnx.GraphProto,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    *,
    batch: int | str,
    height: int | str,
    width: int | str,
    cells: int | str,
) -> None:
    """Put these in, without what nothing uses any more, and write the new shapes down."""
    used = {name for node in nodes for name in node.input} | {each.name for each in graph.output}
    nodes = [node for node in nodes if node.op_type != "Constant" or set(node.output) & used]
    constants = [each for each in constants if each.name in used]
    for field, values in ((graph.node, nodes), (graph.initializer, constants)):
        copies = [copy.deepcopy(each) for each in values]
        del field[:]
        field.extend(copies)
    _write_sides(graph, {0: batch, 2: height, 3: width}, {0: batch, 2: cells})


def _of_any_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Free the batch of a model whose height and width are free already."""
    for each in model.graph.initializer:
        if each.name == f"{_OURS}shape":
            each.CopyFrom(numpy_helper.from_array(np.array([SAME, *numpy_helper.to_array(each)[1:]]), each.name))
    _write_sides(model.graph, {0: "batch"}, {0: "batch"})
    return _checked(model)


def _write_sides(graph: onnx.GraphProto, inputs: Mapping[int, int | str], outputs: Mapping[int, int | str]) -> None:
    """By their place: the sides of the picture input and of the answer. What was inferred from the old ones goes."""
    del graph.value_info[:]
    for info, sides in ((graph.input[0], inputs), (graph.output[0], outputs)):
        for place, side in sides.items():
            dim = info.type.tensor_type.shape.dim[place]
            dim.Clear()
            if isinstance(side, int):
                dim.dim_value = side
            else:
                dim.dim_param = side


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(model, full_check=True)
    return model


def _numbers(**named: NDArray[np.int64]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(values.astype(np.int64), f"{_OURS}{name}") for name, values in named.items()]


def _sides(info: onnx.ValueInfoProto) -> list[int]:
    return [each.dim_value for each in info.type.tensor_type.shape.dim]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.shapes", description=__doc__)
    parser.add_argument("model", type=Path, help="an .onnx of ours")
    parser.add_argument("--out", type=Path, required=True, help="the .onnx to write")
    parser.add_argument("--size", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="this shape alone; absent: any")
    options = parser.parse_args(arguments)
    try:
        model = load(options.model)
        model = fix(model, *options.size) if options.size else free(model)
    except ValueError as error:
        print(f"{options.model}: {error}")
        return 2
    onnx.save(model, str(options.out))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
