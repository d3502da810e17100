"""The ways that are compared: how each is started, and what it says, brought to one form."""

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

from appliance import wire
from appliance.detect import model_files
from appliance.types import CameraMeter, FrameBoxes, IngestHealth
from benchmarks.ingest.truth import Box

ROOT = Path(__file__).parents[2]
STOP_S_MAX = 10.0
STDERR = 2
NAMED = (sys.executable, "-m", "benchmarks.ingest.named")


@dataclass(frozen=True, slots=True)
class Heard:
    """A look as it was told. Either `frame` (counted from the first) or `t` (UTC of the frame) says of which."""

    camera: str
    told_t: float
    boxes: tuple[tuple[str, Box], ...]
    frame: int | None = None
    t: float | None = None


@dataclass(frozen=True, slots=True)
class Eye:
    """What a camera is to a contender: the stream it may detect on and, where there are two, the main one."""

    url: str
    sub_url: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all contenders. latency: '' leaves it to the appliance."""

    eyes: Mapping[str, Eye]
    detector: Mapping[str, Any]
    fps: float
    storage: Path
    record: bool
    latency: str = ""


@dataclass(slots=True)
class Ledger:
    """What a running contender has said so far. Owner of its writing: the reading thread.

    packets: of all its streams; what only counts decoded pictures has decoded every packet. live_age_ms: as it says
    itself, once a second, the 95th percentile of how old pictures were when its trackers heard of them, without those
    that were decoded after the fact.
    """

    looks: list[Heard] = field(default_factory=list)
    packets: dict[str, int] = field(default_factory=dict)
    decoded: dict[str, int] = field(default_factory=dict)
    detector_s: dict[str, float] = field(default_factory=dict)
    dropped: int = 0
    warning: str = ""
    live_age_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Running:
    """A started contender. detector_threads: whose CPU time is the detector's; none: it says so itself."""

    child: subprocess.Popen[bytes]
    ledger: Ledger
    detector_threads: tuple[str, ...]


Way = Callable[[Plan], "Contender"]


@dataclass(frozen=True, slots=True)
class Contender:
    """command: what to start; plan_line: what it is told on standard input; take: reads one line it says."""

    command: tuple[str, ...]
    plan_line: bytes
    take: Callable[[Ledger, bytes, float], None]
    detector_threads: tuple[str, ...] = ()
    on_fd: bool = False


def vedette_at(latency: str) -> Way:
    """`vedette` with all cameras at that `detect.latency`."""
    return lambda plan: vedette(replace(plan, latency=latency))


def vedette(plan: Plan) -> Contender:
    """`python -m appliance.ingest` as the supervisor starts it."""
    detect: dict[str, Any] = {"fps": plan.fps, **({"latency": plan.latency} if plan.latency else {})}
    cameras = {
        name: {
            "url": eye.url, "record": plan.record, "detect": detect,
            **({"detect_url": eye.sub_url} if eye.sub_url else {}),
        }
        for name, eye in plan.eyes.items()
    }  # fmt: skip
    site = {"storage": {"dir": str(plan.storage)}, "detector": dict(plan.detector), "cameras": cameras}
    return Contender((*NAMED, "appliance.ingest"), _line(site), _take_message, ("looks",), on_fd=True)


def everything(plan: Plan) -> Contender:
    """The honest floor of the usual way."""
    return Contender((*NAMED, "benchmarks.ingest.everything"), _line(_streams(plan)), _take_line)


def ultralytics(python: str) -> Way:
    """`YOLO.track` as its users run it, with the Python that has it."""

    def way(plan: Plan) -> Contender:
        network = model_files.find_model(str(plan.detector["model"]))
        told = {
            **_streams(plan),
            "model_path": str(network.path),
            "size": _side(network.path),
            "dir": str(plan.storage),
        }
        return Contender((python, str(Path(__file__).with_name("ultra.py"))), _line(told), _take_line)

    return way


@contextmanager
def running(contender: Contender) -> Iterator[Running]:
    """Started, and ended on leaving."""
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
    ledger = Ledger()
    reader = threading.Thread(target=_read, args=(reading, contender.take, ledger), name="reader", daemon=True)
    reader.start()
    try:
        assert child.stdin is not None
        child.stdin.write(contender.plan_line)
        child.stdin.flush()
        yield Running(child, ledger, contender.detector_threads)
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


def _read(fd: int, take: Callable[[Ledger, bytes, float], None], ledger: Ledger) -> None:
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            take(ledger, line, time.time())


def _take_message(ledger: Ledger, line: bytes, now: float) -> None:
    message = wire.decode_ingest(line)
    if isinstance(message, FrameBoxes) and message.looked:
        boxes = tuple((each.label, each.box) for each in message.objects)
        ledger.looks.append(Heard(message.camera, now, boxes, t=message.t))
    elif isinstance(message, CameraMeter):
        ledger.decoded[message.camera] = ledger.decoded.get(message.camera, 0) + message.decoded
        ledger.packets[message.camera] = ledger.packets.get(message.camera, 0) + message.packets
        ledger.dropped += message.unexamined
    elif isinstance(message, IngestHealth):
        ledger.warning = message.warning or ledger.warning
        if message.age_p95_ms:
            ledger.live_age_ms.append(message.age_p95_ms)


def _take_line(ledger: Ledger, line: bytes, now: float) -> None:
    """What everything.py and ultra.py print."""
    said = json.loads(line)
    camera = said["camera"]
    if "decoded" in said:
        ledger.decoded[camera] = said["decoded"]
        ledger.packets[camera] = said.get("packets", said["decoded"])
    if "detector_s" in said:
        ledger.detector_s[camera] = said["detector_s"]
    if "boxes" in said:
        boxes = tuple((label, (x1, y1, x2, y2)) for label, x1, y1, x2, y2 in said["boxes"])
        ledger.looks.append(Heard(camera, now, boxes, frame=said.get("n"), t=said.get("t")))


def _streams(plan: Plan) -> dict[str, Any]:
    cameras = {name: eye.sub_url or eye.url for name, eye in plan.eyes.items()}
    return {"cameras": cameras, "detector": dict(plan.detector), "fps": plan.fps}


def _side(path: Path) -> int:
    """The longer side of the network's input; where that is free, the one it was made for, as its file says."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    said = json.loads(session.get_modelmeta().custom_metadata_map.get("imgsz", "[640]"))
    fixed = [side for side in session.get_inputs()[0].shape[2:] if isinstance(side, int)]
    return max(fixed or said)


def _line(plan: dict[str, Any]) -> bytes:
    return json.dumps(plan).encode() + b"\n"
