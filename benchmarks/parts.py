"""Savings and costs of detecting on regions: whole frames against regions, same tree, same run.

    python -m benchmarks.parts                                   # the table of docs/gate.md
    python -m benchmarks.parts --only pets --with rain:10mm ir@10s,rain@12s

Each clip is replayed twice under the site's usual settings at 5 fps: with a detector that is always given the whole
frame, and as it is. Boxes are those of the tracker, right from an IoU of 0.5. Pixels are those that the network is
given in a minute of footage, padding included; they do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.base import yamlfile
from appliance.base.clock import SystemClock
from appliance.detect import detector_loader
from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.detect.letterbox import Letterbox
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet
from appliance.scenario import ground_truth, scenario_loader
from appliance.scenario.ground_truth import BoxesSpool, TrueFrames, TrueObject, shaken_truth
from appliance.scenario.metrics import clear_mot, compared_frames, hota_figures
from appliance.types import Detections
from benchmarks.ingest.footage import FootageSpec, Truth, make
from tests.support.clip_replay import replay

ROOT = Path(__file__).parents[1]
FOOTAGE = ROOT / "benchmarks" / "out" / "footage"
SCENARIOS = ROOT / "fixtures" / "scenarios"
VIEWS = {"yard mixed": ("yard", "mixed"), "yard busy": ("yard", "busy"), "gate mixed": ("gate", "mixed")}
FILES = {
    "pets": ROOT / "tests" / "replay" / "pets.scenario.yaml",
    "rain": SCENARIOS / "rain_boxes.scenario.yaml",
    "infrared": SCENARIOS / "infrared_boxes.scenario.yaml",
}
LABEL = "person"
_SITE = "{detector: {model: %s}, cameras: {film: {url: 'file:film', detect: {fps: 5}}}}"


@dataclass(frozen=True, slots=True)
class LabelledClip:
    """A clip with its truth. truth: the true objects by frame, for the size of the clip."""

    name: str
    clip: Path
    truth: Callable[[tuple[int, int]], TrueFrames]


@dataclass(frozen=True, slots=True)
class Row:
    """A clip examined one way. looks: answered inferences; pixels: millions that the network got a minute."""

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
    def table_row(self) -> str:
        return (
            f"| {self.film}, {self.way} | {self.recall:.3f} | {self.precision:.3f} | {self.hota:.3f} | "
            f"{self.mota:.3f} | {self.looks} | {self.pixels:.1f} M |"
        )


class PixelCounter(DetectorProxy):
    """A detector that counts the pixels it gives its network. Only `RegionDetector` offers variable inputs."""

    def __init__(self, network: ObjectDetector, letterbox: Letterbox) -> None:
        super().__init__(network)
        self._letterbox = letterbox
        self.pixels = 0

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        for picture in pictures:
            across, down = self._letterbox.input_size(picture.shape[1], picture.shape[0])
            self.pixels += across * down
        return super().detect(pictures)


class RegionDetector(PixelCounter):
    """The same, which may be given regions."""

    @property
    def shape_step(self) -> int:
        return self._letterbox.step


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    site = yamlfile.loads(_SITE % chosen.model, config.SiteConfig)
    network = detector_loader.load(site.detector)
    step = getattr(network, "shape_step", 0)
    if not step:
        print(f"{network.name} is free in neither height nor width: it is always shown the whole", file=sys.stderr)
        return 1
    side = max(network.preferred_size(1000, 1000))
    letterbox = Letterbox(side, side, "centre", step)
    rows: list[Row] = []
    print(f"{network.name}, 5 looks a second\n| clip | recall | precision | HOTA | MOTA | looks | pixels a minute |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for labelled_clip in films(chosen.only, chosen.footage):
        for words in chosen.weather:
            conditions = ConditionSet.parse([words]) if words else NO_CONDITIONS
            name = f"{labelled_clip.name} {words}".strip()
            for way, looker in (
                ("whole", PixelCounter(network, letterbox)),
                ("parts", RegionDetector(network, letterbox)),
            ):
                rows.append(measure(labelled_clip, site, looker, conditions, name, way))
                print(rows[-1].table_row, flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def measure(
    labelled_clip: LabelledClip,
    site: config.SiteConfig,
    network: PixelCounter,
    conditions: ConditionSet,
    name: str,
    way: str,
) -> Row:
    """Measure one replay against the truth."""
    with BoxesSpool() as spool:
        result = replay(
            labelled_clip.clip, site.for_decisions(), "film", network, spool, clock=SystemClock(), conditions=conditions
        )
        frames = shaken_truth(labelled_clip.truth(result.size), spool.frame_boxes(), conditions, result.size)
        compared = compared_frames(spool.frame_boxes(), frames, {LABEL})
    counted = clear_mot(compared.tracked, compared.truth)
    return Row(
        film=name,
        way=way,
        looks=len(compared.truth),
        boxes=counted.boxes,
        recall=1 - counted.missed / max(1, counted.boxes),
        precision=1 - counted.false / max(1, counted.detections),
        hota=hota_figures(compared.tracked, compared.truth).hota,
        mota=counted.mota,
        pixels=network.pixels / 1e6 / (result.end.t / 60),
    )


def films(names: Sequence[str], footage: Path) -> Iterable[LabelledClip]:
    """Yield the clips that are present."""
    for name in names:
        if name in VIEWS:
            view, scene = VIEWS[name]
            clip, seen = make(FootageSpec(view, scene, 720), footage)
            yield LabelledClip(f"{name} 720p", clip, partial(_known, _people(seen)))
            continue
        made = scenario_loader.load_scenario(FILES[name])
        if made.absent or made.truth is None or made.scenario.truth is None:
            print(f"{name}: its footage is not here, skipped", file=sys.stderr)
            continue
        yield LabelledClip(name, made.parts[0].clip, partial(ground_truth.read_truth, made.truth, made.scenario.truth))


def _known(frames: TrueFrames, _size: tuple[int, int]) -> TrueFrames:
    return frames


def _people(seen: Truth) -> TrueFrames:
    """Read the people of the ingest benchmark's footage; those that are half hidden or tiny are ignored."""
    found: dict[int, tuple[TrueObject, ...]] = {}
    for identity, visit in enumerate(seen.visits):
        for frame, sight in visit.sights.items() if visit.label == LABEL else ():
            found[frame] = (*found.get(frame, ()), TrueObject(identity, LABEL, sight.box, sight.counts))
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
