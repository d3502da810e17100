"""Runs `vedette evaluate`: measures detectors on labelled images and clips, and compares them with a gate.

It prints a table and the figures that fell, and writes reports as JSON, with which a later run can compare.
"""

from __future__ import annotations

import difflib
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.markup import escape

from appliance.base.clock import process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.base.console import COUNTED, CommandProgress
from appliance.base.errors import UsageError
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector, UpscalingDetector
from appliance.lab.detection_figures import ClassBoxes, detection_figures, figures_by_height, one_answer_each
from appliance.lab.evaluation_report import (
    EvaluationReport,
    FigureRow,
    ModelCost,
    fallen_figures,
    figure_row,
    read_report,
    report_lines,
)
from appliance.lab.labelled_sets import (
    ClipOptions,
    LabelledSet,
    TrueBox,
    read_clip,
    read_coco,
    read_folder_or_clip,
    read_yolo,
)
from appliance.types import Detections

SCORE_MIN = 0.01  # AP is measured over nearly all answers, not only those that the appliance acts on
VEHICLE = "vehicle"
MERGED = ("car", "bus", "truck", "van")
_ALIASES = {
    "pedestrian": "person", "people": "person", "motorbike": "motorcycle", "bike": "bicycle", "lorry": "truck",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """The options of `vedette evaluate`.

    named_sets: NAME=DIR; classes: NUMBER=NAME with commas, of the clips' truths; only: class names with commas, '':
    all.
    """

    models: Sequence[str]
    coco: Path | None = None
    images: Path | None = None
    yolo: Path | None = None
    clip: Path | None = None
    mot: Path | None = None
    named_sets: Sequence[str] = ()
    classes: str = "1=person"
    every: int = 1
    only: str = ""
    by_class: bool = False
    gate: Path | None = None
    tolerance: float = 0.01
    as_json: bool = False


@dataclass(slots=True)
class _Measured:
    """A detector with what it has found in the set at hand, and the CPU seconds of each inference so far."""

    model: str
    detector: ObjectDetector
    known: frozenset[str]
    found: list[Detections] = field(default_factory=list)
    inputs_px: list[int] = field(default_factory=list)
    """Height of each image of the set at hand in the detector's input."""
    spent_s: list[float] = field(default_factory=list)


def evaluate_command(options: EvaluateOptions) -> int:
    """Return 1 when a figure of the gate fell, else 0.

    Raises UsageError for what is wrong with a set, mostly before anything is run; DetectorError.
    """
    before = read_report(options.gate) if options.gate else None
    names = ClassNames(by_class=options.by_class)
    sets = labelled_sets(options)
    detectors = _load(options.models, names)
    chosen = choose_classes(options.only, sets, {each.model: each.known for each in detectors}, names)
    figures: list[FigureRow] = []
    for each in sets:
        figures += _measure(each, detectors, chosen[each.name], names)
    report = EvaluationReport(
        arithmetic="numpy",
        by_class=options.by_class,
        models=tuple(_cost(each) for each in detectors),
        figures=tuple(figures),
        notes=tuple(_notes(sets, detectors, chosen, names)),
    )
    print(report.model_dump_json(indent=1) if options.as_json else "\n".join(report_lines(report)))
    if before is None:
        return 0
    labels = [names(each) for each in _listed(options.only)]
    fallen = fallen_figures(before, report, options.tolerance, labels)
    for line in fallen:
        print(line, file=sys.stderr)
    return 1 if fallen else 0


class ClassNames:
    """Class names as both sides are compared by: lower case, aliases, and car, bus and truck as `vehicle`."""

    def __init__(self, *, by_class: bool) -> None:
        self.by_class = by_class

    def __call__(self, name: str) -> str:
        name = name.strip().lower()
        name = _ALIASES.get(name, name)
        if self.by_class:
            return "car" if name == "van" else name
        return VEHICLE if name in MERGED else name


# Which sets, which models, which classes


def labelled_sets(options: EvaluateOptions) -> list[LabelledSet]:
    """Return the sets that the command line names, with the labels read. Raises UsageError."""
    clips = ClipOptions(_numbered_classes(options.classes), options.every)
    found = []
    if options.coco:
        found.append(read_coco(options.coco.stem, options.coco, options.images or options.coco.parent))
    if options.yolo:
        found.append(read_yolo(options.yolo.resolve().name, options.yolo))
    if options.clip:
        if not options.clip.is_file():
            raise UsageError(f"{options.clip}: no such clip")
        truth = options.mot or options.clip.with_suffix(".gt.txt")
        found.append(read_clip(options.clip.stem, options.clip, truth, clips))
    for text in options.named_sets:
        name, mark, path = text.partition("=")
        if not (mark and name.strip() and path):
            raise UsageError(f"--per {text}: write NAME=DIR, as in --per night=sets/night")
        found.append(read_folder_or_clip(name.strip(), Path(path), clips))
    if (options.images and not options.coco) or (options.mot and not options.clip):
        raise UsageError("--images belongs to --coco, --mot to --clip: name both")
    if not found:
        raise UsageError("nothing to measure on: name a set by --coco, --yolo, --clip or --per")
    if twice := _first_twice([each.name for each in found]):
        raise UsageError(f"two sets are called `{twice}`: give each a name of its own with --per NAME=DIR")
    return found


def _numbered_classes(text: str) -> dict[int, str]:
    classes = {}
    for part in _listed(text):
        number, _, name = part.partition("=")
        if not number.strip().isdecimal() or not name.strip():
            raise UsageError(f"--classes {text}: write NUMBER=NAME with commas, as in --classes 1=person,2=car")
        classes[int(number)] = name.strip()
    return classes


def _load(models: Sequence[str], names: ClassNames) -> list[_Measured]:
    """Load the models. Raise ModelError, MissingDependency; UsageError for a model that is named twice."""
    if twice := _first_twice(models):
        raise UsageError(f"the model {twice} is named twice")
    stems = [Path(model).stem if model.endswith(".onnx") else model for model in models]
    called = models if _first_twice(stems) else stems
    loaded = []
    for model, name in zip(models, called, strict=True):
        found = UpscalingDetector(detector_loader.load(DetectorConfig(model=model, score_min=SCORE_MIN)))
        loaded.append(_Measured(name, found, frozenset(map(names, found.labels))))
    return loaded


def choose_classes(
    only: str, sets: Sequence[LabelledSet], known: Mapping[str, frozenset[str]], names: ClassNames
) -> dict[str, list[str]]:
    """Return the classes to measure by set name: labelled in the set, and known to a model. Raise UsageError."""
    labelled = {each.name: frozenset(map(names, each.labels)) for each in sets}
    given = frozenset().union(*known.values())
    wanted = _wanted_classes(only, frozenset().union(*labelled.values()), known, names)
    chosen = {}
    for name, labels in labelled.items():
        measured = labels & given & wanted if wanted else labels & given
        if not measured:
            what = f"no {' or '.join(sorted(wanted))}" if wanted else "nothing that a model here knows"
            raise UsageError(f"the set {name} labels {what} (it has: {_some(labels)}); leave it out")
        chosen[name] = sorted(measured)
    return chosen


def _wanted_classes(
    only: str, labelled: frozenset[str], known: Mapping[str, frozenset[str]], names: ClassNames
) -> frozenset[str]:
    for text in _listed(only):
        name = text.lower()
        if names(name) != name and names(name) == VEHICLE:
            raise UsageError(f"--only {text}: it counts as `vehicle` here; give --only vehicle, or --by-class")
        if names.by_class and name == VEHICLE:
            raise UsageError(f"--only {text}: not with --by-class, which keeps {', '.join(MERGED[:3])} apart")
        everything = labelled.union(*known.values())
        if names(name) not in everything:
            near = difflib.get_close_matches(name, everything, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {_some(everything)}"
            raise UsageError(f"--only {text}: neither the sets nor the models know this class; {hint}")
        for model, classes in known.items():
            if names(name) not in classes:
                raise UsageError(f"--only {text}: {model} cannot report it (it knows: {_some(classes)})")
        if names(name) not in labelled:
            raise UsageError(f"--only {text}: no set labels it (they have: {_some(labelled)})")
    return frozenset(map(names, _listed(only)))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _first_twice(names: Sequence[str]) -> str:
    return next((name for place, name in enumerate(names) if name in names[:place]), "")


def _some(names: Iterable[str], most: int = 12) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


# Measuring


def _measure(
    labelled: LabelledSet, detectors: Sequence[_Measured], classes: Sequence[str], names: ClassNames
) -> list[FigureRow]:
    """Measure a set; the models take turns at each image, so that the machine's other load falls on all alike."""
    truth: list[tuple[TrueBox, ...]] = []
    for each in detectors:
        each.found, each.inputs_px = [], []
    with _progress(labelled.name, labelled.count) as advance:
        for image in labelled.images():
            for each in detectors:
                pixels = image.pixels(each.detector.preferred_size)
                before_s = process_cpu_s()
                each.found += each.detector.detect([pixels])
                each.spent_s.append(process_cpu_s() - before_s)
                each.inputs_px.append(each.detector.preferred_size(pixels.shape[1], pixels.shape[0])[1])
            truth.append(image.boxes)
            advance()
    rows = []
    for name in classes:
        for each in detectors:
            if name in each.known:
                boxes = [
                    replace(_class_boxes(true, found, each.detector.labels, name, names), input_px=input_px)
                    for true, found, input_px in zip(truth, each.found, each.inputs_px, strict=True)
                ]
                if any((~one.ignored).any() for one in boxes):  # none where --every leaves all of them out
                    figures = detection_figures(boxes)
                    rows.append(figure_row(each.model, labelled.name, name, figures, figures_by_height(boxes)))
    if not rows:
        raise UsageError(f"the set {labelled.name}: no labelled image was examined; a smaller --every examines more")
    return rows


def _class_boxes(
    labelled: Sequence[TrueBox], found: Detections, labels: Sequence[str], name: str, names: ClassNames
) -> ClassBoxes:
    """Return the boxes that count for one class. An ignored box without a label counts for every class."""
    true = [box for box in labelled if names(box.label) == name or (box.ignored and not box.label)]
    mine = found.select(np.array([names(labels[number]) == name for number in found.class_ids], bool))
    boxes, scores = mine.boxes.astype(float), mine.scores.astype(float)
    kept = one_answer_each(boxes, scores, mine.class_ids.astype(np.intp))
    return ClassBoxes(
        np.array([box.box for box in true], float).reshape(-1, 4),
        np.array([box.ignored for box in true], bool),
        boxes[kept],
        scores[kept],
    )


def _cost(measured: _Measured) -> ModelCost:
    """Measure a model's cost without the first inference, which pays for memory and caches."""
    spent_s = measured.spent_s[1:] or measured.spent_s
    return ModelCost(
        model=measured.model, detector=measured.detector.name, cpu_ms=round(statistics.median(spent_s) * 1000, 2)
    )


def _notes(
    sets: Sequence[LabelledSet], detectors: Sequence[_Measured], chosen: Mapping[str, Sequence[str]], names: ClassNames
) -> Iterator[str]:
    """Yield notes on what was left out and on what a person should know of a detector."""
    yield from (each.note for each in sets if each.note)
    known = frozenset().union(*(each.known for each in detectors))
    for labelled in sets:
        if unknown := frozenset(map(names, labelled.labels)) - known:
            yield f"{labelled.name}: no model here reports {_some(unknown)}: left out."
    measured = frozenset().union(*chosen.values())
    for each in detectors:
        if each.detector.warning:
            yield each.detector.warning
        if lacking := measured - each.known:
            yield f"{each.model} does not report {_some(lacking)}: left out there."


@contextmanager
def _progress(name: str, count: int | None) -> Iterator[Callable[[], None]]:
    with CommandProgress(*COUNTED) as bar:
        task = bar.add_task(escape(name), total=count)
        yield lambda: bar.advance(task)
