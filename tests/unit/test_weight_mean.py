"""The mean of two networks' weights: the share asked for, one of them whole at either end, one design only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models import rescale
from models.train import mean

OWN = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"


def biases(model: onnx.ModelProto) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The class biases of a network, which `rescale` moves."""
    layers = [each for each in model.graph.initializer if each.name.endswith(".classes.bias")]
    assert layers
    return np.array([numpy_helper.to_array(each) for each in layers], np.float64)


def test_each_weight_has_the_share_asked_for(tmp_path: Path) -> None:
    new = tmp_path / "new.onnx"
    assert rescale.main([str(OWN), "--line", "person=1,2", "--out", str(new)]) == 0
    for share in (0.0, 0.25, 0.35, 1.0):
        out = tmp_path / "mean.onnx"
        assert mean.main([str(OWN), str(new), "--share", str(share), "--out", str(out)]) == 0
        moved = biases(onnx.load(str(out))) - biases(onnx.load(str(OWN)))
        np.testing.assert_allclose(moved[:, 0], 2 * share, atol=1e-5)
        np.testing.assert_array_equal(moved[:, 1:], 0, "what both have in common stays, to the bit")


def test_a_share_beyond_one_and_another_design_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mean.onnx"
    assert mean.main([str(OWN), str(OWN), "--share", "1.5", "--out", str(out)]) == 2
    assert "between 0 and 1" in capsys.readouterr().err
    other = tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), str(other))
    assert mean.main([str(OWN), str(other), "--out", str(out)]) == 2
    assert "not of one design" in capsys.readouterr().err
    assert not out.exists()
