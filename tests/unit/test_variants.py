"""Variants of the bundled network: integers inside and float32 at both ends, as CPUs and as TensorRT want them,
float16, and cut for Hailo's compiler: each close to what it was made of."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import av
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from appliance.base.box_arrays import iou_matrix
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from models import shapes, variants
from models.variants import NotExportable

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "models" / "vedette-nano.onnx"
SHIPPED = ROOT / "models" / "vedette-nano-int8.onnx"
CLIP = ROOT / "fixtures" / "clips" / "yard.mp4"
WITH_PERSON = 210  # a frame in which a person is plainly seen


@pytest.fixture(scope="module")
def seen() -> list[NDArray[np.uint8]]:
    """A few frames: enough for the structure and for the frames themselves."""
    with av.open(str(CLIP)) as container:
        frames = itertools.islice(container.decode(video=0), 10, WITH_PERSON + 1, 100)
        return [np.asarray(frame.to_ndarray(format="bgr24"), np.uint8) for frame in frames]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, seen: list[NDArray[np.uint8]]) -> Path:
    return variants.make_variant(SOURCE, tmp_path_factory.mktemp("int8") / "int8.onnx", "int8", seen)


@pytest.fixture(scope="module")
def for_tensorrt(tmp_path_factory: pytest.TempPathFactory, seen: list[NDArray[np.uint8]]) -> Path:
    return variants.make_variant(SOURCE, tmp_path_factory.mktemp("trt") / "trt.onnx", "tensorrt", seen)


@pytest.fixture(scope="module")
def otherwise(tmp_path_factory: pytest.TempPathFactory, seen: list[NDArray[np.uint8]]) -> Path:
    """Weights of eight bits, and the first block of vedette-nano in float."""
    path = tmp_path_factory.mktemp("otherwise") / "int8.onnx"
    return variants.make_variant(SOURCE, path, "int8", seen, weight_bits=8, keep_float=("stages.0.1/",))


def convolutions(path: Path) -> Iterator[tuple[onnx.NodeProto, bool]]:
    """Each convolution with whether its weights are integers."""
    graph = onnx.load(str(path)).graph
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "Conv":
            maker = makers.get(node.input[1])
            yield node, maker is not None and maker.op_type == "DequantizeLinear"


def answers(path: Path, image: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: image})[0])


def frame_of(clip: Path, index: int, width: int, height: int) -> NDArray[np.float32]:
    """One frame as the network wants it: (1, 3, height, width), RGB 0..1."""
    with av.open(str(clip)) as container:
        frame = next(itertools.islice(container.decode(video=0), index, None))
        rgb = frame.to_ndarray(format="rgb24", width=width, height=height)
    return np.ascontiguousarray(rgb.transpose(2, 0, 1)[None], np.float32) / 255


def test_most_convolutions_are_integer_and_both_ends_stay_float(made: Path) -> None:
    found = list(convolutions(made))
    assert not found[0][1], "the first convolution"
    # Three strides with a branch for boxes and one for classes each, or with both in one.
    last = {node.name for node, integer in found if not integer} - {found[0][0].name}
    assert 3 <= len(last) <= 6
    assert sum(integer for _, integer in found) == len(found) - 1 - len(last)


def test_weights_have_a_scale_for_each_channel_and_seven_bits(made: Path) -> None:
    """Seven, as two products of eight bits may overflow sixteen on a processor without VNNI."""
    graph = onnx.load(str(made)).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    for node, integer in convolutions(made):
        if integer:
            weights, scales = (values[name] for name in makers[node.input[1]].input[:2])
            assert weights.dtype == np.int8
            assert np.abs(weights.astype(int)).max() <= 64
            assert scales.shape == (weights.shape[0],)


def test_it_takes_any_shape_as_its_source_does_and_says_what_it_is(made: Path) -> None:
    source, copy = onnx.load(str(SOURCE)), onnx.load(str(made))
    assert shapes.is_free(source)
    assert shapes.is_free(copy)
    notes = {each.key: each.value for each in copy.metadata_props}
    assert notes.pop("precision") == notes.pop("vedette_variant") == "int8"
    assert notes.pop("vedette_base_sha256") == hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    assert notes.items() >= {each.key: each.value for each in source.metadata_props if each.key != "precision"}.items()
    assert made.stat().st_size < 0.5 * SOURCE.stat().st_size


def corners(box: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of a centre and sides."""
    return np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])[None]


