"""The arguments of `vedette scenario run`, apart from what runs it, so that `--help` loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.weather.arguments import add_weather

SCENARIO = """\
Prove on recorded footage that the right things are reported and the wrong ones are not. A scenario is a YAML file
beside a clip that says what must be reported, when, and what must never be; docs/scenarios.md shows how to write one.

  vedette scenario run my-footage/
  vedette scenario run my-footage/ --model models/new.onnx --html report.html
  vedette scenario run yard.scenario.yaml --junit report.xml
  vedette scenario run my-footage/ --with none --with rain,night --with fog:40m --html weather.html
  vedette scenario run my-footage/ -k night --json | jq .scenarios[].status

With the package installed, `pytest my-footage/` runs the same files as tests.
"""
RUN = """\
Run scenarios: replay each clip through the same pipeline as a live camera and hold what was reported against the file.
Folders are searched for *.scenario.yaml.

Exit code 0: all passed. 1: at least one failed. 2: wrong use, or a scenario file is wrong (each fault with its line).
"""


def add_run(parser: argparse.ArgumentParser) -> None:
    """The arguments of `run`."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
    parser.add_argument("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
    add_weather(parser, "run each in this weather instead of its own; repeatable: once in each; `--with help` explains")
    parser.add_argument("--model", metavar="M", help="use this model instead of what scenarios and sites name")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML for a CI server here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with pictures here (one file)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
