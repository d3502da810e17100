"""Reads messages of Protocol Buffers without any library: field numbers and values, whatever the schema."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types of Protocol Buffers


def protobuf_fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of a protobuf message. Raises ValueError, IndexError: it is none."""
    for number, value, _, _ in protobuf_spans(view):
        yield number, value


def protobuf_spans(view: memoryview) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """Field numbers and values, each with where the value begins and ends in `view`. Raises as protobuf_fields."""
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        kind = key & 7
        if kind == _VARINT:
            begin = at
            value, at = _varint(view, at)
            yield key >> 3, value, begin, at
            continue
        if kind == _LENGTH:
            length, at = _varint(view, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if key >> 3 == 0 or at + length > len(view):
            raise ValueError("it is cut off or damaged")
        yield key >> 3, view[at : at + length], at, at + length
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")
