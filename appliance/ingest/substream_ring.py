"""Keeps the last seconds of a camera's detect stream as files, for a wall of live pictures; nothing of it is recorded.

The stream comes over the session that detection has anyway. Its files are segments like those of the recording, so that
live views read both alike; they are in no index, are never flushed to the disk and live for some seconds.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.local_files import MEMORY_FREE_BYTES_MIN
from appliance.ingest.reconnecting_reader import PacketSink
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.segment_writer import SegmentFile
from appliance.media.source import StreamInfo, VideoPacket
from appliance.types import Gap, SegmentRow

FOLDER = "substreams"  # substreams/<camera>/: see store/paths
SEGMENT_S = 4.0  # a clip is cut at key frames, which are 2 to 4 s apart
FILES_KEPT = 2  # the one that is written, and the one before for who reads it to its end
FILE_BYTES_MAX = 16_000_000  # a stream whose key frames come too seldom for that is not offered


@dataclass(frozen=True, slots=True)
class LiveRings:
    """Takers of a camera's packets for live views. detect: of its second stream; main: of the first; None: nothing."""

    detect: PacketSink | None = None
    main: PacketSink | None = None


class SubstreamRing:
    """A packet sink. State: the names of the files that there are. Owner: the thread that reads the detect stream.

    Invariant: at most `FILES_KEPT` files, of `FILE_BYTES_MAX` each and a fragment; what goes wrong with them (a full
    disk) is told by the recorder, which tries again, and disturbs no detection.
    """

    def __init__(self, root: Path, camera: str, free_min_bytes: int, clock: Clock) -> None:
        """Delete what an earlier process left; root: the storage folder."""
        self._root = root
        self._camera = camera
        self._paths: deque[str] = deque()
        self._bytes = 0
        self._is_paused = False
        for left in (root / FOLDER / camera).glob("*.m[pk][4v]"):
            left.unlink(missing_ok=True)
        target = RecordTarget(root, camera, SEGMENT_S, free_min_bytes, folder=FOLDER)
        self._recorder = SegmentRecorder(target, clock, self._take_row, open_file=_PassingFile)

    def begin(self, info: StreamInfo, session_id: str) -> None:
        self._recorder.begin(info, session_id)

    def take(self, packet: VideoPacket) -> None:
        if self._is_paused:
            self._recorder.end()
            self._keep(0)
        elif packet.keyframe or self._bytes < FILE_BYTES_MAX:
            self._recorder.take(packet)
        else:
            self._recorder.end()

    def end(self) -> None:
        self._recorder.end()

    def close(self) -> None:
        """Delete what there is: the camera is not read any more. Call it after the thread has ended."""
        self._keep(0)
        with contextlib.suppress(OSError):
            (self._root / FOLDER / self._camera).rmdir()

    def pause(self, is_paused: bool) -> None:
        """Keep nothing while memory is short, or go on. Any thread may call.

        With a pause, the next packet deletes what there is.
        """
        self._is_paused = is_paused

    def _take_row(self, row: SegmentRow | Gap) -> None:
        if isinstance(row, Gap):
            return
        self._bytes = row.bytes
        if not self._paths or self._paths[-1] != row.path:
            self._paths.append(row.path)
        self._keep(FILES_KEPT)

    def _keep(self, files: int) -> None:
        while len(self._paths) > files:
            with contextlib.suppress(OSError):
                (self._root / self._paths.popleft()).unlink()


class StandbyRing(SubstreamRing):
    """The last seconds of a camera's main stream in memory, kept only while the disk takes no recording of it.

    So people see the camera live, and nothing else is lost than the recording. Owner: the thread that reads the main
    stream, after the recorder has taken the packet.
    """

    def __init__(self, memory: Path, camera: str, recorder: SegmentRecorder, clock: Clock) -> None:
        """memory: see `live_memory`. recorder: of the same stream."""
        super().__init__(memory, camera, MEMORY_FREE_BYTES_MIN, clock)
        self._disk = recorder
        self._is_short = False

    def take(self, packet: VideoPacket) -> None:
        self._is_paused = self._is_short or not self._disk.is_paused
        super().take(packet)

    def pause(self, is_paused: bool) -> None:
        self._is_short = is_paused


def clear_substreams(root: Path) -> None:
    """Delete what an earlier process left, of cameras that there are no more, too. root: the storage folder.

    The folder itself stays: `IngestPolicy` knows it by its inode.
    """
    for left in (root / FOLDER).glob("*"):
        shutil.rmtree(left, ignore_errors=True)


class _PassingFile(SegmentFile):
    """Is deleted soon: not worth a write to the disk."""

    def sync(self) -> None:
        pass
