"""What a replay plays: a clip, or the recorded segments of a camera as one film."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import av

from appliance.errors import SourceError
from appliance.ingest.clip import Clip
from appliance.ingest.decode import Frame
from appliance.ingest.thrift.thrift import Thrift
from appliance.types import Gap

# The last frame may be shown for a while, and edit lists hide some: this much less than announced is not a cut.
_SHORT_S = 2.0
_SHORT_SHARE = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewRun:
    """The camera connected anew here when it was recorded: earlier tracks mean nothing now."""


Scene = Frame | Gap | NewRun
"""What a film shows next; times are seconds since the replay's beginning, `Frame.index` counts through the film."""


class Film(Protocol):
    """One camera's footage, played once. One thread. After `play` the counts and `error` say how it went."""

    @property
    def name(self) -> str:
        """What the log calls it: a file name, never a path."""
        ...

    @property
    def length_s(self) -> float | None:
        """When it will end, as far as is known."""
        ...

    @property
    def decoded(self) -> int: ...

    @property
    def skipped(self) -> int:
        """Packets that were not decoded, since nothing spoke for it."""
        ...

    @property
    def t(self) -> float:
        """Seconds of the last picture so far, decoded or not."""
        ...

    @property
    def damaged(self) -> int:
        """Packets that could not be decoded and were skipped."""
        ...

    @property
    def jumps(self) -> int:
        """Places where the time stamps made no sense."""
        ...

    @property
    def bytes(self) -> int:
        """Size of the footage on disk."""
        ...

    @property
    def error(self) -> str | None:
        """Why it could not be played to its end."""
        ...

    def play(self, thrift: Thrift | None = None) -> Iterator[Scene]:
        """thrift: picks what is decoded; None: everything. What it picks may hang on what was made of the scene before,
        so ask for the next one only then.

        Raises SourceError when it is not a video, or no picture of it can be decoded.
        """
        ...


class ClipFilm:
    """One video file from its first frame, which is t = 0."""

    def __init__(self, path: Path, camera: str) -> None:
        self._path = path
        self._clip = Clip(str(path), f"replay as {camera}")
        self._length_s: float | None = None
        self._error: str | None = None

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def length_s(self) -> float | None:
        return self._length_s

    @property
    def decoded(self) -> int:
        return self._clip.decoded

    @property
    def skipped(self) -> int:
        return self._clip.skipped

    @property
    def t(self) -> float:
        return self._clip.t

    @property
    def damaged(self) -> int:
        return self._clip.damaged

    @property
    def jumps(self) -> int:
        return self._clip.jumps

    @property
    def bytes(self) -> int:
        return self._path.stat().st_size

    @property
    def error(self) -> str | None:
        return self._error

    def play(self, thrift: Thrift | None = None) -> Iterator[Scene]:
        with self._clip as clip:
            self._length_s = _length_s(clip)
            try:
                yield from clip.frames(thrift)
            except SourceError as error:
                if clip.decoded == 0:
                    raise
                logger.warning("%s", error)
                self._error = str(error)
            else:
                self._error = self._cut_short()

    def _cut_short(self) -> str | None:
        """A file that was cut off simply ends; only its own announcement tells."""
        t, length_s = round(self._clip.t, 3), self._length_s
        if length_s is None or length_s - t <= max(_SHORT_S, _SHORT_SHARE * length_s):
            return None
        return f"{self.name} breaks off after {t:.1f} s of the {length_s:.1f} s that it announces"


def _length_s(clip: Clip) -> float | None:
    """What the file says of the length of its video; many say nothing, or only of the whole with its sound."""
    stream = clip.info.stream
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    container = stream.container
    if isinstance(container, av.container.InputContainer) and container.duration and len(container.streams) == 1:
        return float(container.duration / av.time_base)
    return None