@pytest.mark.parametrize("size", [(416, 416), (416, 256)])
def test_it_finds_the_same_person_in_the_same_place(made: Path, size: tuple[int, int]) -> None:
    image = frame_of(CLIP, WITH_PERSON, *size)
    one, other = answers(SOURCE, image)[0], answers(made, image)[0]
    assert one.shape == other.shape
    best = int(one[4].argmax())
    assert one[4, best] > 0.5
    assert other[4, best] == pytest.approx(one[4, best], abs=0.1)
    (shared,) = iou_matrix(corners(one[:4, best]), corners(other[:4, best]))
    assert shared > 0.9
    assert np.abs(one[4:] - other[4:]).mean() < 0.01


def test_the_file_that_is_shipped_leaves_the_same_parts_in_float(made: Path) -> None:
    assert [(node.name, integer) for node, integer in convolutions(SHIPPED)] == [
        (node.name, integer) for node, integer in convolutions(made)
    ]


def test_weights_of_eight_bits_are_for_cpus_that_do_not_overflow(otherwise: Path) -> None:
    graph = onnx.load(str(otherwise)).graph
    weights = [
        onnx.numpy_helper.to_array(each) for each in graph.initializer if each.data_type == onnx.TensorProto.INT8
    ]
    assert max(int(np.abs(each.astype(int)).max()) for each in weights if each.ndim == 4) == 127


