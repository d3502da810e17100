"""How often the recheck on the appliance is right, of true and of false alerts, and what it costs.

    .venv/bin/python -m benchmarks.second_look                       # rendered footage, and PETS where the data is
    .venv/bin/python -m benchmarks.second_look --live builtin:hog    # alerts of another detector, which errs more
    .venv/bin/python -m benchmarks.second_look --json out.json

Footage is analysed at 5 fps by detector and tracker as live; every 3 s of a person's track count as an alert. True: in
most frames its box meets a true person (IoU above 0.4). False: in none does it (0.2 at most). Others are left
out. Empty: the boxes of a true one, moved to an empty place; at most `moved` of them a clip. Each is rechecked by the
code that the appliance runs, from the file. CONTEXT, SHARE and SCORE_MIN were chosen on the rendered clips
(docs/recheck.md), nothing on PETS.

Brier: the mean square of confidence minus truth, with the prior probability beside it. CPU: of this process, decoding
included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import av
import cv2
import numpy as np

from appliance.base.box_arrays import iou_matrix
from appliance.base.clock import SystemClock, process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.media.frames import FrameConverter
from appliance.recheck.recheck_policy import judge_recheck, view_score
from appliance.recheck.service import CROPS_PER_RECHECK
from appliance.recheck.worker import RecheckWorker
from appliance.router.calibration import UNTRAINED
from appliance.router.track_stats import CameraTrackStats
from appliance.track.tracker import Tracker
from appliance.types import (
    Box,
    CropRequest,
    EdgeVerdict,
    FootageSpan,
    FrameBoxes,
    RecheckCommand,
    TrackedObject,
    TrackStability,
    is_same_place,
)
from benchmarks.tracking import PETS, PETS_TRUTH, ROOT

FIXTURES = ROOT / "fixtures"
LOOKS_A_SECOND, WINDOW = 5, 15
TRUE_MIN, FALSE_MAX = 0.4, 0.2
PERSON = 1
SEED = 7


@dataclass(frozen=True, slots=True)
class Clip:
    """truth: boxes of persons (all others too, in `things`) by frame."""

    name: str
    path: Path
    fps: float
    size: tuple[int, int]
    frames: int
    truth: Mapping[int, list[Box]]
    things: Mapping[int, list[Box]]


@dataclass(frozen=True, slots=True)
class SampledAlert:
    """A sample that counts as an alert: a few seconds of one track. kind: true, false or empty."""

    clip: Clip
    kind: str
    seen: TrackStability
    glimpses: tuple[CropRequest, ...]


def clips() -> Iterator[Clip]:
    paths = [*sorted((FIXTURES / "family").glob("*.mp4")), *sorted((FIXTURES / "clips").glob("*.mp4"))]
    for path in paths:
        yield _clip(path, path.with_suffix(".gt.txt"), rendered=True)
    if PETS.exists():
        yield _clip(PETS, PETS_TRUTH, rendered=False)


def _clip(path: Path, truth: Path, *, rendered: bool) -> Clip:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        size, fps, frames = (stream.width, stream.height), float(stream.average_rate or 10), stream.frames
    persons: dict[int, list[Box]] = {}
    things: dict[int, list[Box]] = {}
    for line in truth.read_text().splitlines():
        frame, _, x, y, width, height, *rest = (float(value) for value in line.split(","))
        box = (x / size[0], y / size[1], (x + width) / size[0], (y + height) / size[1])
        things.setdefault(int(frame) - 1, []).append(box)
        if not rendered or int(rest[1]) == PERSON:
            persons.setdefault(int(frame) - 1, []).append(box)
    return Clip(path.stem, path, fps, size, frames, persons, things)


def sampled_alerts(clip: Clip, live: str, moved: int, rng: random.Random) -> list[SampledAlert]:
    """Return every WINDOW frames of every person's track, and some of them moved to an empty place."""
    found: list[SampledAlert] = []
    empties = 0
    for frames in _windows(clip, live):
        meets = [_meets(box, clip.truth.get(frame, [])) for frame, _, box in frames]
        if max(meets) < FALSE_MAX:
            found.append(_alarm(clip, "false", frames))
        elif sum(each > TRUE_MIN for each in meets) * 2 >= len(meets):
            found.append(_alarm(clip, "true", frames))
            away = _moved(clip, frames, rng) if empties < moved else None
            if away is not None:
                empties += 1
                found.append(_alarm(clip, "empty", away))
    return found


TrackFrame = tuple[int, float, Box]


