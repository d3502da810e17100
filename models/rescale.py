"""Puts a network's scores on another scale: python -m models.rescale IN.onnx --line person=1.1,0.38 --out OUT.onnx.

A line is a slope and an offset in log-odds for a class: score' = sigmoid(slope * logit(score) + offset). It is folded
into the last convolutions of the classes, so that nothing is computed in addition, order and average precision of a
class stay as they are, and every threshold after it means what it did: those of rules, and those of the tracker, which
knows no calibration. For networks of `models.train.export`, whose scores of a class are one channel of `classes`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and rescale; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.rescale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", type=Path)
    parser.add_argument("--line", type=line_of, action="append", required=True, metavar="CLASS=SLOPE,OFFSET")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        onnx.save(rescale(onnx.load(str(options.network)), dict(options.line)), str(options.out))
    except ValueError as error:
        parser.error(f"{options.network}: {error}")
    print(f"{options.out}: {', '.join(f'{name} {slope:g} x {offset:+g}' for name, (slope, offset) in options.line)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
