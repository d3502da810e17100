"""The Prometheus rules and Grafana boards of deploy/: they ask for what exists, fire when they must, only then."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.base.clock import ManualClock
from appliance.base.stage_latencies import BEGUN_MAX, EDGES_S, STAGES, StageLatencies
from appliance.dashboard.metrics_api import FAMILIES
from cloud_worker.metrics import STAGES as WORKER_STAGES
from tests.unit.test_worker_metrics import FAMILIES as WORKER_FAMILIES

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "vedette.rules.yaml"
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
HISTOGRAMS = {"vedette_stage_seconds", "vedette_frame_age_seconds"}
PROMTOOL = shutil.which("promtool")


@functools.cache
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    """Every query of rules and boards, by where it stands."""
    asking = (each for each in rules() if each.get("record") != "vedette:error_budget")  # which is a number
    found = [(each.get("alert", each.get("record")), each["expr"]) for each in asking]
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            found += [(f"{board.name}: {panel['title']}", each["expr"]) for each in panel.get("targets", ())]
    return found


@functools.cache
def known_names() -> set[str]:
    kinds = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    worker = {name + end for name, (kind, _) in WORKER_FAMILIES.items() for end in kinds[kind]}
    own = {name + end for name in HISTOGRAMS for end in kinds["histogram"]}
    return worker | own | set(FAMILIES) | {each["record"] for each in rules() if "record" in each}


def test_there_are_boards_for_appliance_and_worker() -> None:
    assert [board.stem for board in BOARDS] == ["vedette-appliances", "vedette-workers"]


@pytest.mark.parametrize(("where", "query"), queries())
def test_every_query_asks_for_what_exists(where: str, query: str) -> None:
    names = set(re.findall(r"\bvedette[a-z0-9_:]+", query))
    assert names, f"{where} asks for nothing of ours"
    assert names <= known_names()
    assert {float(each) for each in re.findall(r'le="([0-9.]+)"', query)} <= set(EDGES_S), "a bound of the histogram"
    for name, stage in re.findall(r'(vedette\w*stage_seconds)\w*\{[^}]*stage="(\w+)"', query):
        assert stage in (WORKER_STAGES if "worker" in name else STAGES)


def test_what_each_worker_counts_at_the_broker_is_not_added_up() -> None:
    """Every worker reports all that is stored, not its share of it."""
    asking = [query for _, query in queries() if "vedette_worker_backlog" in query]
    assert asking
    assert not any("sum" in query for query in asking)


def test_every_alert_and_every_service_level_has_its_entry_for_the_person_on_call() -> None:
    levels = {each["labels"]["slo"] for each in rules() if each.get("record") == "vedette:error_budget"}
    single = {
        each["annotations"]["runbook"].rsplit(", ", 1)[1]
        for each in rules()
        if "alert" in each and "$labels.slo" not in each["annotations"]["runbook"]
    }
    alerts = {each["alert"] for each in rules() if "alert" in each}
    section = OPERATIONS.split("## Service levels", 1)[1]
    assert levels | single == set(re.findall(r"^- \*\*([a-z-]+)\*\*", section, re.MULTILINE))
    assert all(f"`{name}`" in section for name in alerts)


# Series a minute while all is well: one alert in two hundred is late, one frame in six hundred is not examined.
QUIET = {
    'vedette_stage_seconds_bucket{stage="told",le="30"}': "0+199x{n}",
    'vedette_stage_seconds_count{stage="told"}': "0+200x{n}",
    'vedette_worker_decision_seconds_bucket{priority="high",le="10"}': "0+97x{n}",
    'vedette_worker_decision_seconds_count{priority="high"}': "0+100x{n}",
    "vedette_worker_judged_total": "0+100x{n}",
    "vedette_worker_given_up_total": "0+0x{n}",
    'vedette_frames_examined_total{camera="gate"}': "0+600x{n}",
    'vedette_frames_unexamined_total{camera="gate"}': "0+1x{n}",
    **{f'vedette_camera_state{{camera="{name}",state="live"}}': "1+0x{n}" for name in ("gate", "yard", "door", "hall")},
    "vedette_link_up": "1+0x{n}",
    "vedette_worker_ready": "1+0x{n}",
    'vedette_worker_dead_letters_total{kind="engine"}': "0+0x{n}",
    'vedette_outbox_dropped_total{camera="gate"}': "0+0x{n}",
    'vedette_notify_failing{target="phone"}': "0+0x{n}",
}
TOLD, _, DECIDED, *_ = QUIET
# What goes wrong from the first minute on, which alert must fire, of which service level, after how many minutes.
INCIDENTS = [
    ({TOLD: "0+0x{n}"}, "VedetteBudgetBurnsFast", "told", 15),
    ({TOLD: "0+180x{n}"}, "VedetteBudgetBurns", "told", 45),
    ({TOLD: "0+196x{n}"}, "VedetteBudgetLeaks", "told", 120),
    ({DECIDED: "0+10x{n}"}, "VedetteBudgetBurnsFast", "decision", 15),
    ({"vedette_worker_given_up_total": "0+25x{n}"}, "VedetteBudgetBurnsFast", "judged", 15),
    (
        {"vedette_worker_judged_total": "0+0x{n}", "vedette_worker_given_up_total": "0+25x{n}"},
        "VedetteBudgetBurnsFast",
        "judged",
        15,
    ),
    ({'vedette_frames_unexamined_total{camera="gate"}': "0+600x{n}"}, "VedetteBudgetBurnsFast", "examined", 15),
    (
        {
            'vedette_frames_examined_total{camera="gate"}': "0+0x{n}",
            'vedette_frames_unexamined_total{camera="gate"}': "0+600x{n}",
        },
        "VedetteBudgetBurnsFast",
        "examined",
        15,
    ),
    ({'vedette_camera_state{camera="yard",state="live"}': "0+0x{n}"}, "VedetteBudgetBurnsFast", "cameras", 15),
    ({"vedette_link_up": "0+0x{n}"}, "VedetteBudgetBurnsFast", "link", 15),
    ({"vedette_worker_ready": "0+0x{n}"}, "VedetteWorkersAway", "", 15),
    ({"vedette_worker_ready": "1 stale _x{n}"}, "VedetteWorkersAway", "", 15),
    ({'vedette_worker_dead_letters_total{kind="engine"}': "0+1x{n}"}, "VedetteDeadLetters", "", 15),
    ({'vedette_outbox_dropped_total{camera="gate"}': "0+1x{n}"}, "VedetteOutboxDrops", "", 15),
    ({'vedette_notify_failing{target="phone"}': "1+0x{n}"}, "VedetteTargetFails", "", 15),
]
FIRING = 'count by (alertname, slo) (ALERTS{alertstate="firing"%s})'


def scenario(series: dict[str, str], samples: int, checks: list[dict[str, Any]], every: str = "1m") -> dict[str, Any]:
    inputs = [{"series": name, "values": values.format(n=samples)} for name, values in series.items()]
    return {"interval": every, "input_series": inputs, "promql_expr_test": checks}


def incident(changes: dict[str, str], alert: str, slo: str, minutes: int) -> dict[str, Any]:
    labels = f'{{alertname="{alert}"' + (f',slo="{slo}"' if slo else "") + "}"
    others = f',slo!="{slo}"' if slo else f',alertname!="{alert}"'
    checks = [
        {
            "expr": FIRING % f',alertname="{alert}"',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": labels, "value": 1}],
        },
        {"expr": FIRING % others, "eval_time": f"{minutes}m", "exp_samples": []},
    ]
    return scenario({**QUIET, **changes}, minutes, checks)


def promtool(tmp_path: Path, tests: list[dict[str, Any]], every: str) -> None:
    if PROMTOOL is None:
        pytest.skip("there is no promtool: deploy/get-promtool.sh brings it")
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": tests}))
    ran = subprocess.run([PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_are_written_as_prometheus_reads_them() -> None:
    if PROMTOOL is None:
        pytest.skip("there is no promtool: deploy/get-promtool.sh brings it")
    ran = subprocess.run([PROMTOOL, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_planted_incident_fires_its_alert_and_no_other(tmp_path: Path) -> None:
    assert {alert for _, alert, _, _ in INCIDENTS} == {each["alert"] for each in rules() if "alert" in each}
    promtool(tmp_path, [incident(*each) for each in INCIDENTS], "1m")


def test_nothing_fires_in_a_quiet_week(tmp_path: Path) -> None:
    hours = [{"expr": FIRING % "", "eval_time": f"{hour}h", "exp_samples": []} for hour in range(2, 169, 2)]
    promtool(tmp_path, [scenario(QUIET, 7 * 24 * 30, hours, "2m")], "1h")


def test_stages_are_timed_from_begin_to_end_once() -> None:
    clock = ManualClock()
    latencies = StageLatencies(clock)
    latencies.begin("broker", "a")
    clock.advance(0.3)
    latencies.end("broker", "a")
    latencies.end("broker", "a")
    latencies.end("broker", "unknown")
    latencies.observe("told", -5.0)
    latencies.observe("told", 4000.0)
    found = latencies.read()
    assert set(found) == {"broker", "told"}, "a stage that nothing was counted for is left out"
    assert dict(found["broker"][0]) == {f"{edge:g}": float(edge >= 0.5) for edge in EDGES_S} | {"+Inf": 1.0}
    assert found["broker"][1] == pytest.approx(0.3)
    assert dict(found["told"][0])["0.005"] == 1.0, "two clocks that disagree count as no time"
    assert (dict(found["told"][0])["1800"], dict(found["told"][0])["+Inf"]) == (1.0, 2.0)


def test_an_outbox_that_waits_for_days_costs_no_memory() -> None:
    clock = ManualClock()
    latencies = StageLatencies(clock)
    for n in range(BEGUN_MAX + 1):
        latencies.begin("broker", str(n))
    latencies.end("broker", "0")
    assert latencies.read() == {}, "the oldest is no longer timed"
    latencies.end("broker", str(BEGUN_MAX))
    assert set(latencies.read()) == {"broker"}
