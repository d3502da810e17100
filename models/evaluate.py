"""Measure a network on the held-back pictures of a training set: python -m models.evaluate NETWORK --index SET.

    python -m models.evaluate new.onnx --index vedette-data/set --merge vehicle=car,bus,truck
    python -m models.evaluate vedette-nano+openvino-bf16 --index vedette-data/set --json figures.json

NETWORK is loaded as the appliance loads it: a name of models.toml, a path to an .onnx, or builtin:hog, perhaps with
what runs it. The figures are those of models.evaluation.kinds. Labels and answers meet by class name; what the network
does not know is left out and named. `vedette evaluate` measures other labelled sets (COCO, YOLO, clips).
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
from models.evaluation.kinds import Figure

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


def table(rows: Sequence[Figure]) -> str:
    """Write, for people, one line a class and the mean."""
    lines = [
        "| class | boxes | AP50 (90 %) | AP50:95 | AP at IoU 0.7 | recall at 0.5 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ap50 = f"{row.ap50:.3f} ({row.low:.2f}-{row.high:.2f})"
        lines.append(f"| {row.name} | {row.boxes} | {ap50} | {row.ap:.3f} | {row.ap70:.3f} | {row.recall:.3f} |")
    mean50, mean = (float(np.mean([getattr(row, key) for row in rows])) for key in ("ap50", "ap"))
    lines.append(f"| mean | {sum(row.boxes for row in rows)} | {mean50:.3f} | {mean:.3f} | | |")
    return "\n".join(lines)


def reported(row: Figure) -> dict[str, object]:
    """Return the figures for programs. Those that count answers in ignored regions as wrong are left out."""
    return {name: value for name, value in asdict(row).items() if name not in ("precision", "ece")}


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
        rows = [kinds.figure(options.split, name, (name,), seen) for name in sorted(known & wanted)]
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{eye.name} on {len(seen)} pictures\n")
    print(table(rows))
    if wanted - known:
        print(f"\nThe detector does not know: {', '.join(sorted(wanted - known))} (left out)")
    if options.json:
        try:
            report = {"model": eye.name, "classes": [reported(row) for row in rows]}
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--json {os_error_text(error)}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
