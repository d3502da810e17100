"""Parameter sets of H.264 and HEVC as a camera sends them: read from a file's header, put before key frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.media.nal import is_parameter_set, split_annex_b, type_of

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
