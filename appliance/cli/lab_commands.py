"""The commands of the lab: scenario, tune, evaluate, bench, export, replay, and cassettes of the cloud's answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.base.errors import UsageError
from appliance.cli.command_table import (
    CONFIG,
    JSON,
    JSON_TABLE,
    CommandTable,
    Option,
    count,
    json_switch,
    number_between,
    option,
    seconds,
    share,
    switch,
)

if TYPE_CHECKING:
    from appliance.replay.verdict_source import OracleOptions

LAB = CommandTable()
PATHS = option("paths", type=Path, nargs="+", metavar="PATH", help="a scenario file, or a folder of them")
PATTERN = option("-k", dest="pattern", default="", metavar="PATTERN", help="only those with this in their name")
MODEL = option("--model", metavar="M", help="use this model instead of what scenarios and sites name")
FOLDER = option("--to", type=Path, metavar="DIR", help="the folder of scenarios (default: scenarios/ in storage.dir)")
_SETS = "labelled sets (docs/detector.md)"
_VERDICTS = "verdicts (docs/replay.md)"


def condition_options(help: str) -> tuple[Option, ...]:
    return (
        option("--with", dest="conditions", action=_ConditionsAction, default=[], metavar="W[,W…]|help", help=help),
        option("--seed", type=_seed, default=0, metavar="N", help="seed of the randomness in --with (default: 0)"),
    )


class _ConditionsAction(argparse.Action):
    """`--with help` explains the conditions and ends, whatever else is missing; a wrong one is refused at once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from appliance.replay.conditions.condition_spec import conditions_help, parse_conditions

        text = str(values)
        if text.strip() == "help":
            print(conditions_help())
            parser.exit()
        try:
            parse_conditions([text])
        except UsageError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), text])


def _seed(text: str) -> int:
    from appliance.replay.conditions.condition_spec import parse_seed

    return parse_seed(text)


def _speed(text: str) -> float | None:
    """Read a speed; `max` is None."""
    if text == "max":
        return None
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"`{text}` is no speed: write 1, 10, 0.5 or max")
    return value


def _verdicts(text: str) -> Path | OracleOptions:
    from appliance.replay.verdict_source import parse_verdict_source

    return parse_verdict_source(text)


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
    run="appliance.lab.curve.curve_command:run_command",
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
    FOLDER,
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
    run="appliance.lab.scenario.keep_command:keep_command",
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
    FOLDER,
    JSON_TABLE,
    run="appliance.lab.scenario.keep_command:list_command",
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
    FOLDER,
    run="appliance.lab.scenario.keep_command:delete_command",
)


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
    run="appliance.lab.tune.tune_command:tune_command",
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
    run="appliance.lab.evaluate.evaluate_command:evaluate_command",
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


LAB.command(
    "replay",
    "send a recorded clip through the pipeline and print what it would have raised",
    """\
Send recorded footage through the same pipeline as a live camera and print the events, the alerts and the
escalations. The same footage, file and model give the same log, byte for byte, at any speed.

A clip, with the default settings and rules for people and vehicles in the whole frame:
  vedette replay door.mp4

With a site file: a clip, a folder of clips (each its own run), or several cameras together, synchronised:
  vedette replay door.mp4 --config site.yaml --camera gate
  vedette replay footage/ --config site.yaml --camera gate --log logs/
  vedette replay --config site.yaml --camera gate=gate.mp4 --camera yard=yard.mp4 --log both.jsonl

The recording of this appliance (times of this machine, or UTC with Z), while the appliance runs or not:
  vedette replay --config site.yaml --camera gate --from 2026-11-20T10:00 --to 2026-11-20T10:30

Does another model, zone or threshold do better? Replay twice and let the difference be explained:
  vedette replay door.mp4 --config site.yaml --log before.jsonl
  vedette replay door.mp4 --config site-new.yaml --log after.jsonl
  vedette replay diff before.jsonl after.jsonl

Would it still work in the rain, at night, with frames lost? The same seed makes the same weather:
  vedette replay door.mp4 --config site.yaml --with rain,night,drop:5% --seed 3
  vedette replay --with help

With objects that stood there before the footage began, from an earlier log or from what this appliance keeps:
  vedette replay later.mp4 --config site.yaml --stood-before earlier.jsonl
  vedette replay later.mp4 --config site.yaml --stood-before vedette-data

A replay that was killed goes on where it was when the same command is given again with --resume.

The whole loop, without a cloud: record its verdicts once, and play them back from then on:
  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl

Exit code 0: replayed. 1: some footage cannot be read to its end, or an escalation has no verdict on the cassette.
2: wrong use or configuration.
""",
    option("paths", type=Path, nargs="*", metavar="CLIP|FOLDER", help="video files, or folders of them"),
    option(
        "--config",
        dest="site_file",
        type=Path,
        metavar="FILE",
        help="the site file with zones and rules (default: people and vehicles that enter the frame)",
    ),
    option(
        "--camera",
        dest="cameras",
        action="append",
        default=[],
        metavar="NAME[=CLIP]",
        help="whose zones and rules (default: the only camera of the file); with =CLIP repeatable: played together",
    ),
    option("--from", dest="t_from", metavar="TIME", help="replay what this appliance recorded from then on"),
    option("--to", dest="t_to", metavar="TIME", help="until then (default: to the end of the recording)"),
    option("--model", metavar="M", help="use this model instead of the file's detector.model"),
    option("--speed", type=_speed, metavar="N|max", help="times real time: 1, 10, … (default: max)"),
    option(
        "--log", type=Path, metavar="OUT", help="write the decision log (JSON lines) here; a folder for several runs"
    ),
    switch("--resume", help="continue the --log of a replay that was killed"),
    option(
        "--stood-before",
        type=Path,
        metavar="LOG|FILE|FOLDER",
        help="what stood there before: an earlier replay log, parked/NAME.json, or the storage folder that holds it",
    ),
    option(
        "--hardware",
        choices=("cuda", "v4l2", "drm", "vaapi", "qsv"),
        help="decode by it, as the file's decode section describes it (default: software, whatever the file says)",
    ),
    JSON,
    *condition_options("weather and faults made of the footage: rain,night,drop:5%%; `--with help` explains them"),
    option(
        "--verdicts",
        group=_VERDICTS,
        dest="source",
        type=_verdicts,
        metavar="CASSETTE",
        help="have escalations answered by this cassette, or by stand-in:truth=X.scenario.yaml[,error=0.05,seed=1]",
    ),
    option(
        "--match",
        group=_VERDICTS,
        choices=("exact", "nearest"),
        help="nearest: where no answer is exact, that to the same camera, rule and label within 0.5 s (counted apart); "
        "default: nearest for a cassette from the store, else exact",
    ),
    option(
        "--record-verdicts",
        group=_VERDICTS,
        dest="record",
        type=Path,
        metavar="CASSETTE",
        help="ask the cloud, and write its answers to this cassette; an existing one is continued",
    ),
    option("--cloud", group=_VERDICTS, metavar="URL", help="the broker to ask, nats://… (default: the site's uplink)"),
    option(
        "--verdict-wait",
        group=_VERDICTS,
        dest="wait_s",
        type=number_between(0.1, 3600, "length in seconds"),
        default=120.0,
        metavar="S",
        help="for one verdict (default: 120)",
    ),
    run="appliance.lab.replay_command:run_command",
)


