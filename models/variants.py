"""Makes variants of a network: FP16, integers for CPUs, integers for TensorRT, and input for Hailo's compiler.

int8: activations of 8 bits unsigned, weights of 7 (two products of 8 may overflow 16 bits on a CPU without VNNI) or,
more accurate, of 8 (`--bits 8`: such a CPU then takes slower kernels, onnx_runtime), a scale a channel.
tensorrt: explicit Q/DQ, all zero points 0, signed, a scale a channel of the weights, weights and biases float in the
file, before convolutions and products of matrices alone: TensorRT fuses the rest. hailo: one shape, and the raw
answers of the last convolutions, as the compiler's own operators decode them.

The first convolution and what follows the last ones stay float32 in both kinds of integers: there rounding costs most.

Integers are calibrated with frames, of the site's own recording or of clips. These are decoded here, go into the
arithmetic and are forgotten: nothing of them is written, and no frame leaves the box. What a quantised file holds of
them is one range of numbers a layer.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import onnx
import onnx.version_converter
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from appliance.base.errors import EvidenceError, StoreError, UsageError
from appliance.bundle.manifest import sha256_of
from appliance.detect.model_advice import BASE_KEY, VARIANT_KEY
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.network_inputs import network_inputs
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import cut_key_frame
from appliance.store.paths import SEGMENTS, inside
from appliance.store.storage_reader import StorageArchive
from appliance.types import SegmentRow
from models import shapes
from models.train import sources

FRAMES = 100
CLIP_FRAMES_MAX = 200  # of a film, however long: more only take memory
FRAMES_MIN = 10  # ranges of fewer are those of one scene
DAYS = 7  # how far back is looked
SIDE_MAX = 960  # larger than any input; a hundred frames are then 150 MB
HOUR_S, DAY_S = 3600.0, 86400.0
Frame = NDArray[np.uint8]
Progress = Callable[[int, int], None]
Thing = TypeVar("Thing")


def recorded_frames(
    storage: Path, cameras: Sequence[str], count: int = FRAMES, progress: Progress = lambda done, of: None
) -> list[Frame]:
    """As `each_recorded_frame`. Raise UsageError: too little is recorded; StoreError."""
    found = list(each_recorded_frame(storage, cameras, count, progress))
    return _enough(found, f"the recording of {', '.join(cameras) or 'no camera'} in {storage}")


def each_recorded_frame(
    storage: Path, cameras: Sequence[str], count: int, progress: Progress = lambda done, of: None
) -> Iterator[Frame]:
    """At most `count` key frames of the recording in a storage folder, BGR, spread over cameras and hours of the day.

    Day and night count alike: a camera that records on alerts has most of its segments at one hour. Reads beside a
    running appliance, and writes nothing. Raise StoreError.
    """
    archive = StorageArchive(storage)
    by_camera = [over_the_day(_segments(archive, camera), -(-count // len(cameras))) for camera in cameras]
    chosen = [row for rows in zip_longest(*by_camera) for row in rows if row is not None][:count]
    for number, row in enumerate(chosen):
        progress(number, len(chosen))
        try:
            path = inside(storage, row.path, SEGMENTS)
            middle = (row.t_start + row.t_end) / 2
            still = cut_key_frame(RecordedSegment(path, row.t_start, row.t_end), middle, SIDE_MAX)
        except (EvidenceError, StoreError):
            continue  # retention was quicker, or the segment is torn
        yield still.image


def clip_frames(clips: Sequence[Path], every: int) -> list[Frame]:
    """Return every `every`th frame of each clip, BGR; of a long one fewer, spread over all of it. Raise UsageError."""
    return _enough([frame for clip in clips for frame in _of_clip(clip, every)], "these clips")


def _of_clip(clip: Path, every: int) -> list[Frame]:
    found: list[Frame] = []
    for number, frame, _ in sources.frames(clip, every):
        if number % every == 0:
            found.append(frame)
        if len(found) > CLIP_FRAMES_MAX:
            found, every = found[::2], 2 * every
    return found


def over_the_day(rows: Sequence[SegmentRow], count: int) -> list[SegmentRow]:
    """Return at most `count` of them, as many of each hour of the day as there are, evenly spaced within it."""
    by_hour: dict[int, list[SegmentRow]] = {}
    for row in rows:
        by_hour.setdefault(int(row.t_start % DAY_S // HOUR_S), []).append(row)
    found: list[SegmentRow] = []
    wanted = count
    for left, hour in enumerate(sorted(by_hour, key=lambda each: len(by_hour[each]))):
        share = -(-wanted // (len(by_hour) - left))  # what a thin hour lacks, fuller ones give
        taken = spread(by_hour[hour], share)
        found += taken
        wanted -= len(taken)
    return sorted(found, key=lambda row: row.t_start)


def spread(things: Sequence[Thing], count: int) -> list[Thing]:
    """`count` of them, evenly spaced; all where there are no more."""
    if count >= len(things):
        return list(things)
    return [things[int((number + 0.5) * len(things) / count)] for number in range(count)]


def _segments(archive: StorageArchive, camera: str) -> list[SegmentRow]:
    span = archive.span(camera)
    return [] if span is None else archive.segments(camera, max(span[0], span[1] - DAYS * DAY_S), span[1])


def _enough(frames: list[Frame], of: str) -> list[Frame]:
    if len(frames) < FRAMES_MIN:
        raise UsageError(
            f"{len(frames)} frames of {of} can be read, and ranges of fewer than {FRAMES_MIN} are those of one scene: "
            "record for a day, or name clips with --clip"
        )
    return frames


Kind = Literal["fp16", "int8", "tensorrt", "hailo"]
PRECISIONS: Mapping[Kind, str] = {"fp16": "fp16", "int8": "int8", "tensorrt": "int8", "hailo": "fp32"}
MULTIPLYING = ("Conv", "ConvTranspose", "MatMul", "Gemm")
TENSORRT: Mapping[str, Any] = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "AddQDQPairToWeight": True,  # weights stay float behind Q and DQ, which TensorRT folds itself
    "QuantizeBias": False,  # TensorRT has no int32 biases behind DequantizeLinear
    "DedicatedQDQPair": True,
    "OpTypesToExcludeOutputQuantization": list(MULTIPLYING),  # a pair between convolution and ReLU would part them
}
DECODING = ("MatMul", "Gemm", "TopK", "GridSample", "NonMaxSuppression")
OPSET_MIN = 13  # of a scale for each channel in Q and DQ


class NotExportable(ValueError):
    """The text says why, as the end of a sentence."""


class CalibrationFrames(CalibrationDataReader):  # type: ignore[misc]
    """Frames as the network takes them, one after the other."""

    def __init__(self, frames: Sequence[NDArray[np.uint8]], feed: Callable[[Any], dict[str, Any]]) -> None:
        self._feeds: Iterator[dict[str, Any]] = (feed(frame) for frame in frames)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next input, or None after the last."""
        return next(self._feeds, None)


