"""A cassette of what the cloud really said to a box, out of the box's store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance import wire
from appliance.clock import Clock, iso_utc
from appliance.errors import UsageError
from appliance.replay.cassette import (
    JUDGES_MAX,
    CassetteHeader,
    CassetteLine,
    Judge,
    asked_of,
    key_of,
    media_of,
    stages_of,
)
from appliance.replay.cassette_file import LINES_MAX, CassetteWriter
from appliance.replay.header import vedette_version
from appliance.store.answered import AnsweredRow, answered
from appliance.store.rows import StepRow

_TELLING = {"facts": 0, "crop": 1, "frame": 2, "clip": 3}


@dataclass(frozen=True, slots=True)
class Copied:
    """What was written: questions, the verdicts of all their steps, and who judged."""

    questions: int
    lines: int
    judges: tuple[Judge, ...]


def from_store(root: Path, out: Path, t0: float, t1: float, clock: Clock) -> Copied:
    """Write the verdicts on what was asked from t0 to t1 (UTC seconds) to a new cassette.

    Reads the store twice, and only reads. Raises StoreError, OSError, and UsageError when `out` is there already or
    there is nothing to copy.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: name a new file")
    judges = _judges(answered(root, t0, t1))
    if not judges:
        raise UsageError(f"{root} holds no verdict on anything that was asked in that time")
    writer = CassetteWriter(out)
    try:
        writer.begin(CassetteHeader(judges=judges, recorded=iso_utc(clock.now()), vedette=vedette_version()))
        questions = lines = 0
        for row in answered(root, t0, t1):
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
    return Copied(questions, lines, judges)


def lines_of(row: AnsweredRow) -> Iterator[CassetteLine]:
    """One line a step: first those that asked for more, then the last word.

    A step's own time is the judge's clock against the box's, the last word's the box's alone.
    """
    asked = row.asked
    kinds: list[str] = []
    gone_s = 0.0
    for step in row.steps or (StepRow(escalation=asked.id, n=0),):
        if step.n > row.verdict.step:
            return
        kinds.append(step.evidence)
        last = step.n == row.verdict.step
        verdict = row.verdict.body if last else step.answer
        if verdict is None:
            continue
        came_t = row.verdict.applied_t if last else verdict.judged_t
        total_s = max(0.0, came_t - asked.created_t - gone_s)
        gone_s += total_s
        yield _line(row, step, verdict, _sent(asked.body, kinds), round(total_s, 3))


def _line(
    row: AnsweredRow, step: StepRow, verdict: wire.Verdict, body: wire.Escalation, total_s: float
) -> CassetteLine:
    asked, media = asked_of(body, t=body.t, utc=True), media_of(body)
    waited_s = {} if row.asked.sent_t is None else {"wait": round(max(0.0, row.asked.sent_t - row.asked.created_t), 4)}
    return CassetteLine(
        key=key_of(asked, media),
        asked=asked,
        media=media,
        verdict=verdict,
        total_s=total_s,
        stages={**(waited_s if step.n == row.verdict.step else {}), **stages_of(verdict)},
        bytes=step.bytes_sent or row.asked.bytes_sent,
    )


def _sent(body: wire.Escalation, kinds: list[str]) -> wire.Escalation:
    """The message as it was when the steps of these kinds had been sent: the row lists all that was ever sent."""
    rank = max((_TELLING.get(kind, 3) for kind in kinds), default=3)
    media = tuple(ref for ref in body.media if _TELLING[ref.kind] <= rank)
    return body.model_copy(update={"media": media, "step": len(kinds) - 1})


def _judges(rows: Iterable[AnsweredRow]) -> tuple[Judge, ...]:
    found: dict[Judge, None] = {}
    for row in rows:
        for line in lines_of(row):
            found[line.judge] = None
        if len(found) > JUDGES_MAX:
            raise UsageError(
                f"over {JUDGES_MAX} different judges answered in that time: narrow it with --from and --to"
            )
    return tuple(found)
