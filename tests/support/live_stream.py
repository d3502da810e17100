"""Reads `/api/v1/live` as a browser does, and keeps a site's store as the core would from what its cameras emit."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import av

from appliance.types import CameraMeter, CameraState, FrameBoxes, Gap, IngestMessage, SegmentRow, StreamHeader
from tests.support.dashboard_site import Site
from tests.support.numbered_footage import number
from tests.support.scripted_sources import Heard

_HEAD = struct.Struct(">cBI")


@dataclass(frozen=True)
class LiveMessage:
    kind: str
    index: int
    content: bytes


@dataclass
class LiveParser:
    """Cuts what arrives into messages."""

    pending: bytes = b""

    def feed(self, data: bytes) -> Iterator[LiveMessage]:
        self.pending += data
        while len(self.pending) >= _HEAD.size:
            kind, index, length = _HEAD.unpack_from(self.pending)
            end = _HEAD.size + length
            if len(self.pending) < end:
                return
            content, self.pending = self.pending[_HEAD.size : end], self.pending[end:]
            yield LiveMessage(kind.decode(), index, content)


def numbered_frames(video: bytes) -> list[tuple[float, int]]:
    """(camera time, number) of the pictures in the `v` messages of one camera."""
    with av.open(io.BytesIO(video), format="mp4") as container:
        return [
            (float(frame.pts * frame.time_base), number(frame.to_ndarray(format="rgb24")))
            for frame in container.decode(video=0)
        ]


@dataclass
class KeptBySite(Heard):
    """Writes what cameras emit into the store: boxes with each meter, once a second, as the core does."""

    site: Site
    messages: list[IngestMessage] = field(default_factory=list)
    _boxes: dict[str, list[FrameBoxes]] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)

    def __call__(self, message: IngestMessage) -> None:
        self.messages.append(message)
        site = self.site
        match message:
            case SegmentRow():
                site.segments.put(message)
            case StreamHeader():
                self._runs[message.camera] = message.run
                site.cameras.write_header(message)
            case CameraState():
                site.cameras.write_state(message)
            case Gap():
                site.cameras.write_gap(message)
            case FrameBoxes():
                self._boxes.setdefault(message.camera, []).append(message)
            case CameraMeter():
                frames = self._boxes.pop(message.camera, [])
                site.boxes.append(message.camera, self._runs.get(message.camera, ""), frames)
