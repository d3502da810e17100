"""Collects frames for the calibration of integer networks, from the site's own recording or from clips.

They are decoded here, go into the arithmetic and are forgotten: nothing of them is written, and no frame leaves the
box. What a quantised file holds of them is one range of numbers a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import EvidenceError, StoreError, UsageError
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import cut_key_frame
from appliance.store.archive import StorageArchive
from appliance.store.paths import SEGMENTS, inside
from appliance.types import SegmentRow
from models.train import film

FRAMES = 100
CLIP_FRAMES_MAX = 200  # of a film, however long: more only take memory
FRAMES_MIN = 10  # ranges of fewer are those of one scene
DAYS = 7  # how far back is looked
SIDE_MAX = 960  # larger than any input; a hundred frames are then 150 MB
HOUR_S, DAY_S = 3600.0, 86400.0
Frame = NDArray[np.uint8]
Progress = Callable[[int, int], None]
Thing = TypeVar("Thing")


def recorded_frames(
    storage: Path, cameras: Sequence[str], count: int = FRAMES, progress: Progress = lambda done, of: None
) -> list[Frame]:
    """As `each_recorded_frame`. Raise UsageError: too little is recorded; StoreError."""
    found = list(each_recorded_frame(storage, cameras, count, progress))
    return _enough(found, f"the recording of {', '.join(cameras) or 'no camera'} in {storage}")


def each_recorded_frame(
    storage: Path, cameras: Sequence[str], count: int, progress: Progress = lambda done, of: None
) -> Iterator[Frame]:
    """At most `count` key frames of the recording in a storage folder, BGR, spread over cameras and hours of the day.

    Day and night count alike: a camera that records on alerts has most of its segments at one hour. Reads beside a
    running appliance, and writes nothing. Raise StoreError.
    """
    archive = StorageArchive(storage)
    by_camera = [over_the_day(_segments(archive, camera), -(-count // len(cameras))) for camera in cameras]
    chosen = [row for rows in zip_longest(*by_camera) for row in rows if row is not None][:count]
    for number, row in enumerate(chosen):
        progress(number, len(chosen))
        try:
            path = inside(storage, row.path, SEGMENTS)
            middle = (row.t_start + row.t_end) / 2
            still = cut_key_frame(RecordedSegment(path, row.t_start, row.t_end), middle, SIDE_MAX)
        except (EvidenceError, StoreError):
            continue  # retention was quicker, or the segment is torn
        yield still.image


def clip_frames(clips: Sequence[Path], every: int) -> list[Frame]:
    """Return every `every`th frame of each clip, BGR; of a long one fewer, spread over all of it. Raise UsageError."""
    return _enough([frame for clip in clips for frame in _of_clip(clip, every)], "these clips")


def _of_clip(clip: Path, every: int) -> list[Frame]:
    found: list[Frame] = []
    for number, frame, _ in film.frames(clip, every):
        if number % every == 0:
            found.append(frame)
        if len(found) > CLIP_FRAMES_MAX:
            found, every = found[::2], 2 * every
    return found


def over_the_day(rows: Sequence[SegmentRow], count: int) -> list[SegmentRow]:
    """Return at most `count` of them, as many of each hour of the day as there are, evenly spaced within it."""
    by_hour: dict[int, list[SegmentRow]] = {}
    for row in rows:
        by_hour.setdefault(int(row.t_start % DAY_S // HOUR_S), []).append(row)
    found: list[SegmentRow] = []
    wanted = count
    for left, hour in enumerate(sorted(by_hour, key=lambda each: len(by_hour[each]))):
        share = -(-wanted // (len(by_hour) - left))  # what a thin hour lacks, fuller ones give
        taken = spread(by_hour[hour], share)
        found += taken
        wanted -= len(taken)
    return sorted(found, key=lambda row: row.t_start)


def spread(things: Sequence[Thing], count: int) -> list[Thing]:
    """`count` of them, evenly spaced; all where there are no more."""
    if count >= len(things):
        return list(things)
    return [things[int((number + 0.5) * len(things) / count)] for number in range(count)]


def _segments(archive: StorageArchive, camera: str) -> list[SegmentRow]:
    span = archive.span(camera)
    return [] if span is None else archive.segments(camera, max(span[0], span[1] - DAYS * DAY_S), span[1])


def _enough(frames: list[Frame], of: str) -> list[Frame]:
    if len(frames) < FRAMES_MIN:
        raise UsageError(
            f"{len(frames)} frames of {of} can be read, and ranges of fewer than {FRAMES_MIN} are those of one scene: "
            "record for a day, or name clips with --clip"
        )
    return frames
