"""The command-line options of `vedette scenario` (run, curve, keep, list, delete) and `vedette tune`, apart from what
runs them, so that `--help` loads nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.lab.lab_arguments import add_conditions

SCENARIO_HELP = """\
Prove on recorded footage that the right things are reported and the wrong ones are not. A scenario is a YAML file
beside a clip that says what must be reported, when, and what must never be; docs/scenarios.md shows how to write one.

  vedette scenario run my-footage/
  vedette scenario run my-footage/ --model models/new.onnx --html report.html
  vedette scenario run yard.scenario.yaml --junit report.xml
  vedette scenario run my-footage/ --with none --with rain,night --with fog:40m --html weather.html
  vedette scenario run my-footage/ -k night --json | jq .scenarios[].status

With the package installed, `pytest my-footage/` runs the same files as tests.
"""
RUN_HELP = """\
Run scenarios: replay each clip through the same pipeline as a live camera and hold what was reported against the file.
Folders are searched for *.scenario.yaml.

Exit code 0: all passed. 1: at least one failed. 2: wrong use, or a scenario file is wrong (each fault with its line).
"""


def add_run(parser: argparse.ArgumentParser) -> None:
    """The arguments of `run`."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
    parser.add_argument("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
    add_conditions(
        parser, "run each in this weather instead of its own; repeatable: once in each; `--with help` explains"
    )
    parser.add_argument("--model", metavar="M", help="use this model instead of what scenarios and sites name")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML for a CI server here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with pictures here (one file)")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


CURVE_HELP = """\
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


TUNE_HELP = """\
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


KEEP_HELP = """\
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
LIST_HELP = """\
List the scenarios that were kept on this box.

  vedette scenario list --config site.yaml
  vedette scenario list --config site.yaml --json | jq .scenarios[].bytes
"""
DELETE_HELP = """\
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
