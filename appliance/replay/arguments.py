"""The command line of `vedette replay` and `vedette replay diff`: options, and help that teaches."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.replay.cassette_arguments import add_verdicts
from appliance.weather.arguments import add_weather

REPLAY = """\
Send recorded footage through the same pipeline as a live camera and print the events, the alerts and what the cloud
would have been asked. The same footage, file and model give the same log, byte for byte, at any speed.

A clip, a folder of clips (each its own run), or several cameras together, synchronised:
  vedette replay door.mp4 --config site.yaml --camera gate
  vedette replay footage/ --config site.yaml --camera gate --log logs/
  vedette replay --config site.yaml --camera gate=gate.mp4 --camera yard=yard.mp4 --log both.jsonl

What this box has recorded (times of this machine, or UTC with Z), while the appliance runs or not:
  vedette replay --config site.yaml --camera gate --from 2026-11-20T10:00 --to 2026-11-20T10:30

Does another model, zone or threshold do better? Replay twice and let the difference be explained:
  vedette replay door.mp4 --config site.yaml --log before.jsonl
  vedette replay door.mp4 --config site-new.yaml --log after.jsonl
  vedette replay diff before.jsonl after.jsonl

Would it still work in the rain, at night, with frames lost? The same seed makes the same weather:
  vedette replay door.mp4 --config site.yaml --with rain,night,drop:5% --seed 3
  vedette replay --with help

A replay that was killed goes on where it was when the same command is given again with --resume.

The whole loop, without a cloud: record what it says to the questions once, play it back ever after:
  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl

Exit code 0: replayed. 1: some footage cannot be read to its end, or a question has no answer on the cassette. 2: wrong
use or configuration.
"""
DIFF = """\
Explain what differs between two replay logs of the same footage: the settings, the first moment, tracks (matched by
place and time, not by number), events, alerts, questions to the cloud and bytes.

  vedette replay diff before.jsonl after.jsonl
  vedette replay diff before.jsonl after.jsonl --json | jq .alerts
  vedette replay diff before/ after/            # two folders of logs, paired by name

Exit code 0: the same was decided. 1: something differs. 2: wrong use, or not a replay log.
"""


def add_replay(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette replay`."""
    parser.add_argument("clips", type=Path, nargs="*", metavar="CLIP|FOLDER", help="video files, or folders of them")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file with zones and rules")
    parser.add_argument(
        "--camera",
        action="append",
        default=[],
        metavar="NAME[=CLIP]",
        help="whose zones and rules (default: the only camera of the file); with =CLIP repeatable: played together",
    )
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="replay what this box recorded from then on")
    parser.add_argument("--to", dest="t_to", metavar="TIME", help="until then (default: to the end of the recording)")
    parser.add_argument("--model", metavar="M", help="use this model instead of the file's detector.model")
    parser.add_argument(
        "--speed", type=speed, default=None, metavar="N|max", help="times real time: 1, 10, … (default: max)"
    )
    parser.add_argument(
        "--log", type=Path, metavar="OUT", help="write the decision log (JSON lines) here; a folder for several runs"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the --log that a killed replay left")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    add_weather(parser, "weather and faults made of the footage: rain,night,drop:5%%; `--with help` explains them")
    add_verdicts(parser)


def add_diff(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette replay diff`."""
    parser.add_argument("before", type=Path, metavar="A", help="a replay log, or a folder of them")
    parser.add_argument("after", type=Path, metavar="B", help="the other one")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def speed(text: str) -> float | None:
    """`max` is None."""
    if text == "max":
        return None
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"`{text}` is no speed: write 1, 10, 0.5 or max")
    return value


def is_diff(arguments: list[str]) -> bool:
    """Whether `vedette replay …` means the comparison; a clip called `diff` is written ./diff."""
    return arguments[:2] == ["replay", "diff"]
