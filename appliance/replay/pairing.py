"""Tracks, events and alerts of two replay logs, paired, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from appliance.replay.difference import AlertChange, Change, EventChange, TrackChange, VerdictChange
from appliance.replay.tracks import Matched, Track, key
from appliance.types import Alert, Event

EVENT_S_MAX = 5.0
ALERT_S_MAX = 5.0
_TRACK_STRANGE_S = 2.0  # two events of tracks that do not match must be this much nearer in time to be one


def tracks(matched: Matched) -> Iterator[TrackChange]:
    """Those that begin or end at another time or under another name, and those without a partner."""
    for one, other in matched.pairs:
        begin_s, end_s = (round(b - a, 3) for a, b in ((one.t_start, other.t_start), (one.t_end, other.t_end)))
        if begin_s or end_s or one.label != other.label:
            yield _track("changed", one, other=other.number, other_label=other.label, begin_s=begin_s, end_s=end_s)
    for track in matched.gone:
        joined = matched.joins.get(key(track))
        yield _track("missing", track, goes_on=joined.number if joined else None)
    for track in matched.new:
        broken = matched.breaks.get(key(track))
        yield _track("new", track, goes_on=broken.number if broken else None)


def _track(
    change: Change,
    track: Track,
    *,
    other: int | None = None,
    other_label: str = "",
    begin_s: float = 0.0,
    end_s: float = 0.0,
    goes_on: int | None = None,
) -> TrackChange:
    x, y = track.middle
    return TrackChange(
        camera=track.camera,
        change=change,
        track=track.number,
        other=other,
        label=track.label,
        other_label=other_label,
        t_start=track.t_start,
        t_end=track.t_end,
        near=(round(x, 2), round(y, 2)),
        begin_s=begin_s,
        end_s=end_s,
        goes_on=goes_on,
    )


def events(before: Sequence[Event], after: Sequence[Event], matched: Matched) -> Iterator[EventChange]:
    """Of one camera: paired by rule and label, nearest in time, rather of the same track."""
    # Runs are rare and events do not name theirs: a number stands for all its runs here.
    partners = {(one.number, other.number) for one, other in matched.pairs}

    def price(one: Event, other: Event) -> float | None:
        apart_s = abs(one.t - other.t)
        if (one.rule, one.label) != (other.rule, other.label) or apart_s > EVENT_S_MAX:
            return None
        return apart_s + (0.0 if (one.track, other.track) in partners else _TRACK_STRANGE_S)

    pairs, gone, new = _paired(before, after, price)
    for one, other in pairs:
        moved_s = round(other.t - one.t, 3)
        if moved_s:
            yield _event("changed", one, moved_s)
    for event in gone:
        yield _event("missing", event)
    for event in new:
        yield _event("new", event)


def _event(change: Change, event: Event, moved_s: float = 0.0) -> EventChange:
    return EventChange(
        camera=event.camera,
        change=change,
        rule=event.rule,
        label=event.label,
        track=event.track,
        t=event.t,
        moved_s=moved_s,
    )


def alerts(before: Sequence[Alert], after: Sequence[Alert]) -> Iterator[AlertChange]:
    """Of one camera: paired by time, if they have a rule in common."""
    pairs, gone, new = _paired(before, after, _alert_price)
    for one, other in pairs:
        what = tuple(_alert_words(one, other))
        if what:
            yield AlertChange(camera=one.camera, change="changed", rules=one.rules, t=one.t_start, what=what)
    for alert in gone:
        yield AlertChange(camera=alert.camera, change="missing", rules=alert.rules, t=alert.t_start)
    for alert in new:
        yield AlertChange(camera=alert.camera, change="new", rules=alert.rules, t=alert.t_start)


def verdicts(before: Sequence[Alert], after: Sequence[Alert]) -> Iterator[VerdictChange]:
    """Alerts of one camera, paired the same way, of which the cloud said something else."""
    pairs, _, _ = _paired(before, after, _alert_price)
    for one, other in pairs:
        if one.verdict != other.verdict:
            yield VerdictChange(
                camera=one.camera, rules=one.rules, t=one.t_start, before=one.verdict, after=other.verdict
            )


def _alert_price(one: Alert, other: Alert) -> float | None:
    apart_s = abs(one.t_start - other.t_start)
    overlapping = one.t_start <= _end(other) and other.t_start <= _end(one)
    if not set(one.rules) & set(other.rules) or not (overlapping or apart_s <= ALERT_S_MAX):
        return None
    return apart_s


def _alert_words(one: Alert, other: Alert) -> Iterator[str]:
    begin_s, end_s = round(other.t_start - one.t_start, 3), round(_end(other) - _end(one), 3)
    if begin_s:
        yield f"begins {later(begin_s)}"
    if end_s:
        yield f"ends {later(end_s)}"
    if one.severity != other.severity:
        yield f"is {other.severity} instead of {one.severity}"
    lost, gained = ([rule for rule in a.rules if rule not in b.rules] for a, b in ((one, other), (other, one)))
    if lost:
        yield f"without {', '.join(lost)}"
    if gained:
        yield f"with {', '.join(gained)} as well"
    if len(one.tracks) != len(other.tracks):
        yield f"{len(other.tracks)} tracks instead of {len(one.tracks)}"


def later(seconds: float) -> str:
    """`-1.4` as `1.4 s earlier`."""
    return f"{abs(seconds):.1f} s {'later' if seconds > 0 else 'earlier'}"


def _end(alert: Alert) -> float:
    return alert.t_start if alert.t_end is None else alert.t_end


Item = TypeVar("Item")


def _paired(
    before: Sequence[Item], after: Sequence[Item], price: Callable[[Item, Item], float | None]
) -> tuple[list[tuple[Item, Item]], list[Item], list[Item]]:
    """Pairs, cheapest first, each in at most one; then who is left of the first and of the second."""
    prices = [
        (cost, i, j)
        for i, one in enumerate(before)
        for j, other in enumerate(after)
        if (cost := price(one, other)) is not None
    ]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, i, j in sorted(prices):
        if i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    return (
        [(before[i], after[partner[i]]) for i in sorted(partner)],
        [each for i, each in enumerate(before) if i not in partner],
        [each for j, each in enumerate(after) if j not in taken],
    )
