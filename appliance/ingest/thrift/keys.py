"""Whether a key frame can be decoded alone: what its NAL units say (H.264 7.4.1.2.4, H.265 7.4.2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

KeyKind = Literal["whole", "recovery", "unknown"]
"""whole: a picture of its own (IDR, BLA, CRA); recovery: pictures become right from here on, as with intra refresh and
open groups of H.264; unknown: another codec, whose flag is believed."""

_UNITS_MAX = 64
_SLICES = {"h264": range(1, 6), "hevc": range(32)}


def kind_of(codec: str, extradata: bytes, data: memoryview) -> KeyKind:
    """codec: `h264`, `hevc` or another; extradata: of the stream, says how the units are parted; data: the packet."""
    if codec not in _SLICES:
        return "unknown"
    for unit in _units(data, _length_bytes(codec, extradata)):
        number = unit & 0x1F if codec == "h264" else unit >> 1 & 0x3F
        if number in _SLICES[codec]:
            whole = number == 5 if codec == "h264" else 16 <= number <= 21
            return "whole" if whole else "recovery"
    return "unknown"


def _length_bytes(codec: str, extradata: bytes) -> int:
    """How many bytes of length stand before a unit; 0: start codes part them (Annex B)."""
    at = 4 if codec == "h264" else 21
    if len(extradata) <= at or extradata[0] != 1:
        return 0
    return (extradata[at] & 3) + 1


def _units(data: memoryview, length_bytes: int) -> Iterator[int]:
    """First byte of each unit."""
    return _of_lengths(data, length_bytes) if length_bytes else _of_start_codes(data)


def _of_lengths(data: memoryview, length_bytes: int) -> Iterator[int]:
    at = 0
    for _ in range(_UNITS_MAX):
        if at + length_bytes >= len(data):
            return
        yield data[at + length_bytes]
        at += length_bytes + int.from_bytes(data[at : at + length_bytes], "big")


def _of_start_codes(data: memoryview) -> Iterator[int]:
    head = bytes(data[:65536])  # parameter sets and SEI come first, and are short
    at = head.find(b"\0\0\1")
    for _ in range(_UNITS_MAX):
        if at < 0 or at + 3 >= len(head):
            return
        yield head[at + 3]
        at = head.find(b"\0\0\1", at + 3)
