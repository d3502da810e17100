"""Images and clips that are made to harm whoever decodes them."""

from __future__ import annotations

import hashlib
import io
from fractions import Fraction

import av
import cv2
import numpy as np

from appliance import wire
from cloud_worker.evidence import EvidenceFile


def jpeg(width: int = 64, height: int = 48) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), 90, np.uint8))[1].tobytes()


def resized(data: bytes, width: int, height: int) -> bytes:
    """The JPEG, whose frame header now says another size: its decoder makes room for all of it."""
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 9 :]


def marker_bomb(marker: int = 0x01) -> bytes:
    """30000x30000 behind a marker without a length. A walk that takes the next two bytes for one lands 64 kB further,
    at a frame header that says 640x480."""
    real = resized(jpeg(), 30_000, 30_000)[2:]
    comment = b"\xff\xfe\x00\x04--"
    body = b"\xff\xd8\xff" + bytes([marker]) + comment + real
    return body.ljust(4 + 0xFFFE, b"\0") + resized(jpeg(), 640, 480)[2:]


def clip(width: int = 320, height: int = 240, count: int = 10, form: str = "mp4") -> bytes:
    """A film of one colour, which is small however large its frames are."""
    made = io.BytesIO()
    with av.open(made, "w", format=form) as container:
        stream = container.add_stream("libx264", rate=Fraction(30), options={"preset": "ultrafast", "qp": "51"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.full((height * 3 // 2, width), 128, np.uint8), format="yuv420p")
        for n in range(count):
            frame.pts = n
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return made.getvalue()


def evidence(data: bytes, kind: str = "frame") -> EvidenceFile:
    digest = hashlib.sha256(data).hexdigest()
    mime = "video/mp4" if kind == "clip" else "image/jpeg"
    ref = wire.MediaRef(id=digest[:32], kind=kind, mime=mime, bytes=max(1, len(data)), sha256=digest,
                        chunks=-(-max(1, len(data)) // wire.CHUNK_BYTES), t=0.0)  # fmt: skip
    return EvidenceFile(ref, data)


PLAYLISTS = {
    "ffconcat": b"ffconcat version 1.0\nfile /etc/hostname\n",
    "concat with ftyp in it": b"ffco ftypisom version 1.0\nfile /etc/hostname\n",
    "hls": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    "hls over http": b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"/>',
    "subfile": b"subfile,,start,0,end,10,,:/etc/hostname",
}
