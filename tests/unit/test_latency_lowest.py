"""`latency: lowest`: who is new is looked at again with the next picture, and nobody else is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from places import FPS, Lookout, place
from streams import FrameByFrame

from appliance import config
from appliance.analysis import frame_selector
from appliance.analysis.session_tracks import InferenceRequest
from appliance.ingest.clip_reader import ClipReader
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes

VISIT = (6.0, 9.0)
FRAME_S = 1 / FPS


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place(tmp_path_factory.mktemp("film") / "visit.mp4", 12, [VISIT], bframes="0")


class Flickering(Lookout):
    """Finds somebody in every other look and nobody in the next: an insect, a lamp."""

    def __init__(self) -> None:
        self._odd = False

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self._odd = not self._odd
        return super().detect(pictures) if self._odd else [Detections.empty()]


def watch(
    path: Path, latency: config.LatencyMode, detector: Lookout | None = None, *, answer_after: int = 0
) -> list[FrameBoxes]:
    """What is told of a film. answer_after: so many pictures later the detector answers."""
    detector = detector or Lookout()
    examiner = FrameByFrame("gate", detector, Tracker(detector.labels), config.DetectConfig(latency=latency))
    told: list[FrameBoxes] = []
    waiting: list[tuple[int, InferenceRequest]] = []
    with ClipReader(str(path)) as clip:
        for frame in clip.frames():
            look = examiner.select(frame.index, frame.t, frame.av_frame)
            if look is not None:
                waiting.append((frame.index + answer_after, look))
            while waiting and waiting[0][0] <= frame.index:
                _, look = waiting.pop(0)
                told.append(examiner.infer(look))
    return told


def test_who_is_new_is_told_of_one_picture_after_they_were_found(film: Path) -> None:
    looks = watch(film, "lowest")
    first = next(look for look in looks if look.objects)
    before = [look for look in looks if look.t < first.t]
    assert first.t - before[-1].t == pytest.approx(FRAME_S, abs=0.001)
    usual = next(look for look in watch(film, "normal") if look.objects)
    assert usual.t - first.t == pytest.approx(0.2 - FRAME_S, abs=0.001)


def test_an_answer_that_takes_longer_brings_the_picture_after_it(film: Path) -> None:
    first = next(look for look in watch(film, "lowest", answer_after=1) if look.objects)
    usual = next(look for look in watch(film, "normal", answer_after=1) if look.objects)
    assert usual.t - first.t == pytest.approx(FRAME_S, abs=0.001)


def test_it_is_one_look_more_for_a_newcomer_and_none_for_an_empty_place(film: Path) -> None:
    """The rhythm goes on as it was."""
    lowest, normal = ({look.t for look in watch(film, latency)} for latency in ("lowest", "normal"))
    assert normal <= lowest
    (more,) = lowest - normal
    assert VISIT[0] < more < VISIT[0] + 1


def test_what_flickers_costs_at_most_a_look_more_for_each(film: Path) -> None:
    lowest, normal = (watch(film, latency, Flickering()) for latency in ("lowest", "normal"))
    assert len(lowest) <= 2 * len(normal)
    assert min(b.t - a.t for a, b in itertools.pairwise(lowest)) >= frame_selector.TUNING.confirm_s
    assert not any(look.objects for look in lowest), "nobody is told of who was not found twice running"
