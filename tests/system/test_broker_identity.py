"""How a site proves who it is, against real servers set up so: NKEY, credentials, TLS on both sides, a leaf server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance import config
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import NatsLink, end_tasks
from benchmarks.stub_engines import Instant
from cloud_worker import stream_setup
from cloud_worker.config import StreamsConfig
from tests.servers.jwt import operator_account_user, public_of, seed_of
from tests.servers.nats import NatsBinary, NatsServer, find_nats_servers
from tests.servers.site import site
from tests.servers.worker import worker
from tests.support.ports import quiet_port
from tests.support.waiting import until
from tests.system.test_escalation_nats import make_streams

DEPLOY = Path(__file__).parents[2] / "deploy" / "nats"
BINARIES = find_nats_servers()
every_version = pytest.mark.parametrize("binary", BINARIES, ids=str)


def make_streams_as(address: config.UplinkConfig) -> None:
    """As a worker would that comes with the same identity."""

    async def main() -> None:
        link = NatsLink(address, "test", SystemClock())
        keeper = asyncio.create_task(link.run())
        try:
            client = await asyncio.wait_for(link.client(), 60)
            await stream_setup.ensure_streams(client.jetstream(), StreamsConfig())
        finally:
            await end_tasks(keeper)

    asyncio.run(main())


def goes_through(folder: Path, server: NatsServer, **identity: Any) -> None:
    """A question of a site with this identity is stored."""
    make_streams_as(config.UplinkConfig(url=server.url, **identity))
    with site(folder / "site", server.url, **identity) as here:
        here.ask(1)
        until(lambda: here.count("sent") == 1, what=here.service.link.error)


def refused(folder: Path, server: NatsServer, url: str = "", **identity: Any) -> str:
    """Why a site with this identity has no link."""
    with site(folder / "other", url or server.url, **identity) as here:
        until(lambda: here.service.link.error not in {"", "not connected yet"})
        assert not here.service.link.up
        assert here.service.link.wire > 0, "what it tried is counted"
        return here.service.link.error


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    running: list[NatsServer] = []

    def start(binary: NatsBinary, extra: str) -> NatsServer:
        running.append(NatsServer(binary, tmp_path / f"nats{len(running)}", extra=extra).start())
        return running[-1]

    yield start
    for each in running:
        each.stop()


Serve = Callable[[NatsBinary, str], NatsServer]


@every_version
def test_a_site_comes_with_an_nkey(binary: NatsBinary, tmp_path: Path, serve: Serve) -> None:
    seed = seed_of()
    server = serve(binary, f"authorization {{ users: [ {{ nkey: {public_of(seed)} }} ] }}")
    for name, text in (("right", seed), ("wrong", seed_of()), ("rubbish", b"SUNOTASEED")):
        (tmp_path / name).write_bytes(text)
    goes_through(tmp_path, server, nkey=tmp_path / "right")
    assert "refused us" in refused(tmp_path, server, nkey=tmp_path / "wrong")
    assert "holds no usable seed" in refused(tmp_path, server, nkey=tmp_path / "rubbish")
    assert "there is no" in refused(tmp_path, server, nkey=tmp_path / "absent")


@every_version
def test_a_site_comes_with_credentials(binary: NatsBinary, tmp_path: Path, serve: Serve) -> None:
    mine, other = operator_account_user(), operator_account_user()
    server = serve(binary, mine.server)
    (tmp_path / "right.creds").write_text(mine.creds)
    (tmp_path / "wrong.creds").write_text(other.creds)
    goes_through(tmp_path, server, credentials=tmp_path / "right.creds")
    assert "refused us" in refused(tmp_path, server, credentials=tmp_path / "wrong.creds")


@every_version
def test_a_file_that_is_not_there_is_named_also_where_the_server_asks_for_a_token(
    binary: NatsBinary, tmp_path: Path, serve: Serve
) -> None:
    server = serve(binary, 'authorization { token: "right" }')
    for key in ("credentials", "nkey"):
        assert str(tmp_path / "absent") in refused(tmp_path, server, **{key: tmp_path / "absent"})


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path, address: str = "127.0.0.1") -> None:
    """A CA, a server for `address` and a site, each NAME.pem and NAME.key."""
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name, names in (("server", f"IP:{address}"), ("site", "DNS:depot-7")):
        (folder / "ext").write_text(f"subjectAltName={names}\n")
        openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "ext", "-out", f"{name}.pem")  # fmt: skip


@every_version
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not there")
def test_both_sides_show_a_certificate(binary: NatsBinary, tmp_path: Path, serve: Serve) -> None:
    certificates(tmp_path)
    files = f'cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", ca_file: "{tmp_path}/ca.pem"'
    server = serve(binary, f"tls {{ {files}, verify: true }}")
    ours = {"tls_cert": tmp_path / "site.pem", "tls_key": tmp_path / "site.key"}
    goes_through(tmp_path, server, tls_ca=tmp_path / "ca.pem", **ours)
    assert "is tls_ca right?" in refused(tmp_path, server, **ours), "a server that nobody vouches for"
    assert refused(tmp_path, server, tls_ca=tmp_path / "ca.pem"), "a site without a certificate"
    wrong = {"tls_cert": tmp_path / "site.pem", "tls_key": tmp_path / "server.key"}
    assert "cannot be used as certificate and key" in refused_early(tmp_path, server, tmp_path / "ca.pem", wrong)


def refused_early(folder: Path, server: NatsServer, ca: Path, identity: dict[str, Path]) -> str:
    """As `refused`, where nothing was tried."""
    with site(folder / "other", server.url, tls_ca=ca, **identity) as here:
        until(lambda: here.service.link.error not in {"", "not connected yet"})
        return here.service.link.error


class Configured(NatsServer):
    """A server with a file of deploy/nats as it stands, but for its ports and its store."""

    def __init__(self, binary: NatsBinary, folder: Path, text: str) -> None:
        super().__init__(binary, folder)
        self._text = text

    def _config(self) -> str:
        return self._text.replace("127.0.0.1:4222", f"127.0.0.1:{self.port or -1}")


@pytest.mark.slow  # a pull that the hub forgot is repeated after 30 s
@every_version
def test_a_leaf_server_on_the_box_is_a_matter_of_configuration_alone(binary: NatsBinary, tmp_path: Path) -> None:
    leaf_port = quiet_port()
    texts = [(DEPLOY / name).read_text() for name in ("hub.conf", "leaf.conf")]
    texts = [text.replace(":7422", f":{leaf_port}") for text in texts]
    texts[0] = texts[0].replace("/var/lib/nats", str(tmp_path / "store")).replace("http: 127.0.0.1:8222", "")
    hub = Configured(binary, tmp_path / "hub", texts[0]).start()
    leaf = Configured(binary, tmp_path / "leaf", texts[1]).start()
    try:
        make_streams(hub.url)
        with site(tmp_path / "site", leaf.url) as here, worker(hub.url, Instant()):
            here.ask(1)
            until(lambda: here.settled(1), 30)
            hub.kill()
            here.ask(2)
            until(lambda: here.service.waits_for, 30)
            assert here.service.link.up, "its own server is there"
            assert here.count("ready") == 1, "nothing is taken that the hub does not have"
            hub.start()
            until(lambda: here.settled(2), 60)
    finally:
        leaf.stop()
        hub.stop()
