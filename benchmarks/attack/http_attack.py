# ruff: noqa: E501 (tables of requests)
"""Requests to the dashboard that no browser would send, and connections that it must not be exhausted by.

Every route is asked, with and without a token (`run`), and tokens are guessed (`guess`). Connections that ask nothing,
ask slowly, or ask for too much come without credentials, from four addresses (`flood`); each request of the owner must
be answered meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.attack.target import CAMERA_SECRET, CANARY, TOKEN, Tally, Target

THREADS = 8
HANG_S = 20.0
BODY_READ_MAX = 256 * 1024
OPEN = re.compile(r"^/+(login|healthz|readyz|static/.*)(\?.*)?$")
PAGES = ("/", "/alerts/{id}", "/cameras", "/cameras/{name}", "/savings", "/scenarios", "/storage", "/settings", "/rules",
         "/fragments/alerts/{id}", "/fragments/health/{id}", "/login", "/logout", "/static/app.js", "/static/{name}",
         "/metrics", "/healthz", "/readyz", "/api/openapi.json", "/docs", "/openapi.json", "/.env", "/.git/config")  # fmt: skip
TRAVERSAL = ("../../../../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/outside.txt",
             "..%252f..%252foutside.txt", "....//....//outside.txt", "..\\..\\outside.txt", "..%5c..%5coutside.txt",
             "%c0%ae%c0%ae/outside.txt", "/etc/passwd", "//etc/passwd", "file:///etc/passwd", "../outside.txt",
             "..%00/outside.txt", "outside.txt%00.jpg", "/proc/self/environ", "../site.yaml", "..;/site.yaml")  # fmt: skip
VALUES = (*TRAVERSAL, "", "0", "-1", "1e308", "9" * 4301, "a" * 6000, "%00", "%0d%0aX-Evil:%201", "%ff%fe", "%ed%a0%80",
          "<script>alert(1)</script>", "{{7*7}}", "${jndi:ldap://127.0.0.1}", "' OR 1=1 --", "1;DROP TABLE alert", "null",
          "true", "[]", "NaN", "%f0%9f%92%a9", "..", ".", "%2e", "~root", "CON", "2026-99-99", "-0", "0x10", "1,2,3",
          "yard", "alert-1", "all", "*", "%25", "+", "%20" * 300)  # fmt: skip
RANGES = ("bytes=0-", "bytes=-1", "bytes=0-0,1-1,2-2", "bytes=" + ",".join("0-9" for _ in range(500)), "bytes=9-1", "bytes=a-b",
          "bytes=0-" + "9" * 400, "bytes=--1", "items=0-1", "bytes=", "bytes=18446744073709551616-", "bytes=0-0" + " " * 500)  # fmt: skip
BODIES = (b"", b"{}", b"null", b"[]", b'"x"', b"{", b"[" * 20_000, b'{"a":' * 9_000, b'{"review": "reviewed"}',
          b'{"review": 7}', b'{"token": ""}', b'{"token": "' + b"x" * 20_000 + b'"}', b'{"token": {"$ne": 1}}', b"\xff\xfe\x00",
          b'{"n": 1' + b"0" * 5000 + b"}", b'{"x": NaN}', b'{"review": "reviewed", "review": null}', b"\0" * 2000,
          b'{"text": "cameras: {a: {url: file:/etc/passwd}}"}', b'{"text": "a: &a [*a]"}', b"A" * 70_000)  # fmt: skip
KINDS = ("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
         "application/json; charset=utf-7", "", "application/xml", "x" * 3000)  # fmt: skip
ODD = ("Origin: http://[", "Origin: null", "Origin: https://evil.example", "Host: evil.example", "Host: [", "Host: a@b", "Host:",
       "Last-Event-ID: " + "9" * 4301, "Last-Event-ID: -1", "Cookie: vedette_session=x", "Cookie: " + "a=b; " * 900,
       "Authorization: Basic Og==", "X-Forwarded-For: 203.0.113.9",
       "X-Forwarded-For: " + ",".join(["127.0.0.1"] * 300), "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example",
       "X-Original-URL: /api/v1/alerts", "X-HTTP-Method-Override: DELETE", "Upgrade: websocket\r\nConnection: Upgrade",
       "Expect: 100-continue", "Accept: " + "text/html," * 900, "If-None-Match: " + '"x",' * 900, "If-Modified-Since: tomorrow",
       "If-Range: x", "Sec-Fetch-Site: cross-site", "Content-Length: 2\r\nContent-Length: 3", "Transfer-Encoding: chunked",
       "Transfer-Encoding: gzip, chunked", "Transfer-Encoding:\tchunked", "Content-Encoding: gzip", "X: " + "y" * 40_000,
       "X\0Y: z", "No colon here", " : x", "Connection: keep-alive, X", "TE: trailers", "Range: bytes=0-1,2-3")  # fmt: skip
METHODS = ("GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})")
_BODILESS = (b"204", b"304")
SECRETS = (b"root:x:0:0", CANARY.encode(), CAMERA_SECRET.encode(), TOKEN.encode())
ATTACKERS = tuple(f"127.0.0.{n}" for n in range(9, 13))
OWNER_REQUESTS = 70  # beside each kind of connection: 210 in all
OWNER_S_MAX = 15.0  # for an answer
CLOSED_S_MAX = 40.0  # a connection that asked nothing is closed by then
MEMORY_MB_MAX = 120.0  # by which the core may grow
_POST = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
STARTS = {
    "silent": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "half a body": _POST + b"Content-Length: 900\r\n\r\n{",
}
STREAM_CHUNKS = 8000  # 250 MB


@dataclass(frozen=True, slots=True)
class Try:
    """One request. given: it shows the token; hostile_origin: no change may be taken from it."""

    data: bytes
    path: str
    method: str
    given: bool
    hostile_origin: bool = False


def run(target: Target, count: int, seed: int) -> Tally:
    """`count` requests; the same for the same seed, except for the ids of alerts."""
    tally = Tally("http")
    tries = requests(target, count, seed)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda each: _send(target.port, each, tally), tries):
            pass
    return tally


def guess(target: Target, count: int) -> Tally:
    """Send wrong tokens and cookies, from an address of its own: the owner's must not be held up by them."""
    tally = Tally("guesses")
    choose = random.Random(count)
    for n in range(count):
        word = choose.choice(("", " ", TOKEN[:-1], TOKEN + "0", TOKEN.upper(), "null", "\x00", "%", "a" * 3000, str(n)))
        head = f"Host: 127.0.0.1\r\nConnection: close\r\nX-Forwarded-For: 10.0.{n % 256}.{n // 256}"
        if n % 3:
            data = f"GET /api/v1/cameras HTTP/1.1\r\n{head}\r\nAuthorization: Bearer {word}\r\n\r\n".encode()
        else:
            body = f'{{"token": "{word if word.isprintable() else n}"}}'.encode()
            kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
            data = f"POST /login HTTP/1.1\r\n{head}\r\n{kind}\r\n\r\n".encode() + body
        answer = exchange(target.port, data, "127.0.0.2")
        status = match.group(1).decode() if (match := _STATUS.match(answer)) else "closed"
        tally.count(status, repr(data[:200]))
        if status.startswith("2") or b"set-cookie" in answer.lower():
            tally.door(f"a guess was taken: {word[:40]!r}")
    if tally.answers["401"] > 12 + count // 10:
        tally.door(f"{tally.answers['401']} of {count} guesses were looked at")
    return tally


