"""The arguments of `vedette scenario keep`, `list` and `delete`, apart from what runs them."""

from __future__ import annotations

import argparse
from pathlib import Path

KEEP = """\
Keep a reviewed alert as a scenario: its footage, the camera's zones, lines, rules and settings of today, and what you
said of it. A right alert must come again, a false alarm never.

  vedette scenario keep 7269cb01fb7ff331 --config site.yaml
  vedette scenario keep 7269cb01fb7ff331 --config site.yaml --name postman --note "at the gate, in the rain" --run
  vedette scenario keep 7269cb01fb7ff331 --config site.yaml --as false --complete --to ~/my-footage

Works while the appliance runs, and after it. The id stands on the alert's page. The clip shows people: it is personal
data, and stays until you delete it.

Exit code 0: kept (with --run: and passed). 1: the footage is gone or the disk is full (with --run: or it failed).
2: wrong use, or something has to be done first, such as reviewing the alert.
"""
LIST = """\
List the scenarios that were kept on this box.

  vedette scenario list --config site.yaml
  vedette scenario list --config site.yaml --json | jq .scenarios[].bytes
"""
DELETE = """\
Delete a kept scenario with its clip. Nothing else does: neither the quota nor storage.keep_hours touches them.

  vedette scenario delete postman --config site.yaml
"""


def add_keep(parser: argparse.ArgumentParser) -> None:
    """The arguments of `keep`."""
    parser.add_argument("alert", metavar="ALERT_ID", help="the alert, as its page and /api/v1/alerts call it")
    _common(parser)
    parser.add_argument("--name", default="", help="what to call it (default: camera and time)")
    parser.add_argument("--note", default="", help="a sentence for whoever reads its report")
    parser.add_argument(
        "--as", dest="truth", choices=("right", "false"), help="what it was, if nobody has reviewed it on the dashboard"
    )
    parser.add_argument(
        "--complete", action="store_true", help="you saw the whole clip: nothing else in it should be reported"
    )
    parser.add_argument("--run", action="store_true", help="run it at once, with the settings of today")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def add_list(parser: argparse.ArgumentParser) -> None:
    """The arguments of `list`."""
    _common(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


def add_delete(parser: argparse.ArgumentParser) -> None:
    """The arguments of `delete`."""
    parser.add_argument("name", metavar="NAME", help="as `vedette scenario list` calls it")
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="the folder of scenarios (default: scenarios/ in storage.dir)"
    )
