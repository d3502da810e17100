"""What a broker may do at a line of its protocol instead of the right thing, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

STRANGE_JSON = (
    b"", b"[]", b"5", b"null", b'"x"', b"{", b"{}", b"\xff\xfe\x00", b"true", b"[" * 3000, b'{"error":5}',
    b'{"error":[]}', b'{"error":{}}', b'{"error":{"code":"x","err_code":[],"description":{}}}',
    b'{"error":{"code":404}}', b'{"config":5}', b'{"config":{},"state":null}', b'{"stream":1,"seq":"x"}',
    b'{"success":[]}', b'{"message":{"data":5,"hdrs":"%%"}}',
)  # fmt: skip
API_ERRORS = (
    (503, 10008, "JetStream system temporarily unavailable"), (503, 10039, "JetStream not enabled for account"),
    (404, 10059, "stream not found"), (404, 10014, "consumer not found"), (500, 10023, "insufficient resources"),
    (500, 10077, "maximum bytes exceeded"), (400, 10071, "wrong last sequence: 7"),
    (400, 10058, "stream name already in use"),
    (400, 10100, "filtered consumer not unique on workqueue stream"), (403, 10000, "x" * 5000),
)  # fmt: skip
STATUSES = (
    "503",
    "404 No Messages",
    "408 Request Timeout",
    "409 Consumer Deleted",
    "100 Idle Heartbeat",
    "400",
    "9" * 40,
    "é",
)
ERRORS = (
    "Stale Connection", "Authorization Violation", "Unknown Protocol Operation", "Maximum Payload Violation",
    "Permissions Violation for Subscription to \"x\"", "Invalid Subject", "Slow Consumer",
    "User Authentication Expired", "maximum connections exceeded", "\x00\xff",
)  # fmt: skip
_LEAVES: tuple[Any, ...] = (None, [], {}, "x", -1, 10**30, 1e308, True, "0" * 300, "\x00", [[]], 10**400)


@dataclass(frozen=True)
class Frame:
    """A message to a client: `MSG`, or `HMSG` when it has headers."""

    subject: str
    sid: str
    reply: str
    headers: bytes
    payload: bytes

    def __bytes__(self) -> bytes:
        parts = [self.subject, self.sid, *([self.reply] if self.reply else [])]
        if not self.headers:
            return f"MSG {' '.join(parts)} {len(self.payload)}\r\n".encode() + self.payload + b"\r\n"
        sizes = f"{len(self.headers)} {len(self.headers) + len(self.payload)}"
        return f"HMSG {' '.join(parts)} {sizes}\r\n".encode() + self.headers + self.payload + b"\r\n"


@dataclass(frozen=True)
class Outcome:
    """What goes to the client instead. then: it is closed or reset afterwards, or goes on."""

    data: bytes = b""
    then: str = "on"


Fault = Callable[[random.Random, "list[Frame | bytes]"], Outcome]


def _joined(answer: list[Frame | bytes]) -> bytes:
    return b"".join(map(bytes, answer))


def _with_payload(answer: list[Frame | bytes], make: Callable[[bytes], bytes]) -> Outcome:
    """The answer with other payloads; that of the greeting is its JSON."""

    def changed(each: Frame | bytes) -> bytes:
        if isinstance(each, Frame):
            return bytes(replace(each, payload=make(each.payload)))
        return b"INFO " + make(each[5:]) + b"\r\n" if each.startswith(b"INFO ") else each

    return Outcome(b"".join(map(changed, answer)))


def _mutated(chance: random.Random, payload: bytes, leaves: tuple[Any, ...]) -> bytes:
    """The JSON with one of its values replaced or taken away; what is none is cut short."""
    try:
        root = json.loads(payload)
    except ValueError:
        return payload[: len(payload) // 2]
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in found:
            places.append((value, key))
            walk(inner)

    walk(root)
    if not places:
        return b"[]"
    holder, key = chance.choice(places)
    if chance.random() < 0.3:
        del holder[key]
    else:
        holder[key] = chance.choice(leaves)
    return json.dumps(root).encode()


def _status(chance: random.Random, answer: list[Frame | bytes]) -> Outcome:
    line = f"NATS/1.0 {chance.choice(STATUSES)}\r\n\r\n".encode()
    found = [replace(each, reply="", headers=line, payload=b"") if isinstance(each, Frame) else each for each in answer]
    return Outcome(_joined(found))


def _elsewhere(chance: random.Random, answer: list[Frame | bytes]) -> Outcome:
    """The message on another subject, to another subscription, or with a reply subject that makes no sense."""

    def moved(each: Frame) -> Frame:
        where = chance.randrange(4)
        return Frame(
            chance.choice(("x", "$JS", "vedette", f"{each.subject}.x")) if where == 0 else each.subject,
            chance.choice(("999", "0", "1", "2")) if where == 1 else each.sid,
            chance.choice(("$JS.ACK", "$JS.ACK.a.b.c.d.e.f.g", "x", "$JS.ACK." + "9" * 60))
            if where >= 2
            else each.reply,
            each.headers,
            each.payload,
        )

    return Outcome(b"".join(bytes(moved(each)) if isinstance(each, Frame) else each for each in answer))


def _half(chance: random.Random, answer: list[Frame | bytes], then: str) -> Outcome:
    data = _joined(answer) or b"MSG x 1 100\r\n"
    return Outcome(data[: chance.randrange(1, max(2, len(data)))], then)


def _api_error(chance: random.Random, answer: list[Frame | bytes]) -> Outcome:
    code, number, text = chance.choice(API_ERRORS)
    body = {"type": "x", "error": {"code": code, "err_code": number, "description": text}}
    return _with_payload(answer, lambda _: json.dumps(body).encode())


def _error(chance: random.Random, answer: list[Frame | bytes], then: str) -> Outcome:
    return Outcome(_joined(answer) * chance.randrange(2) + f"-ERR '{chance.choice(ERRORS)}'\r\n".encode(), then)


FAULTS: dict[str, Fault] = {
    "error and close": lambda chance, answer: _error(chance, answer, "close"),
    "error and reset": lambda chance, answer: _error(chance, answer, "reset"),
    "error alone": lambda chance, answer: _error(chance, answer, "on"),
    "stale after the answer": lambda _, answer: Outcome(_joined(answer) + b"-ERR 'Stale Connection'\r\n", "close"),
    "nonsense": lambda chance, answer: Outcome(chance.randbytes(chance.randrange(1, 300)) + b"\r\n"),
    "another protocol": lambda _, answer: Outcome(b"HTTP/1.1 400 Bad Request\r\n\r\n", "close"),
    "silence": lambda chance, answer: Outcome(),
    "close": lambda chance, answer: Outcome(b"", "close"),
    "reset": lambda chance, answer: Outcome(b"", "reset"),
    "answer and close": lambda _, answer: Outcome(_joined(answer), "close"),
    "half and close": lambda chance, answer: _half(chance, answer, "close"),
    "half and on": lambda chance, answer: _half(chance, answer, "on"),
    "strange JSON": lambda chance, answer: _with_payload(answer, lambda _: chance.choice(STRANGE_JSON)),
    "changed JSON": lambda chance, answer: _with_payload(answer, lambda payload: _mutated(chance, payload, _LEAVES)),
    "huge numbers": lambda chance, answer: _with_payload(
        answer, lambda payload: _mutated(chance, payload, (10**400, -(10**30), 1e308, 2**63, 2**64))
    ),
    "huge message": lambda chance, answer: Outcome(b"MSG x 1 99999999999\r\n" + b"x" * 4096),
    "status": _status,
    "error of JetStream": _api_error,
    "elsewhere": _elsewhere,
    "twice": lambda _, answer: Outcome(_joined(answer) * 2),
    "greeting again": lambda chance, answer: Outcome(
        b"INFO " + chance.choice((b'{"max_payload":"x"}', b"[]", b'{"ldm":true,"connect_urls":[5]}', b"{")) + b"\r\n"
        + _joined(answer)
    ),
}  # fmt: skip
