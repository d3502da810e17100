"""The arguments of `vedette export`, apart from what runs it, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

EXPORT = """\
Export reviewed alerts as training data: pictures with the boxes of what was tracked in alerts that were right, and
pictures without labels of what was a false alarm. Alerts that nobody has reviewed are left out and counted.

  vedette export --config site.yaml --format yolo --to my-data/
  vedette export --config site.yaml --format coco --to my-data/ --labels person,car --from 2026-11-01T00:00 --zip

The boxes were drawn by the detector, not by a person: see the export's README. The parts are split by incident, and
always the same way. Stopped, the same command goes on; run again after more reviews, it adds what is new.

Exit code 0: exported. 1: the disk is full. 2: wrong use, or the folder holds something else.
"""


def add_export(parser: argparse.ArgumentParser) -> None:
    """The arguments of `export`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument("--format", choices=("coco", "yolo"), required=True, help="the layout")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="a new folder, or an export to go on with"
    )
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="only alerts from then on (2026-11-20T10:00)")
    parser.add_argument("--to-time", dest="t_to", metavar="TIME", help="only alerts before then")
    parser.add_argument(
        "--labels", metavar="A,B", help="the classes, in their order (default: all that the site's rules watch for)"
    )
    parser.add_argument("--cameras", metavar="A,B", help="only these cameras (default: all)")
    parser.add_argument(
        "--split", type=float, default=0.8, metavar="SHARE", help="share of the incidents to train on (default 0.8)"
    )
    parser.add_argument(
        "--per-alert", type=int, default=6, metavar="N", help="at most so many pictures of an alert (default 6)"
    )
    parser.add_argument("--zip", action="store_true", help="also write DIR.zip")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