def make_variant(
    source: Path,
    target: Path,
    kind: Kind,
    frames: Sequence[NDArray[np.uint8]] = (),
    labels: tuple[str, ...] = (),
    keep_float: Sequence[str] = (),
    weight_bits: int = 7,
) -> Path:
    """Write the `kind` of `source`, and return `target`. Raise NotExportable, ModelError.

    `frames` are to calibrate integers, BGR of any size. `labels` are those of a network whose file does not name its
    classes. `keep_float`: parts of names of layers that stay float32 beside those that do anyway: a network's first
    block may lose more by rounding than all others. The metadata of the variant say whose variant it is; until it was
    measured on scenarios `vedette check` says so.
    """
    model = onnx.load(str(source))
    if kind == "fp16":
        made = _half(model)
    elif kind == "hailo":
        made = _for_hailo(model, source)
    else:
        made = _integers(model, source, kind, frames, labels, keep_float, weight_bits)
    notes = {each.key: each.value for each in model.metadata_props}
    onnx.helper.set_model_props(
        made,
        {**notes, "precision": PRECISIONS[kind], VARIANT_KEY: kind, BASE_KEY: sha256_of(source)},
    )
    onnx.save(made, str(target))
    return target


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights and arithmetic in float16; inputs and outputs stay as they are, so that every head reads them."""
    with _quiet():
        return convert_float_to_float16(model, keep_io_types=True)


def _for_hailo(model: onnx.ModelProto, source: Path) -> onnx.ModelProto:
    """Ours as models.hailo_recipe wants it, others at their last convolutions. Raise NotExportable."""
    fixed = _fixed(model, source)
    if _is_ours(model):
        height, width = (each.dim_value for each in fixed.graph.input[0].type.tensor_type.shape.dim[2:])
        return shapes.cut_behind_convolutions(model, width, height)
    return cut_before_decoding(fixed)


def _integers(
    model: onnx.ModelProto,
    source: Path,
    kind: Kind,
    frames: Sequence[NDArray[np.uint8]],
    labels: tuple[str, ...],
    keep_float: Sequence[str],
    weight_bits: int,
) -> onnx.ModelProto:
    if not frames:
        raise NotExportable("integers need frames to calibrate with")
    if any(each.data_type == onnx.TensorProto.FLOAT16 for each in model.graph.initializer):
        raise NotExportable("its weights are float16 already: quantise the float32 file")
    tensorrt = kind == "tensorrt"
    with tempfile.TemporaryDirectory() as folder, _quiet():
        fixed, ready, done = (Path(folder) / f"{name}.onnx" for name in ("fixed", "ready", "done"))
        onnx.save(_with_channels(_fixed(model, source)), str(fixed))
        network = NetworkDetector(fixed, OnnxRuntime(fixed), label_names=labels)
        quant_pre_process(str(fixed), str(ready), skip_symbolic_shape=True)
        graph = _named_nodes(ready).graph
        attention = any(node.op_type == "Softmax" for node in graph.node)
        quantize_static(
            str(ready),
            str(done),
            CalibrationFrames(frames, network.feed),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=not tensorrt and weight_bits == 7,
            activation_type=QuantType.QInt8 if tensorrt else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            op_types_to_quantize=list(MULTIPLYING) if tensorrt or attention else None,
            nodes_to_exclude=[*float_nodes(graph), *_named(graph, keep_float)],
            extra_options=dict(TENSORRT) if tensorrt else {},
        )
        made = onnx.load(str(done))
    return shapes.free(made) if _is_ours(model) and shapes.is_free(model) else made


def _fixed(model: onnx.ModelProto, source: Path) -> onnx.ModelProto:
    """Return the network for one picture of the one shape that it was exported for."""
    runtime = OnnxRuntime(source)
    wanted = network_inputs(source, runtime.inputs, runtime.metadata)
    if _is_ours(model):
        return shapes.fix(model, wanted.width, wanted.height)
    # Its package loads PyTorch where that is installed: two CPU seconds, which a network of ours does without.
    from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

    model = copy.deepcopy(model)
    frame = wanted.arranged(np.empty((1, 3, wanted.height, wanted.width), np.bool_)).shape
    for each in model.graph.input:
        make_input_shape_fixed(model.graph, each.name, frame if each.name == wanted.frame else (1, 2))
    fix_output_shapes(model)
    return model


def _with_channels(model: onnx.ModelProto) -> onnx.ModelProto:
    """In an opset that has a scale for each channel. Raise NotExportable."""
    if max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx")) >= OPSET_MIN:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET_MIN)
    except RuntimeError as error:
        raise NotExportable(f"its opset cannot be raised to {OPSET_MIN}: {str(error)[:200]}") from None


def _is_ours(model: onnx.ModelProto) -> bool:
    """Return whether models.train.export wrote it: its shape is freed and fixed without a guess."""
    try:
        shapes.free(model)
    except (ValueError, onnx.checker.ValidationError):
        return False
    return True


def _named_nodes(path: Path) -> onnx.ModelProto:
    """Give every node of the file a name: the quantizer is told by names which stay float, and `` would be all."""
    model = onnx.load(str(path))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}.{number}"
    onnx.save(model, str(path))
    return model


def float_nodes(graph: onnx.GraphProto) -> list[str]:
    """Return the nodes that stay float32. Raise NotExportable.

    They are the first convolution, those that no other follows, and everything behind these.
    """
    found = [each.name for each in _last_convolutions_and_behind(graph)]
    first = next((node.name for node in graph.node if node.op_type == "Conv"), None)
    if first is None:
        raise NotExportable("it has no convolution")
    return [first, *found]


def _named(graph: onnx.GraphProto, parts: Sequence[str]) -> list[str]:
    """Return the names of the nodes that multiply and have one of `parts` in it. Raise NotExportable: none has."""
    multiplying = [node.name for node in graph.node if node.op_type in MULTIPLYING]
    for part in parts:
        if not any(part in name for name in multiplying):
            raise NotExportable(f"no layer that multiplies has `{part}` in its name ({', '.join(multiplying[:3])}, …)")
    return [name for name in multiplying if any(part in name for part in parts)]


def cut_before_decoding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Cut the network after the last convolutions; their answers become its outputs, in the order of the graph.

    Raise NotExportable where there is no such cut.
    """
    behind = _last_convolutions_and_behind(model.graph)
    if within := {node.op_type for node in behind} & set(DECODING):
        raise NotExportable(
            f"it decodes its boxes within ({', '.join(sorted(within))}), so there are no raw grids to cut at; "
            "of Ultralytics' networks, export without --end-to-end"
        )
    last = {node.output[0] for node in behind if _is_raw(node, _producers(model.graph))}
    outputs = [node.output[0] for node in model.graph.node if node.output[0] in last]
    inferred = onnx.shape_inference.infer_shapes(model)
    return onnx.utils.Extractor(inferred).extract_model([inferred.graph.input[0].name], outputs)


def _producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {output: node for node in graph.node for output in node.output}


def _is_raw(node: onnx.NodeProto, producer_of: Mapping[str, onnx.NodeProto]) -> bool:
    """Return whether it is a convolution of the network, not the one by which YOLO averages a distribution."""
    before = producer_of.get(node.input[0]) if node.op_type == "Conv" else None
    return node.op_type == "Conv" and (before is None or before.op_type not in ("Softmax", "Transpose", "Reshape"))


def _last_convolutions_and_behind(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """From the outputs back to the first convolution on each way, these included."""
    producer_of = _producers(graph)
    found: dict[str, onnx.NodeProto] = {}  # by the first output: not every exporter names nodes
    open_ends = [each.name for each in graph.output]
    while open_ends:
        node = producer_of.get(open_ends.pop())
        if node is not None and node.output[0] not in found:
            found[node.output[0]] = node
            if not _is_raw(node, producer_of):
                open_ends.extend(node.input)
    return list(found.values())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's quantizer logs to the root that a model should be pre-processed, which it was."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
