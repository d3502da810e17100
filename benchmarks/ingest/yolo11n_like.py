"""A network that finds what vedette-nano finds and costs what yolo11n does.

    python -m benchmarks.ingest.yolo11n_like OUT.onnx

yolo11n itself is AGPL-3.0 and its weights with it. What a pipeline costs depends on how long an inference takes and on
what it finds, so this one is vedette-nano for 320 x 320 alone, run twice: the second answer counts for nothing, but no
library can know that. OpenVINO in bfloat16 takes 0.6 of ONNX Runtime's time for it, as for yolo11n (10.7 of 17.8 ms).
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from appliance.detect import model_files
from models import shapes

SIDE = 320
TWIN = "twin/"


def twice(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that runs the network a second time, on a slightly darker frame.

    It adds next to nothing of the second answer.
    """
    model = copy.deepcopy(model)
    graph = model.graph
    image, answer = graph.input[0].name, graph.output[0].name
    kept = {each.name for each in graph.initializer}

    def renamed(name: str) -> str:
        return name if name in kept or not name else f"{TWIN}{name}"

    twins = []
    for node in graph.node:
        twin = copy.deepcopy(node)
        twin.name = f"{TWIN}{node.name}"
        twin.input[:] = [renamed(each) for each in node.input]
        twin.output[:] = [renamed(each) for each in node.output]
        twins.append(twin)
        node.output[:] = [f"{answer}.own" if each == answer else each for each in node.output]
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.float32), f"{TWIN}{name}")
        for name, value in (("darker", 0.999), ("nothing", 1e-12))
    )
    darker = helper.make_node("Mul", [image, f"{TWIN}darker"], [renamed(image)], name=f"{TWIN}frame")
    faded = helper.make_node("Mul", [renamed(answer), f"{TWIN}nothing"], [f"{TWIN}faded"], name=f"{TWIN}fade")
    total = helper.make_node("Add", [f"{answer}.own", f"{TWIN}faded"], [answer], name=f"{TWIN}sum")
    graph.node.extend([darker, *twins, faded, total])
    del graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest.yolo11n_like", description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args(arguments).out
    own = onnx.load(str(model_files.find_model(model_files.OWN_MODEL).path))
    onnx.save(twice(shapes.fix(own, SIDE, SIDE)), str(out))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
