"""Reads the fragments of a segment that is still being written, as bytes that a browser's Media Source takes.

The segments on disk are fragmented MP4 already, so nothing is muxed: whole fragments are handed out as they lie there,
with three changes. Their decoding times are moved to camera time (UTC seconds), so that `currentTime` of a player is
the camera's time over any number of segments; the edit list, which would move them back, is blanked; `hev1` is named
`hvc1`, which all browsers that play HEVC take. Boxes: ISO/IEC 14496-12; names of codecs: RFC 6381, ISO/IEC 14496-15.
No decoder and no demuxer sees the bytes here: what is not exactly as our own recorder writes it is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import EvidenceError

INIT_BYTES_MAX = 256 * 1024  # `ftyp` and `moov` of our files have under 2 kB
HEAD_BYTES_MAX = 256 * 1024  # of a `moof`
FRAGMENT_BYTES_MAX = 32 * 1024 * 1024  # half a second of 8K key frames
_HEAD = struct.Struct(">I4s")
_NOT_SYNC = 0x0001_0000  # sample_is_non_sync_sample
_ENTRY_BYTES, _VISUAL_BYTES = 8, 78  # of a sample description: all have the one, pictures the other in addition
_TOP = frozenset({b"ftyp", b"moov", b"moof", b"mdat", b"mfra", b"free", b"styp", b"sidx"})


class FragmentError(EvidenceError):
    """The file is not a fragmented MP4 of ours, or is damaged."""


@dataclass(frozen=True, slots=True)
class _Track:
    """begin_s: the track's own time at the file's time 0, by its edit list; negative: it begins later than the file."""

    number: int
    timescale: int
    codec: str
    video: bool
    begin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InitSegment:
    """The bytes that a player needs before the first fragment.

    media_type: with the codecs, as `MediaSource.isTypeSupported` asks for it.
    """

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """A whole fragment. t: camera time at which its first frame is shown; keyframe: it can be played from here."""

    data: bytes
    t: float
    keyframe: bool
    init: InitSegment


@dataclass(slots=True)
class _Sample:
    """The first sample of a `traf`, with its track and decoding time."""

    track: int = 0
    time: int = 0
    time_at: int = -1  # where the 64 bits of `time` stand
    shift: int = 0  # composition offset
    flags: int | None = None
    found: bool = False


class FragmentReader:
    """One segment file, from its beginning to where it ends now.

    State: the open file and how far it was read; a file that was deleted meanwhile is read to its end. Owner: one
    thread at a time.
    """

    def __init__(self, path: Path, t_start: float, flags: int = os.O_RDONLY) -> None:
        """t_start: camera time of the file's first frame. flags: of `os.open`. Raises FragmentError."""
        self._t_start = t_start
        self._at = 0
        self._init: InitSegment | None = None
        self._tracks: dict[int, _Track] = {}
        self._flags: dict[int, int] = {}
        self._base_s: float | None = None
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise FragmentError(f"the segment {path.name} cannot be read: {error.strerror}") from None

    @classmethod
    def of_memory(cls, t_start: float) -> FragmentReader:
        """Return a reader of a file in memory, which `append` makes longer."""
        fd = os.memfd_create("fragments", os.MFD_CLOEXEC)
        try:
            return cls(Path(f"/proc/self/fd/{fd}"), t_start, os.O_RDWR)
        finally:
            os.close(fd)

    def append(self, data: bytes) -> None:
        """Write to the file in memory."""
        os.pwrite(self._fd, data, os.fstat(self._fd).st_size)

    @property
    def has_grown(self) -> bool:
        """Return whether there are bytes that were not read. Quick: for the event loop's thread."""
        return os.fstat(self._fd).st_size > self._at

    def close(self) -> None:
        """May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def newest(self) -> list[Fragment]:
        """Return the fragments from the last key frame on, and leave out everything before it. Raise FragmentError."""
        heads: list[tuple[int, bool]] = []
        while (head := self._next_head()) is not None:
            at, end, _, sample = head
            heads.append((at, not (sample.flags or 0) & _NOT_SYNC))
            self._at = end
        keys = [at for at, keyframe in heads if keyframe]
        if not keys:
            return []
        self._at = keys[-1]
        return self.read()

    def read(self, count_max: int = 64) -> list[Fragment]:
        """Return the whole fragments that came since the last call. Raise FragmentError."""
        found: list[Fragment] = []
        while len(found) < count_max and (head := self._next_head()) is not None:
            at, end, moof, sample = head
            data = bytearray(moof)
            for each in _samples(moof, self._flags):
                if each.found:
                    self._move(data, each)
            data += _exactly(self._fd, end - at - len(moof), at + len(moof))
            track = self._tracks[sample.track]
            t = self._t_start + (sample.time + sample.shift) / track.timescale - (self._base_s or 0.0)
            assert self._init is not None
            found.append(Fragment(bytes(data), t, not (sample.flags or 0) & _NOT_SYNC, self._init))
            self._at = end
        return found

    def _move(self, data: bytearray, sample: _Sample) -> None:
        track = self._tracks[sample.track]
        begin_s = (self._base_s or 0.0) if track.video else track.begin_s
        offset = round((self._t_start - begin_s) * track.timescale)
        moved = sample.time + offset
        if not 0 <= moved < 2**63:
            raise FragmentError("a fragment is of no time")
        struct.pack_into(">Q", data, sample.time_at, moved)

    def _next_head(self) -> tuple[int, int, bytes, _Sample] | None:
        """Return the next whole fragment (begin, end, `moof`, first picture); None: it is not there yet."""
        while True:
            size = os.fstat(self._fd).st_size
            kind, end = self._box(self._at, size)
            if kind == b"":
                return None
            if kind == b"moof":
                found = self._fragment(size, end)
                if not isinstance(found, int):
                    return found
                end = found
            if kind == b"moov":
                if end - self._at > INIT_BYTES_MAX:
                    raise FragmentError("its description is too long")
                self._read_moov(end)
            self._at = end

    def _fragment(self, size: int, end: int) -> tuple[int, int, bytes, _Sample] | int | None:
        """As `_next_head`; the end of one without a picture, which is left out."""
        if self._init is None:
            raise FragmentError("a fragment stands before its description")
        if end - self._at > HEAD_BYTES_MAX:
            raise FragmentError("the head of a fragment is too long")
        kind, data_end = self._box(end, size)
        if kind == b"":
            return None
        if kind != b"mdat" or data_end - self._at > FRAGMENT_BYTES_MAX:
            raise FragmentError("a fragment has no pictures, or too many")
        moof = _exactly(self._fd, end - self._at, self._at)
        samples = [each for each in _samples(moof, self._flags) if each.found]
        if any(each.track not in self._tracks or each.time_at < 0 for each in samples):
            raise FragmentError("a fragment is of a track that is not described")
        frames = [each for each in samples if self._tracks[each.track].video]
        if not frames:
            return data_end
        first = frames[0]
        if self._base_s is None:
            self._base_s = (first.time + first.shift) / self._tracks[first.track].timescale
        return self._at, data_end, moof, first

    def _box(self, at: int, size: int) -> tuple[bytes, int]:
        """(kind, end) of the box at `at`; b'': it is not there to its last byte."""
        if at + _HEAD.size > size:
            return b"", at
        length, kind = _HEAD.unpack(_exactly(self._fd, _HEAD.size, at))
        if kind not in _TOP or length < _HEAD.size or length > FRAGMENT_BYTES_MAX:
            raise FragmentError(f"at byte {at} stands no box of a fragmented MP4")
        return (kind, at + length) if at + length <= size else (b"", at)

    def _read_moov(self, end: int) -> None:
        moov = bytearray(_exactly(self._fd, end - self._at, self._at))
        tracks, self._flags = _read_tracks(moov)
        if not any(each.video for each in tracks):
            raise FragmentError("it has no pictures")
        self._tracks = {each.number: each for each in tracks}
        ftyp = _HEAD.pack(24, b"ftyp") + b"iso5\0\0\2\0iso5mp41"
        codecs = ", ".join(each.codec for each in sorted(tracks, key=lambda each: not each.video))
        self._init = InitSegment(ftyp + bytes(moov), f'video/mp4; codecs="{codecs}"')


def _exactly(fd: int, count: int, at: int) -> bytes:
    try:
        data = os.pread(fd, count, at)
    except OSError as error:
        raise FragmentError(f"the segment cannot be read: {error.strerror}") from None
    if len(data) != count:
        raise FragmentError("the segment became shorter while it was read")
    return data


def _children(data: bytes | bytearray, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, begin of the content, end) of the boxes between `begin` and `end`."""
    at = begin
    while at < end:
        if at + _HEAD.size > end:
            raise FragmentError("a box is cut short")
        length, kind = _HEAD.unpack_from(data, at)
        if length < _HEAD.size or at + length > end:
            raise FragmentError("a box does not fit into the one around it")
        yield kind, at + _HEAD.size, at + length
        at += length


