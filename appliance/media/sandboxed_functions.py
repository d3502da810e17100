"""The functions that the sandbox of `SandboxedReader` runs: they decode, redact, encode and copy, with plain values."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import av

from appliance.base.process_memory import return_large_blocks

# Loaded before its limit of memory is set, which counts from what it holds then.
from appliance.media import clips, stills  # noqa: F401
from appliance.media.recorded import ClipRedaction, ExaminedMoment, ImageOrder, RecordedSegment, Redaction
from appliance.media.recording_reader import READ_DIRECTLY
from appliance.media.segment_reader import recover_segment

Plain = dict[str, object]
Made = TypeVar("Made")
SOON_S = 6.0  # a stretch that is no longer holds the first picture, which a person waits for

av.logging.set_level(None)  # its lines hold what is in the data
return_large_blocks()


def images(segments: Sequence[Sequence[object]], wanted: Sequence[tuple[float, Sequence[Plain]]]) -> list[Plain]:
    ordered = [(t, [_order(each) for each in orders]) for t, orders in wanted]
    return [asdict(each) for each in READ_DIRECTLY.images(_segments(segments), ordered)]


def key_frame(segments: Sequence[Sequence[object]], t: float, side_max: int) -> Plain:
    return asdict(READ_DIRECTLY.key_frame(_segments(segments)[0], t, side_max))


def file_images(path: str, t: float, orders: Sequence[Plain]) -> Plain:
    return asdict(READ_DIRECTLY.file_images(Path(path), t, [_order(each) for each in orders]))


def clip(
    segments: Sequence[Sequence[object]], t0: float, t1: float, path: str, hold_t: float | None, sound: bool
) -> Plain:
    return asdict(READ_DIRECTLY.clip(_segments(segments), t0, t1, Path(path), hold_t=hold_t, sound=sound))


def redacted_clip(
    segments: Sequence[Sequence[object]], t0: float, t1: float, path: str, redaction: dict[str, Any]
) -> Plain:
    moments = tuple(ExaminedMoment(**each) for each in redaction["moments"])
    order = ClipRedaction(redaction["hide"], redaction["masks"], moments)
    make = partial(READ_DIRECTLY.redacted_clip, _segments(segments), t0, t1, Path(path), order)
    return asdict(_after_cameras(make))


def _after_cameras(work: Callable[[], Made]) -> Made:
    """Run it in a thread of lowered priority, which the codec's threads inherit: cameras come first."""
    with ThreadPoolExecutor(1, initializer=os.setpriority, initargs=(os.PRIO_PROCESS, 0, 10)) as pool:
        return pool.submit(work).result()


def rendition(source: str, path: str) -> Plain:
    make = partial(READ_DIRECTLY.rendition, Path(source), Path(path))
    return asdict(make() if _length_s(source) <= SOON_S else _after_cameras(make))


def _length_s(source: str) -> float:
    """Return the length of a clip; infinite: that cannot be told."""
    with contextlib.suppress(av.error.FFmpegError), av.open(source, format="mp4") as reading:
        return float(reading.duration or math.inf) / av.time_base
    return math.inf


def longest_step_s(segments: Sequence[Sequence[object]]) -> float:
    return READ_DIRECTLY.longest_step_s(_segments(segments)[0])


def recover(path: str) -> Plain | None:
    found = recover_segment(Path(path))
    return None if found is None else asdict(found)


def _segments(plain: Sequence[Sequence[object]]) -> list[RecordedSegment]:
    return [RecordedSegment(Path(str(path)), float(str(begin)), float(str(end))) for path, begin, end in plain]


def _order(plain: Plain) -> ImageOrder:
    redaction = plain["redaction"]
    known = {**plain, "redaction": None if redaction is None else Redaction(**cast("dict[str, Any]", redaction))}
    return ImageOrder(**cast("dict[str, Any]", known))
