"""`python -m benchmarks.tracking`: our tracker beside well-kept libraries, on the same boxes.

    python -m benchmarks.tracking --save looks.npz            # detect once on PETS09-S2L1, keep what was found, compare
    python -m benchmarks.tracking --looks looks.npz --json figures.json

Libraries are optional and no part of Vedette: what is not installed is named and left out. For all of them:

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install -e . trackers norfair motmetrics trackeval
    /tmp/rivals/bin/python -m benchmarks.tracking --looks looks.npz

    python -m benchmarks.tracking --scenes 20                 # made-up scenes instead: who had which numbers

(supervision has a ByteTrack up to 0.27: a second environment.) CPU is that of following alone, per look: no decoding,
no detector. Ours is measured with pictures (what it does in the appliance; looking at them is counted) and without.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import numpy as np

from appliance.media.frames import FrameConverter
from appliance.scenario import ground_truth, metrics
from appliance.scenario.metrics import LabelledBoxes
from appliance.scenario.scenario_schema import TruthFile
from appliance.track.appearance import Planes
from appliance.track.tracker import Tracker
from benchmarks import tracking_libraries, tracking_scenes
from benchmarks.tracking_libraries import Answer, LibraryTracker
from benchmarks.tracking_scenes import ClipDetections, FrameDetections, Scene

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("VEDETTE_SHARED", ROOT / ".." / "shared")) / "data"
PETS = DATA / "footage" / "pets09_s2l1_vtest_768x576.mp4"
PETS_TRUTH = DATA / "groundtruth" / "pets09_s2l1" / "gt.txt"
LABEL = "person"
AHEAD = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One tracker's figures; cpu_ms: per look."""

    tracker: str
    settings: str
    hota: float
    idf1: float
    mota: float
    switches: int
    missed: int
    false: int
    tracks: int
    cpu_ms: float


