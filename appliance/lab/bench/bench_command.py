"""`vedette bench`: what a network costs on this machine, in every way that the machine has to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.progress import track
from rich.table import Table

from appliance.console import text_console
from appliance.detect import model_files, runtime_choice
from appliance.detect.detector import with_device
from appliance.detector_config import DetectorConfig
from appliance.version import version

CHILD_S_MAX = 300.0
PRECISIONS = {"onnx": ("auto", "int8", "bf16"), "openvino": ("auto", "int8", "bf16"), "tensorrt": ("auto", "int8")}
DEVICES = {"onnx": ("cuda",), "openvino": ("gpu", "npu"), "tensorrt": ()}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """models: as `detector.model`; seconds: of each thing that is measured."""

    models: tuple[str, ...] = (model_files.OWN_MODEL,)
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
    """Measure and print. Exit code 0: something ran; 2: nothing did."""
    ways = [each for model in options.models for each in ways_to_run(model)]
    console = text_console()
    shown = ways if options.as_json else track(ways, "measuring", console=console, transient=True)
    rows = [measure_in_child(settings, options.seconds) for settings in shown]
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
    """Of each backend whose package is here: its precisions on the CPU, its other devices; and on a Hailo device."""
    if model == model_files.HOG_MODEL:
        yield DetectorConfig(model=model)
        return
    if model.endswith(".hef"):
        yield _settings(model, "hailo")
        return
    for backend, precisions in PRECISIONS.items():
        if not runtime_choice.installed_version(backend):
            continue
        yield from (_settings(model, backend, precision=each) for each in precisions)
        yield from (_settings(model, backend, device=each) for each in DEVICES[backend])
    # A compiled network runs nowhere else; of another it is said what is missing.
    yield _settings(model, "hailo")


def _settings(model: str, backend: str, **others: str) -> DetectorConfig:
    return DetectorConfig.model_validate({"model": model, "backend": backend, **others})


def way(settings: DetectorConfig) -> str:
    """`vedette-nano openvino cpu bf16`."""
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
    """See runtime_measurement."""
    cores = os.cpu_count() or 1
    threads = sorted({1, max(1, cores // 2), cores})
    asked = {"settings": settings.model_dump(mode="json"), "seconds": seconds, "threads": threads}
    command = [sys.executable, "-m", "appliance.lab.bench.runtime_measurement"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=CHILD_S_MAX, check=False
        )
        return BenchRow(way(settings), json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return BenchRow(way(settings), {"error": f"no answer within {CHILD_S_MAX:g} s"})
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return BenchRow(way(settings), {"error": f"it ended with exit code {done.returncode}: {last}"})


def machine() -> str:
    """`vedette 0.1.0, x86_64 AMD EPYC, 2 cores`."""
    return f"vedette {version()}, {model_files.cpu_name()}, {os.cpu_count()} cores"


def issue_line(rows: Sequence[BenchRow]) -> str:
    """One line that says it all, for people who report."""
    parts = [
        f"{row.figures['name']} on {row.figures['runtime']}: {row.figures['p50_ms']}/{row.figures['p99_ms']} ms, "
        f"{row.figures['cpu_ms']} CPU ms, {row.figures['memory_mb']} MB"
        for row in rows
    ]
    return f"{machine()}; p50/p99 of a detection: " + "; ".join(parts)


def _table(rows: Sequence[BenchRow]) -> Table:
    table = Table(title=machine(), caption="one whole 16:9 frame; rates: detections a second by calling threads")
    for name in ("network", "runs on", "p50 ms", "p99 ms", "CPU ms", "network", "rates", "MB", "J"):
        table.add_column(name, justify="left" if name in ("network", "runs on") else "right")
    for row in rows:
        figures = row.figures
        share, joules, rates = figures["network_share"], figures["joules"], figures["rates"]
        assert isinstance(rates, dict)
        table.add_row(
            str(figures["name"]), str(figures["runtime"]), str(figures["p50_ms"]), str(figures["p99_ms"]),
            str(figures["cpu_ms"]), f"{share:.0%}" if isinstance(share, float) else "?",
            ", ".join(f"{count}: {rate}" for count, rate in rates.items()), str(figures["memory_mb"]),
            str(joules) if joules is not None else "?",
        )  # fmt: skip
    return table
