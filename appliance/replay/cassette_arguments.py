"""The command line about verdicts: options of `vedette replay`, and `vedette cassette`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

WAIT_S = 120.0
ENGINE = "stand-in"

CASSETTE = """\
Verdict cassettes: the cloud's answers as a file, so that a full-loop replay needs no cloud and no GPU.

  vedette replay door.mp4 --config site.yaml --record-verdicts door.cassette.jsonl --cloud nats://127.0.0.1:4222
  vedette cassette from-store --config site.yaml week.cassette.jsonl --from 2026-11-13 --to 2026-11-20
  vedette replay door.mp4 --config site.yaml --verdicts door.cassette.jsonl
"""
FROM_STORE = """\
Copy the verdicts that this box really got, out of its store, to a new cassette. The store is only read; the appliance
may run meanwhile. Times are of this machine, or UTC with Z; without --from and --to all there is.

  vedette cassette from-store --config site.yaml week.cassette.jsonl
  vedette replay --config site.yaml --camera gate --from 2026-11-20T10:00 --verdicts week.cassette.jsonl

Exit code 0: copied. 1: the store cannot be read. 2: wrong use, or nothing was answered in that time.
"""
CHECK = """\
Read a cassette from its first to its last line and say what is on it.

Exit code 0: it is whole. 2: it is not a cassette, or damaged; which line, and what to do about it, is said.
"""


@dataclass(frozen=True, slots=True)
class StandInSettings:
    """error: share of answers turned round; seed: which; latency_s: how long each takes."""

    error: float = 0.0
    seed: int = 0
    latency_s: float = 0.0

    @property
    def words(self) -> str:
        """`stand-in (answers made from the truth, 5 % of them turned round, seed 1)`."""
        turned = f", {100 * self.error:.3g} % of them turned round, seed {self.seed}" if self.error else ""
        return f"{ENGINE} (answers made from the truth{turned})"


@dataclass(frozen=True, slots=True)
class StandInWish:
    """`stand-in:error=0.05,seed=1`. truth: the scenario file that says what truly happened; None: it is known."""

    settings: StandInSettings = StandInSettings()
    truth: Path | None = None


@dataclass(frozen=True, slots=True)
class VerdictWishes:
    """Who is to answer. cloud: a broker's address instead of the site's uplink. wait_s: for one verdict."""

    verdicts: Path | StandInWish | None = None
    match: Literal["exact", "nearest"] = "exact"
    record: Path | None = None
    cloud: str | None = None
    wait_s: float = WAIT_S

    @property
    def any(self) -> bool:
        """Whether somebody is to answer at all."""
        return self.verdicts is not None or self.record is not None


def add_verdicts(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette replay`."""
    group = parser.add_argument_group("verdicts (docs/replay.md)")
    group.add_argument(
        "--verdicts",
        type=verdicts,
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
        "--verdict-wait", dest="wait_s", type=_wait, default=WAIT_S, metavar="S", help="for one verdict (default: 120)"
    )


def add_from_store(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette cassette from-store`."""
    parser.add_argument("cassette", type=Path, metavar="CASSETTE", help="the new file")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file, for its storage.dir")
    parser.add_argument("--from", dest="t_from", metavar="TIME", help="what was asked from then on")
    parser.add_argument("--to", dest="t_to", metavar="TIME", help="until then")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def add_check(parser: argparse.ArgumentParser) -> None:
    """The options of `vedette cassette check`."""
    parser.add_argument("cassette", type=Path, metavar="CASSETTE")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def wishes(options: argparse.Namespace) -> VerdictWishes:
    """What `add_verdicts` read."""
    return VerdictWishes(options.verdicts, options.match, options.record, options.cloud, options.wait_s)


def verdicts(text: str) -> Path | StandInWish:
    """A path, or `stand-in` with its settings; a file of that name is written ./stand-in."""
    name, colon, rest = text.partition(":")
    if name != ENGINE:
        return Path(text)
    wish = StandInWish()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        try:
            wish = _with(wish, key.strip(), value.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"`{part}`: a stand-in takes error=0..1, seed=NUMBER, latency=SECONDS and truth=SCENARIO"
            ) from None
    return wish


def _with(wish: StandInWish, key: str, value: str) -> StandInWish:
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


def _wait(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"`{text}`: seconds, 0.1 to 3600")
    return seconds