def test_layers_that_lose_most_by_rounding_may_stay_in_float(
    made: Path, otherwise: Path, seen: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    """The first block of vedette-nano: without it in float a bundled scenario fails."""

    def in_float(path: Path) -> set[str]:
        graph = onnx.load(str(path)).graph
        answers = {output for node in graph.node if node.op_type == "DequantizeLinear" for output in node.output}
        return {node.name for node in graph.node if node.op_type == "Conv" and node.input[1] not in answers}

    more = in_float(otherwise) - in_float(made)
    assert len(more) == 4
    assert all("stages.0.1/" in name for name in more)
    with pytest.raises(variants.NotExportable, match=r"no layer that multiplies has `stages\.9/` in its name"):
        variants.make_variant(SOURCE, tmp_path / "no.onnx", "int8", seen, keep_float=("stages.9/",))


def test_tensorrt_gets_symmetric_pairs_around_what_multiplies_and_nothing_else(for_tensorrt: Path) -> None:
    """It refuses zero points that are not 0, and knows no int32 biases behind DequantizeLinear."""
    graph = onnx.load(str(for_tensorrt)).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    pairs = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in pairs:
        zeros = values[node.input[2]]
        assert zeros.dtype == np.int8
        assert not zeros.any()
    makers = {output: node for node in graph.node for output in node.output}
    for node, integer in convolutions(for_tensorrt):
        if not integer:
            continue
        dequantize = makers[node.input[1]]
        quantize = makers[dequantize.input[0]]
        assert values[quantize.input[0]].dtype == np.float32, "weights stay float behind their pair"
        assert values[quantize.input[1]].shape == (values[quantize.input[0]].shape[0],), "a scale a channel"
        assert node.input[2] in values, "a float bias"
        assert makers[node.input[0]].op_type == "DequantizeLinear"
    used = {each.op_type for node in pairs if node.op_type == "DequantizeLinear" for each in users(graph, node)}
    assert "Conv" in used
    assert "Relu" not in used, "it would part a convolution from what TensorRT fuses with it"


def users(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [each for each in graph.node if node.output[0] in each.input]


def test_both_kinds_of_integers_leave_the_same_parts_in_float(made: Path, for_tensorrt: Path) -> None:
    assert [integer for _, integer in convolutions(made)] == [integer for _, integer in convolutions(for_tensorrt)]


def found_in(path: Path, frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    network = NetworkDetector(path, OnnxRuntime(path), score_min=0.5)
    return np.asarray(network.detect([frame])[0].boxes, np.float32)


def test_every_variant_is_loaded_by_the_appliance_and_finds_the_same(
    for_tensorrt: Path, seen: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    half = variants.make_variant(SOURCE, tmp_path / "half.onnx", "fp16")
    assert half.stat().st_size < 0.55 * SOURCE.stat().st_size
    wanted = found_in(SOURCE, seen[-1])
    assert len(wanted) > 0
    for path, iou in ((half, 0.98), (for_tensorrt, 0.8)):
        shared = iou_matrix(wanted.astype(np.float64), found_in(path, seen[-1]).astype(np.float64))
        assert shared.max(axis=1).min() > iou, path.name


def test_hailo_gets_one_shape_and_the_raw_answers_of_the_last_convolutions(tmp_path: Path) -> None:
    cut = variants.make_variant(SOURCE, tmp_path / "cut.onnx", "hailo")
    model = onnx.load(str(cut))
    ops = {node.op_type for node in model.graph.node}
    assert not ops & {"Shape", "Reshape", "Exp", "Sigmoid"}
    assert [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 416, 416]
    image = frame_of(CLIP, WITH_PERSON, 416, 416)
    session = onnxruntime.InferenceSession(str(cut), providers=["CPUExecutionProvider"])
    raw = session.run(None, {session.get_inputs()[0].name: image})
    classes = np.concatenate([each.reshape(8, -1) for each in raw if each.shape[1] == 8], axis=1)
    np.testing.assert_allclose(1 / (1 + np.exp(-classes)), answers(SOURCE, image)[0, 4:], atol=1e-5)


@pytest.mark.shared
def test_a_network_that_decodes_within_cannot_be_cut(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "models" / "deimv2_hgnetv2_atto_coco_320.onnx"
    with pytest.raises(NotExportable, match="decodes its boxes within"):
        variants.make_variant(source, tmp_path / "cut.onnx", "hailo")


def test_nodes_without_names_are_told_apart_and_a_network_without_convolutions_is_refused() -> None:
    def conv(source: str, target: str) -> onnx.NodeProto:
        return onnx.helper.make_node("Conv", [source, "weights"], [target])

    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    weights = onnx.numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "weights")
    nodes = [
        conv("images", "stem"), conv("stem", "boxes"), conv("stem", "classes"),
        onnx.helper.make_node("Sigmoid", ["classes"], ["scores"]),
        onnx.helper.make_node("Concat", ["boxes", "scores"], ["answer"], axis=1),
    ]  # fmt: skip
    ends = [value("images", shape=[1, 3, 8, 8])], [value("answer", shape=[1, 6, 8, 8])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "raw", *ends, [weights]))
    cut = variants.cut_before_decoding(model)
    assert [each.name for each in cut.graph.output] == ["boxes", "classes"]
    del model.graph.node[:3]
    with pytest.raises(NotExportable, match="no convolution"):
        variants.float_nodes(model.graph)


def test_half_a_network_is_not_quantised_again(seen: list[NDArray[np.uint8]], tmp_path: Path) -> None:
    half = variants.make_variant(SOURCE, tmp_path / "half.onnx", "fp16")
    with pytest.raises(NotExportable, match="float16 already"):
        variants.make_variant(half, tmp_path / "int8.onnx", "int8", seen)
    with pytest.raises(NotExportable, match="need frames"):
        variants.make_variant(SOURCE, tmp_path / "int8.onnx", "int8")


def test_a_network_whose_nodes_have_no_names_becomes_integer_all_the_same(
    seen: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    """The quantizer leaves out nodes by name: `` for the first convolution would be all of them."""
    network = shapes.fix(onnx.load(str(SOURCE)), 64, 64)
    for node in network.graph.node:
        node.name = ""
    onnx.save(network, str(tmp_path / "unnamed.onnx"))
    found = list(convolutions(variants.make_variant(tmp_path / "unnamed.onnx", tmp_path / "8.onnx", "int8", seen[:1])))
    assert sum(integer for _, integer in found) > len(found) / 2
