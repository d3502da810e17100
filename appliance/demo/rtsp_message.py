"""RTSP 1.0 without I/O: requests, responses, the Transport header."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEAD_BYTES_MAX = 16 * 1024  # requests of real clients have under 1 kB
BODY_BYTES_MAX = 64 * 1024  # clients send none; a bound for hostile ones
HEADERS_MAX = 64  # likewise
_END = b"\r\n\r\n"
_RESPONSE = b"RTSP/1.0 "
STATUS_TEXTS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    431: "Request Header Fields Too Large",
    454: "Session Not Found",
    455: "Method Not Valid in This State",
    461: "Unsupported Transport",
    505: "RTSP Version Not Supported",
    551: "Option not supported",
}


class BadRtspRequest(Exception):
    """Bytes that are not RTSP, or more than a request may have; the connection is answered with `status` and closed."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class RtspRequest:
    """One request. Header names are lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def cseq(self) -> str:
        return self.headers["cseq"]


class RtspRequestReader:
    """Cuts what one client sends into requests.

    State: bytes not yet understood, at most `HEAD_BYTES_MAX + BODY_BYTES_MAX`. Frames of interleaved data (receiver
    reports) and responses (FFmpeg answers what looks to it like a request) are skipped; bodies are read and thrown
    away, for nothing that we serve has one.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[RtspRequest]:
        """Return the requests that `data` completes. Raise BadRtspRequest."""
        self._pending += data
        found: list[RtspRequest] = []
        while self._pending:
            taken = self._take_one(found)
            if not taken:
                break
            del self._pending[:taken]
        return found

    def _take_one(self, found: list[RtspRequest]) -> int:
        """Return the bytes that the next whole frame or request takes, 0 when it is not all here."""
        pending = self._pending
        if pending[:1] == b"$":
            size = 4 + int.from_bytes(pending[2:4], "big")
            return size if len(pending) >= max(4, size) else 0
        if pending[:2] == b"\r\n":
            return 2
        end = pending.find(_END, 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(pending) >= HEAD_BYTES_MAX:
                raise BadRtspRequest(431, f"a request head of more than {HEAD_BYTES_MAX} bytes")
            _refuse_foreign(bytes(pending[:16]))
            return 0
        if pending.startswith(_RESPONSE):
            return end + len(_END)
        request = _parse(bytes(pending[:end]))
        size = end + len(_END) + _body_size(request)
        if len(pending) < size:
            return 0
        found.append(request)
        return size


def _refuse_foreign(beginning: bytes) -> None:
    """Refuse at once what cannot become a request. Raises BadRtspRequest."""
    if any((byte < 0x20 and byte not in b"\r\n") or byte > 0x7E for byte in beginning):
        raise BadRtspRequest(400, "bytes that are not RTSP")


def _parse(head: bytes) -> RtspRequest:
    try:
        first, *rest = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRtspRequest(400, "bytes that are not RTSP") from None
    words = first.split(" ")
    if len(words) != 3 or not words[0].replace("_", "").isalpha():
        raise BadRtspRequest(400, "a first line that is not `METHOD url RTSP/1.0`")
    if words[2] != "RTSP/1.0":
        raise BadRtspRequest(505 if words[2].startswith("RTSP/") else 400, "a protocol that is not RTSP/1.0")
    if len(rest) > HEADERS_MAX:
        raise BadRtspRequest(431, f"more than {HEADERS_MAX} headers")
    headers = {name.strip().lower(): value.strip() for name, colon, value in (line.partition(":") for line in rest)}
    cseq = headers.get("cseq", "")
    if not (cseq.isdigit() and len(cseq) < 12):
        raise BadRtspRequest(400, "a request without a CSeq number")
    return RtspRequest(words[0], words[1], headers)


def _body_size(request: RtspRequest) -> int:
    text = request.headers.get("content-length", "0")
    if not text.isdigit() or len(text) > 9:
        raise BadRtspRequest(400, "a Content-Length that is not a number")
    if int(text) > BODY_BYTES_MAX:
        raise BadRtspRequest(413, f"a body of more than {BODY_BYTES_MAX} bytes")
    return int(text)


def rtsp_response(status: int, cseq: str, headers: Iterable[tuple[str, str]] = (), body: str = "") -> bytes:
    """Return the bytes of one answer; `cseq` empty for a request that had none."""
    lines = [f"RTSP/1.0 {status} {STATUS_TEXTS[status]}"]
    if cseq:
        lines.append(f"CSeq: {cseq}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body.encode())}")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


_INTERLEAVED = re.compile(r"interleaved=(\d{1,3})(?:-(\d{1,3}))?")


def choose_channels(header: str) -> tuple[int, int] | None:
    """Return the RTP and RTCP channels of the first offer of TCP, or None: UDP and multicast are not served."""
    for offer in header.split(","):
        protocol, *parameters = (part.strip() for part in offer.split(";"))
        if protocol.upper() == "RTP/AVP/TCP":
            return _channels(parameters)
    return None


def _channels(parameters: list[str]) -> tuple[int, int] | None:
    for parameter in parameters:
        match = _INTERLEAVED.fullmatch(parameter)
        if match:
            first = int(match.group(1))
            second = int(match.group(2) or first + 1)
            return (first, second) if first != second and max(first, second) <= 255 else None
    return 0, 1
