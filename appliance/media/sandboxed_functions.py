"""What the sandbox of `SandboxedReader` runs: it decodes and copies, and answers in plain values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np

from appliance.malloc import return_large_blocks
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.media.segment_reader import RecordedSegment
from appliance.media.segment_recovery import recover_segment
from appliance.media.stills import Still

Plain = dict[str, object]

av.logging.set_level(None)  # its lines hold what is in the data
return_large_blocks()


def stills(segments: Sequence[Sequence[object]], times: Sequence[float]) -> list[Plain]:
    return [_plain(each) for each in READ_DIRECTLY.stills(_segments(segments), times)]


def key_frame(segments: Sequence[Sequence[object]], t: float, side_max: int) -> Plain:
    return _plain(READ_DIRECTLY.key_frame(_segments(segments)[0], t, side_max))


def image(path: str, t: float) -> Plain:
    return _plain(READ_DIRECTLY.load_still(Path(path), t))


def clip(
    segments: Sequence[Sequence[object]], t0: float, t1: float, path: str, hold_t: float | None, sound: bool
) -> Plain:
    made = READ_DIRECTLY.clip(_segments(segments), t0, t1, Path(path), hold_t=hold_t, sound=sound)
    return {
        "t_start": made.t_start, "t_end": made.t_end, "width": made.size[0], "height": made.size[1],
        "frames": made.frames, "bytes": made.written.bytes, "sha256": made.written.sha256, "note": made.note,
        "codec": made.codec, "sound": made.sound,
    }  # fmt: skip


def rendition(source: str, path: str) -> Plain:
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # cameras come first; this child does nothing else
    written = READ_DIRECTLY.rendition(Path(source), Path(path))
    return {"bytes": written.bytes, "sha256": written.sha256}


def longest_step_s(segments: Sequence[Sequence[object]]) -> float:
    return READ_DIRECTLY.longest_step_s(_segments(segments)[0])


def recover(path: str) -> Plain | None:
    found = recover_segment(Path(path))
    if found is None:
        return None
    return {
        "seconds": found.seconds, "frames": found.frames, "codec": found.codec, "width": found.size[0],
        "height": found.size[1], "bytes": found.bytes,
    }  # fmt: skip


def _segments(plain: Sequence[Sequence[object]]) -> list[RecordedSegment]:
    return [RecordedSegment(Path(str(path)), float(str(begin)), float(str(end))) for path, begin, end in plain]


def _plain(still: Still) -> Plain:
    width, height = still.size
    return {"t": still.t, "width": width, "height": height, "pixels": np.ascontiguousarray(still.image).data}
