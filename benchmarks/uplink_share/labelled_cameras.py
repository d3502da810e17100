"""The cameras with their footage, zones and rules, and the true objects in each frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from appliance.demo.looping_clip import LoopingClip, as_camera_clip
from appliance.scenario import ground_truth as true_boxes
from appliance.scenario import scenario_loader
from appliance.types import TrackedObject
from benchmarks.ingest.footage import FPS, FootageSpec, make
from benchmarks.ingest.recall_score import Truth

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "fixtures" / "scenarios"
VIEWS = ("yard", "gate")
VISIBLE_MIN = 0.3
IDS_A_PASS = 1_000_000
LABELS = {"person": "person", "vehicle": "car"}

Frames = Mapping[int, tuple[TrackedObject, ...]]


@dataclass(frozen=True, slots=True)
class LabelledCamera:
    """One camera. section: zones, lines and rules as in a site file; frames: the objects in each frame of one loop.

    once: the truth holds for one loop only, since objects in view at its end are cut off.
    """

    camera: str
    film: Path
    fps: float
    size: tuple[int, int]
    section: Mapping[str, Any]
    length: int
    frames: Frames = field(repr=False)
    once: bool = False

    def at(self, frame: int) -> tuple[TrackedObject, ...]:
        """Return the objects in a frame, counted from the camera's first; in a later loop they have other ids."""
        turn, place = divmod(frame, self.length)
        return tuple(
            TrackedObject(track=each.track + turn * IDS_A_PASS, label=each.label, score=each.score, box=each.box)
            for each in self.frames.get(place, ())
        )


def of_scene(scene: str, footage: Path, lines: int = 720, cameras: int = 2) -> tuple[LabelledCamera, ...]:
    """Return the rendered views in turn, under the rules of their scenarios: `quiet`, `mixed` or `busy`."""
    found = []
    for k in range(cameras):
        view = VIEWS[k % len(VIEWS)]
        path, truth = make(FootageSpec(view, scene, lines), footage)
        clip = LoopingClip(path)
        clip.close()
        section = _sections(SCENARIOS / f"{view}.scenario.yaml")[view]
        found.append(LabelledCamera(f"{view}{k}", path, FPS, clip.size, section, truth.frames, _by_frame(truth)))
    return tuple(found)


def of_scenario(file: Path, folder: Path) -> tuple[LabelledCamera, ...]:
    """Return a scenario file's footage with true boxes, once; none where its clip is absent. Raise ConfigError."""
    made = scenario_loader.load_scenario(file)
    settings = made.scenario.truth
    if made.absent or made.truth is None or settings is None:
        return ()
    (part,) = made.parts
    path = as_camera_clip(part.clip, folder, print)
    clip = LoopingClip(path)
    clip.close()
    seen = true_boxes.read_truth(made.truth, settings, clip.size)
    frames = {
        frame: tuple(
            TrackedObject(track=each.id, label=each.label, score=0.9, box=each.box)
            for each in true_boxes.counted_objects(seen, frame)
        )
        for frame in seen
    }
    fps = clip.fps or float(FPS)
    section = _sections(file)[part.camera]
    return (LabelledCamera(part.camera, path, fps, clip.size, section, max(seen) + 1, frames, once=True),)


def _sections(file: Path) -> Mapping[str, Any]:
    sections: Mapping[str, Any] = yaml.safe_load(file.read_text())["cameras"]
    return sections


def _by_frame(truth: Truth) -> Frames:
    found: dict[int, tuple[TrackedObject, ...]] = {}
    for track, visit in enumerate(truth.visits, 1):
        for frame, sight in visit.sights.items():
            if sight.visible >= VISIBLE_MIN:
                one = TrackedObject(track=track, label=LABELS[visit.label], score=0.9, box=sight.box)
                found[frame] = (*found.get(frame, ()), one)
    return found
