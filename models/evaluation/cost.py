"""Cost of networks on this CPU, side by side in one run: python -m models.evaluation.cost vedette-nano yolox-nano.

The command takes names of models.toml and paths to .onnx files. Rounds alternate between all networks, so that other
work of the machine falls on all alike. The figure is the median CPU time of one look of one thread, without what comes
before and after the network.

--runtimes measures whole detections of a 16:9 frame instead, in each runtime that is here, on one thread; what comes
before and after the network is included. The figure is the median CPU time of all threads and its share of ONNX
Runtime's fp32.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from appliance.base.clock import process_cpu_s
from appliance.base.command_exit import whole_number_between
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import MissingDependency, VedetteError
from appliance.detect import detector_loader, model_files
from appliance.detect.detector import ObjectDetector

WAYS = ({"backend": "onnx"}, {"backend": "openvino"}, {"backend": "openvino", "precision": "bf16"})
FRAME = (1280, 720)


def short_names(models: Sequence[str]) -> list[str]:
    """Return the stems of these names; where two are alike (`a/best.onnx`, `b/best.onnx`), the names as given."""
    stems = [Path(model).stem for model in models]
    return stems if len(set(stems)) == len(stems) else list(models)


def session(path: Path) -> ort.InferenceSession:
    """Open one session with one thread and no spinning, as the appliance does."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def shape(opened: ort.InferenceSession) -> tuple[int, int]:
    """Return the (width, height) of its picture input; where that is free, those of its metadata (`imgsz`)."""
    found = next(each.shape for each in opened.get_inputs() if len(each.shape) == 4)
    named = [int(side) for side in re.findall(r"\d+", opened.get_modelmeta().custom_metadata_map.get("imgsz", ""))]
    height, width = (side if isinstance(side, int) else (named or [416] * 2)[n] for n, side in enumerate(found[2:]))
    return width, height


def feed(opened: ort.InferenceSession, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return inputs for a picture of `size`, filled with noise."""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for each in opened.get_inputs():
        if len(each.shape) == 4:
            feeds[each.name] = rng.random((1, 3, size[1], size[0]), np.float32)
        elif len(each.shape) == 2:
            feeds[each.name] = np.array([size], np.int64)
    return feeds


def measure(paths: Mapping[str, Path], rounds: int, sizes: Sequence[tuple[int, int]] = ()) -> dict[str, float]:
    """Median CPU milliseconds of one run of each network in its own shape; those of free shape in each of `sizes`."""
    return {name: statistics.median(values) for name, values in _spent(paths, rounds, sizes).items()}


def relative(paths: Mapping[str, Path], rounds: int) -> dict[str, float]:
    """Return the cost of the first network as a share of that of each other one.

    The share is the median over rounds of the two figures of the same round: a change of clock or a neighbour on the
    core hit both alike.
    """
    (_, first), *others = _spent(paths, rounds).items()
    return {name: statistics.median(a / b for a, b in zip(first, values, strict=True)) for name, values in others}


def _spent(paths: Mapping[str, Path], rounds: int, sizes: Sequence[tuple[int, int]] = ()) -> dict[str, list[float]]:
    """CPU milliseconds of this thread, round by round: networks run in it, and others of the process do not count."""
    runs: dict[str, tuple[ort.InferenceSession, dict[str, np.ndarray]]] = {}
    for name, path in paths.items():
        opened = session(path)
        free = not isinstance(next(each for each in opened.get_inputs() if len(each.shape) == 4).shape[2], int)
        for size in sizes if free and sizes else [shape(opened)]:
            runs[f"{name} {size[0]}x{size[1]}" if free and sizes else name] = (opened, feed(opened, size))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 2):
        for name, (each, feeds) in runs.items():
            start = time.thread_time()
            each.run(None, feeds)
            if index >= 2:
                spent[name].append((time.thread_time() - start) * 1000)
    return spent


def measure_runtimes(model: str, rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of one detection, by the runtime's version.

    Ways that are not here are left out.
    """
    found: dict[str, tuple[ObjectDetector, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
    for way in WAYS:
        try:
            network = detector_loader.load(DetectorConfig.model_validate({"model": model, **way}))
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


def _compare_runtimes(models: Sequence[str], rounds: int) -> None:
    """Print a table of whole detections, by runtime. Raise VedetteError and MissingDependency."""
    print("| network | runtime | CPU ms | of onnx |\n|---|---|---|---|")
    for model in models:
        rows = measure_runtimes(model, rounds)
        for name, ms in rows.items():
            print(f"| {model} | {name} | {ms:.2f} | {ms / rows['onnx']:.2f} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.evaluation.cost", description=__doc__)
    parser.add_argument("model", nargs="+", help="a name of models.toml or an .onnx; the first is the measure")
    rounds = whole_number_between(1, 100_000, "count")
    parser.add_argument("--rounds", type=rounds, default=30, help="median of so many runs of each (default 30)")
    parser.add_argument("--runtimes", action="store_true", help="whole detections, in each runtime that is here")
    help_size = "measure networks of free shape in this one; repeatable; default: their own"
    parser.add_argument("--size", type=int, nargs=2, action="append", metavar=("WIDTH", "HEIGHT"), help=help_size)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.runtimes:
            _compare_runtimes(options.model, options.rounds)
            return 0
        found = [model_files.find_model(name).path for name in options.model]
        paths = dict(zip(short_names(options.model), found, strict=True))
    except (VedetteError, MissingDependency) as error:
        print(error, file=sys.stderr)
        return 2
    times = measure(paths, options.rounds, [(width, height) for width, height in options.size or ()])
    if options.json:
        print(json.dumps({"cpu_ms": times}))
        return 0
    first = times[next(iter(times))]
    print("| network | MB | CPU ms | of the first |\n|---|---|---|---|")
    for name, value in times.items():
        path = paths.get(name) or paths[name.rpartition(" ")[0]]  # without the size
        print(f"| {name} | {path.stat().st_size / 1e6:.2f} | {value:.1f} | {value / first:.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
