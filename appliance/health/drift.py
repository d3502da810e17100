"""Tell when alerts are right less often than before: a CUSUM of the answers of people and of the cloud's model.

The log-likelihood ratio of "as often right as before" against "FALL less often" is summed over the answers and never
falls below 0 (E. S. Page, 1954). The threshold follows from the run length to a false alarm that is wanted, by the
corrected diffusion approximation of M. R. Reynolds and Z. G. Stoumbos (1999). The usual share is learnt from the
answers up to the last time at which the sum was 0, so no one has to state it. The same test watches the scores, which
need no answer: the share of alerts that score no less than the weakest fifth of the first ones did.

Each of several streams of answers (the site, its cameras, labels and parts of the day, the scores of a camera) has a
share of the false alarms that the site is allowed. Answers are taken to be independent of each other: one flag that
raises thirty alerts in a night counts thirty times.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from appliance.store.database import Database
from appliance.store.verdict_stats import DAY_S, AnsweredAlert, answered_alerts

DriftScope = Literal["site", "camera", "label", "hours", "scores"]
"""The group of a stream of answers; `hours`: six hours of the day; `scores`: a camera's scores, without any answer."""

FALL = 0.30  # of the share that is right: the least fall that is looked for
QUARTER_DAYS = 91.0  # days for which the false alarms are counted
FALSE_ALARMS: Mapping[DriftScope, float] = {"site": 0.3, "camera": 0.1, "label": 0.1, "hours": 0.1, "scores": 0.1}
"""Allowed in a quarter, all streams of a scope together. They sum to 0.7, below the one that a site is promised, since
a usual share that is learnt costs some."""
KNOWN_MIN = 60  # answers before a fall can be told: of fewer the usual share is not known to a tenth
DOUBT = 0.7  # standard deviations by which the usual share is taken lower than it was seen: it is an estimate
USUAL_MAX = 0.98  # a share nearer to 1 would make two wrong alerts in a row a fall
USUAL_MIN = 0.3  # where less is right a fall of FALL is lost in chance
MEMORY = 1000  # answers of which the usual share is made; older ones say little of now
RECOVERED_N, RECOVERED_SHARE = 40, 0.85  # the last so many answers are as often right as this share of the usual
NEW_USUAL_N = 500  # answers after which a fall is what is usual now
RATE_MIN, RATE_MAX = 256.0, 32_768.0  # answers of a quarter; of fewer, the threshold would rest on nothing
HISTORY_DAYS, STEP_DAYS = 120.0, 28.0  # days that are read; the first one moves in steps, lest each hour begin anew
FALLS_NAMED = 3  # in one sentence; a fall of the site is often one of its cameras and labels, too
READ_EVERY_S = 600.0  # reviews come by hand; a reading of 10,000 alerts takes some 300 ms
WEAKEST = 0.2  # share of the first scores that counts as weak
HOURS = ("00-06", "06-12", "12-18", "18-24")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A fall that lasts. usual, now: shares of right alerts before it and since.

    alerts: those of it that were wrong (of `scores`: weak), the newest last; answers: how many there were since it
    began until it was told; noticed_t: time of the alert with which it was told.
    """

    scope: DriftScope
    name: str
    usual: float
    now: float
    answers: int
    began_t: float
    noticed_t: float
    models: tuple[str, ...]
    alerts: tuple[str, ...]

    def __str__(self) -> str:
        """Return a sentence that stays the same while the fall lasts."""
        where = {"site": "on this site", "hours": f"between {self.name.replace('-', ' and ')} o'clock"}
        of = where.get(self.scope, f"of {self.name}")
        network = f" (network {', '.join(filter(None, self.models)) or 'not known'})"
        if self.scope == "scores":
            return f"the scores {of} have fallen: {1 - self.now:.0%} are as weak as {1 - self.usual:.0%} were{network}"
        seen = f"{self.now:.0%} of the last {self.answers}, {self.usual:.0%} before"
        return f"alerts {of} are right less often: {seen}{network}"


def run_length(usual: float, threshold: float) -> float:
    """Return the mean number of answers to a false alarm while a share of `usual` is right (Reynolds, Stoumbos 1999).

    threshold: of the log-likelihood ratio.
    """
    wrong, step_wrong, step_right = _steps(usual)
    rise = step_wrong - step_right
    h = threshold + rise * _overshoot(wrong) * math.sqrt(wrong * (1 - wrong))
    return (math.exp(min(h, 500.0)) - h - 1) / abs(rise * wrong + step_right)


@lru_cache(maxsize=1024)  # shares of two digits, and a few run lengths
def threshold_of(usual: float, answers: float) -> float:
    """Return the threshold at which a false alarm comes after `answers` answers in the mean."""
    low, high = 0.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if run_length(usual, middle) < answers else (low, middle)
    return high


def delay(usual: float, answers: float) -> float:
    """Return after how many answers a fall of exactly FALL is told in the mean, with that run length."""
    _, step_wrong, step_right = _steps(usual)
    right = usual * (1 - FALL)
    return threshold_of(usual, answers) / (right * step_right + (1 - right) * step_wrong)


def _steps(usual: float) -> tuple[float, float, float]:
    """Return the share of wrong ones, and by how much a wrong and a right answer move the sum."""
    fallen = usual * (1 - FALL)
    return 1 - usual, math.log((1 - fallen) / (1 - usual)), math.log(fallen / usual)


def _overshoot(p: float) -> float:
    """Return epsilon(p) of Reynolds and Stoumbos, for p of .01 to .5, and by symmetry above."""
    log = math.log(min(max(min(p, 1 - p), 0.01), 0.5))
    return 0.410 - 0.0842 * log - 0.0391 * log**3 - 0.00376 * log**4 - 0.000008 * log**7


class ShareCusum:
    """Watches one stream of answers for a fall of the share that is right.

    State: the answers that made the usual share, those since the sum was last 0, and whether a fall lasts. Feed answers
    in the order of their alerts.
    """

    def __init__(self, answers: float) -> None:
        """answers: the run length to a false alarm that is wanted."""
        self._run_length = answers
        self._before: deque[bool] = deque(maxlen=MEMORY)
        self._before_right = 0
        self._since: list[tuple[str, bool]] = []
        self._sum = 0.0
        self._usual, self._threshold = 0.0, math.inf
        self.has_fallen = False
        self.noticed = 0
        """How often a fall was told."""

    @property
    def usual(self) -> float:
        """The share that is usual, drawn a little to one half while few answers are known."""
        return (self._before_right + 1) / (len(self._before) + 2)

    @property
    def since(self) -> Sequence[tuple[str, bool]]:
        """Alerts and answers since the fall seems to have begun."""
        return self._since

    def add(self, alert: str, right: bool) -> bool:
        """Take the next answer; return True if with it a fall is told."""
        if self.has_fallen:
            self._since.append((alert, right))
            self._end_if_over()
            return False
        if len(self._before) < KNOWN_MIN:
            self._learn([right])
            return False
        self._since.append((alert, right))
        _, wrong, good = _steps(self._usual)
        self._sum = max(0.0, self._sum + (good if right else wrong))
        if self._sum == 0.0:
            self._learn([each for _, each in self._since])
            self._since = []
        elif self._sum >= self._threshold:
            self.has_fallen, self.noticed = True, self.noticed + 1
            return True
        return False

    def _learn(self, answers: Sequence[bool]) -> None:
        for right in answers:
            self._before_right += right - (len(self._before) == MEMORY and self._before[0])
            self._before.append(right)
        known = len(self._before)
        if known < KNOWN_MIN:
            return
        usual = self.usual - DOUBT * math.sqrt(self.usual * (1 - self.usual) / known)
        usual = round(min(usual, USUAL_MAX), 2)
        if usual != self._usual:
            self._usual = usual
            self._threshold = threshold_of(usual, self._run_length) if usual >= USUAL_MIN else math.inf

    def _end_if_over(self) -> None:
        last = [right for _, right in self._since[-RECOVERED_N:]]
        if len(self._since) >= NEW_USUAL_N:
            self._before.clear()
            self._before_right = 0
        elif sum(last) < RECOVERED_SHARE * self._usual * RECOVERED_N:
            return
        self.has_fallen, self._sum, self._since = False, 0.0, []
        self._learn(last)


class DriftWatch:
    """All streams of a site. Feed its alerts in their order; a watch of the same alerts says the same.

    rates: answers of a quarter that are expected for each scope, of all its streams together; see `rates`.
    """

    def __init__(self, rates: Mapping[DriftScope, float]) -> None:
        self._lengths = {scope: rates[scope] / share for scope, share in FALSE_ALARMS.items()}
        self._streams: dict[tuple[DriftScope, str], ShareCusum] = {}
        self._first_scores: defaultdict[str, list[float]] = defaultdict(list)
        self._weak: dict[str, float] = {}
        self._falls: dict[tuple[DriftScope, str], Fall] = {}
        self._times: dict[str, tuple[float, str]] = {}

    @property
    def noticed(self) -> int:
        """How many falls were told so far, over or not."""
        return sum(each.noticed for each in self._streams.values())

    def falls(self) -> list[Fall]:
        """Return the falls that last, those of the whole site first."""
        order = list(FALSE_ALARMS)
        keys = sorted(self._falls, key=lambda key: (order.index(key[0]), key[1]))
        return [replace(self._falls[key], alerts=_wrong(self._streams[key])) for key in keys]

    def add(self, alert: AnsweredAlert) -> None:
        """Take the next alert, answered or not."""
        self._times[alert.id] = alert.t, alert.model
        if (strong := self._is_strong(alert)) is not None:
            self._take(("scores", alert.camera), alert, strong)
        if alert.real is None:
            return
        hours = HOURS[alert.hour // 6]
        self._take(("site", ""), alert, alert.real)
        self._take(("camera", alert.camera), alert, alert.real)
        self._take(("label", alert.label), alert, alert.real)
        self._take(("hours", hours), alert, alert.real)

    def _is_strong(self, alert: AnsweredAlert) -> bool | None:
        """Return whether it scores no less than the weakest of the camera's first alerts; None: these are not known."""
        first = self._first_scores[alert.camera]
        if len(first) < 2 * KNOWN_MIN:
            first.append(alert.score)
            self._weak[alert.camera] = sorted(first)[int(WEAKEST * len(first))]
            return None
        return alert.score >= self._weak[alert.camera]

    def _take(self, key: tuple[DriftScope, str], alert: AnsweredAlert, right: bool) -> None:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = ShareCusum(self._lengths[key[0]])
        if stream.add(alert.id, right):
            self._falls[key] = self._fall(key, stream, alert.t)
        elif not stream.has_fallen:
            self._falls.pop(key, None)

    def _fall(self, key: tuple[DriftScope, str], stream: ShareCusum, t: float) -> Fall:
        since = stream.since
        times = [self._times[alert] for alert, _ in since]
        models = tuple(dict.fromkeys(model for _, model in times))
        return Fall(
            scope=key[0], name=key[1], usual=stream.usual, now=sum(right for _, right in since) / len(since),
            answers=len(since), began_t=times[0][0], noticed_t=t, models=models,
            alerts=_wrong(stream),
        )  # fmt: skip


