"""Chooses who answers the escalations of a `vedette replay`, and runs `vedette cassette`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from appliance import config
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock, parse_moment
from appliance.base.errors import UsageError
from appliance.config import ReplaySections
from appliance.lab.cassette.cassette_recorder import CassetteRecorder, ShowStatus, cassette_from_store, recording_site
from appliance.replay.cassette_file import CassettePlayer, CassetteReader
from appliance.replay.verdict_source import OracleOptions, VerdictOptions, VerdictSource
from appliance.uplink.verdict_client import VerdictClient

# A site escalates only with an uplink. With verdicts at hand it does as if it had one; nothing is contacted.
_SOME_UPLINK = BrokerConfig(url="nats://127.0.0.1:4222")

MakeOracle = Callable[[OracleOptions, Collection[str]], VerdictSource]
"""Makes the oracle judge of the command line; lab.scenario reads the truth it needs."""


@dataclass(slots=True)
class ActiveVerdictSource:
    """The source of a replay's verdicts while the replay runs."""

    source: VerdictSource | None = None  # None: no escalation is answered
    show: ShowStatus = lambda sentence: None  # may be set while it runs

    def show_status(self, sentence: str) -> None:
        self.show(sentence)


def site_for_verdicts(site: ReplaySections, options: VerdictOptions) -> ReplaySections:
    """The site as it escalates: with the broker of --cloud, or some uplink where verdicts are at hand. Raises
    UsageError."""
    if options.cloud is not None and options.record is None:
        raise UsageError("--cloud is who to ask while recording: say where to with --record-verdicts CASSETTE")
    if options.source is not None and options.record is not None:
        raise UsageError(
            "--verdicts plays a cassette, --record-verdicts makes one or goes on with one: use one of the two"
        )
    if options.match == "nearest" and not isinstance(options.source, Path):
        raise UsageError("--match nearest is about a cassette: name it with --verdicts CASSETTE")
    if options.cloud is not None:
        try:
            return _escalating(site, BrokerConfig(url=options.cloud))
        except ValidationError:
            raise UsageError(f"--cloud {options.cloud}: write an address such as nats://127.0.0.1:4222") from None
    if options.record is not None and site.uplink is None:
        raise UsageError("who is to be asked? Name the broker: --cloud nats://… (the site file has no uplink)")
    return _escalating(site, _SOME_UPLINK) if options.any and site.uplink is None else site


def _escalating(site: ReplaySections, uplink: BrokerConfig) -> ReplaySections:
    return replace(site, uplink=uplink, decisions=replace(site.decisions, has_uplink=True))


@contextlib.contextmanager
def open_verdict_source(
    site: ReplaySections, options: VerdictOptions, oracle: MakeOracle | None = None
) -> Iterator[ActiveVerdictSource]:
    """The source that the options name, open while the replay runs. Raises UsageError, UplinkError, OSError."""
    if options.record is not None:
        assert site.uplink is not None, "see site_for_verdicts"
        clock, found = SystemClock(), ActiveVerdictSource()
        with (
            VerdictClient(site.uplink, recording_site(), clock, options.wait_s) as client,
            contextlib.closing(_recorder(options.record, client, clock, found.show_status)) as recorder,
        ):
            found.source = recorder
            yield found
    elif isinstance(options.source, Path):
        with contextlib.closing(CassettePlayer(options.source, options.match)) as player:
            yield ActiveVerdictSource(player)
    elif options.source is not None:
        if oracle is None or options.source.truth is None:
            raise UsageError(
                "a stand-in answers from a scenario's truth: say which, --verdicts stand-in:truth=door.scenario.yaml"
            )
        yield ActiveVerdictSource(oracle(options.source, site.decisions.cameras))
    else:
        yield ActiveVerdictSource()


def from_store_command(site_file: Path, cassette: Path, t_from: str | None, t_to: str | None, *, as_json: bool) -> int:
    """Copy an appliance's verdicts to a cassette. Returns 0. Raises UsageError, StoreError."""
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
        counts = {"questions": len(keys), "verdicts": lines, "judges": judges, "decisions": decisions}
        print(json.dumps({**counts, "digest": reader.digest}))
        return 0
    decided = ", ".join(f"{count} {name}" for name, count in sorted(decisions.items()))
    recorded = f", recorded {reader.header.recorded}" if reader.header.recorded else ""
    print(f"{cassette}: {lines} verdicts on {len(keys)} different questions ({decided or 'none'}){recorded}")
    print(f"by {'; '.join(judges)}; digest {reader.digest}")
    return 0


def _recorder(path: Path, client: VerdictClient, clock: SystemClock, show_status: ShowStatus) -> CassetteRecorder:
    try:
        return CassetteRecorder(path, client, clock, show_status)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
