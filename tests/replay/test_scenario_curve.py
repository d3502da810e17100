"""Router and baselines on a film with three visits and three false alarms, from one replay of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance import wire
from appliance.__main__ import main
from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.lab.curve_command import CurveOptions, as_json, curve_command
from appliance.lab.curve_footage import ReplayedFootage, _message_bytes, replay_footage
from appliance.lab.curve_measurement import CurveReport, measure_curves
from appliance.lab.curve_report import bar_sentence, comparison_sentence, curve_page, reading_notes
from appliance.scenario import scenario_loader
from appliance.scenario.scenario_runner import DetectorCache, run_scenario
from appliance.types import Detections
from appliance.uplink.jetstream_publisher import NatsMessage
from tests.support.block_footage import FPS, HEIGHT, WIDTH, BrightBlock, block_clip
from tests.support.yard_scenarios import YARD, write

VISITS, GLARES = (5.0, 35.0, 65.0), (20.0, 50.0, 80.0)
LENGTH_S = 92
SEEDS = 40


def walk(t: float) -> float | None:
    """Each visit walks into the yard and out again within 6 s; glare lights up at the right edge, for 8 s."""
    for start in VISITS:
        if start <= t < start + 6:
            return 0.3 + 0.4 * (1 - abs(t - start - 3) / 3)
    return 0.88 if any(start <= t < start + 8 for start in GLARES) else None


def noisy_clip(path: Path, seconds: float) -> Path:
    """As films.film, before a rough wall: a whole picture weighs more than a cut-out, as it does outdoors."""
    wall = np.random.default_rng(0).integers(0, 90, (120, 160, 1), np.uint8).repeat(2, 0).repeat(2, 1).repeat(3, 2)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"qscale": "2"}
        for index in range(round(seconds * FPS)):
            picture, left = wall.copy(), walk(index / FPS)
            if left is not None:
                picture[100:160, round(left * WIDTH) : round(left * WIDTH) + 24] = 230
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "bgr24")))
        container.mux(stream.encode(None))
    return path


class Doubtful(BrightBlock):
    """Sees a person in the glare as well, but is not sure of it."""

    name = "scripted:doubtful"

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [
            Detections(found.boxes, np.where(found.boxes[:, 0] > 0.8, 0.55, 0.9).astype(np.float32), found.class_ids)
            for found in super().detect(pictures)
        ]


SCENE: dict[str, Any] = {
    "clip": "day.mp4",
    "cameras": {
        "gate": {
            "zones": YARD["zones"],
            "rules": [{"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"}],
        }
    },
    "alerts": {"merge_s": 4},
    "expect": [{"rule": "intruder", "between": [start + 1, start + 5]} for start in VISITS],
    "others": "never",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    noisy_clip(folder / "day.mp4", LENGTH_S)
    write(folder, SCENE, "day")
    return folder


@pytest.fixture(scope="module")
def footage_of_cameras(folder: Path) -> tuple[ReplayedFootage, ...]:
    models = DetectorCache("any", load=lambda _: Doubtful())
    return replay_footage(scenario_loader.load_scenario(folder / "day.scenario.yaml"), models, SystemClock())


@pytest.fixture(scope="module")
def measured(footage_of_cameras: tuple[ReplayedFootage, ...]) -> CurveReport:
    return measure_curves(footage_of_cameras, seeds=SEEDS, stand_in_error=0.0, resamples=200)


def test_one_replay_gives_everything_that_any_strategy_could_send(
    folder: Path, footage_of_cameras: tuple[ReplayedFootage, ...]
) -> None:
    (footage,) = footage_of_cameras
    assert [round(each.start, 1) for each in footage.labels.incidents(0)] == list(VISITS)
    assert len(footage.alerts) == 6
    assert [question.route.cost.bytes > 500 for question in footage.escalations] == [True] * 6
    assert len(footage.best_sightings) == 6
    assert footage.bytes == (folder / "day.mp4").stat().st_size
    # The first picture, which has nothing to be compared with, does not count as movement; a visit does.
    assert max(each.motion for each in footage.examined if each.t < 1) == 0
    assert min(each.motion for each in footage.examined if 5.5 < each.t < 7.5) > 0
    # What the pictures show lies within the evidence's span before the event.
    for question in footage.escalations:
        assert all(question.route.t - 3 <= t <= question.route.t for t in question.moments)


def test_what_stood_there_before_counts_as_in_a_run_of_the_scenario(tmp_path: Path) -> None:
    """A kept alert says that nobody stood there: who is in the picture at its start has come in."""
    block_clip(tmp_path / "early.mp4", 6, lambda t: 0.6)
    scene = {**SCENE, "clip": "early.mp4", "expect": [{"rule": "intruder", "between": [0, 5]}]}
    plan = scenario_loader.load_scenario(write(tmp_path, {**scene, "stood_before": {"gate": []}}, "early"))
    models = DetectorCache(load=lambda _: BrightBlock())
    (replayed,) = replay_footage(plan, models, SystemClock())
    assert run_scenario(plan, models).status == "passed"
    assert len(replayed.alerts) == len(replayed.labels.alerts) == 1


def test_a_tracks_evidence_costs_confidence_only_what_the_router_pays(
    footage_of_cameras: tuple[ReplayedFootage, ...],
) -> None:
    asked = [question.route.cost.bytes for question in footage_of_cameras[0].escalations]
    sighted = [each.bytes for each in footage_of_cameras[0].best_sightings]
    assert sum(sighted) == pytest.approx(sum(asked), rel=0.15)
    assert min(each.frame_bytes for each in footage_of_cameras[0].examined) > max(asked)


def test_a_baselines_message_has_the_bytes_of_the_one_that_the_uplink_sends() -> None:
    body = wire.Escalation(
        id="e", site="s", alert="a", camera="gate", rule="r", kind="enter", label="person", severity="alert", t=0.0,
        created_t=0.0,
    )  # fmt: skip
    subject = wire.escalation_subject("s", wire.PRIORITY_OF["alert"])
    sent = NatsMessage(subject, body.to_json(), wire.escalation_headers(body), "facts")
    assert _message_bytes(body) == sent.size


def test_the_router_finds_all_first_and_no_baseline_is_ahead_of_it(measured: CurveReport) -> None:
    router, confidence, motion, random, frames, stream = measured.sent.curves
    assert measured.incidents == 3
    assert (router.reached, stream.reached, stream.spent) == (1.0, 1.0, 1.0)
    assert frames.whole
    assert router.smallest.value is not None
    # Three questions find three visits; the other three are of the glare.
    assert router.smallest.value < 0.7 * router.spent
    assert router.things == 6
    for other in (motion, random):
        assert other.smallest.value is None or other.smallest.value > router.smallest.value
    assert confidence.reached == 1.0
    for comparison in measured.comparisons:
        if comparison.baseline != "confidence-only":
            assert comparison.baseline_ahead == ()
            assert "never ahead of the router" in comparison_sentence(measured, comparison)


def test_the_cascade_asks_about_what_the_appliance_is_unsure_of(measured: CurveReport) -> None:
    """Three visits and three glares, of one clip: nothing is learnt of them, what is built in must tell them apart."""
    cascade = measured.cascade
    assert cascade is not None
    assert (cascade.alerts, cascade.right, cascade.points[0].asked) == (6, 3, 6)
    assert cascade.most.lost == 0
    assert cascade.points[0].bytes > cascade.most.bytes
    assert cascade.claimed.kept == 0  # six labels claim nothing


def test_a_router_whose_values_are_upside_down_is_reported_to_be_behind(
    footage_of_cameras: tuple[ReplayedFootage, ...],
) -> None:
    (footage,) = footage_of_cameras
    broken = replace(
        footage,
        escalations=tuple(
            replace(each, route=replace(each.route, cost=replace(each.route.cost, value=-each.route.cost.value)))
            for each in footage.escalations
        ),
    )
    measured = measure_curves([broken], seeds=SEEDS, stand_in_error=0.0, resamples=50)
    (confidence, *_) = measured.comparisons
    assert confidence.baseline == "confidence-only"
    assert max(lead.by for lead in confidence.baseline_ahead) > 0.6
    assert comparison_sentence(measured, confidence).startswith("confidence-only: AHEAD of the router from ")
    assert not measured.bar_met
    assert bar_sentence(measured).startswith("bar missed: ")
    assert "confidence-only" in bar_sentence(measured)
    right = (
        measure_curves(footage_of_cameras, seeds=SEEDS, stand_in_error=0.0, resamples=50).sent.curves[0].smallest.value
    )
    wrong = measured.sent.curves[0].smallest.value
    assert right is not None
    assert wrong is not None
    assert wrong > 1.5 * right


def test_a_router_that_never_escalates_finds_nothing_and_its_misses_are_named(
    footage_of_cameras: tuple[ReplayedFootage, ...],
) -> None:
    measured = measure_curves(
        [replace(footage_of_cameras[0], escalations=())], seeds=5, stand_in_error=0.0, resamples=50
    )
    router = measured.sent.curves[0]
    assert (router.reached, router.smallest.value, router.points) == (0.0, None, ())
    assert len(measured.missed) == 3
    assert measured.missed[0].startswith("day, gate: intruder at 0:06.0 (the alert was not asked about")
    blind = measure_curves(
        [replace(footage_of_cameras[0], escalations=(), alerts=())], seeds=5, stand_in_error=0.0, resamples=50
    )
    assert blind.missed[0] == "day, gate: intruder at 0:06.0 (no alert)"
    assert "3 of the incidents raised no alert at all" in " ".join(reading_notes(blind))
    assert "never finds 0.95" in bar_sentence(measured)
    assert "the router finds at no budget" in " ".join(reading_notes(measured))


def test_verdicts_take_the_false_alerts_away_and_errors_cost_recall(
    footage_of_cameras: tuple[ReplayedFootage, ...],
) -> None:
    every, judged, *_ = measure_curves(footage_of_cameras, seeds=SEEDS, stand_in_error=0.0, resamples=50).seen.curves
    hours = footage_of_cameras[0].seconds / 3600
    assert (every.reached, every.spent * hours) == (1.0, pytest.approx(6))
    assert (judged.reached, judged.spent * hours) == (1.0, pytest.approx(3))
    _, slips, *_ = measure_curves(footage_of_cameras, seeds=400, stand_in_error=0.2, resamples=50).seen.curves
    assert slips.reached == pytest.approx(0.8, abs=0.06)
    assert slips.spent * hours == pytest.approx(3 * 0.8 + 3 * 0.2, abs=0.3)


def test_the_same_footage_and_seeds_make_the_same_report(
    footage_of_cameras: tuple[ReplayedFootage, ...], measured: CurveReport
) -> None:
    assert measure_curves(footage_of_cameras, seeds=SEEDS, stand_in_error=0.0, resamples=200) == measured


def test_the_command_reports_as_text_json_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: CurveReport
) -> None:
    noisy_clip(tmp_path / "day.mp4", 24)
    write(tmp_path, {**SCENE, "expect": SCENE["expect"][:1]}, "day")
    write(tmp_path, {**SCENE, "expect": [], "others": "allowed"}, "silent")
    write(tmp_path, {**SCENE, "clip": "absent.mp4", "if_absent": "skip"}, "far")
    models = DetectorCache("any", load=lambda _: Doubtful())
    page = tmp_path / "curves.html"
    assert curve_command([tmp_path], "", models, CurveOptions(seeds=5, html=page)) == 0
    said = capsys.readouterr().out
    assert "left out: far, the footage is not there: absent.mp4" in said
    assert "left out: silent, it does not say what truly happens in it" in said
    assert "verdicts: a stand-in that knows the truth and is wrong in 5 % of its answers" in said
    assert max(map(len, said.split("verdicts:")[0].splitlines())) < 150
    assert curve_command([tmp_path], "day", models, CurveOptions(seeds=5, as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["incidents"], told["sent"]["curves"][0]["name"], told["bar_met"]) == (1, "router", False)
    html = page.read_text()
    assert html.count('<svg class="plot"') == 3
    assert "Cost against accuracy" in html
    assert "cascade: " in said
    assert told["cascade"]["alerts"] == len(told["cascade"]["points"]) - 1
    assert "a stand-in that knows the truth" in html
    assert "never ahead of the router" in html
    for outside in ("<script", "http:", "https:", "url("):
        assert outside not in html
    assert curve_page(measured, 0.0) == curve_page(measured, 0.0)
    json.dumps(as_json(measured), allow_nan=False)


def test_scenarios_without_a_truth_are_refused(tmp_path: Path) -> None:
    noisy_clip(tmp_path / "day.mp4", 3)
    write(tmp_path, {**SCENE, "expect": [{"rule": "intruder"}]}, "when")
    models = DetectorCache("any", load=lambda _: Doubtful())
    with pytest.raises(UsageError, match="no scenario here says when something truly happens"):
        curve_command([tmp_path], "", models, CurveOptions(seeds=5))


def test_wrong_use_is_reported_before_anything_is_run(folder: Path) -> None:
    with pytest.raises(SystemExit):
        main(["scenario", "curve", str(folder), "--stand-in-error", "1.5"])
    assert main(["scenario", "curve", str(folder), "--html", str(folder / "nowhere" / "x.html")]) == 2


def test_verdicts_that_a_scenario_names_have_a_line_of_their_own(tmp_path: Path) -> None:
    noisy_clip(tmp_path / "day.mp4", 36)
    write(tmp_path, {**SCENE, "expect": SCENE["expect"][:1], "verdicts": "stand-in"}, "day")
    models = DetectorCache("any", load=lambda _: Doubtful())
    footage_of_cameras = replay_footage(
        scenario_loader.load_scenario(tmp_path / "day.scenario.yaml"), models, SystemClock()
    )
    assert footage_of_cameras[0].judged_by.startswith("stand-in")
    measured = measure_curves(footage_of_cameras, seeds=5, stand_in_error=0.0, resamples=20)
    every, _, judged, *_ = measured.seen.curves
    assert judged.name == "router, the scenarios' verdicts"
    assert every.things == 2
    assert (judged.things, judged.reached) == (1, 1.0)
    assert "the scenarios' verdicts: stand-in" in " ".join(reading_notes(measured))
