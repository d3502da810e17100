"""The offset of the wall clock from the monotonic one, kept over a restart of the core to notice a step of the clock."""

from __future__ import annotations

from appliance.store.database import Database

STEP_S_MIN = 60.0  # two clocks of one machine drift apart by less than this between two starts
_BOOT, _APART = "clock_boot", "clock_apart_ms"


class ClockOffset:
    """Notices that the wall clock was set while no core ran.

    After such a step everything that waits would seem older or younger than it is. Both clocks go on over a restart of
    the core, so the step shows as long as the machine was not rebooted.

    State: two numbers in the database: the boot that they belong to, and how far the clocks were apart.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._boot = int(db.clock.boot_id.replace("-", "")[:15] or "0", 16)

    def stepped_s(self) -> float:
        """Seconds by which the wall clock was stepped since the last `save`; 0.0: it was not, or that is not known."""
        if not self._boot:
            return 0.0
        with self._db.read() as connection:
            found = dict(connection.execute("SELECT name, value FROM counter WHERE name IN (?, ?)", (_BOOT, _APART)))
        if found.get(_BOOT) != self._boot or _APART not in found:
            return 0.0
        step_s = self._apart_s() - found[_APART] / 1000
        return step_s if abs(step_s) > STEP_S_MIN else 0.0

    def save(self) -> None:
        """Remember how far the clocks are apart now. Raises StoreError."""
        if not self._boot:
            return
        with self._db.transaction(durable=False) as connection:
            connection.executemany(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                ((_BOOT, self._boot), (_APART, round(self._apart_s() * 1000))),
            )

    def _apart_s(self) -> float:
        return self._db.clock.now() - self._db.clock.monotonic()
