"""Makes cassettes: by asking the cloud during a replay, or from the verdicts in an appliance's store."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from appliance import wire
from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import UplinkError, UsageError
from appliance.replay.cassette_file import (
    JUDGES_MAX,
    LINES_MAX,
    CassetteHeader,
    CassetteLine,
    CassetteReader,
    CassetteWriter,
    Judge,
    key_of,
    media_of,
    query_at,
    query_of,
    stages_of,
)
from appliance.replay.verdict_source import AnsweredBy, FootageRef, ReplayEscalation, SourcedVerdict
from appliance.store.archive import SettledEscalation, settled_escalations
from appliance.store.rows import StepRow
from appliance.uplink.verdict_client import TimedVerdict
from appliance.version import version

logger = logging.getLogger(__name__)

SILENT_MAX = 3  # escalations in a row without a verdict, after which recording stops; at the beginning one

ShowStatus = Callable[[str], None]
"""Shows a sentence on what is being waited for; "" when it is over."""


class CloudPort(Protocol):
    """How the cloud is asked; see appliance.uplink.verdict_client."""

    @property
    def site(self) -> str: ...

    def ask(
        self, escalation: wire.Escalation, priority: str, files: list[tuple[wire.MediaRef, bytes]]
    ) -> TimedVerdict | None: ...


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
        self, path: Path, cloud: CloudPort, clock: Clock, show_status: ShowStatus = lambda sentence: None
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
            raise UsageError(
                f"{self._path} was recorded with {_listed(header.judges)}, and {line.judge} answers now: record to "
                "another file"
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


def _listed(judges: tuple[Judge, ...]) -> str:
    return " and ".join(map(str, judges))


_MEDIA_RANK = {"facts": 0, "crop": 1, "frame": 2, "clip": 3}


@dataclass(frozen=True, slots=True)
class CassetteCopy:
    """The counts of a written cassette."""

    questions: int
    lines: int  # verdicts of all their steps
    judges: tuple[Judge, ...]


def cassette_from_store(root: Path, out: Path, t0: float, t1: float, clock: Clock) -> CassetteCopy:
    """Write the verdicts on what was asked from t0 to t1 (UTC seconds) to a new cassette.

    Reads the store twice, and only reads. Raises StoreError, OSError, and UsageError when `out` is there already or
    there is nothing to copy.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: name a new file")
    judges = _judges(settled_escalations(root, t0, t1))
    if not judges:
        raise UsageError(f"{root} holds no verdict on anything that was asked in that time")
    writer = CassetteWriter(out)
    try:
        # Live pictures and those of a replay are cut from the same seconds, seldom from the same bytes.
        writer.begin(_header(judges, clock).model_copy(update={"match": "nearest"}))
        questions = lines = 0
        for row in settled_escalations(root, t0, t1):
            questions += 1
            for line in lines_of(row):
                if line.judge not in judges:
                    continue  # it came while we read; another copy will have it
                lines += 1
                if lines > LINES_MAX:
                    raise UsageError(f"over {LINES_MAX} verdicts: narrow it with --from and --to")
                writer.write(line)
    finally:
        writer.close()
    return CassetteCopy(questions, lines, judges)


def lines_of(row: SettledEscalation) -> Iterator[CassetteLine]:
    """One line a step: first those that asked for more, then the final verdict.

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
        total_s = max(0.0, arrived_t - asked.created_t - earlier_s)
        earlier_s += total_s
        yield _line(row, step, verdict, _as_sent(asked.body, kinds), round(total_s, 3))


def _line(
    row: SettledEscalation, step: StepRow, verdict: wire.Verdict, body: wire.Escalation, total_s: float
) -> CassetteLine:
    query, media = query_of(body, t=body.t, utc=True), media_of(body)
    created_t, sent_t = row.escalation.created_t, row.escalation.sent_t
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
