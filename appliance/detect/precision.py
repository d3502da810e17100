"""Chooses the precision in which a network runs on this machine: the fastest of those known to be as accurate."""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from appliance.clock import process_cpu_s
from appliance.detect import detector, model_files
from appliance.detect.detector import ObjectDetector
from appliance.detect.model_files import sha256_of
from appliance.detector_config import DetectorConfig, Precision
from appliance.errors import ModelError

FILE = "detector-precision.json"
FILE_BYTES_MAX = 64 * 1024
GAIN_MIN = 0.05  # a precision that is not at least this much faster than the file's own is not worth a change
ROUNDS_MAX, ROUNDS_MIN, SPENT_S_MAX = 15, 5, 1.5
TRIAL_SIZE = (1280, 720)

log = logging.getLogger(__name__)
CpuSeconds = Callable[[], float]


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """What was measured, and what follows. cpu_ms: CPU time of one inference on a 16:9 frame, the median, by precision;
    basis: what it was measured on; a choice for another basis is out of date.
    """

    precision: Precision
    cpu_ms: Mapping[Precision, float]
    basis: Mapping[str, str]

    @property
    def summary(self) -> str:
        """For people: `int8, the fastest measured here: int8 8.1 ms, fp32 11.3 ms of CPU a look`."""
        listed = ", ".join(f"{name} {ms:.1f} ms" for name, ms in sorted(self.cpu_ms.items(), key=lambda row: row[1]))
        return f"{self.precision}, by measurement on this CPU: {listed} a look"


def settle_precision(settings: DetectorConfig, folder: Path, spent: CpuSeconds = process_cpu_s) -> DetectorConfig:
    """`settings` with the precision that this machine runs fastest, where they leave it open.

    The first time it is measured, which takes a second or two of one core, and remembered in `folder`. What cannot be
    measured or remembered is a line in the log, never an error: the network then runs as its file is.
    """
    variants = candidate_precisions(settings)
    if len(variants) < 2:
        return settings
    known = remembered_choice(settings, folder)
    if known is None:
        try:
            known = measure_precisions(settings, variants, spent)
        except ModelError as error:
            log.warning("detector.precision: not measured, so it stays as the file is: %s", error)
            return settings
        _remember(known, folder)
    log.info("detector.precision: %s", known.summary)
    return settings.model_copy(update={"precision": known.precision})


def with_remembered_precision(settings: DetectorConfig, folder: Path) -> DetectorConfig:
    """`settings` with the precision that was remembered in this storage folder, if any; nothing is measured."""
    known = remembered_choice(settings, folder)
    return settings if known is None else settings.model_copy(update={"precision": known.precision})


def remembered_choice(settings: DetectorConfig, folder: Path) -> PrecisionChoice | None:
    """The choice kept in `folder`, if precision is left open and nothing that it was measured on has changed."""
    variants = candidate_precisions(settings)
    if len(variants) < 2:
        return None
    try:
        path = folder / FILE
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        row = json.loads(path.read_text(encoding="utf-8"))
        choice = PrecisionChoice(
            row["precision"], {name: float(ms) for name, ms in row["cpu_ms"].items()}, row["basis"]
        )
        fits = choice.precision in variants and choice.basis == basis(settings, variants)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ModelError):
        return None  # absent or damaged: it is measured again
    return choice if fits else None


def candidate_precisions(settings: DetectorConfig) -> tuple[Precision, ...]:
    """The precisions among which `auto` may choose, the file's own first. () where it is not left open."""
    if settings.precision != "auto" or settings.device != "cpu" or settings.model == model_files.HOG_MODEL:
        return ()
    try:
        return model_files.accurate_precisions(
            model_files.OWN_MODEL if settings.model == model_files.AUTO_MODEL else settings.model
        )
    except ModelError:
        return ()  # loading it reports what is wrong


def measure_precisions(
    settings: DetectorConfig, variants: Sequence[Precision], spent: CpuSeconds = process_cpu_s
) -> PrecisionChoice:
    """Runs the same frame through each, in turns, so that whatever else the machine does falls on all alike."""
    measured_on = basis(settings, variants)  # a file that is not what it should be ends it here
    detectors = {name: detector.load(settings.model_copy(update={"precision": name})) for name in variants}
    frame = _trial_frame(next(iter(detectors.values())))
    times: dict[Precision, list[float]] = {name: [] for name in variants}
    began = spent()
    for done in range(1 + ROUNDS_MAX):
        for name, each in detectors.items():
            at = spent()
            each.detect([frame])
            if done:  # the first inference of each pays for memory and caches
                times[name].append((spent() - at) * 1000)
        if done >= ROUNDS_MIN and spent() - began > SPENT_S_MAX:
            break
    cpu_ms: dict[Precision, float] = {name: round(statistics.median(each), 2) for name, each in times.items()}
    return PrecisionChoice(_fastest(cpu_ms), cpu_ms, measured_on)


def basis(settings: DetectorConfig, variants: Sequence[Precision]) -> dict[str, str]:
    """Everything that a measurement depends on."""
    from appliance.detect.onnx_detector import (
        RUNTIME,  # as in detector.py: a back end is loaded when there is one to use
    )

    model = model_files.OWN_MODEL if settings.model == model_files.AUTO_MODEL else settings.model
    files = {f"file.{name}": sha256_of(model_files.find_model(model, precision=name).path) for name in variants}
    return {
        "cpu": model_files.cpu_name(),
        "cores": str(os.cpu_count()),
        "runtime": RUNTIME,
        "threads": str(settings.threads),
        **files,
    }


def _fastest(cpu_ms: Mapping[Precision, float]) -> Precision:
    """The first, which is the file's own, unless another is clearly faster."""
    own = next(iter(cpu_ms))
    best = min(cpu_ms, key=lambda name: cpu_ms[name])
    return best if cpu_ms[best] <= cpu_ms[own] * (1 - GAIN_MIN) else own


def _trial_frame(network: ObjectDetector) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Noise, in the size that the network wants of a 16:9 frame."""
    width, height = network.preferred_size(*TRIAL_SIZE)
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def _remember(choice: PrecisionChoice, folder: Path) -> None:
    """Written beside and moved into place: a power cut leaves the old file or the new one."""
    path, fresh = folder / FILE, folder / f"{FILE}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(asdict(choice), indent=2, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        log.warning("detector.precision: %s cannot be written, so it is measured at every start: %s", path, error)
