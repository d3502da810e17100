"""What the verdicts of a replay come to, in words; and what is missing, so that nobody takes it for an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from appliance.replay.result import ReplayResult
from appliance.types import LogVerdict


def verdict_words(result: ReplayResult) -> Iterator[str]:
    """One sentence each; none where nobody was to answer."""
    asked = sum(route.ask for route in result.routes)
    if not result.answered_by or not asked:
        return
    yield f"verdicts by {result.answered_by}: {decisions(result.verdicts) or 'none'}"
    nearest = sum(verdict.match == "nearest" for verdict in result.verdicts)
    if nearest:
        yield f"{nearest} of them found by nearness (same camera, rule and label within 0.5 s), not by what was asked"


def missing_words(result: ReplayResult) -> str:
    """What to do about questions without an answer; "" when there are none."""
    if not result.unanswered:
        return ""
    asked = sum(route.ask for route in result.routes)
    has = "question has" if asked == 1 else "questions have"
    if not result.answered_by.startswith("a cassette"):
        return f"{result.unanswered} of {asked} {has} no answer: no verdict came in time; the same command asks again"
    return (
        f"{result.unanswered} of {asked} {has} no answer on this cassette: record again with vedette replay … "
        "--record-verdicts CASSETTE --cloud nats://… (what is on it is not asked again), or try --match nearest"
    )


def decisions(verdicts: tuple[LogVerdict, ...]) -> str:
    """`5 confirmed, 3 rejected`."""
    counts = Counter(verdict.decision for verdict in verdicts)
    names = ("confirmed", "rejected", "unsure")
    return ", ".join(f"{counts[name]} {name}" for name in names if counts[name])  # type: ignore[index]
