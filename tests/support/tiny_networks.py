"""Networks of a few nodes, one per output layout, whose answers are known; made with onnx, run like real ones.

Every score is multiplied by how bright the picture's red channel is (mean, 0..1), so that a wrong channel order or
range shows. Boxes are given in pixels of the network's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.detect.class_labels import COCO_80

SIDE = 128
STRIDES = (8, 16, 32)


@dataclass(frozen=True)
class Thing:
    """A box in input pixels, its score on a red picture, and its class."""

    box: tuple[float, float, float, float]
    score: float
    class_id: int


def yolox(path: Path, things: Sequence[Thing], classes: int = 80, *, decoded: bool = False) -> Path:
    """[1, 336, 5 + classes] for 128x128: raw offsets, or pixels with `decoded`."""
    cells = [(x, y, s) for s in STRIDES for y in range(SIDE // s) for x in range(SIDE // s)]
    rows = np.zeros((1, len(cells), 5 + classes), np.float32)
    if decoded:
        rows[0, :, :2] = [((x + 0.5) * s, (y + 0.5) * s) for x, y, s in cells]
    for row, thing in enumerate(things):
        x, y, s = cells[row] if not decoded else (0, 0, 1)
        x1, y1, x2, y2 = thing.box
        sides = np.array([x2 - x1, y2 - y1])
        rows[0, row, :4] = [(x1 + x2) / 2 / s - x, (y1 + y2) / 2 / s - y, *(sides if decoded else np.log(sides / s))]
        rows[0, row, 4] = thing.score
        rows[0, row, 5 + thing.class_id] = 1.0
    mask = np.zeros((1, 1, 5 + classes), np.float32)
    mask[..., 4] = 1.0
    return _save(path, [("output", rows, mask)], red_channel=2, top=255.0)


def yolo(path: Path, things: Sequence[Thing], names: Sequence[str], metadata: dict[str, str] | None = None) -> Path:
    """[1, 4 + classes, 336], with Ultralytics' metadata."""
    anchors = sum((SIDE // s) ** 2 for s in STRIDES)
    columns = np.zeros((1, 4 + len(names), anchors), np.float32)
    for column, thing in enumerate(things):
        x1, y1, x2, y2 = thing.box
        columns[0, :4, column] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        columns[0, 4 + thing.class_id, column] = thing.score
    mask = np.zeros((1, 4 + len(names), 1), np.float32)
    mask[:, 4:] = 1.0
    metadata = {"names": str(dict(enumerate(names))), "task": "detect"} if metadata is None else metadata
    return _save(path, [("output0", columns, mask)], metadata=metadata)


def slow(path: Path, things: Sequence[Thing], names: Sequence[str], side: int = 1200) -> Path:
    """As `yolo`, and each inference multiplies two matrices of this side: 3.5 GFLOP with 1200."""
    model = onnx.load(yolo(path, things, names))
    big = np.full((side, side), 1 / side, np.float32)
    values = {"big": big, "slow.none": np.zeros((1, 1, 1), np.float32), "slow.shape": np.array([1, 1], np.int64)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    last = model.graph.node[-1]
    last.output[0] = "quick"
    model.graph.node.extend([
        helper.make_node("Reshape", ["red", "slow.shape"], ["slow.red"]),
        helper.make_node("Mul", ["big", "slow.red"], ["slow.one"]),
        helper.make_node("MatMul", ["slow.one", "big"], ["slow.many"]),
        helper.make_node("ReduceMean", ["slow.many"], ["slow.mean"], axes=[0, 1], keepdims=0),
        helper.make_node("Mul", ["slow.mean", "slow.none"], ["slow.nothing"]),
        helper.make_node("Add", ["quick", "slow.nothing"], ["output0"]),
    ])  # fmt: skip
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def of_any_batch(path: Path) -> Path:
    """The network at `path`, made by `yolo`, `yolox` or `end_to_end`, taking any number of pictures at once: what it
    multiplies by how red a picture is has a row for each."""
    model = onnx.load(str(path))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    for each in model.graph.initializer:
        if each.name.endswith(".shape"):
            each.CopyFrom(numpy_helper.from_array(np.array([-1, *numpy_helper.to_array(each)[1:]]), each.name))
    onnx.save(model, str(path))
    return path


def reds(*shares: float) -> dict[str, Any]:
    """A feed of a picture for each, as red as it says: by that `yolo` scores what it finds."""
    rows = np.zeros((len(shares), 3, SIDE, SIDE), np.float32)
    rows[:, 0] = np.array(shares, np.float32)[:, None, None]
    return {"images": rows}


def scores_of(answer: Mapping[str, Any]) -> list[float]:
    """Of the first thing in each picture, as `yolo` answers."""
    return [round(float(each), 2) for each in answer["output0"][:, 4, 0]]


def loosened(path: Path, side: int) -> Path:
    """The network at `path`, saying that it takes pictures of any height and width, and usually of `side`."""
    model = onnx.load(str(path))
    for place, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    notes = {each.key: each.value for each in model.metadata_props}
    helper.set_model_props(model, {**notes, "imgsz": f"[{side}, {side}]"})
    onnx.save(model, str(path))
    return path


def end_to_end(path: Path, things: Sequence[Thing], names: Sequence[str]) -> Path:
    """[1, 10, 6]: x1, y1, x2, y2, score, class."""
    rows = np.zeros((1, 10, 6), np.float32)
    for row, thing in enumerate(things):
        rows[0, row] = [*thing.box, thing.score, thing.class_id]
    mask = np.array([0, 0, 0, 0, 1, 0], np.float32).reshape(1, 1, 6)
    return _save(path, [("output0", rows, mask)], metadata={"names": str(dict(enumerate(names)))})


def detr(path: Path, things: Sequence[Thing], metadata: dict[str, str] | None = None) -> Path:
    """labels, boxes in the unit of orig_target_sizes, scores; with the names of COCO where no `metadata` are given."""
    labels = np.array([[thing.class_id for thing in things]], np.int64)
    shares = np.array([[thing.box for thing in things]], np.float32) / SIDE
    scores = np.array([[thing.score for thing in things]], np.float32)
    nodes = [
        helper.make_node("Cast", ["orig_target_sizes"], ["wh"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["wh", "wh"], ["whwh"], axis=1),
        helper.make_node("Unsqueeze", ["whwh", "one"], ["whwh3"]),
        helper.make_node("Mul", ["shares", "whwh3"], ["boxes"]),
        helper.make_node("Identity", ["label_values"], ["labels"]),
        helper.make_node("Reshape", ["red", "two_d"], ["red2"]),
        helper.make_node("Mul", ["score_values", "red2"], ["scores"]),
    ]
    values = {"shares": shares, "label_values": labels, "score_values": scores}
    values |= {"one": np.array([1], np.int64), "two_d": np.array([1, 1], np.int64)}
    outputs = [
        helper.make_tensor_value_info("labels", TensorProto.INT64, [1, len(things)]),
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, len(things), 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, len(things)]),
    ]
    sizes = helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, [1, 2])
    metadata = {"names": str(dict(enumerate(COCO_80)))} if metadata is None else metadata
    return _write(path, [*_red(0, 1.0), *nodes], values, [_images(), sizes], outputs, metadata)


def rf_detr(path: Path, things: Sequence[Thing], slots: int = 91) -> Path:
    """dets [1, n, 4] and labels [1, n, slots] as rfdetr exports them; `class_id` of a thing is its slot.

    The red channel is taken back to 0..1 from ImageNet's mean and deviation, so that a score tells whether they were
    applied."""
    dets = np.array([[(x1 + x2, y1 + y2, 2 * (x2 - x1), 2 * (y2 - y1)) for x1, y1, x2, y2 in (t.box for t in things)]])
    scores = np.full((1, len(things), slots), 1e-4, np.float32)
    for query, thing in enumerate(things):
        scores[0, query, thing.class_id] = thing.score
    weight = np.zeros((1, 3, 1, 1), np.float32)
    weight[0, 0] = 0.229
    nodes = [
        helper.make_node("Conv", ["input", "weight", "bias"], ["map"]),
        helper.make_node("GlobalAveragePool", ["map"], ["pooled"]),
        helper.make_node("Reshape", ["pooled", "three_d"], ["red"]),
        helper.make_node("Mul", ["scores", "red"], ["p"]),
        helper.make_node("Sub", ["one", "p"], ["rest"]),
        helper.make_node("Div", ["p", "rest"], ["odds"]),
        helper.make_node("Log", ["odds"], ["labels"]),
        helper.make_node("Identity", ["boxes"], ["dets"]),
    ]
    values = {"weight": weight, "bias": np.array([0.485], np.float32), "three_d": np.array([1, 1, 1], np.int64)}
    values |= {"scores": scores, "one": np.array([1], np.float32), "boxes": (dets / 2 / SIDE).astype(np.float32)}
    outputs = [
        helper.make_tensor_value_info("dets", TensorProto.FLOAT, [1, len(things), 4]),
        helper.make_tensor_value_info("labels", TensorProto.FLOAT, [1, len(things), slots]),
    ]
    frame = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    return _write(path, nodes, values, [frame], outputs, {})


def ssd_tensorflow(path: Path, things: Sequence[Thing]) -> Path:
    """As tf2onnx writes a detector of TensorFlow's Object Detection API: uint8 NHWC, y1, x1, y2, x2 in shares, ids from
    1 (COCO's), and more rows than `num_detections` counts."""
    rows = len(things) + 2
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (1, rows, 1))
    classes = np.ones((1, rows), np.float32)
    scores = np.full((1, rows), 0.99, np.float32)  # of those that do not count
    for row, thing in enumerate(things):
        x1, y1, x2, y2 = thing.box
        boxes[0, row] = np.array([y1, x1, y2, x2]) / SIDE
        classes[0, row], scores[0, row] = thing.class_id, thing.score
    nodes = [
        helper.make_node("Cast", ["input_tensor"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["images"], perm=[0, 3, 1, 2]),
        *_red(0, 255.0),
        helper.make_node("Reshape", ["red", "two_d"], ["red2"]),
        helper.make_node("Mul", ["score_values", "red2"], ["detection_scores"]),
        *(helper.make_node("Identity", [f"{name}.v"], [name]) for name in ("detection_boxes", "detection_classes")),
        helper.make_node("Identity", ["count"], ["num_detections"]),
    ]
    values = {"two_d": np.array([1, 1], np.int64), "score_values": scores, "count": np.array([len(things)], np.float32)}
    values |= {"detection_boxes.v": boxes, "detection_classes.v": classes}
    shapes = {"detection_boxes": [1, rows, 4], "detection_classes": [1, rows], "detection_scores": [1, rows]}
    shapes["num_detections"] = [1]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    frame = helper.make_tensor_value_info("input_tensor", TensorProto.UINT8, [1, SIDE, SIDE, 3])
    return _write(path, nodes, values, [frame], outputs, {})


def ssd_torchvision(path: Path, things: Sequence[Thing]) -> Path:
    """As torchvision's detectors are exported: one picture [3, h, w] of 0..1, x1, y1, x2, y2 in its pixels, labels from
    1."""
    nodes = [
        helper.make_node("Unsqueeze", ["picture", "first"], ["images"]),
        *_red(0, 1.0),
        helper.make_node("Reshape", ["red", "one_d"], ["red1"]),
        helper.make_node("Mul", ["score_values", "red1"], ["scores"]),
        helper.make_node("Identity", ["box_values"], ["boxes"]),
        helper.make_node("Identity", ["label_values"], ["labels"]),
    ]
    values = {"first": np.array([0], np.int64), "one_d": np.array([1], np.int64)}
    values |= {"score_values": np.array([thing.score for thing in things], np.float32)}
    values |= {"box_values": np.array([thing.box for thing in things], np.float32)}
    values |= {"label_values": np.array([thing.class_id for thing in things], np.int64)}
    outputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [len(things), 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [len(things)]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [len(things)]),
    ]
    frame = helper.make_tensor_value_info("picture", TensorProto.FLOAT, [3, SIDE, SIDE])
    return _write(path, nodes, values, [frame], outputs, {})


