"""`python -m benchmarks.detection_rate`: what fast things cost and gain by the rate of inferences.

Cars and cyclists of several paces and sizes cross made-up pictures at 15 frames a second, one after the other. The way
of a frame is that of the appliance: motion gate, frame selection, tracker, rules; only the detector is scripted, with
noise and misses. What must come: one crossing of the line and one `enter` for each of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.config import CameraConfig, DetectConfig
from appliance.media.decoder import DecodedFrame
from appliance.rules.engine import RulesEngine
from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, Event, StreamHeader
from benchmarks import tracking_scenes
from benchmarks.tracking_scenes import ASPECT, LABELS, SIZE, Actor, Scene

FPS = 15
LINE = ((0.55, 0.1), (0.55, 0.99))
ZONE = ((0.3, 0.3), (0.75, 0.3), (0.75, 0.99), (0.3, 0.99))
SCORE_MIN, MISSED_SHARE = 0.55, 0.05


@dataclass(frozen=True, slots=True)
class RateFigures:
    """expected, found: events; false: events beside them; inferences: calls of the detector; seconds: of footage."""

    expected: int = 0
    found: int = 0
    false: int = 0
    inferences: int = 0
    seconds: float = 0.0

    def __add__(self, other: RateFigures) -> RateFigures:
        return RateFigures(
            self.expected + other.expected,
            self.found + other.found,
            self.false + other.false,
            self.inferences + other.inferences,
            self.seconds + other.seconds,
        )


class ScriptedDetector:
    """Sees what is true, roughly. State: the time of the frame that it is asked about, and its chance."""

    name, warning, labels = "scripted:scene", "", LABELS

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._rng = np.random.default_rng(seed)
        self.t = 0.0
        self.calls = 0

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.calls += 1
        rows = []
        for actor in self._scene.actors:
            box = actor.box(self.t)
            if box is None or self._rng.random() < MISSED_SHARE or tracking_scenes.inside(box) < 0.4:
                continue
            rows.append((tracking_scenes.noisy(self._rng, box), self._rng.uniform(SCORE_MIN, 0.9), actor.label))
        return [
            Detections(
                np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4),
                np.array([score for _, score, _ in rows], np.float32),
                np.array([LABELS.index(label) for *_, label in rows], np.int32),
            )
        ]


def fast_crossers(seed: int, *, pace: float, height: float, label: str = "car", count: int = 4) -> Scene:
    """`count` that cross from the left, `pace` in widths of the frame a second, some seconds apart."""
    rng = np.random.default_rng(seed)
    actors, begin = [], 1.5
    width = 1.8 if label == "car" else 0.6
    for number in range(1, count + 1):
        aside, y = height * width / ASPECT, 0.6 + float(rng.uniform(0, 0.25))
        here = pace * float(rng.uniform(0.9, 1.1))
        times = (begin, begin + (1 + 2 * aside) / here)
        colours = [tuple(int(value) for value in rng.uniform((150, 100, 100), (230, 156, 156))) for _ in range(2)]
        upper, lower = ((each[0], each[1], each[2]) for each in colours)
        feet = ((-aside, y), (1 + aside, y))
        actors.append(Actor(number, label, times, feet, (height, height), width, upper, lower))
        begin = times[1] + float(rng.uniform(1.5, 3.5))
    ground = np.clip(rng.normal(90, 6, SIZE[::-1]), 0, 255).astype(np.uint8)
    return Scene(tuple(actors), (), (), ground)


def analyse(scene: Scene, detect: DetectConfig, seed: int = 0) -> RateFigures:
    """Analyse the scene as the appliance sees it."""
    label = scene.actors[0].label
    camera = CameraConfig.model_validate(
        {
            "url": "file:scene.mp4",
            "detect": detect.model_dump(),
            "zones": {"yard": ZONE},
            "lines": {"gate": LINE},
            "rules": [
                {"name": "in", "kind": "enter", "zone": "yard", "labels": [label], "score_min": 0.4},
                {"name": "over", "kind": "line", "line": "gate", "labels": [label], "score_min": 0.4},
            ],
        }
    )
    detector = ScriptedDetector(scene, seed)
    analysis = CameraAnalysis("gate", detector, Tracker, camera.detect)
    analysis.watch_lines(camera.rule_lines)
    rules = RulesEngine("gate", camera)
    rules.feed(StreamHeader(camera="gate", clip="scene.mp4", model="scripted", size=SIZE, run="1"))
    events: list[Event] = []
    seconds = scene.actors[-1].times[-1] + 1.0
    for index in range(round(seconds * FPS)):
        detector.t = index / FPS
        frame = DecodedFrame(index, detector.t, _picture(scene, detector.t))
        if analysis.begins_session(frame):
            analysis.start_session(frame)
        request = analysis.select(frame)
        if request is not None:
            found = detector.detect([analysis.detector_input(request)])[0]
            events += rules.feed(analysis.result(request, found))
    expected = {(actor.number, rule) for actor in scene.actors for rule in ("in", "over")}
    told = [(_who(scene, event.t, event.box), event.rule) for event in events]
    return RateFigures(
        len(expected), len(expected & set(told)), len(told) - len(expected & set(told)), detector.calls, seconds
    )


def _who(scene: Scene, t: float, box: Box) -> int:
    """Return the number of the actor nearest to the event's box at that time."""
    there = [(abs(each[0] - box[0]), actor.number) for actor in scene.actors if (each := actor.box(t)) is not None]
    return min(there, default=(0.0, 0))[1]


def _picture(scene: Scene, t: float) -> av.VideoFrame:
    y, u, v = scene.draw(t)
    planes = np.concatenate([y.ravel(), u[::2, ::2].ravel(), v[::2, ::2].ravel()]).reshape(SIZE[1] * 3 // 2, SIZE[0])
    return av.VideoFrame.from_ndarray(planes, format="yuv420p")


CASES = (
    ("car", 0.35, 0.16),
    ("car", 0.7, 0.16),
    ("car", 1.0, 0.22),
    ("car", 1.2, 0.3),
    ("person", 0.25, 0.2),
    ("person", 0.5, 0.24),
)
"""(label, pace, height): a slow car and three fast ones; a runner and a cyclist, who are persons to a network."""


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.detection_rate", description=__doc__)
    options.add_argument("--seeds", type=int, default=10, help="scenes of each kind (default 10)")
    seeds = options.parse_args().seeds
    usual = DetectConfig(fps_max=5)
    settings = {"5 a second": usual, "5 to 10": DetectConfig(fps_max=10), "10 a second": replace_fps(usual, 10)}
    for name, detect in settings.items():
        whole = RateFigures()
        for label, pace, height in CASES:
            total = RateFigures()
            for seed in range(seeds):
                total += analyse(fast_crossers(seed, pace=pace, height=height, label=label), detect, seed)
            print(f"{name:<12} {label:<7} {pace:4.2f} widths/s, height {height:4.2f}: {_line(total)}", flush=True)
            whole += total
        print(f"{name:<12} all: {_line(whole)}")


def replace_fps(detect: DetectConfig, fps: float) -> DetectConfig:
    """Return the same settings at another constant rate."""
    return detect.model_copy(update={"fps": fps, "fps_max": fps})


def _line(each: RateFigures) -> str:
    recall, rate = each.found / max(1, each.expected), each.inferences / max(1.0, each.seconds)
    return f"recall {recall:.3f} of {each.expected}, {each.false} false, {rate:.2f} inferences/s"


if __name__ == "__main__":
    main()
