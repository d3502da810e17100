"""The options of `vedette notify` and `vedette egress`, apart from what runs them, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

NOTIFY = "Who is told of alerts: the targets of `notify` in the site file (docs/notify.md)."
TEST = """\
Send each target of the site file a test message, and say what came back. The appliance may run meanwhile; nothing is
stored.

  vedette notify test --config site.yaml
  vedette notify test --config site.yaml --target phone

Exit code 0: all took it. 1: one did not. 2: wrong use or configuration.
"""


def add_test(parser: argparse.ArgumentParser) -> None:
    """The arguments of `notify test`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument("--target", metavar="NAME", help="only this one")
    parser.add_argument("--json", action="store_true", help="print one JSON line a target")


EGRESS = """\
What left this site, when, why, and how many bytes: one line for each set of facts, picture and clip that the broker
has stored, and each notification that arrived, from the audit table, which nothing deletes. It only reads, and the
appliance may run meanwhile.

  vedette egress --config site.yaml
  vedette egress --config site.yaml --camera gate --from 2026-11-20T22:00 --to 2026-11-21T06:00
  vedette egress --config site.yaml --pictures              # what had pixels in it
  vedette egress --config site.yaml --json | jq 'select(.kind == "clip") | .sha256'

The sha256 is that of the file in the storage folder (of facts: of the JSON that was sent), so that each line can be
held against what is there. Exit code 0: done. 1: the storage folder cannot be read. 2: wrong use or configuration.
"""


def add_egress(parser: argparse.ArgumentParser) -> None:
    """The arguments of `egress`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="only what left from then on (2026-11-20T10:00)")
    parser.add_argument("--to", dest="t_to", metavar="TIME", help="only what left before then")
    parser.add_argument("--camera", metavar="NAME", help="only of this camera")
    parser.add_argument("--pictures", action="store_true", help="only what had pixels in it")
    parser.add_argument("--json", action="store_true", help="print JSON lines, one for each thing that left")
