"""Scores on another scale: the line asked for, for its class alone, with boxes and everything else as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import rescale

OWN = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"


def answers(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    picture = np.random.default_rng(0).random((1, 3, 96, 160), np.float32)
    found = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"images": picture})[0]
    return np.asarray(found, np.float64)


def test_scores_of_a_class_follow_its_line_and_nothing_else_changes(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert rescale.main([str(OWN), "--line", "person=1.2,0.5", "--line", "dog=0.8,-0.1", "--out", str(out)]) == 0
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
    with pytest.raises(SystemExit) as caught:
        rescale.main([str(OWN), "--line", asked, "--out", str(tmp_path / "out.onnx")])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_network_of_another_make_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no network of models\.train\.export"):
        rescale.rescale(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), {})
