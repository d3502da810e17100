"""Command line options of replay, cassette and export, and those that scenario and tune share with them.

Loads no video library.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from appliance.errors import UsageError
from appliance.lab.conditions.condition_spec import conditions_help, parse_conditions

SEED_MAX = 2**32 - 1


def add_conditions(parser: argparse.ArgumentParser, words: str) -> None:
    """Adds `weather` (a list of what was written, each checked) and `seed` to what is parsed. words: for --help."""
    parser.add_argument(
        "--with", dest="weather", action=_ConditionsAction, default=[], metavar="W[,W…]|help", help=words
    )
    parser.add_argument("--seed", type=parse_seed, default=0, metavar="N", help="of the chance in --with (default: 0)")


def parse_seed(text: str) -> int:
    """A whole number that numpy's generators take."""
    if not text.isascii() or not text.isdigit() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"`{text}` is no seed: write a whole number from 0 to {SEED_MAX}")
    return int(text)


class _ConditionsAction(argparse.Action):
    """`help` explains and is done, whatever else is missing on the line; a slip is told before anything is run."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        text = str(values)
        if text.strip() == "help":
            print(conditions_help())
            parser.exit()
        try:
            parse_conditions([text])
        except UsageError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), text])


VERDICT_WAIT_S = 120.0
ORACLE_ENGINE = "stand-in"

CASSETTE_HELP = """\
Verdict cassettes: the cloud's answers as a file, so that a full-loop replay needs no cloud and no GPU.

  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette cassette from-store --config site.yaml week.cassette.jsonl --from 2026-11-13 --to 2026-11-20
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl
"""
FROM_STORE_HELP = """\
Copy the verdicts that this box really got, out of its store, to a new cassette. The store is only read; the appliance
may run meanwhile. Times are of this machine, or UTC with Z; without --from and --to all there is.

  vedette cassette from-store --config site.yaml week.cassette.jsonl
  vedette replay --config site.yaml --camera gate --from 2026-11-20T10:00 --verdicts week.cassette.jsonl

Exit code 0: copied. 1: the store cannot be read. 2: wrong use, or nothing was answered in that time.
"""
CASSETTE_CHECK_HELP = """\
Read a cassette from its first to its last line and say what is on it.

Exit code 0: it is whole. 2: it is not a cassette, or damaged; which line, and what to do about it, is said.
"""


@dataclass(frozen=True, slots=True)
class OracleSettings:
    """error: share of answers turned round; seed: which; latency_s: how long each takes."""

    error: float = 0.0
    seed: int = 0
    latency_s: float = 0.0

    @property
    def text(self) -> str:
        """`stand-in (answers made from the truth, 5 % of them turned round, seed 1)`."""
        turned = f", {100 * self.error:.3g} % of them turned round, seed {self.seed}" if self.error else ""
        return f"{ORACLE_ENGINE} (answers made from the truth{turned})"


@dataclass(frozen=True, slots=True)
class OracleOptions:
    """`stand-in:error=0.05,seed=1`. truth: the scenario file that says what truly happened; None: it is known."""

    settings: OracleSettings = OracleSettings()
    truth: Path | None = None


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """Who is to answer. cloud: a broker's address instead of the site's uplink. wait_s: for one verdict."""

    source: Path | OracleOptions | None = None
    match: Literal["exact", "nearest"] = "exact"
    record: Path | None = None
    cloud: str | None = None
    wait_s: float = VERDICT_WAIT_S

    @property
    def any(self) -> bool:
        """Whether somebody is to answer at all."""
        return self.source is not None or self.record is not None


def add_verdict_options(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette replay`."""
    group = parser.add_argument_group("verdicts (docs/replay.md)")
    group.add_argument(
        "--verdicts",
        type=parse_verdict_source,
        metavar="CASSETTE",
        help="have the questions answered by this cassette, or by stand-in:truth=X.scenario.yaml[,error=0.05,seed=1]",
    )
    group.add_argument(
        "--match",
        choices=("exact", "nearest"),
        default="exact",
        help="nearest: where no answer is exact, that to the same camera, rule and label within 0.5 s (counted apart)",
    )
    group.add_argument(
        "--record-verdicts",
        dest="record",
        type=Path,
        metavar="CASSETTE",
        help="ask the cloud, and write its answers to this cassette; one that is there is gone on with",
    )
    group.add_argument("--cloud", metavar="URL", help="the broker to ask, nats://… (default: the site's uplink)")
    group.add_argument(
        "--verdict-wait",
        dest="wait_s",
        type=_parse_wait_s,
        default=VERDICT_WAIT_S,
        metavar="S",
        help="for one verdict (default: 120)",
    )


