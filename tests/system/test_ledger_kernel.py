"""The ledger against the kernel's own counters of an interface: never less than it, and within a hundredth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.netns import Cable, cable, why_not
from tests.support.waiting import until
from tests.system.test_broker_identity import certificates

ROOT = Path(__file__).parents[2]
BINARIES = find_nats_servers()
QUESTIONS = 20
WHY_NOT = why_not() or ("" if BINARIES else "no nats-server")

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")


class FarServer(NatsServer):
    """In the hub's namespace."""

    def __init__(self, folder: Path, there: Cable, extra: str) -> None:
        super().__init__(BINARIES[0], folder)
        self._there = there
        self._text = extra

    def start(self) -> NatsServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        ready = self.log().count("Server is ready") if (self._folder / "server.log").exists() else 0
        config = self._folder / "server.conf"
        store = json.dumps(str(self._folder / "store"))
        config.write_text(f"listen: {self._there.address}:4222\njetstream {{ store_dir: {store} }}\n{self._text}")
        with (self._folder / "server.log").open("ab") as log:
            command = self._there.inside(self._there.hub, self._binary.path, "-c", config)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self.log().count("Server is ready") > ready, 20)
        return self


def python(there: Cable, namespace: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        there.inside(namespace, sys.executable, *arguments), cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def end(*processes: subprocess.Popen[str]) -> None:
    for each in processes:
        each.terminate()
        each.communicate(timeout=120)


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "tls"])
def test_what_the_ledger_says_was_sent_is_what_the_kernel_counted(tmp_path: Path, tls: bool) -> None:
    with cable() as there:
        extra, keys, scheme = "", [], "nats"
        if tls:
            certificates(tmp_path, there.address)
            files = f'cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key"'
            extra, keys, scheme = f"tls {{ {files} }}", [f"tls_ca={tmp_path}/ca.pem"], "tls"
        url = f"{scheme}://{there.address}:4222"
        server = FarServer(tmp_path / "nats", there, extra).start()
        worker_file = tmp_path / "worker.yaml"
        ca = f", tls_ca: '{tmp_path}/ca.pem'" if tls else ""
        worker_file.write_text(
            f"nats: {{url: '{url}'{ca}}}\nengine: {{kind: redetect}}\nworker: {{ack_wait_s: 2, retry_s: 0.1}}\n"
        )
        worker = python(there, there.hub, "-m", "cloud_worker", "run", "--config", worker_file)
        site = python(
            there, there.site, "-m", "tests.servers.site_process", tmp_path / "site", url, str(QUESTIONS), *keys
        )
        try:
            assert site.stdout is not None
            assert site.stdin is not None
            assert site.stdout.readline() == "settled\n"
            server.kill()
            server.start()
            site.stdin.write("\n")
            site.stdin.flush()
            said = json.loads(site.stdout.readline())
            counted = there.sent_by_site()
        finally:
            end(site, worker)
            server.stop()
    ours = said["uplink_bytes"]
    print(f"kernel {counted}, ledger {ours}, {ours / counted - 1:+.3%}")
    assert counted <= ours <= counted * 1.01, (counted, said)
    purposes = sum(amount for kind, amount in said.items() if kind.startswith("uplink_bytes_"))
    assert purposes == ours, "payload by purpose, what was sent again and the protocol add up"
    assert said["uplink_bytes_frame"] > QUESTIONS * 2 * 10_000
    assert 0 < said["uplink_bytes_protocol"] < 0.15 * ours
