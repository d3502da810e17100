"""Detectors and tracker are as good on real footage as fixtures/accuracy.json says."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import measure_pets
import numpy as np
import pytest

from appliance.lab.scenario.tracking_metrics import LabelledBoxes, average_precision, clear_mot

FIGURES: dict[str, Any] = json.loads(measure_pets.FIGURES.read_text())
AP50 = FIGURES["pets09_s2l1_every_10th_frame_person_ap50"]
TRACKING = FIGURES["pets09_s2l1_5_looks_a_second"]
VISITS = FIGURES["intel_one_by_one_3.3_looks_a_second"]


# With `make test-slow`: the reference networks, which are minutes of somebody else's arithmetic, and our second file,
# whose boxes are measured always and whose tracks are made of those as the first one's are.
def _slow_unless(usual: Collection[str], names: Iterable[str]) -> list[Any]:
    return [name if name in usual else pytest.param(name, marks=pytest.mark.slow) for name in names]


OURS = ("vedette-nano", "vedette-nano-int8")
FIRST = OURS[:1]


@pytest.mark.shared
@pytest.mark.parametrize("name", _slow_unless(OURS, measure_pets.MODELS))
def test_finds_persons_as_well_as_recorded(name: str, shared_data: Path) -> None:
    assert measure_pets.detection_figures(shared_data, measure_pets.MODELS[name]) == pytest.approx(AP50[name], abs=0.01)


@pytest.mark.shared
@pytest.mark.parametrize("name", _slow_unless(FIRST, measure_pets.TRACKED))
def test_follows_persons_as_well_as_recorded(name: str, shared_data: Path) -> None:
    found, recorded = measure_pets.tracking_figures(shared_data, measure_pets.MODELS[name]), TRACKING[name]
    # Another processor rounds scores differently; one score on the other side of a threshold may cost a switch.
    assert found["mota"] == pytest.approx(recorded["mota"], abs=0.015)
    assert found["idf1"] == pytest.approx(recorded["idf1"], abs=0.05)
    assert found["hota"] == pytest.approx(recorded["hota"], abs=0.03)
    assert found["switches"] <= recorded["switches"] + 5
    assert found["boxes"] == recorded["boxes"]


@pytest.mark.shared
@pytest.mark.parametrize("name", _slow_unless(FIRST, measure_pets.TRACKED))
def test_gives_as_many_of_six_visitors_one_number_as_recorded(name: str, shared_data: Path) -> None:
    found, recorded = measure_pets.visit_figures(shared_data, measure_pets.MODELS[name]), VISITS[name]
    # As above: one score on the other side of a threshold may cost a track, or give one.
    assert found["tracks"] == pytest.approx(recorded["tracks"], abs=1)
    assert found["visits_with_one_track"] >= recorded["visits_with_one_track"] - 1


def test_the_tracker_can_give_each_visitor_one_number() -> None:
    assert VISITS["deimv2-femto"] == {"persons": 6, "tracks": 6, "visits_with_one_track": 6}


def labelled(*rows: tuple[float, float]) -> LabelledBoxes:
    """Unit boxes at x with a value each."""
    boxes = np.array([[x, 0, x + 1, 1] for x, _ in rows]).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array([value for _, value in rows]))


def test_the_arithmetic_of_tracking_is_right_on_a_case_done_by_hand() -> None:
    """Two persons in four frames: one swap of numbers, one miss, one false alarm."""
    truth = [labelled((0, 1), (5, 2))] * 4
    found = [
        labelled((0, 11), (5, 12)),
        labelled((0, 11), (5, 12), (9, 13)),
        labelled((0, 12), (5, 11)),
        labelled((0, 12)),
    ]
    result = clear_mot(found, truth)
    assert (result.missed, result.false, result.switches, result.tracks) == (1, 1, 2, 3)
    assert result.mota == pytest.approx(1 - 4 / 8)
    # Best fixed pairing: 1-12 in two frames and 2-11 in one, or 1-11 in two and 2-12 in two: four right answers.
    assert result.idf1 == pytest.approx(2 * 4 / (8 + 8))


def test_who_was_together_stays_together_while_it_can() -> None:
    truth = [labelled((0.0, 1)), labelled((0.0, 1))]
    found = [labelled((0.2, 7)), labelled((0.2, 7), (0.0, 8))]
    assert clear_mot(found, truth).switches == 0


def test_average_precision_is_right_on_a_case_done_by_hand() -> None:
    truth = [labelled((0, 1), (5, 2)).boxes]
    assert average_precision([labelled((0, 0.9), (20, 0.8), (5, 0.7))], truth) == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert average_precision([labelled((0, 0.9), (0.1, 0.8))], truth) == pytest.approx(0.5)
    assert average_precision([labelled()], truth) == 0
