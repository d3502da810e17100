"""An INT8 copy of a network for CPUs: python -m models.quantize models/vedette-nano.onnx --out vedette-nano-int8.onnx.

ONNX Runtime's static quantization (QDQ, a scale for each channel of the weights), calibrated on frames of the bundled
clips and of --clip. In float32 stay the first convolution, where rounding did most harm and saved nothing (on 70
pictures of the training set scores were off by 0.017 on the mean, now by 0.012), and the last ones with what follows
them: a box whose sides are rounded to 256 steps is loose. Measure before you use it: models.evaluate tells what it
costs in accuracy, models.evaluation.cost what it brings here.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from appliance.detect.letterbox import Letterbox
from models import shapes
from models.train import film

CLIPS = Path(__file__).parents[1] / "fixtures" / "clips"
EVERY = 60  # frames: 31 pictures of the two bundled clips


class Frames(CalibrationDataReader):  # type: ignore[misc]
    """Frames of films as the network wants them: RGB 0..1, laid into the middle."""

    def __init__(self, clips: Sequence[Path], every: int, name: str, width: int, height: int) -> None:
        self._name = name
        self._pictures = self._laid(clips, every, Letterbox(width, height, "centre"))

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next picture, or None after the last."""
        picture = next(self._pictures, None)
        return None if picture is None else {self._name: picture}

    @staticmethod
    def _laid(clips: Sequence[Path], every: int, box: Letterbox) -> Iterator[np.ndarray]:
        for clip in clips:
            for _, picture, _ in film.frames(clip, every):
                laid = box.lay(picture)[:, :, ::-1].transpose(2, 0, 1)
                yield np.ascontiguousarray(laid, np.float32)[None] / 255


def quantize(source: Path, target: Path, clips: Sequence[Path], every: int = EVERY) -> Path:
    """Write the INT8 copy of `source`, for pictures of any shape where `source` is; returns `target`."""
    given = onnx.load(str(source))
    width, height = _usual(given)
    with tempfile.TemporaryDirectory() as folder:
        fixed, ready = Path(folder) / "fixed.onnx", Path(folder) / "ready.onnx"
        onnx.save(shapes.fix(given, width, height), str(fixed))
        quant_pre_process(str(fixed), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready),
            str(target),
            Frames(clips, every, given.graph.input[0].name, width, height),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            # Without VNNI two products of 8 bits may overflow 16: 7 bits for weights, as ONNX Runtime advises.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            nodes_to_exclude=_ends(onnx.load(str(ready)).graph),
        )
    model = onnx.load(str(target))
    if shapes.is_free(given):
        model = shapes.free(model)
    notes = {each.key: each.value for each in given.metadata_props}
    onnx.helper.set_model_props(model, {**notes, "precision": "int8"})
    onnx.save(model, str(target))
    return target


def _usual(model: onnx.ModelProto) -> tuple[int, int]:
    """The (width, height) that the network was exported for, by its metadata."""
    notes = {each.key: each.value for each in model.metadata_props}
    height, width = (int(side) for side in notes["imgsz"].strip("[]").split(","))
    return width, height


def _ends(graph: onnx.GraphProto) -> list[str]:
    """The first convolution, those that no other follows, and everything behind these."""
    makers = {output: node for node in graph.node for output in node.output}
    found: dict[str, onnx.NodeProto] = {}
    open_ends = [each.name for each in graph.output]
    while open_ends:
        node = makers.get(open_ends.pop())
        if node is not None and node.name not in found:
            found[node.name] = node
            if node.op_type != "Conv":
                open_ends.extend(node.input)
    return [next(node.name for node in graph.node if node.op_type == "Conv"), *found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and quantize; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.quantize", description=__doc__)
    parser.add_argument("model", type=Path, help="an .onnx of ours")
    parser.add_argument("--out", type=Path, required=True, help="the .onnx to write")
    parser.add_argument("--clip", type=Path, action="append", default=[], help="calibrate on this film too; repeatable")
    parser.add_argument("--every", type=int, default=EVERY, help=f"take every Nth frame (default {EVERY})")
    options = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.ERROR)
    quantize(options.model, options.out, [*sorted(CLIPS.glob("*.mp4")), *options.clip], options.every)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
