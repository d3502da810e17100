"""All that can be said of a machine with an NVIDIA GPU, in at most nine minutes, from a bare checkout.

    python -m benchmarks.gpu                        # a table, and benchmarks/out/gpu.json
    python -m benchmarks.gpu --only engine latency --out mine.json
    python -m benchmarks.gpu --rehearse             # the same steps on stand-ins for NVIDIA's libraries, without a GPU

Each step is a process with its own time limit; one that fails or hangs says so, and the next begins. A step whose needs
are not on this machine says which, with their cure, and the others go on; what is measured is written after each step.
Exit code 0: every step passed that could be run; 1: some did not; 2: there is no GPU to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from appliance.base.clock import SystemClock
from appliance.base.errors import MissingDependency, VedetteError
from benchmarks import gpu_steps as steps

TESTS = Path(__file__).parents[1] / "tests"


class _Modules:
    """The part of pytest's monkeypatch that is used."""

    def setitem(self, modules: dict[str, Any], name: str, module: Any) -> None:
        modules[name] = module


def rehearse() -> None:
    """Put stand-ins for NVIDIA's libraries into this process. Raise MissingDependency: this is no checkout.

    They are the tests' own: cuda-bindings and TensorRT by their signatures, engines that compute by ONNX Runtime, and a
    decoder that FFmpeg's rule about contexts holds for: a primary context that exists is entered, never claimed.
    """
    if not (TESTS / "contract" / "fake_nvidia.py").exists():
        raise MissingDependency("--rehearse needs a checkout: its stand-ins are in tests/")
    sys.path[:0] = [str(TESTS.parent), str(TESTS / "contract")]
    import fake_nvidia

    from appliance.detect.accelerators import Accelerator
    from appliance.media import hardware_codec
    from tests.support.decode_devices import Device

    gpu = fake_nvidia.install(_Modules())
    device = Device(filters=True, has_context=lambda: gpu.streams > 0)
    # No option of the product, which knows nothing of rehearsals.
    hardware_codec.Libav = device.libav  # type: ignore[misc, assignment]
    steps.P99_MS_MAX = float("inf")  # of a GPU, which this is not
    steps.accelerators = lambda _=None: (Accelerator("cuda", "a stand-in"),)  # type: ignore[attr-defined, assignment]


