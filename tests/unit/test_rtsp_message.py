"""RTSP requests cut from a byte stream, transports chosen, passwords checked."""

from __future__ import annotations

import base64
import hashlib

import pytest

from appliance.demo.rtsp_protocol import (
    HEAD_BYTES_MAX,
    BadRtspRequest,
    RtspRequestReader,
    choose_channels,
    rtsp_response,
)
from tests.servers.rtsp_authentication import REALM, RtspAuthenticator

OPTIONS = b"OPTIONS rtsp://h/yard RTSP/1.0\r\nCSeq: 1\r\nUser-Agent: x\r\n\r\n"
PLAY = b"PLAY rtsp://h/yard RTSP/1.0\r\ncseq: 2\r\nSession:  abc \r\n\r\n"
URL = "rtsp://h/yard"


def test_cuts_requests_however_the_bytes_arrive() -> None:
    for step in (1, 7, 1000):
        reader, found = RtspRequestReader(), []
        stream = OPTIONS + PLAY
        for at in range(0, len(stream), step):
            found += reader.feed(stream[at : at + step])
        assert [request.method for request in found] == ["OPTIONS", "PLAY"]
        assert found[1].headers == {"cseq": "2", "session": "abc"}


def test_skips_interleaved_reports_and_responses_and_bodies() -> None:
    body = b"SET_PARAMETER rtsp://h/yard RTSP/1.0\r\nCSeq: 3\r\nContent-Length: 6\r\n\r\nvolume"
    report, answer = b"$\x01\x00\x04rrrr", b"RTSP/1.0 200 OK\r\nCSeq: 0\r\n\r\n"
    found = RtspRequestReader().feed(report + answer + body + b"\r\n" + OPTIONS)
    assert [request.method for request in found] == ["SET_PARAMETER", "OPTIONS"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"PLAY rtsp://h/yard RTSP/2.0\r\nCSeq: 1\r\n\r\n", 505),
        (b"PLAY rtsp://h/yard RTSP/1.0\r\n\r\n", 400),
        (b"PLAY rtsp://h/yard RTSP/1.0\r\nCSeq: 1\r\nContent-Length: many\r\n\r\n", 400),
        (b"PLAY rtsp://h/yard RTSP/1.0\r\nCSeq: 1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"PLAY rtsp://h/yard RTSP/1.0\r\nCSeq: 1\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"PLAY " + b"x" * HEAD_BYTES_MAX, 431),
        (b"PLAY \xff\xfe RTSP/1.0\r\nCSeq: 1\r\n\r\n", 400),
    ],
)
def test_refuses_what_is_not_rtsp_or_is_too_large(data: bytes, status: int) -> None:
    with pytest.raises(BadRtspRequest) as caught:
        RtspRequestReader().feed(data)
    assert caught.value.status == status


def test_a_response_echoes_the_number_and_counts_its_body() -> None:
    assert rtsp_response(200, "7", [("Session", "ab")], "v=0\r\n") == (
        b"RTSP/1.0 200 OK\r\nCSeq: 7\r\nSession: ab\r\nContent-Length: 5\r\n\r\nv=0\r\n"
    )


@pytest.mark.parametrize(
    ("header", "channels"),
    [
        ("RTP/AVP/TCP;unicast;interleaved=2-3", (2, 3)),
        ("RTP/AVP;unicast;client_port=1-2,RTP/AVP/TCP;unicast;interleaved=0-1", (0, 1)),
        ("RTP/AVP/TCP;unicast", (0, 1)),
        ("RTP/AVP/TCP;interleaved=5", (5, 6)),
        ("RTP/AVP/TCP;interleaved=300-301", None),
        ("RTP/AVP;unicast;client_port=5000-5001", None),
        ("RTP/AVP;multicast", None),
        ("", None),
    ],
)
def test_takes_tcp_and_nothing_else(header: str, channels: tuple[int, int] | None) -> None:
    assert choose_channels(header) == channels


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _digest(password: str, nonce: str, *, qop: bool = False, target: str = URL) -> str:
    secret, request = _md5(f"viewer:{REALM}:{password}"), _md5(f"DESCRIBE:{target}")
    middle = f"{nonce}:00000001:c0ffee:auth" if qop else nonce
    more = ", qop=auth, nc=00000001, cnonce=c0ffee" if qop else ""
    answer = _md5(f"{secret}:{middle}:{request}")
    return f'Digest username="viewer", realm="{REALM}", nonce="{nonce}", uri="{target}", response="{answer}"{more}'


def test_digest_is_bound_to_password_nonce_and_url() -> None:
    gate = RtspAuthenticator("viewer", "pä:ss")
    assert gate.accepts(_digest("pä:ss", "n1"), "DESCRIBE", URL, "n1")
    assert gate.accepts(_digest("pä:ss", "n1", qop=True), "DESCRIBE", URL, "n1")
    assert not gate.accepts(_digest("wrong", "n1"), "DESCRIBE", URL, "n1")
    assert not gate.accepts(_digest("pä:ss", "n1"), "DESCRIBE", URL, "n2")
    assert not gate.accepts(_digest("pä:ss", "n1"), "PLAY", URL, "n1")
    assert not gate.accepts(_digest("pä:ss", "n1", target="rtsp://h/gate"), "DESCRIBE", URL, "n1")


def test_basic_is_accepted_only_where_offered() -> None:
    header = "Basic " + base64.b64encode("viewer:pä:ss".encode()).decode()
    assert RtspAuthenticator("viewer", "pä:ss").accepts(header, "PLAY", URL, "n")
    assert not RtspAuthenticator("viewer", "other").accepts(header, "PLAY", URL, "n")
    assert not RtspAuthenticator("viewer", "pä:ss", ("digest",)).accepts(header, "PLAY", URL, "n")
    assert not RtspAuthenticator("viewer", "pä:ss").accepts("Basic ???", "PLAY", URL, "n")
    assert not RtspAuthenticator("viewer", "pä:ss").accepts("", "PLAY", URL, "n")


def test_offers_what_it_accepts() -> None:
    assert [offer.split(" ")[0] for offer in RtspAuthenticator("u", "p").challenges("n")] == ["Digest", "Basic"]
    assert RtspAuthenticator("u", "p", ("basic",)).challenges("n") == [f'Basic realm="{REALM}"']
