"""Options and help of the commands for footage without expectations: replay, and cassettes of the cloud's answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.base.errors import UsageError
from appliance.cli.command_table import CONFIG, JSON, CommandTable, Option, number_between, option, switch

if TYPE_CHECKING:
    from appliance.replay.verdict_source import OracleOptions

REPLAY = CommandTable()
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
        from appliance.replay.footage_conditions import conditions_help, parse_conditions

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
    from appliance.replay.footage_conditions import parse_seed

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


REPLAY.command(
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


REPLAY.command(
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


REPLAY.command(
    "cassette",
    "keep the cloud's answers in a file, for replays without a cloud",
    """\
Verdict cassettes: the cloud's answers as a file, so that a full-loop replay needs no cloud and no GPU.

  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette cassette from-store --config site.yaml week.cassette.jsonl --from 2026-11-13 --to 2026-11-20
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl
""",
)


REPLAY.command(
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
    CONFIG,
    option("--from", dest="t_from", metavar="TIME", help="only verdicts from then on"),
    option("--to", dest="t_to", metavar="TIME", help="until then"),
    JSON,
    run="appliance.lab.cassette_command:from_store_command",
)


REPLAY.command(
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


REPLAY.command(
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
    run="appliance.lab.cassette_command:agree_command",
)
