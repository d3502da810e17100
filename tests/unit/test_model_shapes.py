"""One network for pictures of any shape: the cells are computed in the graph, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from models import shapes

MODELS = Path(__file__).parents[2] / "models"
OURS = [MODELS / "vedette-nano.onnx", MODELS / "vedette-nano-int8.onnx"]
FREE = onnx.load(str(OURS[0]))
CASES = [(OURS[0], (416, 256)), (OURS[0], (32, 32)), (OURS[1], (96, 160))]


def answer(model: onnx.ModelProto, picture: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(opened(model).run(None, {"images": picture})[0], np.float32)


def opened(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def noise(width: int, height: int) -> NDArray[np.float32]:
    return np.random.default_rng(width * height).random((1, 3, height, width), np.float32)


@pytest.mark.parametrize(("file", "size"), CASES, ids=str)
def test_the_free_network_answers_as_one_made_for_that_shape_alone(file: Path, size: tuple[int, int]) -> None:
    free = onnx.load(str(file))
    assert shapes.is_free(free)
    fixed = shapes.fix(free, *size)
    assert not shapes.is_free(fixed)
    picture = noise(*size)
    found = answer(free, picture)
    assert found.shape == (1, 12, sum((size[0] // s) * (size[1] // s) for s in shapes.STRIDES))
    np.testing.assert_allclose(found, answer(fixed, picture), rtol=1e-5, atol=1e-4)


def test_the_centres_are_where_the_cells_are() -> None:
    """Against a grid that is reckoned the long way, at a shape with unequal sides."""
    fixed = shapes.fix(onnx.load(str(OURS[0])), 96, 64)
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in fixed.graph.initializer}
    wanted = [(x * s + s / 2, y * s + s / 2, s) for s in (8, 16, 32) for y in range(64 // s) for x in range(96 // s)]
    np.testing.assert_array_equal(constants["centre"][0].T, [(x, y) for x, y, _ in wanted])
    np.testing.assert_array_equal(constants["stride"][0, 0], [s for *_, s in wanted])
    np.testing.assert_array_equal(constants["half_stride"][0, 0], [s / 2 for *_, s in wanted])


def test_freeing_a_fixed_network_gives_the_free_one_again_and_touches_no_weight() -> None:
    free = onnx.load(str(OURS[0]))
    fixed = shapes.fix(free, 416, 416)
    again = shapes.free(fixed)
    assert shapes.free(again).SerializeToString() == again.SerializeToString()
    picture = noise(160, 128)
    np.testing.assert_array_equal(answer(again, picture), answer(free, picture))
    weights = [
        {each.name: each.SerializeToString() for each in model.graph.initializer if "weight" in each.name}
        for model in (free, fixed, again)
    ]
    assert weights[0]
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize("made", [lambda: FREE, lambda: shapes.free(shapes.fix(FREE, 96, 64))], ids=["freed", "anew"])
def test_a_free_network_takes_as_many_pictures_at_once_as_one_likes(made: Callable[[], onnx.ModelProto]) -> None:
    """Each gets what it gets by itself, to the bit: on a CPU of ONNX Runtime."""
    session = opened(shapes.free(made()))
    pictures = np.concatenate([noise(96, 64), noise(96, 64)[:, ::-1], noise(96, 64)[..., ::-1]])
    (together,) = session.run(None, {"images": pictures})
    for row in range(len(pictures)):
        np.testing.assert_array_equal(
            together[row : row + 1], session.run(None, {"images": pictures[row : row + 1]})[0]
        )


def test_a_fixed_network_has_only_operators_that_every_compiler_knows(tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    assert shapes.main([str(OURS[0]), "--size", "416", "256", "--out", str(path)]) == 0
    fixed = onnx.load(str(path))
    kinds = {node.op_type for node in fixed.graph.node}
    assert not kinds & {"Shape", "Split", "Range", "Gather"}
    sides = [[dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in fixed.graph.input]
    assert sides == [[1, 3, 256, 416]]
    notes = {each.key: each.value for each in fixed.metadata_props}
    assert notes["imgsz"] == "[256, 416]"


@pytest.mark.parametrize("size", [(100, 96), (0, 32), (96, -32), (8192, 32)])
def test_an_impossible_shape_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="multiples of 32 up to 4096"):
        shapes.fix(onnx.load(str(OURS[0])), *size)


def test_somebody_elses_network_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = [onnx.helper.make_tensor_value_info(name, 1, [1, 3, 64, 64]) for name in ("images", "out")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["images"], ["out"])], "g", info[:1], info[1:])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "other.onnx"))
    assert shapes.main([str(tmp_path / "other.onnx"), "--out", str(tmp_path / "o.onnx")]) == 2
    assert "no constants centre" in capsys.readouterr().out
    (tmp_path / "text.onnx").write_text("no network")
    for name in ("text.onnx", "none.onnx"):
        assert shapes.main([str(tmp_path / name), "--out", str(tmp_path / "o.onnx")]) == 2
        assert f"{name}: cannot be read as ONNX" in capsys.readouterr().out