def constant(path: Path, outputs: dict[str, NDArray[np.float32]], metadata: dict[str, str] | None = None) -> Path:
    """A network that answers with `outputs` whatever it sees."""
    return _save(path, [(name, value, np.zeros_like(value)) for name, value in outputs.items()], metadata=metadata)


def of_shapes(path: Path, shapes: Sequence[tuple[int, ...]]) -> Path:
    """Outputs of these shapes, all zero."""
    zeros = [
        (f"o{n}", np.zeros(shape, np.float32), np.zeros((1,) * len(shape), np.float32))
        for n, shape in enumerate(shapes)
    ]
    return _save(path, zeros)


def of_no_tensor(path: Path, kind: str) -> Path:
    """Its one output is a "sequence" of tensors, or a sequence of "map"s, as classifiers of scikit-learn have."""
    nodes = _red(0, 1.0)
    if kind == "sequence":
        nodes += [helper.make_node("SequenceConstruct", ["red"], ["listed"])]
        info = helper.make_tensor_sequence_value_info("listed", TensorProto.FLOAT, None)
    else:
        nodes += [
            helper.make_node("Flatten", ["red"], ["flat"]),
            helper.make_node("ZipMap", ["flat"], ["listed"], domain="ai.onnx.ml", classlabels_int64s=[0]),
        ]
        floats = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, floats))
        info = helper.make_value_info("listed", maps)
    return _write(path, nodes, {}, [_images()], [info], {})


