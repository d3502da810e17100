"""What looks at a part of the picture save and cost: whole pictures against parts, same tree, same run.

    python -m benchmarks.parts                                   # the table of docs/gate.md
    python -m benchmarks.parts --only pets --with rain:10mm ir@10s,rain@12s

Each film is replayed twice under the site's usual settings, five looks a second: with a detector that is always shown
the whole picture, and as it is. Boxes are what the tracker reports at those looks, right from an overlap of a half.
Pixels are those that the network is given, padding included, in a minute of footage; they do not hang on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance import config, yamlfile
from appliance.clock import SystemClock
from appliance.detect import detector
from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.detect.letterbox import Letterbox
from appliance.lab.conditions.condition_spec import NO_CONDITIONS, ConditionSet
from appliance.lab.replay import replay_runner
from appliance.lab.scenario import ground_truth, scenario_loader, tracking_metrics
from appliance.lab.scenario.ground_truth import BoxesSpool, TrueFrames, TrueObject, shaken_truth
from appliance.lab.scenario.tracking_metrics import LabelledBoxes
from appliance.track.association import iou_matrix
from appliance.types import Detections, FrameBoxes
from benchmarks.ingest.footage import Film, make

ROOT = Path(__file__).parents[1]
FOOTAGE = ROOT / "benchmarks" / "out" / "footage"
SCENARIOS = ROOT / "fixtures" / "scenarios"
VIEWS = {"yard mixed": ("yard", "mixed"), "yard busy": ("yard", "busy"), "gate mixed": ("gate", "mixed")}
FILES = {
    "pets": ROOT / "tests" / "replay" / "pets.scenario.yaml",
    "rain": SCENARIOS / "rain_boxes.scenario.yaml",
    "infrared": SCENARIOS / "infrared_boxes.scenario.yaml",
}
OVERLAP_MIN = 0.5
VISIBLE_MIN, HEIGHT_MIN = 0.5, 0.06
LABEL = "person"
_SITE = "{detector: {model: %s}, cameras: {film: {url: 'file:film', detect: {fps: 5}}}}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A film and who is in it. truth: the true objects by frame, for the film's size."""

    name: str
    clip: Path
    truth: Callable[[tuple[int, int]], TrueFrames]


@dataclass(frozen=True, slots=True)
class Row:
    """A film, looked at one way. looks: those that were answered; pixels: millions that the network got a minute."""

    film: str
    way: str
    looks: int
    boxes: int
    recall: float
    precision: float
    hota: float
    mota: float
    pixels: float

    @property
    def told(self) -> str:
        return (
            f"| {self.film}, {self.way} | {self.recall:.3f} | {self.precision:.3f} | {self.hota:.3f} | "
            f"{self.mota:.3f} | {self.looks} | {self.pixels:.1f} M |"
        )


class Weighed(DetectorProxy):
    """A detector that counts the pixels it gives its network. Only `Parted` says that a part costs less."""

    def __init__(self, eye: ObjectDetector, letterbox: Letterbox) -> None:
        super().__init__(eye)
        self._letterbox = letterbox
        self.pixels = 0

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        for picture in pictures:
            across, down = self._letterbox.input_size(picture.shape[1], picture.shape[0])
            self.pixels += across * down
        return super().detect(pictures)


