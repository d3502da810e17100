"""The core's half of an escalation as a process that may be killed: raises alerts, escalates them, applies verdicts.

    python -m benchmarks.chaos.core_process FOLDER URL COUNT RATE

Raises alert 0 .. COUNT - 1 with the real store, outbox, uplink and verdicts, each alert and its escalation in the one
transaction of the product, and goes on after a restart with those that are missing. FOLDER/journal has a line for each
alert, written after its commit, and `settled` when every escalation is. The database writes the site's part of the
history (`history.py`). FOLDER/clock holds the seconds by which this site's clock is wrong.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from pathlib import Path

from appliance.base.clock import SystemClock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.base.threads import Service, ServiceGroup
from benchmarks.chaos.history import watch_site
from tests.servers import site as servers

LARGE_EVERY = 12  # one in so many brings an image of several chunks
STEPPED_EVERY_S = 0.5


class WrongClock(SystemClock):
    """A wall clock that is wrong by the seconds in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wrong_s = 0.0
        self._read_t = float("-inf")

    def now(self) -> float:
        if time.monotonic() - self._read_t > STEPPED_EVERY_S:
            self._read_t = time.monotonic()
            self._wrong_s = float(self._path.read_text() or 0) if self._path.exists() else 0.0
        return time.time() + self._wrong_s


def pictures_of(n: int) -> tuple[bytes, ...]:
    """Return the images of alert `n`, the same after every restart: every other has three, which are sent together."""
    large = n % LARGE_EVERY == 0
    first = servers.evidence_image(n, (640, 480) if large else (160, 120), noise=large)
    return first, *(servers.evidence_image(n, (160, 120 + k)) for k in range(1, 3) if n % 2)


def main(arguments: list[str]) -> int:
    folder, url, count, rate = Path(arguments[0]), arguments[1], int(arguments[2]), float(arguments[3])
    group, stop = ServiceGroup(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: group.stop())
    site = servers.Site(folder / "data", url, clock=WrongClock(folder / "clock"))
    group.start(Service("alerts", lambda: _raise_alerts(folder, site, count, rate, stop), stop.set))
    code = group.wait()
    return 3 if site.failures or code else 0


def _raise_alerts(folder: Path, site: servers.Site, count: int, rate: float, stop: threading.Event) -> None:
    _retry_until_stopped(lambda: _prepare(site), stop)
    site.connect()
    try:
        for n in _missing(site, count):
            _retry_until_stopped(lambda n=n: _raise(site, n), stop)  # type: ignore[misc]
            _journal_line(folder, f"raised {n}")
            if stop.wait(1 / rate) or site.failures:
                break
        while not stop.wait(0.1) and not site.failures:
            if _settled(site) >= count:
                _journal_line(folder, "settled")
                break
        stop.wait()
    finally:
        site.cut()


def _journal_line(folder: Path, line: str) -> None:
    with (folder / "journal").open("ab", buffering=0) as journal:
        journal.write(f"{line}\n".encode())


def _prepare(site: servers.Site) -> None:
    with site.db.transaction() as connection:
        watch_site(connection)


def _missing(site: servers.Site, count: int) -> list[int]:
    """Return the alerts that were never raised, or whose process was killed before their images were written."""
    with site.db.read() as connection:
        rows = connection.execute("SELECT alert FROM escalation WHERE state != 'waiting'")
        there = {int(row[0].removeprefix("alert-")) for row in rows}
    return [n for n in range(count) if n not in there]


def _raise(site: servers.Site, n: int) -> None:
    site.ask(n, pictures_of(n), severity="alert" if n % 3 == 0 else "warning", zone=f"alert-{n}")


def _settled(site: servers.Site) -> int:
    with site.db.read() as connection:
        return int(connection.execute("SELECT count(*) FROM verdict").fetchone()[0])


def _retry_until_stopped(what: object, stop: threading.Event) -> None:
    """Retry until the disk accepts it."""
    while not stop.is_set():
        try:
            what()  # type: ignore[operator]
        except (StoreUnavailable, OSError) as error:
            logging.warning("waiting for the disk: %s", error)
            stop.wait(0.2)
        else:
            return


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        sys.exit(main(sys.argv[1:]))
    except StoreError as error:
        logging.error("%s", error)
        sys.exit(3)
