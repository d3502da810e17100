"""HTTPS: the box's own certificate, files that change, plain HTTP on the same port, and who is slow to shake hands."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import MissingDependency
from appliance.config import DashboardConfig
from appliance.core.app import keep_until_restart
from appliance.web.acceptor import ConnectionLimits
from appliance.web.auth import COOKIE
from appliance.web.tls import LOOK_EVERY_S, OWN_S, RENEW_BEFORE_S, ServerCertificate
from tests.support.dashboard_site import Site, config_of, running
from tests.support.tcp_clients import Noise, address_of, connections, is_closed, is_served
from tests.support.waiting import ANSWER_S, until

TOKEN = "correct horse battery staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = ConnectionLimits(connections_max=8, per_address_max=6, request_s=0.5, stall_s=0.5)
NOW = 1_700_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN, protocol="https"))
    yield made
    made.close()


class Authority:
    """A certificate authority of one's own, as companies have: what it signs is no self-signed certificate."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "House CA")])
        self.certificate = self._signed(self.name, self.key.public_key(), ca=True)

    def _signed(self, subject: x509.Name, public: Any, *, ca: bool, days: int = 90) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
        builder = builder.not_valid_after(now + datetime.timedelta(days))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        names = [x509.DNSName("localhost")]
        return builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(self.key, hashes.SHA256())

    def issue(self, folder: Path, name: str = "box", *, days: int = 90) -> dict[str, str]:
        """Write a certificate for localhost with its chain, and its key; returns the keys of the site file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        leaf = self._signed(subject, key.public_key(), ca=False, days=days)
        pem = serialization.Encoding.PEM
        (folder / "box.crt").write_bytes(leaf.public_bytes(pem) + self.certificate.public_bytes(pem))
        plain = serialization.NoEncryption()
        (folder / "box.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        return {"certificate": str(folder / "box.crt"), "certificate_key": str(folder / "box.key")}

    def trusted(self) -> ssl.SSLContext:
        text = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=text)


def shown(url: str) -> str:
    """The SHA-256 of the certificate that a client is shown, as browsers write it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address_of(url), 20) as plain, context.wrap_socket(plain) as connection:
        data = connection.getpeercert(binary_form=True)
    assert data is not None
    return x509.load_der_x509_certificate(data).fingerprint(hashes.SHA256()).hex(":").upper()


@pytest.mark.parametrize(
    ("settings", "https"),
    [
        ({}, False), ({"host": "localhost"}, False), ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True), ({"host": "192.168.1.5"}, True),
        ({"host": "0.0.0.0", "trusted_proxies": ["172.18.0.2"]}, False),
        ({"host": "0.0.0.0", "trusted_proxies": ["172.18.0.2"], "protocol": "https"}, True),
        ({"host": "0.0.0.0", "protocol": "http"}, False), ({"protocol": "https"}, True),
        ({"certificate": "a.crt", "certificate_key": "a.key"}, True),
    ],
)  # fmt: skip
def test_others_than_this_machine_come_over_https(settings: dict[str, Any], https: bool) -> None:
    assert DashboardConfig.model_validate(settings).speaks_https is https


@pytest.mark.parametrize(
    "settings", [{"certificate": "a.crt"}, {"certificate_key": "a.key"},
                 {"certificate": "a.crt", "certificate_key": "a.key", "protocol": "http"}]
)  # fmt: skip
def test_half_a_pair_and_a_certificate_for_http_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="certificate"):
        DashboardConfig.model_validate(settings)


def test_a_box_makes_its_own_certificate_shows_it_and_keeps_it(site: Site) -> None:
    server = site.serve()
    with running(server) as url:
        assert url.startswith("https://")
        assert shown(url) == server.fingerprint
        with httpx.Client(base_url=url, verify=False, headers=BEARER, timeout=ANSWER_S) as client:
            answer = client.get("/api/v1/settings/connection")
            told = answer.json()["certificate"]
            assert "Strict-Transport-Security" not in answer.headers, "a browser would never let its owner in again"
        with httpx.Client(base_url=url, verify=False, timeout=ANSWER_S) as client:
            assert "; Secure" in client.post("/login", json={"token": TOKEN}).headers["Set-Cookie"]
    assert (told["fingerprint"], told["own"], told["self_signed"]) == (server.fingerprint, True, True)
    assert {"localhost", "127.0.0.1"} <= set(told["names"])
    assert (site.root / "tls" / "dashboard.key").stat().st_mode & 0o777 == 0o600
    assert site.serve().fingerprint == server.fingerprint, "a restart is no new certificate"
    with pytest.raises(httpx.ConnectError), running(site.serve()) as url:
        httpx.get(f"{url}/healthz", timeout=ANSWER_S)


