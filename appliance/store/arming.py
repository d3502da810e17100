"""Stores the profile that a person chose and the pauses: a few rows that survive restarts."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from appliance.store.database import Database

SET_BACK_S = 60.0  # a clock set back by more than this has gone before the row began


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmingRow:
    """A choice of a person that is in force for a while.

    camera '': the whole site; rule '': all of the camera. target '': nothing is reported; else that is not notified.
    profile: chosen for the site; '': this is a pause. until_t: UTC seconds; None: until it is changed. who: '' for the
    owner without a user.
    """

    camera: str = ""
    rule: str = ""
    target: str = ""
    profile: str = ""
    since_t: float
    until_t: float | None
    who: str
    why: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.camera, self.rule, self.target

    def lasts(self, now: float) -> bool:
        """Return True while the row is in force.

        A row that begins in the future is over: the clock was wrong, and nothing may stay quiet for longer than was
        asked for.
        """
        if self.until_t is None:
            return True
        return self.since_t - SET_BACK_S <= now < self.until_t


class ArmingStore:
    """The arming table. Any thread; the core reads it with every frame, so it is kept in memory.

    Invariant: what is in memory is stored. Each write leaves out what is over.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        rows = db.rows("SELECT * FROM arming ORDER BY camera, rule, target")
        self._rows = tuple(ArmingRow(**dict(row)) for row in rows)

    @property
    def rows(self) -> tuple[ArmingRow, ...]:
        """Also what is over by now."""
        return self._rows

    def put(self, row: ArmingRow) -> None:
        """In place of what was there for the same camera, rule and target. Raises StoreError: nothing has changed."""
        with self._lock:
            self._write([*(each for each in self._rows if each.key != row.key), row])

    def remove(self, camera: str = "", rule: str = "") -> bool:
        """Remove a row of all targets; return False if no such row is in force. Raise StoreError."""
        with self._lock:
            kept = [each for each in self._rows if each.key != (camera, rule, "")]
            gone = [each for each in self._rows if each.key == (camera, rule, "")]
            if gone:
                self._write(kept)
            return any(each.lasts(self._db.clock.now()) for each in gone)

    def _write(self, rows: list[ArmingRow]) -> None:
        now = self._db.clock.now()
        kept = tuple(sorted((each for each in rows if each.lasts(now)), key=lambda each: each.key))
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM arming")
            connection.executemany(
                "INSERT INTO arming VALUES (:camera, :rule, :target, :profile, :since_t, :until_t, :who, :why)",
                [asdict(each) for each in kept],
            )
            self._db.next_rev(connection)
        self._rows = kept
