"""Turn a trained network into the file the appliance loads: python -m models.train.export --checkpoint RUN/best.pt.

The layout is YOLOv8's, [1, 4 + classes, cells] with centre and size in pixels and scores 0..1, which
`appliance.detect.yolo_detr_ssd_heads` tells by its shape. Batch norms and training-time branches are folded away.
Height and width are free (multiples of 32), unless --fixed; `--size` is the box that pictures are scaled into.

`transfer` is the way back: it starts a network from one of ours that is known as an ONNX file only, even if of another
design. The convolutions of an export, with their norms folded in, become convolutions with norms again: the norm's
statistics are measured on pictures, so that the network answers as it did and can be trained. Where the new design has
fewer channels in a place, those with the largest weights stay; where it has other convolutions, they start from random
weights.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from models import shapes
from models.train.dataset import CLASSES, IndexFault
from models.train.network import DESIGNS, STRIDES, ConvUnit, Network, cells

PREFIX = "network."
Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a transfer: names of the convolutions that were taken over, and of those that start anew."""

    kept: tuple[str, ...]
    fresh: tuple[str, ...]


def weights(path: Path) -> Weights:
    """Return the convolutions of one of our exported networks, by their names in `Network`. Raise IndexFault."""
    try:
        graph = shapes.load(path).graph
    except shapes.NotOurs as error:
        raise IndexFault(f"{path}: {error}") from None
    values = {each.name: each for each in graph.initializer}
    # The exporter writes equal biases only once and names the others after it.
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    found: Weights = {}
    for node in graph.node:
        if node.op_type == "Conv" and node.input[1].startswith(PREFIX):
            name = node.input[1].removeprefix(PREFIX).replace(".fused", "").removesuffix(".weight")
            for part, value in zip(("weight", "bias"), node.input[1:], strict=True):
                found[f"{name}.{part}"] = torch.from_numpy(numpy_helper.to_array(values[same.get(value, value)]).copy())
    if not found:
        raise IndexFault(f"{path}: not an export of models.train.export")
    return found


@torch.no_grad()
def transfer(network: Network, old: Weights, pictures: Tensor) -> Taken:
    """Put the weights of `old` into `network` wherever shapes agree or can be narrowed.

    Measure the norms on `pictures` (B, 3, H, W), RGB 0..1.
    """
    narrowed = _narrowed(old, network)
    kept, fresh = [], []
    for name, module in network.named_modules():
        if isinstance(module, ConvUnit):
            weight = narrowed.get(f"{name}.weight")
            if weight is not None and weight.shape == module.conv.weight.shape:
                module.conv.weight.copy_(weight)
                module.norm.bias.copy_(narrowed[f"{name}.bias"])
                kept.append(name)
            else:
                fresh.append(name)
    _answers(network, old)
    _measure(network, set(kept), pictures)
    return Taken(tuple(kept), tuple(fresh))


def _answers(network: Network, old: Weights) -> None:
    """Copy the last convolutions, which have no norm, where they read a tower of the same width."""
    for name, module in network.branches.named_modules():
        weight = old.get(f"branches.{name}.weight")
        if isinstance(module, nn.Conv2d) and weight is not None and weight.shape == module.weight.shape:
            assert module.bias is not None
            module.weight.copy_(weight)
            module.bias.copy_(old[f"branches.{name}.bias"])


def _measure(network: Network, kept: set[str], pictures: Tensor) -> None:
    """Set the norms of taken convolutions to pass on what came in, plus the folded bias.

    Each level's input is already right when its hook runs, as modules run in order.
    """
    hooks = []

    def gauge(module: nn.Module, given: tuple[Tensor, ...], *, taken: bool) -> None:
        assert isinstance(module, ConvUnit)
        seen = module.conv(given[0])
        mean, variance = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
        norm = module.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        if taken:
            norm.weight.copy_(torch.sqrt(variance + norm.eps))
            norm.bias.add_(mean)

    for name, module in network.named_modules():
        if isinstance(module, ConvUnit):
            taken = name in kept
            hooks.append(
                module.register_forward_pre_hook(lambda one, given, taken=taken: gauge(one, given, taken=taken))
            )
    network.eval()(pictures)
    for hook in hooks:
        hook.remove()
    network.train()


