"""`vedette cassette`, and what answers the escalations of a `vedette replay`: the cloud, a cassette, or nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from appliance import config, version, wire
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import Clock, SystemClock, iso_utc, parse_moment
from appliance.base.errors import UplinkError, UsageError
from appliance.base.local_files import discard_temporary, finish_file, temporary_path
from appliance.config import ReplaySections
from appliance.replay.cassette_file import (
    JUDGES_MAX,
    LINES_MAX,
    CassetteHeader,
    CassetteLine,
    CassettePlayer,
    CassetteReader,
    CassetteWriter,
    Judge,
    key_of,
    media_of,
    query_at,
    query_of,
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
from appliance.store.escalations import StepRow
from appliance.store.storage_reader import SettledEscalation, settled_escalations
from appliance.uplink.verdict_client import TimedVerdict, VerdictClient

logger = logging.getLogger(__name__)

SILENT_MAX = 3  # escalations in a row without a verdict, after which recording stops; at the beginning one

ShowStatus = Callable[[str], None]
"""Shows a sentence on what is being waited for; "" when it is over."""


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
            self._writer.begin(_header((line.judge,), self._clock))
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


def _header(judges: tuple[Judge, ...], clock: Clock) -> CassetteHeader:
    return CassetteHeader(judges=judges, recorded=iso_utc(clock.now()), vedette=version() or "unknown")


_MEDIA_RANK = {"facts": 0, "crop": 1, "frame": 2, "clip": 3}


@dataclass(frozen=True, slots=True)
class CassetteCopy:
    """The counts of a written cassette."""

    escalations: int
    lines: int  # verdicts of all their steps
    judges: tuple[Judge, ...]


def cassette_from_store(root: Path, out: Path, t0: float, t1: float, clock: Clock) -> CassetteCopy:
    """Write the verdicts on what was asked from t0 to t1 (UTC seconds) to a new cassette.

    Reads the store twice, and only reads; `out` appears whole or not at all. Raises StoreError, OSError,
    DiskWriteError, and UsageError when `out` is there already or there is nothing to copy.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: name a new file")
    judges = _judges(settled_escalations(root, t0, t1))
    if not judges:
        raise UsageError(f"{root} holds no verdict on anything that was asked in that time")
    part = temporary_path(out)  # a copy that was killed, or found no room, looks like a whole one
    discard_temporary(part)
    writer = CassetteWriter(part)
    try:
        # Live pictures and those of a replay are cut from the same seconds, seldom from the same bytes.
        writer.begin(_header(judges, clock).model_copy(update={"match": "nearest"}))
        escalations = lines = 0
        for row in settled_escalations(root, t0, t1):
            escalations += 1
            for line in lines_of(row):
                if line.judge not in judges:
                    continue  # it came while we read; another copy will have it
                lines += 1
                if lines > LINES_MAX:
                    raise UsageError(f"over {LINES_MAX} verdicts: narrow it with --from and --to")
                writer.write(line)
        finish_file(out)
    finally:
        writer.close()
        discard_temporary(part)
    return CassetteCopy(escalations, lines, judges)


def lines_of(row: SettledEscalation) -> Iterator[CassetteLine]:
    """Return one line a step: first those that asked for more, then the final verdict.

    The time of a step is the judge's clock against the appliance's; that of the final verdict is the appliance's alone.
    """
    asked = row.escalation
    kinds: list[str] = []
    earlier_s = 0.0
    for step in row.steps or (StepRow(escalation=asked.id, n=0),):
        if step.n > row.verdict.step:
            return
        kinds.append(step.evidence)
        last = step.n == row.verdict.step
        verdict = row.verdict.body if last else step.answer
        if verdict is None:
            continue
        arrived_t = row.verdict.applied_t if last else verdict.judged_t
        total_s = max(0.0, arrived_t - asked.times.created_t - earlier_s)
        earlier_s += total_s
        yield _line(row, step, verdict, _as_sent(asked.body, kinds), round(total_s, 3))


def _line(
    row: SettledEscalation, step: StepRow, verdict: wire.Verdict, body: wire.Escalation, total_s: float
) -> CassetteLine:
    query, media = query_of(body, t=body.t, utc=True), media_of(body)
    created_t, sent_t = row.escalation.times.created_t, row.escalation.times.sent_t
    waited_s = {} if sent_t is None else {"wait": round(max(0.0, sent_t - created_t), 4)}
    return CassetteLine(
        key=key_of(query, media),
        asked=query,
        media=media,
        verdict=verdict,
        total_s=total_s,
        stages={**(waited_s if step.n == row.verdict.step else {}), **stages_of(verdict)},
        bytes=step.bytes_sent or row.escalation.bytes_sent,
    )


def _as_sent(body: wire.Escalation, kinds: list[str]) -> wire.Escalation:
    """Return the message as it was when the steps of these kinds had been sent; the row lists all ever sent."""
    rank = max((_MEDIA_RANK.get(kind, 3) for kind in kinds), default=3)
    media = tuple(ref for ref in body.media if _MEDIA_RANK[ref.kind] <= rank)
    return body.model_copy(update={"media": media, "step": len(kinds) - 1})


def _judges(rows: Iterable[SettledEscalation]) -> tuple[Judge, ...]:
    found: dict[Judge, None] = {}
    for row in rows:
        for line in lines_of(row):
            found[line.judge] = None
        if len(found) > JUDGES_MAX:
            raise UsageError(
                f"over {JUDGES_MAX} different judges answered in that time: narrow it with --from and --to"
            )
    return tuple(found)


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
        print(json.dumps({"questions": copied.escalations, "verdicts": copied.lines, "judges": judges}))
    else:
        print(f"{cassette}: {copied.escalations} questions, {copied.lines} verdicts, by {'; '.join(judges)}")
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