class Parted(Weighed):
    """The same, which may be shown parts."""

    @property
    def shape_step(self) -> int:
        return self._letterbox.step


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    site = yamlfile.loads(_SITE % chosen.model, config.SiteConfig)
    eye = detector.load(site.detector)
    step = getattr(eye, "shape_step", 0)
    if not step:
        print(f"{eye.name} is free in neither height nor width: it is always shown the whole", file=sys.stderr)
        return 1
    side = max(eye.preferred_size(1000, 1000))
    letterbox = Letterbox(side, side, "centre", step)
    rows: list[Row] = []
    print(f"{eye.name}, 5 looks a second\n| clip | recall | precision | HOTA | MOTA | looks | pixels a minute |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for shown in films(chosen.only, chosen.footage):
        for words in chosen.weather:
            weather = ConditionSet.parse([words]) if words else NO_CONDITIONS
            name = f"{shown.name} {words}".strip()
            for way, looker in (("whole", Weighed(eye, letterbox)), ("parts", Parted(eye, letterbox))):
                rows.append(measure(shown, site, looker, weather, name, way))
                print(rows[-1].told, flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def measure(shown: Shown, site: config.SiteConfig, eye: Weighed, weather: ConditionSet, name: str, way: str) -> Row:
    """One replay against the truth."""
    with BoxesSpool() as spool:
        result = replay_runner.replay(shown.clip, site, "film", eye, spool, clock=SystemClock(), conditions=weather)
        frames = shaken_truth(shown.truth(result.size), spool.frame_boxes(), weather, result.size)
        found, right = labelled(spool.frame_boxes(), frames)
    counted = tracking_metrics.clear_mot(found, right, OVERLAP_MIN)
    return Row(
        film=name,
        way=way,
        looks=len(right),
        boxes=counted.boxes,
        recall=1 - counted.missed / max(1, counted.boxes),
        precision=1 - counted.false / max(1, counted.detections),
        hota=tracking_metrics.hota_figures(found, right).hota,
        mota=counted.mota,
        pixels=eye.pixels / 1e6 / (result.footage_s / 60),
    )


def labelled(looks: Iterable[FrameBoxes], frames: TrueFrames) -> tuple[list[LabelledBoxes], list[LabelledBoxes]]:
    """What was reported and what is true, look by look; an answer on what does not count is left out."""
    found, right = [], []
    for look in looks:
        if not look.looked:
            continue
        true = frames.get(look.frame, ())
        wanted = _labelled([(each.box, each.id) for each in true if each.counts])
        void = _labelled([(each.box, each.id) for each in true if not each.counts])
        said = _labelled([(each.box, each.track) for each in look.objects if each.label == LABEL])
        spare = iou_matrix(said.boxes, void.boxes).max(axis=1, initial=0.0) >= OVERLAP_MIN
        spare &= iou_matrix(said.boxes, wanted.boxes).max(axis=1, initial=0.0) < OVERLAP_MIN
        found.append(LabelledBoxes(said.boxes[~spare], said.values[~spare]))
        right.append(wanted)
    return found, right


def _labelled(rows: Sequence[tuple[tuple[float, ...], int]]) -> LabelledBoxes:
    boxes = np.array([box for box, _ in rows], float).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array([identity for _, identity in rows], float))


def films(names: Sequence[str], footage: Path) -> Iterable[Shown]:
    """Those that are here."""
    for name in names:
        if name in VIEWS:
            view, scene = VIEWS[name]
            clip, seen = make(Film(view, scene, 720), footage)
            yield Shown(f"{name} 720p", clip, partial(_known, _people(seen.as_json())))
            continue
        made = scenario_loader.load_scenario(FILES[name])
        if made.absent or made.truth is None or made.scenario.truth is None:
            print(f"{name}: its footage is not here, skipped", file=sys.stderr)
            continue
        yield Shown(name, made.parts[0].clip, partial(ground_truth.read_truth, made.truth, made.scenario.truth))


def _known(frames: TrueFrames, _size: tuple[int, int]) -> TrueFrames:
    return frames


def _people(written: Mapping[str, Any]) -> TrueFrames:
    """Of footage of the ingest benchmark; who is hidden by half, or a speck, is nobody's mistake."""
    found: dict[int, tuple[TrueObject, ...]] = {}
    for identity, visit in enumerate(written["visits"]):
        if visit["label"] != LABEL:
            continue
        for frame, x1, y1, x2, y2, visible in visit["sights"]:
            counts = visible >= VISIBLE_MIN and y2 - y1 >= HEIGHT_MIN
            found[frame] = (*found.get(frame, ()), TrueObject(identity, LABEL, (x1, y1, x2, y2), counts))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ["pets", *VIEWS, "rain", "infrared"]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--with", dest="weather", nargs="+", default=[""], help="weather, as of vedette replay; each")
    parser.add_argument("--model", default="vedette-nano")
    parser.add_argument("--footage", type=Path, default=FOOTAGE, help="made once, kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
