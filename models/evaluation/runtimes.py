"""Cost of a detection in each runtime here: python -m models.evaluation.runtimes vedette-nano yolox-nano.

The command takes names of models.toml and paths to .onnx files. It measures whole detections of a 16:9 frame on one
thread, what comes before and after the network included. Rounds alternate, so that other work of the machine falls on
all alike. The figure is the median CPU time of all threads and its share of ONNX Runtime's fp32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import numpy as np

from appliance.base.clock import process_cpu_s
from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import MissingDependency, VedetteError
from appliance.detect import detector
from appliance.detect.detector import ObjectDetector

WAYS = ({"backend": "onnx"}, {"backend": "openvino"}, {"backend": "openvino", "precision": "bf16"})
FRAME = (1280, 720)


def measure(model: str, rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of one detection, by the runtime's version.

    Ways that are not here are left out.
    """
    found: dict[str, tuple[ObjectDetector, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
    for way in WAYS:
        try:
            network = detector.load(DetectorConfig.model_validate({"model": model, **way}))
        except (VedetteError, MissingDependency) as error:
            if way == WAYS[0]:
                raise
            print(f"left out: {error}", file=sys.stderr)
            continue
        width, height = network.preferred_size(*FRAME)
        frame = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        found[" ".join(way.values())] = (network, frame)
    spent: dict[str, list[float]] = {name: [] for name in found}
    for done in range(rounds + 2):
        for name, (each, frame) in found.items():
            at = process_cpu_s()
            each.detect([frame])
            if done >= 2:
                spent[name].append((process_cpu_s() - at) * 1000)
    return {name: statistics.median(values) for name, values in spent.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.runtimes", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args(arguments)
    print("| network | runtime | CPU ms | of onnx |\n|---|---|---|---|")
    for model in options.models:
        try:
            rows = measure(model, options.rounds)
        except (VedetteError, MissingDependency) as error:
            print(error, file=sys.stderr)
            return 2
        for name, ms in rows.items():
            print(f"| {model} | {name} | {ms:.2f} | {ms / rows['onnx']:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
