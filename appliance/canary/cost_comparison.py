"""Measures the CPU time of two networks for the same frames in turns, so that other load affects both alike.

A survey runs one network minutes after the other. On a machine that got busier in between, the same network took 1.6
times the CPU time (caches and cores are shared), so it would count as slower. Single frames are disturbed, too: at a
load of 10, a network with 1.9 times the CPU time exceeded 1.5 times in only two frames of three.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import SourceError
from appliance.canary.frame_survey import SCORE_MIN, FootageFile, sampled
from appliance.detect import detector as detectors

FRAMES_MAX = 60  # twice what an e-value needs for a share of three quarters
ROUNDS = 2  # inferences of each network for a frame: the cheaper one counts, as what disturbs only ever adds
FILES_MAX = 12  # from which they are taken, spread over the footage


@dataclass(frozen=True, slots=True)
class CostTask:
    """Footage, and the networks in the order of the answer."""

    files: tuple[FootageFile, ...]
    networks: tuple[DetectorConfig, DetectorConfig]
    model_folder: str = ""
    every_s: float = 1.0
    keys_only: bool = True


COST_TASK: TypeAdapter[CostTask] = TypeAdapter(CostTask)
COST_PAIRS: TypeAdapter[list[tuple[float, float]]] = TypeAdapter(list[tuple[float, float]])


def compare_costs(values: dict[str, Any]) -> Generator[float, None, list[tuple[float, float]]]:
    """Yield the share that is done; return milliseconds of both for each frame. values: a CostTask as plain values.

    Raise ModelError, DetectorError: one does not load or answer; SourceError: there is no frame.
    """
    task = COST_TASK.validate_python(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    first, second = (detectors.load(each.model_copy(update={"score_min": SCORE_MIN})) for each in task.networks)
    pairs: list[tuple[float, float]] = []
    files = task.files[:: -(-len(task.files) // FILES_MAX)]
    for number, file in enumerate(files):
        yield round(number / len(files), 4)
        try:
            for decoded in sampled(Path(file.path), task.every_s, keys_only=task.keys_only):
                pixels = decoded.av_frame.to_ndarray(format="bgr24")
                turns = (first, second) if len(pairs) % 2 else (second, first)
                rounds = [{network: _cpu_ms(network, pixels) for network in turns} for _ in range(ROUNDS)]
                first_ms, second_ms = (min(spent[network] for spent in rounds) for network in (first, second))
                pairs.append((first_ms, second_ms))
                if len(pairs) > FRAMES_MAX:
                    return pairs[1:]
        except SourceError:
            continue  # the survey tells of it
    if len(pairs) < 2:
        raise SourceError("there are too few frames to measure what a network costs")
    return pairs[1:]  # the first inference of each pays for memory and caches


def _cpu_ms(network: Any, pixels: Any) -> float:
    began = time.process_time()
    network.detect([pixels])
    return round((time.process_time() - began) * 1000, 2)