def main() -> int:
    chosen = _arguments()
    if chosen.scenes:
        return _compare_on_scenes(chosen.scenes)
    if not chosen.clip.exists() or not chosen.truth.exists():
        print(f"no {chosen.clip} or no {chosen.truth}: nothing to compare on", file=sys.stderr)
        return 2
    clip_frames = (
        tracking_scenes.load_detections(chosen.looks)
        if chosen.looks
        else tracking_scenes.detect_clip(chosen.clip, chosen.model)
    )
    if chosen.save:
        tracking_scenes.save_detections(chosen.save, clip_frames)
    clip_frames = clip_frames.every(chosen.fps, chosen.phase)
    frames = ground_truth.read_truth(chosen.truth, TruthFile(mot=chosen.truth), clip_frames.size)
    right = [_labelled([(each.id, each.box) for each in frames.get(frame.frame, ())]) for frame in clip_frames.looks]
    rows, answers = [], {}
    rivals, absent = tracking_libraries.available(clip_frames.labels.index(LABEL), chosen.fps, clip_frames.size)
    for name, settings, make in [*_ours(chosen.clip, clip_frames), *rivals]:
        found, cpu_ms = _follow(make, clip_frames.looks)
        rows.append(_row(name, settings, found, right, cpu_ms))
        answers[name, settings] = found
        print(_line(rows[-1]), flush=True)
    for name in absent:
        print(f"not installed, left out: {name}")
    checks = tracking_libraries.check(answers[rows[0].tracker, rows[0].settings], right)
    print(*checks, sep="\n")
    if chosen.json:
        about = {"model": clip_frames.model, "clip": chosen.clip.name, "fps": chosen.fps, "phase": chosen.phase}
        text = {**about, "rows": [asdict(row) for row in rows], "absent": absent, "arithmetic": checks}
        chosen.json.write_text(json.dumps(text, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.tracking", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--looks", type=Path, metavar="FILE", help="use the detections kept in this file")
    options.add_argument("--save", type=Path, metavar="FILE", help="keep the detections here (.npz)")
    options.add_argument("--model", default="auto", help="detector, when nothing is kept yet (default auto)")
    options.add_argument("--clip", type=Path, default=PETS, help="footage (default PETS09-S2L1)")
    options.add_argument("--truth", type=Path, default=PETS_TRUTH, metavar="FILE", help="its true boxes, MOTChallenge")
    options.add_argument("--fps", type=float, default=5.0, help="looks a second (default 5)")
    options.add_argument("--scenes", type=int, default=0, metavar="N", help="made-up scenes of N seeds, no footage")
    options.add_argument("--phase", type=int, default=0, help="begin at this frame (default 0)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return options.parse_args()


def _compare_on_scenes(seeds: int) -> int:
    """Made-up scenes: our tracker, with pictures and without, and the libraries that are installed."""
    scenes: tuple[tuple[str, str, Callable[[int], Scene], int], ...] = (
        ("pavement", "person", tracking_scenes.busy_pavement, tracking_scenes.HELD_LOOKS),
        ("junction", "car", tracking_scenes.junction, 2),
        ("junction, alike", "car", lambda seed: tracking_scenes.junction(seed, alike=True), 2),
    )
    for title, label, make, held_looks in scenes:
        rivals, _ = tracking_libraries.available(tracking_scenes.LABELS.index(label), 5.0, tracking_scenes.SIZE)
        followers: list[tuple[str, Callable[[Scene], Sequence[Sequence[Answer]]]]] = [
            ("vedette", lambda scene: tracking_scenes.follow(Tracker(tracking_scenes.LABELS), scene, pictures=True)),
            (
                "vedette, boxes alone",
                lambda scene: tracking_scenes.follow(Tracker(tracking_scenes.LABELS), scene, pictures=False),
            ),
            *((f"{name}, {settings}", _library(make_library)) for name, settings, make_library in rivals),
        ]
        for name, answer in followers:
            total = tracking_scenes.IdentityFigures(0, 0, 0)
            for scene in map(make, range(seeds)):
                total += tracking_scenes.identity_figures(answer(scene), scene.truth, held_looks=held_looks)
            each = f"{total.actors} actors, {total.numbers_each:.3f} numbers each, {total.mixed} that two had"
            print(f"{title + ': ' + name:<58} {each}", flush=True)
    return 0


def _library(make: Callable[[], LibraryTracker]) -> Callable[[Scene], Sequence[Sequence[Answer]]]:
    def answers(scene: Scene) -> Sequence[Sequence[Answer]]:
        follower = make()
        return [follower.follow(each) for each in scene.looks]

    return answers


def _ours(clip: Path, clip_frames: ClipDetections) -> list[tuple[str, str, Callable[[], LibraryTracker]]]:
    return [
        ("vedette", "default", lambda: _Ours(clip_frames, clip)),
        ("vedette", "boxes alone", lambda: _Ours(clip_frames, None)),
    ]


class _Ours:
    """Our tracker; with a clip it is shown the pictures. State: the tracker, pictures decoded ahead, the time of that.

    Ahead, so that the decoder does not take the caches away from the tracker: the others are not treated so either.
    """

    def __init__(self, clip_frames: ClipDetections, clip: Path | None) -> None:
        self._tracker = Tracker(clip_frames.labels)
        self._due = {frame.frame for frame in clip_frames.looks}
        self._film = av.open(str(clip)) if clip else None
        self._frames = enumerate(self._film.decode(video=0)) if self._film else iter(())
        self._ahead: dict[int, Planes] = {}
        self.not_counted_s = 0.0

    def follow(self, frame: FrameDetections) -> list[Answer]:
        if self._film is not None and frame.frame not in self._ahead:
            began = time.thread_time()
            self._ahead = dict(itertools.islice(self._decoded(), AHEAD))
            self.not_counted_s += time.thread_time() - began
        found = self._tracker.update(frame.found, frame.t, self._ahead.get(frame.frame, ()))
        return [(each.track, each.box) for each in found if each.label == LABEL]

    def _decoded(self) -> Iterator[tuple[int, Planes]]:
        converter = FrameConverter()
        for index, frame in self._frames:
            if index in self._due:
                yield index, tuple(plane.copy() for plane in converter.planes(frame))


def _follow(
    make: Callable[[], LibraryTracker], clip_frames: Sequence[FrameDetections]
) -> tuple[list[LabelledBoxes], float]:
    follower = make()
    began = time.thread_time()
    answers = [follower.follow(frame) for frame in clip_frames]
    took_s = time.thread_time() - began - follower.not_counted_s
    return [_labelled(each) for each in answers], took_s * 1000 / len(clip_frames)


def _labelled(objects: Sequence[Answer]) -> LabelledBoxes:
    boxes = np.array([box for _, box in objects], float).reshape(-1, 4)
    return LabelledBoxes(np.clip(boxes, 0, 1), np.array([number for number, _ in objects], float))


def _row(name: str, settings: str, found: list[LabelledBoxes], right: list[LabelledBoxes], cpu_ms: float) -> Row:
    each = metrics.clear_mot(found, right)
    return Row(
        tracker=name,
        settings=settings,
        hota=round(metrics.hota_figures(found, right).hota, 4),
        idf1=round(each.idf1, 4),
        mota=round(each.mota, 4),
        switches=each.switches,
        missed=each.missed,
        false=each.false,
        tracks=each.tracks,
        cpu_ms=round(cpu_ms, 3),
    )


def _line(row: Row) -> str:
    quality = f"HOTA {row.hota:.3f}  IDF1 {row.idf1:.3f}  MOTA {row.mota:6.3f}  switches {row.switches:3}"
    return f"{row.tracker + ', ' + row.settings:<38} {quality}  tracks {row.tracks:3}  {row.cpu_ms:6.2f} ms a look"


if __name__ == "__main__":
    sys.exit(main())
