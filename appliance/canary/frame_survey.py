"""Runs networks on sampled frames of a recording and compares their detections frame by frame.

Each network examines the frames in a child of its own, so a crash, a hang or a leak affects only the child; the
parent compares the answers. Only key frames are decoded, at least `every_s` apart.

CPU times are compared apart, in one child that runs both networks in turns for the same frames. A survey runs one
network minutes after the other. On a machine that got busier in between, the same network took 1.6 times the CPU time
(caches and cores are shared), so it would count as slower. Single frames are disturbed, too: at a load of 10, a network
with 1.9 times the CPU time exceeded 1.5 times in only two frames of three.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.base.clock import SystemClock, process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import SourceError
from appliance.base.machine import peak_mb
from appliance.canary.candidate_comparison import (
    KnownObject,
    PairedObject,
    SurveyedFrame,
    found_objects,
    light_of,
    paired_objects,
)
from appliance.detect import detector as detectors
from appliance.detect import detector_loader
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_bgr
from appliance.replay.footage import ClipReader

SCORE_MIN = 0.1  # what is weaker says nothing
FRAMES_MAX = 20_000  # 3 hours of 2 frames a second; the answers are some 10 MB
PROGRESS_EVERY = 20  # frames
PAIRS_MAX = 60  # frames; twice what an e-value needs for a share of three quarters
COST_ROUNDS = 3  # inferences of each network for a frame: the cheaper one counts, as what disturbs only ever adds
COST_FILES_MAX = 12  # from which they are taken, spread over the footage


@dataclass(frozen=True, slots=True)
class FootageFile:
    """A clip or a segment. begin_t: UTC seconds of its first frame."""

    path: str
    begin_t: float = 0.0


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """The frames that a network examines. every_s: the least time between two; keys_only: decode only key frames."""

    camera: str
    files: tuple[FootageFile, ...]
    detector: DetectorConfig
    model_folder: str = ""
    every_s: float = 1.0
    keys_only: bool = True


@dataclass(frozen=True, slots=True)
class Survey:
    """All detections of one network. memory_mb: the peak growth of the child. seconds: wall-clock time.

    cpu_s: CPU time of the child, loading and decoding included.
    """

    model: str
    camera: str
    frames: tuple[SurveyedFrame, ...]
    memory_mb: float
    seconds: float
    cpu_s: float
    unread: tuple[str, ...] = ()


SURVEY_TASK: TypeAdapter[SurveyTask] = TypeAdapter(SurveyTask)
SURVEY: TypeAdapter[Survey] = TypeAdapter(Survey)


def survey_frames(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yield the share that is done; return a Survey as plain values. values: a SurveyTask as plain values.

    Raise ModelError, SourceError, DetectorError.
    """
    task = SURVEY_TASK.validate_python(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    clock = SystemClock()
    before, began, cpu_began = peak_mb(), clock.monotonic(), process_cpu_s()
    settings = task.detector.model_copy(update={"score_min": SCORE_MIN})
    network = detector_loader.load(settings)
    lines = detectors.calibration_of(network)
    frames: list[SurveyedFrame] = []
    unread: list[str] = []
    for number, file in enumerate(task.files):
        try:
            for decoded in sampled(Path(file.path), task.every_s, keys_only=task.keys_only):
                if len(frames) >= FRAMES_MAX:
                    break
                pixels = upright_bgr(decoded.av_frame)
                cpu = process_cpu_s()
                found = network.detect([pixels])[0]
                cpu_ms = (process_cpu_s() - cpu) * 1000
                objects, t = found_objects(found, network.labels, lines), round(file.begin_t + decoded.t, 3)
                frames.append(SurveyedFrame(t, light_of(pixels), round(cpu_ms, 2), objects))
                if len(frames) % PROGRESS_EVERY == 0:
                    yield round(number / len(task.files), 4)
        except SourceError as error:
            unread.append(str(error))
    if not frames:
        raise SourceError(unread[0] if unread else f"there is no recording of {task.camera} to try a network on")
    survey = Survey(
        network.name, task.camera, tuple(frames), memory_mb=round(peak_mb() - before, 1),
        seconds=round(clock.monotonic() - began, 2), cpu_s=round(process_cpu_s() - cpu_began, 2), unread=tuple(unread),
    )  # fmt: skip
    return asdict(survey)


def sampled(path: Path, every_s: float, *, keys_only: bool) -> Iterator[DecodedFrame]:
    """Yield frames of a file at least `every_s` apart. Raise SourceError."""
    next_t = float("-inf")
    with ClipReader(str(path), path.name) as clip:
        if not keys_only:
            for frame in clip.frames():
                if frame.t >= next_t:
                    next_t = frame.t + every_s
                    yield frame
            return
        decoder, first_t = Decoder(path.name, clip.info), None
        try:
            for packet in clip.packets():
                if not packet.keyframe or packet.t < next_t:
                    continue
                next_t = packet.t + every_s
                decoder.restart(0)
                frame_of_key = decoder.decode_key_frame(packet)
                if frame_of_key is not None:
                    first_t = packet.t if first_t is None else first_t
                    yield DecodedFrame(0, packet.t - first_t, frame_of_key.av_frame)
        finally:
            decoder.close()


def paired(old: Survey, new: Survey, known: Sequence[KnownObject] = ()) -> Iterator[PairedObject]:
    """Yield the objects of each frame that both examined."""
    others = {frame.t: frame for frame in new.frames}
    for frame in old.frames:
        other = others.get(frame.t)
        if other is not None:
            yield from paired_objects(old.camera, frame, other, known)


def cpu_pairs(old: Survey, new: Survey) -> Iterator[tuple[float, float]]:
    """Yield the CPU milliseconds of both networks for each frame that both examined."""
    others: Mapping[float, SurveyedFrame] = {frame.t: frame for frame in new.frames}
    for frame in old.frames:
        if frame.t in others:
            yield frame.cpu_ms, others[frame.t].cpu_ms


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
    first, second = (detector_loader.load(each.model_copy(update={"score_min": SCORE_MIN})) for each in task.networks)
    pairs: list[tuple[float, float]] = []
    files = task.files[:: -(-len(task.files) // COST_FILES_MAX)]
    for number, file in enumerate(files):
        yield round(number / len(files), 4)
        try:
            for decoded in sampled(Path(file.path), task.every_s, keys_only=task.keys_only):
                pixels = upright_bgr(decoded.av_frame)
                turns = (first, second) if len(pairs) % 2 else (second, first)
                rounds = [{network: _cpu_ms(network, pixels) for network in turns} for _ in range(COST_ROUNDS)]
                first_ms, second_ms = (min(spent[network] for spent in rounds) for network in (first, second))
                pairs.append((first_ms, second_ms))
                if len(pairs) > PAIRS_MAX:
                    return pairs[1:]
        except SourceError:
            continue  # the survey tells of it
    if len(pairs) < 2:
        raise SourceError("there are too few frames to measure what a network costs")
    return pairs[1:]  # the first inference of each pays for memory and caches


def _cpu_ms(network: Any, pixels: Any) -> float:
    began = process_cpu_s()
    network.detect([pixels])
    return round((process_cpu_s() - began) * 1000, 2)
