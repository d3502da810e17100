"""Reads the history of a run and proves that each escalation was answered once, in order, and paid for once.

With a deadline it proves that each ended in time, too.

    python -m benchmarks.chaos.checker HISTORY.jsonl          # exit code 1: it found something

Two regions may both be paid for an escalation in one case only: the site was cut off from the first of them before it
could read the verdict there. That it could not is proven by how long it was there; `paid_elsewhere` counts these.

A finding is a contradiction between events that were written by different parts. Faults alone are none: a worker that
is killed between its answer and its verdict pays again, a verdict that is late still counts, and two copies of a
verdict are one as long as the site applies one.

`verify` gathers the history of a run that has ended, checks it, and looks whether the broker holds the images.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

import nats
import nats.js.errors
from nats.aio.client import Client

from appliance import wire
from benchmarks.chaos.history import HistoryEvent, broker_events, read_history, site_events

Kind = Literal["lost", "doubled", "order", "late", "money"]
LIVE_S = 120.0  # the promise of order holds for what is this young (docs/uplink.md)
OVERTAKEN_MAX = 16  # by less urgent ones: two rounds of the eight send workers, which had begun with them
READ_S = 10.0  # a site reads a verdict within that: an election of the stream's leader, or a disk that refused it
WANTED_S = 4.0  # a worker asks a site, which may be silent, and then the broker, before it asks the engine
CLOCK_S = 0.001  # SQLite's clock tells milliseconds, the broker's nanoseconds
_RANK = {"high": 0, "normal": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction: its kind, the escalation or alert, and a sentence."""

    kind: Kind
    name: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The limits that a run was made with. Seconds.

    deadline_s: by priority, from raised until a verdict, or until people are told that there is none; without a
    priority it is not checked. end_t: when the run was over; None: with its last event. settled: all of it was waited
    for, so that nothing may be open.
    """

    deadline_s: Mapping[str, float] = field(default_factory=dict)
    end_t: float | None = None
    settled: bool = True


@dataclass(slots=True)
class _Story:
    """The events of one escalation by kind, each in the order of the history. site: its states as committed."""

    name: str
    site: list[HistoryEvent] = field(default_factory=list)
    events: dict[str, list[HistoryEvent]] = field(default_factory=lambda: defaultdict(list))

    def of(self, *kinds: str) -> list[HistoryEvent]:
        return [event for kind in kinds for event in self.events.get(kind, ())]

    @property
    def ends(self) -> list[HistoryEvent]:
        return [event for event in self.of("applied", "state") if event.what == "applied" or event.value == "expired"]


def check(history: Iterable[HistoryEvent], promises: Promises = Promises()) -> list[Finding]:
    """Return all contradictions of a history."""
    events = list(history)
    stories: dict[str, _Story] = {}
    for event in events:
        if event.escalation:
            story = stories.setdefault(event.escalation, _Story(event.escalation))
            story.events[event.what].append(event)
            if event.what in ("applied", "state"):
                story.site.append(event)
    end_t = promises.end_t if promises.end_t is not None else max((event.t for event in events), default=0.0)
    found = list(_alerts(events))
    for story in stories.values():
        found += _once(story, promises)
        found += _order(story)
        found += _deadline(story, promises, end_t)
        found += _money(story)
        found += _money_elsewhere(story, events)
    return found + list(_urgency(stories.values()))


def _alerts(events: Sequence[HistoryEvent]) -> Iterator[Finding]:
    """Each alert that was flagged has its escalation, and its verdict changes once."""
    raised = {event.alert for event in events if event.what == "raised"}
    for event in events:
        if event.what == "flagged" and event.alert not in raised:
            yield Finding("lost", event.alert, "it was flagged, and has no escalation")
    changes: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event.what == "changed":
            changes[event.alert].append(event.value)
    for alert, values in changes.items():
        if len(values) > 1:
            yield Finding("doubled", alert, f"its verdict changed {len(values)} times: {', '.join(values)}")


def _once(story: _Story, promises: Promises) -> Iterator[Finding]:
    applied = story.of("applied")
    if not story.of("raised"):
        yield Finding("doubled", story.name, "nobody raised it, and it has events")
    if not story.ends and promises.settled:
        yield Finding("lost", story.name, "it has no verdict, and nobody was told that there is none")
    if len(applied) > 1:
        yield Finding("doubled", story.name, f"a verdict was applied {len(applied)} times")
    decisions = {event.value for event in (*applied, *story.of("completed"))}
    if len(decisions) > 1:
        yield Finding("doubled", story.name, f"what was decided changed: {', '.join(sorted(decisions))}")
    stored = {event.value for event in story.of("stored") if event.part != "need"}
    if applied and stored and applied[0].value not in stored:
        said = ", ".join(sorted(stored))
        yield Finding("doubled", story.name, f"{applied[0].value} was applied, and the broker holds {said}")
    if stored and not applied and promises.settled:
        yield Finding("lost", story.name, "the broker holds a verdict that the site did not apply")


def _order(story: _Story) -> Iterator[Finding]:
    """Nothing is over before it began, and nothing goes on after its end."""
    stored, applied = story.of("stored"), story.of("applied")
    for event in story.of("acked"):
        if not any(each.t <= event.t + CLOCK_S for each in stored if each.part != "decision"):
            yield Finding("order", story.name, "its escalation was acknowledged before its verdict was stored")
    for event in applied:
        if stored and min(each.t for each in stored) > event.t + CLOCK_S:
            yield Finding("order", story.name, "the site applied a verdict before the broker had stored one")
    states = [event for event in story.site if event.what == "applied" or event.value != "settled"]
    for before, after in pairwise(states):
        if before.what == "applied" and after.what == "state":
            yield Finding("order", story.name, f"it turned {after.value} after its verdict was applied")
    steps = [event.step for event in story.of("state") if event.value == "ready"]
    if any(after not in (before, before + 1) for before, after in pairwise(steps)):
        yield Finding("order", story.name, f"its steps were sent in the order {steps}")


def _deadline(story: _Story, promises: Promises, end_t: float) -> Iterator[Finding]:
    for raised in story.of("raised")[:1]:
        limit_s = promises.deadline_s.get(raised.priority, float("inf"))
        over_s = min((event.t for event in story.ends), default=end_t) - raised.t - limit_s
        if over_s > 0:
            yield Finding("late", story.name, f"nothing was told for {limit_s:g} s and {over_s:.1f} s")


def _money(story: _Story) -> Iterator[Finding]:
    """No call begins once its answer is stored in the same region, nor twice by one worker that had an answer."""
    answered: dict[tuple[int, str], float] = {}
    for event in sorted(story.of("answered"), key=lambda event: event.t):
        answered.setdefault((event.step, event.where), event.t)
    under_way: dict[tuple[int, str], int] = defaultdict(int)
    for event in sorted(story.of("asked", "answered", "failed"), key=lambda event: event.t):
        key = (event.step, event.where)
        if event.what != "asked":
            under_way[key] -= 1
            continue
        if event.where and under_way[key] > 0:
            yield Finding("money", story.name, "one worker asked the engine twice at a time")
        under_way[key] += 1
        if event.where and answered.get(key, event.t) < event.t:
            yield Finding("money", story.name, "a worker asked again for what it had been answered")
        stored = [each for each in story.of("stored") if each.part != "decision" and each.region == event.region]
        if any(each.step == event.step and each.t + CLOCK_S < event.t for each in stored):
            yield Finding("money", story.name, "the engine was asked after the verdict had been stored")


def paid_elsewhere(history: Iterable[HistoryEvent]) -> int:
    """Return how many escalations, by step, were paid for in two regions."""
    answered = {(event.escalation, event.step, event.region) for event in history if event.what == "answered"}
    return sum(count > 1 for count in Counter((name, step) for name, step, _ in answered).values())


def _money_elsewhere(story: _Story, events: Sequence[HistoryEvent]) -> Iterator[Finding]:
    """No call begins in another region once the verdict was applied, or could have been read where it is."""
    for asked in story.of("asked"):
        if any(asked.step == each.step and each.t + WANTED_S < asked.t for each in story.of("applied")):
            yield Finding("money", story.name, f"{asked.region} was asked after the site had applied a verdict")
        for stored in story.of("stored"):
            if stored.region == asked.region or stored.step != asked.step or stored.part == "decision":
                continue
            there_s = _present_s(events, stored, asked.t)
            if there_s > READ_S:
                where = f"the verdict was in {stored.region}, where the site was for {there_s:.1f} s"
                yield Finding("money", story.name, f"{asked.region} was asked although {where}")


def _present_s(events: Sequence[HistoryEvent], stored: HistoryEvent, until_t: float) -> float:
    """Return for how long the site was in a verdict's region since it was stored and the disk last refused one."""
    refused = (event.t for event in events if event.what == "refused" and event.t < until_t)
    since_t = max((stored.t, *refused))
    links = [event for event in events if event.what == "link" and event.t < until_t]
    ends = [*(event.t for event in links[1:]), until_t]
    stays = [(each.t, end) for each, end in zip(links, ends, strict=False) if each.region == stored.region]
    return sum(max(0.0, end - max(begin, since_t)) for begin, end in stays)