def _find(data: bytes | bytearray, begin: int, end: int, *path: bytes) -> tuple[int, int]:
    for wanted in path:
        for kind, inner, inner_end in _children(data, begin, end):
            if kind == wanted:
                begin, end = inner, inner_end
                break
        else:
            raise FragmentError(f"it has no {wanted.decode('latin-1')}")
    return begin, end


def _u32(data: bytes | bytearray, at: int, end: int) -> int:
    if at + 4 > end:
        raise FragmentError("a box is too short")
    return int.from_bytes(data[at : at + 4], "big")


def _read_tracks(moov: bytearray) -> tuple[list[_Track], dict[int, int]]:
    """Return the tracks, and the usual flags of each one's samples. Blank edit lists and name HEVC in place."""
    tracks: list[_Track] = []
    flags: dict[int, int] = {}
    mvhd, mvhd_end = _find(moov, _HEAD.size, len(moov), b"mvhd")
    movie_timescale = _u32(moov, mvhd + (20 if _u32(moov, mvhd, mvhd_end) >> 24 else 12), mvhd_end)
    for kind, begin, end in list(_children(moov, _HEAD.size, len(moov))):
        if kind == b"trak":
            tracks.append(_read_track(moov, begin, end, movie_timescale))
        elif kind == b"mvex":
            for inner, at, inner_end in _children(moov, begin, end):
                if inner == b"trex":
                    flags[_u32(moov, at + 4, inner_end)] = _u32(moov, at + 20, inner_end)
    return tracks, flags


