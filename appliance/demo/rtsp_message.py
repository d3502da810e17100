"""RTSP 1.0 on the wire (RFC 2326): requests cut from a byte stream, and responses. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
HEADERS_MAX = 64
_END = b"\r\n\r\n"
_RESPONSE = b"RTSP/1.0 "
REASONS = {
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


class BadRequest(Exception):
    """What came is not RTSP, or is larger than it may be; the connection is answered with `status` and closed."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def cseq(self) -> str:
        return self.headers["cseq"]


class RequestReader:
    """Cuts what one client sends into requests.

    State: bytes not yet understood, at most `HEAD_BYTES_MAX + BODY_BYTES_MAX`. Frames of interleaved data (receiver
    reports) and responses (FFmpeg answers what looks to it like a request) are skipped; bodies are read and thrown
    away, for nothing that we serve has one.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Request]:
        """The requests that `data` completes. Raises BadRequest."""
        self._pending += data
        found: list[Request] = []
        while self._pending:
            taken = self._take_one(found)
            if not taken:
                break
            del self._pending[:taken]
        return found

    def _take_one(self, found: list[Request]) -> int:
        """Bytes that the next whole frame or request takes, 0 when it is not all here."""
        pending = self._pending
        if pending[:1] == b"$":
            size = 4 + int.from_bytes(pending[2:4], "big")
            return size if len(pending) >= max(4, size) else 0
        if pending[:2] == b"\r\n":
            return 2
        end = pending.find(_END, 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(pending) >= HEAD_BYTES_MAX:
                raise BadRequest(431, f"a request head of more than {HEAD_BYTES_MAX} bytes")
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
    """Do not wait for the end of something that cannot be a request."""
    if any((byte < 0x20 and byte not in b"\r\n") or byte > 0x7E for byte in beginning):
        raise BadRequest(400, "bytes that are not RTSP")


def _parse(head: bytes) -> Request:
    try:
        first, *rest = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequest(400, "bytes that are not RTSP") from None
    words = first.split(" ")
    if len(words) != 3 or not words[0].replace("_", "").isalpha():
        raise BadRequest(400, "a first line that is not `METHOD url RTSP/1.0`")
    if words[2] != "RTSP/1.0":
        raise BadRequest(505 if words[2].startswith("RTSP/") else 400, "a protocol that is not RTSP/1.0")
    if len(rest) > HEADERS_MAX:
        raise BadRequest(431, f"more than {HEADERS_MAX} headers")
    headers = {name.strip().lower(): value.strip() for name, colon, value in (line.partition(":") for line in rest)}
    cseq = headers.get("cseq", "")
    if not (cseq.isdigit() and len(cseq) < 12):
        raise BadRequest(400, "a request without a CSeq number")
    return Request(words[0], words[1], headers)


def _body_size(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    if not text.isdigit() or len(text) > 9:
        raise BadRequest(400, "a Content-Length that is not a number")
    if int(text) > BODY_BYTES_MAX:
        raise BadRequest(413, f"a body of more than {BODY_BYTES_MAX} bytes")
    return int(text)


def response(status: int, cseq: str, headers: Iterable[tuple[str, str]] = (), body: str = "") -> bytes:
    """The bytes of one answer; `cseq` empty for a request that had none."""
    lines = [f"RTSP/1.0 {status} {REASONS[status]}"]
    if cseq:
        lines.append(f"CSeq: {cseq}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body.encode())}")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()
