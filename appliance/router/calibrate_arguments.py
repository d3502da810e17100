"""The arguments of `vedette calibrate`, apart from what runs it, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

CALIBRATE = """\
What this box has learnt from reviews and verdicts: how likely an alert is real, per camera and label, and which alerts
the router may leave out while it keeps the recall that it claims. The appliance learns by itself, at its start and
every hour; this command shows what it would learn now. It only reads, and the appliance may run meanwhile.

  vedette calibrate --config site.yaml
  vedette calibrate --config site.yaml --recall 0.95
  vedette calibrate --config site.yaml --json | jq '.groups[] | {camera, label, n, claim}'

Exit code 0: done. 1: the storage folder cannot be read. 2: wrong use or configuration.
"""


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """The arguments of `calibrate`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument(
        "--recall",
        type=_share,
        metavar="R",
        help="share of the real alerts that must be kept (default: escalation.router.recall_min)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the calibration here (JSON)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


def _share(text: str) -> float:
    value = float(text)
    if not 0.5 <= value < 1:
        raise argparse.ArgumentTypeError("a recall lies between 0.5 and 1")
    return value
