"""The usual way, without waste: decode every frame, a frame-difference gate, detect while something moves, track.

    echo '{"cameras": {"yard": "rtsp://…"}, "detector": {…}, "fps": 5}' | python -m benchmarks.ingest.process_tree \
        benchmarks.ingest.decode_everything

One thread a camera and nothing between its steps: the gate takes the brightness as it was decoded, five times a second;
the frame is scaled straight to the network's size, only when it is detected on. The detector is Vedette's own (the same
network, session and arithmetic), one for all cameras; the tracker is the cheapest that follows: greedy by overlap.
Prints JSON lines, one per inference, with the thread's CPU seconds from the scaling on.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.media.frames import FrameConverter
from appliance.types import Detections, iou

OPTIONS = {"rtsp_transport": "tcp", "allowed_media_types": "video", "analyzeduration": "0", "probesize": "32"}
QUIET_AFTER_S = 2.0
CHANGE_MIN = 12
PIXELS_MIN = 12
FOLLOW = 0.1
BEGIN, CONTINUE, OVERLAP_MIN, LOST_S = 0.5, 0.2, 0.3, 1.0
_LOCK = threading.Lock()


class DifferenceGate:
    """A small grey image against the running mean of earlier ones."""

    def __init__(self) -> None:
        self._mean: NDArray[np.float32] | None = None

    def moves(self, grey: NDArray[np.uint8]) -> bool:
        """grey: uint8 (90, 160)."""
        if self._mean is None:
            self._mean = grey.astype(np.float32)
            return True
        change = cv2.absdiff(grey, cv2.convertScaleAbs(self._mean))
        cv2.accumulateWeighted(grey, self._mean, FOLLOW)
        return cv2.countNonZero(cv2.threshold(change, CHANGE_MIN, 1, cv2.THRESH_BINARY)[1]) >= PIXELS_MIN


@dataclass(slots=True)
class _Track:
    label: int
    box: tuple[float, float, float, float]
    seen_s: float


@dataclass(slots=True)
class GreedyTracker:
    """Each track takes the box of its class that overlaps it most; a box of high score that is left begins one."""

    tracks: dict[int, _Track] = field(default_factory=dict)
    begun: int = 0

    def update(self, found: Detections, t: float) -> list[tuple[int, int, tuple[float, float, float, float]]]:
        """(track, class, box) of the tracks matched in this frame."""
        self.tracks = {n: track for n, track in self.tracks.items() if t - track.seen_s <= LOST_S}
        free, matched = dict(self.tracks), []
        for row, score in enumerate(found.scores.tolist()):
            if score < CONTINUE:
                continue
            x1, y1, x2, y2 = found.boxes[row].tolist()
            label, box = int(found.class_ids[row]), (x1, y1, x2, y2)
            near = {n: iou(track.box, box) for n, track in free.items() if track.label == label}
            best = max(near, key=near.__getitem__, default=None)
            if best is not None and near[best] >= OVERLAP_MIN:
                del free[best]
            elif score >= BEGIN:
                self.begun += 1
                best = self.begun
            else:
                continue
            self.tracks[best] = _Track(label, box, t)
            matched.append((best, label, box))
        return matched


class Camera:
    """One camera's thread: its stream, its gate, its tracks."""

    def __init__(self, name: str, url: str, shared_detector: ObjectDetector, lock: threading.Lock, fps: float) -> None:
        self._name, self._url, self._detector, self._detector_lock, self._every_s = (
            name,
            url,
            shared_detector,
            lock,
            1 / fps,
        )
        self._gate, self._tracker, self._pictures = DifferenceGate(), GreedyTracker(), FrameConverter()
        self._spent_s = 0.0

    def run(self) -> None:
        moved_t, next_t = float("-inf"), float("-inf")
        for n, t, frame in self._frames():
            due = t >= next_t - 0.002
            if due:
                next_t = t + self._every_s if next_t == float("-inf") else max(next_t + self._every_s, t)
                if self._gate.moves(self._pictures.small_luma(frame)):
                    moved_t = t
            if due and t - moved_t <= QUIET_AFTER_S:
                self._look(n, t, frame)
            elif n % 15 == 0:
                _print_line({"camera": self._name, "decoded": n + 1})

    def _frames(self) -> Iterator[tuple[int, float, av.VideoFrame]]:
        with av.open(self._url, options=OPTIONS, timeout=(5, 5)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            for n, frame in enumerate(container.decode(stream)):
                yield n, frame.time or 0.0, frame

    def _look(self, n: int, t: float, frame: av.VideoFrame) -> None:
        began = time.thread_time()
        picture = self._pictures.bgr(frame, self._detector.preferred_size(frame.width, frame.height))
        with self._detector_lock:
            found = self._detector.detect([picture])[0]
        tracked = self._tracker.update(found, t)
        self._spent_s += time.thread_time() - began
        boxes = [[self._detector.labels[label], *(round(side, 4) for side in box)] for _, label, box in tracked]
        _print_line({"camera": self._name, "n": n, "boxes": boxes, "detector_s": self._spent_s, "decoded": n + 1})


def _print_line(line: dict[str, Any]) -> None:
    with _LOCK:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> None:
    av.logging.set_level(None)
    plan = json.loads(sys.stdin.readline())
    shared_detector, lock = detector_loader.load(DetectorConfig.model_validate(plan["detector"])), threading.Lock()
    for name, url in plan["cameras"].items():
        camera = Camera(name, url, shared_detector, lock, plan["fps"])
        threading.Thread(target=camera.run, name=f"camera-{name}", daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
