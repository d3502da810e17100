"""The messages between a sandbox and its parent: JSON with binary parts, never pickle."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

PARTS_MAX = 1024  # binary values of one message; a call has a handful
_JSON_BYTES_MAX = 16 * 1024 * 1024  # an explained span with all its tracks; a child may send no more
_HEAD = struct.Struct("!II")
Value = Any
"""A value that may be handed over: any of JSON, and bytes, which arrive as a bytearray."""


def send(channel: socket.socket, value: Value) -> None:
    """Send two lengths, the lengths of the binary parts, the JSON, and the parts."""
    parts: list[memoryview] = []
    text = json.dumps(_flattened(value, parts)).encode()
    head = _HEAD.pack(len(text), len(parts)) + b"".join(struct.pack("!Q", len(each)) for each in parts)
    channel.sendall(head + text)
    for part in parts:
        channel.sendall(part)


def _flattened(value: Value, parts: list[memoryview]) -> Value:
    if isinstance(value, bytes | bytearray | memoryview):
        view = memoryview(value)
        parts.append(view.cast("B") if view.nbytes else memoryview(b""))  # a view of nothing cannot be cast
        return {"$part": len(parts) - 1}
    if isinstance(value, dict):
        return {name: _flattened(each, parts) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_flattened(each, parts) for each in value]
    return value


def receive(channel: socket.socket, bytes_max: int, remaining_s: Callable[[], float | None]) -> Value:
    """Return the next value. Raises EOFError, ValueError, and TimeoutError by `remaining_s`."""
    length, count = _HEAD.unpack(_exactly(channel, _HEAD.size, remaining_s))
    if length > _JSON_BYTES_MAX or count > PARTS_MAX:
        raise ValueError("it is too large")
    sizes = struct.unpack(f"!{count}Q", _exactly(channel, 8 * count, remaining_s))
    if sum(sizes) > bytes_max:
        raise ValueError(f"it is over {bytes_max} bytes")
    try:
        value = json.loads(_exactly(channel, length, remaining_s))
        parts = [_exactly(channel, size, remaining_s) for size in sizes]
        return _joined(value, parts)
    except (RecursionError, IndexError, TypeError) as error:
        raise ValueError(type(error).__name__) from None


def _joined(value: Value, parts: Sequence[bytearray]) -> Value:
    if isinstance(value, dict):
        if "$part" in value:
            return parts[value["$part"]]
        return {name: _joined(each, parts) for name, each in value.items()}
    if isinstance(value, list):
        return [_joined(each, parts) for each in value]
    return value


def _exactly(channel: socket.socket, size: int, remaining_s: Callable[[], float | None]) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        channel.settimeout(remaining_s())
        received = channel.recv_into(view[at:])
        if not received:
            raise EOFError
        at += received
    return data
