"""Options and help of the commands of the lab: scenario and its verbs, tune, evaluate, bench, export."""

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
    seconds,
    share,
    switch,
)
from appliance.cli.replay_options import condition_options

LAB = CommandTable()
PATHS = option("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
PATTERN = option("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
MODEL = option("--model", metavar="M", help="use this model instead of what scenarios and sites name")
_FOLDER = option("--to", type=Path, metavar="DIR", help="the folder of scenarios (default: scenarios/ in storage.dir)")

LAB.command(
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


LAB.command(
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


LAB.command(
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


LAB.command(
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
    run="appliance.lab.curve_command:run_command",
)


LAB.command(
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


LAB.command(
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


LAB.command(
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


_SETS = "labelled sets (docs/detector.md)"

LAB.command(
    "tune",
    "find the threshold that is best on recorded footage, and say why",
    """\
Find the threshold that is best on your own footage. Runs scenarios (docs/scenarios.md) at every value of a setting,
shows what each reports, misses and raises falsely, and takes the best for your aim, with the reason and the confidence.
Each frame is examined once, so most sweeps cost little more than decoding.

  vedette tune my-footage/ --sweep rules.score_min=0.3:0.8:0.05
  vedette tune my-footage/ --sweep rules.intruder.score_min=0.3:0.8:0.1 --sweep alerts.merge_s=4,8,16 --html tuned.html
  vedette tune my-footage/ --sweep detector.model=vedette-nano,models/new.onnx --aim f1
  vedette tune my-footage/ --sweep detect.fps=2,5,10 --aim 'precision>=0.9' --json | jq .chosen

Settings: rules.KEY or rules.NAME.KEY (score_min, height_min, height_max, cooldown_s, seconds), detect.fps,
detect.heartbeat_s, alerts.merge_s, alerts.length_max_s, detector.score_min, detector.model.
Nothing is written into a site file: the choice is yours.

Exit code 0: a point reaches the aim. 1: none does, or a clip could not be read. 2: wrong use, or a file is wrong.
""",
    PATHS,
    option(
        "--sweep",
        dest="sweeps",
        action="append",
        required=True,
        metavar="KEY=VALUES",
        help="a setting and its values: FROM:TO:STEP or VALUE,VALUE; repeatable: every combination",
    ),
    option(
        "--aim",
        default="recall>=0.95",
        metavar="AIM",
        help="recall>=R (then the best precision), precision>=P (then the best recall), or f1 (default: %(default)s)",
    ),
    PATTERN,
    MODEL,
    option("--html", type=Path, metavar="FILE", help="write the trade-off and the table here (one file)"),
    JSON_TABLE,
    run="appliance.lab.tune_command:tune_command",
)


LAB.command(
    "evaluate",
    "measure detectors on labelled images and clips, side by side",
    """\
Measure what detectors find on images that people have labelled, how sure they are, and what they cost, side by side.
Models are loaded as by `detector.model` of the site file. Cars, buses and trucks count as `vehicle`.

  vedette evaluate vedette-nano --coco instances.json --images images/
  vedette evaluate vedette-nano models/new.onnx --yolo my-set/ --only person
  vedette evaluate vedette-nano builtin:hog --clip film.mp4 --mot gt.txt --classes 1=person,2=car --every 10

Several kinds of view in one table: YOLO folders, folders with one COCO file, clips with .gt.txt beside them:
  vedette evaluate vedette-nano --per day=sets/day --per night=sets/night --per yard=yard.mp4

A regression gate is one command, once the figures are kept:
  vedette evaluate vedette-nano --yolo my-set/ --json > figures.json
  vedette evaluate models/new.onnx --yolo my-set/ --gate figures.json --tolerance 0.01

Exit code 0: measured. 1: a figure fell below the gate. 2: wrong use, or a set or a model is wrong.
""",
    option("models", nargs="+", metavar="MODEL", help="a name of models.toml, a path to an .onnx, or builtin:hog"),
    option("--coco", group=_SETS, type=Path, metavar="FILE", help="a COCO instances file"),
    option("--images", group=_SETS, type=Path, metavar="DIR", help="with --coco: its images (default: beside it)"),
    option("--yolo", group=_SETS, type=Path, metavar="DIR", help="a folder with data.yaml, images/ and labels/"),
    option("--clip", group=_SETS, type=Path, metavar="CLIP", help="a video with true boxes"),
    option("--mot", group=_SETS, type=Path, metavar="FILE", help="with --clip: its truth (default: .gt.txt beside it)"),
    option(
        "--per",
        group=_SETS,
        dest="named_sets",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a kind of view: a YOLO folder, a folder with one COCO file, or a clip with .gt.txt beside it; repeatable",
    ),
    option(
        "--classes",
        group=_SETS,
        default="1=person",
        metavar="N=NAME,…",
        help="what the numbers in the clips' truths mean (default: 1=person); others are ignored",
    ),
    option("--every", group=_SETS, type=count, default=1, metavar="N", help="of clips, every Nth frame (default: 1)"),
    option("--only", default="", metavar="A,B", help="only these classes (default: all that are labelled and known)"),
    switch("--by-class", help="keep car, bus and truck apart"),
    option("--gate", type=Path, metavar="FILE", help="an earlier --json: exit 1 when a figure is worse than there"),
    option("--tolerance", type=share, default=0.01, metavar="T", help="by how much it may be worse (default: 0.01)"),
    json_switch("a JSON object, which --gate reads, instead of a table"),
    run="appliance.lab.evaluate_command:evaluate_command",
)


LAB.command(
    "bench",
    "measure what a network costs on this machine, in every way to run it",
    """\
Measure which backend and precision are fastest here, and what they cost. Each is measured in a process of its own:
latency, CPU time, detections a second with several threads, memory, and energy where the kernel reports it. A backend
that does not run here is listed with the reason.

  vedette bench
  vedette bench vedette-nano models/new.onnx --seconds 5
  vedette bench --json > bench.json

Exit code 0: something ran. 2: nothing did.
""",
    option(
        "models", nargs="*", metavar="MODEL", help="a name of models.toml or a path to an .onnx (default: vedette-nano)"
    ),
    option(
        "--seconds",
        type=seconds,
        default=2.0,
        metavar="S",
        help="how long each thing is measured (default: 2)",
    ),
    json_switch("a JSON object instead of a table"),
    run="appliance.lab.bench_command:bench_command",
)


LAB.command(
    "export",
    "export reviewed alerts as data to train a detector on",
    """\
Export reviewed alerts as training data: images with the boxes of what was tracked in alerts that were right, and
images without labels of false alarms. Alerts without a review are left out and counted.

  vedette export --config site.yaml --format yolo --to my-data/
  vedette export --config site.yaml --format coco --to my-data/ --labels person,car --from 2026-11-01T00:00 --zip
  vedette export --config site.yaml --format training --to site-set/     # for python -m models.train.finetune

`training` is the layout of models/train: only of cameras with `training: true`, also of alerts that a vision-language
model answered, with who answered beside each picture.

The boxes were drawn by the detector, not by a person: see the export's README. The parts are split by incident, and
always the same way. Stopped, the same command goes on; run again after more reviews, it adds what is new.

Exit code 0: exported. 1: the disk is full. 2: wrong use, or the folder holds something else.
""",
    CONFIG,
    option("--format", choices=("coco", "yolo", "training"), required=True, help="the layout"),
    option("--to", type=Path, required=True, metavar="DIR", help="a new folder, or an export to go on with"),
    option("--from", dest="t_from", metavar="TIME", help="only alerts from then on (2026-11-20T10:00)"),
    option("--to-time", dest="t_to", metavar="TIME", help="only alerts before then"),
    option(
        "--labels", metavar="A,B", help="the classes, in their order (default: all that the site's rules watch for)"
    ),
    option("--cameras", metavar="A,B", help="only these cameras (default: all)"),
    option(
        "--split", type=float, default=0.8, metavar="SHARE", help="share of the incidents to train on (default 0.8)"
    ),
    option("--per-alert", type=int, default=6, metavar="N", help="at most so many images of an alert (default 6)"),
    switch("--zip", help="also write DIR.zip"),
    JSON,
    run="appliance.lab.export_command:export_command",
)
