"""Chooses what runs the network here, and in which precision: the fastest of what is known to be as accurate.

`runtime_options` says of each way why it was chosen or not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from appliance.base.child_processes import RUNTIME_CHOICE
from appliance.base.clock import SystemClock, process_cpu_s
from appliance.base.config_model import DetectorConfig, Device, Precision
from appliance.base.errors import MissingDependency, ModelError
from appliance.base.local_files import DiskWriteError, write_file
from appliance.bundle.manifest import sha256_of
from appliance.detect import detector_loader, model_files
from appliance.detect.accelerators import KINDS, accelerators
from appliance.detect.detector import ObjectDetector

if TYPE_CHECKING:
    import numpy as np

FILE = "detector-runtime.json"
FILE_BYTES_MAX = 64 * 1024  # a choice with all candidates has some kB
GAIN_MIN = 0.05  # what is not at least this much faster than the file's own way is not worth a change
# On a CPU a second library has to save this much: OpenVINO takes 136 MB more than ONNX Runtime (docs/detector.md),
# which one camera's five inferences a second, at 5 ms less each, do not repay.
LIBRARY_GAIN_MIN = 0.5
ROUNDS_MAX, ROUNDS_MIN, SPENT_S_MAX = 15, 5, 1.5  # a median of five ignores two disturbed rounds
TRIAL_SIZE = (1280, 720)  # what most cameras are, in shape
PACKAGES = {
    "onnx": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
}

log = logging.getLogger(__name__)
_CLOCK = SystemClock()
Seconds = Callable[[], float]
Measure = Callable[[DetectorConfig, Sequence["RuntimeCandidate"]], "RuntimeChoice"]
CHILD_S_MAX = 120.0  # a runtime that compiles for longer is not worth choosing
CHILD_TEXT_MAX = 300  # characters of what it said last
BUILD_S_MAX = 1800.0  # an engine of TensorRT is built on the first use, on a small GPU for many minutes


Measured = Literal["onnx", "openvino", "tensorrt"]
# Of each backend, where it runs, and in which precisions there.
PLACES: dict[Measured, dict[Device, tuple[Precision, ...]]] = {
    "onnx": {"cpu": ("fp32", "int8", "bf16", "fp16"), "cuda": ("fp32", "fp16")},
    "openvino": {"cpu": ("fp32", "int8", "bf16"), "gpu": ("fp32", "int8", "fp16"), "npu": ("int8", "fp16")},
    "tensorrt": {"cuda": ("fp32", "fp16")},  # integers it takes in a form that no bundle has
}


class RuntimeCandidate(NamedTuple):
    """One way to run the network."""

    backend: Measured
    precision: Precision
    device: Device = "cpu"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f"{self.device} "
        return f"{self.backend} {where}{self.precision}"

    def applied_to(self, settings: DetectorConfig) -> DetectorConfig:
        return settings.model_copy(update={"backend": self.backend, "precision": self.precision, "device": self.device})


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """A measurement of candidates, and what follows from it.

    cost_ms: one inference on a 16:9 frame, the median, by candidate: CPU time on a CPU, time on the clock on a device.
    refused: candidates that did not come up, and why. basis: what it was measured on; a choice for another basis is out
    of date.
    """

    backend: Measured
    precision: Precision
    device: Device
    cost_ms: Mapping[str, float]
    refused: Mapping[str, str]
    basis: Mapping[str, str]

    @property
    def chosen(self) -> RuntimeCandidate:
        return RuntimeCandidate(self.backend, self.precision, self.device)

    @property
    def summary(self) -> str:
        """For people: `onnx int8, by measurement here: onnx int8 5.5 ms, onnx fp32 9.2 ms an inference`."""
        listed = ", ".join(f"{name} {ms:.1f} ms" for name, ms in sorted(self.cost_ms.items(), key=lambda row: row[1]))
        return f"{self.chosen}, by measurement here: {listed} an inference"


def settle_runtime(settings: DetectorConfig, folder: Path, measure: Measure | None = None) -> DetectorConfig:
    """Return `settings` with the backend and precision that this machine runs fastest, where they leave them open.

    The first time it is measured, by `measure_in_child`, which takes some seconds of one core, and remembered in
    `folder`. A failure to measure or to remember is a line in the log, never an error: the network then runs as its
    file is.
    """
    candidates = candidates_for(settings)
    if len(candidates) < 2:
        return _only(candidates, settings)
    known = remembered_choice(settings, folder)
    if known is None:
        try:
            known = (measure or measure_in_child)(settings, candidates)
        except (ModelError, MissingDependency) as error:
            log.warning("detector.backend: not measured, so the network runs as its file is: %s", error)
            return settings
        _remember(known, folder)
    log.info("detector.backend: %s", known.summary)
    for name, reason in known.refused.items():
        log.warning("detector.backend: %s is left out: %s", name, reason)
    return known.chosen.applied_to(settings)


def with_remembered_runtime(settings: DetectorConfig, folder: Path) -> DetectorConfig:
    """Return `settings` with the choice remembered in this storage folder, if any; nothing is measured."""
    known = remembered_choice(settings, folder)
    return _only(candidates_for(settings), settings) if known is None else known.chosen.applied_to(settings)


def as_at_run_time(
    settings: DetectorConfig, folder: Path | None = None, measure: Measure | None = None
) -> DetectorConfig:
    """Return `settings` with the backend and precision that the appliance takes here: what is proven is what will run.

    That is the choice remembered in its storage folder, else a measurement here, which is not remembered. If it cannot
    be measured, that is a warning in the log, and the network runs as its file is.
    """
    candidates = candidates_for(settings)
    if len(candidates) < 2:
        return _only(candidates, settings)
    known = None if folder is None else remembered_choice(settings, folder)
    try:
        chosen = (known or (measure or _measured_once)(settings, candidates)).chosen
    except (ModelError, MissingDependency) as error:
        log.warning("detector.backend: not measured, so the network runs as its file is: %s", error)
        return settings
    return chosen.applied_to(settings)


def _measured_once(settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> RuntimeChoice:
    """Measure once in this process: a sweep loads the same network with many thresholds."""
    return _measurement(settings.model_copy(update={"score_min": 0.0}), tuple(candidates))


@functools.cache
def _measurement(settings: DetectorConfig, candidates: tuple[RuntimeCandidate, ...]) -> RuntimeChoice:
    return measure_in_child(settings, candidates)


def way_text(settings: DetectorConfig) -> str:
    """Return what runs the network, for people: `onnx int8`; '' where it is left to the file."""
    return "" if settings.precision == "auto" else f"{settings.backend} {settings.precision}"


def _only(candidates: Sequence[RuntimeCandidate], settings: DetectorConfig) -> DetectorConfig:
    """Return the settings of the one way to have the precision that was asked for; else as they are."""
    return candidates[0].applied_to(settings) if len(candidates) == 1 and settings.precision != "auto" else settings


def remembered_choice(settings: DetectorConfig, folder: Path) -> RuntimeChoice | None:
    """Return the choice kept in `folder`, if there is one to make and nothing that it was measured on has changed."""
    candidates = candidates_for(settings)
    if len(candidates) < 2:
        return None
    try:
        path = folder / FILE
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        row = json.loads(path.read_text(encoding="utf-8"))
        cost_ms = {name: float(ms) for name, ms in row["cost_ms"].items()}
        refused = {name: str(reason) for name, reason in row["refused"].items()}
        choice = RuntimeChoice(row["backend"], row["precision"], row["device"], cost_ms, refused, row["basis"])
        fits = choice.chosen in candidates and choice.basis == basis(settings, candidates)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ModelError):
        return None  # absent or damaged: it is measured again
    return choice if fits else None


def candidates_for(settings: DetectorConfig) -> tuple[RuntimeCandidate, ...]:
    """Return the ways among which `auto` may choose, the file's own first; () where nothing is left open."""
    if settings.backend in ("hog", "hailo") or settings.model == model_files.HOG_MODEL:
        return ()
    model = model_files.named_model(settings.model)
    here = {"cpu", *(each.kind for each in accelerators())}
    try:
        found = [each for each in _ways(model) if each.device in here and installed_version(each.backend)]
    except ModelError:
        return ()  # loading it reports what is wrong
    return tuple(
        each
        for each in found
        if settings.backend in ("auto", each.backend)
        and settings.device in ("auto", each.device)
        and settings.precision in ("auto", each.precision)
    )