def _save(
    path: Path,
    outputs: Sequence[tuple[str, NDArray[np.float32], NDArray[np.float32]]],
    *,
    red_channel: int = 0,
    top: float = 1.0,
    metadata: dict[str, str] | None = None,
) -> Path:
    """output = values * (1 - mask) + values * mask * red."""
    nodes, values, infos = _red(red_channel, top), {}, []
    for name, array, mask in outputs:
        values |= {f"{name}.still": array * (1 - mask), f"{name}.lit": array * mask}
        values[f"{name}.shape"] = np.array([1] * array.ndim, np.int64)
        nodes += [
            helper.make_node("Reshape", ["red", f"{name}.shape"], [f"{name}.red"]),
            helper.make_node("Mul", [f"{name}.lit", f"{name}.red"], [f"{name}.scaled"]),
            helper.make_node("Add", [f"{name}.still", f"{name}.scaled"], [name]),
        ]
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    return _write(path, nodes, values, [_images()], infos, metadata or {})


def _images() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])


def _red(channel: int, top: float) -> list[onnx.NodeProto]:
    """Nodes that leave the mean of one channel, as a share of `top`, in `red` (1, 1, 1, 1)."""
    weight = np.zeros((1, 3, 1, 1), np.float32)
    weight[0, channel] = 1 / top
    return [
        helper.make_node("Constant", [], ["red.weight"], value=numpy_helper.from_array(weight)),
        helper.make_node("Conv", ["images", "red.weight"], ["red.map"]),
        helper.make_node("GlobalAveragePool", ["red.map"], ["red"]),
    ]


def _write(
    path: Path,
    nodes: list[onnx.NodeProto],
    values: dict[str, NDArray[np.generic]],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    metadata: dict[str, str],
) -> Path:
    initial = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initial)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)], ir_version=9
    )
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path
