"""The boxes of a replay kept on disk while a scenario is judged: who was where, at which frame."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType

from appliance.scenario.truth import TrueFrames, counted
from appliance.types import FrameBoxes, TrackedObject
from appliance.wire import decode_log

_BOXES = b'{"type":"boxes"'


class Spool:
    """A replay log's sink that keeps only the looks, in an unnamed file. Use as a context manager.

    A film of a day is some 100 MB of boxes: too much for the memory of a small box, little for its disk.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="vedette-boxes-")  # noqa: SIM115 closed by __exit__

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, line: bytes, /) -> int:
        """One whole line of the log."""
        return self._file.write(line) if line.startswith(_BOXES) else len(line)

    def flush(self) -> None:
        self._file.flush()

    def looks(self) -> Iterator[FrameBoxes]:
        """Every look in order. One reader at a time."""
        self._file.seek(0)
        for line in self._file:
            found = decode_log(line)
            if isinstance(found, FrameBoxes):
                yield found


def true_looks(spool: Spool, frames: TrueFrames) -> Iterator[FrameBoxes]:
    """What a perfect detector and tracker would have reported at the same frames."""
    for look in spool.looks():
        objects = tuple(
            TrackedObject(track=each.id, label=each.label, score=0.9, box=each.box)
            for each in counted(frames, look.frame)
        )
        yield FrameBoxes(camera=look.camera, seq=look.seq, frame=look.frame, t=look.t, looked=True, objects=objects)
