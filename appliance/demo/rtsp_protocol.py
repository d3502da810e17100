"""RTSP without I/O: requests and responses, the SDP of a stream, RTP packets of H.264 and HEVC, RTCP sender reports."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.media.nal import Codec, StreamFormat

HEAD_BYTES_MAX = 16 * 1024  # requests of real clients have under 1 kB
BODY_BYTES_MAX = 64 * 1024  # clients send none; a bound for hostile ones
HEADERS_MAX = 64  # likewise
_END = b"\r\n\r\n"
_RESPONSE = b"RTSP/1.0 "
STATUS_TEXTS = {
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


class BadRtspRequest(Exception):
    """Bytes that are not RTSP, or more than a request may have; the connection is answered with `status` and closed."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class RtspRequest:
    """One request. Header names are lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def cseq(self) -> str:
        return self.headers["cseq"]


class RtspRequestReader:
    """Cuts what one client sends into requests.

    State: bytes not yet understood, at most `HEAD_BYTES_MAX + BODY_BYTES_MAX`. Frames of interleaved data (receiver
    reports) and responses (FFmpeg answers what looks to it like a request) are skipped; bodies are read and thrown
    away, for nothing that we serve has one.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[RtspRequest]:
        """Return the requests that `data` completes. Raise BadRtspRequest."""
        self._pending += data
        found: list[RtspRequest] = []
        while self._pending:
            taken = self._take_one(found)
            if not taken:
                break
            del self._pending[:taken]
        return found

    def _take_one(self, found: list[RtspRequest]) -> int:
        """Return the bytes that the next whole frame or request takes, 0 when it is not all here."""
        pending = self._pending
        if pending[:1] == b"$":
            size = 4 + int.from_bytes(pending[2:4], "big")
            return size if len(pending) >= max(4, size) else 0
        if pending[:2] == b"\r\n":
            return 2
        end = pending.find(_END, 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(pending) >= HEAD_BYTES_MAX:
                raise BadRtspRequest(431, f"a request head of more than {HEAD_BYTES_MAX} bytes")
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
    """Refuse at once what cannot become a request. Raises BadRtspRequest."""
    if any((byte < 0x20 and byte not in b"\r\n") or byte > 0x7E for byte in beginning):
        raise BadRtspRequest(400, "bytes that are not RTSP")


def _parse(head: bytes) -> RtspRequest:
    try:
        first, *rest = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRtspRequest(400, "bytes that are not RTSP") from None
    words = first.split(" ")
    if len(words) != 3 or not words[0].replace("_", "").isalpha():
        raise BadRtspRequest(400, "a first line that is not `METHOD url RTSP/1.0`")
    if words[2] != "RTSP/1.0":
        raise BadRtspRequest(505 if words[2].startswith("RTSP/") else 400, "a protocol that is not RTSP/1.0")
    if len(rest) > HEADERS_MAX:
        raise BadRtspRequest(431, f"more than {HEADERS_MAX} headers")
    headers = {name.strip().lower(): value.strip() for name, colon, value in (line.partition(":") for line in rest)}
    cseq = headers.get("cseq", "")
    if not (cseq.isdigit() and len(cseq) < 12):
        raise BadRtspRequest(400, "a request without a CSeq number")
    return RtspRequest(words[0], words[1], headers)


def _body_size(request: RtspRequest) -> int:
    text = request.headers.get("content-length", "0")
    if not text.isdigit() or len(text) > 9:
        raise BadRtspRequest(400, "a Content-Length that is not a number")
    if int(text) > BODY_BYTES_MAX:
        raise BadRtspRequest(413, f"a body of more than {BODY_BYTES_MAX} bytes")
    return int(text)


def rtsp_response(status: int, cseq: str, headers: Iterable[tuple[str, str]] = (), body: str = "") -> bytes:
    """Return the bytes of one answer; `cseq` empty for a request that had none."""
    lines = [f"RTSP/1.0 {status} {STATUS_TEXTS[status]}"]
    if cseq:
        lines.append(f"CSeq: {cseq}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body.encode())}")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


_INTERLEAVED = re.compile(r"interleaved=(\d{1,3})(?:-(\d{1,3}))?")


def choose_channels(header: str) -> tuple[int, int] | None:
    """Return the RTP and RTCP channels of the first offer of TCP, or None: UDP and multicast are not served."""
    for offer in header.split(","):
        protocol, *parameters = (part.strip() for part in offer.split(";"))
        if protocol.upper() == "RTP/AVP/TCP":
            return _channels(parameters)
    return None


def _channels(parameters: list[str]) -> tuple[int, int] | None:
    for parameter in parameters:
        match = _INTERLEAVED.fullmatch(parameter)
        if match:
            first = int(match.group(1))
            second = int(match.group(2) or first + 1)
            return (first, second) if first != second and max(first, second) <= 255 else None
    return 0, 1


CLOCK_RATE = 90_000  # Hz of video (RFC 6184, RFC 7798)
PAYLOAD_TYPE = 96  # the first dynamic one (RFC 3551, 6)
MTU = 1400  # bytes of a packet, as cameras send; Ethernet's 1500 without the headers
_NTP_EPOCH_S = 2_208_988_800  # seconds from 1900 to 1970 (RFC 868)
_RTP_HEADER = struct.Struct(">BBHII")
_FU_A = 28  # RFC 6184, 5.8
_HEVC_FU = 49  # RFC 7798, 4.4.3


class Packetizer:
    """Makes the RTP packets of one stream.

    State: SSRC and the next sequence number. Owner: one mount. Invariant: sequence numbers have no gaps, whatever
    the stream changes to.
    """

    def __init__(self, ssrc: int, sequence: int = 0) -> None:
        self.ssrc = ssrc
        self.sequence = sequence & 0xFFFF

    def sound(self, payload: bytes, timestamp: int, payload_type: int) -> bytes:
        """Return the packet of one frame of sound."""
        packet = bytearray(self._packet(payload, timestamp, marker=True))
        packet[1] = 0x80 | payload_type
        return bytes(packet)

    def packets(self, codec: Codec, nals: list[bytes], timestamp: int) -> list[bytes]:
        """Return all packets of one access unit; the last carries the marker bit. `timestamp` counts 1/90000 s."""
        payloads = [payload for nal in nals for payload in self._payloads(codec, nal)]
        last = len(payloads) - 1
        return [self._packet(payload, timestamp, marker=index == last) for index, payload in enumerate(payloads)]

    def _payloads(self, codec: Codec, nal: bytes) -> list[bytes]:
        if len(nal) <= MTU:
            return [nal]
        header = _fu_a_header(nal) if codec == "h264" else _hevc_fu_header(nal)
        body = memoryview(nal)[1 if codec == "h264" else 2 :]
        return _fragments(header, body)

    def _packet(self, payload: bytes, timestamp: int, *, marker: bool) -> bytes:
        second = PAYLOAD_TYPE | (0x80 if marker else 0)
        header = _RTP_HEADER.pack(0x80, second, self.sequence, timestamp & 0xFFFFFFFF, self.ssrc)
        self.sequence = (self.sequence + 1) & 0xFFFF
        return header + payload


def _fu_a_header(nal: bytes) -> tuple[bytes, int]:
    """Return the FU indicator (F and NRI of the unit, type 28) and the unit's type: RFC 6184, 5.8."""
    return bytes([(nal[0] & 0xE0) | _FU_A]), nal[0] & 0x1F


def _hevc_fu_header(nal: bytes) -> tuple[bytes, int]:
    """Return the payload header (layer and temporal id of the unit, type 49) and the unit's type: RFC 7798, 4.4.3."""
    return bytes([(nal[0] & 0x81) | (_HEVC_FU << 1), nal[1]]), (nal[0] >> 1) & 0x3F


def _fragments(header: tuple[bytes, int], body: memoryview) -> list[bytes]:
    lead, kind = header
    room = MTU - len(lead) - 1
    made: list[bytes] = []
    for at in range(0, len(body), room):
        start = 0x80 if at == 0 else 0
        end = 0x40 if at + room >= len(body) else 0
        made.append(lead + bytes([start | end | kind]) + body[at : at + room])
    return made


def sender_report(ssrc: int, wall_t: float, timestamp: int, packets: int, octets: int, name: str) -> bytes:
    """Return a compound RTCP packet, SR then SDES: the frame of `timestamp` was taken at `wall_t` (UTC seconds)."""
    seconds = int(wall_t)
    fraction = int((wall_t - seconds) * (1 << 32)) & 0xFFFFFFFF
    report = struct.pack(
        ">BBHIIIIII",
        0x80,
        200,
        6,
        ssrc,
        (seconds + _NTP_EPOCH_S) & 0xFFFFFFFF,
        fraction,
        timestamp & 0xFFFFFFFF,
        packets & 0xFFFFFFFF,
        octets & 0xFFFFFFFF,
    )
    return report + _source_description(ssrc, name)


def _source_description(ssrc: int, name: str) -> bytes:
    text = name.encode()[:255]
    chunk = struct.pack(">IBB", ssrc, 1, len(text)) + text + b"\x00"
    chunk += b"\x00" * (-len(chunk) % 4)
    return struct.pack(">BBH", 0x81, 202, len(chunk) // 4) + chunk


def interleaved(channel: int, packet: bytes) -> bytes:
    """Frame `packet` as it travels inside the RTSP connection: RFC 2326, 10.12."""
    return struct.pack(">cBH", b"$", channel, len(packet)) + packet


TRACK, SOUND_TRACK = "trackID=0", "trackID=1"
SOUND_PAYLOAD_TYPE = 97  # the next dynamic one
_G711 = {"pcm_mulaw": (0, "PCMU"), "pcm_alaw": (8, "PCMA")}  # RFC 3551, 6


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """The sound of a clip: AAC with its AudioSpecificConfig, or G.711."""

    codec: str
    rate: int
    channels: int
    config: bytes

    @property
    def payload_type(self) -> int:
        return _G711[self.codec][0] if self.codec in _G711 else SOUND_PAYLOAD_TYPE

    def payload(self, frame: bytes) -> bytes:
        """Return it as RFC 3640, 3.3.6 (AAC-hbr, one access unit a packet), or the samples as they are."""
        return frame if self.codec in _G711 else struct.pack(">HH", 16, len(frame) << 3 & 0xFFFF) + frame

    def to_sdp(self) -> list[str]:
        """Return the lines of the track."""
        kind, name = self.payload_type, _G711.get(self.codec, (0, "MPEG4-GENERIC"))[1]
        parameters = "streamtype=5; profile-level-id=1; mode=AAC-hbr; sizelength=13; indexlength=3; indexdeltalength=3"
        return [
            f"m=audio 0 RTP/AVP {kind}",
            f"a=rtpmap:{kind} {name}/{self.rate}" + (f"/{self.channels}" if self.channels > 1 else ""),
            *([] if self.codec in _G711 else [f"a=fmtp:{kind} {parameters}; config={self.config.hex()}"]),
            f"a=control:{SOUND_TRACK}",
        ]


_SPS = 7  # ITU-T H.264, table 7-1
_HEVC_NAMES = ((32, "sprop-vps"), (33, "sprop-sps"), (34, "sprop-pps"))


@dataclass(frozen=True, slots=True)
class SdpDescription:
    """The answer to DESCRIBE."""

    name: str
    stream: StreamFormat
    fps: float  # 0: unknown
    session: int
    sound: SoundFormat | None = None

    def to_sdp(self, host: str) -> str:
        """Return the text: a video track, and one of sound where there is any. host: the server's own address."""
        family = "IP6" if ":" in host else "IP4"
        parameters = _h264_parameters if self.stream.codec == "h264" else _hevc_parameters
        lines = [
            "v=0",
            f"o=- {self.session} 1 IN {family} {host}",
            f"s={self.name}",
            f"c=IN {family} {'::' if family == 'IP6' else '0.0.0.0'}",
            "t=0 0",
            "a=tool:vedette-demo",
            "a=type:broadcast",
            "a=control:*",
            "a=range:npt=now-",
            f"m=video 0 RTP/AVP {PAYLOAD_TYPE}",
            f"a=rtpmap:{PAYLOAD_TYPE} {'H264' if self.stream.codec == 'h264' else 'H265'}/{CLOCK_RATE}",
            f"a=fmtp:{PAYLOAD_TYPE} {parameters(self.stream)}",
            *([f"a=framerate:{self.fps:g}"] if self.fps else []),
            f"a=control:{TRACK}",
            *(self.sound.to_sdp() if self.sound is not None else ()),
        ]
        return "\r\n".join(lines) + "\r\n"


def _h264_parameters(stream: StreamFormat) -> str:
    """Write them as RFC 6184, 8.1: the profile is the three bytes after the SPS's header."""
    parameters = ["packetization-mode=1"]
    sps = stream.of_type(_SPS)
    if sps and len(sps[0]) >= 4:
        parameters.append(f"profile-level-id={sps[0][1:4].hex().upper()}")
    if stream.sets:
        parameters.append("sprop-parameter-sets=" + _listed(stream.sets))
    return "; ".join(parameters)


def _hevc_parameters(stream: StreamFormat) -> str:
    """Write them as RFC 7798, 7.1."""
    named = ((name, stream.of_type(kind)) for kind, name in _HEVC_NAMES)
    return "; ".join(f"{name}={_listed(sets)}" for name, sets in named if sets) or "sprop-max-don-diff=0"


def _listed(sets: tuple[bytes, ...]) -> str:
    return ",".join(base64.b64encode(nal).decode() for nal in sets)
