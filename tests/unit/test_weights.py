"""New weights for a network. Another scale: the line asked for, for its class alone, with everything else as before.

The mean of two: the share asked for, one of them whole at either end, one design only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from models import weights

OWN = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"


def answers(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    picture = np.random.default_rng(0).random((1, 3, 96, 160), np.float32)
    found = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"images": picture})[0]
    return np.asarray(found, np.float64)


def test_scores_of_a_class_follow_its_line_and_nothing_else_changes(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert (
        weights.main(["rescale", str(OWN), "--line", "person=1.2,0.5", "--line", "dog=0.8,-0.1", "--out", str(out)])
        == 0
    )
    before, after = answers(OWN), answers(out)
    for row, (slope, offset) in {4: (1.2, 0.5), 11: (0.8, -0.1)}.items():
        score = np.clip(before[0, row], 1e-9, 1 - 1e-9)
        odds = slope * np.log(score / (1 - score)) + offset
        np.testing.assert_allclose(after[0, row], 1 / (1 + np.exp(-odds)), rtol=1e-3, atol=1e-5)
    rest = [row for row in range(12) if row not in (4, 11)]
    np.testing.assert_allclose(after[0, rest], before[0, rest], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "words"),
    [("horse=1.1,0", "no class horse"), ("person=0,1", "slope above 0"), ("person", "CLASS=SLOPE,OFFSET")],
)
def test_what_makes_no_sense_is_refused(
    asked: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = weights.main(["rescale", str(OWN), "--line", asked, "--out", str(tmp_path / "out.onnx")])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert words in capsys.readouterr().err


def test_a_network_of_another_make_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no network of models\.train\.export"):
        weights.rescale(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), {})


def biases(model: onnx.ModelProto) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The class biases of a network, which `rescale` moves."""
    layers = [each for each in model.graph.initializer if each.name.endswith(".classes.bias")]
    assert layers
    return np.array([numpy_helper.to_array(each) for each in layers], np.float64)


def test_each_weight_has_the_share_asked_for(tmp_path: Path) -> None:
    new = tmp_path / "new.onnx"
    assert weights.main(["rescale", str(OWN), "--line", "person=1,2", "--out", str(new)]) == 0
    for share in (0.0, 0.25, 0.35, 1.0):
        out = tmp_path / "mean.onnx"
        assert weights.main(["mean", str(OWN), str(new), "--share", str(share), "--out", str(out)]) == 0
        moved = biases(onnx.load(str(out))) - biases(onnx.load(str(OWN)))
        np.testing.assert_allclose(moved[:, 0], 2 * share, atol=1e-5)
        np.testing.assert_array_equal(moved[:, 1:], 0, "what both have in common stays, to the bit")


def test_a_share_beyond_one_and_another_design_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mean.onnx"
    assert weights.main(["mean", str(OWN), str(OWN), "--share", "1.5", "--out", str(out)]) == 2
    assert "between 0 and 1" in capsys.readouterr().err
    other = tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), str(other))
    assert weights.main(["mean", str(OWN), str(other), "--out", str(out)]) == 2
    assert "not of one design" in capsys.readouterr().err
    assert not out.exists()
