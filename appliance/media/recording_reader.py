"""How evidence, live view and kept scenarios read the recording: in a sandbox in the running appliance, or directly.

A camera's video is hostile data, and FFmpeg decodes it. In the core it would do so beside the database, the dashboard's
token and the passwords; in the sandbox it has none of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from appliance.errors import EvidenceError
from appliance.media.atomic_file import DiskWriteError, WrittenFile
from appliance.media.clips import CLIP_BYTES_MAX, ClipFile, cut_clip
from appliance.media.rendition import make_rendition
from appliance.media.segment_reader import RecordedSegment, open_segment
from appliance.media.stills import Still, cut_key_frame, cut_stills, load_still
from appliance.sandbox import Sandbox, SandboxError, SandboxFolders, SandboxLimits, SandboxUnavailable
from appliance.store.paths import CUTS, EVIDENCE, PREROLL, SCENARIOS, SEGMENTS
from appliance.store.reconcile import MeasuredSegment

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

FUNCTIONS = "appliance.media.sandboxed_functions"
LIMITS = SandboxLimits(
    wall_s=20.0,
    memory_bytes=1024 * 1024 * 1024,  # H.265 of 8K: 17 reference frames of 50 MB
    file_bytes_max=CLIP_BYTES_MAX + 64 * 1024 * 1024,
    reply_bytes_max=512 * 1024 * 1024,
)
CLIP_S_MAX = 120.0  # half a gigabyte on a slow card
RENDITION_S_MAX = 240.0  # two minutes of 4K on a small computer


class RecordingReader(Protocol):
    """Reads recorded files. All methods raise EvidenceError, `clip` also DiskWriteError."""

    def stills(self, segments: Sequence[RecordedSegment], times: Sequence[float]) -> list[Still]:
        """See `media.stills.cut_stills`."""
        ...

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> Still:
        """See `media.stills.cut_key_frame`."""
        ...

    def load_still(self, path: Path, t: float) -> Still:
        """See `media.stills.load_still`."""
        ...

    def clip(
        self,
        segments: Sequence[RecordedSegment],
        t0: float,
        t1: float,
        path: Path,
        *,
        hold_t: float | None = None,
        sound: bool = False,
    ) -> ClipFile:
        """See `media.clips.cut_clip`."""
        ...

    def rendition(self, source: Path, path: Path) -> WrittenFile:
        """See `media.rendition.make_rendition`."""
        ...

    def longest_step_s(self, segment: RecordedSegment) -> float:
        """The longest time from one frame to the next, in decode order."""
        ...


class DirectReader:
    """Reads in this process: for commands that run for one file of their user's."""

    def stills(self, segments: Sequence[RecordedSegment], times: Sequence[float]) -> list[Still]:
        return cut_stills(segments, times)

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> Still:
        return cut_key_frame(segment, t, side_max)

    def load_still(self, path: Path, t: float) -> Still:
        return load_still(path, t)

    def clip(
        self,
        segments: Sequence[RecordedSegment],
        t0: float,
        t1: float,
        path: Path,
        *,
        hold_t: float | None = None,
        sound: bool = False,
    ) -> ClipFile:
        return cut_clip(segments, t0, t1, path, hold_t=hold_t, sound=sound)

    def rendition(self, source: Path, path: Path) -> WrittenFile:
        return make_rendition(source, path)

    def longest_step_s(self, segment: RecordedSegment) -> float:
        with open_segment(segment) as opened:
            times = [timed.order_t for timed in opened.packets()]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


