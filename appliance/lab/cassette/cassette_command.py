"""Chooses who answers the escalations of a `vedette replay`, and runs `vedette cassette`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from appliance import config
from appliance.broker_config import BrokerConfig
from appliance.clock import SystemClock, parse_moment
from appliance.config import SiteConfig
from appliance.errors import UsageError
from appliance.lab.cassette.cassette_file import CassettePlayer, CassetteReader
from appliance.lab.cassette.cassette_recorder import CassetteRecorder, ShowStatus, cassette_from_store, recording_site
from appliance.lab.cassette.verdict_source import VerdictSource
from appliance.lab.lab_arguments import OracleOptions, VerdictOptions
from appliance.uplink.verdict_client import VerdictClient

# A site asks only with an uplink. With answers at hand it asks as if it had one; nothing is contacted.
_SOME_UPLINK = BrokerConfig(url="nats://127.0.0.1:4222")

MakeOracle = Callable[[OracleOptions, SiteConfig], VerdictSource]
"""Makes a stand-in of what the command line says; the truth is read by whoever knows scenarios."""


@dataclass(slots=True)
class ActiveVerdictSource:
    """answers None: nobody is to answer. say: where to tell what is waited for; may be set while it runs."""

    source: VerdictSource | None = None
    show: ShowStatus = lambda sentence: None

    def show_status(self, sentence: str) -> None:
        self.show(sentence)


def site_for_verdicts(site: SiteConfig, wishes: VerdictOptions) -> SiteConfig:
    """The site as it asks: with the broker that was named, or some uplink where answers are at hand. Raises
    UsageError."""
    if wishes.cloud is not None and wishes.record is None:
        raise UsageError("--cloud is who to ask while recording: say where to with --record-verdicts CASSETTE")
    if wishes.source is not None and wishes.record is not None:
        raise UsageError(
            "--verdicts plays a cassette, --record-verdicts makes one or goes on with one: use one of the two"
        )
    if wishes.match == "nearest" and not isinstance(wishes.source, Path):
        raise UsageError("--match nearest is about a cassette: name it with --verdicts CASSETTE")
    if wishes.cloud is not None:
        try:
            return site.model_copy(update={"uplink": BrokerConfig(url=wishes.cloud)})
        except ValidationError:
            raise UsageError(f"--cloud {wishes.cloud}: write an address such as nats://127.0.0.1:4222") from None
    if wishes.record is not None and site.uplink is None:
        raise UsageError("who is to be asked? Name the broker: --cloud nats://… (the site file has no uplink)")
    return site.model_copy(update={"uplink": _SOME_UPLINK}) if wishes.any and site.uplink is None else site


@contextlib.contextmanager
def open_verdict_source(
    site: SiteConfig, wishes: VerdictOptions, stand_in: MakeOracle | None = None
) -> Iterator[ActiveVerdictSource]:
    """Whoever answers, for as long as the replay goes. Raises UsageError, UplinkError, OSError."""
    if wishes.record is not None:
        assert site.uplink is not None, "see asking"
        clock, found = SystemClock(), ActiveVerdictSource()
        with (
            VerdictClient(site.uplink, recording_site(), clock, wishes.wait_s) as interview,
            contextlib.closing(_recorder(wishes.record, interview, clock, found.show_status)) as recorder,
        ):
            found.source = recorder
            yield found
    elif isinstance(wishes.source, Path):
        with contextlib.closing(CassettePlayer(wishes.source, wishes.match)) as player:
            yield ActiveVerdictSource(player)
    elif wishes.source is not None:
        if stand_in is None or wishes.source.truth is None:
            raise UsageError(
                "a stand-in answers from a scenario's truth: say which, --verdicts stand-in:truth=door.scenario.yaml"
            )
        yield ActiveVerdictSource(stand_in(wishes.source, site))
    else:
        yield ActiveVerdictSource()


def from_store_command(site_file: Path, cassette: Path, t_from: str | None, t_to: str | None, *, as_json: bool) -> int:
    """Copy a box's verdicts to a cassette. Returns 0. Raises UsageError, StoreError."""
    site = config.load(site_file)
    t0 = parse_moment(t_from) if t_from is not None else float("-inf")
    t1 = parse_moment(t_to) if t_to is not None else float("inf")
    try:
        copied = cassette_from_store(site.storage.dir, cassette, t0, t1, SystemClock())
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


def _recorder(path: Path, interview: VerdictClient, clock: SystemClock, told: ShowStatus) -> CassetteRecorder:
    try:
        return CassetteRecorder(path, interview, clock, told)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
