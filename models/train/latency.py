"""What designs cost on this CPU beside other networks, in one run: python -m models.train.latency --beside NANO.onnx.

Weights are random: the time of a convolutional network does not depend on them. Rounds alternate between all networks,
so that whatever else the machine does falls on all alike; the figure is the median CPU time of one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from models.train.export import Delivered, export
from models.train.network import DESIGNS, Network


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


def measure(paths: dict[str, Path], rounds: int) -> dict[str, float]:
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
    parser = argparse.ArgumentParser(prog="python -m models.train.latency", description=__doc__)
    parser.add_argument("--design", action="append", choices=sorted(DESIGNS), help="repeatable; default: all")
    parser.add_argument("--beside", type=Path, action="append", default=[], help=".onnx to measure in the same run")
    parser.add_argument("--size", type=int, nargs=2, default=(416, 416), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        paths = {path.stem: path for path in options.beside}
        sizes: dict[str, int] = {}
        for name in options.design or DESIGNS:
            network = Network(DESIGNS[name])
            paths[name] = export(network, Path(folder) / f"{name}.onnx", *options.size)
            sizes[name] = Delivered(network, *options.size).network.parameters_count()
        times = measure(paths, options.rounds)
    if options.json:
        print(json.dumps({"cpu_ms": times, "parameters": sizes}))
        return 0
    first = times[next(iter(times))]
    print("| network | parameters | CPU ms | of the first |\n|---|---|---|---|")
    for name, value in times.items():
        count = f"{sizes[name]:,}" if name in sizes else ""
        print(f"| {name} | {count} | {value:.1f} | {value / first:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