def _narrowed(old: Weights, network: Network) -> Weights:
    """Return `old` with the neck's width brought down to that of `network`; the same where it is no wider."""
    wide, narrow = len(old["neck.lateral.0.bias"]), network.design.neck
    if wide <= narrow or "neck.top.0.left.weight" not in old:
        return old
    found = copy.copy(old)
    ends = ("lateral.0", "lateral.1", "pool.mix", "top.0.mix", "top.1.mix", "bottom.0.mix", "bottom.1.mix")
    kept = {end: _largest(old[f"neck.{end}.weight"], narrow) for end in ends}
    downs = np.arange(narrow)  # of convolutions that start anew: any
    reads = {
        "top.0": (kept["lateral.1"], kept["pool.mix"]),
        "top.1": (kept["lateral.0"], kept["top.0.mix"]),
        "bottom.0": (kept["top.0.mix"], downs),
        "bottom.1": (kept["pool.mix"], downs),
    }
    for end in ("lateral.0", "lateral.1", "pool.mix"):
        _pick(found, f"neck.{end}", kept[end], None)
    for name, (one, other) in reads.items():
        both = np.concatenate([one, other + wide])
        halves = {half: _largest(old[f"neck.{name}.{half}.weight"], narrow // 2) for half in ("left", "chain.0")}
        # The chain reads `right`, so both keep the same channels; the mixing convolution reads left, right, chain.
        _pick(found, f"neck.{name}.left", halves["left"], both)
        _pick(found, f"neck.{name}.right", halves["chain.0"], both)
        _pick(found, f"neck.{name}.chain.0", halves["chain.0"], halves["chain.0"])
        offsets = (0, wide // 2, wide)
        inputs = [halves["left"], halves["chain.0"], halves["chain.0"]]
        mixed = np.concatenate([each + offset for each, offset in zip(inputs, offsets, strict=True)])
        _pick(found, f"neck.{name}.mix", kept[f"{name}.mix"], mixed)
    return found


def _largest(weight: Tensor, count: int) -> NDArray[np.int64]:
    """Return the outputs of a convolution that have the largest weights, in order."""
    size = weight.flatten(1).norm(dim=1).numpy()
    return np.sort(np.argsort(-size, kind="stable")[:count])


def _pick(found: Weights, name: str, outputs: Sequence[int] | NDArray[np.int64], inputs: object) -> None:
    weight = found[f"{name}.weight"][torch.as_tensor(np.asarray(outputs))]
    if inputs is not None:
        weight = weight[:, torch.as_tensor(np.asarray(inputs))]
    found[f"{name}.weight"] = weight
    found[f"{name}.bias"] = found[f"{name}.bias"][torch.as_tensor(np.asarray(outputs))]


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
    """Load the averaged (EMA) weights of a checkpoint. Raise IndexFault."""
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        network = Network(DESIGNS[state["design"]])
        network.load_state_dict(state["ema"]["network"])
    except (OSError, EOFError, pickle.UnpicklingError, RuntimeError, KeyError, TypeError) as error:
        raise IndexFault(f"{checkpoint}: not a checkpoint of models.train.run: {error!r}") from None
    return network


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and export; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.export", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="last.pt or best.pt of a run")
    parser.add_argument("--out", type=Path, required=True, help="the .onnx to write")
    parser.add_argument("--size", type=int, nargs=2, default=(416, 416), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--fixed", action="store_true", help="for this size alone, as some compilers need it")
    options = parser.parse_args(arguments)
    if wrong := next((side for side in options.size if side < 64 or side % max(STRIDES)), None):
        parser.error(f"--size {wrong}: a multiple of {max(STRIDES)}, at least 64")
    try:
        export(load(options.checkpoint), options.out, *options.size, fixed=options.fixed)
    except IndexFault as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
