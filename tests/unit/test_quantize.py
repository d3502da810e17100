"""The INT8 copy of the bundled network: integer inside, float32 at both ends, and close to what it was made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from models import quantize, shapes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "models" / "vedette-nano.onnx"
SHIPPED = ROOT / "models" / "vedette-nano-int8.onnx"
CLIP = ROOT / "fixtures" / "clips" / "yard.mp4"
WITH_PERSON = 210  # a frame in which a person is plainly seen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated on a few frames only: enough for its structure and for the frames it saw."""
    target = tmp_path_factory.mktemp("int8") / "int8.onnx"
    assert quantize.main([str(SOURCE), "--out", str(target), "--clip", str(CLIP), "--every", "400"]) == 0
    return target


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
    assert notes.pop("precision") == "int8"
    assert notes.items() >= {each.key: each.value for each in source.metadata_props if each.key != "precision"}.items()
    assert made.stat().st_size < 0.5 * SOURCE.stat().st_size


@pytest.mark.parametrize("size", [(416, 416), (416, 256)])
def test_it_finds_the_same_person_in_the_same_place(made: Path, size: tuple[int, int]) -> None:
    image = frame_of(CLIP, WITH_PERSON, *size)
    one, other = answers(SOURCE, image)[0], answers(made, image)[0]
    assert one.shape == other.shape
    best = int(one[4].argmax())
    assert one[4, best] > 0.5
    assert other[4, best] == pytest.approx(one[4, best], abs=0.1)
    assert other[:4, best] == pytest.approx(one[:4, best], abs=4), "centre and sides, pixels"
    assert np.abs(one[4:] - other[4:]).mean() < 0.01


def test_the_file_that_is_shipped_leaves_the_same_parts_in_float(made: Path) -> None:
    assert [(node.name, integer) for node, integer in convolutions(SHIPPED)] == [
        (node.name, integer) for node, integer in convolutions(made)
    ]
