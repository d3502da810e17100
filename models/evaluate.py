"""Measure a detector on labelled footage of your own.

    python -m models.evaluate deimv2-femto --mot yard.mp4 --gt yard.gt.txt --classes 1=person,2=van --rename van=car
    python -m models.evaluate my.onnx --yolo my-set/data.yaml --folder my-set/valid --merge vehicle=car,bus,truck
    python -m models.evaluate yolox-nano --coco instances.json --images pictures --json figures.json
    python -m models.evaluate vedette-nano.onnx --index vedette-data/set

The detector is loaded as the appliance loads it (a name of models.toml, a path to an .onnx, or builtin:hog). AP50 and
AP50:95 are pycocotools' arithmetic, the threshold is the score with the best F1 at IoU 0.5, and recall by height is at
that threshold. Labels and answers meet by class name; what only one side knows is left out and named.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import numpy as np

from appliance.base.command_exit import os_error_text, whole_number_between
from appliance.base.config_model import Backend, Precision
from appliance.base.errors import VedetteError
from appliance.config import DetectorConfig
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector, UpscalingDetector
from models.evaluation import sets
from models.evaluation.arithmetic import ClassFigures, Judged, figures
from models.evaluation.sets import Labelled, SetFault

SCORE_MIN = 0.01
ALIASES = {"motorbike": "motorcycle", "bike": "bicycle", "pedestrian": "person", "people": "person", "lorry": "truck"}


class Names:
    """How class names are written alike on both sides: aliases, --rename, --merge."""

    def __init__(self, renames: Sequence[str], merges: Sequence[str]) -> None:
        """Read the renames and merges. Raise SetFault for anything but a=b and a=b,c."""
        self._table = dict(ALIASES)
        for text in renames:
            old, new = _pair(text)
            self._table[old] = new
        for text in merges:
            new, olds = _pair(text)
            self._table |= dict.fromkeys(olds.split(","), new)

    def __call__(self, name: str) -> str:
        """Return the name that counts; merges see what renames made."""
        name = name.strip().lower()
        for _ in range(3):
            name = self._table.get(name, name)
        return name


def judged(eye: ObjectDetector, pictures: Iterator[Labelled], names: Names) -> Iterator[Judged]:
    """Yield every picture with what the detector finds in it."""
    for picture in pictures:
        found = eye.detect([picture.pixels])[0]
        width, height = picture.size
        yield Judged(
            picture.boxes,
            tuple(names(name) for name in picture.names),
            picture.crowd,
            found.boxes.astype(float) * np.array([width, height, width, height]),
            tuple(names(eye.labels[cls]) for cls in found.class_ids),
            found.scores.astype(float),
        )


def chosen_set(options: argparse.Namespace, eye: ObjectDetector) -> Iterator[Labelled]:
    """Yield the labelled set that the command line names. Raise SetFault."""
    if options.coco:
        return sets.coco(options.coco, options.images or options.coco.parent)
    if options.yolo:
        return sets.yolo(options.folder or options.yolo.parent, sets.yolo_names(options.yolo))
    if options.index:
        return sets.assembled(options.index, options.split)
    truth = options.gt or options.mot.with_suffix(".gt.txt")
    pairs = list(map(_pair, options.classes.split(",")))
    if wrong := next((number for number, _ in pairs if not number.strip().isdecimal()), None):
        raise SetFault(f"--classes: `{wrong}` is no number; write NUMBER=NAME, as in 1=person,2=car")
    classes = {int(number): name for number, name in pairs}
    return sets.mot(options.mot, truth, classes, options.every, eye.preferred_size)


def _pair(text: str) -> tuple[str, str]:
    left, mark, right = text.partition("=")
    if not (left and mark and right):
        raise SetFault(f"`{text}` is not of the form NAME=NAME")
    return left, right


def table(rows: Sequence[ClassFigures]) -> str:
    """For people: one line a class and the mean, then recall by height."""
    lines = [
        "| class | boxes | AP50 | AP50:95 | threshold | F1 | precision | recall |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        values = (row.ap50, row.ap, row.threshold, row.f1, row.precision, row.recall)
        lines.append(f"| {row.name} | {row.boxes} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    if len(rows) > 1:
        means = (float(np.mean([row.ap50 for row in rows])), float(np.mean([row.ap for row in rows])))
        lines.append(f"| mean | {sum(row.boxes for row in rows)} | {means[0]:.3f} | {means[1]:.3f} | | | | |")
    lines += ["", "Recall at the threshold, by height in pixels of the picture (boxes):", ""]
    for row in rows:
        parts = [
            f"{low_high(each.low, each.high)}: {each.recall:.2f} ({each.boxes})"
            for each in row.heights
            if each.recall is not None
        ]
        lines.append(f"- {row.name}: " + ", ".join(parts))
    return "\n".join(lines)


def low_high(low: float, high: float) -> str:
    """Write a range of heights for people."""
    return f"{low:g}+" if high > 1e6 else f"{low:g}-{high:g}"


def report(rows: Sequence[ClassFigures], model: str, pictures: int) -> dict[str, object]:
    """For programs; figures rounded to 4 places."""
    classes = json.loads(json.dumps([asdict(row) for row in rows]), parse_float=lambda text: round(float(text), 4))
    for each in classes:
        for row in each["heights"]:
            row["high"] = None if row["high"] > 1e6 else row["high"]
    mean = [float(np.mean([getattr(row, key) for row in rows])) if rows else math.nan for key in ("ap50", "ap")]
    means = {"ap50": round(mean[0], 4), "ap": round(mean[1], 4)} if rows else {"ap50": None, "ap": None}
    return {"model": model, "pictures": pictures, **means, "classes": classes}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m models.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("model", help="a name of models.toml, a path to an .onnx, or builtin:hog")
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("--coco", type=Path, metavar="JSON", help="COCO instances file; pictures in --images")
    which.add_argument("--yolo", type=Path, metavar="YAML", help="data.yaml; pictures and labels below --folder")
    which.add_argument("--mot", type=Path, metavar="CLIP", help="a film; its truth in --gt (default CLIP's .gt.txt)")
    which.add_argument("--index", type=Path, metavar="SET", help="a set that models.train.assemble made")
    made.add_argument("--images", type=Path, help="with --coco: folder of the pictures (default: the file's)")
    made.add_argument("--folder", type=Path, help="with --yolo: folder that holds images/ and labels/")
    made.add_argument("--gt", type=Path, help="with --mot: MOTChallenge rows")
    made.add_argument(
        "--every",
        type=whole_number_between(1, 10_000, "count"),
        default=1,
        help="with --mot: take every Nth frame (default 1)",
    )
    made.add_argument("--classes", default="1=person", help="with --mot: what its numbers mean (default 1=person)")
    made.add_argument("--split", choices=("train", "val"), default="val", help="with --index (default val)")
    made.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="call a class otherwise; repeatable"
    )
    made.add_argument("--merge", action="append", default=[], metavar="NEW=A,B", help="count several classes as one")
    made.add_argument("--only", help="judge only these classes, comma between")
    threads = whole_number_between(1, 64, "number of threads")
    made.add_argument("--threads", type=threads, default=1, help="of the network (default 1)")
    made.add_argument("--backend", choices=get_args(Backend), default="auto", help="what runs it (default auto: onnx)")
    made.add_argument("--precision", choices=get_args(Precision), default="auto", help="(default auto: the file's own)")
    made.add_argument("--json", type=Path, help="write the figures there too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        names = Names(options.rename, options.merge)
        eye = UpscalingDetector(
            detector_loader.load(
                DetectorConfig(
                    model=options.model,
                    score_min=SCORE_MIN,
                    threads=options.threads,
                    backend=options.backend,
                    precision=options.precision,
                )
            )
        )
        seen = list(judged(eye, chosen_set(options, eye), names))
        known = {names(name) for name in eye.labels}
        labelled = {
            name for each in seen for name, crowd in zip(each.truth_names, each.crowd, strict=True) if not crowd
        }
        wanted = {names(name) for name in options.only.split(",") if name.strip()} if options.only else labelled
        if unlabelled := wanted - labelled:
            raise SetFault(f"--only {min(unlabelled)}: the set labels {', '.join(sorted(labelled)) or 'nothing'}")
        if not labelled & known & wanted:
            has = ", ".join(sorted(labelled)) or "nothing"
            raise SetFault(f"nothing to measure: the set labels {has}, of which the detector or --only takes nothing")
        rows = figures(seen, sorted(labelled & known & wanted))
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{eye.name} on {len(seen)} pictures\n")
    print(table(rows))
    if (labelled & wanted) - known:
        print(f"\nThe detector does not know: {', '.join(sorted((labelled & wanted) - known))} (left out)")
    if options.json:
        try:
            options.json.write_text(json.dumps(report(rows, eye.name, len(seen)), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--json {os_error_text(error)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
