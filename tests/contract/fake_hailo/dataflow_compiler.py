"""A stand-in for the command `hailo` of Hailo's Dataflow Compiler 3.x: its commands, options and files, no arithmetic.

It refuses what the real one refuses: a name that is no identifier, a model script with unknown commands, a calibration
set of another shape or with fewer rows than the script asks for, a step that was left out. As the real parser does
behind a detection head, it asks whether to add a post-process, and adds what we do not want unless the answer is no.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx

from tests.support import hailo_files

ARCHITECTURES = {"hailo8": 1, "hailo8r": 2, "hailo8l": 3}
SCRIPT_COMMANDS = {"normalization", "model_optimization_config", "quantization_param"}


def parse(options: argparse.Namespace) -> None:
    model = onnx.load(options.model)
    name = Path(options.model).stem
    assert name.isidentifier(), f"{name} is no name of a network"
    shape = [side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim]
    _, channels, height, width = shape
    answer = input("Parsing recommends a NMS post-process. Add it? (y/n) ")
    har = {"name": name, "input": [height, width, channels], "nms": answer != "n", "state": "parsed"}
    Path(options.har_path).write_text(json.dumps(har))


def optimize(options: argparse.Namespace) -> None:
    har = json.loads(Path(options.har).read_text())
    assert har["state"] == "parsed"
    script = Path(options.model_script).read_text()
    commands = [re.sub(r"^\w+ = ", "", line).partition("(")[0] for line in script.splitlines()]
    assert set(commands) <= SCRIPT_COMMANDS, commands
    frames = np.load(options.calib_set_path, mmap_mode="r")
    assert list(frames.shape[1:]) == har["input"], f"calibration is of {frames.shape}"
    wanted = re.search(r"calibset_size=(\d+)", script)
    assert wanted is None or len(frames) >= int(wanted[1]), "the calibration set is too small"
    Path(options.output_har_path).write_text(json.dumps({**har, "state": "optimized"}))


def compile_hef(options: argparse.Namespace) -> None:
    har = json.loads(Path(options.har).read_text())
    assert har["state"] == "optimized", "it is not quantised: run hailo optimize"
    target = Path(options.output_dir) / f"{har['name']}.hef"
    hailo_files.write(target, {"nms": har["nms"]}, architecture=ARCHITECTURES[options.hw_arch], names=None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hailo")
    steps = parser.add_subparsers(required=True)
    parsing = steps.add_parser("parser").add_subparsers(required=True).add_parser("onnx")
    parsing.add_argument("model")
    parsing.add_argument("--har-path", required=True)
    parsing.set_defaults(step=parse)
    optimizing = steps.add_parser("optimize")
    optimizing.add_argument("har")
    for option in ("--calib-set-path", "--model-script", "--output-har-path"):
        optimizing.add_argument(option, required=True)
    optimizing.set_defaults(step=optimize)
    compiling = steps.add_parser("compiler")
    compiling.add_argument("har")
    compiling.add_argument("--output-dir", required=True)
    compiling.set_defaults(step=compile_hef)
    for each in (parsing, optimizing, compiling):
        each.add_argument("--hw-arch", choices=sorted(ARCHITECTURES), required=True)
    options = parser.parse_args()
    options.step(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