OUT = Path(__file__).parent / "out" / "gpu.json"
WHOLE_S_MAX = 540.0
REHEARSAL_SHARE = 0.01  # of the measuring time: figures of stand-ins mean nothing
Step = Callable[[steps.GpuPlan], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """state: passed, failed (with why), over its limit, or lacking what the step needs. needs: in words."""

    step: str
    state: str
    seconds: float
    figures: Mapping[str, object]
    why: str = ""
    needs: str = ""


CUDA, TENSORRT = "driver, cuda-bindings", "driver, cuda-bindings, tensorrt 10.3 or later"
# What needs least comes first: a run that is cut short has measured it. Seconds: the limit of each.
STEPS: dict[str, tuple[Step, float, str]] = {
    "box": (steps.box, 20, "nothing"),
    "runtime": (steps.runtime, 30, CUDA),
    "kernel": (steps.kernel, 40, f"{CUDA}, nvidia-cuda-nvrtc"),
    "nvdec": (steps.nvdec, 50, "driver with libnvcuvid, av; and cuda-bindings for the order of contexts"),
    "engine": (steps.engine, 130, TENSORRT),
    "parity": (steps.parity, 50, f"{TENSORRT}, onnxruntime"),
    "latency": (steps.latency, 40, TENSORRT),
    "batches": (steps.batches, 80, f"{TENSORRT}, onnx"),
    "scheduler": (steps.scheduler, 60, f"{TENSORRT}, onnx"),
    "onnx-cuda": (steps.onnx_cuda, 40, "driver, onnxruntime-gpu; for its second provider tensorrt 10 as well"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vedette-nano", help="as detector.model (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="STEP")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--share", type=float, default=1.0, help="of the time that each figure is measured")
    parser.add_argument(
        "--rehearse", action="store_true", help="on stand-ins, to see that each step runs (in a checkout)"
    )
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        if options.rehearse:
            rehearse()
        return _child(options.step, steps.GpuPlan(options.model, options.folder, options.share))
    if options.rehearse:
        options.share = min(options.share, REHEARSAL_SHARE)
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder), options.out
        results = run_steps(
            options.only,
            lambda name: _command(name, options, folder),
            place,
            partial(write, out),
            patient=options.rehearse,
        )
    print(table(results))
    print(f"\nwritten to {options.out}")
    if any(each.step == "box" and each.state != "passed" for each in results):
        return 2
    return 0 if all(each.state in ("passed", "lacking") for each in results) else 1


def write(out: Path, results: Sequence[StepResult]) -> None:
    """Beside, and moved into place: whoever is ended meanwhile leaves what was measured before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new")
    fresh.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", encoding="utf-8")
    fresh.replace(out)


def run_steps(
    names: Sequence[str],
    command: Callable[[str], Sequence[str]],
    folder: Path,
    done: Callable[[Sequence[StepResult]], None] = lambda results: None,
    *,
    patient: bool = False,
) -> list[StepResult]:
    """Run one after the other, whatever becomes of each, but not after WHOLE_S_MAX.

    done: called after each. patient: each may take what is left, as a rehearsal on a busy machine does.
    """
    clock, results = SystemClock(), list[StepResult]()
    began = clock.monotonic()
    for name in names:
        left = WHOLE_S_MAX - (clock.monotonic() - began)
        if left <= 1:
            results.append(StepResult(name, "failed", 0.0, {}, f"no time was left of {WHOLE_S_MAX:g} s"))
            continue
        _, usual, needs = STEPS[name]
        limit = left if patient else min(usual, left)
        print(f"{name}: at most {limit:.0f} s; needs {needs} …", file=sys.stderr, flush=True)
        results.append(replace(_run(name, command(name), limit, folder, clock), needs=needs))
        done(results)
    return results


def table(results: Sequence[StepResult]) -> str:
    """For people: a line a step, and under it its figures or why there are none."""
    lines = []
    for each in results:
        lines.append(f"{each.step:10} {each.state:8} {each.seconds:6.1f} s  {each.why}".rstrip())
        lines += [f"    {name}: {_shown(value)}" for name, value in each.figures.items()]
    return "\n".join(lines)


def _run(name: str, command: Sequence[str], limit: float, folder: Path, clock: SystemClock) -> StepResult:
    at = clock.monotonic()
    environment = {**os.environ, "VEDETTE_ENGINES": str(folder / "engines")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return StepResult(name, "over", clock.monotonic() - at, {}, f"it was ended after {limit:g} s")
    seconds = round(clock.monotonic() - at, 1)
    try:
        row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return StepResult(name, "failed", seconds, {}, f"exit code {done.returncode}: {last}")
    return StepResult(name, row["state"], seconds, row["figures"], row["why"])


def _command(name: str, options: argparse.Namespace, folder: str) -> list[str]:
    return [
        sys.executable, "-m", "benchmarks.gpu", "--step", name, "--model", options.model, "--folder", folder,
        "--share", str(options.share), *(["--rehearse"] if options.rehearse else []),
    ]  # fmt: skip


def _child(name: str, plan: steps.GpuPlan) -> int:
    """Print {"state", "figures", "why"} as the last line. What nobody foresaw is a traceback for the parent."""
    state, why = "passed", ""
    try:
        figures = dict(STEPS[name][0](plan))
    except (VedetteError, steps.NotMet) as error:
        figures, why = dict(getattr(error, "figures", {})), str(error)
        state = "lacking" if isinstance(error, MissingDependency) else "failed"
    print(json.dumps({"state": state, "figures": figures, "why": why}))
    return 0


def _shown(value: object) -> str:
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    sys.exit(main())
