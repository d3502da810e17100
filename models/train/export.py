"""Turn a trained network into the file the appliance loads: python -m models.train.export --checkpoint RUN/best.pt.

The layout is YOLOv8's, [1, 4 + classes, cells] with centre and size in pixels and scores 0..1, which
`appliance.detect.yolo_detr_ssd_heads` tells by its shape. Batch norms and training-time branches are folded away.
Height and width are free (multiples of 32), unless --fixed; `--size` is the box that pictures are scaled into.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from models import shapes
from models.train.index import CLASSES
from models.train.network import DESIGNS, STRIDES, Network, cells

OPSET = 13
OPS_ALLOWED = frozenset(
    [
        "Conv",
        "Relu",
        "Concat",
        "Resize",
        "MaxPool",
        "Reshape",
        "Slice",
        "Split",
        "Exp",
        "Mul",
        "Add",
        "Sub",
        "Sigmoid",
        "Constant",
        "Identity",
        "Flatten",
    ]
)


class Delivered(nn.Module):
    """The fused network and the arithmetic from raw answers to pixels and scores, for one picture size."""

    centre: Tensor
    stride: Tensor
    half_stride: Tensor

    def __init__(self, network: Network, width: int, height: int) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu().float().eval().fuse()
        grid = cells(width, height)
        self.register_buffer("centre", grid[None, :2])
        self.register_buffer("stride", grid[None, 2:])
        self.register_buffer("half_stride", grid[None, 2:] / 2)

    def forward(self, pictures: Tensor) -> Tensor:
        """Turn (1, 3, H, W) RGB 0..1 into (1, 4 + classes, cells)."""
        answer = self.network(pictures)
        reach = torch.exp(answer[:, :4])
        before, after = reach[:, :2], reach[:, 2:]
        centre = self.centre + (after - before) * self.half_stride
        size = (after + before) * self.stride
        return torch.cat([centre, size, torch.sigmoid(answer[:, 4:])], 1)


def export(network: Network, path: Path, width: int = 416, height: int = 416, *, fixed: bool = False) -> Path:
    """Write `network` as ONNX (opset 13, any shape unless `fixed`, names in the metadata); returns `path`."""
    delivered = Delivered(network, width, height)
    with warnings.catch_warnings():
        # The exporter that follows the code traces Shape and Gather into static graphs and needs onnxscript.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            delivered,
            (torch.zeros(1, 3, height, width),),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["output0"],
        )
    model = onnx.load(str(path))
    unknown = {node.op_type for node in model.graph.node} - OPS_ALLOWED
    if unknown:
        raise ValueError(f"{path}: operators that not every NPU compiler knows: {', '.join(sorted(unknown))}")
    names = dict(enumerate(CLASSES))
    notes = {"names": str(names), "task": "detect", "stride": str(max(STRIDES)), "imgsz": f"[{height}, {width}]"}
    onnx.helper.set_model_props(model, {**notes, "design": network.design.name, "license": "Apache-2.0"})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model if fixed else shapes.free(model), str(path))
    return path


def load(checkpoint: Path) -> Network:
    """Load the averaged (EMA) weights of a checkpoint, or the plain ones of a file without them."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    network = Network(DESIGNS[state["design"]])
    network.load_state_dict(state["ema"]["network"])
    return network


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and export; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.export", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="last.pt or best.pt of a run")
    parser.add_argument("--out", type=Path, required=True, help="the .onnx to write")
    parser.add_argument("--size", type=int, nargs=2, default=(416, 416), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--fixed", action="store_true", help="for this size alone, as some compilers need it")
    options = parser.parse_args(arguments)
    export(load(options.checkpoint), options.out, *options.size, fixed=options.fixed)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