def _ways(model: str) -> Iterator[RuntimeCandidate]:
    """Every backend on every device, in the precisions that are known to be as accurate. Raises ModelError."""
    for backend, places in PLACES.items():
        accurate = model_files.accurate_precisions(
            model, bf16=openvino_multiplies_bf16() if backend == "openvino" else None
        )
        for device, precisions in places.items():
            yield from (
                RuntimeCandidate(backend, each, device)
                for each in accurate
                if each in precisions and not (device == "cpu" and each == "int8" and saturates(backend))
            )


def saturates(backend: str) -> bool:
    """Return whether this backend's sums of 8-bit products saturate on this CPU; ONNX Runtime is told not to."""
    return backend == "openvino" and not model_files.cpu_sums_int8()


def installed_version(backend: str) -> str:
    """Return the version of the backend's package; '': it is not here. Nothing of it is imported."""
    return next((found for package in PACKAGES[backend] if (found := package_version(package))), "")


def package_version(name: str) -> str:
    """Return the version of an installed package; '': it is not installed.

    Its installer leaves a folder NAME-VERSION.dist-info beside it (PEP 427), or .egg-info. `importlib.metadata` tells
    the same, and loads what reads mails for it: 2 MB that ingest would hold for ever.
    """
    wanted = re.sub(r"[-_.]+", "_", name).lower()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):
                stem, kind = os.path.splitext(entry)
                found, _, version = stem.partition("-")
                if kind in (".dist-info", ".egg-info") and re.sub(r"[-_.]+", "_", found).lower() == wanted and version:
                    return version.partition("-py")[0]
    return ""


