"""The arguments of `vedette tune`, apart from what runs it, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

TUNE = """\
Which threshold is best on your own footage? Runs scenarios (docs/scenarios.md) at every value of a setting, shows what
each reports, misses and raises falsely, and takes the best for your aim, with the reason and how far to believe it.
The detector is asked once about each picture, so most sweeps cost little more than decoding.

  vedette tune my-footage/ --sweep rules.score_min=0.3:0.8:0.05
  vedette tune my-footage/ --sweep rules.intruder.score_min=0.3:0.8:0.1 --sweep alerts.merge_s=4,8,16 --html tuned.html
  vedette tune my-footage/ --sweep detector.model=vedette-nano,models/new.onnx --aim f1
  vedette tune my-footage/ --sweep detect.fps=2,5,10 --aim 'precision>=0.9' --json | jq .chosen

Settings: rules.KEY or rules.NAME.KEY (score_min, cooldown_s, seconds), detect.fps, detect.heartbeat_s, alerts.merge_s,
alerts.length_max_s, detector.score_min, detector.model. Nothing is written into a site file: the choice is yours.

Exit code 0: a point reaches the aim. 1: none does, or a clip could not be read. 2: wrong use, or a file is wrong.
"""


def add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
    parser.add_argument(
        "--sweep",
        action="append",
        required=True,
        metavar="KEY=VALUES",
        help="a setting and its values: FROM:TO:STEP or VALUE,VALUE; repeatable: every combination",
    )
    parser.add_argument(
        "--aim",
        default="recall>=0.95",
        metavar="AIM",
        help="recall>=R (then the best precision), precision>=P (then the best recall), or f1 (default: %(default)s)",
    )
    parser.add_argument("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
    parser.add_argument("--model", metavar="M", help="use this model instead of what scenarios and sites name")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the trade-off and the table here (one file)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
