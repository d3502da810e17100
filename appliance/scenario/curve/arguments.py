"""The arguments of `vedette scenario curve`, apart from what runs it, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

CURVE = """\
How many of the labelled incidents does the router find for how many bytes, and is that better than choosing by motion,
by detection score or by chance? Replays scenarios that say what truly happens (`expect` with moments, `truth.events`,
or `others: never`) and compares; docs/scenarios.md says what is counted.

  vedette scenario curve my-footage/
  vedette scenario curve my-footage/ --html curves.html
  vedette scenario curve my-footage/ --json | jq .comparisons

Exit code 0: measured, whoever is ahead. 1: a clip could not be read. 2: wrong use, or a scenario file is wrong.
"""


def add_curve(parser: argparse.ArgumentParser) -> None:
    """The arguments of `curve`."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
    parser.add_argument("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
    parser.add_argument("--model", metavar="M", help="use this model instead of what scenarios and sites name")
    parser.add_argument(
        "--stand-in-error",
        type=_share,
        default=0.05,
        metavar="E",
        help="share of wrong answers of the stand-in for the cloud's verdicts (0.05)",
    )
    parser.add_argument(
        "--seeds", type=_count, default=200, metavar="N", help="how often chance is played: random, stand-in (200)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the curves and tables here (one file)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of tables")


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("a share lies between 0 and 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError("1 to 10000")
    return value