def openvino_multiplies_bf16(info: Path = model_files.CPU_INFO) -> bool:
    """As /proc/cpuinfo tells: OpenVINO itself would be 50 MB in a process that may never use it."""
    return model_files.cpu_has_bf16(info) or bool({"avx512_bf16", "amx_bf16"} & model_files.cpu_flags(info))


def measure_in_child(settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> RuntimeChoice:
    """`measure_candidates` in a process of its own: what a library takes in memory goes with it. Raises ModelError."""
    command = [sys.executable, "-m", RUNTIME_CHOICE]
    limit_s = BUILD_S_MAX if any(each.backend == "tensorrt" for each in candidates) else CHILD_S_MAX
    asked = json.dumps({"settings": settings.model_dump(mode="json"), "candidates": candidates})
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"{' '.join(command)} did not answer: {type(error).__name__}") from None
    try:
        row = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        why = f"it ended with {done.returncode}: {last[:CHILD_TEXT_MAX]}"
        raise ModelError(f"{' '.join(command)} did not answer: {why}") from None
    if "error" in row:
        raise ModelError(str(row["error"]))
    return RuntimeChoice(**row)


def measure_candidates(
    settings: DetectorConfig,
    candidates: Sequence[RuntimeCandidate],
    spent: Seconds = process_cpu_s,
    clock: Seconds = _CLOCK.monotonic,
) -> RuntimeChoice:
    """Run the same frame through each candidate, in turns, so that other work of the machine falls on all alike.

    Raise ModelError: the file's own way does not come up; for another that is a reason to leave it out.
    """
    measured_on = basis(settings, candidates)  # a file that is not what it should be ends it here
    detectors, refused = _load_all(settings, candidates)
    frame = trial_frame(next(iter(detectors.values())))
    times: dict[RuntimeCandidate, list[float]] = {each: [] for each in detectors}
    began = spent()
    for done in range(1 + ROUNDS_MAX):
        for each, network in detectors.items():
            meter = spent if each.device == "cpu" else clock
            at = meter()
            network.detect([frame])
            if done:  # the first inference of each pays for memory and caches
                times[each].append((meter() - at) * 1000)
        if done >= ROUNDS_MIN and spent() - began > SPENT_S_MAX:
            break
    cost_ms = {each: round(statistics.median(taken), 2) for each, taken in times.items()}
    best = _fastest(cost_ms)
    named = {str(each): ms for each, ms in cost_ms.items()}
    return RuntimeChoice(best.backend, best.precision, best.device, named, refused, measured_on)


def _load_all(
    settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]
) -> tuple[dict[RuntimeCandidate, ObjectDetector], dict[str, str]]:
    """Those that come up, and why the others do not. Raises ModelError."""
    strict = settings.model_copy(update={"fallback": "refuse"})
    detectors: dict[RuntimeCandidate, ObjectDetector] = {
        candidates[0]: detector_loader.load(candidates[0].applied_to(strict))
    }
    refused: dict[str, str] = {}
    for each in candidates[1:]:
        try:
            detectors[each] = detector_loader.load(each.applied_to(strict))
        except (ModelError, MissingDependency) as error:
            refused[str(each)] = str(error)
    return detectors, refused


