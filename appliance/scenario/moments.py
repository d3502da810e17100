"""Pictures of the moments at which something was missed or wrongly reported, cut from the clip itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.alerts.evidence_still import jpeg
from appliance.errors import SourceError
from appliance.ingest.clip import picture_size
from appliance.ingest.decode import Frame
from appliance.ingest.picture import Pictures
from appliance.replay.faulty import weathered
from appliance.replay.film import ClipFilm
from appliance.scenario.verdict import Moment, Verdict
from appliance.weather.lens import lens_of
from appliance.weather.weather import Weather

SIDE_MAX = 960
QUALITY = 80
STILLS_MAX = 40  # of one scenario
REPORT_STILLS_MAX = 400  # of one report, some 40 MB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Still:
    """A JPEG of one moment; size (width, height) is that of the film, in which boxes are shares."""

    jpeg: bytes
    size: tuple[int, int]


Stills = Mapping[tuple[str, int], Still]
"""By camera and frame."""


def stills(verdict: Verdict, before: Sequence[Stills] = ()) -> Stills:
    """The pictures of all moments of a scenario, the first STILLS_MAX; each clip is decoded once, up to the last.

    before: those of the same report so far; all together are at most REPORT_STILLS_MAX.

    A clip that cannot be read (any more) gives no pictures and a line in the log.
    """
    wanted: dict[str, set[int]] = {}
    room = max(0, REPORT_STILLS_MAX - sum(map(len, before)))
    for moment in _moments(verdict)[: min(STILLS_MAX, room)]:
        wanted.setdefault(moment.camera, set()).add(moment.frame)
    found: dict[tuple[str, int], Still] = {}
    for part in verdict.watched:
        frames = wanted.get(part.camera)
        if frames:
            shown = _Shown(part.clip, part.camera, Weather.read(verdict.weather, verdict.seed))
            found.update({(part.camera, frame): still for frame, still in _cut(shown, frames)})
    return found


def _moments(verdict: Verdict) -> Sequence[Moment]:
    return [moment for fault in verdict.faults for moment in fault.moments]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A clip as the detector saw it."""

    clip: Path
    camera: str
    weather: Weather


def _cut(shown: _Shown, frames: set[int]) -> Iterable[tuple[int, Still]]:
    pictures, lens, last = Pictures(), lens_of(shown.weather), max(frames)
    found = []
    try:
        for frame in weathered(ClipFilm(shown.clip, shown.camera), shown.camera, shown.weather).play():
            if isinstance(frame, Frame) and frame.index in frames:
                size = picture_size(frame)
                seen = lens(frame.index, round(frame.t, 3), frame.picture) if lens else frame.picture
                still = Still(jpeg(pictures.bgr(seen, size), side_max=SIDE_MAX, quality=QUALITY), size)
                found.append((frame.index, still))
            if isinstance(frame, Frame) and frame.index >= last:
                break
    except SourceError as error:
        logger.warning("no pictures for the report: %s", error)
    return found