def _urgency(stories: Iterable[_Story]) -> Iterator[Finding]:
    """No escalation is overtaken by many less urgent ones that were ready after it."""
    sends: list[tuple[float, float, int, str]] = []
    for story in stories:
        raised, states = story.of("raised"), story.of("state")
        ready = next((event.t for event in states if event.value == "ready"), None)
        sent = next((event.t for event in states if event.value == "sent"), None)
        if raised and ready is not None and sent is not None and sent - raised[0].t < LIVE_S:
            sends.append((sent, ready, _RANK.get(raised[0].priority, 0), story.name))
    for sent, ready, rank, name in sends:
        over = sum(other < sent and since > ready and below > rank for other, since, below, _ in sends)
        if over > OVERTAKEN_MAX:
            yield Finding("order", name, f"{over} less urgent ones that were ready after it were sent before it")


MEDIA_CHECKED_MAX = 5000


@dataclass(slots=True)
class ChaosResult:
    """Counts of a run, and what was found wrong in its history.

    - unsaid: settled, but the core never reported that it was raised (it was killed between the two: allowed).
    - asked_again: calls of the model beyond one a question (allowed where a worker died before its verdict was stored).
    - media: images that the broker was asked for; one that is not whole there is a finding, too.
    """

    raised: int = 0
    settled: int = 0
    findings: list[Finding] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)
    unsaid: int = 0
    asked_again: int = 0
    media: int = 0
    history: list[HistoryEvent] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.findings

    def never_raised(self, questions: int) -> list[Finding]:
        """Return a finding if fewer than `questions` alerts were committed: then little, or nothing, was checked."""
        committed = self.raised + self.unsaid
        text = f"{committed} of {questions} alerts were raised before the time was over"
        return [Finding("lost", "alerts", text)] if committed < questions else []

    def as_json(self) -> dict[str, object]:
        rest = {name: value for name, value in asdict(self).items() if name not in ("history", "findings")}
        return {**rest, "findings": [str(each) for each in self.findings], "good": self.good}


