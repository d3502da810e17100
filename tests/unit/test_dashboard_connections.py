"""The dashboard's server against clients without credentials: silent sockets, slow requests, slow readers, bombs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from appliance.base.clock import ManualClock
from appliance.store.users import AccessLog
from appliance.web.acceptor import Admission, Connection, ConnectionLimits
from appliance.web.guard import CountedBody
from appliance.web.problems import Problem
from appliance.web.server import BACKLOG, WebServer
from tests.support.dashboard_site import Site, config_of, running
from tests.support.tcp_clients import Noise, address_of, connections, is_closed, is_served
from tests.support.waiting import ANSWER_S, holds, until

TOKEN = "correct horse battery staple"
LIMITS = ConnectionLimits(connections_max=8, per_address_max=6, request_s=0.5, stall_s=0.5)
HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, ManualClock(), config=config_of(token=TOKEN))
    yield made
    made.close()


def test_silent_connections_are_closed_so_that_others_are_served(site: Site) -> None:
    with running(site.serve(LIMITS)) as url, connections(url, 6) as silent:
        until(lambda: all(is_closed(each) for each in silent), what="silence ends a connection")
        until(lambda: is_served(url), what="others are served")


def test_beyond_the_limits_a_connection_is_closed_at_once(site: Site) -> None:
    limits = ConnectionLimits(connections_max=8, per_address_max=6)
    with running(site.serve(limits)) as url, connections(url, 20) as many:
        until(lambda: sum(is_closed(each) for each in many) == 14, what="six of one address remain")


def test_four_noisy_strangers_cost_the_owner_none_of_200_requests(site: Site) -> None:
    """Each holds what one address may, and goes on opening more; the owner opens a connection for each request."""
    with running(site.serve()) as url, contextlib.closing(Noise(url, strangers=4, held=80)) as noise:
        noise.open(80)
        served = 0
        for _ in range(200):
            noise.open(2)
            served += is_answered(url)
        assert served == 200


def is_answered(url: str) -> bool:
    """Whether a request over a connection of its own is. (Of httpx each takes 20 ms, to make a client.)"""
    with contextlib.suppress(OSError), socket.create_connection(address_of(url), ANSWER_S) as here:
        here.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return here.recv(65536).startswith(b"HTTP/1.1 200")
    return False


def admitted(
    limits: ConnectionLimits, proxies: Sequence[str] = ()
) -> tuple[Admission, Callable[..., Connection], list[str]]:
    """An admission, what makes a connection, and the addresses whose connections were ended."""
    admission, ended = Admission(limits, proxies), list[str]()

    def connect(host: str, *, signed_in: bool = False) -> Connection:
        made = admission.admit(host, lambda: ended.append(f"{host}{' signed in' if signed_in else ''}"))
        made.signed_in = signed_in
        return made

    return admission, connect, ended


def test_who_holds_most_gives_way_and_first_those_on_which_nobody_is_signed_in() -> None:
    _, connect, ended = admitted(ConnectionLimits(connections_max=8, per_address_max=6))
    for signed_in in (True, True, False, True):
        connect("10.0.0.1", signed_in=signed_in)
    for _ in range(3):
        connect("10.0.0.2")
    connect("10.0.0.3")
    assert ended == []
    connect("10.0.0.4")
    assert ended == ["10.0.0.2"], "three strangers weigh more than three who are signed in and one"
    connect("10.0.0.4")
    assert ended[1:] == ["10.0.0.1"], "of one address the stranger goes first"
    for _ in range(5):
        connect("10.0.0.5")
    assert ended[2:].count("10.0.0.5") >= 3, "who comes with many ends their own"
    assert "10.0.0.3" not in ended


def test_a_noisy_user_who_is_signed_in_gives_way_too() -> None:
    _, connect, ended = admitted(ConnectionLimits(connections_max=8, per_address_max=6))
    for n in range(8):
        connect(f"10.0.0.{n % 2}", signed_in=True)
    connect("10.0.0.9")
    assert ended == ["10.0.0.0 signed in"]


def test_beyond_the_share_of_an_address_its_oldest_goes_and_the_new_one_is_served() -> None:
    admission, connect, ended = admitted(ConnectionLimits(connections_max=80, per_address_max=2))
    first = connect("2001:db8::1")
    connect("2001:db8::2:1")
    admission.leave(first)
    connect("2001:db8::3")
    assert ended == []
    connect("2001:db8::4")
    assert ended == ["2001:db8::2:1"], "a /64 is one visitor"


def test_a_request_of_who_is_signed_in_marks_its_connection(site: Site) -> None:
    limits = ConnectionLimits(connections_max=8, per_address_max=2)
    with (
        running(site.serve(limits)) as url,
        contextlib.closing(HTTPConnection(*address_of(url), timeout=ANSWER_S)) as kept,
    ):
        for _ in range(2):
            kept.request("GET", "/api/v1/cameras", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = kept.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            kept.auto_open = 0  # a second connection would not show that the first was closed
            with connections(url, 3) as silent:
                until(lambda: sum(is_closed(each) for each in silent) == 2, what="strangers give way")


def test_a_trusted_proxy_gives_way_last() -> None:
    _, connect, ended = admitted(ConnectionLimits(connections_max=8, per_address_max=5), ["10.9.0.0/16"])
    for _ in range(5):
        connect("::ffff:10.9.0.1")
    for _ in range(3):
        connect("10.0.0.1")
    connect("10.0.0.2")
    assert ended == ["10.0.0.1"]


def test_an_ipv4_visitor_of_an_ipv6_socket_is_one_of_many(tmp_path: Path) -> None:
    """Counted as `::ffff:…/64`, all of IPv4 was one visitor to the limits on wrong tries, and no proxy was trusted."""
    served = config_of(token=TOKEN, host="::", protocol="http", trusted_proxies=["127.0.0.1"])
    site = Site(tmp_path, ManualClock(), config=served)
    server = WebServer(site.app(), "::", 0)
    with running(server), httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=ANSWER_S) as client:
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {}):
            assert client.post("/login", json={"token": "wrong"}, headers=headers).status_code == 401
    assert [each.address for each in AccessLog(site.db).newest()] == ["127.0.0.1", "203.0.113.9"]
    site.close()


def test_a_trusted_proxy_stands_for_all_its_visitors(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(), config=config_of(token=TOKEN, trusted_proxies=["127.0.0.1"]))
    limits = ConnectionLimits(connections_max=8, per_address_max=2)
    with running(site.serve(limits)) as url, connections(url, 20) as many:
        until(lambda: sum(is_closed(each) for each in many) == 12, what="the limit of all holds")
    site.close()


@pytest.mark.parametrize(
    "begun", [b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", HEAD + b"Content-Length: 40\r\n\r\n{"]
)
def test_a_request_that_is_not_finished_in_time_ends_the_connection(site: Site, begun: bytes) -> None:
    def is_closed_after_a_byte(slow: socket.socket) -> bool:  # now and then one: that does not help
        with contextlib.suppress(OSError):
            slow.send(b"a")
        return is_closed(slow)

    with running(site.serve(LIMITS)) as url:
        began = time.monotonic()
        with connections(url, 1) as (slow,):
            slow.sendall(begun)
            until(lambda: is_closed_after_a_byte(slow), what="it is closed", every_s=0.05)
        assert time.monotonic() - began > 0.3


def test_who_does_not_read_the_answer_is_cut_off(site: Site) -> None:
    with running(site.serve(LIMITS)) as url, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect(address_of(url))
        request = b"GET /static/page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        until(lambda: _refuses(slow, request), what="it is cut off")


def _refuses(connection: socket.socket, request: bytes) -> bool:
    connection.settimeout(0.05)
    try:
        connection.sendall(request * 50)
    except TimeoutError:
        return False
    except OSError as error:
        return error.errno in {errno.EPIPE, errno.ECONNRESET}
    return False


def test_a_kept_connection_serves_many_requests_and_outlives_the_limit_of_one(site: Site) -> None:
    with running(site.serve(LIMITS)) as url:

        def outlives() -> bool:
            """False: this thread was held for longer than a request may take, and so was cut off."""
            with httpx.Client(base_url=url, timeout=ANSWER_S) as client, contextlib.suppress(httpx.TransportError):
                holds(lambda: client.get("/healthz").status_code == 200, 1.2)
                return True
            return False

        until(outlives, 5)


@pytest.mark.parametrize("length", [b"", b"Content-Length: 2\r\n"])
def test_a_body_in_chunks_is_refused_unread(site: Site, length: bytes) -> None:
    """Of both headers the server obeys the chunks: 800 MB went into memory behind a length of 2."""
    with running(site.serve()) as url, connections(url, 1) as (connection,):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection.sendall(HEAD + length + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(chunk)
        with contextlib.suppress(ConnectionError):
            connection.settimeout(20)
            assert connection.recv(65536).split()[1] == b"411"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_body_is_counted_as_it_comes() -> None:
    """Whatever its headers say: here the guard's count is asked without a server in front of it."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def read(times: int) -> None:
        counted = CountedBody(receive, 4096)  # type: ignore[arg-type]
        for _ in range(times):
            await counted()

    asyncio.run(read(4))
    with pytest.raises(Problem, match="at most 4096 bytes"):
        asyncio.run(read(5))


def test_the_backlog_is_the_one_that_is_meant(site: Site) -> None:
    server = site.serve()
    assert server._server.config.backlog == BACKLOG <= 128
    server._listening.close()


@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE"])
def test_a_body_that_is_none_ends_the_connection_and_is_no_bug(
    site: Site, method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer that was being made met a connection in no state to take it: 70 lines of log for each."""
    head = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with running(site.serve(LIMITS)) as url:
        for path in (b"/healthz", b"/login", b"/api/v1/alerts"):
            with socket.create_connection(address_of(url), 10) as client, contextlib.suppress(ConnectionError):
                client.sendall(method + b" " + path + head + b"no chunk\r\n")
                while client.recv(65536):
                    pass
        until(lambda: is_served(url))
    assert "met a bug" not in caplog.text
    assert "Exception in ASGI" not in caplog.text
