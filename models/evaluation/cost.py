"""What networks cost on this CPU, side by side in one run: python -m models.evaluation.cost vedette-nano yolox-nano.

Takes names of models.toml and paths to .onnx files. Rounds alternate between all networks, so that whatever else the
machine does falls on all alike; the figure is the median CPU time of one look of one thread, without what comes before
and after the network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from appliance.detect import bundle
from appliance.errors import VedetteError


def session(path: Path) -> ort.InferenceSession:
    """One thread, no spinning, as the appliance opens it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feed(opened: ort.InferenceSession) -> dict[str, np.ndarray]:
    """Inputs of the network's own shapes, dynamic batches being one."""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for each in opened.get_inputs():
        shape = [side if isinstance(side, int) else 1 for side in each.shape]
        if len(shape) == 4:
            feeds[each.name] = rng.random(shape, np.float32)
        elif len(shape) == 2:
            feeds[each.name] = np.array([[416, 416]], np.int64)
    return feeds


def measure(paths: Mapping[str, Path], rounds: int) -> dict[str, float]:
    """Median CPU milliseconds of one run of each network."""
    opened = {name: session(path) for name, path in paths.items()}
    feeds = {name: feed(each) for name, each in opened.items()}
    spent: dict[str, list[float]] = {name: [] for name in paths}
    for index in range(rounds + 2):
        for name, each in opened.items():
            start = time.process_time()
            each.run(None, feeds[name])
            if index >= 2:
                spent[name].append((time.process_time() - start) * 1000)
    return {name: statistics.median(values) for name, values in spent.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.cost", description=__doc__)
    parser.add_argument("model", nargs="+", help="a name of models.toml or an .onnx; the first is the measure")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        paths = {Path(name).stem: bundle.find(name).path for name in options.model}
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    times = measure(paths, options.rounds)
    if options.json:
        print(json.dumps({"cpu_ms": times}))
        return 0
    first = times[next(iter(times))]
    print("| network | MB | CPU ms | of the first |\n|---|---|---|---|")
    for name, value in times.items():
        print(f"| {name} | {paths[name].stat().st_size / 1e6:.2f} | {value:.1f} | {value / first:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
