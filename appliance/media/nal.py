"""NAL units of H.264 and HEVC: what kind of key frame a packet holds, and the parameter sets it brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import av

from appliance.media.source import StreamInfo, VideoPacket

KeyframeKind = Literal["whole", "recovery", "unknown"]
"""whole: a picture of its own (IDR, BLA, CRA); recovery: pictures become right from here on, as with intra refresh and
open groups of H.264; unknown: another codec, whose flag is believed."""

_UNITS_MAX = 64
_SLICES = {"h264": range(1, 6), "hevc": range(32)}


def keyframe_kind(codec: str, extradata: bytes, data: memoryview) -> KeyframeKind:
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


# They stand before the first slice; a description of the scene (SEI) of some hundred bytes may stand between.
_HEAD_BYTES = 4096
_START = b"\x00\x00\x00\x01"
_START_CODE = re.compile(rb"\x00\x00\x01")
_SETS = {"h264": frozenset({7, 8}), "hevc": frozenset({32, 33, 34})}
_SLICE_TYPES = {"h264": range(1, 6), "hevc": range(32)}


def announced_parameter_sets(info: StreamInfo) -> bytes:
    """What the stream's description brought, as `parameter_sets` says it; b'' if that was nothing, or not Annex B."""
    data = info.stream.codec_context.extradata or b""
    return _sets_in(info.codec, data) if _is_annex_b(info) else b""


def keyframe_parameter_sets(info: StreamInfo, packet: VideoPacket) -> bytes:
    """Those of an H.264 or HEVC key frame as cameras send it (Annex B), each with its start code; b'' if it has none.

    Sources: ITU-T H.264 table 7-1, H.265 table 7-1. In packets of another kind nothing is found.
    """
    if not _is_annex_b(info):
        return b""
    return _sets_in(info.codec, bytes(memoryview(packet.packet)[:_HEAD_BYTES]))


def _is_annex_b(info: StreamInfo) -> bool:
    """Not as in MP4, whose description begins with its version, 1 (ISO/IEC 14496-15)."""
    return info.codec in _SETS and not (info.stream.codec_context.extradata or b"").startswith(b"\x01")


def _sets_in(codec: str, data: bytes) -> bytes:
    found = []
    starts = [match.end() for match in _START_CODE.finditer(data)]
    for begin, end in zip(starts, [*(start - 3 for start in starts[1:]), len(data)], strict=False):
        unit = data[begin:end].rstrip(b"\x00")
        kind = -1 if not unit else unit[0] & 0x1F if codec == "h264" else (unit[0] >> 1) & 0x3F
        if kind in _SLICE_TYPES[codec]:
            break
        if kind in _SETS[codec]:
            found.append(_START + unit)
    return b"".join(found)


def keyframe_size(info: StreamInfo, packet: VideoPacket) -> tuple[int, int]:
    """(width, height) of a key frame's picture, by decoding it apart from the stream; (0, 0) if that does not work."""
    try:
        context = av.CodecContext.create(info.stream.codec_context.name, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.thread_type = "NONE"
        extradata = info.stream.codec_context.extradata
        if extradata:
            context.extradata = extradata
        if not context.decode(packet.packet):
            context.decode(None)
    except (av.error.FFmpegError, ValueError):
        return 0, 0
    return context.width, context.height
