"""`vedette scenario compare`: a variant is recommended only where the footage shows that nothing is lost, and `check`
says how it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import UsageError
from appliance.bundle.manifest import sha256_of
from appliance.cli.site_check import check
from appliance.detect.model_advice import (
    MeasuredFigures,
    VariantMeasurement,
    measurement_path,
    read_measurement,
    variant_advice,
)
from appliance.lab.scenario.compare_command import CompareOptions, ModelRun, compare_command, reasons_against
from appliance.scenario.metrics import TrackFigures, event_figures
from appliance.scenario.scenario_result import ScenarioResult
from appliance.types import Detections
from tests.support import tiny_networks as tiny
from tests.support.block_footage import BrightBlock
from tests.support.yard_scenarios import VISIT, visit_clip, write

VARIANT = {"names": "{0: 'person'}", "vedette_variant": "int8"}


class Dim(BrightBlock):
    """Sees the same, and is not sure enough of it."""

    name = "scripted:dim"

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [
            Detections(each.boxes, each.scores * np.float32(0.3), each.class_ids) for each in super().detect(pictures)
        ]


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    visit_clip(folder)
    write(folder, VISIT)
    thing = [tiny.Thing((8, 8, 60, 60), 0.9, 0)]
    tiny.yolo(folder / "base.onnx", thing, ["person"])
    tiny.yolo(folder / "int8.onnx", thing, ["person"], metadata=VARIANT)
    return folder


Compare = Callable[..., int]


@pytest.fixture
def compare(footage: Path) -> Compare:
    """The visit with the bright block's network, and with `variant` in place of it at half the cost."""

    def run(variant: BrightBlock, cost: tuple[float, float] = (10.0, 5.0), **others: object) -> int:
        def load(settings: DetectorConfig) -> BrightBlock:
            return variant if settings.model.endswith("int8.onnx") else BrightBlock()

        wanted = CompareOptions(base=str(footage / "base.onnx"), variant=str(footage / "int8.onnx"), events_min=3)
        return compare_command([footage], "", replace(wanted, **others), load, lambda _: list(cost))

    return run


def test_a_variant_that_loses_nothing_and_costs_less_is_recommended_and_check_knows(
    compare: Compare, footage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = footage / "int8.onnx"
    measurement_path(model).unlink(missing_ok=True)
    advice = variant_advice(model, VARIANT)
    assert advice is not None
    assert not advice[0]
    assert "was never measured: vedette scenario compare BASE int8.onnx" in advice[1]
    assert compare(BrightBlock()) == 0
    told = capsys.readouterr().out
    assert "recommended" in told
    assert "not recommended" not in told
    advice = variant_advice(model, VARIANT)
    assert advice is not None
    assert advice[0]
    assert "as measured against scripted:bright-block on 1 scenarios, 3 events" in advice[1]
    assert variant_advice(model, {}) is None, "a network that is no variant is none of its business"


def test_a_variant_that_misses_is_not_recommended_and_the_reasons_are_kept(
    compare: Compare, footage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(Dim(), as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["reasons"][0] == "visit passes with scripted:bright-block and fails with the variant"
    assert told["differences"][0]["reported"] == [3, 0]
    site = footage / "site.yaml"
    camera = "{url: 'file:visit.mp4', zones: {z: [[0,0],[1,0],[1,1]]}, rules: [{name: r, kind: enter, zone: z}]}"
    site.write_text(
        f"storage: {{dir: {footage}}}\ndetector: {{model: {footage}/int8.onnx}}\ncameras: {{gate: {camera}}}\n"
    )
    check(site, probe=False, as_json=True)
    assert "not recommended, as measured against scripted:bright-block" in capsys.readouterr().out


def test_a_measurement_counts_for_the_very_file_that_was_measured(footage: Path) -> None:
    model = footage / "int8.onnx"
    before = model.read_bytes()
    figures = MeasuredFigures(passed=1, recall=1, precision=1, false_alarms=0, alerts=1)
    measured = VariantMeasurement(
        variant="int8", variant_sha256=sha256_of(model), base="base", base_sha256="", recommended=True, reasons=(),
        scenarios=("yard",), events=20, footage_s=60, figures={"base": figures}, measured="", machine="",
    )  # fmt: skip
    measurement_path(model).write_text(measured.model_dump_json())
    assert read_measurement(model) == measured
    changed = onnx.load_from_string(before)
    changed.doc_string = "exported again"
    model.write_bytes(changed.SerializeToString())
    try:
        advice = variant_advice(model, VARIANT)
    finally:
        model.write_bytes(before)
    assert advice is not None
    assert "never measured as it is now" in advice[1]


def test_a_damaged_measurement_is_named_with_its_remedy(footage: Path) -> None:
    path = measurement_path(footage / "int8.onnx")
    path.write_text("{")
    advice = variant_advice(footage / "int8.onnx", VARIANT)
    assert advice is not None
    assert f"{path} cannot be read" in advice[1]
    assert "delete it and measure again" in advice[1]


def test_footage_that_is_not_there_proves_nothing(tmp_path: Path) -> None:
    write(tmp_path, {**VISIT, "if_absent": "skip"})
    options = CompareOptions(base="vedette-nano", variant="vedette-nano-int8")
    with pytest.raises(UsageError, match="the footage of none of these"):
        compare_command([tmp_path], "", options)


def run_of(required: list[bool], cpu_ms: float = 5.0, status: str = "passed", hota: float = 0.6) -> ModelRun:
    figures = event_figures(required, [True] * sum(required), [], alerts=sum(required), footage_s=60)
    tracks = TrackFigures(ap50=0.9, hota=hota, idf1=None, mota=None, switches=0, boxes=9, looks=9)
    result = ScenarioResult(
        name="yard",
        file=Path("yard"),
        note="",
        status=status,
        events=figures,
        tracks=tracks,  # type: ignore[arg-type]
    )
    return ModelRun("n", (replace(result, judgement=_Judged(required)),), cpu_ms)  # type: ignore[arg-type]


class _Judged:
    """As much of EventMatches as the sums read."""

    def __init__(self, required: list[bool]) -> None:
        self.required_outcomes, self.judged_outcomes = required, [True] * sum(required)
        self.hits: list[object] = []
        self.false_alarms: list[object] = []


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (run_of([True] * 19 + [False]), "recall falls from 1.000 to 0.950"),
        (run_of([True] * 20, hota=0.58), "hota of yard falls from 0.600 to 0.580"),
        (run_of([True] * 20, cpu_ms=9.6), "it spares nothing here: 9.6 ms of CPU an inference against 10.0"),
        (run_of([True] * 20, hota=0.595), ""),
    ],
)
def test_each_thing_that_may_be_lost_is_a_reason(variant: ModelRun, reason: str) -> None:
    found = reasons_against(run_of([True] * 20, cpu_ms=10.0), variant, tolerance=0.01, events_min=10)
    assert [each[: len(reason)] for each in found] == ([reason] if reason else [])


def test_a_handful_of_events_decides_nothing() -> None:
    same = run_of([True] * 9, cpu_ms=1.0)
    (found,) = reasons_against(run_of([True] * 9, cpu_ms=10.0), same, tolerance=0.01, events_min=10)
    assert found.startswith("only 9 events had to be reported")
