"""Measure a network on the held-back pictures of a training set: python -m models.evaluate NETWORK --index SET.

    python -m models.evaluate new.onnx --index vedette-data/set --merge vehicle=car,bus,truck
    python -m models.evaluate vedette-nano+openvino-bf16 --index vedette-data/set --json figures.json

NETWORK is loaded as the appliance loads it: a name of models.toml, a path to an .onnx, or builtin:hog, perhaps with
what runs it. AP50 and AP50:95 are pycocotools' arithmetic, the threshold is the score with the best F1 at IoU 0.5, and
recall by height is at that threshold. Labels and answers meet by class name; what the network does not know is left
out and named. Other labelled sets (COCO, YOLO, clips) are measured by `vedette evaluate`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from appliance.base.command_exit import os_error_text, whole_number_between
from appliance.base.errors import UsageError, VedetteError
from models.evaluation import kinds, sets
from models.evaluation.arithmetic import ClassFigures, figures

SCORE_MIN = 0.01


def merged_names(merges: Sequence[str]) -> dict[str, str]:
    """Return the name that counts by each other one. Raise UsageError for anything but NEW=A,B."""
    merged: dict[str, str] = {}
    for text in merges:
        new, mark, olds = text.partition("=")
        if not (new and mark and olds):
            raise UsageError(f"--merge {text}: NEW=A,B, as in vehicle=car,bus,truck")
        merged |= dict.fromkeys(olds.split(","), new)
    return {old: merged.get(new, new) for old, new in kinds.ALIASES.items()} | merged


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
    means = {key: round(float(np.mean([getattr(row, key) for row in rows])), 4) for key in ("ap50", "ap")}
    return {"model": model, "pictures": pictures, **means, "classes": classes}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m models.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("network", help="a name of models.toml, a path to an .onnx, or builtin:hog")
    made.add_argument("--index", type=Path, required=True, metavar="SET", help="a set that models.train.assemble made")
    made.add_argument("--split", choices=("train", "val"), default="val", help="side of the set (default val)")
    made.add_argument("--merge", action="append", default=[], metavar="NEW=A,B", help="count several classes as one")
    made.add_argument("--only", help="judge only these classes, comma between")
    threads = whole_number_between(1, 64, "number of threads")
    made.add_argument("--threads", type=threads, default=1, help="of the network (default 1)")
    made.add_argument("--json", type=Path, help="write the figures there too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        names = merged_names(options.merge)
        eye = kinds.load(options.network, options.threads, SCORE_MIN)
        seen = list(kinds.judged(eye, sets.assembled(options.index, options.split), names))
        known = {names.get(name, name) for name in eye.labels}
        labelled = {
            name for each in seen for name, crowd in zip(each.truth_names, each.crowd, strict=True) if not crowd
        }
        wanted = {name.strip() for name in options.only.split(",") if name.strip()} if options.only else labelled
        if unlabelled := wanted - labelled:
            raise UsageError(f"--only {min(unlabelled)}: the set labels {', '.join(sorted(labelled)) or 'nothing'}")
        if not known & wanted:
            has = ", ".join(sorted(labelled)) or "nothing"
            raise UsageError(f"nothing to measure: the set labels {has}, of which the detector or --only takes nothing")
        rows = figures(seen, sorted(known & wanted))
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{eye.name} on {len(seen)} pictures\n")
    print(table(rows))
    if wanted - known:
        print(f"\nThe detector does not know: {', '.join(sorted(wanted - known))} (left out)")
    if options.json:
        try:
            options.json.write_text(json.dumps(report(rows, eye.name, len(seen)), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--json {os_error_text(error)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
