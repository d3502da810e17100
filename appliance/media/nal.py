"""NAL units of H.264 and HEVC: cutting access units apart, parameter sets, and what kind of key frame a packet holds.

Types: ITU-T H.264 table 7-1, H.265 table 7-1. Packets come with start codes (Annex B) or, as in MP4, with a length
before each unit (ISO/IEC 14496-15). `read_format` reads the parameter sets of a file's header, and
`with_parameter_sets` puts them before key frames, as a camera sends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import av

from appliance.media.source import StreamInfo, VideoPacket

KeyframeKind = Literal["whole", "recovery", "unknown"]
"""whole: decodes by itself (IDR, BLA, CRA); recovery: frames become right from here on, as with intra refresh and
open groups of H.264; unknown: another codec, whose flag is believed."""

_UNITS_MAX = 64  # of an access unit; cameras cut a picture into at most some 16 slices
# They stand before the first slice; a description of the scene (SEI) of some hundred bytes may stand between.
_HEAD_BYTES = 4096
_START = b"\x00\x00\x00\x01"
_START_CODE = re.compile(rb"\x00\x00\x01")
_PARAMETER_TYPES: dict[str, tuple[int, ...]] = {"h264": (7, 8), "hevc": (32, 33, 34)}
_SLICE_TYPES: dict[str, range] = {"h264": range(1, 6), "hevc": range(32)}


def type_of(codec: str, nal: bytes) -> int:
    """`nal_unit_type`: H.264 7.3.1, HEVC 7.3.1.2."""
    return _type_of_byte(codec, nal[0])


def is_parameter_set(codec: str, nal: bytes) -> bool:
    return type_of(codec, nal) in _PARAMETER_TYPES[codec]


def split_annex_b(data: bytes) -> list[bytes]:
    """Return the NAL units between start codes, without their trailing zeros (Annex B.1.1)."""
    marks = [match.end() for match in _START_CODE.finditer(data)]
    ends = [*(mark - 3 for mark in marks[1:]), len(data)][: len(marks)]
    units = (data[start:end].rstrip(b"\x00") for start, end in zip(marks, ends, strict=True))
    return [unit for unit in units if unit]


def keyframe_kind(codec: str, extradata: bytes, data: memoryview) -> KeyframeKind:
    """codec: `h264`, `hevc` or another; extradata: of the stream, says how the units are parted; data: the packet."""
    if codec not in _SLICE_TYPES:
        return "unknown"
    length_size = _length_size(codec, extradata)
    # The units are not copied: this runs for every packet of every camera.
    for first_byte in _after_lengths(data, length_size) if length_size else _after_start_codes(data):
        number = _type_of_byte(codec, first_byte)
        if number in _SLICE_TYPES[codec]:
            whole = number == 5 if codec == "h264" else 16 <= number <= 21
            return "whole" if whole else "recovery"
    return "unknown"


def announced_parameter_sets(info: StreamInfo) -> bytes:
    """Return the parameter sets of the stream's description, as `keyframe_parameter_sets` does; b'': none.

    It is b'' as well where they are not Annex B.
    """
    data = info.stream.codec_context.extradata or b""
    return _sets_in(info.codec, data) if _is_annex_b(info) else b""


def keyframe_parameter_sets(info: StreamInfo, packet: VideoPacket) -> bytes:
    """Those of an H.264 or HEVC key frame in Annex B, each with its start code; b'' if it has none."""
    if not _is_annex_b(info):
        return b""
    return _sets_in(info.codec, bytes(memoryview(packet.packet)[:_HEAD_BYTES]))


def keyframe_size(info: StreamInfo, packet: VideoPacket) -> tuple[int, int]:
    """(width, height) of a key frame, by decoding it apart from the stream; (0, 0) if that does not work."""
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


def _type_of_byte(codec: str, first_byte: int) -> int:
    return first_byte & 0x1F if codec == "h264" else (first_byte >> 1) & 0x3F


def _length_size(codec: str, extradata: bytes) -> int:
    """How many bytes of length stand before a unit; 0: start codes part them (Annex B)."""
    at = 4 if codec == "h264" else 21
    if len(extradata) <= at or extradata[0] != 1:
        return 0
    return (extradata[at] & 3) + 1


def _after_lengths(data: memoryview, length_size: int) -> Iterator[int]:
    at = 0
    for _ in range(_UNITS_MAX):
        if at + length_size >= len(data):
            return
        yield data[at + length_size]
        at += length_size + int.from_bytes(data[at : at + length_size], "big")


def _after_start_codes(data: memoryview) -> Iterator[int]:
    head = bytes(data[:65536])  # parameter sets and SEI come first, and are short
    at = head.find(b"\0\0\1")
    for _ in range(_UNITS_MAX):
        if at < 0 or at + 3 >= len(head):
            return
        yield head[at + 3]
        at = head.find(b"\0\0\1", at + 3)


def _is_annex_b(info: StreamInfo) -> bool:
    """Not as in MP4, whose description begins with its version, 1 (ISO/IEC 14496-15)."""
    return info.codec in _PARAMETER_TYPES and not (info.stream.codec_context.extradata or b"").startswith(b"\x01")


def _sets_in(codec: str, data: bytes) -> bytes:
    before_slices = takewhile(lambda nal: type_of(codec, nal) not in _SLICE_TYPES[codec], split_annex_b(data))
    return b"".join(_START + nal for nal in before_slices if is_parameter_set(codec, nal))


Codec = Literal["h264", "hevc"]
_DELIMITER_TYPE: dict[str, int] = {"h264": 9, "hevc": 35}


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """How a stream's bytes are to be read.

    sets: the parameter sets (VPS, SPS, PPS in this order). length_size: bytes of the length before each NAL unit as
    in MP4 (ISO/IEC 14496-15), or 0 for start codes (Annex B).
    """

    codec: Codec
    length_size: int
    sets: tuple[bytes, ...]

    def of_type(self, nal_type: int) -> tuple[bytes, ...]:
        """Return the parameter sets of one NAL type."""
        return tuple(nal for nal in self.sets if type_of(self.codec, nal) == nal_type)


def read_format(codec: Codec, extradata: bytes) -> StreamFormat:
    """Read `avcC`, `hvcC` or Annex-B extradata. Whatever is cut short is left out; never raises."""
    if not extradata or extradata[0] != 1:
        sets = tuple(nal for nal in split_annex_b(extradata) if is_parameter_set(codec, nal))
        return StreamFormat(codec, 0, sets)
    return _read_avcc(extradata) if codec == "h264" else _read_hvcc(extradata)


def split(data: bytes, length_size: int) -> list[bytes]:
    """Return the NAL units of one access unit. A unit longer than the data is dropped, and what follows."""
    if not length_size:
        return split_annex_b(data)
    found: list[bytes] = []
    at = 0
    while at + length_size < len(data):
        size = int.from_bytes(data[at : at + length_size], "big")
        at += length_size
        if at + size > len(data):
            break
        if size:
            found.append(data[at : at + size])
        at += size
    return found


def with_parameter_sets(codec: str, nals: list[bytes], sets: tuple[bytes, ...]) -> list[bytes]:
    """`nals` of a key frame, begun by the parameter sets as cameras do, unless it brings its own."""
    if not nals or any(is_parameter_set(codec, nal) for nal in nals):
        return nals
    first = 1 if type_of(codec, nals[0]) == _DELIMITER_TYPE[codec] else 0
    return [*nals[:first], *sets, *nals[first:]]


def _read_avcc(data: bytes) -> StreamFormat:
    length_size = (data[4] & 3) + 1 if len(data) > 4 else 4
    sets: list[bytes] = []
    at = 5
    for mask in (0x1F, 0xFF):
        if at >= len(data):
            break
        count, at = data[at] & mask, at + 1
        found, at = _sized(data, at, count)
        sets += found
    return StreamFormat("h264", length_size, tuple(sets))


def _read_hvcc(data: bytes) -> StreamFormat:
    if len(data) < 23:
        return StreamFormat("hevc", 4, ())
    sets: list[bytes] = []
    at = 23
    for _ in range(data[22]):
        if at + 3 > len(data):
            break
        found, at = _sized(data, at + 3, int.from_bytes(data[at + 1 : at + 3], "big"))
        sets += [nal for nal in found if is_parameter_set("hevc", nal)]
    sets.sort(key=lambda nal: type_of("hevc", nal))
    return StreamFormat("hevc", (data[21] & 3) + 1, tuple(sets))


def _sized(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    found: list[bytes] = []
    for _ in range(count):
        if at + 2 > len(data):
            break
        size = int.from_bytes(data[at : at + 2], "big")
        nal = data[at + 2 : at + 2 + size]
        if nal:
            found.append(nal)
        at += 2 + size
    return found, at