def _windows(clip: Clip, live: str) -> list[list[TrackFrame]]:
    network, converter = detector_loader.load(DetectorConfig(model=live)), FrameConverter()
    tracker, tracks = Tracker(network.labels), dict[int, list[TrackFrame]]()
    every = max(1, round(clip.fps / LOOKS_A_SECOND))
    with av.open(str(clip.path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        size = network.preferred_size(*clip.size)
        for index, frame in enumerate(container.decode(stream)):
            if index % every == 0:
                seen = network.detect([converter.bgr(frame, size)])[0]
                for each in tracker.update(seen, index / clip.fps, converter.planes(frame)):
                    if each.label == "person":
                        tracks.setdefault(each.track, []).append((index, each.score, each.box))
    return [frames[n : n + WINDOW] for frames in tracks.values() for n in range(0, len(frames), WINDOW)]


def _meets(box: Box, truth: Sequence[Box]) -> float:
    return float(iou_matrix(np.array([box]), np.array(truth)).max()) if truth else 0.0


def _moved(clip: Clip, frames: Sequence[TrackFrame], rng: random.Random) -> list[TrackFrame] | None:
    for _ in range(30):
        right, down = rng.uniform(-0.6, 0.6), rng.uniform(-0.15, 0.15)
        away = [
            (frame, score, (x1 + right, y1 + down, x2 + right, y2 + down)) for frame, score, (x1, y1, x2, y2) in frames
        ]
        if all(_is_empty(clip, frame, box) for frame, _, box in away):
            return away
    return None


def _is_empty(clip: Clip, frame: int, box: Box) -> bool:
    if min(box) < 0 or max(box) > 1:
        return False
    things = clip.things.get(frame, [])
    return _meets(box, things) < 0.02 and not any(is_same_place(each, box) for each in things)


def _alarm(clip: Clip, kind: str, frames: Sequence[TrackFrame]) -> SampledAlert:
    sightings = CameraTrackStats()
    sightings.begin(clip.size)
    for frame, score, box in frames:
        each = TrackedObject(track=1, label="person", score=score, box=box)
        sightings.observe(FrameBoxes(camera="", seq=0, frame=frame, t=frame / clip.fps, looked=True, objects=(each,)))
    known = sightings.of(1)
    assert known is not None
    parts = min(CROPS_PER_RECHECK, len(frames))
    bounds = [len(frames) * n // parts for n in range(parts + 1)]
    best = [max(frames[a:b], key=lambda look: view_score(look[1], look[2])) for a, b in pairwise(bounds)]
    return SampledAlert(clip, kind, known.stability, tuple(CropRequest(t=f / clip.fps, box=box) for f, _, box in best))


def recheck_verdict(worker: RecheckWorker, alert: SampledAlert) -> EdgeVerdict:
    clip = alert.clip
    footage = FootageSpan(path=f"segments/x/{clip.path.name}", t_start=0.0, t_end=clip.frames / clip.fps + 1)
    sight = worker.recheck(RecheckCommand(id="", camera="x", glimpses=alert.glimpses, footage=(footage,)))
    assert not sight.error, sight.error
    return judge_recheck("person", alert.seen, sight, "", _chance)


def _chance(seen: TrackStability) -> float:
    return UNTRAINED.probability("", "person", seen)


def measure(live: str, second: str, moved: int) -> dict[str, object]:
    network, rng = detector_loader.load(DetectorConfig(model=second)), random.Random(SEED)
    rows: list[tuple[SampledAlert, EdgeVerdict]] = []
    cpu: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "segments" / "x").mkdir(parents=True)
        worker = RecheckWorker(root, lambda: network, print, SystemClock())
        for clip in clips():
            shutil.copyfile(clip.path, root / "segments" / "x" / clip.path.name)
            for alert in sampled_alerts(clip, live, moved, rng):
                began = process_cpu_s()
                rows.append((alert, recheck_verdict(worker, alert)))
                cpu.setdefault("x".join(map(str, clip.size)), []).append(1000 * (process_cpu_s() - began))
            print(clip.name, len(rows), flush=True)
    return {
        "live": live,
        "second": network.name,
        **{name: _figures([row for row in rows if (row[0].clip.path == PETS) == (name == "pets")]) for name in PARTS},
        "cpu_ms": {size: round(mean(values), 1) for size, values in cpu.items()},
        "wrong": [
            {"clip": alert.clip.name, "kind": alert.kind, "t": alert.glimpses[0].t, "score": verdict.score}
            for alert, verdict in rows
            if (alert.kind == "true") != (verdict.decision == "rechecked")
        ],
    }


PARTS = ("rendered", "pets")


def _figures(rows: Sequence[tuple[SampledAlert, EdgeVerdict]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in ("true", "false", "empty"):
        verdicts = [verdict for alert, verdict in rows if alert.kind == kind]
        rechecked = sum(verdict.decision == "rechecked" for verdict in verdicts)
        found[kind] = {"alerts": len(verdicts), "rechecked": rechecked}
    if rows:
        before = [(_chance(alert.seen) - (alert.kind == "true")) ** 2 for alert, _ in rows]
        after = [(verdict.confidence - (alert.kind == "true")) ** 2 for alert, verdict in rows]
        found["brier"] = {"before": round(mean(before), 3), "after": round(mean(after), 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", default="vedette-nano", help="the detector that raises the alerts")
    parser.add_argument("--second", default="vedette-nano", help="the one that looks again")
    parser.add_argument("--moved", type=int, default=6, help="how many empty ones a clip")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    text = json.dumps(measure(options.live, options.second, options.moved), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