def basis(settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> dict[str, str]:
    """Everything that a measurement depends on. Raises ModelError."""
    files: dict[str, str] = {}
    for each in candidates:
        found = detector_loader.locate(each.applied_to(settings))
        files[f"file.{each}"] = sha256_of(found.path) if found is not None else ""
    runtimes = {
        f"runtime.{name}": installed_version(name) for name in dict.fromkeys(each.backend for each in candidates)
    }
    return {
        "cpu": model_files.cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(settings.threads),
        "accelerators": ", ".join(each.kind for each in accelerators()),
        **runtimes,
        **files,
    }


def _fastest(cpu_ms: Mapping[RuntimeCandidate, float]) -> RuntimeCandidate:
    """Return the usual one, unless another is clearly faster and worth its library's memory."""
    usual = _usual(cpu_ms)
    worth = [each for each in cpu_ms if cpu_ms[each] <= cpu_ms[usual] * (1 - _gain_min(each))]
    return min(worth, key=lambda each: cpu_ms[each], default=usual)


def _usual(cpu_ms: Mapping[RuntimeCandidate, float]) -> RuntimeCandidate:
    """Return what others are compared with: the first, which is the file's own, or its library's clearly faster one."""
    own = next(iter(cpu_ms))
    alike = [each for each in cpu_ms if (each.backend, each.device) == (own.backend, own.device)]
    usual = min(alike, key=lambda each: cpu_ms[each])
    return usual if cpu_ms[usual] <= cpu_ms[own] * (1 - GAIN_MIN) else own


def _gain_min(each: RuntimeCandidate) -> float:
    return LIBRARY_GAIN_MIN if each.device == "cpu" and each.backend != "onnx" else GAIN_MIN


def trial_frame(
    network: ObjectDetector, size: tuple[int, int] = TRIAL_SIZE
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Noise, in the size that the network wants of a whole frame of `size`: what a detection is measured on."""
    width, height = network.preferred_size(*size)
    import numpy as np

    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def _remember(choice: RuntimeChoice, folder: Path) -> None:
    try:
        write_file(folder / FILE, json.dumps(asdict(choice), indent=2, sort_keys=True).encode() + b"\n")
    except DiskWriteError as error:
        log.warning("detector.backend: it is measured at every start, in %s: %s", folder, error)


@dataclass(frozen=True, slots=True)
class RuntimeOption:
    """A row of what this appliance has to run the network with, and what came of it. cost_ms: as in RuntimeChoice.

    state `not taken`: no slower than the chosen one, but without enough gain.
    """

    way: str
    state: Literal["chosen", "slower", "not taken", "unmeasured", "refused", "left out", "absent"]
    cost_ms: float | None = None
    reason: str = ""


def runtime_options(settings: DetectorConfig, known: RuntimeChoice | None) -> tuple[RuntimeOption, ...]:
    """Return the runtimes that `auto` found here, best first, and why; () if the site file leaves nothing open.

    known: what was measured; None: nothing yet.
    """
    candidates = candidates_for(settings)
    if not candidates or settings.backend != "auto":
        return ()
    rows = [_option(each, known, candidates) for each in candidates]
    rows.sort(key=lambda row: (row.state != "chosen", row.cost_ms is None, row.cost_ms or 0.0))
    return (*rows, *_left_out(settings, candidates), *_absent(settings))


def _option(
    each: RuntimeCandidate, known: RuntimeChoice | None, candidates: Sequence[RuntimeCandidate]
) -> RuntimeOption:
    if known is None:
        alone = len(candidates) == 1
        reason = "nothing else is as accurate here" if alone else "the first start measures it"
        return RuntimeOption(str(each), "chosen" if alone else "unmeasured", reason=reason)
    if str(each) in known.refused:
        return RuntimeOption(str(each), "refused", reason=known.refused[str(each)])
    ms, best = known.cost_ms.get(str(each)), known.cost_ms[str(known.chosen)]
    if each == known.chosen:
        quickest = best == min(known.cost_ms.values())
        why = (
            "the quickest of those that are as accurate"
            if quickest
            else "as accurate; what is quicker saves too little"
        )
        return RuntimeOption(str(each), "chosen", ms, why)
    if ms is None or ms > best:
        return RuntimeOption(str(each), "slower", ms)
    if ms == best:
        return RuntimeOption(str(each), "not taken", ms, f"no quicker than {known.chosen}")
    usual = _usual({way: known.cost_ms[str(way)] for way in candidates if str(way) in known.cost_ms})
    why = f"saves less than {_gain_min(each):.0%} of the time of {usual}"
    why += ", and takes more memory" if _gain_min(each) > GAIN_MIN else ""
    return RuntimeOption(str(each), "not taken", ms, why)


def _left_out(settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> Iterator[RuntimeOption]:
    """Yield the runtimes that are here and would run the network if the site file named them."""
    model = model_files.named_model(settings.model)
    here: dict[str, str] = {each.kind: each.node for each in accelerators()}
    accurate = frozenset(_ways(model))
    for backend, places in PLACES.items():
        for device in places if installed_version(backend) else ():
            for precision in places[device] if device == "cpu" or device in here else ():
                way = RuntimeCandidate(backend, precision, device)
                if way not in candidates and _is_to_be_had(model, way):
                    why = _why_left_out(settings, way, as_accurate=way in accurate)
                    at = f"device: {device}, " if device != "cpu" or settings.device not in ("auto", "cpu") else ""
                    asked = f"backend: {backend}, {at}precision: {precision}"
                    yield RuntimeOption(str(way), "left out", reason=f"{why}; detector {{{asked}}} takes it")
    if "hailo" in here:
        yield RuntimeOption("hailo", "left out", reason=f"{here['hailo']}: detector.backend: hailo takes it")


def _why_left_out(settings: DetectorConfig, way: RuntimeCandidate, *, as_accurate: bool) -> str:
    """Return all that keeps `auto` from taking it."""
    found = []
    if settings.device not in ("auto", way.device):
        found.append(f"detector.device is {settings.device}")
    if settings.precision not in ("auto", way.precision):
        found.append(f"detector.precision is {settings.precision}")
    if way.precision == "int8" and way.device == "cpu" and saturates(way.backend):
        found.append("its sums of 8-bit products saturate on a CPU without VNNI")
    elif not as_accurate:
        found.append("not known to be as accurate")
    return ", ".join(found)


def _is_to_be_had(model: str, way: RuntimeCandidate) -> bool:
    """Return whether the network's file comes in this precision, or the runtime makes it of any file."""
    if way.precision in ("bf16", "fp16") and way.backend != "onnx":
        return way.precision != "bf16" or openvino_multiplies_bf16()
    try:
        own = model_files.model_bundles()[model]
    except (KeyError, ModelError):
        return False  # a file of one's own: nothing is known of it in other precisions
    return way.precision == own.precision or (way.precision in own.variants and way.precision != "bf16")


def _absent(settings: DetectorConfig) -> Iterator[RuntimeOption]:
    """Yield the runtimes that cannot run here, and what they would take."""
    here = {each.kind: each for each in accelerators()}
    for backend, package in (("openvino", "pip install 'vedette[openvino]'"), ("tensorrt", "see docs/hardware.md")):
        if not installed_version(backend) and (backend != "tensorrt" or "cuda" in here):
            yield RuntimeOption(backend, "absent", reason=f"its package is not installed: {package}")
    for kind, name in KINDS.items():
        if kind not in here:
            yield RuntimeOption(name.partition(" ")[2], "absent", reason="none in this appliance")
        elif settings.device not in ("auto", kind) and kind != "hailo":
            yield RuntimeOption(kind, "left out", reason=f"detector.device is {settings.device}: auto would measure it")


def table_lines(options: Sequence[RuntimeOption]) -> list[str]:
    """`chosen      onnx fp32        10.3 ms  the quickest of those that are as accurate`, one row each."""
    width = max((len(each.way) for each in options), default=0)
    return [
        f"{each.state:<10}  {each.way:<{width}}  {'' if each.cost_ms is None else f'{each.cost_ms:.1f} ms':>8}  "
        f"{each.reason}".rstrip()
        for each in options
    ]


def main() -> None:
    """Serve as the child of `measure_in_child`: settings and candidates on stdin, the choice on stdout."""
    asked = json.load(sys.stdin)
    try:
        candidates = [RuntimeCandidate(*each) for each in asked["candidates"]]
        row = asdict(measure_candidates(DetectorConfig.model_validate(asked["settings"]), candidates))
    except (ModelError, MissingDependency) as error:
        row = {"error": str(error)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