def requests(target: Target, count: int, seed: int) -> Iterator[Try]:
    choose = random.Random(seed)
    routes = _routes(target.json("/api/openapi.json"))
    alerts = [each["id"] for each in target.json("/api/v1/alerts").get("alerts", [])] or ["alert-1"]
    for n in range(count):
        template, names = routes[n % len(routes)]
        yield _one(choose, template, names, alerts)


def _routes(schema: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Return every path, with the names of its query parameters."""
    found: list[tuple[str, tuple[str, ...]]] = [(page, ("next", "cursor", "q")) for page in PAGES]
    for path, methods in schema["paths"].items():
        every = [each for method in methods.values() for each in method.get("parameters", ())]
        found.append((path, tuple(sorted({each["name"] for each in every if each["in"] == "query"}))))
    return found


def _one(choose: random.Random, template: str, names: Sequence[str], alerts: Sequence[str]) -> Try:
    known = {"alert_id": choose.choice(alerts), "name": "yard", "id": choose.choice(alerts)}

    def value(match: re.Match[str]) -> str:
        real = known.get(match.group(1), "1")
        return real if choose.random() < 0.4 else choose.choice(VALUES)

    path = re.sub(r"\{(\w+)\}", value, template)
    if choose.random() < 0.15:
        path = choose.choice(
            ("//", "/./", "/%2f", "/..;/", "/static/../", "/static/%2e%2e/", "/login/../")
        ) + path.lstrip("/")
    if choose.random() < 0.1:
        path = path.rstrip("/") + "/" + choose.choice(TRAVERSAL)
    if names and choose.random() < 0.5:
        path += "?" + "&".join(f"{choose.choice(names)}={choose.choice(VALUES)}" for _ in range(choose.randint(1, 4)))
    method, given = choose.choice(METHODS), choose.random() < 0.6
    # A folded line among the odd ones may belong to the header before it: never to the token, or it would be a wrong one.
    headers = [f"Authorization: Bearer {TOKEN}"] if given else []
    headers += ["Host: 127.0.0.1", "Connection: close"]
    if choose.random() < 0.3:
        headers.append(f"Range: {choose.choice(RANGES)}")
    hostile_origin = choose.random() < 0.1
    if hostile_origin:
        headers.append(
            f"Origin: {choose.choice(('https://evil.example', 'null', 'http://127.0.0.1:1', 'http://127.0.0.1.evil.example'))}"
        )
    headers += choose.sample(ODD, choose.choice((0, 0, 0, 0, 1, 1, 2)))
    body = b""
    if method in {"POST", "PUT", "PATCH", "DELETE"}:
        body = choose.choice(BODIES)
        kind = "application/json" if choose.random() < 0.8 else choose.choice(KINDS)
        length = len(body) if choose.random() < 0.8 else choose.choice((0, 2, 10**9))
        headers += [f"Content-Type: {kind}", f"Content-Length: {length}"]
    if choose.random() < 0.3:
        headers.append(f"Accept: {choose.choice(('text/html', 'application/json', '*/*', 'image/webp'))}")
    line = f"{method} {path.replace(' ', '%20')} HTTP/1.{choose.choice('1110')}"
    head = "\r\n".join([line, *headers]).encode("utf-8", "replace") + b"\r\n\r\n"
    return Try(head + body, path, method, given, hostile_origin)


def _send(port: int, each: Try, tally: Tally) -> None:
    try:
        answer = exchange(port, each.data, "127.0.0.3" if "login" in each.path else "127.0.0.1")
    except TimeoutError:
        tally.count("hang", repr(each.data[:300]))
        return
    status = match.group(1).decode() if (match := _STATUS.match(answer)) else "closed"
    tally.count(status, repr(each.data[:300]))
    for secret in SECRETS:
        if secret in answer:
            tally.door(f"{each.method} {each.path[:120]} shows {secret.decode()[:12]}")
    refused_by_parser = b"Invalid HTTP request received" in answer or (each.method == "HEAD" and status == "400")
    if status == "closed" or refused_by_parser:  # it never came to the application
        return
    _judge(each, status, answer, tally)


def _judge(each: Try, status: str, answer: bytes, tally: Tally) -> None:
    head = answer.partition(b"\r\n\r\n")[0].lower()
    path = each.path.replace("http://127.0.0.1", "")
    if status.startswith("2") and not each.given and not OPEN.match(path):
        tally.door(f"without a token: {each.method} {path[:150]} is {status}")
    if status.startswith("2") and each.hostile_origin and each.method in {"POST", "PUT", "PATCH", "DELETE"}:
        tally.door(f"from a foreign page: {each.method} {path[:150]} is {status}")
    to = re.search(rb"\nlocation: *(\S*)", head)
    if to and (re.match(rb"(https?:)?//", to.group(1)) and b"//127.0.0.1" not in to.group(1)):
        tally.door(f"leads elsewhere: {path[:100]} -> {to.group(1)[:100].decode()}")
    if b"\nx-evil" in head:
        tally.door(f"a header was injected by {path[:150]}")
    if b"x-content-type-options: nosniff" not in head or b"content-security-policy:" not in head:
        tally.door(f"an answer without its headers: {each.method} {path[:120]} {status}")


def exchange(port: int, data: bytes, source: str = "127.0.0.1") -> bytes:
    """Return the bytes up to the end of the head and of the body it announces, or until the connection was closed."""
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), HANG_S, (source, 0)) as sock:
            sock.sendall(data)
            while len(answer) < BODY_READ_MAX and not _complete(answer, bodiless=data.startswith(b"HEAD ")):
                received = sock.recv(65536)
                if not received:
                    break
                answer += received
                if answer.startswith(_CONTINUE):  # to `Expect`; the answer itself comes after it
                    del answer[: len(_CONTINUE)]
    except (ConnectionError, BrokenPipeError):
        pass
    return bytes(answer)


def _complete(answer: bytearray, *, bodiless: bool) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if bodiless or ((status := _STATUS.match(answer)) and status.group(1) in _BODILESS):
        return True
    length = re.search(rb"\ncontent-length: *(\d+)", head.lower())
    if length:
        return len(body) >= int(length.group(1))
    if b"text/event-stream" in head.lower():  # it never ends
        return True
    if b"\ntransfer-encoding: chunked" in head.lower():  # a folded header may have undone `Connection: close`
        return body.endswith(b"0\r\n\r\n")
    return False


def flood(target: Target, idle: int, slow: int) -> Tally:
    """idle: connections that say nothing; slow: that begin a request and do not end it."""
    tally = Tally("sockets")
    before = target.memory_mb("core")
    _hold(target, tally, {"silent": idle, "half a request": slow, "half a body": slow})
    _stream_body(target, tally, b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n")
    _stream_body(target, tally, b"Transfer-Encoding: chunked\r\n")
    _stream_body(target, tally, b"Content-Length: 999999999\r\n")
    grown = target.memory_mb("core") - before
    if grown > MEMORY_MB_MAX:
        tally.door(f"the core has grown by {grown:.0f} MB")
    return tally


def _hold(target: Target, tally: Tally, counts: dict[str, int]) -> None:
    """Open connections, and see that the owner is answered beside them and that all are closed in the end."""
    held = []
    for name, count in counts.items():
        for n in range(count):
            if n * OWNER_REQUESTS // count != (n - 1) * OWNER_REQUESTS // count:
                _owner_is_answered(target, tally, f"beside {n} connections, {name}")
            try:
                source = (ATTACKERS[n % len(ATTACKERS)], 0)
                sock = socket.create_connection(("127.0.0.1", target.port), 5, source)
                sock.sendall(STARTS[name])
                held.append(sock)
                tally.count(name)
            except OSError:
                tally.count(f"{name}, refused")
    deadline = time.monotonic() + CLOSED_S_MAX
    left = 0
    for sock in held:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        except TimeoutError:
            left += 1
        sock.close()
    if left:
        tally.door(f"{left} of {len(held)} connections are still held after {CLOSED_S_MAX:.0f} s")
    _owner_is_answered(target, tally, "after them")


def _owner_is_answered(target: Target, tally: Tally, when: str) -> None:
    try:
        status, _ = target.get("/api/v1/cameras", OWNER_S_MAX)
        tally.count(f"owner: {status}", when)
    except OSError as error:
        status = 0
        tally.count("owner: none", f"{when}: {error}")
    if status != 200:
        tally.door(f"the owner is shut out {when}")


def _stream_body(target: Target, tally: Tally, headers: bytes) -> None:
    """Send a long body to the open path. The server may not keep what it reads of it: `flood` looks at the memory."""
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    sent = 0
    source = (ATTACKERS[0], 0)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 5, source) as sock:
        sock.sendall(_POST + headers + b"\r\n")
        for _ in range(STREAM_CHUNKS):
            sock.sendall(chunk)
            sent += len(chunk)
    tally.count(f"{sent // 2**20} MB taken")