LAB.command(
    "replay diff",
    None,
    """\
Explain what differs between two replay logs of the same footage: the settings, the first moment, tracks (matched by
place and time, not by number), events, alerts, escalations and bytes.

  vedette replay diff before.jsonl after.jsonl
  vedette replay diff before.jsonl after.jsonl --json | jq .alerts
  vedette replay diff before/ after/            # two folders of logs, paired by name

Exit code 0: the same was decided. 1: something differs. 2: wrong use, or not a replay log.
""",
    option("before", type=Path, metavar="A", help="a replay log, or a folder of them"),
    option("after", type=Path, metavar="B", help="the other one"),
    JSON,
    run="appliance.lab.replay_diff_command:diff_command",
)


LAB.command(
    "cassette",
    "keep the cloud's answers in a file, for replays without a cloud",
    """\
Verdict cassettes: the cloud's answers as a file, so that a full-loop replay needs no cloud and no GPU.

  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette cassette from-store --config site.yaml week.cassette.jsonl --from 2026-11-13 --to 2026-11-20
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl
""",
)

LAB.command(
    "cassette from-store",
    "copy the verdicts that this appliance received",
    """\
Copy the verdicts that this appliance received from its store to a new cassette. The store is only read; the appliance
may run meanwhile. Times are of this machine, or UTC with Z; without --from and --to all verdicts.

  vedette cassette from-store --config site.yaml week.cassette.jsonl
  vedette replay --config site.yaml --camera gate --from 2026-11-20T10:00 --verdicts week.cassette.jsonl

Its verdicts are found by the time of day, for the recording of the same minutes; a clip has no time of day.

Exit code 0: copied. 1: the store cannot be read. 2: wrong use, or there was no verdict in that time.
""",
    option("cassette", type=Path, metavar="CASSETTE", help="the new file"),
    option(
        "--config",
        dest="site_file",
        type=Path,
        required=True,
        metavar="FILE",
        help="the site file, for its storage.dir",
    ),
    option("--from", dest="t_from", metavar="TIME", help="only verdicts from then on"),
    option("--to", dest="t_to", metavar="TIME", help="until then"),
    JSON,
    run="appliance.lab.cassette_command:from_store_command",
)


LAB.command(
    "cassette check",
    "read a cassette and print what is on it",
    """\
Read a cassette from its first to its last line and print what is on it.

Exit code 0: it is whole. 2: it is not a cassette, or damaged (with the line and the remedy).
""",
    option("cassette", type=Path, metavar="CASSETTE"),
    JSON,
    run="appliance.lab.cassette_command:check_command",
)


LAB.command(
    "cassette agree",
    "how often the verdicts of cassettes are true",
    """\
Compare cassettes of the same escalations with what is true, by rule, each with its 95 % interval: which model, or which
order of the answer (engine.answer_order of the worker file), judges better. Truth are the entries of a scenario, or
what people said of the alerts of a site, for cassettes made by `cassette from-store`.

  vedette replay door.mp4 --config site.yaml --record-verdicts reason.cassette.jsonl --cloud nats://127.0.0.1:4222
  (the worker again with answer_order: decision_first, and --record-verdicts decision.cassette.jsonl)
  vedette cassette agree reason.cassette.jsonl decision.cassette.jsonl --truth door.scenario.yaml

Exit code 0: compared; an order without a cassette is named. 2: wrong use, or there is nothing to compare.
""",
    option("cassettes", type=Path, nargs="+", metavar="CASSETTE"),
    option("--truth", type=Path, metavar="SCENARIO", help="a scenario of the same footage"),
    option("--config", dest="site_file", type=Path, metavar="FILE", help="the site file whose alerts people reviewed"),
    JSON,
    run="appliance.lab.cassette_agreement:agree_command",
)
