"""The arguments of `vedette notify`, apart from what runs it, so that `--help` loads nothing."""

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