def verify(
    database: Path, url: str, site: str, raised: set[int], asked: Iterable[tuple[str, float]] = ()
) -> ChaosResult:
    """Read all. The core must have ended. asked: the alert and time of every call of the model."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        events = site_events(connection)
        rows = connection.execute("SELECT body FROM escalation WHERE state = 'settled' ORDER BY id")
        bodies = [wire.Escalation.from_json(row[0].encode()) for row in rows]
    names = {event.alert: event.escalation for event in events if event.what == "raised"}
    calls = [HistoryEvent(t=t, what="asked", escalation=names.get(alert, alert), alert=alert) for alert, t in asked]
    flagged = [HistoryEvent(t=0.0, what="flagged", alert=f"alert-{n}") for n in sorted(raised)]
    stored, lost_media, media = asyncio.run(_at_the_broker(url, site, bodies))
    history = [*flagged, *events, *stored, *calls]
    applied = [event for event in events if event.what == "applied"]
    return ChaosResult(
        raised=len(raised), settled=len(applied), findings=[*check(history), *lost_media],
        decisions=dict(Counter(event.value for event in applied)), unsaid=len(names) - len(raised & _numbers(names)),
        asked_again=max(0, len(calls) - len(applied)), media=media, history=history,
    )  # fmt: skip


def _numbers(alerts: Iterable[str]) -> set[int]:
    return {int(name.removeprefix("alert-")) for name in alerts}


async def _at_the_broker(
    url: str, site: str, bodies: Sequence[wire.Escalation]
) -> tuple[list[HistoryEvent], list[Finding], int]:
    """Return the broker's part of the history, the images that are not whole there, and how many were checked."""
    client = await nats.connect(url, connect_timeout=10)
    try:
        stored = await broker_events(client, site)
        return stored, *await _lost_media(client, bodies)
    finally:
        await client.close()


async def _lost_media(client: Client, bodies: Sequence[wire.Escalation]) -> tuple[list[Finding], int]:
    stream, found, checked = client.jetstream(), [], 0
    for body in bodies:
        for ref in body.media[: MEDIA_CHECKED_MAX - checked]:
            checked += 1
            digest = hashlib.sha256()
            with contextlib.suppress(nats.js.errors.NotFoundError):  # then it has the wrong hash, too
                for chunk in range(ref.chunks):
                    subject = wire.media_subject(body.site, ref.id, chunk)
                    message = await stream.get_last_msg(wire.STREAM_MEDIA, subject, direct=False)
                    digest.update(message.data or b"")
            if digest.hexdigest() != ref.sha256:
                found.append(Finding("lost", body.id, f"the broker does not hold its image {ref.id} whole"))
    return found, checked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos.checker", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("history", type=Path)
    parser.add_argument("--deadline", type=float, metavar="S", help="from raised until a verdict, or a word on it")
    chosen = parser.parse_args(arguments)
    events = list(read_history(chosen.history))
    limits = dict.fromkeys(_RANK, chosen.deadline) if chosen.deadline is not None else {}
    found = check(events, Promises(deadline_s=limits))
    print(*found, f"{len(events)} events, {len(found)} contradictions", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
