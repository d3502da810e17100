"""`latency: lowest`: who is new is looked at again with the next picture, and nobody else is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.analysis import frame_selector
from appliance.analysis.session_tracks import InferenceRequest
from appliance.replay.footage import ClipReader
from appliance.track.tracker import Tracker
from appliance.types import Detections, FrameBoxes
from tests.support.scripted_sources import FrameByFrame
from tests.support.walker_footage import FPS, WalkerDetector, place

VISIT = (6.0, 9.0)
FRAME_S = 1 / FPS


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place(tmp_path_factory.mktemp("film") / "visit.mp4", 12, [VISIT], bframes="0", threads="2")


class Flickering(WalkerDetector):
    """Finds somebody in every other look and nobody in the next: an insect, a lamp."""

    def __init__(self) -> None:
        self._odd = False

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self._odd = not self._odd
        return super().detect(pictures) if self._odd else [Detections.empty()]


def examine_clip(
    path: Path, latency: config.LatencyMode, detector: WalkerDetector | None = None, *, answer_after: int = 0
) -> list[FrameBoxes]:
    """What is told of a film. answer_after: so many pictures later the detector answers."""
    detector = detector or WalkerDetector()
    driver = FrameByFrame("gate", detector, Tracker(detector.labels), config.DetectConfig(latency=latency))
    reported: list[FrameBoxes] = []
    waiting: list[tuple[int, InferenceRequest]] = []
    with ClipReader(str(path)) as clip:
        for frame in clip.frames():
            each = driver.select(frame.index, frame.t, frame.av_frame)
            if each is not None:
                waiting.append((frame.index + answer_after, each))
            while waiting and waiting[0][0] <= frame.index:
                _, each = waiting.pop(0)
                reported.append(driver.infer(each))
    return reported


def test_who_is_new_is_told_of_one_picture_after_they_were_found(film: Path) -> None:
    examined = examine_clip(film, "lowest")
    first = next(each for each in examined if each.objects)
    before = [each for each in examined if each.t < first.t]
    assert first.t - before[-1].t == pytest.approx(FRAME_S, abs=0.001)
    usual = next(each for each in examine_clip(film, "normal") if each.objects)
    assert usual.t - first.t == pytest.approx(0.2 - FRAME_S, abs=0.001)


def test_an_answer_that_takes_longer_brings_the_picture_after_it(film: Path) -> None:
    first = next(each for each in examine_clip(film, "lowest", answer_after=1) if each.objects)
    usual = next(each for each in examine_clip(film, "normal", answer_after=1) if each.objects)
    assert usual.t - first.t == pytest.approx(FRAME_S, abs=0.001)


def test_it_is_one_look_more_for_a_newcomer_and_none_for_an_empty_place(film: Path) -> None:
    """The rhythm goes on as it was."""
    lowest, normal = ({each.t for each in examine_clip(film, latency)} for latency in ("lowest", "normal"))
    assert normal <= lowest
    (more,) = lowest - normal
    assert VISIT[0] < more < VISIT[0] + 1


def test_what_flickers_costs_at_most_a_look_more_for_each(film: Path) -> None:
    lowest, normal = (examine_clip(film, latency, Flickering()) for latency in ("lowest", "normal"))
    assert len(lowest) <= 2 * len(normal)
    assert min(b.t - a.t for a, b in itertools.pairwise(lowest)) >= frame_selector.TUNING.confirm_s
    assert not any(each.objects for each in lowest), "nobody is told of who was not found twice running"