def test_its_own_certificate_is_renewed_in_time_with_the_same_key(tmp_path: Path) -> None:
    clock = ManualClock()
    own = ServerCertificate.of(DashboardConfig(protocol="https"), tmp_path, clock)
    assert own is not None
    first, key = own.facts, (tmp_path / "tls" / "dashboard.key").read_bytes()
    clock.advance(OWN_S - RENEW_BEFORE_S - 3 * 86400)
    own.refresh()
    assert own.facts == first
    clock.advance(3 * 86400)
    own.refresh()
    assert own.facts.fingerprint != first.fingerprint
    assert own.facts.expires_t > clock.now() + RENEW_BEFORE_S
    assert (tmp_path / "tls" / "dashboard.key").read_bytes() == key


def test_a_certificate_of_an_authority_is_trusted_and_asks_browsers_to_stay_with_https(tmp_path: Path) -> None:
    authority = Authority()
    site = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN, **authority.issue(tmp_path)))
    server = site.serve()
    with running(server) as url:
        answer = httpx.get(f"https://localhost:{server.port}/healthz", verify=authority.trusted(), timeout=ANSWER_S)
        assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
        assert url.startswith("https://")
    assert server.fingerprint == "", "there is nothing to compare"
    site.close()


def test_files_that_change_are_taken_and_broken_ones_are_not(tmp_path: Path) -> None:
    authority, clock = Authority(), ManualClock()
    config = DashboardConfig.model_validate(authority.issue(tmp_path))
    held = ServerCertificate.of(config, tmp_path, clock)
    assert held is not None
    first = held.facts

    def later() -> None:
        clock.advance(LOOK_EVERY_S)
        assert held.is_due
        held.refresh()

    key = (tmp_path / "box.key").read_bytes()
    authority.issue(tmp_path, "renewed")
    fresh = (tmp_path / "box.key").read_bytes()
    (tmp_path / "box.key").write_bytes(key)  # half of the pair is there
    later()
    assert held.facts == first
    assert "do not go together" in held.fault
    (tmp_path / "box.key").write_bytes(fresh)
    later()
    assert held.facts.fingerprint != first.fingerprint
    assert held.fault == ""
    (tmp_path / "box.crt").unlink()
    later()
    assert "No such file" in held.fault


def test_a_running_server_shows_the_new_certificate(tmp_path: Path) -> None:
    authority = Authority()
    site = Site(tmp_path, SystemClock(), config=config_of(token=TOKEN, **authority.issue(tmp_path)))
    with running(site.serve()) as url:
        before = shown(url)
        authority.issue(tmp_path, "renewed")
        until(lambda: shown(url) != before, what="the new certificate is shown")
    site.close()


@pytest.mark.parametrize("what", ["absent", "no PEM", "locked"])
def test_unusable_files_are_named_at_the_start(tmp_path: Path, what: str) -> None:
    settings = Authority().issue(tmp_path)
    path = tmp_path / "box.key"
    if what == "absent":
        path.unlink()
    elif what == "no PEM":
        path.write_text("hello")
    else:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        locked = serialization.BestAvailableEncryption(b"secret")
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(MissingDependency, match=r"box\.key"):
        ServerCertificate.of(DashboardConfig.model_validate(settings), tmp_path, SystemClock())


def test_what_is_set_for_https_waits_for_a_restart(tmp_path: Path) -> None:
    running_config, new = config_of(), config_of(protocol="https", **Authority().issue(tmp_path))
    kept, waiting = keep_until_restart(running_config, new)
    assert set(waiting) == {"dashboard.protocol", "dashboard.certificate", "dashboard.certificate_key"}
    assert kept.dashboard == running_config.dashboard


