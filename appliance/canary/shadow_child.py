"""Runs in a sandbox: one network, held loaded, that examines frames of live video beside the network in force.

A crash, a hang or a leak affects only this child. It reads pixels from one file in memory and answers with detections.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from appliance.base.clock import SystemClock, process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError
from appliance.base.machine import peak_mb
from appliance.base.process_memory import hold_little, trim_heaps
from appliance.canary.candidate_comparison import found_objects, light_of
from appliance.detect import detector as detectors
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector

SCORE_MIN = 0.1  # what is weaker says nothing
MEASURED_MIN = 8  # inferences by which the cost is measured, after one that makes all buffers
_NETWORK: list[ObjectDetector] = []


def load_network(values: dict[str, Any]) -> dict[str, Any]:
    """Load the network `detector` of `model_folder` and measure what it costs for `measure_s`.

    Return its name, the side of its input in pixels, by how many MiB this child grew at its peak and how many it holds,
    and the medians of CPU time and time of an inference, milliseconds. Raise ModelError, DetectorError.
    """
    os.nice(values["nice"])
    hold_little()
    if values["model_folder"]:
        os.environ["VEDETTE_MODELS"] = values["model_folder"]
    before = peak_mb()
    settings = DetectorConfig.model_validate(values["detector"]).model_copy(update={"score_min": SCORE_MIN})
    network = detector_loader.load(settings)
    width, height = network.preferred_size(1920, 1080)
    noise = np.random.default_rng(26).integers(0, 255, (height, width, 3), np.uint8)
    network.detect([noise])
    cpu, wall = _measured(network, noise, values["measure_s"])
    _NETWORK[:] = [network]
    grown = peak_mb() - before
    trim_heaps()
    return {
        "model": network.name, "side": max(width, height), "memory_mb": round(grown, 1), "cpu_ms": round(cpu, 2),
        "wall_ms": round(wall, 2),
    }  # fmt: skip


def examine(values: dict[str, Any]) -> dict[str, Any]:
    """Examine the pixels in `file`, of `width` and `height`; return light, CPU milliseconds and objects.

    Raise DetectorError.
    """
    network = _NETWORK[0]
    try:
        pixels = np.fromfile(values["file"], np.uint8).reshape(values["height"], values["width"], 3)
    except (OSError, ValueError) as error:
        raise DetectorError(f"the frame cannot be read: {error}") from None
    cpu = process_cpu_s()
    found = network.detect([cast("NDArray[np.uint8]", pixels)])[0]
    cpu_ms = (process_cpu_s() - cpu) * 1000
    objects = found_objects(found, network.labels, detectors.calibration_of(network))
    return {"light": light_of(pixels), "cpu_ms": round(cpu_ms, 2), "objects": list(map(asdict, objects))}


def _measured(network: ObjectDetector, frame: NDArray[np.uint8], seconds: float) -> tuple[float, float]:
    clock = SystemClock()
    cpu: list[float] = []
    wall: list[float] = []
    end = clock.monotonic() + seconds
    while len(cpu) < MEASURED_MIN or clock.monotonic() < end:
        began, used = clock.monotonic(), process_cpu_s()
        network.detect([frame])
        cpu.append((process_cpu_s() - used) * 1000)
        wall.append((clock.monotonic() - began) * 1000)
    return statistics.median(cpu), statistics.median(wall)