def _wrong(stream: ShareCusum) -> tuple[str, ...]:
    return tuple(alert for alert, right in stream.since if not right)


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The falls that last, and how soon the next would be told.

    alerts: all that were read, the oldest first; answers_day: alerts of a day that somebody judged; days_to_tell: days
    in the mean until a fall of FALL of the whole site would be told at that rate, None: too few are known.
    """

    falls: tuple[Fall, ...] = ()
    alerts: tuple[AnsweredAlert, ...] = ()
    answers_day: float = 0.0
    days_to_tell: float | None = None


def drift_of(alerts: Sequence[AnsweredAlert], now: float) -> DriftReport:
    """Return what these alerts, the oldest first, say of drift at the time `now`."""
    if not alerts:
        return DriftReport()
    answers = [each.real for each in alerts if each.real is not None]
    days = max(1.0, (now - alerts[0].t) / DAY_S)
    expected = rates(len(answers) / days, len(alerts) / days)
    watch = DriftWatch(expected)
    for each in alerts:
        watch.add(each)
    to_tell = None
    if len(answers) >= KNOWN_MIN:
        usual = min(max(round(sum(answers) / len(answers), 2), USUAL_MIN), USUAL_MAX)
        to_tell = delay(usual, expected["site"] / FALSE_ALARMS["site"]) / (len(answers) / days)
    return DriftReport(tuple(watch.falls()), tuple(alerts), len(answers) / days, to_tell)


def rates(answers_day: float, alerts_day: float) -> dict[DriftScope, float]:
    """Return how many answers a quarter each scope is to expect, rounded up to a power of two.

    So a threshold changes seldom, and a fall that was told stays told when a few more alerts come.
    """

    def quarter(day: float) -> float:
        return 2.0 ** math.ceil(math.log2(min(max(day * QUARTER_DAYS, RATE_MIN), RATE_MAX)))

    return {scope: quarter(alerts_day if scope == "scores" else answers_day) for scope in FALSE_ALARMS}


class DriftMonitor:
    """Reads the site's alerts and says whether a fall lasts. Any thread may read.

    State: the last report, and the change number of the store for which it holds.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._held: tuple[tuple[int, int], DriftReport] | None = None

    @property
    def fault(self) -> str:
        """Return what lasts, in a sentence that stays the same while it does; '': nothing. It reads nothing."""
        falls = self._held[1].falls if self._held else ()
        return "; ".join(map(str, falls[:FALLS_NAMED]))

    def report(self) -> DriftReport:
        """Return the report, at most READ_EVERY_S old where something has changed since. Raise StoreError."""
        now = self._db.clock.now()
        key = (self._db.rev(), int(now // READ_EVERY_S))
        held = self._held
        if held is None or (held[0][0] != key[0] and held[0][1] != key[1]):
            first = now // (STEP_DAYS * DAY_S) * STEP_DAYS * DAY_S - HISTORY_DAYS * DAY_S
            held = self._held = (key, drift_of(answered_alerts(self._db, first), now))
        return held[1]