def add_cassette_from_store(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette cassette from-store`."""
    parser.add_argument("cassette", type=Path, metavar="CASSETTE", help="the new file")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file, for its storage.dir")
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="what was asked from then on")
    parser.add_argument("--to", dest="t_to", metavar="TIME", help="until then")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def add_cassette_check(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette cassette check`."""
    parser.add_argument("cassette", type=Path, metavar="CASSETTE")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def verdict_options(options: argparse.Namespace) -> VerdictOptions:
    """What `add_verdicts` read."""
    return VerdictOptions(options.verdicts, options.match, options.record, options.cloud, options.wait_s)


def parse_verdict_source(text: str) -> Path | OracleOptions:
    """A path, or `stand-in` with its settings; a file of that name is written ./stand-in."""
    name, colon, rest = text.partition(":")
    if name != ORACLE_ENGINE:
        return Path(text)
    wish = OracleOptions()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        try:
            wish = _with_oracle_setting(wish, key.strip(), value.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"`{part}`: a stand-in takes error=0..1, seed=NUMBER, latency=SECONDS and truth=SCENARIO"
            ) from None
    return wish


def _with_oracle_setting(wish: OracleOptions, key: str, value: str) -> OracleOptions:
    if key == "truth" and value:
        return replace(wish, truth=Path(value))
    if key == "seed":
        return replace(wish, settings=replace(wish.settings, seed=int(value)))
    number = float(value)
    if key == "error" and 0 <= number <= 1:
        return replace(wish, settings=replace(wish.settings, error=number))
    if key == "latency" and 0 <= number <= 86400:
        return replace(wish, settings=replace(wish.settings, latency_s=number))
    raise ValueError(key)


def _parse_wait_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"`{text}`: seconds, 0.1 to 3600")
    return seconds


REPLAY_HELP = """\
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
REPLAY_DIFF_HELP = """\
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
        "--speed", type=parse_speed, default=None, metavar="N|max", help="times real time: 1, 10, … (default: max)"
    )
    parser.add_argument(
        "--log", type=Path, metavar="OUT", help="write the decision log (JSON lines) here; a folder for several runs"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the --log that a killed replay left")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    add_conditions(parser, "weather and faults made of the footage: rain,night,drop:5%%; `--with help` explains them")
    add_verdict_options(parser)


def add_replay_diff(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette replay diff`."""
    parser.add_argument("before", type=Path, metavar="A", help="a replay log, or a folder of them")
    parser.add_argument("after", type=Path, metavar="B", help="the other one")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def parse_speed(text: str) -> float | None:
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


def is_replay_diff(arguments: list[str]) -> bool:
    """Whether `vedette replay …` means the comparison; a clip called `diff` is written ./diff."""
    return arguments[:2] == ["replay", "diff"]


EXPORT_HELP = """\
Export reviewed alerts as training data: pictures with the boxes of what was tracked in alerts that were right, and
pictures without labels of what was a false alarm. Alerts that nobody has reviewed are left out and counted.

  vedette export --config site.yaml --format yolo --to my-data/
  vedette export --config site.yaml --format coco --to my-data/ --labels person,car --from 2026-11-01T00:00 --zip

The boxes were drawn by the detector, not by a person: see the export's README. The parts are split by incident, and
always the same way. Stopped, the same command goes on; run again after more reviews, it adds what is new.

Exit code 0: exported. 1: the disk is full. 2: wrong use, or the folder holds something else.
"""


def add_export(parser: argparse.ArgumentParser) -> None:
    """The arguments of `export`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.add_argument("--format", choices=("coco", "yolo"), required=True, help="the layout")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="a new folder, or an export to go on with"
    )
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="only alerts from then on (2026-11-20T10:00)")
    parser.add_argument("--to-time", dest="t_to", metavar="TIME", help="only alerts before then")
    parser.add_argument(
        "--labels", metavar="A,B", help="the classes, in their order (default: all that the site's rules watch for)"
    )
    parser.add_argument("--cameras", metavar="A,B", help="only these cameras (default: all)")
    parser.add_argument(
        "--split", type=float, default=0.8, metavar="SHARE", help="share of the incidents to train on (default 0.8)"
    )
    parser.add_argument(
        "--per-alert", type=int, default=6, metavar="N", help="at most so many pictures of an alert (default 6)"
    )
    parser.add_argument("--zip", action="store_true", help="also write DIR.zip")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
