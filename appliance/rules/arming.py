"""Decides which rules report now and which targets are notified: profile in force, schedule, pauses."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from appliance.base.clock import Clock
from appliance.base.errors import PreconditionError
from appliance.config import ARMED, DISARMED, ArmingConfig, CameraConfig
from appliance.rules.weekly_hours import MINUTES_A_DAY, ArmedHours, LocalTime
from appliance.store.arming import ArmingRow, ArmingStore

WEEK_MINUTES = 7 * MINUTES_A_DAY
PAUSE_S_MAX = 7 * 86400.0  # a week: a pause that was forgotten ends
WHO_CHARS_MAX, WHY_CHARS_MAX = 100, 200  # a name, and a sentence
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProfileInForce:
    """A profile, and why it is the one in force.

    by: the week of the site file, or a person's choice. until_t: UTC seconds; None: until a person changes it.
    following: the profile after that; '' where none is known. who, why: of a choice.
    """

    name: str
    by: Literal["schedule", "person"]
    until_t: float | None
    following: str = ""
    since_t: float | None = None
    who: str = ""
    why: str = ""


class Pauses:
    """Cameras and rules that a person paused, and targets that are not notified of them for a while (snoozes).

    It has no state but what the store keeps. Any thread may call.
    """

    def __init__(self, rules: Mapping[str, tuple[str, ...]], store: ArmingStore, clock: Clock) -> None:
        """rules: their names by camera."""
        self._rules = rules
        self._store = store
        self._clock = clock

    def paused(self, camera: str | None = None) -> tuple[ArmingRow, ...]:
        """Return the cameras and rules that a person paused, of one camera or all."""
        now = self._clock.now()
        return tuple(
            row for row in self._store.rows
            if row.camera and not row.target and row.lasts(now) and camera in (None, row.camera)
        )  # fmt: skip

    def snoozed(self) -> tuple[ArmingRow, ...]:
        """Return the targets that are not notified of a camera or rule for a while."""
        now = self._clock.now()
        return tuple(row for row in self._store.rows if row.target and row.lasts(now))

    def begin(self, camera: str, rule: str, until_t: float, who: str, why: str = "") -> None:
        """Let a camera ('' for `rule`), or one of its rules, report nothing until a time.

        Raise PreconditionError if there is no such camera or rule, or if the time is not ahead, or far. Raise
        StoreError.
        """
        self._put(ArmingRow(camera=camera, rule=rule, since_t=self._clock.now(), until_t=until_t, who=who, why=why))

    def end(self, camera: str, rule: str = "") -> bool:
        """End a pause; return False if there was none.

        Raise PreconditionError if there is no such camera. Raise StoreError.
        """
        ended = self._store.remove(camera, rule)
        if not ended and camera not in self._rules:
            raise PreconditionError(f"there is no camera {camera} in the site file")
        return ended

    def snooze(self, target: str, camera: str, rule: str, until_t: float, who: str) -> None:
        """Do not notify a target of a camera or one of its rules until a time. Raise the errors of `begin`."""
        now = self._clock.now()
        self._put(ArmingRow(camera=camera, rule=rule, target=target, since_t=now, until_t=until_t, who=who))

    def _put(self, row: ArmingRow) -> None:
        if row.camera not in self._rules:
            raise PreconditionError(f"there is no camera {row.camera} in the site file")
        if row.rule and row.rule not in self._rules[row.camera]:
            raise PreconditionError(f"camera {row.camera} has no rule {row.rule}")
        if row.until_t is None or not 0 < row.until_t - row.since_t <= PAUSE_S_MAX:
            raise PreconditionError(f"a pause ends in the future, {PAUSE_S_MAX / 86400:g} days ahead at most")
        self._store.put(_shortened(row))


class Arming:
    """The rules that report at this moment, by the `arming` section and what people chose; any thread may call.

    To the rules a profile or a pause is one more schedule: what came meanwhile is not reported afterwards. It goes by
    the appliance's clock, not by a camera's, and only where the appliance runs: a replay knows of none. It has no state
    but what the store keeps.
    """

    def __init__(
        self,
        config: ArmingConfig,
        cameras: Mapping[str, CameraConfig],
        store: ArmingStore,
        clock: Clock,
        local_time: LocalTime,
    ) -> None:
        self.config = config
        self._rules = {name: tuple(rule.name for rule in camera.rules) for name, camera in cameras.items()}
        self.pauses = Pauses(self._rules, store, clock)
        self._store = store
        self._clock = clock
        self._local_time = local_time
        self._hours = tuple((each.profile, ArmedHours(each)) for each in config.schedule)
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        return self._clock.now()

    @property
    def profile(self) -> str:
        """The name of the one in force."""
        return self._profile(self._clock.now(), self._store.rows)

    def in_force(self) -> ProfileInForce:
        """Return the profile, until when it holds, and who wanted it."""
        now = self._clock.now()
        chosen = self._chosen(now, self._store.rows)
        if chosen is None:
            until = self.next_turn(now)
            name = self._scheduled(now)
            return ProfileInForce(name, "schedule", until, "" if until is None else self._scheduled(until))
        until = chosen.until_t
        following = "" if until is None else self._scheduled(until)
        return ProfileInForce(chosen.profile, "person", until, following, chosen.since_t, chosen.who, chosen.why)

    @property
    def reports(self) -> bool:
        """True if anything reports under the profile in force."""
        profile = self.config.profile(self.profile)
        return profile.rules != () and profile.cameras != ()

    def off_rules(self, camera: str, at: float | None = None) -> frozenset[str]:
        """Return the names of the rules of a camera that report nothing now.

        at: UTC seconds; those that reported nothing then, as far as is known: of what people chose or paused, only
        what nobody has changed or ended since is still stored.
        """
        rows, now = self._store.rows, self._clock.now()
        if at is not None:
            rows, now = tuple(row for row in rows if row.since_t <= at), at
        if not rows and not self._hours and self.config.default == ARMED:
            return _NOTHING
        rules, profile = self._rules.get(camera, ()), self.config.profile(self._profile(now, rows))
        if profile.cameras is not None and camera not in profile.cameras:
            return frozenset(rules)
        off = {rule for rule in rules if profile.rules is not None and rule not in profile.rules}
        for row in rows:
            if row.camera == camera and not row.target and row.lasts(now):
                off.update([row.rule] if row.rule else rules)
        return frozenset(off)

    def quiet_reason(self, target: str, camera: str, rules: tuple[str, ...]) -> str:
        """Return why a target is not notified of an alert of these rules now; '' if it is."""
        notified = self.config.profile(self.profile).notify
        if notified is not None and target not in notified:
            return f"not told: the profile is {self.profile}"
        for row in self.pauses.snoozed():
            if row.target == target and row.camera in ("", camera) and (not row.rule or set(rules) <= {row.rule}):
                what = f"rule {row.rule} of {row.camera}" if row.rule else row.camera or "everything"
                return f"not told: {what} was snoozed{f' by {row.who}' if row.who else ''}"
        return ""

    def warnings(self) -> tuple[str, ...]:
        """Return what a person has switched off, one sentence each."""
        found, state = [], self.in_force()
        if state.by == "person" and not self.reports:
            found.append(f"the site is {state.name}{_by(state.who, state.why)}: no rule reports anything")
        for row in self.pauses.paused():
            what = f"rule {row.rule} of camera {row.camera}" if row.rule else f"camera {row.camera}"
            found.append(f"{what} is paused{_by(row.who, row.why)}: it reports nothing")
        return tuple(found)

    def choose(self, profile: str, until_t: float | None, who: str, why: str = "") -> None:
        """Put a profile in force until a time (None: until it is changed).

        Raise PreconditionError or StoreError.
        """
        if profile not in self.config.names:
            raise PreconditionError(f"there is no profile {profile}: this site has {', '.join(self.config.names)}")
        row = ArmingRow(profile=profile, since_t=self._clock.now(), until_t=until_t, who=who, why=why)
        self._store.put(_shortened(row))

    def follow_schedule(self) -> bool:
        """Take a person's choice back; return False if there was none. Raise StoreError."""
        return self._store.remove()

    def arm(self, *, armed: bool, who: str) -> bool:
        """Switch on or off: on is the week's profile if that reports anything, else `armed`.

        Return False if nothing was changed. Raise StoreError.
        """
        with self._lock:
            if armed == self.reports:
                return False
            if not armed:
                self.choose(DISARMED, None, who)
                return True
            scheduled = self.config.profile(self._scheduled(self._clock.now()))
            if scheduled.rules != () and scheduled.cameras != ():
                return self.follow_schedule()
            self.choose(ARMED, None, who)
            return True

    def next_turn(self, now: float) -> float | None:
        """Return when the week turns to another profile than that of `now`; None if it never does."""
        if not self._hours:
            return None
        present = self._scheduled(now)
        weekday, minute = self._local_time(now)
        at = weekday * MINUTES_A_DAY + minute
        edges = {edge for _, hours in self._hours for edge in hours.edges()}
        for ahead in sorted({(edge - at - 1) % WEEK_MINUTES + 1 for edge in edges}):
            t = now - now % 60 + ahead * 60
            t += 60 * _early(self._local_time(t), at + ahead)  # a change to or from summer time lies between
            skipped = max(0, _early(self._local_time(t), at + ahead))  # where clocks are put forward over that minute
            for turn in (t + 60 * minutes for minutes in range(skipped + 1)):
                if turn > now and self._scheduled(turn) != present:
                    return turn
        return None

    def _profile(self, now: float, rows: Sequence[ArmingRow]) -> str:
        chosen = self._chosen(now, rows)
        return chosen.profile if chosen else self._scheduled(now)

    def _chosen(self, now: float, rows: Sequence[ArmingRow]) -> ArmingRow | None:
        """Return the chosen profile; None if none is chosen, or if it is gone from the site file."""
        for row in rows:
            if row.profile in self.config.names and row.lasts(now):
                return row
        return None

    def _scheduled(self, now: float) -> str:
        if not self._hours:
            return self.config.default
        weekday, minute = self._local_time(now)
        return next((name for name, hours in self._hours if hours.armed(weekday, minute)), self.config.default)


def _early(local: tuple[int, int], minute_of_week: int) -> int:
    """Return by how many minutes a local weekday and minute are before a minute of the week; below 0: after it."""
    weekday, minute = local
    early = minute_of_week - (weekday * MINUTES_A_DAY + minute)
    return (early + WEEK_MINUTES // 2) % WEEK_MINUTES - WEEK_MINUTES // 2


def _shortened(row: ArmingRow) -> ArmingRow:
    return replace(row, who=row.who[:WHO_CHARS_MAX], why=row.why[:WHY_CHARS_MAX])


def _by(who: str, why: str) -> str:
    return (f" by {who}" if who else "") + (f" ({why})" if why else "")