class SandboxedReader:
    """Reads in a child process that may open the recording, evidence, kept scenarios and cuts, and nothing else.

    State: the sandbox. One call at a time; any thread. All methods raise SandboxUnavailable when no child
    can be started, and after `close`. What the child answers is checked: it may have been taken over.
    """

    def __init__(self, root: Path, limits: SandboxLimits = LIMITS) -> None:
        """root: the storage folder."""
        self._folders = tuple(root / name for name in (SEGMENTS, PREROLL, EVIDENCE, SCENARIOS, CUTS))
        self._sandbox = Sandbox(
            FUNCTIONS, limits, SandboxFolders(writable=self._folders), raises=(DiskWriteError, EvidenceError)
        )
        self._reported = False

    def stills(self, segments: Sequence[RecordedSegment], times: Sequence[float]) -> list[Still]:
        found = self._call("stills", _plain(segments), list(times))
        stills = _checked(lambda: [_still(each) for each in found])
        if len(stills) != len(times):
            raise EvidenceError("the sandbox did not answer with the frames that were asked for")
        return stills

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> Still:
        found = self._call("key_frame", _plain([segment]), t, side_max)
        return _checked(lambda: _still(found))

    def load_still(self, path: Path, t: float) -> Still:
        found = self._call("image", str(path), t)
        return _checked(lambda: _still(found))

    def clip(
        self,
        segments: Sequence[RecordedSegment],
        t0: float,
        t1: float,
        path: Path,
        *,
        hold_t: float | None = None,
        sound: bool = False,
    ) -> ClipFile:
        found = self._call("clip", _plain(segments), t0, t1, str(path), hold_t, sound, wall_s=CLIP_S_MAX)
        return _checked(lambda: _clip_file(found))

    def rendition(self, source: Path, path: Path) -> WrittenFile:
        found = self._call("rendition", str(source), str(path), wall_s=RENDITION_S_MAX)
        return _checked(lambda: _written(found))

    def longest_step_s(self, segment: RecordedSegment) -> float:
        found = self._call("longest_step_s", _plain([segment]))
        return _checked(lambda: float(found))

    def recover_segment(self, path: Path) -> MeasuredSegment | None:
        """See `media.segment_recovery.recover_segment`; None also for a file that cannot be read within the limits.

        Raises SandboxUnavailable.
        """
        self._make_folders()
        try:
            found = self._sandbox.call("recover", str(path))
        except SandboxUnavailable:
            raise
        except SandboxError as error:
            logger.warning("the segment %s cannot be recovered: %s", path.name, error)
            return None
        return None if found is None else _checked(lambda: _measured(found))

    def rest(self) -> None:
        """End the child unless it is at work; the next call starts another. Never waits."""
        self._sandbox.rest()

    def close(self) -> None:
        """End the child, also in the middle of a call: that one and all later ones raise SandboxUnavailable."""
        self._sandbox.close()

    def _call(self, function: str, *values: object, wall_s: float | None = None) -> Any:
        self._make_folders()
        try:
            found = self._sandbox.call(function, *values, wall_s=wall_s)
        except SandboxUnavailable:  # of the recording nothing is known, so no evidence is missing
            raise
        except SandboxError as error:
            raise EvidenceError(f"the recording could not be read: {error}") from None
        if not self._reported:
            self._reported = True
            if missing := {"landlock", "seccomp"} - set(self._sandbox.confined):
                logger.warning("video is decoded in a child with limits and without secrets; this kernel has no %s",
                               " and no ".join(sorted(missing)))  # fmt: skip
        return found

    def _make_folders(self) -> None:
        """A folder that is not there when the child starts stays out of its reach."""
        if self._sandbox.pid == 0:
            for folder in self._folders:
                with contextlib.suppress(OSError):
                    folder.mkdir(parents=True, exist_ok=True)


READ_DIRECTLY = DirectReader()


def _plain(segments: Sequence[RecordedSegment]) -> list[list[object]]:
    return [[str(each.path), each.t_start, each.t_end] for each in segments]


def _checked(read: Callable[[], Found]) -> Found:
    try:
        return read()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise EvidenceError(f"the sandbox answered what makes no sense ({type(error).__name__})") from None


def _still(found: dict[str, Any]) -> Still:
    width, height = int(found["width"]), int(found["height"])
    pixels = np.frombuffer(found["pixels"], np.uint8).reshape(height, width, 3)
    return Still(float(found["t"]), pixels)


def _written(found: dict[str, Any]) -> WrittenFile:
    sha256 = str(found["sha256"])
    if len(sha256) != 64 or int(sha256, 16) < 0:
        raise ValueError("no sha256")
    return WrittenFile(int(found["bytes"]), sha256)


def _clip_file(found: dict[str, Any]) -> ClipFile:
    return ClipFile(
        t_start=float(found["t_start"]),
        t_end=float(found["t_end"]),
        size=(int(found["width"]), int(found["height"])),
        frames=int(found["frames"]),
        written=_written(found),
        note=str(found["note"])[:1000],
        codec=str(found["codec"])[:40],
        sound=bool(found["sound"]),
    )


def _measured(found: dict[str, Any]) -> MeasuredSegment:
    size = (int(found["width"]), int(found["height"]))
    cut_back = None if found["bytes"] is None else int(found["bytes"])
    return MeasuredSegment(float(found["seconds"]), int(found["frames"]), str(found["codec"])[:40], size, cut_back)
