"""The commands that work on detectors: evaluate on labelled images, bench on this machine, export to train one."""

from __future__ import annotations

from pathlib import Path

from appliance.cli.command_table import (
    CONFIG,
    JSON,
    CommandTable,
    count,
    json_switch,
    option,
    seconds,
    share,
    switch,
)

DETECTOR = CommandTable()
_SETS = "labelled sets (docs/detector.md)"

DETECTOR.command(
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


DETECTOR.command(
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


DETECTOR.command(
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
