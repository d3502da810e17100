"""New weights for exported networks, without training: python -m models.weights rescale|mean.

    python -m models.weights rescale IN.onnx --line person=1.1,0.38 --out OUT.onnx
    python -m models.weights mean OLD.onnx NEW.onnx --share 0.4 --out MEAN.onnx

Both are for networks of `models.train.export`.

`rescale` puts scores on another scale. A line is a slope and an offset in log-odds for a class:
score' = sigmoid(slope * logit(score) + offset). It is folded into the last convolutions of the classes, where the
scores of a class are one channel. So nothing is computed in addition, order and average precision of a class stay as
they are, and every threshold after it means what it did: those of rules, and those of the tracker, which knows no
calibration.

`mean` mixes two networks of one design, of which the new one was trained from the old one, or from one that the old one
was trained from. Their mean often keeps what the old one knew of pictures that the new one has not seen again (WiSE-FT,
arXiv:2109.01903). It takes no training and costs nothing when it runs.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models import shapes

CLASS_LAYER = re.compile(r"\.classes\.(weight|bias)$")
Lines = Mapping[str, tuple[float, float]]


def rescale(model: onnx.ModelProto, lines: Lines) -> onnx.ModelProto:
    """Return a copy whose classes in `lines` have their scores on the new scale. Raise ValueError."""
    notes = {each.key: each.value for each in model.metadata_props}
    names = list(dict(ast.literal_eval(notes.get("names", "{}"))).values())
    unknown = sorted(set(lines) - set(names))
    if unknown:
        raise ValueError(f"no class {', '.join(unknown)} in this network, which has {', '.join(names) or 'no names'}")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    layers = [each for each in changed.graph.initializer if CLASS_LAYER.search(each.name)]
    if not layers or any(each.dims[0] != len(names) for each in layers):
        raise ValueError("this is no network of models.train.export: its classes are not a layer of their own")
    for layer in layers:
        values = numpy_helper.to_array(layer).copy()
        for name, (slope, offset) in lines.items():
            values[names.index(name)] *= slope
            if layer.name.endswith("bias"):
                values[names.index(name)] += offset
        layer.CopyFrom(numpy_helper.from_array(values, layer.name))
    return changed


def line_of(text: str) -> tuple[str, tuple[float, float]]:
    """Read `person=1.1,0.38` as a class and its line. Raise argparse.ArgumentTypeError."""
    found = re.fullmatch(r"(\w+)=([0-9.]+),(-?[0-9.]+)", text)
    if not found or float(found[2]) <= 0:
        raise argparse.ArgumentTypeError(f"{text}: CLASS=SLOPE,OFFSET with a slope above 0, such as person=1.1,0.38")
    return found[1], (float(found[2]), float(found[3]))


def mean(old: onnx.ModelProto, new: onnx.ModelProto, share: float) -> onnx.ModelProto:
    """Return the old network with (1 - share) of its own weights and `share` of the new one's. Raise ValueError.

    Only float32 tensors of more than one value count as weights; sizes and indices stay the old one's.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"--share {share:g}: a share is between 0 and 1")
    others = {each.name: numpy_helper.to_array(each) for each in new.graph.initializer}
    made = onnx.ModelProto()
    made.CopyFrom(old)
    for each in made.graph.initializer:
        values = numpy_helper.to_array(each)
        if values.dtype != np.float32 or values.size < 2:
            continue
        other = others.get(each.name)
        if other is None or other.shape != values.shape:
            raise ValueError(f"{each.name} is not the same in both: they are not of one design")
        # What both have in common, constants of the cells' places too, stays as it is to the bit.
        mixed = np.where(values == other, values, values * (1 - share) + other * share).astype(np.float32)
        each.CopyFrom(numpy_helper.from_array(mixed, each.name))
    return made


def _rescale(options: argparse.Namespace) -> str:
    onnx.save(rescale(shapes.load(options.network), dict(options.line)), str(options.out))
    return ", ".join(f"{name} {slope:g} x {offset:+g}" for name, (slope, offset) in options.line)


def _mean(options: argparse.Namespace) -> str:
    onnx.save(mean(shapes.load(options.network), shapes.load(options.new), options.share), str(options.out))
    return f"{1 - options.share:g} of {options.network.name} and {options.share:g} of {options.new.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write the network; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="rescale|mean")
    scaled = commands.add_parser("rescale", help="put the scores of classes on another scale")
    scaled.add_argument("network", type=Path)
    scaled.add_argument("--line", type=line_of, action="append", required=True, metavar="CLASS=SLOPE,OFFSET")
    scaled.set_defaults(do=_rescale)
    mixed = commands.add_parser("mean", help="mix the weights of two networks")
    mixed.add_argument("network", type=Path, metavar="old", help="all but its weights is taken over")
    mixed.add_argument("new", type=Path)
    mixed.add_argument("--share", type=float, default=0.5, help="of the new one's weights (default 0.5)")
    mixed.set_defaults(do=_mean)
    for each in (scaled, mixed):
        each.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        done = options.do(options)
    except (ValueError, OSError) as error:
        print(f"{options.network}: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {done}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
