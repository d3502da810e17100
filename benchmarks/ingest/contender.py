"""The contenders: how each is started, and its output brought to one form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from appliance.base import json_lines
from appliance.detect import model_files
from appliance.types import Box, CameraMeter, FrameBoxes, IngestHealth

ROOT = Path(__file__).parents[2]
STOP_S_MAX = 10.0
STDERR = 2
NAMED = (sys.executable, "-m", "benchmarks.ingest.process_tree")


@dataclass(frozen=True, slots=True)
class DetectionReport:
    """Boxes as they were reported. Either `frame` (counted from the first) or `t` (UTC of the frame) says of which."""

    camera: str
    reported_t: float
    boxes: tuple[tuple[str, Box], ...]
    frame: int | None = None
    t: float | None = None


@dataclass(frozen=True, slots=True)
class CameraStreams:
    """The streams of a camera: the main one and, where there are two, the sub-stream to detect on."""

    url: str
    sub_url: str | None


@dataclass(frozen=True, slots=True)
class ContenderPlan:
    """The part of a run that is the same for all contenders.

    An empty `latency` leaves it to the appliance.
    """

    streams: Mapping[str, CameraStreams]
    detector: Mapping[str, Any]
    fps: float
    storage: Path
    record: bool
    latency: str = ""


@dataclass(slots=True)
class ContenderOutput:
    """The output of a running contender so far. Only the reading thread writes it.

    `packets` counts those of all its streams; a contender that only counts decoded frames has decoded every packet.
    `live_age_ms` is, as the contender reports once a second, the 95th percentile of the age of frames at its trackers,
    without frames decoded late.
    """

    looks: list[DetectionReport] = field(default_factory=list)
    packets: dict[str, int] = field(default_factory=dict)
    decoded: dict[str, int] = field(default_factory=dict)
    detector_s: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    warning: str = ""
    live_age_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Running:
    """A started contender. detector_threads: whose CPU time is the detector's; none: it prints that itself."""

    child: subprocess.Popen[bytes]
    output: ContenderOutput
    detector_threads: tuple[str, ...]


ContenderFactory = Callable[[ContenderPlan], "Contender"]


@dataclass(frozen=True, slots=True)
class Contender:
    """command: what to start; plan_line: its standard input; take: reads one line of its output."""

    command: tuple[str, ...]
    plan_line: bytes
    take: Callable[[ContenderOutput, bytes, float], None]
    detector_threads: tuple[str, ...] = ()
    on_fd: bool = False


def vedette_at(latency: str) -> ContenderFactory:
    """Return `vedette` with all cameras at that `detect.latency`."""
    return lambda plan: vedette(replace(plan, latency=latency))


def vedette_with(way: str) -> ContenderFactory:
    """Return `vedette` with the network run another way: `openvino-bf16`, `onnx-int8`."""
    backend, _, precision = way.partition("-")
    return lambda plan: vedette(
        replace(plan, detector={**plan.detector, "backend": backend, "precision": precision or "auto"})
    )


def vedette(plan: ContenderPlan) -> Contender:
    """`python -m appliance.ingest` as the supervisor starts it."""
    detect: dict[str, Any] = {"fps": plan.fps, **({"latency": plan.latency} if plan.latency else {})}
    cameras = {
        name: {
            "url": stream.url, "record": plan.record, "detect": detect,
            **({"detect_url": stream.sub_url} if stream.sub_url else {}),
        }
        for name, stream in plan.streams.items()
    }  # fmt: skip
    site = {"storage": {"dir": str(plan.storage)}, "detector": dict(plan.detector), "cameras": cameras}
    return Contender((*NAMED, "appliance.ingest"), _line(site), _take_message, ("looks",), on_fd=True)


def everything(plan: ContenderPlan) -> Contender:
    """Return the contender that decodes everything: the honest floor of the usual way."""
    return Contender((*NAMED, "benchmarks.ingest.decode_everything"), _line(_streams(plan)), _take_line)


def ultralytics(python: str) -> ContenderFactory:
    """Return `YOLO.track` as its users run it, with the Python that has it."""

    def way(plan: ContenderPlan) -> Contender:
        network = model_files.find_model(str(plan.detector["model"]))
        plan_fields = {
            **_streams(plan),
            "model_path": str(network.path),
            "size": _side(network.path),
            "dir": str(plan.storage),
        }
        return Contender(
            (python, str(Path(__file__).with_name("ultralytics_track.py"))), _line(plan_fields), _take_line
        )

    return way


@contextmanager
def running(contender: Contender) -> Iterator[Running]:
    """Start the contender, and end it on leaving."""
    reading, writing = os.pipe()
    command = [*contender.command, *(["--fd", str(writing)] if contender.on_fd else [])]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=STDERR if contender.on_fd else writing,
        pass_fds=(writing,) if contender.on_fd else (),
    )
    os.close(writing)
    output = ContenderOutput()
    reader = threading.Thread(target=_read, args=(reading, contender.take, output), name="reader", daemon=True)
    reader.start()
    try:
        assert child.stdin is not None
        child.stdin.write(contender.plan_line)
        child.stdin.flush()
        yield Running(child, output, contender.detector_threads)
    finally:
        _end(child)
        reader.join(STOP_S_MAX)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _read(fd: int, take: Callable[[ContenderOutput, bytes, float], None], output: ContenderOutput) -> None:
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            if line.strip():  # ingest gives empty ones while its network is loaded
                take(output, line, time.time())


def _take_message(output: ContenderOutput, line: bytes, now: float) -> None:
    message = json_lines.decode_ingest(line)
    if isinstance(message, FrameBoxes) and message.looked:
        boxes = tuple((each.label, each.box) for each in message.objects)
        output.looks.append(DetectionReport(message.camera, now, boxes, t=message.t))
    elif isinstance(message, CameraMeter):
        output.decoded[message.camera] = output.decoded.get(message.camera, 0) + message.detect.decoded
        output.packets[message.camera] = output.packets.get(message.camera, 0) + message.packets
        output.dropped += message.detect.unexamined
    elif isinstance(message, IngestHealth):
        output.warning = message.warning or output.warning
        if message.age_p95_ms:
            output.live_age_ms.append(message.age_p95_ms)


def _take_line(output: ContenderOutput, line: bytes, now: float) -> None:
    """Read a line that decode_everything.py or ultralytics_track.py prints."""
    message = json.loads(line)
    camera = message["camera"]
    if "decoded" in message:
        output.decoded[camera] = message["decoded"]
        output.packets[camera] = message.get("packets", message["decoded"])
    if "detector_s" in message:
        output.detector_s[camera] = message["detector_s"]
    if "boxes" in message:
        boxes = tuple((label, (x1, y1, x2, y2)) for label, x1, y1, x2, y2 in message["boxes"])
        output.looks.append(DetectionReport(camera, now, boxes, frame=message.get("n"), t=message.get("t")))


def _streams(plan: ContenderPlan) -> dict[str, Any]:
    cameras = {name: stream.sub_url or stream.url for name, stream in plan.streams.items()}
    return {"cameras": cameras, "detector": dict(plan.detector), "fps": plan.fps}


def _side(path: Path) -> int:
    """Return the longer side of the network's input.

    Where that is free, it is the one the network was made for, as its file says.
    """
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    message = json.loads(session.get_modelmeta().custom_metadata_map.get("imgsz", "[640]"))
    fixed = [side for side in session.get_inputs()[0].shape[2:] if isinstance(side, int)]
    return max(fixed or message)


def _line(plan: dict[str, Any]) -> bytes:
    return json.dumps(plan).encode() + b"\n"