def test_plain_http_on_the_port_is_led_to_https_or_told(site: Site) -> None:
    with running(site.serve()) as url:
        plain = url.replace("https://", "http://")
        page = httpx.get(f"{plain}/cameras?a=b%26c", headers={"Accept": "text/html"}, timeout=ANSWER_S)
        assert (page.status_code, page.headers["Location"]) == (308, f"{url}/cameras?a=b%26c")
        told = httpx.get(f"{plain}/api/v1/alerts", headers=BEARER, timeout=ANSWER_S)
        assert (told.status_code, told.headers["Content-Type"]) == (426, "application/problem+json")
        assert "https://" in told.json()["detail"]
        tried = httpx.post(f"{plain}/login", json={"token": TOKEN}, timeout=ANSWER_S)
        assert tried.status_code == 426
        assert COOKIE not in tried.cookies
        elsewhere = httpx.get(plain, headers={"Accept": "text/html", "Host": "evil.example"}, timeout=ANSWER_S)
        assert elsewhere.status_code == 403


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(site: Site, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with (
        running(site.serve()) as url,
        socket.create_connection(address_of(url), 20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)


def hello() -> bytes:
    """What a client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("sent", [0, 1, 40, 10_000], ids=["nothing", "a byte", "a part", "all, and then nothing"])
def test_a_handshake_that_is_not_finished_in_time_ends_the_connection(site: Site, sent: int) -> None:
    begun = hello()[:sent]
    with running(site.serve(LIMITS)) as url, connections(url, 6) as silent:
        began = time.monotonic()
        for each in silent:
            with contextlib.suppress(OSError):  # this thread was held for longer than a handshake may take
                each.sendall(begun)
        until(lambda: all(is_closed(each) for each in silent), what="half a handshake ends a connection")
        assert time.monotonic() - began < 40, "asyncio's own limit is 60 s"
        until(lambda: is_served(url))


def test_a_handshake_byte_by_byte_does_not_help(site: Site) -> None:
    with running(site.serve(LIMITS)) as url, connections(url, 1) as (slow,):
        rest = iter(hello() * 1000)

        def is_closed_after_a_byte() -> bool:
            with contextlib.suppress(OSError):
                slow.send(bytes([next(rest)]))
            return is_closed(slow)

        until(is_closed_after_a_byte, what="it is closed", every_s=0.02)


def test_beyond_the_limits_a_connection_is_closed_before_it_shakes_hands(site: Site) -> None:
    limits = ConnectionLimits(connections_max=8, per_address_max=6)
    with running(site.serve(limits)) as url, connections(url, 20) as many:
        until(lambda: sum(is_closed(each) for each in many) == 14, what="six of one address remain")


def test_half_handshakes_from_four_addresses_cost_nobody_a_request(site: Site) -> None:
    with running(site.serve()) as url, contextlib.closing(Noise(url, 4, held=80, first=hello()[:40])) as noise:
        noise.open(80)
        served = 0
        for _ in range(20):
            noise.open(4)
            served += is_served(url)
        assert served == 20


FLOOD = """
import sys
from tests.support.tcp_clients import Noise
noise = Noise(sys.argv[1], 4, held=100, first=bytes.fromhex(sys.argv[2]))
noise.open(100)
print("400 are open", flush=True)
while True:
    noise.open(1)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flood_of_half_handshakes_by_another_process_costs_none_of_200_requests(site: Site) -> None:
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with running(site.serve()) as url:
        command = [sys.executable, "-c", FLOOD, url, hello()[:40].hex()]
        with subprocess.Popen(command, env=here, stdout=subprocess.PIPE) as flood:
            try:
                assert flood.stdout is not None
                assert flood.stdout.readline() == b"400 are open\n"
                assert sum(is_served(url) for _ in range(200)) == 200
                assert flood.poll() is None
            finally:
                flood.kill()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{",
    ],
)  # fmt: skip
def test_after_the_handshake_the_limits_of_a_request_hold(site: Site, begun: bytes) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with running(site.serve(LIMITS)) as url:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError, ssl.SSLError), connections(url, 1) as (plain,):
            slow = context.wrap_socket(plain)
            slow.sendall(begun)
            slow.settimeout(30)
            assert slow.recv(1000) == b""
        assert 0.3 < time.monotonic() - began < 25


def test_rubbish_is_no_bug_and_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with running(site.serve(LIMITS)) as url:
        records = b"\x16" + os.urandom(200), b"\x16\x03\x01\x02\x00" + b"\0" * 512, hello()[:-9]
        for rubbish in (os.urandom(200), *records):
            with socket.create_connection(address_of(url), 20) as each, contextlib.suppress(ConnectionError):
                each.sendall(rubbish)
                each.shutdown(socket.SHUT_WR)
                while each.recv(65536):
                    pass
        until(lambda: is_served(url))
    assert caplog.text == ""
