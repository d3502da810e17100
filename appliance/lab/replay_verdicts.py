"""Gets the verdicts of `vedette replay`: from a cassette, a stand-in, or a cloud that is asked and recorded."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from appliance import version
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import Clock, SystemClock, iso_utc
from appliance.base.errors import UplinkError, UsageError
from appliance.config import ReplaySections
from appliance.replay.cassette_file import (
    CassetteHeader,
    CassetteLine,
    CassettePlayer,
    CassetteReader,
    CassetteWriter,
    Judge,
    key_of,
    media_of,
    query_at,
    stages_of,
)
from appliance.replay.verdict_source import (
    AnsweredBy,
    FootageRef,
    OracleOptions,
    ReplayEscalation,
    SourcedVerdict,
    VerdictOptions,
    VerdictSource,
)
from appliance.uplink.verdict_client import TimedVerdict, VerdictClient

logger = logging.getLogger(__name__)
ShowStatus = Callable[[str], None]
"""Shows a sentence on what is being waited for; "" when it is over."""

SILENT_MAX = 3  # escalations in a row without a verdict, after which recording stops; at the beginning one


@dataclass(slots=True)
class CassetteRecorderCounts:
    """Escalations of one recording."""

    asked: int = 0  # sent to the cloud
    known: int = 0  # answered from the cassette
    silent: int = 0  # without a verdict in time


class CassetteRecorder:
    """Sends one escalation at a time and waits for its verdict, so the recording's log equals that of its replay.

    State: the verdicts on the cassette, the open file, the counts. Owner: one replay. Invariant: a verdict is on the
    cassette before the replay has it. An existing cassette is continued: only escalations that are not on it are sent.
    """

    def __init__(
        self, path: Path, cloud: VerdictClient, clock: Clock, show_status: ShowStatus = lambda sentence: None
    ) -> None:
        """Open or continue the cassette. Raise UsageError when `path` is no cassette, OSError."""
        self._path = path
        self._cloud = cloud
        self._clock = clock
        self._show_status = show_status
        self._writer = CassetteWriter(path)
        self._known: dict[str, SourcedVerdict] = {}
        if self._writer.header is not None:
            for placed in CassetteReader(path).lines():
                self._known[placed.line.key] = SourcedVerdict(placed.line.verdict, placed.line.total_s, "exact")
        self._silent = 0
        self.counts = CassetteRecorderCounts()

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(source="cloud")

    def answer(self, escalation: ReplayEscalation, footage: FootageRef) -> SourcedVerdict | None:
        """Send the escalation and wait for its verdict.

        Raise UplinkError when the cloud cannot be asked, UsageError when another judge answers than before.
        """
        query, media = query_at(escalation, footage), media_of(escalation.body)
        key = key_of(query, media)
        known = self._known.get(key)
        if known is not None:
            self.counts.known += 1
            return known
        if escalation.clip:
            return None
        timed = self._ask(escalation)
        if timed is None:
            return None
        line = CassetteLine(
            key=key,
            asked=query,
            media=media,
            verdict=timed.verdict,
            total_s=round(timed.total_s, 3),
            stages={"send": round(timed.send_s, 4), **stages_of(timed.verdict)},
            bytes=timed.bytes,
        )
        self._write(line)
        self._known[key] = SourcedVerdict(line.verdict, line.total_s, "exact")
        return self._known[key]

    def close(self) -> None:
        self._writer.close()

    def _ask(self, escalation: ReplayEscalation) -> TimedVerdict | None:
        self.counts.asked += 1
        self._show_status(f"waiting for the verdict on question {self.counts.asked}")
        body = escalation.body.model_copy(update={"site": self._cloud.site})
        try:
            timed = self._cloud.ask(body, escalation.priority, [(each.ref, each.data) for each in escalation.images])
        finally:
            self._show_status("")
        if timed is not None:
            self._silent = 0
            verdict = timed.verdict
            outcome = f"asks for a {verdict.need}" if verdict.need else verdict.decision
            logger.info("question %d: %s after %.1f s", self.counts.asked, outcome, timed.total_s)
            return timed
        self.counts.silent += 1
        self._silent += 1
        if self._silent >= (SILENT_MAX if self._known else 1):
            raise UplinkError(
                f"no verdict came in time on {self._silent} question{'s' if self._silent > 1 else ''} in a row: is a "
                f"worker running, and does its engine answer? What came is in {self._path}; the same command goes on"
            )
        return None

    def _write(self, line: CassetteLine) -> None:
        try:
            self._append(line)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from None

    def _append(self, line: CassetteLine) -> None:
        header = self._writer.header
        if header is None:
            self._writer.begin(new_header((line.judge,), self._clock))
        elif line.judge not in header.judges:
            judges = " and ".join(map(str, header.judges))
            raise UsageError(
                f"{self._path} was recorded with {judges}, and {line.judge} answers now: record to another file"
            )
        self._writer.write(line)


def recording_site() -> str:
    """Return a site name for this recording only.

    A live appliance of the same name would get the verdicts, and the worker or the broker would take an escalation sent
    before for a repetition.
    """
    return f"replay-{secrets.token_hex(6)}"


def new_header(judges: tuple[Judge, ...], clock: Clock) -> CassetteHeader:
    return CassetteHeader(judges=judges, recorded=iso_utc(clock.now()), vedette=version() or "unknown")


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
    """Return the site with an uplink, so that it escalates.

    The uplink is the broker of --cloud, or any where verdicts are at hand. Raise UsageError.
    """
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
    return replace(site, uplink=uplink, decisions=replace(site.decisions, has_judge=True))


@contextlib.contextmanager
def open_verdict_source(
    site: ReplaySections, options: VerdictOptions, oracle: MakeOracle | None = None
) -> Iterator[ActiveVerdictSource]:
    """Return the source that the options name, open while the replay runs. Raises UsageError, UplinkError, OSError."""
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


def _recorder(path: Path, client: VerdictClient, clock: SystemClock, show_status: ShowStatus) -> CassetteRecorder:
    try:
        return CassetteRecorder(path, client, clock, show_status)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
