"""What false alarms at one place propose for a rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import CameraConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.false_alarms_api import RuleProposal, propose
from appliance.settings.settings_service import SettingsService
from appliance.store.reviews import ReviewedBox, ReviewStore
from appliance.types import Box, Event
from appliance.web.texts import set_language, tell
from tests.support.dashboard_site import Site, config_of

T0 = 1_700_000_000.0
BUSH: Box = (0.7, 0.4, 0.76, 0.6)
DOOR: Box = (0.2, 0.4, 0.26, 0.6)


def camera(score_min: float = 0.5) -> CameraConfig:
    rules = [{"name": "intruder", "kind": "enter", "zone": "yard", "score_min": score_min}]
    zones = {"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]}
    return CameraConfig.model_validate({"url": "rtsp://10.0.0.1/a", "zones": zones, "rules": rules})


def seen(name: str, score: float, box: Box = BUSH, *, false: bool = True, label: str = "person") -> ReviewedBox:
    return ReviewedBox(name, "intruder", label, score, box, false)


def shifted(box: Box, by: float) -> Box:
    return (box[0] + by, box[1], box[2] + by, box[3])


FALSE = [seen("f1", 0.52), seen("f2", 0.585, shifted(BUSH, 0.01)), seen("f3", 0.55, shifted(BUSH, -0.01))]
RIGHT = [seen(f"r{n}", 0.8, DOOR, false=False) for n in range(10)]


def only(found: list[RuleProposal]) -> RuleProposal:
    (proposal,) = found
    return proposal


def test_three_at_one_place_propose_a_score_that_would_have_kept_them_away() -> None:
    found = only(propose([*FALSE, *RIGHT], camera()))
    assert (found.alarms, found.score_min, found.right, found.lost) == (("f1", "f2", "f3"), 0.59, 10, 0)
    assert found.place == BUSH
    assert "3 false alarms of person" in found.sentences
    assert (
        "With score_min 0.59 none of them would have come; of 10 that you called right, none would be missed."
        in found.sentences
    )


@pytest.mark.parametrize("score", [0.29, 0.47, 0.57, 0.58, 0.59, 0.94, 0.5, 0.585])
def test_the_proposed_score_is_above_that_of_every_false_alarm(score: float) -> None:
    """0.29 / 0.01 is 28.99… in floating point."""
    found = only(propose([seen(f"f{n}", score) for n in range(3)], camera(0.2)))
    assert found.score_min is not None
    assert score < found.score_min <= score + 0.0101


def test_two_are_no_habit_and_neither_are_many_events_of_one_alert() -> None:
    assert propose(FALSE[:2], camera()) == []
    assert propose([seen("f1", 0.5 + n / 100) for n in range(9)], camera()) == []


def test_another_place_size_or_label_is_another() -> None:
    small = (0.72, 0.55, 0.74, 0.6)
    for other in (seen("f3", 0.55, DOOR), seen("f3", 0.55, small), seen("f3", 0.55, label="dog")):
        assert propose([*FALSE[:2], other], camera()) == []


def test_a_score_that_costs_what_is_right_is_not_proposed() -> None:
    weak = [seen(f"w{n}", 0.55, DOOR, false=False) for n in range(2)]
    found = only(propose([*FALSE, *RIGHT, *weak], camera()))
    assert (found.score_min, found.right, found.lost) == (None, 12, 2)
    assert "Ignore this place, if nothing matters there." in found.sentences
    within = only(propose([*FALSE, *RIGHT, *weak[:1]], camera()))
    assert (within.score_min, within.lost) == (0.59, 1), "one of eleven"


@pytest.mark.parametrize("right", [[], RIGHT[:1]])
def test_a_score_above_the_highest_is_not_said_to_cost_what_nobody_lost(right: list[ReviewedBox]) -> None:
    sure = [seen(f"f{n}", 0.97) for n in range(3)]
    certain = [replace(each, score=0.99) for each in right]
    found = only(propose([*sure, *certain], camera()))
    assert (found.score_min, found.lost) == (None, 0)
    assert found.sentences.endswith("scores up to 0.97. Ignore this place, if nothing matters there.")


def tall(height: float, n: int) -> ReviewedBox:
    return seen(f"h{n}", 0.55, (0.2, 0.6 - height, 0.26, 0.6), false=False)


def test_where_no_score_fits_a_height_between_them_is_proposed() -> None:
    """The false alarms are 0.2 of the picture high."""
    large = [tall(0.4, n) for n in range(5)]
    found = only(propose([*FALSE, *large], camera()))
    assert (found.score_min, found.height_min, found.height_max) == (None, 0.3, None)
    assert "With height_min 0.3 none of them would have come, and all that is right would." in found.sentences
    small = [tall(0.1, n) for n in range(5)]
    found = only(propose([*FALSE, *small], camera()))
    assert (found.score_min, found.height_min, found.height_max) == (None, None, 0.15)
    assert "With height_max 0.15" in found.sentences
    mixed = only(propose([*FALSE, *large, tall(0.22, 9)], camera()))
    assert (mixed.height_min, mixed.height_max) == (None, None), "one that is right is as high as they"


def test_what_the_rule_no_longer_reports_proposes_nothing() -> None:
    assert propose(FALSE, camera(score_min=0.59)) == []


def test_every_form_of_a_proposal_is_told_in_german() -> None:
    weak = [seen(f"w{n}", 0.55, DOOR, false=False) for n in range(2)]
    large, small = ([tall(height, n) for n in range(5)] for height in (0.4, 0.1))
    set_language("de")
    try:
        told = [
            tell(only(propose(events, camera())).sentences)
            for events in (
                FALSE, [*FALSE, *RIGHT], [*FALSE, *RIGHT, weak[0]], [*FALSE, *RIGHT, *weak], [*FALSE, *large],
                [*FALSE, *small], [seen(f"f{n}", 0.97) for n in range(3)],
            )
        ]  # fmt: skip
    finally:
        set_language("en")
    assert told[1].endswith("; von 10 als richtig bestätigten ginge keiner verloren.")
    assert told[2].endswith("; von 11 als richtig bestätigten gäbe es 1 nicht mehr.")
    assert not [text for text in told if re.search(r"\b(?:false|that|with|would|of|none|place)\b", text, re.I)]


def test_reviews_make_it_and_taking_one_back_undoes_it(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(T0 + 100), config_of())
    for n in range(3):
        event = Event(
            camera="gate",
            rule="intruder",
            kind="enter",
            track=n,
            label="person",
            t=T0 + n,
            score=0.6,
            box=BUSH,
            zone="yard",
        )
        site.raise_alert(f"a{n}", T0 + n, events=[event])
        ReviewStore(site.db).review([f"a{n}"], "false_alarm", T0 + 50)
    file = tmp_path / "site.yaml"
    file.write_text("site: {name: depot-7}\ncameras: {gate: {url: 'rtsp://10.0.0.1/a'}}\n")
    service = SettingsService(file, tmp_path, site.clock, lambda _: ())
    app = create_app(site.stored, site.config.for_dashboard(), settings=service)
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        (found,) = client.get("/api/v1/cameras/gate/proposals").json()
        assert found["editor"] == "/cameras/gate/edit?rule=intruder&place=0.7%2C0.4%2C0.76%2C0.6&score_min=0.61"
        assert found["alarms"] == ["a2", "a1", "a0"]
        for page in ("/alerts/a0", "/cameras/gate/edit"):
            words = client.get(page, headers={"Accept-Language": "de"}).text
            assert "3 Fehlalarme (Person) an dieser Stelle und in dieser Größe, Sicherheit bis 0,60." in words
            assert "Mit score_min 0,61 wäre keiner davon gekommen." in words
        assert client.get("/api/v1/cameras/dock/proposals").json() == []
        ReviewStore(site.db).review(["a1"], None, T0 + 60)
        assert client.get("/api/v1/cameras/gate/proposals").json() == []
    site.close()
