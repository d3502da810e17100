"""The site: the core's half of an escalation as a process that may be killed, and the cable between it and its broker.

    python -m benchmarks.chaos.site FOLDER URL COUNT RATE

Raises alert 0 .. COUNT - 1 with the real store, outbox, uplink and verdicts, each alert and its escalation in the one
transaction of the product, and goes on after a restart with those that are missing. FOLDER/journal has a line for each
alert, written after its commit, and `settled` when every escalation is. The database writes the site's part of the
history (`history.py`). FOLDER/clock holds the seconds by which this site's clock is wrong.

`NetworkRelay` is the cable, which can be cut or hang.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import socket
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
BUFFER = 65536


class NetworkRelay:
    """Relay of connections to `port`.

    `cut()` breaks all of them and takes no new ones, `silent()` lets them hang (as a dead router does), `mend()` ends
    both. Owner: one thread owns it.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._peer: dict[socket.socket, socket.socket] = {}
        self._state = "whole"
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        self._state = "cut"

    def silent(self) -> None:
        self._state = "silent"

    def mend(self) -> None:
        self._state = "whole"

    def close(self) -> None:
        self._stop = True
        self._thread.join(5)
        for sock in [*self._peer, self._listener]:
            sock.close()

    def _run(self) -> None:
        while not self._stop:
            if self._state == "cut":
                for sock in list(self._peer):
                    self._drop(sock)
            for key, _ in self._selector.select(0.02):
                assert isinstance(key.fileobj, socket.socket)
                sock = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif self._state == "whole" and sock in self._peer:
                    self._relay(sock)
            if self._state == "silent":
                threading.Event().wait(0.02)  # unread data in the sockets keeps the selector awake

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._state != "whole":
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._port), 2)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.settimeout(5)
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ, None)

    def _relay(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(BUFFER)
            if data:
                self._peer[sock].sendall(data)
                return
        except OSError:
            pass
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        other = self._peer.pop(sock, None)
        for each in (sock, other):
            if each is not None:
                self._peer.pop(each, None)
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()


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
