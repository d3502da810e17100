"""`vedette bench`: what a network costs on this machine, in every way that the machine has to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.progress import Progress
from rich.table import Table

from appliance import version
from appliance.base.child_processes import BENCH
from appliance.base.config_model import DetectorConfig
from appliance.base.console import CommandProgress, text_console
from appliance.detect import model_files, runtime_choice
from appliance.detect.accelerators import accelerators
from appliance.detect.detector_loader import locate, with_device

CHILD_S_MAX = 300.0  # RUNS_MIN inferences of a slow network on a slow board
BUSY_SHARE = 0.25  # of the cores, wanted by others over the last minute
PRECISIONS = {"onnx": ("auto", "int8", "bf16"), "openvino": ("auto", "int8", "bf16"), "tensorrt": ("auto", "int8")}
DEVICES = {"onnx": ("cuda",), "openvino": ("gpu", "npu"), "tensorrt": ()}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """models: as `detector.model`; none: our own; seconds: of each thing that is measured."""

    models: Sequence[str] = ()
    seconds: float = 2.0
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One way to run a network: what was measured, or why it does not run here."""

    way: str
    figures: dict[str, object]

    @property
    def refusal(self) -> str:
        return str(self.figures.get("error", ""))


def bench_command(options: BenchOptions) -> int:
    """Measure and print. Exit code 0: something ran; 2: nothing did. Raises ModelError: there is no such model."""
    models = options.models or (model_files.OWN_MODEL,)
    for model in models:  # before anything is measured, and once, not in every way
        locate(DetectorConfig(model=model))
    ways = [each for model in models for each in ways_to_run(model)]
    console = text_console()
    load = os.getloadavg()[0]
    if load > BUSY_SHARE * (os.cpu_count() or 1):
        sentence = f"this machine is busy (load average {load:.1f}), so it shows worse figures than it has"
        print(f"vedette: {sentence}", file=sys.stderr)
    with CommandProgress(*Progress.get_default_columns(), quiet=options.as_json) as bar:
        rows = [measure_in_child(each, options.seconds) for each in bar.track(ways, description="measuring")]
    ran = [row for row in rows if not row.refusal]
    if options.as_json:
        print(json.dumps({"machine": machine(), "rows": [{"way": row.way, **row.figures} for row in rows]}, indent=1))
        return 0 if ran else 2
    console.print(_table(ran))
    for row in rows:
        if row.refusal:
            print(f"not here: {row.way}: {row.refusal}")
    if ran:
        print(f"\nFor an issue:\n{issue_line(ran)}")
    return 0 if ran else 2


def ways_to_run(model: str) -> Iterator[DetectorConfig]:
    """Yield the settings of each backend whose package is installed: its precisions on the CPU, then its other devices.

    TensorRT is named wherever NVIDIA's driver is. A Hailo device comes last.
    """
    if model == model_files.HOG_MODEL:
        yield DetectorConfig(model=model)
        return
    if model.endswith(".hef"):
        yield _settings(model, "hailo")
        return
    has_nvidia = any(each.kind == "cuda" for each in accelerators())
    for backend, precisions in PRECISIONS.items():
        missing = not runtime_choice.installed_version(backend)
        if missing and not (backend == "tensorrt" and has_nvidia):  # its refusal says what to install
            continue
        yield from (_settings(model, backend, precision=each) for each in precisions)
        yield from (_settings(model, backend, device=each) for each in DEVICES[backend])
    # A compiled network runs nowhere else; of another it is said what is missing.
    yield _settings(model, "hailo")


def _settings(model: str, backend: str, **others: str) -> DetectorConfig:
    return DetectorConfig.model_validate({"model": model, "backend": backend, **others})


def way(settings: DetectorConfig) -> str:
    """Write `vedette-nano openvino cpu bf16`."""
    if settings.backend == "hailo":
        return f"{settings.model} hailo"
    return " ".join(
        (
            settings.model,
            settings.backend,
            with_device(settings).device,
            settings.precision.replace("auto", "as the file"),
        )
    )


def measure_in_child(settings: DetectorConfig, seconds: float) -> BenchRow:
    """Measure one way in a process of its own; see bench_measurement."""
    cores = os.cpu_count() or 1
    threads = sorted({1, max(1, cores // 2), cores})
    asked = {"settings": settings.model_dump(mode="json"), "seconds": seconds, "threads": threads}
    command = [sys.executable, "-m", BENCH]
    limit_s = runtime_choice.BUILD_S_MAX if settings.backend == "tensorrt" else CHILD_S_MAX
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=limit_s, check=False
        )
        return BenchRow(way(settings), json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return BenchRow(way(settings), {"error": f"no answer within {limit_s:g} s"})
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return BenchRow(way(settings), {"error": f"it ended with exit code {done.returncode}: {last}"})


def machine() -> str:
    """Write `vedette 0.1.0, x86_64 AMD EPYC, 2 cores`."""
    return f"vedette {version()}, {model_files.cpu_name()}, {os.cpu_count()} cores"


def issue_line(rows: Sequence[BenchRow]) -> str:
    """Return one line that says it all, for people who report."""
    parts = [
        f"{row.figures['name']} on {row.figures['runtime']}: {row.figures['p50_ms']}/{row.figures['p99_ms']} ms, "
        f"{row.figures['cpu_ms']} CPU ms, {_joules(row)} J, {row.figures['memory_mb']} MB, "
        f"{_by(row, 'camera_rates')}/s by cameras, {_efficiency(row)} end to end"
        for row in rows
    ]
    return f"{machine()}; p50/p99 of a detection: " + "; ".join(parts)


def _table(rows: Sequence[BenchRow]) -> Table:
    table = Table(
        title=machine(),
        caption="one whole 16:9 frame; rates: detections a second by calling threads, by frames in a run, by cameras; "
        "end to end: against the network alone, from scaled frames / from decoded 720p",
    )
    text, numbers = ("network", "runs on"), ("p50 ms", "p99 ms", "CPU ms", "network", "threads", "batch", "cameras")
    for name in text:
        table.add_column(name)
    for name in (*numbers, "end to end", "MB", "J"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = row.figures
        share = figures["network_share"]
        table.add_row(
            str(figures["name"]), str(figures["runtime"]), str(figures["p50_ms"]), str(figures["p99_ms"]),
            str(figures["cpu_ms"]), f"{share:.0%}" if isinstance(share, float) else "?", _by(row, "rates"),
            _by(row, "batch_rates"), _by(row, "camera_rates"), _efficiency(row), str(figures["memory_mb"]),
            _joules(row),
        )  # fmt: skip
    return table


def _by(row: BenchRow, name: str) -> str:
    """Write `1: 85.2, 4: 84.9`."""
    rates = row.figures[name]
    assert isinstance(rates, dict)
    return ", ".join(f"{count}: {rate}" for count, rate in rates.items())


def _efficiency(row: BenchRow) -> str:
    found = row.figures["efficiency"]
    return f"{found['scaled']:.0%} / {found['decoded']:.0%}" if isinstance(found, dict) else "?"


def _joules(row: BenchRow) -> str:
    return str(row.figures["joules"]) if row.figures["joules"] is not None else "?"
