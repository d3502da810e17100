"""Options and help of `vedette scenario` and its verbs: run, compare, curve, keep, list, delete."""

from __future__ import annotations

from pathlib import Path

from appliance.cli.command_table import (
    CONFIG,
    JSON,
    JSON_TABLE,
    CommandTable,
    count,
    json_switch,
    option,
    share,
    switch,
)
from appliance.cli.options.replay import condition_options

SCENARIO = CommandTable()
PATHS = option("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
PATTERN = option("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
MODEL = option("--model", metavar="M", help="use this model instead of what scenarios and sites name")
_FOLDER = option("--to", type=Path, metavar="DIR", help="the folder of scenarios (default: scenarios/ in storage.dir)")

SCENARIO.command(
    "scenario",
    "prove on recorded footage what must and must not be reported",
    """\
Prove on recorded footage that the right things are reported and the wrong ones are not. A scenario is a YAML file
beside a clip that says what must be reported, when, and what must never be; docs/scenarios.md shows how to write one.

  vedette scenario run my-footage/
  vedette scenario run my-footage/ --model models/new.onnx --html report.html
  vedette scenario run yard.scenario.yaml --junit report.xml
  vedette scenario run my-footage/ --with none --with rain,night --with fog:40m --html weather.html
  vedette scenario run my-footage/ -k night --json | jq .scenarios[].status

With the package installed, `pytest my-footage/` runs the same files as tests.
""",
)


SCENARIO.command(
    "scenario run",
    "run scenario files, or all in a folder",
    """\
Run scenarios: replay each clip through the same pipeline as a live camera and compare what it reports with the file.
Folders are searched for *.scenario.yaml.

Exit code 0: all passed. 1: at least one failed. 2: wrong use, or a scenario file is wrong (each fault with its line).
""",
    PATHS,
    PATTERN,
    *condition_options("run each in this weather instead of its own; repeatable: once in each; `--with help` explains"),
    MODEL,
    option("--junit", type=Path, metavar="FILE", help="write JUnit XML for a CI server here"),
    option("--html", type=Path, metavar="FILE", help="write a report with images here (one file)"),
    JSON_TABLE,
    run="appliance.lab.scenario.scenario_command:run_command",
)


SCENARIO.command(
    "scenario compare",
    "compare a variant of a network with the one it would replace",
    """\
Run scenarios with a network and with a variant of it (INT8, FP16, other weights, a smaller input), print what differs,
and say whether the variant is recommended: nothing that passed fails, no figure is lower by more than --tolerance, no
more false alarms, enough events to tell, and at least 5 % less CPU time. The result is kept beside the variant's file,
where `vedette check` reads it; a variant that was never measured is named there.

  vedette scenario compare vedette-nano models/my-int8.onnx my-footage/
  vedette scenario compare yolox-nano yolox-nano-int8.onnx my-footage/ -k night --json | jq .reasons

Exit code 0: recommended. 1: not, with the reasons. 2: wrong use, or a scenario file is wrong.
""",
    option("base", metavar="BASE", help="the network as it is: a name of models.toml, or a path to an .onnx"),
    option("variant", metavar="VARIANT", help="what would replace it"),
    PATHS,
    PATTERN,
    option("--tolerance", type=share, default=0.01, metavar="SHARE", help="how much lower a figure may be (0.01)"),
    option("--events-min", type=count, default=10, metavar="N", help="fewer events than these tell nothing (10)"),
    option("--out", type=Path, metavar="FILE", help="keep the result here instead of beside the variant"),
    JSON_TABLE,
    run="appliance.lab.scenario.compare_command:compare_command",
)


SCENARIO.command(
    "scenario curve",
    "compare the router with choosing by motion, score or chance",
    """\
Measure how many of the labelled incidents the router finds for how many bytes, and compare it with choosing by motion,
by detection score or by chance. Replays scenarios that say what truly happens (`expect` with moments, `truth.events`,
or `others: never`); docs/scenarios.md says what is counted.

  vedette scenario curve my-footage/
  vedette scenario curve my-footage/ --html curves.html
  vedette scenario curve my-footage/ --json | jq .comparisons

Exit code 0: measured, whoever is ahead. 1: a clip could not be read. 2: wrong use, or a scenario file is wrong.
""",
    PATHS,
    PATTERN,
    MODEL,
    option(
        "--stand-in-error",
        type=share,
        default=0.05,
        metavar="E",
        help="share of wrong answers of the stand-in for the cloud's verdicts (0.05)",
    ),
    option("--seeds", type=count, default=200, metavar="N", help="how often chance is played: random, stand-in (200)"),
    option("--html", type=Path, metavar="FILE", help="write the curves and tables here (one file)"),
    json_switch("a JSON object instead of tables"),
    run="appliance.lab.curve.curve_command:run_command",
)


SCENARIO.command(
    "scenario keep",
    "keep a reviewed alert as a scenario",
    """\
Keep a reviewed alert as a scenario: its footage, the camera's zones, lines, rules and settings of today, and your
review. A right alert must be reported again, a false alarm never.

  vedette scenario keep 7269cb01fb7ff331 --config site.yaml
  vedette scenario keep 7269cb01fb7ff331 --config site.yaml --name postman --note "at the gate, in the rain" --run
  vedette scenario keep 7269cb01fb7ff331 --config site.yaml --as false --complete --to ~/my-footage

Works while the appliance runs, and after it. The id stands on the alert's page. The clip shows people: it is personal
data, and stays until you delete it.

Exit code 0: kept (with --run: and passed). 1: the footage is gone or the disk is full (with --run: or it failed).
2: wrong use, or something has to be done first, such as reviewing the alert.
""",
    option("alert", metavar="ALERT_ID", help="the alert, as its page and /api/v1/alerts call it"),
    CONFIG,
    _FOLDER,
    option("--name", default="", help="what to call it (default: camera and time)"),
    option("--note", default="", help="a sentence for whoever reads its report"),
    option(
        "--as",
        dest="truth",
        choices=("right", "false"),
        help="what it was, if nobody has reviewed it on the dashboard",
    ),
    switch("--complete", help="you saw the whole clip: nothing else in it should be reported"),
    switch("--run", help="run it at once, with the settings of today"),
    JSON,
    run="appliance.lab.scenario.scenario_command:keep_command",
)


SCENARIO.command(
    "scenario list",
    "list the kept scenarios",
    """\
List the scenarios that were kept on this appliance.

  vedette scenario list --config site.yaml
  vedette scenario list --config site.yaml --json | jq .scenarios[].bytes
""",
    CONFIG,
    _FOLDER,
    JSON_TABLE,
    run="appliance.lab.scenario.scenario_command:list_command",
)


SCENARIO.command(
    "scenario delete",
    "delete a kept scenario",
    """\
Delete a kept scenario with its clip. Nothing else does: neither the quota nor storage.keep_hours touches them.

  vedette scenario delete postman --config site.yaml
""",
    option("name", metavar="NAME", help="as `vedette scenario list` calls it"),
    CONFIG,
    _FOLDER,
    run="appliance.lab.scenario.scenario_command:delete_command",
)
