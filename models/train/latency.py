"""Cost of designs on this CPU beside other networks, in one run: python -m models.train.latency --beside NANO.onnx.

Weights are random: the time of a convolutional network does not depend on them. `models.evaluation.cost` says how it is
measured, and measures finished files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models.evaluation.cost import measure
from models.train.export import Delivered, export
from models.train.network import DESIGNS, Network


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
