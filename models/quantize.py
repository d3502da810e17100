"""An INT8 copy of a network for CPUs: python -m models.quantize models/vedette-nano.onnx --out vedette-nano-int8.onnx.

ONNX Runtime's static quantization (QDQ, a scale for each channel of the weights), calibrated on frames of the bundled
clips and of --clip. The first convolution stays float32, where rounding cost most and saved nothing (on 70 images of
the training set scores were off by 0.017 on average, now by 0.012), and so do the last ones with what follows them: a
box whose sides are rounded to 256 steps is loose. Measure before use: models.evaluate shows the accuracy it costs,
models.evaluation.cost the time it saves here.
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
EVERY = 60  # frames; gives 31 images of the two bundled clips


class CalibrationFrames(CalibrationDataReader):  # type: ignore[misc]
    """Frames of clips as the network wants them: (1, 3, height, width), RGB 0..1, letterboxed in the middle."""

    def __init__(self, clips: Sequence[Path], every: int, name: str, width: int, height: int) -> None:
        self._name = name
        self._inputs = self._letterboxed(clips, every, Letterbox(width, height, "centre"))

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next input, or None after the last."""
        frame = next(self._inputs, None)
        return None if frame is None else {self._name: frame}

    @staticmethod
    def _letterboxed(clips: Sequence[Path], every: int, box: Letterbox) -> Iterator[np.ndarray]:
        for clip in clips:
            for _, frame, _ in film.frames(clip, every):
                placed = box.lay(frame)[:, :, ::-1].transpose(2, 0, 1)
                yield np.ascontiguousarray(placed, np.float32)[None] / 255


def quantize(source: Path, target: Path, clips: Sequence[Path], every: int = EVERY) -> Path:
    """Write the INT8 copy of `source`, for frames of any shape where `source` is; returns `target`."""
    source_model = onnx.load(str(source))
    width, height = _exported_size(source_model)
    with tempfile.TemporaryDirectory() as folder:
        fixed, ready = Path(folder) / "fixed.onnx", Path(folder) / "ready.onnx"
        onnx.save(shapes.fix(source_model, width, height), str(fixed))
        quant_pre_process(str(fixed), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready),
            str(target),
            CalibrationFrames(clips, every, source_model.graph.input[0].name, width, height),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            # Without VNNI two products of 8 bits may overflow 16: 7 bits for weights, as ONNX Runtime advises.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            nodes_to_exclude=_float_nodes(onnx.load(str(ready)).graph),
        )
    model = onnx.load(str(target))
    if shapes.is_free(source_model):
        model = shapes.free(model)
    metadata = {each.key: each.value for each in source_model.metadata_props}
    onnx.helper.set_model_props(model, {**metadata, "precision": "int8"})
    onnx.save(model, str(target))
    return target


def _exported_size(model: onnx.ModelProto) -> tuple[int, int]:
    """The (width, height) that the network was exported for, by its metadata."""
    metadata = {each.key: each.value for each in model.metadata_props}
    height, width = (int(side) for side in metadata["imgsz"].strip("[]").split(","))
    return width, height


def _float_nodes(graph: onnx.GraphProto) -> list[str]:
    """Nodes that stay float32: the first convolution, those that no other follows, and everything behind these."""
    producer_of = {output: node for node in graph.node for output in node.output}
    found: dict[str, onnx.NodeProto] = {}
    open_ends = [each.name for each in graph.output]
    while open_ends:
        node = producer_of.get(open_ends.pop())
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
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # ONNX Runtime's quantizer logs there that a model should be pre-processed
    try:
        quantize(options.model, options.out, [*sorted(CLIPS.glob("*.mp4")), *options.clip], options.every)
    finally:
        root.setLevel(level)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