def _read_track(moov: bytearray, begin: int, end: int, movie_timescale: int) -> _Track:
    edits = (0, 0)
    for kind, at, edts_end in _children(moov, begin, end):
        if kind == b"edts":
            edits = _read_edits(moov, at, edts_end)
            moov[at - 4 : at] = b"free"
    tkhd, tkhd_end = _find(moov, begin, end, b"tkhd")
    number = _u32(moov, tkhd + (20 if _u32(moov, tkhd, tkhd_end) >> 24 else 12), tkhd_end)
    mdhd, mdhd_end = _find(moov, begin, end, b"mdia", b"mdhd")
    timescale = _u32(moov, mdhd + (20 if _u32(moov, mdhd, mdhd_end) >> 24 else 12), mdhd_end)
    hdlr, hdlr_end = _find(moov, begin, end, b"mdia", b"hdlr")
    video = bytes(moov[hdlr + 8 : min(hdlr + 12, hdlr_end)]) == b"vide"
    stsd, stsd_end = _find(moov, begin, end, b"mdia", b"minf", b"stbl", b"stsd")
    entries = list(_children(moov, stsd + 8, stsd_end))
    if not timescale or len(entries) != 1:
        raise FragmentError("a track is not described as the recorder does it")
    kind, at, entry_end = entries[0]
    if kind == b"hev1":
        moov[at - 4 : at] = kind = b"hvc1"
    begin_s = edits[0] / timescale - edits[1] / (movie_timescale or 1)
    return _Track(number, timescale, _codec(moov, kind, at, entry_end), video, begin_s)


