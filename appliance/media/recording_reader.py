"""How evidence, live view and kept scenarios read the recording: in a sandbox in the running appliance, or directly.

A camera's video is hostile data, and FFmpeg decodes it. In the core it would do so beside the database, the dashboard's
token and the passwords; in the sandbox it has none of them. Images are redacted and encoded there as well, so that the
core holds neither pixels nor what works on them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from appliance.base.child_processes import MEDIA_FUNCTIONS
from appliance.base.errors import EvidenceError, NotMeasured
from appliance.base.local_files import DiskWriteError, WrittenFile
from appliance.media.recorded import (
    CLIP_BYTES_MAX,
    ClipFile,
    ClipRedaction,
    FrameImage,
    FrameImages,
    ImageOrder,
    RecordedSegment,
)
from appliance.sandbox.sandbox import (
    Sandbox,
    SandboxDied,
    SandboxError,
    SandboxFolders,
    SandboxLimits,
    SandboxTimeout,
    SandboxUnavailable,
)
from appliance.store.paths import CUTS, EVIDENCE, EXPORTS, PREROLL, SCENARIOS, SEGMENTS
from appliance.types import MeasuredSegment

if TYPE_CHECKING:
    from appliance.media.stills import Still

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

LIMITS = SandboxLimits(
    wall_s=20.0,
    calls_max=2000,  # FFmpeg keeps 0.2 to 0.8 kB of each file that it decodes: 1.6 MB at most
    memory_bytes=1024 * 1024 * 1024,  # H.265 of 8K: 17 reference frames of 50 MB
    file_bytes_max=CLIP_BYTES_MAX + 64 * 1024 * 1024,
    reply_bytes_max=512 * 1024 * 1024,
)
IMAGE_SIDE_MAX = 65_535  # pixels, of JPEG
CLIP_S_MAX = 120.0  # half a gigabyte on a slow card
RENDITION_S_MAX = 240.0  # two minutes of 4K on a small computer
REDACTED_S_MAX = 900.0  # five minutes of 4K on a small computer


class RecordingReader(Protocol):
    """Reads recorded files. All methods but `begin` raise EvidenceError, `clip` also DiskWriteError."""

    def begin(self) -> None:
        """Prepare for a call that may come soon, without waiting."""
        ...

    def images(
        self, segments: Sequence[RecordedSegment], wanted: Sequence[tuple[float, Sequence[ImageOrder]]]
    ) -> list[FrameImages]:
        """Return the images ordered of the frames at these times, in that order; see `media.stills.cut_stills`."""
        ...

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> FrameImages:
        """Return the key frame of `media.stills.cut_key_frame` as one JPEG."""
        ...

    def file_images(self, path: Path, t: float, orders: Sequence[ImageOrder]) -> FrameImages:
        """Return the images ordered of an image file that was written before, of time `t`."""
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

    def redacted_clip(
        self, segments: Sequence[RecordedSegment], t0: float, t1: float, path: Path, redaction: ClipRedaction
    ) -> ClipFile:
        """See `media.redacted_clip.make_redacted_clip`."""
        ...

    def longest_step_s(self, segment: RecordedSegment) -> float:
        """Return the longest time from one frame to the next, in decode order."""
        ...


class DirectReader:
    """Reads in this process, which loads FFmpeg, OpenCV and numpy with the first call.

    For commands that run for one file of their user's, and for what the sandbox runs.
    """

    def begin(self) -> None:
        pass

    def images(
        self, segments: Sequence[RecordedSegment], wanted: Sequence[tuple[float, Sequence[ImageOrder]]]
    ) -> list[FrameImages]:
        from appliance.media.stills import cut_stills

        stills = cut_stills(segments, [t for t, _ in wanted])
        return [_made(each, orders) for each, (_, orders) in zip(stills, wanted, strict=True)]

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> FrameImages:
        from appliance.media.stills import cut_key_frame

        return _made(cut_key_frame(segment, t, side_max), [ImageOrder(side_max=side_max)])

    def file_images(self, path: Path, t: float, orders: Sequence[ImageOrder]) -> FrameImages:
        from appliance.media.stills import load_still

        return _made(load_still(path, t), orders)

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
        from appliance.media.clips import cut_clip

        return cut_clip(segments, t0, t1, path, hold_t=hold_t, sound=sound)

    def rendition(self, source: Path, path: Path) -> WrittenFile:
        from appliance.media.rendition import make_rendition

        return make_rendition(source, path)

    def redacted_clip(
        self, segments: Sequence[RecordedSegment], t0: float, t1: float, path: Path, redaction: ClipRedaction
    ) -> ClipFile:
        from appliance.media.redacted_clip import make_redacted_clip

        return make_redacted_clip(segments, t0, t1, path, redaction)

    def longest_step_s(self, segment: RecordedSegment) -> float:
        from appliance.media.segment_reader import longest_step_s

        return longest_step_s(segment)


class SandboxedReader:
    """Reads in a child process that may open the recording, evidence, scenarios, cuts and exports, and nothing else.

    State: the sandbox. One call at a time; any thread. All methods raise SandboxUnavailable when no child
    can be started, and after `close`. What the child answers is checked: it may have been taken over.
    """

    def __init__(self, root: Path, limits: SandboxLimits = LIMITS) -> None:
        """root: the storage folder."""
        self._folders = tuple(root / name for name in (SEGMENTS, PREROLL, EVIDENCE, SCENARIOS, CUTS, EXPORTS))
        self._sandbox = Sandbox(
            MEDIA_FUNCTIONS, limits, SandboxFolders(writable=self._folders), raises=(DiskWriteError, EvidenceError)
        )
        self._reported = False

    def begin(self) -> None:
        if self._sandbox.pid == 0:  # a call that goes on has a child, and is not waited for
            self._make_folders()
            with contextlib.suppress(SandboxUnavailable):
                self._sandbox.begin()

    def images(
        self, segments: Sequence[RecordedSegment], wanted: Sequence[tuple[float, Sequence[ImageOrder]]]
    ) -> list[FrameImages]:
        plain = [[t, [asdict(each) for each in orders]] for t, orders in wanted]
        found = self._call("images", _plain(segments), plain)
        if not isinstance(found, list) or len(found) != len(wanted):
            raise EvidenceError("the sandbox did not answer with the frames that were asked for")
        return _checked(lambda: [_images(each, orders) for each, (_, orders) in zip(found, wanted, strict=True)])

    def key_frame(self, segment: RecordedSegment, t: float, side_max: int) -> FrameImages:
        found = self._call("key_frame", _plain([segment]), t, side_max)
        return _checked(lambda: _images(found, [ImageOrder(side_max=side_max)]))

    def file_images(self, path: Path, t: float, orders: Sequence[ImageOrder]) -> FrameImages:
        found = self._call("file_images", str(path), t, [asdict(each) for each in orders])
        return _checked(lambda: _images(found, orders))

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

    def redacted_clip(
        self, segments: Sequence[RecordedSegment], t0: float, t1: float, path: Path, redaction: ClipRedaction
    ) -> ClipFile:
        values = (_plain(segments), t0, t1, str(path), asdict(redaction))
        found = self._call("redacted_clip", *values, wall_s=REDACTED_S_MAX)
        return _checked(lambda: _clip_file(found))

    def longest_step_s(self, segment: RecordedSegment) -> float:
        found = self._call("longest_step_s", _plain([segment]))
        return _checked(lambda: float(found))

    def recover_segment(self, path: Path) -> MeasuredSegment | None:
        """See `media.segment_reader.recover_segment`; None also for a file that FFmpeg fails at.

        Raises NotMeasured, SandboxUnavailable.
        """
        self._make_folders()
        try:
            found = self._sandbox.call("recover", str(path))
        except SandboxUnavailable:
            raise
        except (SandboxTimeout, SandboxDied) as error:
            logger.warning("the segment %s could not be measured: %s", path.name, error)
            raise NotMeasured(str(error)) from None
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
        """Make the folders: one that is not there when the child starts stays out of its reach."""
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


def _made(still: Still, orders: Sequence[ImageOrder]) -> FrameImages:
    from appliance.media.stills import make_image

    return FrameImages(still.t, still.size, tuple(make_image(still.image, each) for each in orders))


def _images(found: dict[str, Any], orders: Sequence[ImageOrder]) -> FrameImages:
    images = tuple(_image(each, order) for each, order in zip(found["images"], orders, strict=True))
    return FrameImages(float(found["t"]), _size(found["size"]), images)


def _image(found: dict[str, Any], order: ImageOrder) -> FrameImage:
    """Return the image, which goes to browsers and to the cloud; its first bytes must be of the ordered kind."""
    if problem := str(found["problem"])[:300]:
        return FrameImage(b"", (0, 0), None, problem)
    data, size = bytes(found["data"]), _size(found["size"])
    if order.webp_bytes_max is None:
        is_right = data.startswith(b"\xff\xd8\xff")
    else:
        is_right = data[:4] + data[8:12] == b"RIFFWEBP" and len(data) <= order.webp_bytes_max
    region = None if found["region"] is None else tuple(min(1.0, max(0.0, float(each))) for each in found["region"])
    if not is_right or (order.side_max is not None and max(size) > order.side_max):
        raise ValueError("not the image that was ordered")
    if region is None:
        return FrameImage(data, size)
    x1, y1, x2, y2 = region
    if x1 >= x2 or y1 >= y2:
        raise ValueError("no region")
    return FrameImage(data, size, (x1, y1, x2, y2))


def _size(found: Any) -> tuple[int, int]:
    width, height = (int(each) for each in found)
    if not (0 < width <= IMAGE_SIDE_MAX and 0 < height <= IMAGE_SIDE_MAX):
        raise ValueError("no size")
    return width, height


def _written(found: dict[str, Any]) -> WrittenFile:
    sha256 = str(found["sha256"])
    if len(sha256) != 64 or int(sha256, 16) < 0:
        raise ValueError("no sha256")
    return WrittenFile(int(found["bytes"]), sha256)


def _clip_file(found: dict[str, Any]) -> ClipFile:
    return ClipFile(
        t_start=float(found["t_start"]),
        t_end=float(found["t_end"]),
        size=(int(found["size"][0]), int(found["size"][1])),
        frames=int(found["frames"]),
        written=_written(found["written"]),
        note=str(found["note"])[:1000],
        codec=str(found["codec"])[:40],
        sound=bool(found["sound"]),
    )


def _measured(found: dict[str, Any]) -> MeasuredSegment:
    cut_back = None if found["bytes"] is None else int(found["bytes"])
    (width, height), codec = map(int, found["size"]), str(found["codec"])[:40]
    return MeasuredSegment(float(found["seconds"]), int(found["frames"]), codec, (width, height), cut_back)
