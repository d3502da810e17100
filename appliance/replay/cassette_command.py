"""Who answers a replay from the command line, and `vedette cassette`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from appliance import config
from appliance.address import Address
from appliance.clock import SystemClock
from appliance.config import SiteConfig
from appliance.errors import UsageError
from appliance.escalate.interview import Interview
from appliance.replay.answers import Answers
from appliance.replay.cassette_arguments import StandInWish, VerdictWishes
from appliance.replay.cassette_file import CassetteReader
from appliance.replay.cassette_player import CassettePlayer
from appliance.replay.cassette_recorder import Recorder, Told, recording_site
from appliance.replay.cassette_store import from_store
from appliance.replay.programme import moment

# A site asks only with an uplink. With answers at hand it asks as if it had one; nothing is contacted.
_SOME_UPLINK = Address(url="nats://127.0.0.1:4222")

MakeStandIn = Callable[[StandInWish, SiteConfig], Answers]
"""Makes a stand-in of what the command line says; the truth is read by whoever knows scenarios."""


@dataclass(slots=True)
class Answering:
    """answers None: nobody is to answer. say: where to tell what is waited for; may be set while it runs."""

    answers: Answers | None = None
    say: Told = lambda sentence: None

    def told(self, sentence: str) -> None:
        self.say(sentence)


def asking(site: SiteConfig, wishes: VerdictWishes) -> SiteConfig:
    """The site as it asks: with the broker that was named, or some uplink where answers are at hand. Raises
    UsageError."""
    if wishes.cloud is not None and wishes.record is None:
        raise UsageError("--cloud is who to ask while recording: say where to with --record-verdicts CASSETTE")
    if wishes.verdicts is not None and wishes.record is not None:
        raise UsageError(
            "--verdicts plays a cassette, --record-verdicts makes one or goes on with one: use one of the two"
        )
    if wishes.match == "nearest" and not isinstance(wishes.verdicts, Path):
        raise UsageError("--match nearest is about a cassette: name it with --verdicts CASSETTE")
    if wishes.cloud is not None:
        try:
            return site.model_copy(update={"uplink": Address(url=wishes.cloud)})
        except ValidationError:
            raise UsageError(f"--cloud {wishes.cloud}: write an address such as nats://127.0.0.1:4222") from None
    if wishes.record is not None and site.uplink is None:
        raise UsageError("who is to be asked? Name the broker: --cloud nats://… (the site file has no uplink)")
    return site.model_copy(update={"uplink": _SOME_UPLINK}) if wishes.any and site.uplink is None else site


@contextlib.contextmanager
def answering(site: SiteConfig, wishes: VerdictWishes, stand_in: MakeStandIn | None = None) -> Iterator[Answering]:
    """Whoever answers, for as long as the replay goes. Raises UsageError, UplinkError, OSError."""
    if wishes.record is not None:
        assert site.uplink is not None, "see asking"
        clock, found = SystemClock(), Answering()
        with (
            Interview(site.uplink, recording_site(), clock, wishes.wait_s) as interview,
            contextlib.closing(_recorder(wishes.record, interview, clock, found.told)) as recorder,
        ):
            found.answers = recorder
            yield found
    elif isinstance(wishes.verdicts, Path):
        with contextlib.closing(CassettePlayer(wishes.verdicts, wishes.match)) as player:
            yield Answering(player)
    elif wishes.verdicts is not None:
        if stand_in is None or wishes.verdicts.truth is None:
            raise UsageError(
                "a stand-in answers from a scenario's truth: say which, --verdicts stand-in:truth=door.scenario.yaml"
            )
        yield Answering(stand_in(wishes.verdicts, site))
    else:
        yield Answering()


def from_store_command(site_file: Path, cassette: Path, t_from: str | None, t_to: str | None, *, as_json: bool) -> int:
    """Copy a box's verdicts to a cassette. Returns 0. Raises UsageError, StoreError."""
    site = config.load(site_file)
    t0 = moment(t_from) if t_from is not None else float("-inf")
    t1 = moment(t_to) if t_to is not None else float("inf")
    try:
        copied = from_store(site.storage.dir, cassette, t0, t1, SystemClock())
    except OSError as error:
        raise UsageError(f"{cassette} cannot be written: {error.strerror}") from None
    judges = list(map(str, copied.judges))
    if as_json:
        print(json.dumps({"questions": copied.questions, "verdicts": copied.lines, "judges": judges}))
    else:
        print(f"{cassette}: {copied.questions} questions, {copied.lines} verdicts, by {'; '.join(judges)}")
    return 0


def check_command(cassette: Path, *, as_json: bool) -> int:
    """Read a whole cassette and say what is on it. Returns 0. Raises UsageError."""
    reader = CassetteReader(cassette)
    decisions: Counter[str] = Counter()
    keys: set[bytes] = set()
    for placed in reader.lines():
        decisions["asks for more" if placed.line.verdict.need else placed.line.verdict.decision] += 1
        keys.add(bytes.fromhex(placed.line.key))
    judges, lines = list(map(str, reader.header.judges)), sum(decisions.values())
    if as_json:
        told = {"questions": len(keys), "verdicts": lines, "judges": judges, "decisions": decisions}
        print(json.dumps({**told, "digest": reader.digest}))
        return 0
    said = ", ".join(f"{count} {name}" for name, count in sorted(decisions.items()))
    recorded = f", recorded {reader.header.recorded}" if reader.header.recorded else ""
    print(f"{cassette}: {lines} verdicts on {len(keys)} different questions ({said or 'none'}){recorded}")
    print(f"by {'; '.join(judges)}; digest {reader.digest}")
    return 0


def _recorder(path: Path, interview: Interview, clock: SystemClock, told: Told) -> Recorder:
    try:
        return Recorder(path, interview, clock, told)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