def _read_edits(moov: bytearray, begin: int, end: int) -> tuple[int, int]:
    """Return the media time that an edit list begins with, and how much is empty before it, in the movie's units."""
    elst, elst_end = _find(moov, begin, end, b"elst")
    wide, empty = _u32(moov, elst, elst_end) >> 24, 0
    side, at = (8 if wide else 4), elst + 8
    for _ in range(_u32(moov, elst + 4, elst_end)):
        if at + 2 * side + 4 > elst_end:
            raise FragmentError("an edit list is too short")
        length, media = (int.from_bytes(moov[n : n + side], "big", signed=True) for n in (at, at + side))
        if media >= 0:
            return media, empty
        empty, at = empty + length, at + 2 * side + 4
    return 0, empty


def _codec(moov: bytearray, kind: bytes, begin: int, end: int) -> str:
    """Return the codec as browsers are asked for it.

    For a codec that they are not expected to play, return the name of its box alone.
    """
    inside = begin + _VISUAL_BYTES
    if kind == b"avc1":
        at, config_end = _find(moov, inside, end, b"avcC")
        if at + 4 > config_end:
            raise FragmentError("avcC is too short")
        return f"avc1.{bytes(moov[at + 1 : at + 4]).hex()}"
    if kind == b"hvc1":
        at, config_end = _find(moov, inside, end, b"hvcC")
        return _hevc_codec(bytes(moov[at:config_end]))
    return "mp4a.40.2" if kind == b"mp4a" else kind.decode("latin-1") if kind.isalnum() else "unknown"


def _hevc_codec(config: bytes) -> str:
    """ISO/IEC 14496-15, E.3."""
    if len(config) < 13:
        raise FragmentError("hvcC is too short")
    space, tier, profile = config[1] >> 6, config[1] >> 5 & 1, config[1] & 31
    compatible = int(f"{int.from_bytes(config[2:6], 'big'):032b}"[::-1], 2)
    constraints = config[6:12].rstrip(b"\0")
    parts = [
        f"{('', 'A', 'B', 'C')[space]}{profile}", f"{compatible:X}", f"{'LH'[tier]}{config[12]}",
        *(f"{each:X}" for each in constraints),
    ]  # fmt: skip
    return "hvc1." + ".".join(parts)


def _samples(moof: bytes, flags: dict[int, int]) -> list[_Sample]:
    """Return the first sample of each `traf`."""
    found: list[_Sample] = []
    for kind, begin, end in _children(moof, _HEAD.size, len(moof)):
        if kind != b"traf":
            continue
        sample = _Sample()
        for inner, at, inner_end in _children(moof, begin, end):
            if inner == b"tfhd":
                _read_tfhd(moof, at, inner_end, sample, flags)
            elif inner == b"tfdt":
                _read_tfdt(moof, at, inner_end, sample)
            elif inner == b"trun" and not sample.found:
                _read_trun(moof, at, inner_end, sample)
        found.append(sample)
    return found


def _read_tfhd(moof: bytes, at: int, end: int, sample: _Sample, flags: dict[int, int]) -> None:
    present = _u32(moof, at, end) & 0xFFFFFF
    sample.track = _u32(moof, at + 4, end)
    place = at + 8 + (8 if present & 1 else 0) + sum(4 for bit in (2, 8, 0x10) if present & bit)
    sample.flags = _u32(moof, place, end) if present & 0x20 else flags.get(sample.track, 0)


def _read_tfdt(moof: bytes, at: int, end: int, sample: _Sample) -> None:
    if moof[at:at + 1] != b"\1" or at + 12 > end:  # fmt: skip
        raise FragmentError("a fragment's time has not 64 bits")
    sample.time, sample.time_at = int.from_bytes(moof[at + 4 : at + 12], "big"), at + 4


def _read_trun(moof: bytes, at: int, end: int, sample: _Sample) -> None:
    present = _u32(moof, at, end)
    version, present = present >> 24, present & 0xFFFFFF
    if not _u32(moof, at + 4, end):
        return
    place = at + 8 + (4 if present & 1 else 0)
    if present & 4:
        sample.flags = _u32(moof, place, end)
        place += 4
    for bit in (0x100, 0x200, 0x400, 0x800):
        if not present & bit:
            continue
        value = _u32(moof, place, end)
        if bit == 0x400 and not present & 4:
            sample.flags = value
        elif bit == 0x800:
            sample.shift = value - 2**32 if version and value >= 2**31 else value
        place += 4
    sample.found = True
